"""What libraries take on a GPU beside tensors, computed without one and held against what an H200 has recorded."""

import threading

import pytest
import torch
from memory_models import Transformer, convolutional
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import memload
from memload.device.memory import OperationPeaks
from memload.planning.allocations import Allocations
from memload.planning.gpu_libraries import attention_scratch, cublas_workspaces, kernels_of

MIB = 1 << 20
BACKWARD = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default


@pytest.mark.parametrize(
    ("capability", "environment", "expected"),
    [
        ((9, 0), {}, 66 * MIB),
        ((8, 0), {}, 2 * (2 * 4096 + 8 * 16 + 1024) * 1024),
        ((7, 5), {}, 2 * (2 * 4096 + 8 * 16 + 1024) * 1024),
        ((12, 0), {}, 66 * MIB),
        (None, {}, 66 * MIB),
        ((9, 0), {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, 66 * MIB),
        ((9, 0), {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "0"}, 2 * 128 * 1024),
        ((9, 0), {"CUBLAS_WORKSPACE_CONFIG": "none"}, 66 * MIB),
        ((9, 0), {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1"}, 64 * MIB),
    ],
)
def test_cublas_keeps_a_workspace_for_each_of_two_threads(capability, environment, expected):
    assert cublas_workspaces(capability, environment) == expected


@pytest.mark.parametrize(
    ("make", "sample", "recorded", "within"),
    [
        (convolutional, torch.rand(2, 3, 16, 16), 412_622_336, 0.005),
        (Transformer, torch.randint(100, (2, 24)), 1_330_940_928, 0.0005),
    ],
)
def test_steps_of_8192_rows_take_what_the_allocator_of_an_h200_has_recorded(
    make, sample, recorded, within, monkeypatch
):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    found = memload.compute_batch_size(
        model, sample, "cuda", optimizer=optimizer, mode="static", limit="H200", max_batch_size=8192
    )
    assert found.batch_size == 8192
    assert found.static.workspaces == 66 * MIB
    assert found.used - found.static.context == pytest.approx(recorded, rel=within)


@pytest.mark.parametrize(
    ("dtype", "width", "tokens", "of_head"),
    [
        (torch.float32, 8, 24, 16_400),
        (torch.float32, 64, 65, 2 * 16_400),
        (torch.float32, 128, 128, 2 * (128 * 64 * 4 + 16)),
        (torch.bfloat16, 64, 64, 16_400),
        (torch.bfloat16, 128, 129, 2 * (128 * 128 * 4 + 16)),
        (torch.float16, 256, 64, 4 * (128 * 64 * 4 + 16) + 2 * 1 * 64 * 256 * 4),
    ],
)
def test_attention_has_an_accumulator_for_each_block_of_queries(dtype, width, tokens, of_head):
    query = torch.empty(50, 4, tokens, width, dtype=dtype, device="meta")
    lying = query.new_empty(50, tokens, 4, width).transpose(1, 2)
    assert attention_scratch(BACKWARD, [lying, query, query, query]) == 200 * (of_head + tokens * 4)
    copied = 200 * tokens * width * query.element_size()
    assert attention_scratch(BACKWARD, [query, query, query, query]) == 200 * (of_head + tokens * 4) + copied
    assert attention_scratch(torch.ops.aten.mm.default, [query, query]) == 0


class Attention(nn.Module):
    """Attention over a sequence, with dropout."""

    def forward(self, x):
        return nn.functional.dropout(nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1), 0.1)


def operations_of(device_type, x):
    with FakeTensorMode() as mode, kernels_of(device_type), Allocations() as seen:
        Attention()(mode.from_tensor(x).requires_grad_()).sum().backward()
    return {name.partition(".")[2].removesuffix(".default") for name in seen.timeline().operations}


def test_tensors_without_memory_take_the_operations_of_the_device():
    x = torch.rand(2, 4, 16, 8)
    fused = {"_scaled_dot_product_efficient_attention", "native_dropout"}
    assert fused <= operations_of("cuda", x)
    assert not fused & operations_of("cpu", x)
    assert not {"_scaled_dot_product_efficient_attention"} & operations_of("cuda", torch.rand(2, 4, 16, 7))


def test_threads_that_plan_at_the_same_time_leave_the_usual_functions():
    usual = nn.functional.scaled_dot_product_attention, nn.functional.dropout
    x, inside, found = torch.rand(2, 4, 16, 8), threading.Event(), []

    def beside():  # begins while the other is inside, and ends after it
        with kernels_of("cuda"):
            inside.set()
            left.wait(60)
            found.append(operations_of("cuda", x))

    left, thread = threading.Event(), threading.Thread(target=beside)
    with kernels_of("cuda"):
        thread.start()
        assert inside.wait(60)
    assert "native_dropout" not in operations_of("cpu", x)  # of this thread, while the other one is inside
    left.set()
    thread.join()
    assert "native_dropout" in found[0]
    assert (nn.functional.scaled_dot_product_attention, nn.functional.dropout) == usual


def test_other_tensors_and_masks_are_computed_as_always():
    x, mask = torch.rand(2, 4, 16, 8), torch.ones(16, 16, dtype=torch.bool).tril()
    usual = nn.functional.scaled_dot_product_attention(x, x, x, mask), nn.functional.scaled_dot_product_attention
    with kernels_of("cuda"):
        assert torch.equal(nn.functional.scaled_dot_product_attention(x, x, x, mask), usual[0])
        assert torch.equal(nn.functional.dropout(x, training=False), x)
    assert nn.functional.scaled_dot_product_attention is usual[1]


def test_autocast_reaches_attention():
    with FakeTensorMode() as mode, kernels_of("cuda"), torch.autocast("cpu", torch.bfloat16):
        assert Attention()(mode.from_tensor(torch.rand(2, 4, 16, 8))).dtype == torch.bfloat16


class Allocator:
    """What torch's allocator would say of operations that take as much beside their results as they return."""

    def __init__(self):
        self.resets = 0

    def reset(self, device):
        self.resets += 1

    def read(self, device):
        return {"allocated_bytes.all.current": 1000, "allocated_bytes.all.peak": 1000 + 64 * (self.resets % 3)}


def test_what_operations_take_beside_their_results_is_read_from_the_allocator():
    allocator = Allocator()
    peaks = OperationPeaks(torch.device("cuda"), allocator.read, allocator.reset)
    with Allocations(peaks=peaks) as seen:
        torch.ones(4) * 2
    found = seen.timeline()
    assert [name.endswith(", inside") for name in found.operations] == [False, True, False, True]
    assert found.nbytes.tolist() == [16, 64, 16, 128]
    assert found.freed[[1, 3]].tolist() == [2, 4]


def test_a_plan_names_the_workspaces_and_fit_counts_them_by_gpu():
    rows = memload.DatasetShape(1000, {"x": ("float32", (100,))})
    model = nn.Linear(100, 10)
    for name, expected in (("H100", 66 * MIB), ("A30", 2 * (2 * 4096 + 8 * 16 + 1024) * 1024)):
        plan = memload.plan(rows, 10, model=model, gpu=name, ram="4GB", disk="1GB")
        assert plan.gpu.of("cuBLAS") == expected
    assert memload.plan(rows, 10, gpu="H100", device="cuda", ram="4GB", disk="1GB").gpu.of("cuBLAS") == 0

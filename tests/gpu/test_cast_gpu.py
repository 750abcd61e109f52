"""cast_stim on a CUDA device. benchmarks/gpu_check.sh runs these; one H200 has run them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from waiting import MOST_SECONDS

from memload.casts.rule import Cast
from memload.device import cuda_module
from memload.device.cast_stim import cast_stim

pytestmark = pytest.mark.gpu

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]

every_rule = pytest.mark.parametrize(
    ("dtype", "norm_removed"), [(dtype, norm) for dtype in DTYPES for norm in (False, True)]
)


def assert_as_on_cpu(x: torch.Tensor, got: torch.Tensor, norm_removed: bool) -> None:
    """Equal to what the CPU gives for the same pixels, in strides and bits."""
    expected = cast_stim(x.cpu(), norm_removed, got.dtype)
    assert got.device == x.device
    assert got.stride() == expected.stride()
    assert torch.equal(got.cpu(), expected)


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.randint(0, 256, (1 << 20,), dtype=torch.uint8, device="cuda")


def test_the_kernels_serve_this_device() -> None:
    state = cuda_module.cuda_state()
    assert state.usable, state.reason


@every_rule
def test_all_256_pixels_have_the_bits_of_the_cpu(dtype: torch.dtype, norm_removed: bool) -> None:
    x = torch.arange(256, dtype=torch.uint8, device="cuda").repeat(9)
    assert_as_on_cpu(x, cast_stim(x, norm_removed, dtype), norm_removed)


@every_rule
def test_the_operations_that_stand_in_have_the_bits_of_the_cpu(dtype: torch.dtype, norm_removed: bool) -> None:
    x = torch.arange(256, dtype=torch.uint8, device="cuda")
    assert_as_on_cpu(x, Cast(dtype, norm_removed).apply(x), norm_removed)


@every_rule
def test_every_length_around_a_tile_is_complete(pixels: torch.Tensor, dtype: torch.dtype, norm_removed: bool) -> None:
    for n in (0, 1, 7, 15, 16, 17, 511, 512, 513, 527, 4095, 4096, 4097, 1_000_003):
        x = pixels[:n]
        assert_as_on_cpu(x, cast_stim(x, norm_removed, dtype), norm_removed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_misalignment_writes_its_elements_and_no_others(pixels: torch.Tensor, dtype: torch.dtype) -> None:
    n = 3001
    for src, dst in ((src, dst) for src in range(17) for dst in range(9)):
        memory = torch.full((n + 64,), -7.0, dtype=dtype, device="cuda")
        cast_stim(pixels[src : src + n], True, dtype, out=memory[dst : dst + n])
        assert_as_on_cpu(pixels[src : src + n], memory[dst : dst + n], True)
        assert (memory[:dst] == -7).all()
        assert (memory[dst + n :] == -7).all()


def test_channels_last_and_strided_pixels_keep_the_layout_of_to() -> None:
    x = torch.randint(0, 256, (4, 3, 10, 7), dtype=torch.uint8, device="cuda")
    for view in (x.contiguous(memory_format=torch.channels_last), x[..., ::2], x.permute(3, 0, 2, 1)):
        assert_as_on_cpu(view, cast_stim(view, True, torch.bfloat16), True)


def test_it_runs_on_the_current_stream_and_can_be_captured(pixels: torch.Tensor) -> None:
    out = torch.empty(pixels.shape, dtype=torch.float32, device="cuda")
    cast_stim(pixels, True, out=out)  # loads the kernel before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cast_stim(pixels, True, out=out)
    out.zero_()
    pixels.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert_as_on_cpu(pixels, out, True)


def test_a_stream_of_the_users_orders_it_after_what_was_queued_there() -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.zeros(1 << 26, dtype=torch.uint8, device="cuda")
        for _ in range(20):
            x.add_(3)
        got = cast_stim(x, False)
    stream.synchronize()
    assert (got == 60).all()


@pytest.mark.filterwarnings("ignore")  # the compiler's own deprecations
def test_torch_compile_takes_it_without_a_graph_break(pixels: torch.Tensor) -> None:
    compiled = torch.compile(lambda x: cast_stim(x, True, torch.bfloat16) * 2, fullgraph=True)
    assert torch.equal(compiled(pixels), cast_stim(pixels, True, torch.bfloat16) * 2)


def test_a_launch_on_a_device_that_is_not_there_raises_with_the_calls_name(pixels: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="cudaSetDevice failed: cudaErrorInvalidDevice"):
        cuda_module.cuda_module().cast_stim(pixels.data_ptr(), pixels.data_ptr(), 16, "F32", False, 999, 0)
    assert_as_on_cpu(pixels, cast_stim(pixels, True), True)  # it was told once, not again by the next launch


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two devices")
def test_the_second_device_is_served_while_the_first_is_current() -> None:
    x = torch.arange(256, dtype=torch.uint8, device="cuda:1")
    assert_as_on_cpu(x, cast_stim(x, True), True)
    assert torch.cuda.current_device() == 0


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two devices")
def test_asking_about_the_second_device_first_of_all_leaves_the_first_current() -> None:
    asked = "from memload.device.cuda_module import cuda_state; state = cuda_state(1)"
    program = f"import torch; {asked}; assert state.usable, state.reason; assert torch.cuda.current_device() == 0"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=MOST_SECONDS)

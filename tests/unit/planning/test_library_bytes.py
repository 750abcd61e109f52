"""The memory inside oneDNN's operations, against what they allocate and what a process takes."""

import itertools
import os
import subprocess
import sys

import pytest
import torch
from waiting import MOST_SECONDS

from memload.planning import library_bytes as library_bytes_module
from memload.planning.library_bytes import LstmLayer, library_bytes
from memload.planning.measuring import measured, without_memory
from memload.planning.steps import losses_of
from memload.planning.variants import kind_of

FORWARD = torch.ops.aten.mkldnn_rnn_layer.default
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN")


def arguments(steps, rows, inputs, width, dtype=torch.float32):
    weights = [torch.zeros(4 * width, n, dtype=dtype) for n in (inputs, width)]
    biases = [torch.zeros(4 * width, dtype=dtype) for _ in range(2)]
    states = [torch.zeros(rows, width, dtype=dtype) for _ in range(2)]
    x = torch.zeros(steps, rows, inputs, dtype=dtype)
    return (x, *weights, *biases, *states, False, [], 2, width, 1, True, False, False, True)


@needs_onednn
@pytest.mark.parametrize("shape", [*itertools.product((1, 33), (1, 7, 130), (1, 300), (16, 100, 256))], ids=str)
def test_the_workspace_is_as_large_as_the_one_that_onednn_asks_for(shape):
    given = arguments(*shape)
    assert LstmLayer.of(*given[:3]).workspace == FORWARD(*given)[3].numel()


@needs_onednn
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True, "dropout": 0.2}, {"bias": False}, {"batch_first": True}]
)
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_a_step_without_memory_takes_as_much_as_a_real_one(kind, options):
    model, sample = kind(20, 32, **options), torch.rand(6, 3, 20)
    losses = losses_of([model], lambda x: model(x)[0].mean(), [], None, "cpu")
    real, shapes = (run(kind_of(sample), losses, [model]) for run in (measured, without_memory))
    assert shapes.step.at(6) == pytest.approx(real.step.at(6), abs=1024)  # biases of zeros, where there are none
    assert shapes.saved.at(6) == real.saved.at(6) > 0


def test_other_cells_and_operations_have_no_bytes_beside_their_results():
    given = list(arguments(2, 3, 4, 5))
    given[9] = 3  # a GRU
    for operation, args in ((FORWARD, given), (torch.ops.aten.add.Tensor, (1, 2))):
        found = library_bytes(operation, args, None)
        assert (found.scratch, found.workspace) == ((), None)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("options", "places", "columns"),
    [
        ({"kernel_size": 3, "padding": 1}, 64 * 64, 16 * 9),
        ({"kernel_size": 5, "stride": 2, "groups": 4}, 30 * 30, 4 * 25),
        ({"kernel_size": 1}, 0, 0),
        ({"kernel_size": 1, "stride": 2}, 32 * 32, 16),
        ({"kernel_size": 3, "dilation": 2}, 0, 0),
    ],
    ids=str,
)
def test_convolutions_that_torch_computes_in_half_precision_unfold_a_batch(
    monkeypatch, options, places, columns, backward
):
    """As a process took on a CPU without instructions for bfloat16: 302 MB of 302 computed, 210 of 210."""
    monkeypatch.setitem(library_bytes_module._IN_HALF, torch.bfloat16, lambda: False)
    layer = torch.nn.Conv2d(16, 32, **options).bfloat16()
    x = torch.empty(5, 16, 64, 64, dtype=torch.bfloat16)
    y = torch.empty(torch.nn.functional.conv2d(x.float(), layer.weight.float(), None, *steps_of(layer)).shape)
    y = y.bfloat16()
    shared = [[*layer.stride], [*layer.padding], [*layer.dilation], False, [0, 0], layer.groups]
    if backward:
        args = (y, x, layer.weight, [32], *shared, [True, True, True])
        found = library_bytes(torch.ops.aten.convolution_backward.default, args, None, on_cpu=True)
    else:
        args = (x, layer.weight, layer.bias, *shared)
        found = library_bytes(torch.ops.aten.convolution.default, args, y, on_cpu=True)
    assert sum(written for written, _ in found.scratch) == 5 * places * columns * 2


def steps_of(layer):
    return layer.stride, layer.padding, layer.dilation, layer.groups


RUN = """
import sys, torch
from memload.memory.budget import parse_meminfo
from memload.planning.measuring import without_memory
from memload.planning.variants import kind_of
from memload.planning.steps import losses_of

def of(name):
    return parse_meminfo(open("/proc/self/status").read())[name]

name, *shape = sys.argv[1:]
one, rows, inputs, width = map(int, shape)
if name == "LSTM":
    layers = torch.nn.LSTM(inputs, width, 2, batch_first=True)
    model, x = layers, torch.rand(rows, one, inputs)
    loss = lambda x: layers(x)[0].mean()
else:
    convolutions = [torch.nn.Conv2d(inputs, width, 3), torch.nn.ReLU(), torch.nn.Conv2d(width, width, 3)]
    dtype = torch.bfloat16 if name == "CNN of bfloat16" else torch.float32
    model, x = torch.nn.Sequential(*convolutions).to(dtype), torch.rand(rows, inputs, one, one, dtype=dtype)
    loss = lambda x: model(x).mean()
for p in model.parameters():
    p.grad = torch.zeros_like(p)
loss(x[:2]).backward()  # what the libraries load once
taken = 0
for _ in range(3):  # the kernel may unmap pages of files meanwhile, which makes it less
    open("/proc/self/clear_refs", "w").write("5")  # the peak from here on
    before = of("VmRSS")
    loss(x).backward()
    taken = max(taken, of("VmHWM") - before)
found = without_memory(kind_of(x), losses_of([model], loss, [], None, "cpu"), [model], on_cpu=True)
print(found.accumulating.at(rows), taken)
"""


@pytest.mark.slow
@needs_onednn
@pytest.mark.parametrize(
    "case",
    [
        *(("LSTM", 100, 64, 64, 256), ("LSTM", 30, 300, 32, 256)),
        *(("CNN", 64, 32, 3, 32), ("CNN", 64, 32, 16, 24), ("CNN of bfloat16", 64, 32, 16, 24)),
    ],
    ids=str,
)
def test_a_process_takes_what_was_computed(case):
    blocks = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144"}
    command = [sys.executable, "-c", RUN, *map(str, case)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **blocks}, timeout=MOST_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    computed, taken = map(int, done.stdout.split())
    assert 0.85 < computed / taken < 1.1

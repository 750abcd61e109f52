"""What a monitor sees of a GPU; with nothing imported but what the check of a GPU machine has."""

import time
import warnings

import pytest
import torch

import memload

MB = 1 << 20


@pytest.mark.gpu
def test_a_gpu_is_seen_as_torch_has_it_and_growing_tensors_are_told():
    kept = [torch.zeros(64 * MB, dtype=torch.uint8, device="cuda")]
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        with memload.Monitor(interval=0.02, show=False) as monitor:
            for step in range(200):
                monitor.mark(step)
                kept.append(torch.zeros(MB, dtype=torch.uint8, device="cuda"))
                time.sleep(0.01)
            monitor.mark(200)
    (gpu,) = monitor.samples[-1].gpus
    assert gpu.allocated == torch.cuda.memory_allocated()
    assert gpu.reserved == torch.cuda.memory_reserved()
    assert gpu.at_batch <= gpu.allocated <= gpu.peak
    assert 0 < gpu.free < gpu.total
    assert ("results kept", f"cuda:{gpu.index}") in [(one.cause, one.place) for one in monitor.findings]


@pytest.mark.gpu
def test_a_monitor_beside_the_capture_of_a_graph_does_not_break_it():
    x = torch.ones(1000, device="cuda")
    with memload.Monitor(interval=0.01, show=False) as monitor:
        monitor.mark(0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            time.sleep(0.1)
        graph.replay()
    assert y.sum().item() == 2000

"""What a GPU's memory holds, worked out of torch's answers."""

import pytest
import torch

from memload.device.memory import device_index, gpu_memories, gpu_memory, parse_memory

STATS = {
    "allocated_bytes.all.current": 3_000,
    "reserved_bytes.all.current": 5_000,
    "inactive_split_bytes.all.current": 500,
    "allocated_bytes.all.peak": 4_000,
    "reserved_bytes.all.peak": 6_000,
    "num_alloc_retries": 2,
    "num_ooms": 1,
}


def test_what_is_not_free_and_not_reserved_is_of_contexts_and_others():
    memory = parse_memory(1, "H200", (10_000, 20_000), STATS)
    assert (memory.others, memory.available, memory.own.fragmentation) == (5_000, 12_000, 0.1)
    assert (memory.own.peak_allocated, memory.own.peak_reserved) == (4_000, 6_000)
    assert str(memory) == "GPU 1, H200: 12 kB of 20 kB available, 3 kB in tensors, 5 kB in contexts and of others"


def test_an_allocator_without_figures_gives_zeros():
    memory = parse_memory(0, "some", (10, 20), {})
    assert (memory.own.fragmentation, memory.available, memory.others) == (0.0, 10, 10)


def test_a_device_is_named_as_torch_names_it():
    assert [device_index(named, 2, 1) for named in (None, "cuda", "cuda:0", 1)] == [1, 1, 0, 1]
    with pytest.raises(ValueError, match="this process sees 2, from cuda:0 to cuda:1"):
        device_index("cuda:2", 2, 0)
    with pytest.raises(ValueError, match="'cpu' is none"):
        device_index("cpu", 2, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_tell():
    assert gpu_memory() is None
    assert gpu_memories() == []


@pytest.mark.gpu
def test_a_tensor_on_a_gpu_is_seen():
    before = gpu_memory()
    held = torch.zeros(1 << 20, device="cuda")
    after = gpu_memory()
    assert after.own.allocated - before.own.allocated == held.nbytes
    assert 0 < after.available < after.total

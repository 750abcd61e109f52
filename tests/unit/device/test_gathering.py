"""Rows and windows that a device gathers: what they are, by the operations that stand in where there is no GPU."""

import itertools

import pytest
import torch

from memload import Augment, Cast
from memload.device import gathering, kernels
from memload.device.gathering import expand_windows, gather_rows
from memload.device.kernels import RowKernel
from memload.device.split_rows import SplitRows

STORED = torch.arange(7 * 4 * 5 * 3).remainder(251).to(torch.uint8).view(7, 4, 5, 3)
NUMBERS = torch.tensor([6, 0, 0, 3])
STEPS = -torch.arange(3)
RULES = [
    None,
    Cast(torch.bfloat16, norm_removed=True),
    Cast(torch.float32, scale=0.1, mean=(1.0, 2.0, 3.0), std=(3.0, 2.0, 1.5), channels=-1),
    Cast(torch.float16, channels=-1, layout="NCHW", augment=Augment((2, 3), 0.5)),
    Cast(torch.float16, channels=-1, layout="channels_last"),
]


@pytest.mark.parametrize("rule", RULES)
def test_gathered_rows_are_the_cast_of_indexed_rows(rule):
    seeds = [4, 5, 6, 7] if rule and rule.augment else None
    expected = STORED[NUMBERS] if rule is None else rule.apply(STORED[NUMBERS], seeds)
    got = gather_rows(STORED, NUMBERS, rule, seeds=seeds)
    assert torch.equal(got, expected)
    out = torch.empty(expected.shape, dtype=expected.dtype)
    assert torch.equal(gather_rows(STORED, NUMBERS, rule, out, seeds=seeds), expected)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32])
def test_windows_are_frames_by_begins_and_steps(dtype):
    frames, begins = STORED.to(dtype), torch.tensor([2, 6, 3])
    indexed = frames.to(torch.int64)[begins[:, None] + STEPS]
    assert torch.equal(expand_windows(frames, begins, STEPS).to(torch.int64), indexed)
    rule = Cast(torch.float32, mean=(1.0, 2.0, 3.0), channels=-4)  # along the steps
    assert torch.equal(expand_windows(frames, begins, STEPS, rule), rule.apply(indexed))


def test_what_is_no_row_or_does_not_fit_is_refused():
    with pytest.raises(IndexError, match="row 7 is not one of the 7"):
        gather_rows(STORED, torch.tensor([7]))
    with pytest.raises(IndexError, match="row -1 is not"):
        expand_windows(STORED, torch.tensor([1]), STEPS)
    with pytest.raises(TypeError, match="numbers are int64"):
        gather_rows(STORED, torch.tensor([1.0]))
    with pytest.raises(ValueError, match="at least one frame"):
        expand_windows(STORED, NUMBERS, torch.empty(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="cast them later"):
        expand_windows(STORED, NUMBERS, STEPS, RULES[3])
    with pytest.raises(ValueError, match="its shape is"):
        gather_rows(STORED, NUMBERS, out=torch.empty(3))


def test_rows_too_long_for_the_kernel_that_copies_are_copied_by_torch(monkeypatch):
    launched = []
    monkeypatch.setattr(gathering, "kernels_serve", lambda device: True)  # as on a GPU
    monkeypatch.setattr(gathering, "_readable", lambda *tensors: True)
    monkeypatch.setattr(gathering, "_address", lambda tensor, device: 0)
    monkeypatch.setattr(RowKernel, "launch", lambda *_, **__: launched.append(True))
    monkeypatch.setattr(kernels, "_MOST_ELEMENTS", 8 * 60)
    rule = Cast(torch.float32, scale=0.5)
    for dtype, there in ((torch.int32, True), (torch.int64, False)):
        stored = STORED.to(dtype)
        for given in (None, rule):  # no kernel casts from these: rows are copied first
            launched.clear()
            got = gather_rows(stored, NUMBERS, given)
            assert bool(launched) == there
            if not there:
                assert torch.equal(got, stored[NUMBERS] if given is None else rule.apply(stored[NUMBERS]))


def test_a_tensor_that_got_other_memory_is_looked_at_again(monkeypatch):
    launched = []
    monkeypatch.setattr(gathering, "kernels_serve", lambda device: True)
    monkeypatch.setattr(gathering, "_readable", lambda *tensors: True)
    monkeypatch.setattr(gathering, "_address", lambda tensor, device: tensor.data_ptr())
    monkeypatch.setattr(RowKernel, "launch", lambda kernel, *_, **__: launched.append(kernel.parts))
    stored, other = STORED.clone(), STORED.clone()
    memory = stored.data_ptr()
    for _ in range(2):
        gather_rows(stored, NUMBERS)
    stored.set_(other)
    gather_rows(stored, NUMBERS)
    assert launched == [[(memory, 7)], [(memory, 7)], [(other.data_ptr(), 7)]]


def test_memory_that_is_pinned_later_is_read_by_a_kernel_from_then_on(monkeypatch):
    launched, pinned = [], []
    monkeypatch.setattr(gathering, "kernels_serve", lambda device: True)
    monkeypatch.setattr(gathering, "_address", lambda tensor, device: tensor.data_ptr())
    monkeypatch.setattr(RowKernel, "launch", lambda *_, **__: launched.append(True))
    stored = STORED.clone()
    monkeypatch.setattr(
        gathering, "_readable", lambda *tensors: bool(pinned) or all(one is not stored for one in tensors)
    )
    assert torch.equal(gather_rows(stored, NUMBERS), STORED[NUMBERS])
    assert not launched
    pinned.append(stored)
    gather_rows(stored, NUMBERS)
    assert launched


@pytest.mark.parametrize("cuts", [[3], [0, 3], [1, 1, 6], [7], [2, 7, 7]])
@pytest.mark.parametrize("rule", RULES)
def test_rows_of_several_memories_are_those_of_one(rule, cuts):
    bounds = [0, *cuts, 7]
    split = SplitRows(tuple(STORED[a:b].clone() for a, b in itertools.pairwise(bounds)), torch.device("cpu"))
    assert (len(split), split.shape, split.ndim, split.numel()) == (7, STORED.shape, 4, STORED.numel())
    seeds = [4, 5, 6, 7] if rule and rule.augment else None
    assert torch.equal(gather_rows(split, NUMBERS, rule, seeds=seeds), gather_rows(STORED, NUMBERS, rule, seeds=seeds))
    if rule is None or not rule.places:
        begins = torch.tensor([2, 6, 3])
        assert torch.equal(expand_windows(split, begins, STEPS, rule), expand_windows(STORED, begins, STEPS, rule))


def test_rows_of_several_memories_that_are_not_there_are_refused():
    split = SplitRows((STORED[:3], STORED[3:]), torch.device("cpu"))
    for wrong in (7, -1):
        with pytest.raises(IndexError, match=f"row {wrong} is not one of the 7"):
            gather_rows(split, torch.tensor([0, wrong]))
        with pytest.raises(IndexError, match="1 of 2 row numbers are outside of the 7 stored rows"):
            split.index_select(0, torch.tensor([0, wrong]))
    with pytest.raises(ValueError, match="along the axis 0, got 1"):
        split.index_select(1, torch.tensor([0]))

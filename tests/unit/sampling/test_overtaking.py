"""With ``in_order=False`` batches overtake each other; a state knows which of them the loop has."""

import multiprocessing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import MOST_SECONDS

import memload
from memload.sampling.overtaking import Overtaking


class GatherSpec:
    """Numbered batches that can be resumed anywhere."""

    def __init__(self, count, begin):
        self.numbers, self.begin = iter(range(begin, count)), begin

    def next(self, seen):
        return next(self.numbers)

    def position(self, seen):
        return {"at": self.begin + seen}


class Workers:
    """What torch's iterator does with `ahead` batches under way: any of them may be next."""

    def __init__(self, overtaking, ahead):
        self.overtaking, self.ahead = overtaking, ahead
        self.sent, self._task_info = 0, {}

    def hand_over(self, choose):
        while len(self._task_info) < self.ahead:
            try:
                self._task_info[self.sent] = self.overtaking.next(0)
            except StopIteration:
                break
            self.sent += 1
        return self._task_info.pop(choose(sorted(self._task_info))) if self._task_info else None


@given(st.integers(0, 30), st.data())
@settings(deadline=None, max_examples=300)
def test_every_batch_is_handed_out_once_however_often_the_pass_is_taken_up(count, data):
    seen, position = [], {"at": 0}
    for steps in [*data.draw(st.lists(st.integers(0, 12), max_size=4)), count + 1]:
        overtaking = Overtaking(GatherSpec(count, position["at"]), position)
        workers = Workers(overtaking, data.draw(st.integers(1, 6)))
        overtaking.watch(workers)
        handed = [workers.hand_over(lambda tasks: data.draw(st.sampled_from(tasks))) for _ in range(steps)]
        seen += [one for one in handed if one is not None]
        position = overtaking.position(len(seen))
    assert sorted(seen) == list(range(count))
    assert position == {"at": count}


WORKERS = {"num_workers": 2, "multiprocessing_context": "fork"}  # others cannot be sent the gate


class Gated(torch.utils.data.Dataset):
    """Row 0 waits until the gate is open."""

    def __init__(self):
        self.gate = multiprocessing.get_context("fork").Event()

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 0:
            assert self.gate.wait(MOST_SECONDS)
        return index


def overtaken(dataset):
    loader = memload.FastLoader(dataset, in_order=False, **WORKERS)
    batches = iter(loader)
    seen = [next(batches).item() for _ in range(4)]
    state = loader.state_dict()
    dataset.gate.set()  # its worker can end
    return seen, state


def test_rows_that_were_overtaken_are_seen_once_after_a_resume():
    dataset = Gated()
    seen, state = overtaken(dataset)
    assert 0 not in seen
    in_order = memload.FastLoader(dataset)
    in_order.load_state_dict(state)
    rest = [batch.item() for batch in in_order]
    assert rest == sorted(set(range(10)) - set(seen))
    workers = memload.FastLoader(dataset, in_order=False, **WORKERS)
    workers.load_state_dict(state)
    assert sorted(seen + [batch.item() for batch in workers]) == list(range(10))
    assert len(list(workers)) == 10


def test_the_native_engine_refuses_a_state_with_batches_that_were_overtaken():
    _, state = overtaken(Gated())
    native = memload.FastLoader(memload.from_arrays(x=torch.arange(10)).only("x"))
    with pytest.raises(ValueError, match="some batches had overtaken others, and this loader is native"):
        native.load_state_dict(state)

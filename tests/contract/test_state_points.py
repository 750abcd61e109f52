"""A state is exact at every point of a loop: the batches behind it are those that the iterator goes on to give.

Nothing but the state is carried over: torch's global generator stands elsewhere where the state is loaded.
"""

import json

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stopping import SAMPLERS, make
from torch.utils.data import IterableDataset

import memload


def plain(batch):
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    return [plain(part) for part in batch] if isinstance(batch, list | tuple) else batch


def rest_and_resumed(make_loader, taken, *, draws=0, around=iter, again=iter):
    """What an iterator gives after so many batches, and what another loader gives with the state from there.

    Between the state and the next batch, the loop draws so many numbers from torch's global generator.
    """
    torch.manual_seed(4)
    loader = make_loader(0)
    iterator = iter(around(loader))
    for _ in range(taken):
        next(iterator, None)
    state = json.loads(json.dumps(loader.state_dict()))
    if state["finished"]:
        return None, None  # what follows is another pass: see below
    torch.rand(draws)
    rest = [plain(batch) for batch in iterator]
    torch.manual_seed(99)
    resumed = make_loader(1)
    resumed.load_state_dict(state)
    return rest, [plain(batch) for batch in again(resumed)]


def assert_exact(make_loader, taken, **how):
    rest, resumed = rest_and_resumed(make_loader, taken, **how)
    assert resumed == rest
    return rest


@given(
    kind=st.sampled_from([kind for kind in SAMPLERS if kind != "draws from the global generator"]),
    n=st.integers(3, 40),
    taken=st.integers(0, 12),
    native=st.booleans(),
    draws=st.sampled_from([0, 3]),
    threads=st.sampled_from([0, 2]),
    persistent=st.booleans(),
)
@settings(deadline=None, max_examples=150)
@example("shuffled", 20, 0, True, 0, 0, False)
@example("shuffled", 20, 0, False, 3, 0, False)
@example("subset", 20, 0, True, 3, 0, False)
@example("weighted as it goes", 20, 0, True, 3, 0, False)
def test_what_follows_a_state_is_what_the_iterator_gives(kind, n, taken, native, draws, threads, persistent):
    workers = {"num_workers": threads, "persistent_workers": persistent} if native and threads else {}
    assert_exact(lambda seed: make(kind, n, native=native, seed=seed, **workers), taken, draws=draws)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("draws", [0, 3])
def test_an_unknown_sampler_that_draws_from_the_global_generator_is_taken_up_before_its_first_draw(native, draws):
    kind = "draws from the global generator"
    assert_exact(lambda seed: make(kind, 20, native=native, seed=seed), 0, draws=draws)


@pytest.mark.parametrize("kind", ["shuffled", "subset", "draws from the global generator"])
@pytest.mark.parametrize("persistent", [True, False])
def test_states_of_worker_processes_are_exact_before_the_first_batch(kind, persistent):
    def loader(seed):
        return make(kind, 20, native=False, seed=seed, num_workers=1, persistent_workers=persistent)

    assert_exact(loader, 0, draws=2)


@pytest.mark.parametrize("kind", [kind for kind in SAMPLERS if "generator" not in kind])
@pytest.mark.parametrize("native", [True, False])
def test_a_state_before_the_first_batch_changes_no_draw(kind, native):
    def run(tells):
        torch.manual_seed(3)
        loader = make(kind, 20, native=native)
        iterator, seen = iter(loader), []
        if tells:
            loader.state_dict()
        for batch in iterator:
            seen += [batch.tolist(), torch.get_rng_state().tolist()]
        return seen

    assert run(True) == run(False)


@pytest.mark.parametrize(
    ("kind", "native"),
    [("subset", True), *((kind, native) for kind in ("shuffled", "weighted as it goes") for native in (True, False))],
)
def test_draws_between_a_state_and_the_first_batch_leave_the_global_generator_where_it_would_be(kind, native):
    def generator_after(tells):
        torch.manual_seed(3)
        loader = make(kind, 20, native=native)
        iterator = iter(loader)
        if tells:
            loader.state_dict()
        torch.rand(2)
        next(iterator)
        return torch.get_rng_state().tolist()

    assert generator_after(True) == generator_after(False)


def joined():
    parts = {"a": memload.from_arrays(x=torch.arange(9)), "b": memload.from_arrays(x=torch.arange(20, 34.0))}
    return memload.concat(parts)


def windows():
    return memload.from_arrays(x=torch.arange(60)).with_lags(x=range(4))


def mapped():
    return memload.from_arrays(x=torch.arange(21.0)).map(lambda row: {"x": row["x"] + torch.rand(())})


LAYERS = {
    "groups": lambda: memload.FastLoader(joined(), 4, shuffle=True, collate_fn=memload.group_collate),
    "groups of a mixture": lambda: memload.FastLoader(
        joined(), 4, sampler=memload.MixingSampler(joined(), {"a": 3, "b": 1}), collate_fn=memload.group_collate
    ),
    "windows": lambda: memload.FastLoader(windows(), 8, shuffle=True),
    "random numbers of rows": lambda: memload.FastLoader(mapped(), 4, shuffle=True),
    "random numbers of batches": lambda: memload.FastLoader(
        windows(), 8, shuffle=True, batch_transform=lambda batch: {"x": batch["x"] + torch.rand(())}
    ),
    "a budget": lambda: memload.FastLoader(windows(), batch_sampler=memload.BudgetBatchSampler([1] * 57, 8)),
    "single samples": lambda: memload.FastLoader(list(range(12)), batch_size=None, shuffle=True),
    "stock, with a transform": lambda: memload.FastLoader(
        list(range(20)), 4, shuffle=True, batch_transform=lambda batch: batch + torch.rand(())
    ),
}


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("layer", LAYERS)
def test_states_are_exact_for_every_kind_of_loader(layer, taken):
    assert assert_exact(lambda _: LAYERS[layer](), taken, draws=2 if taken == 0 else 0)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", ["tells its state", "sets its state back"])
@pytest.mark.parametrize("n", [10, 8])
def test_after_the_last_batch_nothing_is_left_of_a_sampler_that_tells_the_state_of_its_next_pass(n, kind, native):
    def make_loader(_):
        return make(kind, n, native=native)

    assert assert_exact(make_loader, -(-n // 4)) == []
    loader, resumed = make_loader(0), make_loader(0)
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    again = make_loader(0)
    again.load_state_dict(json.loads(json.dumps(resumed.state_dict())))  # a state that was loaded is told as it was
    expected = [[plain(batch) for batch in part] for part in (iterator, loader, loader)]
    for one in (resumed, again):
        assert [[plain(batch) for batch in one] for _ in range(3)] == expected


class Stream(IterableDataset):
    def __init__(self, tells):
        self.at, self.begin = 0, 0
        if tells:
            self.state_dict = lambda: {"at": self.at}
            self.load_state_dict = lambda state: setattr(self, "begin", state["at"])

    def __iter__(self):
        self.at, self.begin = self.begin, 0
        while self.at < 11:
            self.at += 1
            yield self.at


STREAM = [(1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11)]


@pytest.mark.parametrize("taken", [0, 1, 4])
@pytest.mark.parametrize("tells", [True, False])
def test_states_of_streams_are_exact_too(tells, taken):
    assert assert_exact(lambda _: memload.FastLoader(Stream(tells), 3), taken) == [*map(list, STREAM[taken:])]


@pytest.mark.parametrize("where", ["before iter", "after the end"])
def test_between_passes_the_next_order_is_that_of_torchs_generator(where):
    torch.manual_seed(4)
    loader = make("shuffled", 20)
    if where == "after the end":
        list(loader)
    state, standing = loader.state_dict(), torch.get_rng_state()
    following = [plain(batch) for batch in loader]
    again = make("shuffled", 20)
    again.load_state_dict(state)
    torch.set_rng_state(standing)
    assert [plain(batch) for batch in again] == following


def groups(loader, k=3, **how):
    return memload.accumulate(loader, k, **how)


LOOKING_AHEAD = {
    "sizes are known": ({}, lambda seed: make("shuffled", 22, seed=seed)),
    "rows are counted": ({"rows": len}, lambda seed: make("shuffled", 22, seed=seed)),
    "rows are counted, stock": ({"rows": len}, lambda seed: make("subset", 40, native=False, seed=seed)),
    "a generator": (
        {"rows": len},
        lambda seed: make("several permutations by a generator", 9, seed=seed, batch_size=2),
    ),
    "an unknown sampler": ({}, lambda seed: make("ready batches", 22, seed=seed)),
    "a sampler with a state": ({"rows": len}, lambda seed: make("tells its state", 22, seed=seed)),
    "a stream": ({}, lambda _: memload.FastLoader(Stream(False), 2)),
    "a stream with a state": ({}, lambda _: memload.FastLoader(Stream(True), 2)),
}


@pytest.mark.filterwarnings("ignore:the pass resumes after . of the . batches of a group")
@pytest.mark.parametrize("taken", range(9))
@pytest.mark.parametrize("kind", LOOKING_AHEAD)
def test_a_state_within_a_group_is_that_of_the_loop_though_the_group_was_taken_ahead(kind, taken):
    how, make_loader = LOOKING_AHEAD[kind]
    rest, resumed = rest_and_resumed(
        make_loader,
        taken,
        around=lambda loader: groups(loader, **how),
        again=lambda loader: groups(loader, **how),
    )
    assert (resumed and [(plain(batch), micro.step) for batch, micro in resumed]) == (
        rest and [(plain(batch), micro.step) for batch, micro in rest]
    )


def test_a_state_after_the_last_batch_of_a_group_taken_ahead_leaves_an_empty_rest_of_the_epoch():
    loader = make("shuffled", 22)
    for _ in groups(loader, rows=len):
        state = loader.state_dict()
    assert not state["finished"]
    again = make("shuffled", 22)
    again.load_state_dict(state)
    assert list(groups(again, rows=len)) == []
    assert len(list(groups(again, rows=len))) == 6


def test_batches_of_a_group_that_an_error_kept_from_the_loop_come_again():
    class Fails(torch.utils.data.Dataset):
        broken = True

        def __len__(self):
            return 6

        def __getitem__(self, index):
            if index == 4 and self.broken:
                raise OSError("the disk is away")
            return index

    data = Fails()
    loader = memload.FastLoader(data, 1)
    steps, seen = iter(groups(loader, rows=len)), []
    with pytest.raises(OSError, match="the disk is away"):
        while True:
            seen.append(plain(next(steps)[0]))
    data.broken = False
    again = memload.FastLoader(data, 1)
    again.load_state_dict(loader.state_dict())
    seen += [plain(batch) for batch, _ in groups(again, rows=len)]
    assert seen == [[0], [1], [2], [3], [4], [5]]

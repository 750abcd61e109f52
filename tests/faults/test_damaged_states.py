"""A state of which any entry was altered is refused with that entry's name, or gives another right position.

Every kind of state, every entry of it, one change at a time. What is accepted is run: nothing hangs, draws without end,
or ends in an error.
"""

import copy
import itertools
import json
import math

import pytest
import torch
from stopping import SAMPLERS, make
from torch.utils.data import DistributedSampler, IterableDataset

import memload

HUGE = (99_999_999_999, 2**63, 10**30)


def values_instead(value):
    """What an entry may have become."""
    if isinstance(value, bool):
        return [not value, None, int(value), "no", []]
    if isinstance(value, int):
        near = [-5, -1, 0, value - 1, value + 1, -value]
        return [*near, *HUGE, *(-one for one in HUGE), None, True, value + 0.5, math.nan, str(value), [value], {}]
    if isinstance(value, str):
        middle = len(value) // 2
        flipped = value[:middle] + ("B" if value[middle : middle + 1] == "A" else "A") + value[middle + 1 :]
        return ["", value[:-1], value + "A", value[: middle // 4 * 4], flipped, "AAAA", "%", "é", None, 5, [value], {}]
    if isinstance(value, list):
        longer = [*value, value[-1] if value else 0]
        return [[], value[1:], value[:-1], longer, value[::-1], [None], value * 3, None, 5, "x", {}, {"0": 1}]
    if isinstance(value, dict):
        fewer = [{name: one for name, one in value.items() if name != left} for left in value]
        return [{}, *fewer, {**value, "more": 1}, {**value, 5: None}, None, 5, "x", [], [1]]
    return [0, -5, 5, *HUGE, True, 1.5, math.nan, "x", [], {}, {"more": 1}]


def mutants(state, known_by_users=("dataset_state", "iterator", "states")):
    """The state with one entry altered, each with the path of that entry."""
    for path in paths(state, known_by_users):
        whole = copy.deepcopy(state)
        inner = whole
        for step in path[:-1]:
            inner = inner[step]
        original = inner[path[-1]]
        if path[-1] in known_by_users:
            continue
        for value in values_instead(original):
            if type(value) is not type(original) or value != original:
                inner[path[-1]] = value
                yield path, value, whole


def paths(value, left_out, path=()):
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, one in inner:
        yield (*path, step)
        if step not in left_out:
            yield from paths(one, left_out, (*path, step))


def with_a_generator(seed):
    return torch.Generator().manual_seed(seed)


def numbers(n=20, **how):
    return memload.FastLoader(memload.from_arrays(x=torch.arange(n)).only("x"), 4, **how)


def of_ranks(kind):
    def made(_=0):
        ranks = {"num_replicas": 3, "rank": 1}
        if kind == "distributed":
            sampler = DistributedSampler(range(20), 3, 1, seed=8)
        elif kind == "mixed":
            parts = {name: memload.from_arrays(x=torch.zeros(rows)) for name, rows in {"a": 12, "b": 8}.items()}
            sampler = memload.MixingSampler(memload.concat(parts), [1, 2], 40, **ranks)
        else:
            sampler = memload.WeightedSampler(torch.arange(1.0, 21), replacement=kind == "weighted", **ranks)
        return numbers(sampler=sampler)

    return made


def with_new_weights(seed=0):
    """Without replacement, and with rows that were drawn before the weights changed."""
    loader = numbers(600, sampler=memload.WeightedSampler(torch.ones(600), 590, False, with_a_generator(seed)))
    loader.sampler.set_weights(torch.arange(1.0, 601))
    return loader


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(14))


class StreamWithState(IterableDataset):
    def __init__(self):
        self.at = self.begin = 0

    def __iter__(self):
        self.at, self.begin = self.begin, 0
        while self.at < 14:
            self.at += 1
            yield self.at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.begin = state["at"]


class MapWithState(list):
    def state_dict(self):
        return {"reads": 3}

    def load_state_dict(self, state):
        assert set(state) == {"reads"}


def joined():
    parts = {"a": memload.from_arrays(x=torch.arange(9)), "b": memload.from_arrays(x=torch.arange(20, 34.0))}
    return memload.concat(parts)


LOADERS = {
    **{f"{kind}, native": lambda seed=0, kind=kind: make(kind, 20, seed=seed) for kind in SAMPLERS},
    **{f"{kind}, stock": lambda seed=0, kind=kind: make(kind, 20, seed=seed, native=False) for kind in SAMPLERS},
    **{f"{kind}, of three ranks": of_ranks(kind) for kind in ("distributed", "mixed", "weighted", "ranked")},
    "rows drawn before weights changed": with_new_weights,
    "many rows a draw": lambda seed=0: numbers(700, shuffle=True, generator=with_a_generator(seed)),
    "workers that persist": lambda seed=0: numbers(shuffle=True, num_workers=2, persistent_workers=True),
    "random transforms": lambda seed=0: numbers(shuffle=True, batch_transform=lambda x: x + torch.rand(())),
    "groups": lambda seed=0: memload.FastLoader(joined(), 4, shuffle=True, collate_fn=memload.group_collate),
    "single samples": lambda seed=0: memload.FastLoader(list(range(12)), batch_size=None, shuffle=True),
    "a stream": lambda seed=0: memload.FastLoader(Stream(), 4),
    "a stream with a state": lambda seed=0: memload.FastLoader(StreamWithState(), 4),
    "a dataset with a state": lambda seed=0: memload.FastLoader(MapWithState(range(14)), 4, shuffle=True),
}


def states_of(make_loader):
    """States of a loader at the points of a pass, as a file has them."""
    torch.manual_seed(3)
    loader = make_loader(0)
    yield loader.state_dict()
    iterator = iter(loader)
    yield loader.state_dict()
    for _ in range(2):
        next(iterator)
    yield loader.state_dict()
    for _ in iterator:
        pass
    yield loader.state_dict()
    ahead = make_loader(0)
    for number, _ in enumerate(memload.accumulate(ahead, 3, rows=lambda _: 1)):
        if number == 1:
            break
    yield ahead.state_dict()


def refusal_of(loader, state):
    """What a load says, or the beginning of a pass by a sampler of the user's; None where the state is accepted."""
    try:
        loader.load_state_dict(state)
    except ValueError as error:
        return str(error)
    return None


FEWER = [kind for kind in LOADERS if "stock" not in kind or kind.startswith(("shuffled,", "subset,", "ready"))]


def check_mutants(loader, states, *, each, most, left_out=("dataset_state", "iterator", "states")):
    """Load every altered state, and run each so many-th of those that are accepted; return how many there were."""
    seen = accepted = 0
    for state in map(json.loads, map(json.dumps, states)):
        assert refusal_of(loader, state) is None
        for path, value, altered in mutants(state, left_out):
            seen += 1
            said = refusal_of(loader, altered)
            if said is not None:
                assert 'state["' in said or "another loader" in said or "format version" in said, (path, value, said)
                assert str(path[0]) in said, (path, value, said)
                continue
            accepted += 1
            if accepted % each == 0:
                assert ended_or_told(loader, most), (path, value)
    return seen, accepted


def ended_or_told(loader, most):
    """Whether the rest of a pass and the one behind it end, or the weights or the sampler say what is wrong."""
    try:
        return all(sum(1 for _ in itertools.islice(loader, most + 1)) <= most for _ in range(2))
    except ValueError as error:
        return "weights differ from those" in str(error) or "expected at most the sampler's" in str(error)


def check_kind(kind, each, points=slice(None)):
    make_loader = LOADERS[kind]
    batches = 1 + sum(1 for _ in make_loader(1))
    seen, accepted = check_mutants(make_loader(1), [*states_of(make_loader)][points], each=each, most=batches)
    assert seen > 300
    assert accepted < seen / 3


@pytest.mark.parametrize("kind", FEWER)
def test_an_altered_state_is_refused_by_the_entry_s_name_or_is_another_position(kind):
    check_kind(kind, each=17, points=slice(2, 5, 2))  # in the middle of a pass, and within a group


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOADERS)
def test_every_altered_state_that_is_accepted_runs_to_its_end(kind):
    check_kind(kind, each=1)


def of_workers(dataset):
    return memload.FastLoader(dataset, 4, num_workers=1)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("dataset", [StreamWithState(), MapWithState(range(14))], ids=["stream", "map"])
def test_what_worker_processes_told_is_checked_too(dataset):
    loader = of_workers(dataset)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    del batches
    left_out = ("dataset_state", "dataset_iter_state")
    seen, accepted = check_mutants(of_workers(dataset), [state], each=60, most=5, left_out=left_out)
    assert seen > 300
    assert accepted < seen / 3


def overtaken():
    """Of ten batches of one row each, the loop had those from 1 to 4: the first was late."""
    loader = memload.FastLoader(list(range(10)), 1)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    late = {**state["position"], "row": 0, "drawn": 0, "overtaken": {"pulled": 5, "late": [0]}}
    return {**state, "position": late}


def test_batches_that_were_overtaken_are_checked_too():
    loader = memload.FastLoader(list(range(10)), 1)
    loader.load_state_dict(overtaken())
    assert [batch.item() for batch in loader] == [0, 5, 6, 7, 8, 9]
    check_mutants(loader, [overtaken()], each=1, most=10)


@pytest.mark.parametrize(
    ("kind", "path", "value", "said"),
    [
        ("shuffled, native", ("position", "memories", 0, "draw"), -5, "is -5, expected an integer from 0 to 1"),
        ("shuffled, native", ("position", "memories", 0, "draw"), HUGE[0], "is 99999999999, expected an integer from"),
        ("shuffled, native", ("position", "memories"), [], r"is \[\], expected a list of 1 entries, not 0"),
        ("shuffled, stock", ("position", "row"), 12, r'is 12, expected 8 by state\["delivered"\]'),
        ("with replacement by a generator, native", ("generators",), {}, "has no entry .loader"),
        ("mixed, of three ranks", ("position", "taken", 1), 3, "is 3, expected an integer|with the sum 0"),
        ("ranked, of three ranks", ("position", "ranking", "taken"), "/////w==", "20 bits, 0 of them set"),
        ("by budget, native", ("position", "taken", 0, 0), HUGE[0], "expected an integer from 1 to 1048576"),
        ("ready batches, native", ("position", "made", "global"), "AAAA", "expected the base64 of a generator's state"),
    ],
)
def test_an_error_names_the_entry_what_it_is_and_what_is_expected(kind, path, value, said):
    make_loader = LOADERS[kind]
    *_, state, _, _ = states_of(make_loader)
    inner = state = json.loads(json.dumps(state))
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match=said) as caught:
        make_loader(1).load_state_dict(state)
    named = "state" + "".join(f"[{step}]" if isinstance(step, int) else f'["{step}"]' for step in path)
    assert named.removesuffix("[1]") in str(caught.value)


@pytest.mark.parametrize("version", [True, 1.0])
def test_a_format_version_of_another_type_is_refused(version):
    loader = LOADERS["shuffled, native"](1)
    with pytest.raises(ValueError, match=f"format version {version}, expected 1"):
        loader.load_state_dict({**loader.state_dict(), "memload": version})


@pytest.mark.parametrize("kind", ["weighted, stock", "weighted, native", "subset, native"])
def test_a_draw_that_was_not_made_has_no_rows(kind):
    _, state, going, *_ = map(json.loads, map(json.dumps, states_of(LOADERS[kind])))
    (made,) = going["position"]["memories"]
    for memory in ({"draw": 0, "rows": made["rows"]}, {**state["position"]["memories"][0], "rows": made["rows"]}):
        state["position"]["memories"] = [memory]
        with pytest.raises(ValueError, match=r'state\["position"\]\["memories"\]\[0\].*"(generator|rows)"'):
            LOADERS[kind](1).load_state_dict(state)

"""A run that is stopped and resumed goes on as if it had never been stopped."""

import copy
import pickle

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stopping import KNOWN, SAMPLERS, events, make, stopped_and_taken_up
from torch.utils.data import BatchSampler, RandomSampler, TensorDataset

import memload
from memload.sampling import torch_draws


@pytest.fixture(autouse=True, scope="module")
def drawn_natively():
    """Permutations, as those of large datasets are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_draws, "FEWEST", 2)
        yield


@st.composite
def runs(draw, kinds=tuple(SAMPLERS)):
    """A loader's arguments, at which batch each pass breaks off, and after which events the run is stopped."""
    arguments = {
        "kind": draw(st.sampled_from(kinds)),
        "n": draw(st.integers(3, 40)),
        "batch_size": draw(st.integers(1, 9)),
        "drop_last": draw(st.booleans()),
    }
    limits = draw(st.lists(st.none() | st.integers(1, 5), min_size=1, max_size=4))
    if arguments["kind"] in ("tells its state", "sets its state back"):  # where a pass broke off is their own affair
        limits = [None for _ in limits]
    stops = sorted(draw(st.lists(st.integers(0, 40), max_size=3)))
    return arguments, limits, stops


def check(make_loader, limits, stops, **how):
    torch.default_generator.manual_seed(7)
    expected = list(events(make_loader(0), limits, **how))
    torch.default_generator.manual_seed(7)
    found = stopped_and_taken_up(make_loader, limits, stops, **how)
    assert [batch for batch, _ in found] == [batch for batch, _ in expected]
    assert found == expected  # the generators too, at every event


@given(runs(), st.sampled_from([0, 2]), st.integers(1, 4))
@settings(deadline=None, max_examples=120)
@example(
    ({"kind": "shuffled by a generator", "n": 8, "batch_size": 4, "drop_last": False}, [None] * 3, [2, 3, 4]), 0, 2
)
@example(({"kind": "tells its state", "n": 9, "batch_size": 2, "drop_last": False}, [None] * 3, [2, 6, 7]), 2, 3)
def test_batches_and_generators_are_those_of_a_run_that_was_never_stopped(run, workers, depth):
    arguments, limits, stops = run

    def loader(number):
        return make(**arguments, seed=number, num_workers=workers, options=memload.EngineOptions(depth=depth))

    check(loader, limits, stops)


@given(runs())
@settings(deadline=None, max_examples=80)
def test_the_stock_engine_is_taken_up_as_exactly(run):
    arguments, limits, stops = run
    check(lambda number: make(**arguments, native=False, seed=number), limits, stops)


@given(runs(tuple(KNOWN)), st.booleans())
@settings(deadline=None, max_examples=60)
def test_a_loop_that_draws_from_the_same_generators_is_taken_up_as_exactly(run, native):
    arguments, limits, stops = run
    check(lambda number: make(**arguments, native=native, seed=number), limits, stops, draws=True)


@given(runs(), st.data())
@settings(deadline=None, max_examples=60)
def test_threads_depth_order_and_engine_may_change_while_it_is_stopped(run, data):
    arguments, limits, stops = run
    limits = [None for _ in limits]  # a pass that broke off leaves generators where the prefetching had brought them
    leads = data.draw(st.booleans())  # with workers, stock iterators ask their sampler for two iterators

    def loader(number):
        native = leads or data.draw(st.booleans())
        workers = data.draw(st.integers(1, 2)) if leads else 0
        options = memload.EngineOptions(threads=data.draw(st.integers(1, 3)), depth=data.draw(st.integers(1, 5)))
        in_order = data.draw(st.booleans())
        how = {"num_workers": workers, "in_order": in_order, "options": options}
        return make(**arguments, native=native, seed=number, **how)

    torch.default_generator.manual_seed(7)
    expected = [batch for batch, _ in events(make(**arguments, num_workers=2 * leads), limits)]
    torch.default_generator.manual_seed(7)
    assert [batch for batch, _ in stopped_and_taken_up(loader, limits, stops)] == expected


@pytest.mark.parametrize("kind", ["several permutations by a generator", "subset", "ready batches", "tells its state"])
def test_worker_processes_of_the_stock_engine_are_taken_up_too(kind):
    limits = [None, None, None] if kind == "tells its state" else [None, 2, None]
    check(lambda number: make(kind, 17, native=False, seed=number, num_workers=2), limits, [1, 6])


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_pass_that_was_taken_up_and_not_asked_for_anything_can_be_taken_up_again(kind, native):
    stopped = make(kind, 40, native=native)
    iterator = iter(stopped)
    for _ in range(2):
        next(iterator)
    state = stopped.state_dict()
    rest = [batch.tolist() for batch in iterator]
    for seed in (1, 2):
        loader = make(kind, 40, native=native, seed=seed)
        loader.load_state_dict(state)
        iterator = iter(loader)
        state = loader.state_dict()
    del iterator
    loader = make(kind, 40, native=native, seed=3)
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == rest


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_pass_that_was_begun_and_not_asked_for_anything_can_be_taken_up(kind, native):
    stopped = make(kind, 40, native=native)
    list(stopped)
    iterator = iter(stopped)
    state, standing = stopped.state_dict(), torch.get_rng_state()
    expected = [batch.tolist() for batch in iterator]
    loader = make(kind, 40, native=native, seed=3)
    loader.load_state_dict(state)
    torch.set_rng_state(standing)
    assert [batch.tolist() for batch in loader] == expected


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", ["several permutations by a generator", "sharded"])
def test_workers_that_persist_are_seeded_once_in_a_run_that_is_stopped_too(kind, native):
    def loader(number):
        return make(kind, 17, native=native, seed=number, num_workers=1, persistent_workers=True)

    check(loader, [None, None, None], [2, 9, 16])


def test_a_state_can_be_told_without_anything_being_drawn():
    loader = make("shuffled by a generator", 20)
    before = torch.get_rng_state(), loader.generator.get_state()
    loader.state_dict()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(loader.generator.get_state(), before[1])


def test_of_two_iterators_the_state_is_that_of_the_later_one():
    loader = make("sequential", 20)
    earlier, later = iter(loader), iter(loader)
    next(later)
    for _ in range(3):
        next(earlier)
    assert loader.state_dict()["delivered"] == 1


def test_a_loader_that_is_sent_to_another_process_takes_a_loaded_state_along():
    stopped = make("shuffled", 20)
    iterator = iter(stopped)
    next(iterator)
    loader = make("shuffled", 20)
    loader.load_state_dict(stopped.state_dict())
    sent = pickle.loads(pickle.dumps(loader))
    assert [batch.tolist() for batch in sent] == [batch.tolist() for batch in iterator]


def test_randomness_of_transforms_is_that_of_a_run_that_was_never_stopped():
    def loader():
        dataset = memload.from_arrays(x=torch.arange(30.0)).only("x")
        return memload.FastLoader(dataset, 4, shuffle=True, batch_transform=lambda x: x + torch.rand(len(x)))

    torch.default_generator.manual_seed(1)
    stopped = loader()
    iterator = iter(stopped)
    for _ in range(3):
        next(iterator)
    taken_up = loader()
    taken_up.load_state_dict(stopped.state_dict())
    torch.default_generator.manual_seed(2)
    assert [batch.tolist() for batch in taken_up] == [batch.tolist() for batch in iterator]


@pytest.mark.parametrize("native", [True, False])
def test_a_batch_sampler_without_automatic_batching_is_taken_up(native):
    dataset = TensorDataset(torch.arange(9)) if native else torch.arange(9)
    sampler = BatchSampler(RandomSampler(dataset, generator=torch.Generator().manual_seed(2)), 2, False)
    loader = memload.FastLoader(dataset, None, sampler=sampler)
    assert loader.engine == ("native" if native else "torch")
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    rest = [str(batch) for batch in iterator]
    loader.load_state_dict(state)
    assert [str(batch) for batch in loader] == rest
    assert len(rest) == 3


def test_a_copy_of_a_loader_has_a_state_of_its_own():
    loader = make("sequential", 20)
    iterator = iter(loader)
    next(iterator)
    copied = copy.copy(loader)
    list(copied)
    next(iterator)
    assert loader.state_dict()["delivered"] == 2
    assert not loader.state_dict()["finished"]


@pytest.mark.parametrize("native", [True, False])
def test_a_state_that_could_not_be_taken_up_is_still_there_for_the_next_attempt(native):
    stopped = make("ready batches", 20, native=native)
    iterator = iter(stopped)
    next(iterator)
    state = stopped.state_dict()
    rest = [batch.tolist() for batch in iterator]
    loader = make("ready batches", 20, native=native)
    longer = {**state, "position": {**state["position"], "pulled": 9}}
    loader.load_state_dict(longer)
    for _ in range(2):
        with pytest.raises(ValueError, match=r'state\["position"\]\["pulled"\] is 9, expected at most the sampler.s 7'):
            iter(loader)
    assert loader.state_dict() == longer
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == rest


@pytest.mark.parametrize(
    ("key", "value"),
    [("dataset", None), ("passes", "x"), ("delivered", True), ("finished", "no"), ("base_seed", "q"), ("position", {})],
)
def test_a_damaged_state_is_refused_with_what_is_wrong_and_leaves_the_pass_as_it_was(key, value):
    loader = memload.FastLoader(memload.from_arrays(x=torch.arange(8)), 2, shuffle=True)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    with pytest.raises(ValueError, match=f'the state is damaged: state."{key}"'):
        loader.load_state_dict({**state, key: value})
    assert loader.state_dict() == state

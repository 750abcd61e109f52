"""A run that is stopped and taken up goes on as if it had never been stopped."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stopping import KNOWN, SAMPLERS, events, make, stopped_and_taken_up

import memload


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
    if arguments["kind"] == "tells its state":  # it goes on where a pass broke off, which is its own affair
        limits = [None for _ in limits]
    stops = sorted(draw(st.lists(st.integers(0, 40), max_size=3)))
    return arguments, limits, stops


def check(make_loader, limits, stops, **how):
    torch.manual_seed(7)
    expected = list(events(make_loader(0), limits, **how))
    torch.manual_seed(7)
    found = stopped_and_taken_up(make_loader, limits, stops, **how)
    assert [batch for batch, _ in found] == [batch for batch, _ in expected]
    assert found == expected  # the generators too, at every event


@given(runs(), st.sampled_from([0, 2]), st.integers(1, 4))
@settings(deadline=None, max_examples=150)
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
        native = leads or arguments["kind"].startswith("subset") or data.draw(st.booleans())
        workers = data.draw(st.integers(1, 2)) if leads else 0
        options = memload.EngineOptions(threads=data.draw(st.integers(1, 3)), depth=data.draw(st.integers(1, 5)))
        in_order = data.draw(st.booleans())
        how = {"num_workers": workers, "in_order": in_order, "options": options}
        return make(**arguments, native=native, seed=number, **how)

    torch.manual_seed(7)
    expected = [batch for batch, _ in events(make(**arguments, num_workers=2 * leads), limits)]
    torch.manual_seed(7)
    assert [batch for batch, _ in stopped_and_taken_up(loader, limits, stops)] == expected


@pytest.mark.parametrize("kind", ["several permutations by a generator", "subset", "ready batches", "tells its state"])
def test_worker_processes_of_the_stock_engine_are_taken_up_too(kind):
    limits = [None, None, None] if kind == "tells its state" else [None, 2, None]
    check(lambda number: make(kind, 17, native=False, seed=number, num_workers=2), limits, [1, 6])

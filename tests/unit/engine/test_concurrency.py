"""How many threads work at once follows from how fast they are together."""

import threading
import time

import pytest
import torch
from waiting import MOST_SECONDS

import memload
from memload.engine.request import EngineOptions
from memload.engine.transforms.concurrency import ConcurrencyTuner


def run(tuner, seconds, processor, pieces=400):
    """Let threads do pieces of work that take so long where so many work at once; what was allowed after each."""
    now, under_way, history = 0.0, [], []
    for _ in range(pieces):
        while len(under_way) < tuner.allowed:
            tuner.begin(now)
            under_way.append(now + seconds(tuner.allowed))
        under_way.sort()
        now = max(now, under_way.pop(0))
        tuner.end(now, 1, processor)
        history.append(tuner.allowed)
        # Whoever is too many stops, as threads do after a piece.
    return history


@pytest.mark.parametrize("most", [2, 3, 8])
def test_where_threads_keep_each_other_from_working_one_works(most):
    history = run(ConcurrencyTuner(most), lambda threads: 0.01 * threads * (1.3 if threads > 1 else 1), 0.01, 1000)
    assert history[-1] == 1
    assert history.count(1) > 0.7 * len(history)


@pytest.mark.parametrize("most", [2, 3, 8])
def test_where_each_works_for_itself_all_do_and_no_fewer_are_tried(most):
    assert set(run(ConcurrencyTuner(most), lambda threads: 0.01, 0.01)) == {most}


def test_functions_that_sleep_keep_all_threads():
    assert set(run(ConcurrencyTuner(4), lambda threads: 0.05, 0.0001)) == {4}


def test_the_best_number_may_lie_between():
    history = run(
        ConcurrencyTuner(8),
        lambda threads: max(0.01, 0.0025 * threads) * (1 + 0.1 * threads * (threads > 4)),
        0.005,
        2000,
    )
    assert history[-1] == 4


def test_one_thread_that_is_as_fast_is_preferred_since_it_leaves_more_to_the_loop():
    assert run(ConcurrencyTuner(2), lambda threads: 0.0098 * threads, 0.009)[-1] == 1


@pytest.mark.parametrize(("times_as_fast", "threads"), [(1.2, 1), (1.3, 2)])
def test_two_threads_work_where_they_are_a_quarter_faster_than_one(times_as_fast, threads):
    found = run(ConcurrencyTuner(2), lambda working: 0.01 if working == 1 else 0.02 / times_as_fast, 0.01)
    assert found[-1] == threads
    assert {1, 2} == set(found)


def test_when_the_work_changes_its_kind_the_number_follows():
    tuner = ConcurrencyTuner(2)
    assert run(tuner, lambda threads: 0.01 * threads, 0.01)[-1] == 1
    assert 2 in run(tuner, lambda threads: 0.01, 0.01, 4000)


def test_a_fixed_number_stays():
    assert set(run(ConcurrencyTuner(3, fixed=True), lambda threads: 0.03 * threads, 0.01)) == {3}


def test_the_next_pass_begins_with_what_was_found_out():
    found = ConcurrencyTuner(2)
    run(found, lambda threads: 0.013 * threads, 0.01)
    assert found.for_next_pass().allowed == 1
    assert ConcurrencyTuner(2).for_next_pass().allowed == 2


def loaded(fn, **options):
    """The batches of a loader, how many of its functions ran at once at most, and the loader."""
    running, most, guard = [0], [0], threading.Lock()

    def counted(sample):
        with guard:
            running[0] += 1
            most[0] = max(most[0], running[0])
        made = fn(sample)
        with guard:
            running[0] -= 1
        return made

    ds = memload.from_arrays(x=torch.arange(4000.0)).map(counted)
    loader = memload.FastLoader(ds, 20, options=EngineOptions(threads=4, **options))
    return torch.cat([batch["x"] for batch in loader]).tolist(), most[0], loader


def test_batches_are_the_same_whatever_is_tried():
    def busy(sample):
        until = time.thread_time() + 1e-4
        while time.thread_time() < until:
            pass
        return sample

    batches, most, loader = loaded(busy)
    assert batches == list(range(4000))
    assert most <= 4
    assert loader.__memload_loader__().history.tuner._cost


def test_functions_that_wait_run_beside_each_other():
    met = threading.Barrier(4)

    def meets(sample):
        if sample["x"] % 20 == 0 and sample["x"] < 80:  # the first of each of four batches
            met.wait(MOST_SECONDS)
        return sample

    batches, most, _loader = loaded(meets)
    assert batches == list(range(4000))
    assert most == 4
    assert loaded(lambda sample: sample, transform_threads=2)[2].__memload_loader__().history.tuner.allowed == 2

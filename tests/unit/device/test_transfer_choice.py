"""The choice between kernel and copy engine: what is compared, what decides, and what does not."""

import pytest

from memload.device.copied_rows import AHEAD
from memload.device.transfer_choice import LEAST_BATCHES, RATIOS, RUN, SETTLING, TransferChoice, TransferTrial


class Clock:
    """Ends of batches, whose times are given; `late` of them have not come yet."""

    def __init__(self):
        self.now, self.late = 0.0, set()

    def seconds_between(self, first, second):
        return None if {first, second} & self.late else second - first


def run_pass(choice, seconds, batches, *, clock=None, full=lambda batch: True, rows=lambda batch: 10):
    """Run a pass whose batches take so many seconds by kernel and by copies; return which way each went."""
    clock = clock or Clock()
    trial = TransferTrial(choice, clock.seconds_between)
    ways = []
    for batch in range(batches):
        place = trial.begin(rows=rows(batch), full=full(batch))
        ways.append(trial.by_copies)
        clock.now += seconds(batch, trial.by_copies)
        if place is not None:
            place.ended(lambda: clock.now)
    trial.begin(rows=10, full=True)
    return ways


def steady(kernel, copies):
    return lambda batch, by_copies: copies if by_copies else kernel


ENOUGH = 2 * RUN * (RATIOS + 1) + 1


@pytest.mark.parametrize(("copies", "chosen"), [(0.5, True), (0.89, True), (0.91, False), (1.0, False), (2.0, False)])
def test_the_copy_engine_is_chosen_where_it_gains_enough(copies, chosen):
    choice = TransferChoice()
    ways = run_pass(choice, steady(1.0, copies), ENOUGH + 50)
    assert choice.by_copies is chosen
    assert choice.ratio == pytest.approx(copies)
    assert ways[: 2 * RUN] == [False] * RUN + [True] * RUN
    assert set(ways[ENOUGH:]) == {chosen}


def test_what_was_gathered_before_a_run_and_what_a_change_of_the_way_costs_is_not_timed():
    assert SETTLING == 1 + AHEAD
    for copies, chosen in ((0.5, True), (1.0, False)):

        def seconds(batch, by_copies, fast=copies):
            steady = fast if by_copies else 1.0
            return steady if batch % RUN >= SETTLING else 0.0 if by_copies else 9.0

        choice = TransferChoice()
        run_pass(choice, seconds, ENOUGH)
        assert choice.ratio == pytest.approx(copies)
        assert choice.by_copies is chosen


def test_a_decision_stands_and_later_passes_follow_it():
    choice = TransferChoice()
    run_pass(choice, steady(1.0, 0.5), ENOUGH)
    assert set(run_pass(choice, steady(1.0, 9.0), 100)) == {True}
    choice.note(9.0)
    assert (len(choice.ratios), choice.by_copies) == (RATIOS, True)


def test_passes_add_up_and_the_first_pair_of_each_does_not_count():
    choice, begun = TransferChoice(), 0
    while choice.by_copies is None:
        slow_start = lambda batch, by_copies: 1.0 if batch >= 2 * RUN else 0.01 if by_copies else 9.0  # noqa: E731
        run_pass(choice, slow_start, LEAST_BATCHES)
        begun += 1
    assert (begun, choice.by_copies) == (RATIOS, False)


@pytest.mark.parametrize("pauses", range(RATIOS))
def test_pauses_of_the_loop_in_fewer_than_half_of_the_pairs_decide_nothing(pauses):
    """A pause makes one way look slow that is not, whichever it is in."""
    for paused_by_copies, copies, chosen in ((False, 1.0, False), (True, 0.5, True)):

        def seconds(batch, by_copies, paused=paused_by_copies, fast=copies):
            pair, within = divmod(batch, 2 * RUN)
            pause = 0 < pair <= pauses and by_copies is paused and within % RUN == SETTLING
            return (fast if by_copies else 1.0) + 100.0 * pause

        choice = TransferChoice()
        run_pass(choice, seconds, ENOUGH)
        assert (choice.by_copies is chosen) == (pauses <= RATIOS // 2)


def test_batches_of_other_sizes_disturb_their_pair_and_go_by_the_kernel():
    choice = TransferChoice()
    odd = {3, 2 * RUN + 4}  # in the pair that warms up, and in the one after
    ways = run_pass(choice, steady(1.0, 0.5), ENOUGH + len(odd), full=lambda batch: batch not in odd)
    assert not any(ways[batch] for batch in odd)
    assert (len(choice.ratios), choice.by_copies) == (RATIOS - 1, None)


def test_a_pass_whose_batches_always_differ_leaves_the_rest_to_the_kernel():
    choice = TransferChoice()
    ways = run_pass(choice, steady(1.0, 0.5), 400, full=lambda batch: batch % 4 != 3)
    assert choice.by_copies is None
    assert not choice.ratios
    assert any(ways[:200])
    assert not any(ways[-100:])


def test_times_are_those_of_a_row_in_ram_of_which_batches_have_more_or_fewer():
    choice, rows = TransferChoice(), lambda batch: 1 + batch * 7 % 5 * batch
    run_pass(choice, lambda batch, by_copies: rows(batch) * (0.8 if by_copies else 1.0), ENOUGH, rows=rows)
    assert choice.ratios == pytest.approx([0.8] * RATIOS)
    assert choice.by_copies


def test_runs_without_rows_in_ram_tell_nothing_and_are_waited_for():
    """Where rows are read in order, the first batches lie on the device alone."""
    choice = TransferChoice()
    run_pass(choice, steady(1.0, 0.5), 1000, rows=lambda batch: 10 * (batch >= 1000 - ENOUGH))
    assert (choice.ratio, choice.by_copies) == (0.5, True)


def test_times_that_have_not_come_are_waited_for_by_nobody():
    clock, choice = Clock(), TransferChoice()
    clock.late = {float(k) for k in range(1000)}
    run_pass(choice, steady(1.0, 1.0), ENOUGH, clock=clock)
    assert not choice.ratios


def test_what_cannot_be_copied_is_left_to_the_kernel_with_the_reason():
    choice = TransferChoice()
    assert "whichever its first batches find faster" in str(choice)
    choice.refuse("slots cannot be pinned (the limit is 0)")
    assert set(run_pass(choice, steady(1.0, 0.1), 50)) == {False}
    assert str(choice) == "the kernel reads those in pinned RAM, since slots cannot be pinned (the limit is 0)"
    for copies, said in (
        (0.5, "the copy engine brings those in pinned RAM (0.50 of the kernel's time)"),
        (2.0, "2.00"),
    ):
        choice = TransferChoice()
        run_pass(choice, steady(1.0, copies), ENOUGH)
        assert said in str(choice)

"""The parts of the monitor: parsers on literal file contents, diagnoses of recorded series, the log, the live view."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import memload
from memload.memory.budget import GroupMemory, MemoryGroup
from memload.monitoring import diagnosis, processes
from memload.monitoring.diagnosis import diagnose, host_results_kept, rise
from memload.monitoring.gpu_samples import GpuSample, GpuTick, gpu_sample, own_samples, split, ticks_now
from memload.monitoring.kept_graphs import KeptGraphs
from memload.monitoring.live_view import curve, line, screen, trend
from memload.monitoring.log import JsonLog, read_log
from memload.monitoring.marks import Mark
from memload.monitoring.metric_logs import figures_of
from memload.monitoring.pacing import Credit, Paced
from memload.monitoring.processes import Proportional, ResidentPages
from memload.monitoring.samples import Look, Sample, tightest
from memload.monitoring.summary import Tally

MB, GB = 1 << 20, 1 << 30
PAGE = os.sysconf("SC_PAGE_SIZE")
ROLLUP = """55e9ccb57000-7fffbb2fe000 ---p 00000000 00:00 0                          [rollup]
Rss:                1732 kB
Pss:                 269 kB
Pss_Anon:            116 kB
Pss_File:            153 kB
Pss_Shmem:             4 kB
Swap:                  0 kB
"""


def test_statm_is_read_as_resident_and_private_bytes():
    assert processes.parse_statm("1000 300 120 2 0 400 0\n") == ResidentPages(300 * PAGE, 180 * PAGE)


@pytest.mark.parametrize("text", ["", "0 0 0 0 0 0 0\n"])
def test_a_process_that_has_just_ended_has_nothing_in_memory(text):
    assert processes.parse_statm(text) == ResidentPages(0, 0)
    assert processes.parse_smaps_rollup("") == Proportional(0, 0)


def test_smaps_rollup_gives_memory_that_no_file_backs():
    assert processes.parse_smaps_rollup(ROLLUP) == Proportional(269 << 10, 120 << 10, 4 << 10)


def test_a_kernel_that_does_not_tell_anonymous_pages_apart_is_believed_for_the_rest():
    old = "".join(line for line in ROLLUP.splitlines(True) if "Pss_" not in line)
    assert processes.parse_smaps_rollup(old) == Proportional(269 << 10, None)


def test_children_and_their_children_are_found_and_counted_and_the_dead_left_out():
    code = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); sys.stdin.read(); "
        "p.kill(); p.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        grandchild = int(child.stdout.readline())
        found = processes.family(os.getpid())
        assert {os.getpid(), child.pid, grandchild} <= set(found)
        assert processes.resident([child.pid])[child.pid].rss > MB
        assert processes.proportional([child.pid, grandchild]).pss > 0
        child.stdin.close()
        child.wait()
    assert processes.family(child.pid) == []
    assert processes.resident([child.pid, grandchild]) == {}
    assert processes.proportional([child.pid]) is None


def test_a_zombie_has_nothing_in_memory_and_disturbs_nobody():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
    try:
        assert child in processes.family(os.getpid())
        assert processes.resident([child]).get(child, ResidentPages(0, 0)) == ResidentPages(0, 0)
        assert (processes.proportional([child]) or Proportional(0, 0)).pss == 0
    finally:
        os.waitpid(child, 0)


def test_a_process_that_may_not_be_looked_at_closely_is_still_counted(tmp_path):
    (tmp_path / "7" / "task" / "7").mkdir(parents=True)
    (tmp_path / "7" / "statm").write_text("100 50 20 0 0 0 0\n")
    assert processes.family(7, tmp_path) == [7]
    assert processes.resident([7], tmp_path) == {7: ResidentPages(50 * PAGE, 30 * PAGE)}
    assert processes.proportional([7], tmp_path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_process_of_another_user_is_counted_without_a_close_look():
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        seen = processes.resident([os.getppid()])[os.getppid()].rss > 0
        os._exit(0 if seen and processes.proportional([os.getppid()]) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_held_follows_each_process_from_the_last_close_look_on():
    look = Look(Proportional(900, 700), {1: ResidentPages(600, 500), 2: ResidentPages(600, 500)})
    assert look.held_now({1: ResidentPages(0, 510), 2: ResidentPages(0, 480)}) == 690
    assert look.held_now({1: ResidentPages(0, 500), 3: ResidentPages(0, 400)}) == 700, (
        "a new child shares until looked at"
    )


def test_without_a_close_look_private_pages_are_added_up():
    for whole in (None, Proportional(900, None)):
        assert Look(whole, {}).held_now({1: ResidentPages(9, 5), 2: ResidentPages(9, 4)}) == 9


def group(folder, limit, used, cache=0):
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"inactive_file {cache}\nactive_file 0\n")
    return MemoryGroup(folder, 2)


def test_the_group_that_leaves_least_is_the_tightest(tmp_path):
    inner, outer = group(tmp_path / "a", 1000, 300), group(tmp_path / "b", 2000, 1900, cache=100)
    assert tightest([inner, outer], total=10_000) == outer
    assert outer.read() == GroupMemory(1900, 100, 2000)
    assert outer.read().left == 200


def test_without_limits_the_own_group_gives_the_used_memory(tmp_path):
    inner, outer = group(tmp_path / "a", "max", 300), group(tmp_path / "b", 99_999, 1900)
    assert tightest([MemoryGroup(tmp_path / "none", 2), inner, outer], total=10_000) == inner
    assert tightest([], total=10_000) is None


def test_a_costly_figure_is_taken_as_rarely_as_its_share_of_the_time_allows():
    now, worked, calls = [100.0], [5.0], []

    def take():
        worked[0] += 0.002
        now[0] += 0.003  # it was interrupted
        calls.append(round(now[0], 3))
        return len(calls)

    figure = Paced(take, share=0.02, now=lambda: now[0], worked=lambda: worked[0])
    for _ in range(250):
        now[0] += 0.001
        figure.get()
    assert calls == [100.004, 100.104, 100.204]
    assert figure.get(at_once=True) == len(calls) == 4


def test_a_figure_with_credit_is_taken_more_often_until_that_is_spent():
    now, calls = [0.0], []

    def take():
        calls.append(round(now[0]))

    worked = iter(range(0, 1000, 1))  # each look takes a second
    figure = Paced(
        take, share=0.01, credit=Credit(share=0.1, seconds=3), now=lambda: now[0], worked=lambda: next(worked)
    )
    for _ in range(250):
        figure.get()
        now[0] += 1
    assert calls == [0, 10, 20, 120, 220]


def test_a_finding_of_full_memory_states_memloads_own_memory():
    held = Sample(time=0, held=10 * GB, own=4 * GB, cached=3 * GB)
    for mark in (Mark.of("warn_at", "5GB"), Mark.of("warn_at", 0.5)):
        (found,) = mark.passed(replace(held, total=10 * GB, available=GB))
        assert "of which 4.29 GB are memload's own caches and rows in RAM, 3.22 GB of it caches" in found.text
    (found,) = Mark.of("warn_at", "5GB").passed(replace(held, own=0, cached=0))
    assert "own" not in found.text


def test_a_sudden_rise_of_memloads_own_memory_is_no_large_tensor_of_the_loop():
    def grows(own):
        return [
            Sample(time=k, step=5 * k, held=GB + (k > 20) * 4 * GB, own=(k > 20) * own, total=16 * GB)
            for k in range(40)
        ]

    assert [one.cause for one in diagnose(grows(0))] == ["large tensor"]
    assert diagnose(grows(4 * GB)) == []


def test_results_that_become_more_with_each_step_are_kept_however_small():
    one = [Sample(time=0.0, total=GB, available=GB)]
    (found,) = diagnose(one, counts=[(64, 3), (128, 67), (192, 131), (256, 195)])
    assert found.cause == "results kept"
    assert "195 results are there with their graph at step 256, 3 were at step 64" in found.text
    assert diagnose(one, counts=[(64, 3), (128, 67), (192, 67), (256, 195)]) == [], "they were given up meanwhile"
    assert diagnose(one, counts=[(64, 3), (128, 10), (192, 17), (256, 24)]) == [], "too few for a loop that keeps them"


# What GPUs tell, as recorded


def test_what_others_take_is_what_processes_outside_of_the_family_take():
    assert split({10: 5 * GB, 11: 2 * GB, 12: None}, {10, 12}) == (5 * GB, 2 * GB)


def test_where_the_driver_lists_none_of_ours_nothing_is_known_of_either():
    assert split({10: 5 * GB}, {77}) == (None, None)
    assert split({}, {77}) == (None, None)


def test_what_torch_keeps_for_tensors_to_come_can_still_be_had():
    assert GpuSample(0, 80, 8, allocated=30, reserved=50).share == pytest.approx(1 - 28 / 80)
    assert GpuSample(0, 80, 8).share == pytest.approx(0.9)


def test_a_sample_of_a_gpu_is_what_the_loop_saw_and_what_torch_and_the_driver_count():
    stats = {
        "allocated_bytes.all.current": 30,
        "allocated_bytes.all.peak": 44,
        "reserved_bytes.all.current": 50,
        "num_ooms": 0,
    }
    seen = gpu_sample(2, GpuTick(allocated=12, free=20, total=80), stats, (55, 5))
    assert seen == GpuSample(2, 80, 20, allocated=30, reserved=50, peak=44, at_batch=12, own=55, others=5)
    assert gpu_sample(2, GpuTick(30, 20, 80), stats, (None, None), between_batches=False).at_batch is None


def test_sampling_gpus_does_not_start_cuda():
    assert ticks_now() == {}
    assert own_samples(None, {}) == []
    assert not torch.cuda.is_initialized()


# Diagnoses


def host(held, **more):
    """A sample each second, with so much held; by default sixteen steps a sample."""
    return [
        Sample(time=1000.0 + k, step=16 * k, held=value, total=64 * GB, available=32 * GB)
        if not more
        else Sample(
            time=1000.0 + k,
            held=value,
            total=64 * GB,
            available=32 * GB,
            **{name: values[k] for name, values in {"step": [16 * k for k in range(len(held))], **more}.items()},
        )
        for k, value in enumerate(held)
    ]


def causes(series):
    return [(finding.cause, finding.place) for finding in diagnose(series)]


def epochs(per_epoch, count, samples=8, first=GB, **more):
    """What is held in `count` epochs that need 300 MB for a moment, and leave `per_epoch` bytes each."""
    held = [first + epoch * per_epoch + (k % 4) * 100 * MB for epoch in range(count) for k in range(samples)]
    begun = [first + epoch * per_epoch for epoch in range(count) for _ in range(samples)]
    return host(held, epoch=[1 + epoch for epoch in range(count) for _ in range(samples)], at_epoch=begun, **more)


def test_memory_that_rises_from_epoch_to_epoch_is_a_leak():
    found = diagnose(epochs(50 * MB, 6))
    assert [(one.cause, one.place) for one in found] == [("leak", "host")]
    assert "52.4 MB an epoch" in found[0].text
    assert "655 epochs more" in found[0].text  # 32 GB left of 64


def test_nor_is_it_missed_where_steps_are_counted_anew_in_each_epoch():
    assert causes(epochs(50 * MB, 9, step=[2 * (k % 8) for k in range(72)])) == [("leak", "host")]


@pytest.mark.parametrize("count", [289, 310, 350])
def test_what_is_in_use_is_that_of_the_samples_that_rise_where_steps_are_counted_anew(count, monkeypatch):
    held = [GB + 4 * MB * k for k in range(count)]
    series = host(held, step=[3 * k % 200 for k in range(count)], at_batch=held)
    found = host_results_kept(series)
    monkeypatch.setattr(diagnosis, "_USED_SHARE", -1.0)
    assert found == host_results_kept(series)


def test_a_rise_that_the_heap_has_free_is_none_and_one_of_which_a_little_is_in_use_is():
    for free, expected in ((50 * MB, []), (49 * MB, [("leak", "host")])):
        series = epochs(50 * MB, 6, free_at_epoch=[free * (k // 8) for k in range(48)])
        assert causes(series) == expected
    held = [GB + 4 * MB * k for k in range(100)]
    for free, is_found in ((4 * MB, False), (3 * MB, True)):
        series = host(held, at_batch=held, free_at_batch=[free * k for k in range(100)])
        assert (host_results_kept(series) is not None) == is_found


@pytest.mark.parametrize("count", [3, 4])
def test_three_epochs_are_too_few_to_speak_of_a_leak(count):
    assert causes(epochs(50 * MB, count)) == []


@pytest.mark.parametrize(("count", "told"), [(5, []), (6, []), (7, [("leak", "host")])])
def test_a_small_rise_is_a_leak_only_if_it_goes_on_for_six_epochs(count, told):
    """The C library's heap may rise by some MB in each of a few epochs, and then no more."""
    assert causes(epochs(6 * MB, count)) == told


def test_memory_that_comes_and_goes_within_each_epoch_is_no_leak():
    assert causes(epochs(0, 12)) == []


def test_memory_that_rose_once_and_stays_is_no_leak():
    held = [GB] * 16 + [GB + 90 * MB] * 48
    assert causes(host(held, epoch=[1 + k // 8 for k in range(64)], at_epoch=held)) == []


def test_memory_that_rises_from_step_to_step_within_an_epoch_is_told_too():
    begun = [GB + k * 8 * MB for k in range(64)]
    series = host([value + (k % 5) * 300 * MB for k, value in enumerate(begun)], at_batch=begun)
    for kept, cause in (
        (KeptGraphs(), "leak"),
        (KeptGraphs(results=9, lasting=3), "results kept"),
        (KeptGraphs(results=9, losses=9), "results kept"),
        (KeptGraphs(results=1, losses=1, batches=20, seen=30), "batches kept"),
        (KeptGraphs(batches=2, seen=30), "leak"),
        (KeptGraphs(others=2), "results kept"),
    ):
        (found,) = diagnose(series, graphs=lambda _, kept=kept: kept)
        assert (found.cause, found.place) == (cause, "host")
        assert "524 kB a step" in found.text
    assert diagnose(series, graphs=lambda _: None) == [], "nobody is blamed before it is known"


def test_batches_of_workers_that_are_kept_in_shared_memory_are_named():
    begun = [GB + k * 8 * MB for k in range(64)]
    series = host(begun, at_batch=begun, shared=[k * 8 * MB for k in range(64)])
    (found,) = diagnose(series, graphs=lambda _: KeptGraphs(others=2))
    assert found.cause == "batches kept"
    assert "most of it is shared memory, in which worker processes hand batches over" in found.text
    (found,) = diagnose(host(begun, at_batch=begun, shared=[9 * MB] * 64), graphs=lambda _: KeptGraphs(others=2))
    assert found.cause == "results kept"


def heap(steps, settled, each=8 * MB):
    """What is held at each step of a loop whose heap grows for so many steps; looked at four times a step."""
    return [GB + min(step, settled) * each for step in range(steps) for _ in range(4)]


@pytest.mark.parametrize(("settled", "found"), [(22, []), (80, [("leak", "host")])])
def test_a_heap_that_has_yet_to_find_its_size_is_not_taken_for_results_that_are_kept(settled, found):
    held = heap(80, settled)
    series = host(held, at_batch=held, step=[k // 4 for k in range(320)])
    assert [one for end in range(0, 320, 5) for one in causes(series[:end])][:1] == found


@pytest.mark.parametrize(("settled", "found"), [(22, []), (80, [("leak", "host")])])
def test_nor_for_a_leak_where_epochs_are_short(settled, found):
    held = heap(80, settled)
    begun = [held[k // 16 * 16] for k in range(320)]  # an epoch has four steps
    series = host(held, at_epoch=begun, epoch=[1 + k // 16 for k in range(320)], step=[k // 4 for k in range(320)])
    assert [one for end in range(0, 320, 5) for one in causes(series[:end])][:1] == found


def gpu_series(allocated, *, reserved=None, peak=None, at_batch=None, total=80 * GB):
    samples = []
    for k, value in enumerate(allocated):
        gpu = GpuSample(
            1,
            total,
            20 * GB,
            allocated=value,
            reserved=reserved or 40 * GB,
            peak=peak or 39 * GB,
            at_batch=at_batch[k] if at_batch else None,
        )
        samples.append(Sample(time=1000.0 + k, step=4 * k, held=GB, total=64 * GB, available=32 * GB, gpus=(gpu,)))
    return samples


def test_tensors_that_grow_from_step_to_step_are_results_kept_with_their_graph():
    found = diagnose(gpu_series([10 * GB + k * 8 * MB for k in range(64)]))
    assert [(one.cause, one.place) for one in found] == [("results kept", "cuda:1")]
    assert "2.1 MB a step" in found[0].text
    assert "detach" in found[0].text


def test_activations_that_come_and_go_are_not_taken_for_growth():
    wave = [10 * GB, 14 * GB, 19 * GB, 13 * GB, 11 * GB, 17 * GB, 12 * GB]
    assert causes(gpu_series([wave[k % 7] for k in range(200)])) == []


def test_growth_is_seen_below_activations_where_a_step_begins():
    wave = [14 * GB, 19 * GB, 13 * GB]
    allocated = [wave[k % 3] + k * 4 * MB for k in range(64)]
    assert causes(gpu_series(allocated, at_batch=[10 * GB + k * 4 * MB for k in range(64)])) == [
        ("results kept", "cuda:1")
    ]


@settings(max_examples=40)
@given(st.lists(st.integers(9 * GB, 12 * GB), min_size=48, max_size=120))
def test_noise_is_no_growth_unless_every_part_rises(allocated):
    found = causes(gpu_series(allocated))
    half = allocated[len(allocated) // 2 :]
    if sorted(half) != half:
        size = len(half) // 6
        least = [min(half[k : k + size]) for k in range(len(half) - size * 6, len(half), size)]
        assert ("results kept", "cuda:1") not in found or sorted(least) == least


def test_reserved_memory_far_above_what_was_ever_used_is_fragmentation():
    found = diagnose(gpu_series([20 * GB] * 12, reserved=60 * GB, peak=30 * GB))
    assert [(one.cause, one.place) for one in found] == [("fragmentation", "cuda:1")]
    assert "expandable_segments" in found[0].text


def test_reserved_memory_that_was_needed_at_the_peak_is_none():
    assert causes(gpu_series([20 * GB] * 12, reserved=60 * GB, peak=58 * GB)) == []
    assert causes(gpu_series([20 * GB] * 9, reserved=60 * GB, peak=30 * GB)) == [], "too short to say"


def test_a_step_up_that_stays_is_one_large_tensor_and_its_place_is_told():
    found = diagnose(gpu_series([20 * GB] * 20 + [30 * GB] * 8))
    assert [(one.cause, one.place) for one in found] == [("large tensor", "cuda:1")]
    assert "at step 80" in found[0].text
    found = diagnose(host([4 * GB] * 20 + [12 * GB] * 5))
    assert [(one.cause, one.place) for one in found] == [("large tensor", "host")]


def test_a_large_tensor_that_takes_several_looks_to_fill_is_one_step_up():
    held = [4 * GB] * 20 + [4 * GB + k * GB for k in range(1, 9)] + [12 * GB] * 5
    steps = [*range(20), *[20] * 8, *range(21, 26)]
    (found,) = diagnose(host(held, step=steps))
    assert (found.cause, "rose by 8.59 GB" in found.text, "at step 20" in found.text) == ("large tensor", True, True)


def test_a_step_up_that_goes_away_or_belongs_to_the_start_is_not_told():
    assert causes(host([4 * GB] * 20 + [12 * GB] * 2 + [4 * GB] * 20)) == []
    assert causes(host([GB] * 20 + [12 * GB] * 20, step=[0] * 20 + list(range(20)))) == []


def test_batches_without_a_free_slot_are_kept_ones_and_explain_the_growth():
    held = [GB + k * 60 * MB for k in range(40)]
    batches = [16 * k for k in range(40)]
    series = host(held, batches=batches, fresh_batches=[12 * k for k in range(40)], bytes_out=[n * MB for n in batches])
    found = diagnose(series)
    assert [(one.cause, one.place) for one in found] == [("batches kept", "host")]
    assert "468 of 624 batches of 1.05 MB" in found[0].text
    assert "memory grew by 2.45 GB" in found[0].text


@pytest.mark.parametrize(("each", "cause"), [(13 * MB, "batches kept"), (40 * MB, "results kept")])
def test_far_more_than_the_batches_that_are_kept_is_their_graph(each, cause):
    fresh = [12 * k for k in range(40)]
    seen = {
        "batches": [16 * k for k in range(40)],
        "fresh_batches": fresh,
        "fresh_at_batch": fresh,
        "bytes_out": [16 * k * MB for k in range(40)],
        "at_batch": [None, *(GB + k * each for k in range(1, 40))],
    }
    series = host([3 * GB] * 40, **seen)
    (found,) = diagnose(series, graphs=lambda _: KeptGraphs(lasting=2 if cause == "results kept" else 0))
    assert found.cause == cause
    assert [one.cause for one in diagnose(series)] == ["batches kept"], "no results are seen, however much it grows"
    assert "memory grew by 1.59 GB between step 16 and 624" in found.text or cause == "batches kept"
    assert diagnose(series[:2]) == [], "one turn of the loop says nothing of growth"
    assert [one.cause for one in diagnose(series[:2], ended=True)] == ["batches kept"]


def test_a_cause_that_is_known_at_the_end_only_is_reported_though_its_loader_has_ended():
    counted = {
        "batches": [*(16 * k for k in range(10)), 0, 0],
        "fresh_batches": [*(12 * k for k in range(10)), 0, 0],
        "bytes_out": [*(16 * k * MB for k in range(10)), 0, 0],
    }
    series = host([GB] * 12, **counted)
    assert [diagnose(series[:k], graphs=lambda _: None) for k in (8, 10, 12)] == [[], [], []]
    (found,) = diagnose(series, ended=True)
    assert found.cause == "batches kept"
    assert "108 of 144 batches of 1.05 MB" in found.text


def test_a_few_batches_kept_for_a_moment_are_not_told():
    batches = [16 * k for k in range(40)]
    assert causes(host([GB] * 40, batches=batches, fresh_batches=[min(7, k) for k in range(40)])) == []


def test_no_samples_show_nothing():
    assert diagnose([]) == []
    assert rise([], 1, 2) is None
    assert rise([(1, 5), (1, 9)], 1, 2) is None


# Marks


@pytest.mark.parametrize(
    ("value", "share", "nbytes"),
    [(0.9, 0.9, None), ("85%", 0.85, None), ("12GB", None, 12_000_000_000), (2048, None, 2048)],
)
def test_a_mark_is_a_share_or_a_size(value, share, nbytes):
    assert Mark.of("warn_at", value) == Mark("warn_at", share, nbytes)


@pytest.mark.parametrize("value", [0, -1.5, "many", float("nan"), float("inf"), True, [1]])
def test_what_is_neither_is_refused_by_name(value):
    with pytest.raises((ValueError, TypeError), match=r"stop_at is a share|stop_at as a share|a size is"):
        Mark.of("stop_at", value)


def test_a_share_is_of_the_control_group_where_that_is_tighter_and_page_cache_can_be_had():
    sample = Sample(1.0, total=64 * GB, available=60 * GB, group_used=10 * GB, group_limit=10 * GB, page_cache=2 * GB)
    assert sample.share == pytest.approx(0.8)
    assert Mark.of("warn_at", 0.81).passed(sample) == []
    (finding,) = Mark.of("warn_at", 0.8).passed(sample)
    assert "80.0% of the 10.7 GB of its control group" in finding.text
    assert "at or above warn_at=0.8" in finding.text


def test_a_share_holds_for_each_gpu_and_a_size_for_what_the_process_holds():
    full = GpuSample(1, 80 * GB, 4 * GB, allocated=70 * GB, reserved=70 * GB, others=3 * GB)
    sample = Sample(
        1.0, total=64 * GB, available=60 * GB, held=5 * GB, gpus=(replace(full, index=0, free=60 * GB), full)
    )
    assert [finding.place for finding in Mark.of("stop_at", 0.9).passed(sample)] == ["cuda:1"]
    assert [finding.place for finding in Mark.of("stop_at", "5GB").passed(sample)] == ["host"]
    assert Mark.of("stop_at", "6GB").passed(sample) == []


# The log

WHOLE = Sample(
    time=1e9 + 0.5,
    epoch=2,
    step=40,
    processes=3,
    rss=9,
    pss=7,
    held=5,
    total=100,
    available=60,
    page_cache=20,
    group_used=8,
    group_limit=90,
    disk_free=1000,
    batches=4,
    rows=64,
    bytes_out=640,
    fresh_batches=1,
    wait_seconds=0.25,
    wall_seconds=2.5,
    gpus=(GpuSample(1, 80, 60, 7, 9, 8, 7, 10, 1), GpuSample(0, 80, 60)),
)


@pytest.mark.parametrize("sample", [WHOLE, Sample(time=1.0)])
def test_a_sample_survives_json(sample):
    assert Sample.from_json(json.loads(json.dumps(sample.as_json()))) == sample


def test_a_log_gives_its_runs_with_samples_warnings_and_summary(tmp_path):
    finding = memload.Finding("leak", "it grows", "host")
    for _ in range(2):
        log = JsonLog(tmp_path / "mem.jsonl")
        log.begin()
        log.sample(WHOLE)
        log.warning(WHOLE, finding)
        tally = Tally(WHOLE)
        tally.add(WHOLE)
        log.end(tally.summary([finding], 0.01).as_json())
        log.close()
    first, second = read_log(tmp_path / "mem.jsonl")
    assert first.samples == second.samples == [WHOLE]
    assert second.warnings == [(WHOLE.time, finding)]
    assert second.summary["peak_held"] == 5
    assert second.pid == os.getpid()


def test_a_line_that_was_cut_short_costs_no_other_line(tmp_path):
    path = tmp_path / "mem.jsonl"
    log = JsonLog(path)
    log.begin()
    log.sample(WHOLE)
    log.close()
    path.write_bytes(path.read_bytes()[:-20])
    again = JsonLog(path)
    again.sample(replace(WHOLE, step=41))
    again.close()
    (run,) = read_log(path)
    assert [sample.step for sample in run.samples] == [41]


@given(st.binary(max_size=200))
def test_a_damaged_log_is_refused_or_read_but_breaks_nothing(tmp_path_factory, damage):
    path = tmp_path_factory.mktemp("log") / "mem.jsonl"
    whole = json.dumps({"pid": 1, "sample": WHOLE.as_json()}).encode()
    path.write_bytes(damage + b"\n" + whole + b"\n")
    assert read_log(path)[-1].samples[-1] == WHOLE
    path.write_bytes(damage)
    with pytest.raises(memload.MemloadError, match="no sample in it"):
        read_log(path)


@pytest.mark.parametrize("told", [[1], {"pid": 1, "sample": 3}, {"pid": 1, "sample": {"time": "x"}}, {"pid": "a"}])
def test_lines_of_another_kind_are_passed_over(told, tmp_path):
    (tmp_path / "log").write_text(json.dumps(told) + "\n")
    with pytest.raises(memload.MemloadError, match="no sample in it"):
        read_log(tmp_path / "log")


def test_a_log_of_a_newer_version_is_refused_by_name(tmp_path):
    (tmp_path / "log").write_text('{"monitor": 2, "pid": 1}\n')
    with pytest.raises(memload.MemloadError, match="version 2, expected 1"):
        read_log(tmp_path / "log")


# What is shown


def test_figures_are_in_gb_and_rates_are_over_the_time_between():
    before = replace(WHOLE, time=WHOLE.time - 2, rows=0, batches=0, fresh_batches=0, bytes_out=0, wait_seconds=0.0)
    found = figures_of(replace(WHOLE, held=2_000_000_000), before)
    assert found["held_gb"] == 2.0
    assert found["gpu1_others_gb"] == 1e-9
    assert "gpu0_others_gb" not in found
    assert (found["loader_rows_per_second"], found["loader_wait_share"]) == (32.0, 0.125)
    assert figures_of(WHOLE).keys() == found.keys() - {name for name in found if name.startswith("loader_")}


def test_the_live_view_fits_the_terminal_and_shows_the_trend():
    series = [replace(WHOLE, time=1000.0 + k, held=GB + k * MB) for k in range(90)]
    assert trend(series) == "+62.9 MB/min"
    for width in (40, 80, 200):
        assert all(len(text) < width for text in screen(series, "python train.py", width))
    shown = "\n".join(screen(series, "python train.py", 120))
    assert "python train.py" in shown
    assert "not permitted" in "\n".join(screen([replace(WHOLE, pss=None)], "x", 80))
    assert "held 1.17 GB" in line(series)


def test_the_curve_is_flat_where_nothing_changes_and_rises_where_it_does():
    assert curve([1000] * 5, 80) == "▁▁▁▁▁"
    assert curve([0, 50, 100], 80) == "▁▄█"
    assert len(curve(list(range(500)), 30)) == 30

"""What goes wrong around a loader: files cut short, loops that stop, signals, forks, exits."""

import collections
import gc
import multiprocessing
import os
import re
import signal
import threading
import time
import warnings

import numpy as np
import psutil
import pytest
import torch
from blocked import threads_of_memload
from children import count_rows
from lifetimes import anonymous
from programs import run, run_all
from simulated import SimulatedInterface
from waiting import MOST_SECONDS, lets_others_run, until

import memload

ROW = 64 * 1024
F32 = {"x": memload.Cast(torch.float32)}


@pytest.fixture
def rows_file(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(64, dtype=np.uint8).repeat(ROW).reshape(64, ROW))
    return path


def test_a_file_truncated_while_being_read_raises_with_file_and_row_and_other_loaders_go_on(rows_file):
    ds = memload.open(rows_file)
    (name,) = ds.fields
    other = memload.from_arrays(x=torch.arange(1000))
    others = iter(memload.FastLoader(other, batch_size=10))
    next(others)
    iterator = iter(memload.FastLoader(ds, batch_size=4, depth=1, threads=1))
    assert next(iterator)[name][3, 0] == 3
    os.truncate(rows_file, 40 * ROW)
    with pytest.raises(memload.ShardReadError, match="truncated") as caught:
        list(iterator)
    assert caught.value.file == str(rows_file)
    assert 39 <= caught.value.row < 64
    assert caught.value.offset >= 40 * ROW - 4096
    assert str(rows_file) in str(caught.value)
    assert isinstance(caught.value, OSError)
    with pytest.raises(StopIteration):
        next(iterator)
    assert sum(len(batch["x"]) for batch in others) == 990
    with pytest.raises(memload.ShardReadError):
        ds[63]
    assert ds.select([0])[0][name][0] == 0


LAYERS = {
    "no layer": {},
    "functions of batches": {"batch_transform": dict},
    "functions of samples": {"map": dict},
    "groups": {"collate_fn": memload.group_collate},
    "a device": {"device": True},
    "a device, and functions of batches": {"device": True, "batch_transform": dict},
}


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_a_pass_over_a_file_that_lost_its_last_byte_ends_with_an_error_whatever_is_around_it(tmp_path, layers):
    options = dict(layers)
    x = torch.arange(36, dtype=torch.uint8).repeat_interleave(5000).reshape(36, 5000)
    memload.write(tmp_path / "set", {"x": x}, shard_bytes=20_000)
    shards = sorted((tmp_path / "set").glob("*.safetensors"))
    ds = memload.open(tmp_path / "set")
    # Eight batches, each of which looks at one of the nine files: that of the last row is looked at at the end alone.
    assert (len(shards), len(ds)) == (9, 36)
    os.truncate(shards[-1], shards[-1].stat().st_size - 1)
    if "map" in options:
        ds = ds.map(options.pop("map"))
    if "collate_fn" in options:
        ds = memload.concat({"cut": ds, "other": memload.from_arrays(x=torch.zeros(1, 7, dtype=torch.uint8))})
    if options.pop("device", False):
        options["device"] = SimulatedInterface(native=True)
    iterator = iter(memload.FastLoader(ds, batch_size=5, threads=1, **options))
    with pytest.raises(memload.ShardReadError, match=shards[-1].name):
        collections.deque(iterator, maxlen=0)
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_pass_over_a_file_that_has_become_longer_warns(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((100, 5), np.float32))
    ds = memload.open(path)
    loader = memload.FastLoader(ds, 50)
    assert len(list(loader)) == 2
    os.utime(path)
    assert len(list(loader)) == 2
    np.save(path, np.ones((200, 5)))  # in place, of another dtype
    with pytest.warns(RuntimeWarning, match=r"x\.npy: had 2,128 bytes when it was opened and has more now"):
        list(loader)
    path.unlink()
    np.save(path, np.ones((300, 5)))  # another file: the one that was opened is read
    fresh = memload.FastLoader(memload.open(path), 300)
    path.unlink()
    np.save(path, np.zeros((500, 5)))
    (batch,) = fresh
    assert batch["data"].eq(1).all()


def test_a_truncated_file_does_not_kill_a_process_whose_faulthandler_came_later(rows_file):
    done = run(
        "import faulthandler, os, sys, memload\n"
        "ds = memload.open(sys.argv[1])\n"
        "ds[0]\n"
        "faulthandler.enable()\n"
        "os.truncate(sys.argv[1], 4096)\n"
        "try:\n    list(memload.FastLoader(ds, batch_size=8))\n"
        "except memload.ShardReadError as e:\n    print('caught', e.file)\n",
        rows_file,
    )
    assert (done.status, done.out) == (0, [f"caught {rows_file}"]), done.err


CUT_LATER = """
import faulthandler, os, sys, memload, numpy as np, torch
from pathlib import Path
folder = Path(sys.argv[1])
memload.write(folder / "ragged", {"x": memload.ragged([torch.arange(k) for k in range(9000)])})
np.save(folder / "rows.npy", np.ones((400, 50_000), np.uint8))
ragged, rows = memload.open(folder / "ragged"), memload.open(folder / "rows.npy")
faulthandler.enable()
for path in (next((folder / "ragged").glob("*.safetensors")), folder / "rows.npy"):
    os.truncate(path, 4096)
for read in (lambda: next(iter(memload.FastLoader(ragged, 8))), lambda: rows.with_tier("ram", progress=False)):
    try:
        read()
    except memload.ShardReadError as error:
        print("caught", Path(error.file).name)
"""


def test_reads_outside_of_a_pass_are_guarded_too_where_the_faulthandler_came_later(tmp_path):
    done = run(CUT_LATER, tmp_path)
    caught = ["caught shard-00000.safetensors", "caught rows.npy"]
    assert (done.status, done.out, done.err) == (0, caught, ""), "nothing of a fatal error is printed either"


def test_a_thousand_loops_that_break_leave_threads_files_and_memory_flat():
    ds = memload.from_arrays(x=torch.zeros(64, 1000))

    def loop(times):
        for _ in range(times):
            for _batch in memload.FastLoader(ds, batch_size=4, threads=2):
                break

    loop(500)
    gc.collect()
    files, before = psutil.Process().num_fds(), anonymous()
    loop(1_000)  # ten thousand, of every kind: tests/faults/test_soak.py
    gc.collect()
    assert anonymous() - before < 2 << 20
    assert psutil.Process().num_fds() <= files
    assert threads_of_memload() == 0


def test_an_exception_in_the_loop_ends_threads_and_memory():
    ds = memload.from_arrays(x=torch.zeros(64, 1000))

    def loop():
        for _batch in memload.FastLoader(ds, batch_size=4):
            raise KeyError("the loop's own")

    with pytest.raises(KeyError):
        loop()
    gc.collect()
    assert threads_of_memload() == 0


def test_a_loader_that_is_not_iterated_holds_no_slots_and_no_threads():
    ds = memload.from_arrays(x=torch.zeros(64, 1_000_000, dtype=torch.uint8))
    loader = memload.FastLoader(ds, batch_size=16)
    before = anonymous()
    for _batch in loader:
        pass
    del _batch
    loader.close()
    assert threads_of_memload() == 0
    assert anonymous() - before < 8 << 20


def test_persistent_workers_keep_slots_and_threads_between_passes():
    ds = memload.from_arrays(x=torch.arange(64))
    loader = memload.FastLoader(ds, batch_size=16, num_workers=1, persistent_workers=True)
    places = [{batch["x"].data_ptr() for batch in loader} for _ in range(3)]
    assert threads_of_memload(1) == 1
    assert places[0] & places[1] & places[2]
    del loader
    gc.collect()
    assert threads_of_memload() == 0


def test_kept_batches_stay_as_they_are_and_are_counted():
    x = torch.arange(1000, dtype=torch.int32)
    loader = memload.FastLoader(memload.from_arrays(x=x), batch_size=10, shuffle=True, depth=2)
    kept = [batch["x"] for batch in loader]
    assert torch.equal(torch.cat(kept).sort().values, x)
    assert len({batch.data_ptr() for batch in kept}) == 100
    assert loader.stats().fresh_batches >= 90
    assert "keeps batches" in loader.stats().limit


def test_a_view_of_a_batch_keeps_its_slot():
    x = torch.arange(400, dtype=torch.int32)
    views = []
    for k, batch in enumerate(memload.FastLoader(memload.from_arrays(x=x), batch_size=10)):
        views.append((k, batch["x"][3:5].numpy()))
    for k, view in views:
        assert view.tolist() == [10 * k + 3, 10 * k + 4]


def test_a_loader_iterated_twice_at_once_gives_both_all_rows():
    loader = memload.FastLoader(memload.from_arrays(x=torch.arange(100)), batch_size=7, shuffle=True)
    seen = [[], []]
    for pair in zip(loader, loader, strict=True):
        for k, batch in enumerate(pair):
            seen[k] += batch["x"].tolist()
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(100))
    assert seen[0] != seen[1]


def test_two_loaders_on_one_dataset_share_threads():
    ds = memload.from_arrays(x=torch.arange(100))
    train, valid = (iter(memload.FastLoader(ds, batch_size=3, threads=2)) for _ in range(2))
    next(train), next(valid)
    assert threads_of_memload(2) == 2
    assert [len(list(it)) for it in (train, valid)] == [33, 33]


def test_next_from_several_threads_hands_each_batch_out_once():
    iterator = iter(memload.FastLoader(memload.from_arrays(x=torch.arange(3000)), batch_size=3))
    rows, lock = [], threading.Lock()

    def consume():
        for batch in iterator:
            with lock:
                rows.extend(batch["x"].tolist())

    consumers = [threading.Thread(target=consume) for _ in range(4)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(MOST_SECONDS)
    assert sorted(rows) == list(range(3000))


@pytest.mark.parametrize("ahead", [{"depth": 1}, {"num_workers": 1, "prefetch_factor": 1}])
def test_several_threads_may_ask_a_sampler_that_is_a_generator(ahead):
    class Slow:
        def __iter__(self):
            return iter(range(300))

        def __len__(self):
            return 300

    ds = memload.from_arrays(x=torch.arange(300))
    iterator = iter(memload.FastLoader(ds, batch_size=3, sampler=Slow(), **ahead))
    rows = []

    def consume():
        for batch in iterator:
            rows.extend(batch["x"].tolist())
            time.sleep(0.001)

    consumers = [threading.Thread(target=consume) for _ in range(6)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(MOST_SECONDS)
    assert sorted(rows) == list(range(300))


def test_batches_may_die_on_other_threads_after_the_loader():
    batches = list(memload.FastLoader(memload.from_arrays(x=torch.zeros(100, 1000)), batch_size=10))
    consumers = [threading.Thread(target=batches.pop) for _ in range(10)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(MOST_SECONDS)
    assert batches == []


def test_other_python_threads_run_while_a_batch_is_gathered():
    # One batch of 200 MB keeps one native thread busy for tens of milliseconds: longer than a thread keeps the GIL.
    ds = memload.from_arrays(x=torch.zeros(4, 50_000_000, dtype=torch.uint8))

    def gather():
        next(iter(memload.FastLoader(ds, batch_size=4, threads=1)))

    assert lets_others_run(gather)


INTERRUPTED = """
import os, signal, sys, threading, memload, torch
from blocked import threads_left
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may have it ignored
loader = memload.FastLoader(memload.from_arrays(x=torch.zeros(100000, 100)), batch_size=2)
begun = threading.Event()
threading.Thread(target=lambda: (begun.wait(), os.kill(os.getpid(), signal.SIGINT))).start()
try:
    while True:
        for batch in loader:
            begun.set()
except KeyboardInterrupt:
    print("interrupted")
print(threads_left())
"""


def test_ctrl_c_interrupts_the_loop_and_ends_the_threads():
    done = run(INTERRUPTED)
    assert (done.status, done.out) == (0, ["interrupted", "0"]), done.err


SAMPLER_WITHOUT_ANSWER = """
import os, signal, sys, threading, time, memload
signal.signal(signal.SIGINT, signal.default_int_handler)
ds = memload.from_arrays(x=__import__("torch").zeros(8, 4))
waits = threading.Event()
class Endless:
    def __len__(self): return 8
    def __iter__(self):
        yield 0
        waits.set()
        while True: time.sleep(0.05)  # one long wait may begin just after the signal came, and not see it
threading.Thread(target=lambda: (waits.wait(), os.kill(os.getpid(), signal.SIGINT))).start()
try:
    list(memload.FastLoader(ds, sampler=Endless()))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_interrupts_a_sampler_that_does_not_answer():
    done = run(SAMPLER_WITHOUT_ANSWER)
    assert (done.status, done.out) == (0, ["interrupted"]), done.err


MID_EPOCH = """
import gc, os, sys, torch, memload
gc.unfreeze()  # what was imported ends as in any process
outside = {"write": os.write, "finalising": sys.is_finalizing}  # instead of this module's names: no cycle through them
class Told:
    __del__ = eval("lambda self: write(1, b'at the end' if finalising() else b'before')", outside)
ds = memload.from_arrays(x=torch.zeros(2000, 100_000, dtype=torch.uint8))
iterator = iter(memload.FastLoader(ds, batch_size=200, num_workers=2, persistent_workers=True))
batch = next(iterator)
kept = [batch, iterator, Told()]  # until the interpreter takes its modules apart
"""
ENDINGS = {"its last line": "pass", "an exit": "sys.exit(0)", "a cycle of all names": "def function(): pass"}


def test_the_interpreter_exits_at_once_in_mid_epoch():
    ended = run_all({name: MID_EPOCH + ending for name, ending in ENDINGS.items()})
    for name, done in ended.items():
        assert (name, done.status, done.out, done.err) == (name, 0, ["at the end"], "")


def in_child(function):
    """Fork, run the function in the child, and return its exit status; the child never returns here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on: forking with threads is the test
        child = os.fork()
    if child == 0:
        signal.alarm(240)  # a child that hangs ends with a signal, which fails the test
        try:
            function()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_after_a_fork_the_child_loads_afresh_and_the_parent_goes_on():
    loader = memload.FastLoader(memload.from_arrays(x=torch.arange(100)), batch_size=10, threads=2)
    iterator = iter(loader)
    batch = next(iterator)

    def child():
        rows = [row for fresh in loader for row in fresh["x"].tolist()]
        assert rows == list(range(100))
        assert batch["x"].tolist() == list(range(10))

    assert in_child(child) == 0
    assert [b["x"][0].item() for b in iterator] == list(range(10, 100, 10))


def test_a_child_of_a_process_with_persistent_workers_has_slots_of_its_own():
    loader = memload.FastLoader(
        memload.from_arrays(x=torch.arange(1000)), batch_size=10, num_workers=1, persistent_workers=True
    )
    assert len(list(loader)) == 100
    live = iter(loader)
    next(live)

    def child():
        nonlocal live
        before = loader.stats().fresh_batches
        for _ in range(2):
            for _batch in loader:
                pass
        assert loader.stats().fresh_batches == before
        live = None
        gc.collect()

    assert in_child(child) == 0
    assert len(list(live)) == 99


def test_an_iterator_that_crossed_a_fork_says_so_and_can_be_dropped():
    iterator = iter(memload.FastLoader(memload.from_arrays(x=torch.arange(100)), batch_size=10))
    first = [next(iterator)]

    def child():
        nonlocal iterator
        with pytest.raises(RuntimeError, match="before the process was forked"):
            next(iterator)
        del iterator
        first.clear()
        gc.collect()

    assert in_child(child) == 0
    assert len(list(iterator)) == 9


def test_a_loader_over_files_travels_to_a_process_that_starts_afresh(tmp_path):
    memload.write(tmp_path / "set", {"x": torch.arange(50)})
    loader = memload.FastLoader(memload.open(tmp_path / "set"), batch_size=8)
    next(iter(loader))
    context = multiprocessing.get_context("forkserver")
    queue = context.SimpleQueue()
    process = context.Process(target=count_rows, args=(loader, queue))
    process.start()
    process.join(MOST_SECONDS)
    assert process.exitcode == 0
    assert queue.get() == 50


def test_the_memory_of_a_pass_is_what_nbytes_says():
    # A process of its own: the peak of private memory over what it had before, to within a tenth and a fixed 4 MB.
    done = run(
        "import time, memload, torch\n"
        "def private():\n"
        "    fields = dict(l.split(':') for l in open('/proc/self/smaps_rollup').read().splitlines()[1:])\n"
        "    return int(fields['Anonymous'].split()[0]) * 1024\n"
        "ds = memload.from_arrays(x=torch.ones(256, 1_000_000, dtype=torch.uint8))\n"
        "warm = [b['x'].sum() for b in memload.FastLoader(ds, batch_size=2)]\n"
        "loader = memload.FastLoader(ds, batch_size=32, shuffle=True)\n"
        "before, peak = private(), 0\n"
        # Three passes, in each of which the gather may fill all slots; and before each, memory of other things may go.
        "for _ in range(3):\n"
        "    before = min(before, private())\n"
        "    batches = iter(loader)\n"
        "    batch = next(batches)\n"
        "    batch = next(batches)\n"  # from here on, two are gathered ahead of the one that the loop has
        "    end = time.monotonic() + 60\n"
        "    while peak - before < 0.9 * loader.nbytes - (4 << 20) and time.monotonic() < end:\n"
        "        time.sleep(0.01)\n"
        "        peak = max(peak, private())\n"
        "    for batch in batches:\n        peak = max(peak, private())\n"
        "    del batch\n"
        "print(loader.nbytes, peak - before)\n"
    )
    assert done.status == 0, done.err
    stated, measured = map(int, done.out[0].split())
    assert abs(measured - stated) < stated / 10 + (4 << 20)


def test_the_plan_of_a_long_pass_in_order_does_not_lie_in_memory_as_a_whole():
    ds = memload.from_arrays(x=torch.zeros(6_000_000, dtype=torch.uint8))
    loader = memload.FastLoader(ds, batch_size=4096)
    assert loader.nbytes < 2 << 20
    iterator = iter(loader)
    next(iterator)
    before = anonymous()
    for _batch in iterator:
        pass
    assert anonymous() - before < 8 << 20


def test_statistics_count_what_was_delivered_and_say_what_limits():
    x = torch.zeros(100, 10, dtype=torch.uint8)
    loader = memload.FastLoader(memload.from_arrays(x=x), batch_size=30, depth=1, cast=F32)
    assert "Nothing was loaded" in loader.stats().limit
    began = time.perf_counter()
    for number, _batch in enumerate(loader):
        if number < 2:  # while the other slot is full, and a batch is left for it: the loop takes longer than it waited
            until(lambda: loader.stats().ring_full_seconds > 100 * loader.stats().consumer_wait_seconds)
        if number == 3:  # a busy machine may have made it wait since
            until(lambda: time.perf_counter() - began > 100 * loader.stats().consumer_wait_seconds)
    stats = loader.stats()
    assert "The loop is the limit" in stats.limit
    assert (stats.batches, stats.rows, stats.bytes_in, stats.bytes_out) == (4, 100, 1000, 4000)
    live = iter(loader)
    next(live)
    assert loader.stats().batches == 5
    del live
    assert loader.stats().batches == 5
    assert re.match(r"5 batches, \d+ rows, [\d.]+ k?B in [\d.]+ s \([\d.]+ [kMG]?B/s\)\. ", str(loader.stats()))

"""Threads, processes and signals: what waits can be ended, what is forked or sent works, and nothing stays behind."""

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
import weakref

import numpy as np
import pytest
import tensordict
import torch
from blocked import can_block, threads_of_memload
from children import LoadsInside, count_all
from extension import simulated_extension
from programs import Ahead, begin_all, run_all
from torch.utils.data import DataLoader, StackDataset, TensorDataset
from waiting import MOST_SECONDS, coming

import memload
from memload.loader import native_pass

needs_blocked_memory = pytest.mark.skipif(not can_block(), reason="this kernel does not give userfaultfd to this user")


PREFACE = """
import gc, os, signal, sys, threading, time, memload, multiprocessing, torch
from blocked import Blocked, threads_of_memload
from waiting import until
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may have it ignored
def loader_of(array, **arguments):
    return memload.FastLoader(memload.from_arrays(x=array.reshape(-1, 4096)), batch_size=8, threads=2, **arguments)
def other_loaders_work():
    return sum(len(batch["x"]) for batch in loader_of(torch.zeros(1 << 20))) == 256
def interrupt_soon():
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
class Stuck(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): time.sleep(1000)
start = time.perf_counter()  # at least so much is to pass; that what hangs is ended is seen to outside
"""

ON_BLOCKED_MEMORY = {
    "timeout": """
memory = Blocked(1 << 20)
loader = loader_of(memory.array, timeout=0.5)
try:
    next(iter(loader))
except RuntimeError as error:
    print(error)
print(0.5 <= time.perf_counter() - start)
print(other_loaders_work(), threads_of_memload(wait=0) > 0)
memory.release()
print(threads_of_memload())
loader.timeout = 0
print(sum(len(batch["x"]) for batch in loader))
""",
    "interrupted": """
memory = Blocked(1 << 20)
try:
    interrupt_soon()
    next(iter(loader_of(memory.array, timeout=1000)))
except KeyboardInterrupt:
    print("interrupted")
print(other_loaders_work())
""",
    "dropped": """
memory = Blocked(1 << 20)
iterator = iter(loader_of(memory.array, num_workers=1))
memory.until_read()
del iterator
gc.collect()
print("dropped")
""",
    "slow": """
memory = Blocked(1 << 20)
iterator = iter(loader_of(memory.array, num_workers=1, batch_transform=lambda batch: batch))
memory.until_read()
time.sleep(0.3)  # the thread that wants the batch has asked again and again, as a rule
closing, released = threading.Event(), threading.Event()
def longest(at_once):
    closing.set()
    return 0.0 if at_once else 1000.0  # rather than the two seconds in which a busy machine may not come to release it
memload.engine.on_cpu.longest_close = longest
def release_soon():
    closing.wait()
    time.sleep(0.1)  # close() is amid its waiting, as a rule
    released.set()
    memory.release()
threading.Thread(target=release_soon).start()
iterator.close()
print(released.is_set())
""",
    "many": """
memories = [Blocked(1 << 14) for _ in range(150)]
parts = {str(k): memload.from_arrays(x=m.array[: 8 * (1024 + k)].reshape(8, -1)) for k, m in enumerate(memories)}
arguments = {"collate_fn": memload.group_collate, "threads": 150, "num_workers": 1}
iterator = iter(memload.FastLoader(memload.concat(parts), 1 << 11, **arguments))
until(lambda: threads_of_memload(150, wait=0) >= 150)
time.sleep(0.3)  # a thread is held up by each, as a rule
start = time.perf_counter()
iterator.close()  # of 300 seconds, each with its own two, the program would not see the end
print(time.perf_counter() - start > 1.5)
""",
    "ended": """
memory = Blocked(1 << 20)
iterator = iter(loader_of(memory.array, num_workers=1))
memory.until_read()
print("ends")
sys.exit(0)
""",
}

ON_STOCK_MACHINERY = {
    "stock timeout": """
try:
    next(iter(memload.FastLoader(Stuck(), num_workers=1, timeout=1)))
except RuntimeError as error:
    print(error)
print(1 <= time.perf_counter() - start)
print(multiprocessing.active_children())
""",
    "stock interrupted": """
try:
    interrupt_soon()
    next(iter(memload.FastLoader(Stuck())))
except KeyboardInterrupt:
    print("interrupted")
""",
}

ENDINGS = {
    # No torch operations in these: torch ends a process by std::terminate whose daemon threads run some at its end.
    "a daemon thread that waits for a batch": """
large = memload.FastLoader(memload.from_arrays(x=torch.zeros(2, 1 << 27, dtype=torch.uint8)), batch_size=2, threads=1)
(waits := threading.Thread(target=lambda: next(iter(large)), daemon=True)).start()
def is_waiting():
    frame = sys._current_frames().get(waits.ident)
    return frame is not None and frame.f_code.co_name == "next"
until(lambda: is_waiting() or not waits.is_alive())
""",
    "daemon threads that read rows": """
import numpy
column, row, out = loader.dataset.fields["x"].column, numpy.array([3]), numpy.empty(4096, numpy.float32)
def loop():
    while True: column.gather(row, out.ctypes.data, out.nbytes)
for _ in range(4): threading.Thread(target=loop, daemon=True).start()
time.sleep(0.3)
""",
    "a daemon thread that waits for its sampler": """
sampler = iter(lambda: time.sleep(1000), 0)
threading.Thread(target=lambda: next(iter(memload.FastLoader(loader.dataset, sampler=sampler))), daemon=True).start()
time.sleep(0.3)
""",
    "nobody who wants tensordict": 'list(loader); sys.exit(1 if "tensordict" in sys.modules else 0)',
    "sys.exit in mid-epoch": "for batch in loader: sys.exit(0)",
    "os._exit in mid-epoch": "for batch in loader: os._exit(0)",
    "an exception in another thread": """
threading.excepthook = lambda arguments: print(arguments.exc_type.__name__)
def loop():
    for batch in loader: raise LookupError
thread = threading.Thread(target=loop)
thread.start()
thread.join()
gc.collect()
print(threads_of_memload())
""",
}


def begin(folder):
    """Side by side, since starting one takes longer than what it does."""
    ending = {name: "loader = loader_of(torch.zeros(1 << 22))\n" + code for name, code in ENDINGS.items()}
    codes = {**(ON_BLOCKED_MEMORY if can_block() else {}), **ON_STOCK_MACHINERY, **ending}
    return begin_all({name: PREFACE + code for name, code in codes.items()}, ahead=folder)


PROGRAMS = Ahead(begin)


@pytest.fixture(scope="module")
def programs():
    """What each program left."""
    return PROGRAMS.found


def printed(ended):
    """What a program printed that ended well."""
    assert (ended.status, ended.err) == (0, ""), ended
    return ended.out


@needs_blocked_memory
def test_a_timeout_ends_the_wait_for_a_read_that_does_not_answer_and_its_thread_ends_when_it_does(programs):
    assert printed(programs["timeout"]) == ["DataLoader timed out after 0.5 seconds", "True", "True True", "0", "256"]


@needs_blocked_memory
def test_ctrl_c_and_close_and_exit_do_not_wait_for_a_read_that_does_not_answer(programs):
    assert printed(programs["interrupted"]) == ["interrupted", "True"]
    assert printed(programs["dropped"]) == ["dropped"]
    assert printed(programs["ended"]) == ["ends"]


@needs_blocked_memory
def test_close_waits_for_a_slow_read_under_transforms_and_once_for_many_datasets_that_do_not_answer(programs):
    assert printed(programs["slow"]) == ["True"]
    assert printed(programs["many"]) == ["True"]


def test_on_stock_machinery_a_dataset_that_does_not_answer_ends_by_timeout_and_by_ctrl_c(programs):
    assert printed(programs["stock timeout"]) == ["DataLoader timed out after 1 seconds", "True", "[]"]
    assert printed(programs["stock interrupted"]) == ["interrupted"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_process_ends_at_once_and_in_peace_whatever_its_threads_do(ending, programs):
    expected = ["LookupError", "0"] if ending == "an exception in another thread" else []
    assert printed(programs[ending]) == expected


# What else is imported, and a class in the script, let its names live until those of the modules that it uses are gone.
LEFT_OPEN = """
import multiprocessing, sys, memload, torch

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 6

dataset = memload.from_arrays(x=torch.arange(6))
plain, mapped = iter(memload.FastLoader(dataset, 1)), iter(memload.FastLoader(dataset.map(dict), 1))
print(next(plain), next(mapped))
writer = memload.ShardWriter(sys.argv[1])
writer.append(x=torch.ones(3))
"""


def test_a_script_may_end_with_iterators_and_writers_open(tmp_path):
    ended = subprocess.run([sys.executable, "-c", LEFT_OPEN, tmp_path / "shards"], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("{'x': tensor([0])} {'x': tensor([0])}\n", "")
    assert list(tmp_path.iterdir()) == []


# Native threads that let go of Python objects, one after the other, when the interpreter ends.
LETTING_GO = """
import sys, numpy
from extension import simulated_extension
sys.setswitchinterval(1e-4)  # else each that lets go may wait 5 ms, thousands of times
device = simulated_extension().SimulatedDevice()
streams = [device.add_stream(0, 0, seed) for seed in range(3)]
source, target = numpy.zeros(64, numpy.uint8), numpy.zeros(64, numpy.uint8)
for k in range(3000):
    device.copy_keeping(target.ctypes.data, source.ctypes.data, 64, streams[k % 3], [source, target])
"""


def test_the_process_ends_in_peace_while_native_threads_let_go_of_python_objects():
    ended = run_all({str(k): LETTING_GO for k in range(8)})
    assert [(one.status, one.err) for one in ended.values()] == [(0, "")] * 8


def test_what_native_threads_let_go_ends_whether_the_main_thread_comes_by_or_another():
    class Kept:
        pass

    device = simulated_extension().SimulatedDevice()
    stream = device.add_stream(0, 0)
    memory = np.zeros(64, np.uint8)

    def ends(wait):
        kept = Kept()
        gone = weakref.ref(kept)
        device.copy_keeping(memory.ctypes.data, memory.ctypes.data, 0, stream, kept)
        del kept
        wait()
        return gone() is None

    def until_idle():
        device.synchronise(device.record(stream))  # comes once the copy before has let go of what it kept

    found = []
    other = threading.Thread(target=lambda: found.append(ends(until_idle)))
    other.start()
    other.join()  # holds up the main thread
    assert found == [True]
    assert ends(until_idle)


class Held:
    """A sampler that gives one row and then waits until it is let go."""

    def __init__(self):
        self.waits, self.go = threading.Event(), threading.Event()

    def __iter__(self):
        yield 0
        self.waits.set()
        self.go.wait(MOST_SECONDS)
        yield 1


def held_iterator(**arguments):
    sampler = Held()
    iterator = iter(memload.FastLoader(TensorDataset(torch.arange(2)), sampler=sampler, **arguments))
    next(coming(iterator))
    rest = []
    thread = threading.Thread(target=lambda: rest.extend(coming(iterator)))
    thread.start()
    assert sampler.waits.wait(MOST_SECONDS)
    return sampler, iterator, thread, rest


def test_a_fork_while_a_thread_is_in_next_leaves_the_child_an_iterator_that_says_so():
    sampler, iterator, thread, rest = held_iterator()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on: forking with threads is the test
        child = os.fork()
    if child == 0:
        signal.alarm(240)
        try:
            next(iterator)
        except RuntimeError as error:
            os._exit(0 if "before the process was forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sampler.go.set()
    thread.join(MOST_SECONDS)
    assert [batch[0].item() for batch in rest] == [1]


def held_close(monkeypatch, iterator):
    """Begin to close a pass in another thread; return what lets it go on."""
    closes, go = threading.Event(), threading.Event()

    def hold():
        closes.set()
        go.wait(MOST_SECONDS)

    monkeypatch.setattr(native_pass, "watch_spares", hold)
    thread = threading.Thread(target=iterator.close)
    thread.start()
    assert closes.wait(MOST_SECONDS)
    return lambda: (go.set(), thread.join(MOST_SECONDS))


def test_a_fork_while_a_thread_closes_a_pass_leaves_the_child_one_that_is_closed(monkeypatch):
    iterator = iter(memload.FastLoader(TensorDataset(torch.arange(2))))
    go_on = held_close(monkeypatch, iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        iterator.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go_on()


def test_a_pass_may_be_closed_amid_its_close_as_by_a_handler_of_signals(monkeypatch):
    iterator, again = iter(memload.FastLoader(TensorDataset(torch.arange(2)))), [1]
    monkeypatch.setattr(native_pass, "watch_spares", lambda: again.pop() and iterator.close() if again else None)
    thread = threading.Thread(target=iterator.close, daemon=True)
    thread.start()
    thread.join(MOST_SECONDS)
    assert not thread.is_alive()
    assert again == []


def test_the_timeout_also_ends_the_wait_for_another_thread_that_is_in_next():
    sampler, iterator, thread, rest = held_iterator(timeout=0.2)
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
        next(iterator)
    sampler.go.set()
    thread.join(MOST_SECONDS)
    assert [batch[0].item() for batch in rest] == [1]


def loaders():
    """Loaders over data in memory and what each counts: never used, used to its end, and in the middle of a pass."""
    x = torch.arange(20)  # in each loader over a TensorDataset a tensor of its own, since sending it moves it
    stack = StackDataset(TensorDataset(x), memload.from_arrays(y=x))
    fresh = memload.FastLoader(TensorDataset(x.clone()), batch_size=3)
    used = memload.FastLoader(memload.from_arrays(x=x, y=x).as_tuple("y", "x"), batch_size=3, shuffle=True)
    used_workers = memload.FastLoader(TensorDataset(x.clone()), batch_size=3, num_workers=1, persistent_workers=True)
    middle = memload.FastLoader(memload.from_arrays(x=x).as_tuple(), batch_size=3)
    for loader in (used, used_workers):
        assert sum(len(batch[0]) for batch in loader) == 20
    iterator = iter(middle)
    next(iterator)
    return [fresh, used, used_workers, middle, memload.FastLoader(Firsts(stack), batch_size=3)], iterator


class Firsts(torch.utils.data.Dataset):
    """Of a stack of datasets, the first of the first: read by the stock machinery, a dataset like many."""

    def __init__(self, stack):
        self.stack = stack

    def __len__(self):
        return len(self.stack)

    def __getitem__(self, index):
        return self.stack[index][0]


def test_loaders_can_be_pickled_and_copied_before_during_and_after_use():
    made, iterator = loaders()
    for loader in pickle.loads(pickle.dumps(made)):
        assert sum(len(batch[0]) for batch in loader) == 20
    assert len(list(iterator)) == 6
    td = tensordict.TensorDict({"x": torch.arange(5)}, [5])
    assert [len(batch["x"]) for batch in pickle.loads(pickle.dumps(memload.FastLoader(td, batch_size=3)))] == [3, 2]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_loaders_travel_to_processes_that_start_afresh_before_during_and_after_use(method):
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    made, iterator = loaders()
    process = context.Process(target=count_all, args=(made[:-1], queue))
    process.start()
    process.join(MOST_SECONDS)
    assert process.exitcode == 0
    assert queue.get() == [20] * 4
    assert len(list(iterator)) == 6


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_stock_loaders_workers_can_use_and_make_loaders(method):
    inner = memload.FastLoader(TensorDataset(torch.arange(100)), batch_size=7, shuffle=True, threads=1)
    assert len(list(inner)) == 15
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        outer = DataLoader(
            LoadsInside(inner), batch_size=None, num_workers=1, multiprocessing_context=method, timeout=MOST_SECONDS
        )
        assert [int(sample) for sample in outer] == [4950 + 45 + 10 * index for index in range(3)]
    assert len(list(inner)) == 15


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_no_thread_is_left_when_the_last_name_of_loader_and_iterator_is_gone(arguments):
    gc.collect()
    assert threads_of_memload() == 0
    loader = memload.FastLoader(TensorDataset(torch.zeros(1000, 100)), batch_size=10, **arguments)
    iterator = iter(loader)
    next(iterator)
    assert threads_of_memload(wait=0) > 0
    del iterator, loader
    assert threads_of_memload() == 0

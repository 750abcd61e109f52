"""The monitor beside real loops: what it sees, warns of, stops and leaves behind."""

import collections
import contextlib
import io
import os
import struct
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
from programs import run_all
from torch.utils.data import Dataset
from waiting import MOST_SECONDS, until

import memload
from memload.cli import main as cli
from memload.cli.measure import private_bytes
from memload.cli.prediction import wait_for_batches_ahead
from memload.engine.observers import OBSERVERS
from memload.monitoring import run as monitoring_run
from memload.monitoring.log import read_log
from memload.monitoring.processes import command_of

ROW = 64 * 1024


def rows(count, width=ROW):
    return memload.from_arrays(x=torch.zeros(count, width, dtype=torch.uint8), id=torch.arange(count))


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name == "memload-monitor"]


def watched(loop=None, **arguments):
    """Run a loop, or nothing, beside a monitor; return the monitor and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with memload.Monitor(**{"interval": 0.02, "warn_at": None, "show": False, **arguments}) as monitor:
            if loop is not None:
                loop(monitor)
    assert {one.category for one in caught} <= {memload.MemoryWarning}
    return monitor, [str(one.message) for one in caught]


def some_looks(monitor):
    until(lambda: len(monitor.samples) > 5)


def one_more_look(monitor):
    """Wait until the monitor has looked once more, however long that takes."""
    last = monitor.samples[-1].time
    until(lambda: monitor.samples[-1].time > last)


class Plain(Dataset):
    """Samples for stock machinery."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor(index)


def test_it_counts_steps_and_epochs_and_sees_what_loaders_did():
    loader = memload.FastLoader(rows(64), batch_size=16)
    list(loader)  # before it began
    with memload.Monitor(interval=0.02, warn_at=None, show=False) as monitor:
        for _ in range(3):
            for _ in loader:
                one_more_look(monitor)
        for _ in memload.FastLoader(Plain(), batch_size=4):
            pass
    last = monitor.samples[-1]
    assert (last.epoch, last.batches, last.rows) == (3, 12, 192)
    assert last.step == 3 * 5 + 4  # with the question at each end that has no answer
    assert 0 < last.held < last.rss < last.limit
    assert last.pss > 0  # taken a moment after rss, when it may be more
    assert last.disk_free > 0
    assert monitor.findings == []
    assert len(monitor.samples) == monitor.summary.samples >= 5
    assert threads() == []


@pytest.mark.parametrize("given", [{"step": "epoch 3"}, {"step": 1.5}, {"epoch": "3"}, {"epoch": None}], ids=str)
def test_a_mark_that_is_no_number_is_refused_at_once_and_samples_go_on(given):
    with memload.Monitor(interval=0.01, warn_at=None) as monitor:
        ((name, value),) = given.items()
        with pytest.raises(TypeError, match=f"{name} is the number of the {name}, an integer; got {value!r}"):
            monitor.mark(**given)
        monitor.mark(torch.tensor(7))
        until(lambda: any(sample.step == 7 for sample in monitor.samples))


def test_marks_count_instead_of_loaders_where_a_loop_makes_them():
    with memload.Monitor(interval=60, warn_at=None, show=False) as monitor:
        for step in range(3):
            monitor.mark(10 + step, epoch=4)
        monitor.mark()
        list(memload.FastLoader(rows(4), batch_size=2))
    assert (monitor.samples[-1].step, monitor.samples[-1].epoch) == (13, 0)
    monitor.mark(99)  # after the end: nothing
    assert monitor.samples[-1].step == 13


def test_batches_that_a_loop_keeps_are_warned_of_once_with_what_to_do():
    loader, kept = memload.FastLoader(rows(96), batch_size=2), []

    def loop(monitor):
        for _ in range(2):
            for number, batch in enumerate(loader):
                kept.append(batch)
                if number % 4 == 0:
                    one_more_look(monitor)

    monitor, (said,) = watched(loop)
    assert [(one.cause, one.place) for one in monitor.findings] == [("batches kept", "host")]
    assert "the loop keeps batches" in said
    assert monitor.samples[-1].fresh_batches == loader.stats().fresh_batches > 48


def test_batches_kept_beside_one_loss_at_a_time_are_kept_batches():
    loader = memload.FastLoader(memload.from_arrays(x=torch.zeros(800, 4096)).only("x"), batch_size=2, depth=2)
    weight, kept = torch.ones(4096, requires_grad=True), collections.deque(maxlen=6)
    always = (weight * 2).sum()  # with its graph, and older than any step

    def loop(monitor):
        for number, batch in enumerate(loader):
            loss = (weight * batch).mean() * always.detach()
            kept.append(batch)
            loss.backward()
            if number % 8 == 0:
                one_more_look(monitor)
            if monitor.findings:
                break

    monitor, _ = watched(loop)
    assert [one.cause for one in monitor.findings] == ["batches kept"]


def test_loaders_that_are_made_anew_for_each_epoch_count_epochs():
    dataset = rows(8)
    with memload.Monitor(interval=60, show=False) as monitor:
        for _ in range(4):
            for _ in memload.FastLoader(dataset, batch_size=4):
                pass
    assert monitor.samples[-1].epoch == 4


def test_losses_that_are_kept_with_their_graph_are_told_from_kept_batches():
    loader, kept = memload.FastLoader(memload.from_arrays(x=torch.zeros(1000, 4096)).only("x"), batch_size=2), []
    weight, wide = torch.ones(4096, requires_grad=True), torch.ones(2_000_000, requires_grad=True)

    def loop(monitor):
        for number, batch in enumerate(loader):
            kept.append(((weight * batch).mean() * wide).exp().mean())  # keeps the batch, and 8 MB that exp gave
            if number % 8 == 0:
                one_more_look(monitor)
            if monitor.findings:
                break

    monitor, (said,) = watched(loop)
    assert [(one.cause, one.place) for one in monitor.findings] == [("results kept", "host")]
    assert "loss.item()" in said


@pytest.mark.parametrize(
    ("most", "told"),
    [
        (None, "results are kept with their graph, and each with the batch that it was made of"),
        (16, "with their graph"),
        (4, "with their graph"),
    ],
    ids=["all", "the last", "the last few"],
)
def test_losses_whose_graph_holds_little_beside_their_batch_are_told_from_kept_batches_too(most, told, monkeypatch):
    monkeypatch.setattr(monitoring_run, "_DIAGNOSIS_SHARE", 1.0)  # on a busy machine one may cost much
    loader = memload.FastLoader(memload.from_arrays(x=torch.zeros(800, 4096)).only("x"), batch_size=2, depth=2)
    weight, kept = torch.ones(4096, requires_grad=True), collections.deque(maxlen=most)

    def loop(monitor):
        for number, batch in enumerate(loader):
            kept.append((weight * batch).mean())
            if number % 8 == 0:
                one_more_look(monitor)
            if monitor.findings:
                break

    monitor, (said,) = watched(loop)
    assert [(one.cause, one.place) for one in monitor.findings] == [("results kept", "host")]
    assert told in said


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_stop_at_stops_the_loop_between_batches_and_none_is_lost(engine):
    dataset = rows(12) if engine == "native" else Plain()
    number = (lambda batch: batch["id"].tolist()) if engine == "native" else (lambda batch: batch.tolist())
    loader = memload.FastLoader(dataset, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(3))
    whole = [number(batch) for batch in loader]
    loader.generator.manual_seed(3)
    assert loader.engine == engine
    seen = []
    monitor = memload.Monitor(interval=0.02, warn_at=None, stop_at="1MB", show=False)
    said = r"hold .* at or above stop_at=1 MB.*no batch is lost"
    with pytest.raises(memload.MemoryStopError, match=said), monitor:
        for batch in loader:
            seen.append(number(batch))
    assert isinstance(memload.MemoryStopError(), MemoryError)
    assert [one.cause for one in monitor.findings] == ["stop"]
    state = loader.state_dict()
    other = memload.FastLoader(dataset, batch_size=2, shuffle=True, generator=torch.Generator())
    other.load_state_dict(state)
    if seen:
        assert seen + [number(batch) for batch in other] == whole
    else:
        assert len(list(other)) == len(whole)


def test_it_stops_once_and_the_loop_may_go_on():
    with memload.Monitor(interval=0.02, warn_at=None, stop_at="1MB", show=False) as monitor:
        with pytest.raises(memload.MemoryStopError):
            list(memload.FastLoader(rows(4)))
        some_looks(monitor)
        assert len(list(memload.FastLoader(rows(4)))) == 4


def test_a_loop_that_only_marks_is_stopped_too():
    monitor = memload.Monitor(interval=60, warn_at=None, stop_at="1MB", show=False)
    with monitor, pytest.raises(memload.MemoryStopError):
        monitor.mark(1)


def test_warnings_that_filters_make_errors_end_the_loop_or_the_block():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        full = memload.Monitor(interval=60, warn_at="1MB", show=False)
        with pytest.raises(memload.MemoryWarning, match="warn_at=1 MB"), full:
            list(memload.FastLoader(rows(4)))
        with pytest.raises(memload.MemoryWarning, match="warn_at=1 MB"), full:
            pass
        with pytest.raises(KeyError, match="mine"), full:
            raise KeyError("mine")
    assert threads() == []


def test_an_error_of_on_warn_becomes_a_warning_and_sampling_goes_on():
    called = []

    def on_warn(finding):
        called.append(finding)
        raise OSError("no route")

    _, said = watched(some_looks, warn_at="1MB", on_warn=on_warn)
    assert [finding.cause for finding in called] == ["limit"]
    assert len(said) == 2
    assert "on_warn failed; further failures are not reported: OSError: no route" in said[0]


@pytest.mark.parametrize("asks", [True, False], ids=["at the next batch", "at the end of the block"])
@pytest.mark.parametrize("marks", [{"warn_at": "1MB"}, {"warn_at": None, "stop_at": "1MB"}], ids=["warn", "stop"])
def test_on_warn_may_end_the_program_and_the_thread_goes_on_until_then(asks, marks):
    monitor = memload.Monitor(interval=0.01, show=False, on_warn=lambda finding: sys.exit(3), **marks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(SystemExit) as ended, monitor:
            until(lambda: monitor.findings and len(monitor.samples) > 5)
            if asks:
                next(iter(memload.FastLoader(rows(8), batch_size=2)))
                pytest.fail("the loop went on")
    assert ended.value.code == 3


def test_on_warn_cannot_stop_the_monitor_that_calls_it():
    begun = threading.Event()

    def grow(monitor):
        running.append(monitor)
        begun.set()
        held = [torch.ones(50_000_000)]
        until(lambda: monitor.findings or held.append(torch.ones(250_000)))  # the rest of the process may shrink
        some_looks(monitor)

    def on_warn(finding):
        if threading.current_thread() is not threading.main_thread():
            begun.wait(MOST_SECONDS)
            running[0].stop()

    running = []
    mark = watched()[0].samples[-1].held + 100_000_000
    _, said = watched(grow, warn_at=mark, on_warn=on_warn)
    assert any("RuntimeError: on_warn cannot stop the monitor" in text for text in said)


def test_shrink_lets_loaders_gather_one_batch_ahead_from_the_next_pass_on():
    loader = memload.FastLoader(rows(40), batch_size=4, depth=4)
    whole = loader.nbytes
    iterator = iter(loader)
    first = [next(iterator)["id"].tolist() for _ in range(3)]
    watched(warn_at="1MB", on_warn="shrink")
    assert loader.nbytes == pytest.approx(whole * 2 / 5, rel=0.01)
    assert first + [batch["id"].tolist() for batch in iterator] == torch.arange(40).view(10, 4).tolist()
    assert [batch["id"].tolist() for batch in loader] == torch.arange(40).view(10, 4).tolist()


def test_shrink_gives_memory_of_transforms_back_at_once_and_batches_stay_right():
    rows = torch.arange(32 << 20, dtype=torch.int32).view(torch.uint8).view(32, -1)
    options = memload.EngineOptions(threads=1, depth=1, transform_threads=1)
    wide, double = memload.from_arrays(x=rows), lambda batch: (batch["x"].float() - 1) * 2
    loader = memload.FastLoader(wide, 2, options=options, batch_transform=double)
    iterator, held = iter(loader), []
    before = private_bytes()
    for _ in range(12):
        batch = next(iterator)
    del batch
    wait_for_batches_ahead()
    held.append(private_bytes() - before)
    watched(warn_at="1MB", on_warn="shrink")
    held.append(private_bytes() - before)
    assert held[0] - held[1] > 24 << 20, "what a function worked with, and the loop let go"
    for number, batch in enumerate(iterator, 12):
        assert torch.equal(batch, (rows[2 * number : 2 * number + 2].float() - 1) * 2)


def test_shrink_halves_the_caches_of_datasets_and_the_rows_stay_right(tmp_path):
    memload.write(tmp_path / "set", {"x": torch.arange(512 * 4096).view(512, 4096).to(torch.int32)})
    dataset = memload.open(tmp_path / "set", tier="hybrid", cache_bytes="6MB")
    loader = memload.FastLoader(dataset, batch_size=64)

    def loop(monitor):
        whole.extend(batch["x"].clone() for batch in loader)
        until(lambda: monitor.samples[-1].cached > 4_000_000)
        held = [torch.ones(25_000_000)]
        until(lambda: monitor.findings or held.append(torch.ones(250_000)))  # the rest of the process may shrink
        held.clear()

    whole = []
    mark = watched()[0].samples[-1].held + 80_000_000
    monitor, _ = watched(loop, warn_at=mark, on_warn="shrink")
    assert [one.cause for one in monitor.findings] == ["limit"]
    assert monitor.samples[-1].cached <= 3_100_000
    assert all(torch.equal(a, batch["x"]) for a, batch in zip(whole, loader, strict=True))


def test_a_cache_that_fills_is_not_taken_for_a_leak(tmp_path):
    memload.write(tmp_path / "set", {"x": torch.zeros(64, 1 << 20, dtype=torch.uint8)})
    loader = memload.FastLoader(memload.open(tmp_path / "set", tier="hybrid", cache_bytes="64MB"), batch_size=4)
    with memload.Monitor(interval=60, warn_at=None, show=False) as monitor:
        iterator, begun = iter(loader), []
        for _ in range(12):
            next(iterator)
            begun.append((monitor._run._sampler.private(), monitor._run._sampler.caches.nbytes))
    assert begun[-1][1] - begun[3][1] >= 16 << 20
    assert abs(begun[-1][0] - begun[3][0]) < 8 << 20


def test_a_full_disk_is_warned_of_once_and_costs_only_the_log():
    _, (said,) = watched(some_looks, log="/dev/full")
    assert "writing /dev/full failed" in said
    assert "No space left" in said


def test_a_log_that_cannot_be_opened_is_told_at_once(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="file"):
        memload.Monitor(log=tmp_path / "file" / "mem.jsonl").start()
    assert threads() == []
    with memload.Monitor(log=tmp_path / "new" / "run" / "mem.jsonl", show=False):
        pass
    assert len(read_log(tmp_path / "new" / "run" / "mem.jsonl")) == 1


def test_the_log_and_its_plot_and_the_command_that_draws_it(tmp_path, capsys):
    log = tmp_path / "mem.jsonl"

    def loop(monitor):
        for _ in memload.FastLoader(rows(64), batch_size=4):
            time.sleep(0.005)

    monitor, _ = watched(loop, warn_at="1MB", log=log)
    (run,) = read_log(log)
    assert run.samples == monitor.samples
    assert [finding for _, finding in run.warnings] == monitor.findings
    assert run.summary["samples"] == len(run.samples)
    for path in (monitor.plot(tmp_path / "own"), tmp_path / "mem.png"):
        if path.name == "mem.png":
            assert cli.main(["monitor", "--plot", str(log)]) == 0
            assert capsys.readouterr().out.strip() == str(path)
        head = path.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert min(struct.unpack(">II", head[16:24])) > 300


def test_the_summary_is_printed_unless_it_is_not_wanted(capsys):
    with memload.Monitor(interval=60, warn_at=None):
        pass
    shown = capsys.readouterr().err
    assert "memory at its peak" in shown
    assert "of one core" in shown
    with memload.Monitor(interval=60, warn_at=None, show=False):
        pass
    assert capsys.readouterr().err == ""


def test_a_monitor_may_run_again_but_not_twice_at_once():
    monitor = memload.Monitor(interval=60, warn_at=None, show=False)
    for _ in range(2):
        with monitor:
            assert monitor.running
            with pytest.raises(RuntimeError, match="runs already"):
                monitor.start()
        assert not monitor.running
        assert len(monitor.samples) == 2
    monitor.stop()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"interval": 0}, ValueError, "at least 0.01; got 0"),
        ({"interval": "1"}, TypeError, "number of seconds"),
        ({"log": 3.5}, TypeError, "log is a path, .*; got float"),
        ({"log": ""}, ValueError, "such as \"mem.jsonl\", got '', which is a directory"),
        ({"log": [object()]}, TypeError, "log is a path, a TensorBoardLog"),
        ({"log": ["a", "b"]}, ValueError, "names 2 files"),
        ({"on_warn": "stop"}, ValueError, 'or "shrink"; got'),
        ({"on_warn": 3}, TypeError, "got int"),
        ({"empty_cache_every": 0}, ValueError, "at least 1"),
        ({"empty_cache_every": 1.5}, TypeError, "number of batches"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, error, message):
    with pytest.raises(error, match=message):
        memload.Monitor(**arguments)


def events_of(folder):
    """Scalars of TensorBoard's event files: records of a length, a checksum, a message of protobuf, a checksum."""
    from tensorboardX.proto.event_pb2 import Event

    for path in folder.glob("events.out.tfevents.*"):
        data = io.BytesIO(path.read_bytes())
        while head := data.read(12):
            event = Event.FromString(data.read(struct.unpack("<Q", head[:8])[0]))
            data.read(4)
            yield from ((value.tag, event.step, value.simple_value) for value in event.summary.value)


def test_tensorboard_gets_every_sample_at_its_step(tmp_path):
    with memload.Monitor(interval=60, log=[memload.TensorBoardLog(tmp_path), tmp_path / "log"], show=False) as monitor:
        monitor.mark(7, epoch=2)
    found = list(events_of(tmp_path))
    held = [(step, value) for tag, step, value in found if tag == "memory/held_gb"]
    assert held == [(s.step, pytest.approx(s.held / 1e9)) for s in monitor.samples]
    assert ("memory/epoch", 7, 2.0) in found


def test_a_logger_that_fails_is_warned_of_once_and_still_closed():
    class Broken:
        closed = False

        def add_scalar(self, *_, **__):
            raise ConnectionError("server gone")

        def flush(self):
            self.closed = True

    broken = Broken()
    _, (said,) = watched(some_looks, log=memload.TensorBoardLog(broken))
    assert "writing to TensorBoardLog failed" in said
    assert "server gone" in said
    assert broken.closed


@contextlib.contextmanager
def sleeper():
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as process:
        try:
            until(lambda: command_of(process.pid).endswith("sleep(600)"))  # exec has been done by then
            yield process
        finally:
            process.kill()


class KillsWhenShown(io.StringIO):
    """Standard output, which ends a process once its memory was shown."""

    def __init__(self, process):
        super().__init__()
        self.process = process

    def write(self, text):
        if "held" in text:
            self.process.kill()
            self.process.wait()
        return super().write(text)


def test_the_command_shows_another_process_until_it_ends():
    with sleeper() as process, contextlib.redirect_stdout(KillsWhenShown(process)) as shown:
        assert cli.main(["monitor", str(process.pid), "--interval", "0.05"]) == 0
    shown = shown.getvalue()
    assert shown.splitlines()[0].endswith("import time; time.sleep(600)")
    assert "held" in shown.splitlines()[1]
    assert f"process {process.pid} has ended" in shown
    assert "memory at its peak" in shown


def everything_from(master):
    """What was written to a terminal whose other end is closed, which passes it on when the kernel gets to it."""
    parts = []
    with contextlib.suppress(OSError):  # nothing is left
        while part := os.read(master, 1 << 16):
            parts.append(part)
    os.close(master)
    return b"".join(parts).decode()


def test_on_a_terminal_the_view_replaces_itself():
    master, slave = os.openpty()
    with sleeper() as process, os.fdopen(slave, "w") as terminal, contextlib.redirect_stdout(terminal):
        assert cli.main(["monitor", str(process.pid), "--interval", "0.05", "--count", "3"]) == 0
    screens = everything_from(master).split("\x1b[5F")  # back over the five lines of the screen before
    assert len(screens) == 3
    assert all("RSS" in screen and "PSS" in screen for screen in screens)


def test_the_command_says_what_it_cannot_show(capsys, tmp_path):
    assert cli.main(["monitor", "0"]) == 2
    assert "there is no process 0" in capsys.readouterr().err
    for arguments in ([], ["1", "--plot", "x"], ["1", "--interval", "0"], ["1", "--count", "0"]):
        assert cli.main(["monitor", *arguments]) == 2
    assert cli.main(["monitor", "--plot", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err


def test_loops_pay_for_nothing_while_no_monitor_runs():
    assert OBSERVERS.now == ()


WAITING = """
from waiting import until
def one_more_look(monitor):
    last = monitor.samples[-1].time
    until(lambda: monitor.samples[-1].time > last)
"""
PROGRAMS = {
    "leak": """
import time, warnings
import torch, memload
warnings.simplefilter("always")
loader, kept = memload.FastLoader(memload.from_arrays(x=torch.zeros(64, 1000)), batch_size=8), []
with memload.Monitor(interval=0.02, warn_at=None, show=False) as monitor:
    for epoch in range(8):
        for number, batch in enumerate(loader):
            if number % 2 == 0: one_more_look(monitor)
        kept.append(bytearray(20_000_000))
        kept[-1][::4096] = b"x" * len(kept[-1][::4096])
print([(one.cause, one.place) for one in monitor.findings])
print(monitor.findings[0].text)
""",
    "no leak": """
import time
import torch, memload
loader = memload.FastLoader(memload.from_arrays(x=torch.zeros(64, 1000)), batch_size=8)
with memload.Monitor(interval=0.02, warn_at=None, show=False) as monitor:
    for epoch in range(8):
        for number, batch in enumerate(loader):
            if number % 2 == 0: one_more_look(monitor)
            work = torch.ones(5_000_000)
        del work
print([(one.cause, one.place) for one in monitor.findings])
""",
    "graph": """
import warnings
import torch, memload
warnings.simplefilter("always")
torch.set_num_threads(1)
x, y = torch.randn(4000, 128), torch.randint(0, 10, (4000,))
loader = memload.FastLoader(memload.from_arrays(x=x, y=y).as_tuple("x", "y"), 64, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer, mean = torch.optim.AdamW(model.parameters()), torch.zeros(512)
with memload.Monitor(interval=0.05, warn_at=None, show=False) as monitor:
    for epoch in range(12):
        for number, (x, y) in enumerate(loader):
            if number % 32 == 0: one_more_look(monitor)
            hidden = model[1](model[0](x))
            mean = 0.9 * mean + 0.1 * hidden.mean(0)  # with its graph
            loss = torch.nn.functional.cross_entropy(model[2](hidden), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
print([(one.cause, one.place) for one in monitor.findings])
""",
    "holes": """
import ctypes
import numpy, torch, memload
ctypes.CDLL(None).mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD: all of them lie in the heap
blocks = [(numpy.empty(20_000_000, numpy.uint8), bytearray(5000)) for _ in range(8)]  # what is kept parts the holes
loader = memload.FastLoader(memload.from_arrays(x=torch.zeros(64, 1000)), batch_size=8)
with memload.Monitor(interval=0.02, warn_at=None, show=False) as monitor:
    for epoch in range(8):
        for number, batch in enumerate(loader):
            if number % 2 == 0: one_more_look(monitor)
        blocks[epoch][0].fill(1)
        blocks[epoch] = blocks[epoch][1]
print(monitor.samples[-1].held - monitor.samples[0].held > 100_000_000, [one.cause for one in monitor.findings])
""",
    "fork": """
import os, threading, time
import torch, memload
loader = memload.FastLoader(memload.from_arrays(x=torch.zeros(64, 1000)), batch_size=8)
with memload.Monitor(interval=0.01, warn_at=None, stop_at="1MB", log="fork.jsonl", show=False) as monitor:
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
        assert not monitor.running
        monitor.mark(5)
        assert len(list(loader)) == 8, "what is due is the parent's"
        with memload.Monitor(interval=0.01, warn_at=None, show=False) as own:
            until(lambda: len(own.samples) >= 3)
        assert own.summary.samples > 2
        raise SystemExit(7)  # through the parent's block
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    try:
        next(iter(loader))
    except memload.MemoryStopError:
        print("stopped")
from memload.monitoring.log import read_log
(run,) = read_log("fork.jsonl")
print(run.pid == os.getpid(), run.summary is not None)
os.remove("fork.jsonl")
""",
    "exit": """
import memload
memload.Monitor(interval=0.01).start()
""",
    "error": """
import memload
with memload.Monitor(interval=0.01, warn_at=None, show=False):
    raise LookupError("mine")
""",
    "cut": """
import os, resource, time, warnings
import memload
from memload.monitoring.log import read_log
warnings.simplefilter("always")
with memload.Monitor(interval=0.01, warn_at=None, log="cut.jsonl", show=False) as monitor:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))  # a line is cut in the middle there
    begun = len(monitor.samples)
    until(lambda: len(monitor.samples) >= begun + 20)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    until(lambda: len(monitor.samples) >= begun + 24)
(run,) = read_log("cut.jsonl")
os.remove("cut.jsonl")
times = [sample.time for sample in monitor.samples]
kept = [times.index(sample.time) for sample in run.samples]
print(kept[0], kept[-1] == len(times) - 1, len(kept) < len(times) - 5, run.summary is not None)
""",
    "workers": """
import time
import torch, memload
class Plain(torch.utils.data.Dataset):
    def __len__(self): return 80
    def __getitem__(self, index):
        return torch.zeros(10)
block = torch.ones(100_000_000)  # 400 MB, which forked workers share
with memload.Monitor(interval=0.05, warn_at=None, show=False) as monitor:
    for batch in memload.FastLoader(Plain(), batch_size=8, num_workers=2):
        until(lambda: monitor.samples[-1].processes == 3)  # which it looks for seldom; they live as long as the loop
        one_more_look(monitor)
print(max(s.processes for s in monitor.samples), len(monitor.samples) > 2)
print(max(s.held for s in monitor.samples) < 2 * 400_000_000 + min(s.held for s in monitor.samples) - 400_000_000)
""",
}


@pytest.fixture(scope="module")
def ended():
    return run_all({name: WAITING + code for name, code in PROGRAMS.items()})


def test_a_real_leak_from_epoch_to_epoch_is_found_in_a_fresh_process(ended):
    assert ended["leak"].status == 0, ended["leak"].err
    assert ended["leak"].out[0] == "[('leak', 'host')]"
    grown = float(ended["leak"].out[1].partition("grows by ")[2].partition(" MB")[0])
    assert 15 < grown < 25
    assert "MemoryWarning: host: memory grows by" in ended["leak"].err


def test_a_loop_that_takes_and_gives_back_the_same_each_step_is_left_in_peace(ended):
    assert (ended["no leak"].status, ended["no leak"].out) == (0, ["[]"]), ended["no leak"].err


def test_a_mean_that_keeps_its_graph_is_found_though_most_of_the_rise_is_holes_of_the_heap(ended):
    assert (ended["graph"].status, ended["graph"].out) == (0, ["[('leak', 'host')]"]), ended["graph"].err


def test_what_the_heap_has_free_between_kept_blocks_is_not_taken_for_a_leak(ended):
    assert (ended["holes"].status, ended["holes"].out) == (0, ["True []"]), ended["holes"].err


def test_a_forked_child_has_no_monitor_and_the_parent_keeps_its_own(ended):
    assert (ended["fork"].status, ended["fork"].out) == (0, ["7", "stopped", "True True"]), ended["fork"].err


def test_a_monitor_left_running_ends_with_the_interpreter_and_still_sums_up(ended):
    assert ended["exit"].status == 0
    assert "memory at its peak" in ended["exit"].err


def test_a_line_that_the_disk_cut_is_left_to_itself_and_the_log_goes_on_once_there_is_room(ended):
    assert ended["cut"].out == ["0 True True True"], ended["cut"].err
    assert ended["cut"].err.count("cut.jsonl failed; further failures are not reported: OSError: [Errno 27]") == 1


def test_an_error_in_the_block_comes_out_as_it_is(ended):
    assert ended["error"].status == 1
    assert ended["error"].err.strip().endswith("LookupError: mine")


def test_workers_are_counted_and_what_they_share_with_the_parent_once(ended):
    assert (ended["workers"].status, ended["workers"].out) == (0, ["3 True", "True"]), ended["workers"].err

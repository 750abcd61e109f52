"""Real loops that keep this or that, each in a process of its own: the monitor names what is kept, and nothing else.

All run at once: those that wait until the monitor looks leave the processor to the others.
"""

import json
import multiprocessing
import os

import pytest
import torch
from programs import Ahead, Program, begin_all
from waiting import until

import memload
from memload.monitoring.processes import Proportional, ResidentPages
from memload.monitoring.samples import Look
from memload.monitoring.shared_segments import SharedMemory, shared_memory

KEEPS = {  # what is kept of each step, and which causes are right
    "kept.append(x)": ["batches kept"],
    "kept.append(x[:1])": ["batches kept"],
    "transformed; kept.append(x)": ["batches kept"],
    "kept.append(y.sum() * (x.float() ** 2).sum() * y.sum())": ["results kept"],
    "kept.append(torch.ones(200_000) + y.detach().sum())": ["results kept"],
    "kept.append([float(k) for k in range(12_000)])": ["leak"],
    "kept.append(loss.item())": [],
    "kept.append(y.sum())": ["results kept"],  # some 20 MB in all
    "kept.append(y.sum()); del kept[:-32]": [],
    "transformed; kept.append(loss.item())": [],
    "workers; kept.append(x)": ["batches kept"],
    "hybrid; kept.append(loss.item())": [],
    "mapped; kept.append(loss.item())": [],
    "kept.append(float(torch.ones(1 << (12 + 10 * (count % 9 == 0))).sum()))": [],  # large and small ones in turn
}
LOOP = """
import json, sys
import numpy as np, torch, memload
from waiting import until
torch.set_num_threads(1)  # many such programs run at once
data = memload.from_arrays(x=torch.zeros(4_840, 32768, dtype=torch.uint8)).as_tuple("x")
net = torch.nn.Sequential(torch.nn.Linear(1024, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
keeps, kept, options = sys.argv[1], [], {}
how = keeps.partition("; ")[0]
if how == "transformed":
    options["batch_transform"] = lambda batch: (batch[0].float(),)
elif how == "workers":
    options["num_workers"] = 1
elif how == "hybrid":
    np.save(sys.argv[2], np.zeros((4_840, 32768), np.uint8))
    data = memload.open(sys.argv[2], tier="hybrid", cache_bytes=120_000_000, progress=False).as_tuple("data")
elif how == "mapped":
    data = data.map(lambda sample: (sample[0] + 1,)).cache("ram", progress=False)
step = compile(keeps.partition("; ")[2] or keeps, "keeps", "exec")
with memload.Monitor(interval=0.02, show=False, warn_at=None) as monitor:
    for count, (x,) in enumerate(memload.FastLoader(data, batch_size=8, **options)):
        y = net(x[:, :1024].float())
        loss = y.mean()
        loss.backward(retain_graph=True)
        net.zero_grad()
        exec(step)
        if count % 5 == 0:  # however busy the machine is, a look for each few steps
            seen = monitor.samples[-1].time
            until(lambda: monitor.samples[-1].time > seen)
        if monitor.findings or count == (2000 if "ones(200_000)" in keeps else 600):
            break
print(json.dumps([[one.cause, one.text] for one in monitor.findings]))
"""


STOCK = """
import json, sys, warnings
import torch, memload
from waiting import until
warnings.simplefilter("ignore")
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, row):
        return torch.full((1 << 20,), row % 256, dtype=torch.uint8)
kept, marks = [], sys.argv[1] == "marks"
each = 3 if marks else 2  # of the steps: with marks they are counted, and else the looks
batches = iter(torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2))
with memload.Monitor(interval=0.02, show=False, warn_at=None) as monitor:
    for _ in range(150):
        kept.append(next(batches))
        if marks:
            monitor.mark()
        if len(kept) % each == 0:  # it was looked at
            until(lambda: monitor.findings or monitor.samples[-1].received >= len(kept) << 22)
        if monitor.findings:
            break
    del batches
print(json.dumps([[one.cause, one.text] for one in monitor.findings]))
"""
STOCK_LOOPS = ["marks", "no marks"]


def begin(folder):
    rows, environment = str(folder / "rows.npy"), {"PYTHONWARNINGS": "ignore"}
    code = "import warnings; warnings.simplefilter('ignore')\n" + LOOP
    loops = {keeps: Program(code, (keeps, rows), environment) for keeps in KEEPS}
    return begin_all(loops | {how: Program(STOCK, (how,)) for how in STOCK_LOOPS}, ahead=folder)


LOOPS = Ahead(begin)


@pytest.fixture(scope="module")
def told():
    return {name: json.loads(one.out[-1]) if one.out else one.err for name, one in LOOPS.found.items()}


@pytest.mark.parametrize("keeps", list(KEEPS))
def test_what_a_loop_keeps_is_named_and_nothing_else(told, keeps):
    found = told[keeps]
    assert isinstance(found, list), found
    assert [cause for cause, _ in found] == KEEPS[keeps], found
    for _, text in found:
        assert ("graph: keep loss.item()" in text) == ("y.sum()" in keeps), text
        assert ("keeps batches" in text) == ("append(x" in keeps), text
        assert ("list of numbers" in text) == ("float(k)" in keeps), text


@pytest.mark.parametrize("how", STOCK_LOOPS)
def test_batches_of_stock_workers_that_a_loop_keeps_are_named_with_marks_or_without(told, how):
    found = told[how]
    assert isinstance(found, list), found
    assert [cause for cause, _ in found] == ["batches kept"], found
    assert "the loop keeps batches" in found[0][1]
    assert "orker processes hand batches over" in found[0][1]


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, row):
        return torch.full((1 << 20,), row, dtype=torch.uint8)


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_batches_on_their_way_from_stock_workers_are_held_and_stop_the_loop(strategy):
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        with memload.Monitor(interval=60, warn_at=None, show=False) as before_all:
            held = before_all.latest.held
        batches = iter(torch.utils.data.DataLoader(Rows(), batch_size=16, num_workers=1, prefetch_factor=3))
        first = next(batches)
        monitor = memload.Monitor(interval=0.01, warn_at=None, stop_at=held + 40_000_000, show=False)
        with pytest.raises(memload.MemoryStopError), monitor:
            while True:  # until the worker has three batches on their way, which nobody has mapped
                monitor.mark()
                if monitor.latest.shared > 40 << 20:
                    monitor.mark()
        assert monitor.latest.shared >= first.nbytes
        assert monitor.latest.held >= monitor.latest.shared
        workers = [worker.pid for worker in multiprocessing.active_children()]
        until(lambda: shared_memory([os.getpid(), *workers]).nbytes > first.nbytes)
        seen = shared_memory([os.getpid(), *workers])
        assert first.nbytes <= seen.received < seen.nbytes, "what is on its way is not received"
        del batches
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


def test_a_segment_counts_once_whoever_has_it_open_or_mapped(tmp_path):
    folder = tmp_path / "shm"
    folder.mkdir()
    (folder / "torch_7_1").write_bytes(b"x" * 8192)
    (folder / "other").write_bytes(b"x" * 8192)
    for pid in (7, 8):
        (tmp_path / "proc" / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "fd" / "3").symlink_to(folder / "torch_7_1")
        (tmp_path / "proc" / str(pid) / "maps").write_text("7f00-9f00 rw-s 00000000 00:99 5 /memfd:x (deleted)\n")
    once = (folder / "torch_7_1").stat().st_blocks * 512
    (tmp_path / "proc" / "8" / "fd" / "4").symlink_to(folder / "other")
    seen = shared_memory([7, 8, 9], tmp_path / "proc", folder)
    assert seen == SharedMemory(2 * once + 0x2000, received=0x2000)


def test_shared_memory_that_nobody_has_touched_is_held():
    look = Look(Proportional(900, 700, 100), {1: ResidentPages(600, 500)}, shared=100)
    assert look.held_now({1: ResidentPages(0, 500)}, shared=400) == 600 + 400
    assert look.held_now({1: ResidentPages(0, 500)}, shared=100) == 700


def test_held_is_never_below_the_shared_memory_in_it():
    look = Look(Proportional(900, 700, 400), {1: ResidentPages(600, 500)}, shared=100)
    assert look.held_now({1: ResidentPages(0, 0)}, shared=209) == 300 + 209, "300 are rows that ranks share"
    assert look.held_now({1: ResidentPages(0, 500)}, shared=0) == 600, "what was handed back since the look is gone"

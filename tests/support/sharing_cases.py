"""What two processes do that share rows, each a function of its rank and the group's size, which prints what it saw."""

import functools
import gc
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from children import in_fork
from programs import Program
from same_rows import batches, same
from torch.utils.data import DistributedSampler
from waiting import MOST_SECONDS

import memload
from memload.device import node_sharing
from memload.device.group_loading import loaded_by_group
from memload.device.node_memory import Exported, HostNodeMemory

POISON = 0xA5


class SimulatedNodeMemory(HostNodeMemory):
    """RAM that has no content after it was freed, so that a reader of freed memory sees it.

    Args:
        full: whether there is no memory.
    """

    def __init__(self, full=False):
        self.full, self.freed = full, 0

    def export(self, nbytes):
        if self.full:
            raise memload.DeviceError("there is no memory left")
        made = super().export(nbytes)
        made.memory.fill_(POISON)
        return Exported(made.memory, made.handle, functools.partial(self._freed, made))

    def _freed(self, made):
        made.memory.fill_(POISON)
        made.free()
        self.freed += 1


def recording(seed=0, rows=97):
    random = torch.Generator().manual_seed(seed)
    stim = torch.randint(0, 160, (rows, 5, 7), dtype=torch.uint8, generator=random)  # no poison among them
    return memload.from_arrays(stim=stim, robs=torch.rand(rows, 300, generator=random), number=torch.arange(rows))


def shared(ds, nbytes, weights=None, memory=None):
    group = torch.distributed.group.WORLD
    return replace(ds, fields=loaded_by_group(ds.fields, memory or SimulatedNodeMemory(), nbytes, weights, group))


def told(error, act):
    try:
        act()
    except error as raised:
        return str(raised)
    return "nothing was raised"


def same_batches(rank, size):
    local = recording()
    cast = {"stim": memload.Cast(torch.bfloat16, norm_removed=True)}
    found = []
    for nbytes, weights in ((None, None), (20_000, None), (20_000, torch.arange(97.0)), (1400, None)):
        parts = shared(local, nbytes, weights)
        found.append(same(batches(parts, shuffle=True, cast=cast), batches(local, shuffle=True, cast=cast)))
        lags = [one.select(range(3, 90, 2)).with_lags(stim=range(3)) for one in (parts, local)]
        found.append(same(*(batches(one, shuffle=True) for one in lags)))
    sampler = DistributedSampler(parts, size, rank, seed=4)
    mine = [row for batch in memload.FastLoader(parts, 8, sampler=sampler) for row in batch["number"].tolist()]
    return {"same": all(found), "rows": mine, "says": str(parts)}


def placed_once(_rank, _size):
    parts = shared(recording(), 20_000)
    column = parts.fields["robs"].column
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:memload" in line]
    held = [len(table) for table in column.on_devices], len(column.memory.table)
    torch.distributed.barrier()
    return {"files": sorted({line[4] for line in maps}), "rows": held}


def dropped_in_any_order(rank, _size):
    memory, seen = SimulatedNodeMemory(), []
    for first in (0, 1):
        local = recording(first)
        parts = shared(local, 20_000, memory=memory)
        if rank == first:
            del parts
            gc.collect()
            seen.append([node_sharing.free_unread(), memory.freed])
        torch.distributed.barrier()
        if rank != first:
            seen.append(same(batches(parts), batches(local)))
            del parts
            gc.collect()
        torch.distributed.barrier()
        seen.append([node_sharing.free_unread(), memory.freed])
        torch.distributed.barrier()
    return seen


def refused(rank, _size):
    memory = SimulatedNodeMemory(full=rank == 1)
    found = [
        told(ValueError, lambda: shared(recording(rows=97 + rank), None)),
        told(ValueError, lambda: shared(recording(), 20_000 + rank)),
        told(memload.DeviceError, lambda: shared(recording(), None, memory=memory)),
        told(ValueError, lambda: shared(recording(), 3)),
    ]
    other = [
        told(ValueError, lambda: shared(recording().select(range(rank, 96, 2)), None)),
        told(ValueError, lambda: shared(recording(seed=rank), None)),
        told(ValueError, lambda: shared(recording(rows=3), 3000, [[1, 2, 1], [2, 0, 2]][rank])),
    ]
    group = torch.distributed.group.WORLD
    nowhere = ["cpu", "cuda:99"][rank]
    other.append(told(memload.DeviceError, lambda: memload.to_device(recording(), nowhere, bytes=20_000, group=group)))
    gc.collect()
    return {"said": found, "other": other, "freed": memory.freed, "kept": node_sharing.free_unread()}


def failed_while_loading(rank, _size):
    """Whether a load that fails in one process leaves no memory, while its error is held."""
    before, local = _memory_files(), recording()
    with pytest.raises(memload.DeviceError) as held:
        shared(local, 20_000, memory=_NotOpened(fails=rank == 1))
    torch.distributed.barrier()  # the other process has closed what is this one's
    node_sharing.free_unread()
    left = _memory_files() - before
    return [left, "is not to be opened" in str(held.value)]


class _NotOpened(SimulatedNodeMemory):
    """Memory of which one process cannot open that of the other."""

    def __init__(self, fails):
        super().__init__()
        self.fails = fails

    def open(self, handle, nbytes):
        if self.fails:
            raise memload.DeviceError("this memory is not to be opened")
        return super().open(handle, nbytes)


def _memory_files():
    links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum("memfd:memload" in str(link) for link in links)


def forked(_rank, _size):
    parts = shared(recording(), 20_000)
    status = in_fork(lambda: told(memload.DeviceError, lambda: parts[0]).count("forked") or os._exit(1))
    torch.distributed.barrier()
    return [status, same(parts[0], recording()[0])]


def reader_killed(rank, _size):
    memory = SimulatedNodeMemory()
    parts = shared(recording(), 20_000, memory=memory)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    guard = parts.fields["stim"].column.share._guard
    while guard.is_read():
        time.sleep(0.01)
    del parts
    gc.collect()
    return [node_sharing.free_unread(), memory.freed]


def owner_leaves_first(rank, _size, folder):
    node_sharing._PATIENCE = MOST_SECONDS
    local, leaving = recording(), Path(folder, "leaving")
    keep = shared(local, 20_000)
    keepers.append(keep)
    if rank == 0:
        leaving.touch()
        return True
    while not leaving.exists():
        pass
    return all(same(batches(keep), batches(local)) for _ in range(20))


def on_one_gpu(rank, _size):
    local, device = recording(), torch.device("cuda", 0)
    torch.cuda.set_device(device)
    parts = memload.to_device(local, device, bytes=20_000, group=torch.distributed.group.WORLD, progress=False)
    cast = {"stim": memload.Cast(torch.bfloat16, norm_removed=True)}
    found = [
        _same_on(parts, local, shuffle=True, cast=cast),
        _same_on(parts.with_lags(stim=range(3)), local.with_lags(stim=range(3))),
    ]
    torch.distributed.barrier()
    if rank == 0:
        del parts
        gc.collect()
        found.append(node_sharing.free_unread() == 1)
    torch.distributed.barrier()
    if rank == 1:
        found.append(_same_on(parts, local))
        del parts
        gc.collect()
    torch.distributed.barrier()
    return [*found, node_sharing.free_unread() == 0]


def _same_on(parts, local, **options):
    there = [{name: value.cpu() for name, value in batch.items()} for batch in batches(parts, **options)]
    return same(there, batches(local, **options))


keepers = []


def programs(folder, *names):
    """Return what each of two processes runs, by rank."""
    code = "import sharing_cases; sharing_cases.main({rank}, 2, {folder!r}, *{names!r})"
    alone = {"GLOO_SOCKET_IFNAME": "lo"}  # the machine may have no network
    return {
        str(rank): Program(code.format(rank=rank, folder=str(folder), names=names), environment=alone)
        for rank in range(2)
    }


def main(rank, size, folder, *names):
    """Run the cases of these names, and print what each saw."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    for name in names:
        case = globals()[name]
        more = (folder,) if name == "owner_leaves_first" else ()
        print(json.dumps(case(rank, size, *more)), flush=True)

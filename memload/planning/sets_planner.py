"""Plans several data sets together: the tiers of all under one limit, and one account of their loaders.

sets -> a Placement of each -> settled together -> loaders: one of all, or one of each -> lines of each set -> Plan
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from memload.engine.tiers.choosing import CACHED_SHARE, RAM_SHARE
from memload.engine.tiers.tier import LEAST_CACHE_BYTES, Tier
from memload.planning.account import Account, Line
from memload.planning.accounts import (
    Sizes,
    disk_account,
    free_beside,
    gpu_account,
    loader_ram,
    ram_account,
    sets_that_fit,
    stock_account,
)
from memload.planning.gpu_account import LIBRARIES, Steps, Training, fragmentation_line
from memload.planning.loader_bytes import LoaderBytes
from memload.planning.machine import Machine
from memload.planning.placement import IN_RAM, Placement
from memload.planning.request import Request
from memload.planning.result import Plan, SetPlan
from memload.planning.sets import Sets, settings_of

OF_ROWS = ("rows in RAM", "cache of rows", "page tables", "page cache", "read buffers", "chunks", "rows on the GPU")
"""Lines of the rows of a data set, whichever loader reads them."""
OF_LOADER = ("loader", "transformed batches", "transforms at work", "batches", "samples", "worker processes")
"""Lines of a loader."""

T = TypeVar("T")


class SetsPlanner:
    """Plans requests of the same data sets that differ only in settings; a training step is computed once for each."""

    def __init__(self) -> None:
        self._counted: dict[tuple[Any, ...], Any] = {}
        self._steps: dict[tuple[Any, ...], Steps] = {}

    def __call__(self, request: Request) -> Plan:
        """Return the plan of several data sets, without alternatives."""
        sets = request.sets
        assert sets is not None
        imported = frozenset(sys.modules).intersection(LIBRARIES)  # before anything here imports them
        parts = _by_set(sets, lambda name: _request_of(request, sets, name))
        placements = _by_set(sets, lambda name: _named(name, Placement.of, parts[name]))
        files = [file for one in placements.values() for file in one.files]
        machine = Machine.of(request.ram, request.gpu, request.disk, files, request.processes)
        run = _Run.of(request, sets, parts, placements)
        trained, in_ram = self._trained(run, machine, imported)
        each = sum(line.predicted for line in in_ram)
        free, own = max(0, run.free(machine) - request.processes * each), run.own(machine)
        own = own and replace(own, left=max(0, own.left - each))
        settled = settled_together(placements, free, own, machine.disk or 0, request.processes)
        run = _Run.of(request, sets, parts, settled)
        return run.plan(machine, () if request.trains_on_cpu else trained, in_ram)

    def _trained(
        self, run: _Run, machine: Machine, imported: frozenset[str]
    ) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
        """Return the lines of models with the loader whose batches need most, where they are trained and in RAM."""
        found: list[tuple[Training, tuple[Line, ...]]] = []
        for name, (request, sizes) in run.loaders.items():
            training = Training.of(request, sizes.sample, sizes.spread)
            if training is None:
                return (), ()
            of_batch = (name, request.batch_size, isinstance(training.sample, str))
            key = (*of_batch, training.precision, training.accumulate > 1, training.strategy)
            if key not in self._counted:
                self._counted[key] = training.counted(steps=self._steps.setdefault(of_batch, {}))
            found.append((training, training.lines(self._counted[key])))
        most, lines = max(
            found, key=lambda one: (not all(line.known for line in one[1]), sum(line.predicted for line in one[1]))
        )
        return lines, most.ram_lines(lines, is_here=machine.ram_is_here, imported=imported)


@dataclass(frozen=True)
class _Run:
    """The parts of a run over several data sets.

    Attributes:
        request: the arguments of the plan.
        parts: the request of each data set.
        placements: the rows of each.
        loaders: the request and the sizes of each loader by the name of its data set; "" for one of all.
        whole: the placement of all rows together, for lines that are there once.
    """

    request: Request
    parts: Mapping[str, Request]
    placements: Mapping[str, Placement]
    loaders: Mapping[str, tuple[Request, Sizes]]
    whole: Placement

    @classmethod
    def of(
        cls, request: Request, sets: Sets, parts: Mapping[str, Request], placements: Mapping[str, Placement]
    ) -> _Run:
        whole = _whole(placements)
        if not sets.joined:
            loaders = {name: (parts[name], _named(name, Sizes.of, parts[name], placements[name])) for name in parts}
            return cls(request, parts, placements, loaders, whole)
        first = next(iter(parts.values()))
        if any(part.batch_size != first.batch_size for part in parts.values()):
            raise ValueError("one loader mixes these data sets, so batch_size is one number: rows of all of them")
        dataset = sets.as_read({name: one.dataset for name, one in placements.items()})
        joined = replace(first, data=dataset, tier=None, ram_dtype=None, cache_bytes=None, loader=request.loader)
        return cls(request, parts, placements, {"": (joined, Sizes.of(joined, replace(whole, dataset=dataset)))}, whole)

    def free(self, machine: Machine) -> int:
        """Return the bytes of RAM that all loaders leave for rows."""
        loaders = self.request.processes * sum(loader_ram(sizes) for _, sizes in self.loaders.values())
        return free_beside(loaders, machine, self.request.processes)

    def own(self, machine: Machine) -> Any:
        """Return the limit of a single process, with the bytes that its loaders leave; None without one."""
        loaders = sum(loader_ram(sizes) for _, sizes in self.loaders.values())
        return machine.own and replace(machine.own, left=max(0, machine.own.left - loaders))

    def plan(self, machine: Machine, trained: tuple[Line, ...], in_ram: tuple[Line, ...]) -> Plan:
        """Return the plan, with the lines of models on the GPU and in RAM."""
        ram = self._ram(machine, in_ram)
        gpu = self._gpu(machine, trained) if self._uses_gpu else None
        disks = {name: disk_account(one, machine) for name, one in self.placements.items()}
        on_disk = [line for name, one in disks.items() if one for line in _labelled(name, one.lines)]
        disk = Account("disk", tuple(on_disk), machine.disk) if on_disk else None
        tiers = {one.tier for one in self.placements.values()}
        reasons = [f"{name} {one.reason}" for name, one in self.placements.items() if one.reason]
        return Plan(
            data=_sum(self.loaders, self.placements),
            tier=tiers.pop() if len(tiers) == 1 else None,
            tier_reason="; ".join(reasons),
            processes=self.request.processes,
            machine=machine,
            ram=ram,
            stock=self._stock(machine, in_ram),
            gpu=gpu,
            disk=disk,
            sets=sets_that_fit(self.whole, ram, gpu, disk),
            by_set={name: self._set(name) for name in self.placements},
        )

    def _set(self, name: str) -> SetPlan:
        placement, (_, sizes) = self.placements[name], self.loaders.get(name) or self.loaders[""]
        rows = len(placement.dataset)
        return SetPlan(
            rows=rows,
            stored_bytes=placement.stored_bytes,
            tier=placement.tier,
            cache_bytes=(placement.cache_bytes or 0) if placement.tier is Tier.HYBRID else 0,
            ram_dtype=dict(self.parts[name].ram_casts) if placement.tier in IN_RAM else {},
            tier_reason=placement.reason,
            loader=None if "" in self.loaders else sizes.loader,
        )

    @property
    def _uses_gpu(self) -> bool:
        return any(part.uses_gpu for part in self.parts.values())

    def _ram(self, machine: Machine, trained: tuple[Line, ...]) -> Account:
        first = next(iter(self.loaders.values()))
        once = ram_account(first[0], self.whole, first[1], machine, trained)
        lines: list[Line] = []
        for name, (request, sizes) in self.loaders.items():
            placement = self.placements.get(name, self.whole)
            account = ram_account(request, placement, sizes, machine, ())
            lines += _labelled(name, _only(account, OF_LOADER))
        for name, placement in self.placements.items():
            _, sizes = self.loaders.get(name) or self.loaders[""]
            account = ram_account(self.parts[name], placement, sizes, machine, ())
            lines += _labelled(name, _only(account, OF_ROWS))
        lines += [line for line in once.lines if line.name not in (*OF_LOADER, *OF_ROWS)]
        return replace(once, lines=tuple(lines))

    def _stock(self, machine: Machine, trained: tuple[Line, ...]) -> Account:
        lines: list[Line] = []
        once: Account | None = None
        for name, (request, sizes) in self.loaders.items():
            once = stock_account(request, self.whole, sizes, machine, trained)
            lines += _labelled(name, _only(once, OF_LOADER))
        for name, placement in self.placements.items():
            if placement.tier in IN_RAM:
                nbytes = placement.held_bytes * placement.copies(self.request.processes)
                lines.append(Line("rows in RAM", nbytes, of=name))
        assert once is not None
        lines += [line for line in once.lines if line.name not in (*OF_LOADER, *OF_ROWS)]
        return replace(once, lines=tuple(lines))

    def _gpu(self, machine: Machine, training: tuple[Line, ...]) -> Account:
        lines: list[Line] = []
        once: Account | None = None
        for name, placement in self.placements.items():
            request, sizes = self.loaders.get(name) or self.loaders[""]
            once = gpu_account(replace(request, tier=placement.tier), placement, sizes, machine, training)
            lines += _labelled(name, _only(once, OF_ROWS))
            if name in self.loaders:
                lines += _labelled(name, _only(once, OF_LOADER))
        assert once is not None
        if "" in self.loaders:
            lines += _only(once, OF_LOADER)
        shared = [line for line in once.lines if line.name not in (*OF_LOADER, *OF_ROWS, "fragmentation")]
        lines = [*shared[:1], *lines, *shared[1:]]  # the context first
        return replace(once, lines=(*lines, fragmentation_line(tuple(lines))))


def settled_together(
    placements: Mapping[str, Placement], free: int, own: Any, free_disk: int, processes: int
) -> dict[str, Placement]:
    """Return the placements with the tiers that "auto" chooses for them under one limit, and the sizes of caches.

    Sets whose tier is given take their memory first. Then come the others: those that a tier in RAM spares work for
    every batch (they are cast or decoded), then the smaller before the larger, since a byte that is kept saves as much
    reading in one set as in another, and a cache suits what is left of a large set. Each takes from the free bytes what
    `choose` would ask for it alone: its bytes in RAM / `RAM_SHARE`, in the page cache / `CACHED_SHARE`. Sets behind a
    cache divide `RAM_SHARE` of what is left in proportion to their sizes.
    """
    settled: dict[str, Placement] = {}
    left = float(free)

    def take(name: str, placement: Placement) -> None:
        nonlocal left
        settled[name] = placement
        left = max(0.0, left - _claim(placement, placements[name].tier is Tier.AUTO, processes))

    automatic = [name for name, one in placements.items() if one.tier is Tier.AUTO]
    for name, one in placements.items():
        if one.tier is not Tier.AUTO and one.cache_bytes is not None:
            take(name, one)
    for name in sorted(automatic, key=lambda name: _urgency(placements[name])):
        limit = own and replace(own, left=max(0, own.left - _private(settled.values())))
        chosen = _named(name, placements[name].settled, int(left), free_disk, processes, limit)
        if chosen.tier is Tier.HYBRID:
            settled[name] = chosen
        else:
            take(name, chosen)
    caches = [n for n in placements if n not in settled or (n in automatic and settled[n].tier is Tier.HYBRID)]
    whole = sum(placements[name].once_bytes for name in caches)
    each = left / processes
    if own is not None:
        each = min(each, max(0, own.left - _private(one for n, one in settled.items() if n not in caches)))
    for name in caches:
        one = settled.get(name) or placements[name]
        most = one.once_bytes + one.once_bytes // 8 + LEAST_CACHE_BYTES
        cache = max(LEAST_CACHE_BYTES, min(int(RAM_SHARE * each * one.once_bytes / max(1, whole)), most))
        settled[name] = replace(one, cache_bytes=cache)
    return {name: settled[name] for name in placements}


def _urgency(placement: Placement) -> tuple[bool, int]:
    decoded = any(field.stored.decoded_bytes for field in getattr(placement.dataset, "fields", {}).values())
    return not (placement.casts or decoded or placement.results is not None), placement.once_bytes


def _claim(placement: Placement, automatic: bool, processes: int) -> float:
    """Return the free bytes that a placement takes from the sets that are placed after it."""
    tier = placement.tier
    if tier in IN_RAM:
        return placement.held_bytes * placement.copies(processes) / (RAM_SHARE if automatic else 1)
    if tier is Tier.HYBRID:
        return (placement.cache_bytes or 0) * processes
    return placement.mapped_bytes / CACHED_SHARE if tier is Tier.MMAP else 0


def _private(placements: Iterable[Placement]) -> int:
    return sum(one.held_bytes if one.tier in IN_RAM else one.cache_bytes or 0 for one in placements)


def _request_of(request: Request, sets: Sets, name: str) -> Request:
    """Return the request for one data set."""
    given = {key: getattr(request, key) for key in ("batch_size", "tier", "ram_dtype", "cache_bytes")}
    found: Request = _named(
        name, replace, request, data=sets.members[name], **settings_of(name, sets, given, request.loader)
    )
    return found


def _by_set(sets: Sets, make: Any) -> dict[str, Any]:
    return {name: make(name) for name in sets.members}


def _named(name: str, function: Any, *args: Any, **arguments: Any) -> Any:
    """Call a function; its errors begin with the name of the data set."""
    try:
        return function(*args, **arguments)
    except (TypeError, ValueError) as error:
        raise type(error)(f"data set {name!r}: {error}") from None


def _labelled(name: str, lines: Iterable[Line]) -> Iterator[Line]:
    return (replace(line, of=name) for line in lines)


def _only(account: Account, names: tuple[str, ...]) -> list[Line]:
    return [line for line in account.lines if line.name in names]


def _whole(placements: Mapping[str, Placement]) -> Placement:
    """Return the placement of all rows together, as rows of mapped files."""
    each = list(placements.values())

    def total(name: str) -> int:
        return sum(getattr(one, name) for one in each)

    return replace(
        each[0],
        tier=Tier.MMAP,
        stored_bytes=total("stored_bytes"),
        once_bytes=total("once_bytes"),
        held_bytes=total("held_bytes"),
        cache_bytes=0,
        files=tuple(file for one in each for file in one.files),
        file_bytes=total("file_bytes"),
        array_bytes=total("array_bytes"),
        planned=all(one.planned for one in each),
        casts=False,
        results=None,
        written_bytes=total("written_bytes"),
        reason="",
        past_bytes=total("past_bytes"),
    )


def _sum(loaders: Mapping[str, tuple[Request, Sizes]], placements: Mapping[str, Placement]) -> LoaderBytes:
    """Return the bytes of all loaders together; of the rows of a batch, too, for a batch of each."""
    each = [sizes.loader for _, sizes in loaders.values()]
    names = ("rows", "batch_rows", "batch_bytes", "made_bytes", "work_bytes", "slot_bytes", "nbytes", "plan_bytes")
    sums = {name: sum(getattr(one, name) for one in each) for name in (*names, "device_bytes", "threads")}
    stored = sum(one.stored_bytes for one in placements.values())
    return LoaderBytes(stored_bytes=stored, slots=max(one.slots for one in each), **sums)

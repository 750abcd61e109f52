"""`Plan`, the result of memload.plan: figures to compute with, and a table to read."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from memload.columns.html_tables import html_table
from memload.engine.tiers.tier import Tier
from memload.planning.account import Account, Line, rows_of
from memload.planning.loader_bytes import LoaderBytes
from memload.planning.machine import Machine
from memload.planning.network import Network
from memload.sizes import format_size

MARGIN = 0.1
"""The share added to the prediction in `Plan.mem`; tests hold predictions to 10 %."""


@dataclass(frozen=True)
class SetPlan:
    """One of several data sets of a plan.

    Attributes:
        rows: its rows.
        stored_bytes: bytes of all rows, as they are stored.
        tier: the tier that keeps them.
        cache_bytes: the bytes of its cache of the tier "hybrid"; 0 on other tiers.
        ram_dtype: what its fields are cast to when they are loaded into RAM.
        tier_reason: the reason for the choice of tier="auto"; empty if the tier was given.
        loader: the bytes of its own loader; None if one loader reads all data sets.
    """

    rows: int
    stored_bytes: int
    tier: Tier
    cache_bytes: int
    ram_dtype: Mapping[str, Any]
    tier_reason: str
    loader: LoaderBytes | None

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of ``with_tier`` that place the data set as it is planned."""
        cache = {"cache_bytes": self.cache_bytes} if self.tier is Tier.HYBRID else {}
        casts = {"ram_dtype": dict(self.ram_dtype)} if self.ram_dtype else {}
        return {"tier": str(self.tier), **cache, **casts}


@dataclass(frozen=True, repr=False)
class Plan:
    """The predicted memory of a run, made by `memload.plan`; ``print`` shows it as a table.

    Attributes:
        data: bytes per row, per batch and per slot.
        tier: the tier that keeps the rows; None if data sets differ in it, see `by_set`.
        tier_reason: the reason for the choice of tier="auto", in a sentence; empty if the tier was given.
        processes: the number of processes on this machine.
        machine: the bytes that may be used.
        ram: the account of RAM, for all processes together.
        stock: the account of RAM for torch's DataLoader with the same settings.
        gpu: the account of one GPU; None if nothing is put there.
        disk: the account of the disk; None if the data are there already.
        sets: how many such datasets would fit beside all other items, by "RAM", "GPU" and "disk".
        notes: what else to know about these settings, in sentences.
        ways_out: if something does not fit, settings that do fit, each with its figures.
        by_set: if several data sets are planned, each by name; `data` has the sums of all loaders then.
        network: the bytes that an epoch fetches from stores; None if no row lies in one, or several sets are planned.
    """

    data: LoaderBytes
    tier: Tier | None
    tier_reason: str
    processes: int
    machine: Machine
    ram: Account
    stock: Account
    gpu: Account | None
    disk: Account | None
    sets: Mapping[str, int]
    ways_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    by_set: Mapping[str, SetPlan] = field(default_factory=dict)
    network: Network | None = None

    @property
    def accounts(self) -> tuple[Account, ...]:
        """The accounts of RAM, GPU and disk; without those that are None."""
        return tuple(account for account in (self.ram, self.gpu, self.disk) if account is not None)

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines of RAM, GPU and disk."""
        return tuple(itertools.chain.from_iterable(account.lines for account in self.accounts))

    @property
    def fits(self) -> bool:
        """Whether all of it fits; memory and disk whose free space is unknown count as fitting."""
        return all(account.fits is not False for account in self.accounts)

    @property
    def mem(self) -> str:
        """The option for a batch scheduler, such as ``--mem=12G``: the prediction plus a tenth, in GiB."""
        return f"--mem={_gibibytes(self.ram.predicted * (1 + MARGIN))}G"

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        beside: Mapping[str, Plan] | None = None,
        log: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Draw bars of RAM, GPU and disk by cause, beside the free bytes; or the log of a run over this prediction.

        No display is needed, and pyplot's figures stay as they are. RAM has a bar for torch's DataLoader as well,
        unless other plans are drawn. Memory that gives way, such as the page cache, is an outline.

        Args:
            path: the file to write; its ending is the format, ".png" if it has none. None: nothing is written.
            name: the name of this plan in the figure; default: its tier, or those of its data sets.
            beside: other plans by name, which get bars of their own.
            log: the log of a `memload.Monitor`, as its ``log=``. Its last run is drawn over time: RAM as the log's
                ``held``, each GPU, and for data that are yet to be written the disk space taken since it began.

        Returns:
            A ``matplotlib.figure.Figure``.

        Raises:
            ImportError: matplotlib is not installed; the extra `monitor` brings it.
            ValueError: `log` and `beside` are both given, or another plan has this plan's name.
            FileNotFoundError, FormatError: there is no such log, or no sample in it.

        Example:
            >>> import memload
            >>> volumes = memload.DatasetShape(3_000, {"betas": ("float32", (150, 150, 100))})
            >>> mapped, loaded = (memload.plan(volumes, 32, tier=tier, ram="64GB") for tier in ("mmap", "ram"))
            >>> figure = mapped.plot(name="mapped", beside={"in RAM": loaded})
            >>> [axes.get_title(loc="left") for axes in figure.axes]
            ['RAM', 'disk']
        """
        from memload.planning.plots import plot_over_log, plot_plans

        name = self._name if name is None else name
        if log is not None:
            if beside:
                raise ValueError("a log is drawn over one plan: leave beside= out, or log=")
            return plot_over_log(self, log, name, path)
        if name in (beside or {}):
            raise ValueError(f"two plans have the name {name!r}: give this one another by name=")
        return plot_plans({name: self, **(beside or {})}, path)

    @property
    def _name(self) -> str:
        if self.tier is not None:
            return str(self.tier)
        tiers = dict.fromkeys(str(one.tier) for one in self.by_set.values())
        by_tier = {tier: [name for name, one in self.by_set.items() if str(one.tier) == tier] for tier in tiers}
        names = {tier: ", ".join(each) if len(each) < 3 else f"{len(each)} sets" for tier, each in by_tier.items()}
        return "\n".join(f"{names[tier]}: {tier}" for tier in tiers)

    def __repr__(self) -> str:
        return "\n".join(self._text())

    def _repr_html_(self) -> str:
        """Return the accounts as a table, which notebooks show."""
        rows = [(name.replace("  ", "\u2003", 1), *rest) for name, *rest in self._rows()]
        title = "; ".join(self._sizes())
        return html_table(title, ("", "predicted", "free", ""), rows, self._notes())

    def _text(self) -> Iterator[str]:
        yield from self._sizes()
        yield from _table([("", "predicted", "free", ""), *self._rows()])
        yield from self._notes()

    def _notes(self) -> Iterator[str]:
        if self.tier_reason:
            yield f"Chosen: {self.tier_reason}."
        if self.sets:
            yield f"Such data sets that fit: {', '.join(f'{place} {count:,}' for place, count in self.sets.items())}."
        yield f"Under Slurm, ask for {self.mem}{self._more_for_the_cache()}."
        for note in (*self.notes, *([str(self.network)] if self.network else [])):
            yield f"{note[0].upper()}{note[1:]}"
        if self.ways_out:
            yield "Refused. What fits:"
            yield from (f"  - {way}" for way in self.ways_out)

    def _sizes(self) -> Iterator[str]:
        """Yield the sizes of rows and batches, for each data set."""
        data, joined = self.data, False
        for name, one in self.by_set.items():
            row_bytes, joined = one.stored_bytes // max(1, one.rows), one.loader is None
            batches = "" if one.loader is None else f"; {_batches_of(one.loader)}"
            yield (
                f"{name}: {one.rows:,} rows of {format_size(row_bytes)}, {format_size(one.stored_bytes)} in all, "
                f'tier "{one.tier}"{batches}'
            )
        if joined:
            yield f"One loader of all: {_batches_of(data)}"
        elif not self.by_set:
            rows = f"{data.rows:,} rows of {format_size(data.row_bytes)}, {format_size(data.stored_bytes)} in all"
            yield f"{rows}; {_batches_of(data)}"

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        for account in (self.ram, self.stock, self.gpu, self.disk):
            if account is not None:
                yield from rows_of(account)

    def _more_for_the_cache(self) -> str:
        cache = sum(line.predicted for line in self.ram.lines if not line.counted)
        if not cache:
            return ""
        whole = _gibibytes(self.ram.predicted * (1 + MARGIN) + cache)
        if f"--mem={whole}G" == self.mem:
            return ""
        return f"; with --mem={whole}G the page cache can hold the whole data set"


def _batches_of(data: LoaderBytes) -> str:
    batches = f"batches of {data.batch_rows:,} rows, {format_size(data.batch_bytes)}"
    return f"{batches}; slots of {format_size(data.slot_bytes)}"


def _gibibytes(nbytes: float) -> int:
    return math.ceil(nbytes / 2**30)


def _table(rows: list[tuple[str, str, str, str]]) -> Iterator[str]:
    first = max(len(name) for name, *_ in rows)
    second = max(10, *(len(predicted) for _, predicted, *_ in rows))
    for name, predicted, free, note in rows:
        yield f"{name:<{first}}  {predicted:>{second}}  {free:>9}  {note}".rstrip()

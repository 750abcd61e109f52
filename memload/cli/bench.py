"""`memload bench`: the ceiling of this machine, and the share of it that FastLoader reaches.

The ceiling does the same gather and cast as the loader, with the same number of threads, into four reused huge-page
buffers, and nothing else: no queue, no Python, no tensors. It is native code of its own (`csrc/bench/ceiling.h`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import memload
from memload import _core
from memload.casts.native import image_shape
from memload.casts.rule import Affine, Cast, native_arithmetic
from memload.cli.bench_report import BenchLine, chart, page, write_page
from memload.cli.charts import check_plot, save
from memload.cli.doctor import facts
from memload.cli.measure import Epoch, Spread, in_turn, machine, memcpy_gb_per_second, ratio, run_epoch
from memload.cli.options import stated
from memload.cli.output import answer, check_folder_of
from memload.columns.fields import AnyColumn
from memload.dataset.dataset import Dataset
from memload.dtypes import code_of
from memload.engine.readers import resolve
from memload.engine.request import MOST
from memload.loader.fast_loader import FastLoader
from memload.memory.budget import default_threads, last_level_cache
from memload.monitoring.plots import new_figure, with_ending
from memload.progress import Bar, bar
from memload.sizes import counted, format_size

Casts = Mapping[str, Cast]

Crop = tuple[int, int, int, NDArray[np.int64]]
"""What is read of rows, such as the lines of images that are cropped: the bytes of a run, the bytes from one run to the
next, the number of runs, and where the first begins in each planned row, in bytes."""

VARIANTS: dict[str, torch.dtype | None] = {"raw": None, "f32": torch.float32, "bf16": torch.bfloat16}

_IMAGE = (425, 425, 3)
_LEAST_BYTES, _LEAST_BATCHES = 64_000_000, 8  # below these the start of a pass takes a part of it that counts
_BAR_AFTER = 1.0  # seconds


class GatherCeiling:
    """The highest rate at which this machine can gather and cast given rows.

    Args:
        dataset: the dataset of the rows. Files must not be truncated meanwhile, since nothing guards the reads.
        rows: the row numbers in order, int64 (N,); an incomplete last batch is left out.
        batch_size: rows per batch.
        threads: threads that gather, each a fixed part of every batch.
        cast: casts by field name; other fields are copied.
        isa: an instruction set of `_core.isas()`; empty for the best.
        crops: what is read of the rows of a field, by field name; of other fields all is read.

    Raises:
        ValueError: there is no whole batch, a cast is not implemented, or rows are not one run of bytes each.
        IndexError: a row number is out of range, or a crop is not within its row.
    """

    def __init__(
        self,
        dataset: Dataset,
        rows: NDArray[np.int64],
        batch_size: int,
        *,
        threads: int | None = None,
        cast: Casts | None = None,
        isa: str = "",
        crops: Mapping[str, Crop] | None = None,
    ) -> None:
        specs = resolve(dataset).with_casts(cast or {}).pipeline_fields()
        cut = [(crops or {}).get(name) for name in dataset.fields]
        fields = [
            (_plain(column), _without_constants(rule), crop)
            for (column, rule, *_), crop in zip(specs, cut, strict=True)
        ]
        self.threads = threads or default_threads()
        self._native = _core.Ceiling(fields, rows, batch_size, self.threads, isa)

    @property
    def batch_bytes(self) -> int:
        """Bytes written for one batch."""
        return int(self._native.batch_bytes)

    def run(self, *, streaming: bool, batches: int = 0) -> Epoch:
        """Gather `batches` batches (0: all rows once) with streaming or with ordinary stores."""
        return _epoch(self._native.run(batches, streaming))

    def written(self, batch: int, field: int) -> bytes:
        """Return the bytes that the last run wrote for a field of a batch; four batches later they are overwritten."""
        return self._native.written(batch, field)

    def run_fresh(self) -> Epoch:
        """Gather the first batch into untouched huge pages, as any loader must once."""
        return _epoch(self._native.run_fresh())

    def best(self, batches: int = 0) -> Epoch:
        """Return the faster of one run with streaming stores and one with ordinary stores."""
        return max((self.run(streaming=s, batches=batches) for s in (False, True)), key=lambda epoch: epoch.rate)


class PlainImages:
    """The rate of plain C++ loops that crop, mirror, lay out and cast images, with as many threads and reused memory.

    Nothing but the compiler makes vector code of them (`csrc/bench/plain_images.h`). Results have the bits of the cast.

    Args:
        dataset: a dataset with a field of uint8 images, each (H, W, 1), (H, W, 3) or (H, W, 4).
        rows: the row numbers in order, int64 (N,); an incomplete last batch is left out.
        batch_size: rows per batch.
        cast: the cast of one field, by its name, with `channels=-1`, to float32 or bfloat16.
        draws: for `augment=` of the cast, the place and flip of each planned row's crop: (top, left, flipped), int64
            (N, 3). None: nothing is cropped or mirrored.
        threads: threads that work, each on a fixed part of every batch.

    Raises:
        ValueError: there is no whole batch, rows are not such images, or the loops cannot do such a cast.
        IndexError: a row number is out of range.

    Example:
        >>> images = memload.from_arrays(stim=np.zeros((8, 32, 32, 3), np.uint8))
        >>> cast = memload.Cast(torch.float32, channels=-1, layout="NCHW", scale=1 / 255)
        >>> PlainImages(images, np.arange(8), 4, cast={"stim": cast}, threads=1).run().samples
        8
    """

    def __init__(
        self,
        dataset: Dataset,
        rows: NDArray[np.int64],
        batch_size: int,
        *,
        cast: Casts,
        draws: NDArray[np.int64] | None = None,
        threads: int | None = None,
    ) -> None:
        ((name, rule),) = cast.items()
        field = dataset.fields[name]
        if field.dtype != torch.uint8 or rule.channels != -1:
            raise ValueError("plain loops take uint8 images whose channels come last: give a cast with channels=-1")
        if draws is None:
            draws = np.zeros((len(rows), 3), np.int64)
        shape = image_shape(rule, field.item_shape)
        constants = _constants(rule, field.item_shape)
        self.threads = threads or default_threads()
        self._native = _core.PlainImages(
            _plain(field.column), rows, draws.ravel(), shape, code_of(rule.dtype), constants, batch_size, self.threads
        )

    @property
    def batch_bytes(self) -> int:
        """Bytes written for one batch."""
        return int(self._native.batch_bytes)

    def run(self, *, batches: int = 0) -> Epoch:
        """Make `batches` batches (0: all rows once)."""
        return _epoch(self._native.run(batches))

    def written(self, batch: int) -> bytes:
        """Return the bytes that the last run wrote for a batch; four batches later they are overwritten."""
        return self._native.written(batch)


def _constants(rule: Cast, shape: Sequence[int]) -> Affine:
    """Return the constants of a cast of uint8; those of `norm_removed` are a mean and a deviation."""
    how = native_arithmetic(rule, torch.uint8, shape)
    if isinstance(how, bool):
        return 1, 1.0, -0.0, [127.0 if how else 0.0], [255.0 if how else 1.0]
    return how


def _plain(column: AnyColumn) -> _core.Column:
    if not isinstance(column, _core.Column):
        raise ValueError("the ceiling needs rows that are one run of bytes each: give it the frames or shards")
    return column


def _epoch(run: dict[str, Any]) -> Epoch:
    first = run["seconds"] / run["batches"]
    return Epoch(run["seconds"], first, run["cpu_seconds"], run["batches"], run["rows"], run["bytes_out"])


def _without_constants(rule: tuple[str, str, Any] | None) -> tuple[str, str, bool] | None:
    if rule is not None and not isinstance(rule[2], bool):
        raise ValueError("the ceiling of casts with scale=, offset=, mean= or std= is not measured: leave these out")
    return rule


def casts_of(dataset: Dataset, dtype: torch.dtype | None) -> dict[str, Cast]:
    """Return casts of every uint8 field to normalised `dtype`; None casts nothing."""
    if dtype is None:
        return {}
    return {
        name: Cast(dtype, norm_removed=True)
        for name, field in dataset.fields.items()
        if field.dtype == torch.uint8 and field.kind != "text"
    }


def with_ceiling(dataset: Dataset) -> list[str]:
    """Return the fields that have a ceiling: those whose rows are one run of bytes each."""
    columns = {name: field.column for name, field in dataset.fields.items()}
    return [name for name, column in columns.items() if isinstance(column, _core.Column) and column.row_bytes]


def shuffled(length: int, seed: int = 0) -> NDArray[np.int64]:
    """Return the rows 0 to length - 1, shuffled."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed)).numpy()


def images(nbytes: int) -> Dataset:
    """Return random images of 425 x 425 x 3 in memory, about `nbytes` in all."""
    rows = max(1, nbytes // int(np.prod(_IMAGE)))
    noise = np.random.default_rng(0).integers(0, 256, (rows, *_IMAGE), np.uint8)
    return memload.from_arrays(stim=noise)


def check_options(args: argparse.Namespace) -> None:
    """Raise ValueError or FileNotFoundError for wrong options before minutes of measuring."""
    for name in ("rounds", "threads", "batch_size", "size"):
        given = getattr(args, name)
        if given is not None and given < 1:
            raise ValueError(f"--{name.replace('_', '-')} is a whole number from 1, not {given}")
    if args.threads is not None and args.threads > MOST:
        raise ValueError(f"--threads is a whole number from 1 to {MOST}, not {args.threads}")
    check_plot(args.plot, "--plot")
    check_folder_of(args.report, "--report")
    if args.report and args.report.suffix not in (".html", ".htm"):
        raise ValueError(f"--report {args.report}: the page is HTML; end its name in .html")
    if args.report:
        new_figure(1, 1)  # raises where matplotlib is missing


def run(args: argparse.Namespace) -> int:
    """Run `memload bench`."""
    check_options(args)
    how = stated(args)
    if how and args.path is None:
        raise ValueError(f"--{next(iter(how)).replace('_', '-')} says how a path is opened, and none is given")
    dataset = images(args.size * 1_000_000) if args.path is None else memload.open(args.path, **how)
    threads = args.threads or default_threads()
    bounded = with_ceiling(dataset)
    check_rows(dataset, bounded, args)
    small = too_small(dataset, args.batch_size)
    lines, whole, memcpy = _measured(dataset, bounded, threads, args)
    text = _told(dataset, bounded, lines, whole)
    text.append(
        f"\nPlain memcpy: {memcpy:.1f} GB/s with {counted(threads, 'thread')}, batches of "
        f"{counted(args.batch_size, 'row')}."
    )
    text += [small] if small else []
    figures = {"machine": machine(), "threads": threads, "batch_size": args.batch_size, "memcpy": memcpy}
    figures |= {"drawn": args.plot and with_ending(args.plot), "report": args.report}
    text += _drawn(dataset, lines, whole, args)
    answer(args, "\n".join(text), {**figures, "lines": lines, "all_fields": whole, "too_small": small})
    return 0


def too_small(dataset: Dataset, batch_size: int) -> str | None:
    """Return why figures of a dataset say little about a large one, and what it would take; None if they do not.

    Starting a pass takes a fixed time, and rows that fit into the processor's cache are not read from memory.
    """
    batches, least = len(dataset) // batch_size, max(_LEAST_BYTES, 2 * (last_level_cache() or 0))
    if batches >= _LEAST_BATCHES and dataset.nbytes >= least:
        return None
    smaller = " or a smaller --batch-size" if batches < _LEAST_BATCHES else ""
    return (
        f"Too small to measure: {counted(batches, 'batch', 'batches')}, {format_size(dataset.nbytes)} in all, so that "
        f"the start of a pass and the processor's cache count; give a set of {format_size(least)} and "
        f"{_LEAST_BATCHES} batches or more{smaller}."
    )


def _measured(
    dataset: Dataset, bounded: Sequence[str], threads: int, args: argparse.Namespace
) -> tuple[list[BenchLine], list[BenchLine], float]:
    """Return the lines of the fields with a ceiling, those of all fields if some have none, and the rate of memcpy."""
    all_fields = len(bounded) < len(dataset.fields) and not args.ceiling
    runs = (args.rounds + 1) * len(VARIANTS) * ((3 - args.ceiling) * bool(bounded) + all_fields)
    lines, whole = [], []
    with bar("bench", runs, None, unit=" runs", after=_BAR_AFTER) as shown:
        if bounded:
            part = dataset if len(bounded) == len(dataset.fields) else dataset.as_tuple(*bounded)
            lines = [measure(name, part, dtype, threads, args, shown) for name, dtype in VARIANTS.items()]
        if all_fields:
            whole = [measure_whole(name, dataset, dtype, threads, args, shown) for name, dtype in VARIANTS.items()]
        return lines, whole, memcpy_gb_per_second(threads)


def _told(
    dataset: Dataset, bounded: Sequence[str], lines: Sequence[BenchLine], whole: Sequence[BenchLine]
) -> list[str]:
    text = []
    others = [f"{name} ({field.described})" for name, field in dataset.fields.items() if name not in bounded]
    if bounded and others:
        text.append(f"Fields with a ceiling: {', '.join(bounded)}.")
    if lines:
        text.append(table(lines))
    if others:
        text.append(f"Without a ceiling, since rows differ in length, are compressed or empty: {', '.join(others)}.")
    if whole:
        text.append(f"All fields:\n{table(whole)}")
    return text


def _drawn(
    dataset: Dataset, lines: Sequence[BenchLine], whole: Sequence[BenchLine], args: argparse.Namespace
) -> Iterator[str]:
    """Write the chart and the page that are asked for, and say where."""
    if not (args.plot or args.report):
        return
    figure = chart(lines, whole)
    if args.plot:
        yield f"Drawn: {save(figure, args.plot)}"
    if args.report:
        about = [(fact.name, fact.value, fact.meaning) for fact in facts(Path())]
        write_page(args.report, page(dataset, figure, [*lines, *whole], about))
        yield f"Written: {args.report}"


def check_rows(dataset: Dataset, bounded: Sequence[str], args: argparse.Namespace) -> None:
    """Raise ValueError if there is nothing to measure."""
    if not len(dataset):
        raise ValueError(f"{args.path}: it has no rows, so there is nothing to measure: give a path that has some")
    if len(dataset) < args.batch_size:
        raise ValueError(
            f"the dataset has {counted(len(dataset), 'row')}, and a batch {args.batch_size}: give a smaller "
            "--batch-size"
        )
    if args.ceiling and not bounded:
        raise ValueError(
            "the ceiling needs rows that are one run of bytes each, and no field here has such rows: leave "
            "--ceiling out to measure FastLoader alone"
        )


def _loader(dataset: Dataset, casts: Casts, threads: int, args: argparse.Namespace) -> FastLoader[Any]:
    return FastLoader(
        dataset,
        args.batch_size,
        shuffle=True,
        drop_last=True,
        cast=casts,
        num_workers=threads,
        persistent_workers=True,  # keeps its slots between epochs, as the ceiling does
    )


def measure_whole(
    variant: str, dataset: Dataset, dtype: torch.dtype | None, threads: int, args: argparse.Namespace, shown: Bar
) -> BenchLine:
    """Run one variant with all fields, without a ceiling."""
    loader = _loader(dataset, casts_of(dataset, dtype), threads, args)
    contestants = {"loader": lambda: run_epoch(loader)}
    in_turn(contestants, 1, shown)  # warms up
    epochs = in_turn(contestants, args.rounds, shown)["loader"]
    rates = Spread.of(epoch.rate for epoch in epochs)
    return BenchLine(variant, None, None, Spread.of(epoch.gb_per_second for epoch in epochs).median, rates, None)


def measure(
    variant: str, dataset: Dataset, dtype: torch.dtype | None, threads: int, args: argparse.Namespace, shown: Bar
) -> BenchLine:
    """Run one variant in turn with the ceiling's two kinds of stores."""
    casts = casts_of(dataset, dtype)
    ceiling = GatherCeiling(dataset, shuffled(len(dataset)), args.batch_size, threads=threads, cast=casts, isa=args.isa)
    contestants: dict[str, Callable[[], Epoch]] = {
        "ordinary": lambda: ceiling.run(streaming=False),
        "streaming": lambda: ceiling.run(streaming=True),
    }
    if not args.ceiling:
        loader = _loader(dataset, casts, threads, args)
        contestants["loader"] = lambda: run_epoch(loader)
    in_turn(contestants, 1, shown)  # warms up
    epochs = in_turn(contestants, args.rounds, shown)
    rates = {name: [epoch.rate for epoch in runs] for name, runs in epochs.items()}
    best = [max(pair) for pair in zip(rates["ordinary"], rates["streaming"], strict=True)]
    row_bytes = ceiling.batch_bytes / args.batch_size
    return BenchLine(
        variant,
        Spread.of(rates["ordinary"]),
        Spread.of(rates["streaming"]),
        Spread.of(best).median * row_bytes / 1e9,
        Spread.of(rates["loader"]) if "loader" in rates else None,
        ratio(rates["loader"], best) if "loader" in rates else None,
    )


def table(lines: Sequence[BenchLine]) -> str:
    """Return the lines as text: samples/s, and FastLoader's share of the ceiling."""
    columns = {
        "ordinary": [_figure(line.ordinary, 12, 0) for line in lines],
        "streaming": [_figure(line.streaming, 12, 0) for line in lines],
        "GB/s": [f"{line.gb_per_second:8.2f}" for line in lines],
        "FastLoader": [_figure(line.loader, 12, 0) for line in lines],
        "share": [_figure(line.share, 8, 2) for line in lines],
    }
    shown = {head: cells for head, cells in columns.items() if any(cells)}
    widths = {head: max(map(len, cells)) for head, cells in shown.items()}
    text = [" " * 8 + "".join(f"{head:>{width}}" for head, width in widths.items())]
    text += [f"{line.variant:8}" + "".join(cells[k] for cells in shown.values()) for k, line in enumerate(lines)]
    return "\n".join(text)


def _figure(spread: Spread | None, width: int, digits: int) -> str:
    return "" if spread is None else f"{spread.median:{width},.{digits}f}"

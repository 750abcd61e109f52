"""`memload bench`: the ceiling of this machine, and what FastLoader reaches of it.

The ceiling does the same gather and cast as the loader, with the same number of threads, into four reused huge-page
buffers, and nothing else: no queue, no Python, no tensors. It is native code of its own (`csrc/bench/ceiling.h`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import memload
from memload import _core
from memload.casts.rule import Cast
from memload.commands.measure import Epoch, Spread, in_turn, machine, ratio, run_epoch
from memload.dataset import Dataset
from memload.engine.readers import resolve
from memload.fields import AnyColumn
from memload.loader import FastLoader
from memload.memory.budget import default_threads

Casts = Mapping[str, Cast]

VARIANTS: dict[str, torch.dtype | None] = {"raw": None, "f32": torch.float32, "bf16": torch.bfloat16}

_PICTURE = (425, 425, 3)
_COPY_BYTES = 256 << 20
_COPY_SECONDS = 0.5


class Ceiling:
    """The fastest that these planned rows can be gathered and cast here.

    Args:
        dataset: where the rows lie. Files must not be cut short meanwhile: nothing guards the reads.
        rows: the plan, int64 of shape (N,); whole batches are taken, a remainder is left out.
        batch_size: rows per batch.
        threads: threads that gather, each its own part of every batch.
        cast: what becomes of a field's elements, by field name; other fields are copied.
        isa: an instruction set of `_core.isas()`; empty for the best.

    Raises:
        ValueError: the plan holds no whole batch, a cast is not implemented, or rows are not one run of bytes each.
        IndexError: the plan names a row that is not there.
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
    ) -> None:
        specs = resolve(dataset).with_casts(cast or {}).pipeline_fields()
        fields = [(_plain(column), _without_constants(rule)) for column, rule, *_ in specs]
        self.threads = threads or default_threads()
        self._native = _core.Ceiling(fields, rows, batch_size, self.threads, isa)

    @property
    def batch_bytes(self) -> int:
        """Bytes written for one batch."""
        return int(self._native.batch_bytes)

    def run(self, *, streaming: bool, batches: int = 0) -> Epoch:
        """Gathers `batches` batches (0: the plan once) with streaming or with ordinary stores."""
        return _epoch(self._native.run(batches, streaming))

    def written(self, batch: int, field: int) -> bytes:
        """What a batch of the last run wrote for one field; overwritten four batches later."""
        return self._native.written(batch, field)

    def run_fresh(self) -> Epoch:
        """Gathers the first batch into huge pages that nobody has touched yet, as any loader must once."""
        return _epoch(self._native.run_fresh())

    def best(self, batches: int = 0) -> Epoch:
        """The faster of one run with streaming stores and one with ordinary stores."""
        return max((self.run(streaming=s, batches=batches) for s in (False, True)), key=lambda epoch: epoch.rate)


def _plain(column: AnyColumn) -> _core.Column:
    if not isinstance(column, _core.Column):
        raise ValueError("the ceiling is that of rows which are one run of bytes each; give it the frames or shards")
    return column


def _epoch(run: dict[str, Any]) -> Epoch:
    first = run["seconds"] / run["batches"]
    return Epoch(run["seconds"], first, run["cpu_seconds"], run["batches"], run["rows"], run["bytes_out"])


def memcpy_gb_per_second(threads: int, seconds: float = _COPY_SECONDS) -> float:
    """10^9 bytes per second that plain memcpy copies between huge-page buffers larger than the caches."""
    run = _core.bench_memcpy(_COPY_BYTES, threads, seconds)
    return float(run["bytes"] / run["seconds"] / 1e9)


def _without_constants(rule: tuple[str, str, Any] | None) -> tuple[str, str, bool] | None:
    if rule is not None and not isinstance(rule[2], bool):
        raise ValueError("the ceiling of casts with scale=, offset=, mean= or std= is not measured: leave these out")
    return rule


def casts_of(dataset: Dataset, dtype: torch.dtype | None) -> dict[str, Cast]:
    """Casts of every uint8 field to normalised `dtype`; None casts nothing."""
    if dtype is None:
        return {}
    return {
        name: Cast(dtype, norm_removed=True) for name, field in dataset.fields.items() if field.dtype == torch.uint8
    }


def shuffled(length: int, seed: int = 0) -> NDArray[np.int64]:
    """The rows 0 to length - 1, shuffled."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed)).numpy()


def pictures(nbytes: int) -> Dataset:
    """Random pictures of 425 x 425 x 3 in memory, about `nbytes` in all."""
    rows = max(1, nbytes // int(np.prod(_PICTURE)))
    noise = np.random.default_rng(0).integers(0, 256, (rows, *_PICTURE), np.uint8)
    return memload.from_arrays(stim=noise)


@dataclass(frozen=True)
class Line:
    """One variant: what the ceiling reached with either kind of store, and FastLoader's share of the better one."""

    variant: str
    ordinary: Spread
    streaming: Spread
    gb_per_second: float
    loader: Spread | None
    share: Spread | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `memload bench`."""
    parser.description = "Measure the ceiling of this machine, and what FastLoader reaches of it."
    parser.add_argument("path", nargs="?", help="a dataset that memload opens (default: random pictures in memory)")
    parser.add_argument("--ceiling", action="store_true", help="the ceiling alone, without FastLoader")
    parser.add_argument("--batch-size", type=int, default=32, help="rows per batch (default %(default)s)")
    parser.add_argument("--threads", type=int, help="threads that gather (default: the CPUs of this process)")
    parser.add_argument("--isa", default="", help="instruction set of the ceiling (default: the best)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in turn (default %(default)s)")
    parser.add_argument("--size", type=int, default=512, help="MB of random pictures (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures in FILE")


def check_options(args: argparse.Namespace) -> None:
    """Raise what would be found only after minutes of measuring."""
    for name in ("rounds", "threads", "batch_size", "size"):
        given = getattr(args, name)
        if given is not None and given < 1:
            raise ValueError(f"--{name.replace('_', '-')} is a number from 1, got {given}")
    check_folder_of(args.json)


def check_folder_of(file: Path | None) -> None:
    """Raise FileNotFoundError if there is no folder in which `file` could be made."""
    if file is not None and not file.absolute().parent.is_dir():
        raise FileNotFoundError(f"--json {file}: there is no folder {file.absolute().parent}")


def run(args: argparse.Namespace) -> int:
    """Runs `memload bench`."""
    check_options(args)
    dataset = memload.open(args.path) if args.path else pictures(args.size * 1_000_000)
    threads = args.threads or default_threads()
    lines = [measure(name, dataset, dtype, threads, args) for name, dtype in VARIANTS.items()]
    memcpy = memcpy_gb_per_second(threads)
    print(table(lines))
    print(f"\nPlain memcpy: {memcpy:.1f} GB/s with {threads} threads, batches of {args.batch_size} rows.")
    if args.json:
        figures = {"machine": machine(), "threads": threads, "batch_size": args.batch_size, "memcpy": memcpy}
        args.json.write_text(json.dumps({**figures, "lines": [asdict(line) for line in lines]}, indent=1))
    return 0


def measure(variant: str, dataset: Dataset, dtype: torch.dtype | None, threads: int, args: argparse.Namespace) -> Line:
    """Runs one variant in turn with the ceiling's two kinds of stores."""
    casts = casts_of(dataset, dtype)
    ceiling = Ceiling(dataset, shuffled(len(dataset)), args.batch_size, threads=threads, cast=casts, isa=args.isa)
    contestants: dict[str, Callable[[], Epoch]] = {
        "ordinary": lambda: ceiling.run(streaming=False),
        "streaming": lambda: ceiling.run(streaming=True),
    }
    if not args.ceiling:
        loader: FastLoader[Any] = FastLoader(
            dataset,
            args.batch_size,
            shuffle=True,
            drop_last=True,
            cast=casts,
            num_workers=threads,
            persistent_workers=True,  # keeps its slots between epochs, as the ceiling does
        )
        contestants["loader"] = lambda: run_epoch(loader)
    in_turn(contestants, 1)  # warms up
    epochs = in_turn(contestants, args.rounds)
    rates = {name: [epoch.rate for epoch in runs] for name, runs in epochs.items()}
    best = [max(pair) for pair in zip(rates["ordinary"], rates["streaming"], strict=True)]
    row_bytes = ceiling.batch_bytes / args.batch_size
    return Line(
        variant,
        Spread.of(rates["ordinary"]),
        Spread.of(rates["streaming"]),
        Spread.of(best).median * row_bytes / 1e9,
        Spread.of(rates["loader"]) if "loader" in rates else None,
        ratio(rates["loader"], best) if "loader" in rates else None,
    )


def table(lines: Sequence[Line]) -> str:
    """The lines as text: samples/s, and what FastLoader reaches of the ceiling."""
    loaders = f"{'FastLoader':>12}{'share':>8}" if any(line.loader for line in lines) else ""
    text = [f"{'':8}{'ordinary':>12}{'streaming':>12}{'GB/s':>8}{loaders}"]
    for line in lines:
        own = (
            "" if line.loader is None or line.share is None else f"{line.loader.median:12,.0f}{line.share.median:8.2f}"
        )
        rates = f"{line.ordinary.median:12,.0f}{line.streaming.median:12,.0f}{line.gb_per_second:8.2f}"
        text.append(f"{line.variant:8}{rates}{own}")
    return "\n".join(text)

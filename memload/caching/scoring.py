"""`memload.score` applies a function to a whole dataset, in chunks.

dataset -> FastLoader (chunk rows) -> device -> fn, in eval mode without gradients -> CPU -> tensor, or shards
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from memload.caching.computed import InMemory, OnDisk, Origin, rows_in, shard_writer
from memload.caching.derivation import key_of, name_of
from memload.caching.returned import Counts, Returned
from memload.casts.rule import casts_by_field
from memload.columns.numbers import is_whole
from memload.dataset.dataset import Dataset
from memload.dataset.opening import open as open_dataset
from memload.engine.iterators import one_pass
from memload.engine.transforms.captured import modules_used
from memload.errors import MemloadError, first_line
from memload.loader.fast_loader import FastLoader
from memload.nested import mapped
from memload.progress import Bar, bar

SINGLE_FIELD = "score"
"""The name of the field if the function returns one tensor."""

_OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
_HOW = {  # options that do not change the contents of batches
    *("num_workers", "pin_memory", "timeout", "multiprocessing_context", "generator", "prefetch_factor", "threads"),
    *("persistent_workers", "pin_memory_device", "in_order", "depth", "options"),
}


def score(
    fn: Callable[[Any], Any],
    ds: Any,
    chunk: int = 500,
    *,
    path: str | Path | None = None,
    device: torch.device | str | int | None = None,
    version: str | None = None,
    progress: bool | None = None,
    per: str | Mapping[str, str] | None = None,
    **loader: Any,
) -> Any:
    """Apply a function to every row of a dataset, in chunks and in the dataset's order, and return its results.

    It needs memory for a few chunks and the result. The function runs under ``torch.no_grad()``. The modules that it
    uses (the function itself, or those that its code refers to) are in eval mode meanwhile, and are restored.

    Args:
        fn: takes a batch of a FastLoader, and returns a tensor whose first axis counts the rows, such as (rows,) or
            (rows, classes). Results that differ in length are a list of tensors, one for each row, a `memload.Ragged`,
            or a nested tensor; texts are a list of str. For several results, it returns a dict of these by name. The
            result for a row must not depend on the other rows of the chunk.
        ds: any dataset with a length.
        chunk: how many rows the function gets at once. Larger chunks use a GPU better and take more of its memory.
        path: the directory of shards to write, for results that exceed RAM or are used again. The same call resumes
            an interrupted one, also with another `chunk`, and opens the results of a complete one.
        device: the device on which the function gets its batches; results are moved to the CPU.
        version: with a path, a text that identifies the function and all values that cannot be hashed. None: code and
            contents are hashed, including all weights.
        progress: whether to show a bar once it takes longer than a second; None shows it on a terminal.
        per: the unit that the first axis of the returned tensors counts: "graph" (or "row"), "node" or "edge", for all
            of them, or by name. Results for each node or edge of a batch of graphs are split by graph, with the batch's
            ``ptr``. None: rows; it must be given if a chunk has as many nodes as graphs.
        loader: further arguments of FastLoader, such as ``cast`` or ``collate_fn``; for graph datasets it is
            `memload.graph_collate` unless another is given.

    Returns:
        Without a path, the function's results for all rows, on the CPU; results that differ in length are a
        `memload.Ragged`. A tensor of one number for each row can be the weights of a `WeightedSampler`. With a path, a
        dataset; its field is named "score" if the function returns no dict. ``memload.zip(images=ds, teacher=scores)``
        joins it with the rows.

    Raises:
        RuntimeError: the function failed; the message names the rows, and the function's error is the cause.
        ValueError, TypeError: the function returned something else; or it cannot be hashed, and there is no version.
        FileExistsError: the path holds other data.
        MemoryError, DiskSpaceError: the result does not fit, with 1.2 times its bytes.

    Example:
        >>> import memload, torch
        >>> ds = memload.from_arrays(x=torch.tensor([[0.0, 2.0], [1.0, 1.0], [5.0, 1.0]]))
        >>> contrast = memload.score(lambda batch: batch["x"].std(dim=1), ds)
        >>> contrast
        tensor([1.4142, 0.0000, 2.8284])
        >>> sampler = memload.WeightedSampler(contrast)
    """
    chunks = _Chunks(fn, ds, chunk, device, Returned(per), loader)
    if path is None:
        kept = InMemory(len(chunks))
        with _shown(chunks, progress, 0) as shown, evaluating(fn):
            for rows in chunks.results(0, shown):
                kept.extend(rows)
        kept.let_differ(chunks.differing)
        made = kept.finish()
        return made[SINGLE_FIELD] if chunks.single else made
    with evaluating(fn):
        options = {name: value for name, value in loader.items() if name not in _HOW}
        if "cast" in options:  # a dtype and the plain cast to it are the same
            options["cast"] = casts_by_field(options["cast"])
        own = _own_collate(ds)
        if own is not None and options.get("collate_fn") is own:
            del options["collate_fn"]  # the default for this dataset
        options |= {} if per is None else {"per": per}
        origin = Origin(key_of("score", ds, [fn], version, progress, options), name_of(fn))
    target = Path(path)
    existing = Origin.of(target)
    if existing is not None and existing.key == origin.key:
        return open_dataset(target)
    if existing is not None:
        raise FileExistsError(
            f"{target}: has results of {existing.function} for other rows or of other code; remove it, or write to "
            "another path"
        )
    with evaluating(fn):
        _write(target, origin, chunks, progress)
    return open_dataset(target)


def _write(path: Path, origin: Origin, chunks: _Chunks, progress: bool | None) -> None:
    first = next(chunks.results(0, _Silent()))  # a resumed run needs it too, for the sizes of rows
    with shard_writer(path, origin, len(chunks), first, progress) as writer:
        taking, start = OnDisk(path, writer, len(chunks)), writer.rows_there
        if not start:
            taking.extend(first)
            start = rows_in(first)
        with _shown(chunks, progress, start) as shown:
            for rows in chunks.results(start, shown):
                taking.extend(rows)
        taking.let_differ(chunks.differing)


def _shown(chunks: _Chunks, progress: bool | None, done: int) -> contextlib.AbstractContextManager[Bar]:
    return bar("score", len(chunks), progress, done, unit=" rows")


class _Silent:
    def update(self, n: float) -> None:
        """Count nothing."""


class _Chunks:
    """The chunks of a dataset and the results of a function for them.

    Attributes:
        single: whether the function returns one tensor; known after the first chunk.
    """

    def __init__(
        self,
        fn: Callable[[Any], Any],
        ds: Any,
        chunk: int,
        device: torch.device | str | int | None,
        returned: Returned,
        options: Any,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"score needs a function of one batch, got {type(fn).__name__}")
        if isinstance(ds, DataLoader) or not hasattr(ds, "__len__") or not hasattr(ds, "__getitem__"):
            raise TypeError(f"score needs a dataset with a length, got {type(ds).__name__}")
        if not is_whole(chunk) or chunk < 1:
            raise ValueError(f"chunk must be a number of rows, at least 1; got {chunk!r}")
        if not len(ds):
            raise ValueError("the dataset has no rows to score")
        taken = [name for name in _OURS if name in options]
        if taken:
            raise TypeError(f"score reads all rows in order, chunk= rows at once: leave out {', '.join(taken)}")
        self._fn, self._ds, self._chunk, self.single, self._returned = fn, ds, int(chunk), False, returned
        target = None if device is None else _device(device)
        by_loader = target is not None and target.type == "cuda"  # the loader then copies ahead of the function
        own = _own_collate(ds)
        self._options = {
            "generator": torch.Generator(),
            **({} if own is None else {"collate_fn": own}),
            **options,
            **({"device": target} if by_loader else {}),
        }
        self._device = None if by_loader else target

    def __len__(self) -> int:
        return len(self._ds)

    @property
    def differing(self) -> set[str]:
        """The results so far whose later rows may differ in length."""
        return self._returned.differing

    def results(self, start: int, shown: Bar) -> Iterator[dict[str, Any]]:
        """Yield the results for the rows from `start` on, by field, on the CPU."""
        with one_pass(self._loader(start)) as batches:
            for number, batch in enumerate(batches):
                first = start + number * self._chunk
                stop = min(first + self._chunk, len(self))
                yield self._result(batch, first, stop)
                shown.update(stop - first)

    def _loader(self, start: int) -> FastLoader[Any]:
        rows = range(start, len(self))
        rest = self._ds
        if start:
            rest = rest.select(rows) if isinstance(rest, Dataset) else Subset(rest, rows)
        return FastLoader(rest, self._chunk, **self._options)

    def _result(self, batch: Any, first: int, stop: int) -> dict[str, Any]:
        where = f"rows {first:,} to {stop - 1:,}"
        counts = Counts(batch)  # the function may change the batch
        try:
            with torch.no_grad():
                made = self._fn(batch if self._device is None else moved(batch, self._device))
        except MemloadError:
            raise
        except Exception as error:
            smaller = "; a smaller chunk= takes less memory" if isinstance(error, torch.OutOfMemoryError) else ""
            raise RuntimeError(
                f"{where}: {name_of(self._fn)} raised {type(error).__name__}: {first_line(error)}{smaller}"
            ) from error
        self.single = not isinstance(made, Mapping)
        named = made if isinstance(made, Mapping) else {SINGLE_FIELD: made}
        return {name: self._returned.taken(name, value, stop - first, counts, where) for name, value in named.items()}


def _own_collate(ds: Any) -> Callable[..., Any] | None:
    """Return the collate function that the samples of a dataset need; None for the default."""
    return ds._collate_fn if isinstance(ds, Dataset) else None


def _device(given: Any) -> torch.device:
    try:
        return torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device={given!r} is no device of torch\'s, such as "cuda:1" or "cpu": {error}') from None


def moved(batch: Any, device: torch.device) -> Any:
    """Return a batch on a device: values with a method ``to`` are moved, also those inside of containers."""

    def moves(value: Any) -> bool:
        return hasattr(value, "to")

    return mapped(batch, lambda leaf: leaf.to(device, non_blocking=True) if moves(leaf) else leaf, moves)


@contextlib.contextmanager
def evaluating(fn: Any) -> Iterator[None]:
    """Put the modules that a function uses into eval mode within this context, then restore each submodule's mode."""
    used = modules_used(fn)
    before = {id(inner): (inner, inner.training) for module in used for inner in module.modules()}
    try:
        for module in used:
            module.eval()
        yield
    finally:
        for inner, training in before.values():
            inner.training = training

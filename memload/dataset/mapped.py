"""`MappedDataset`: a dataset that applies a function to each sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import Dataset, Subset, get_worker_info

from memload.columns.fields import TAG
from memload.columns.foreign_names import SaysInstead, instead_of_mapped
from memload.columns.ragged_samples import tagged
from memload.engine.gather_spec import GatherSpec, NotNative
from memload.engine.layout import Graphs
from memload.engine.mutation_guards import PartsGuard
from memload.engine.readers import answers_by, resolve
from memload.engine.tiers.tier import Tier
from memload.engine.transforms.captured import warn_of_seeding
from memload.engine.transforms.seeding import Drawing
from memload.kept_errors import name_of, note_place, note_row

if TYPE_CHECKING:
    import memload.dataset.dataset


@answers_by("fn", attributes=["base", "in_processes"])
class MappedDataset(SaysInstead, Dataset[Any]):
    """A dataset whose sample ``i`` is ``fn(base[i])``, made by ``ds.map(fn)`` or over any map-style dataset.

    If the base is native, a `FastLoader` gathers its rows natively and runs ``fn`` ahead of the loop in background
    threads. Elsewhere, as in a stock DataLoader, ``ds[i]`` calls ``fn`` directly. Both run it under
    ``torch.no_grad()``, so that samples never carry an autograd graph.

    If ``fn`` has a parameter named ``rng`` or ``generator``, it gets a numpy Generator or a torch.Generator that no
    other call uses. A `FastLoader` seeds it from (base seed, epoch, row); elsewhere the seed comes from torch's default
    generator.

    Args:
        base: a map-style dataset.
        fn: takes the sample ``base[i]``, which it may change, and returns a value that torch's default_collate accepts.
        in_processes: let the loader's ``num_workers`` processes call ``fn``, on torch's own machinery. This suits
            functions that are heavy in pure Python, since threads of one process run Python code one at a time.

    Raises:
        TypeError: ``fn`` is not callable, or ``base`` has no ``__len__`` or no ``__getitem__``.

    Example:
        >>> import memload, torch
        >>> ds = memload.from_arrays(x=torch.arange(4)).map(lambda sample: sample["x"] * 2)
        >>> [batch.tolist() for batch in memload.FastLoader(ds, batch_size=2)]
        [[0, 2], [4, 6]]
    """

    _instead_of = instead_of_mapped

    def __init__(self, base: Any, fn: Callable[[Any], Any], *, in_processes: bool = False) -> None:
        if not callable(fn):
            raise TypeError(f"map takes a function of one sample, got {type(fn).__name__}")
        if not hasattr(base, "__getitem__") or not hasattr(base, "__len__"):
            raise TypeError(f"map needs a dataset with a length and rows, got {type(base).__name__}")
        if not in_processes:
            warn_of_seeding(fn, "map:")
        self.base, self.in_processes = base, in_processes
        self._drawing = Drawing(fn)
        self._reason = ""

    @property
    def fn(self) -> Callable[..., Any]:
        """The function that each sample goes through."""
        return self._drawing.fn

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: Any) -> Any:
        sample = self.base[index]
        try:
            with torch.no_grad():
                return self._drawing(sample)
        except Exception as error:
            if get_worker_info() is None:
                note_place(error, f"at row {index} of the mapped dataset, in map({name_of(self.fn)})")
            else:
                note_row(error, index, name_of(self.fn))
            raise

    def map(self, fn: Callable[[Any], Any], *, in_processes: bool = False) -> MappedDataset:
        """Return a dataset that applies ``fn`` to the results of the functions so far; see ``Dataset.map``."""
        return MappedDataset(self, fn, in_processes=in_processes)

    def select(self, rows: Any) -> MappedDataset:
        """Return the mapped dataset of these rows of the base, in this order; see ``Dataset.select``."""
        return self._over(self.base.select(rows) if hasattr(self.base, "select") else Subset(self.base, list(rows)))

    def split(
        self, fraction: float | Sequence[float], seed: int | None = None, *, by: Any = None
    ) -> tuple[MappedDataset, ...]:
        """Return shuffled parts of the base without a common row, both mapped; see ``Dataset.split``.

        Raises:
            TypeError: the base has no ``split`` of its own; use torch.utils.data.random_split.
        """
        if not hasattr(self.base, "split"):
            raise TypeError(f"{type(self.base).__name__} has no split: use torch.utils.data.random_split")
        return tuple(map(self._over, self.base.split(fraction, seed, by=by)))

    def rename(self, names: Any) -> NoReturn:  # noqa: ARG002 - as of every dataset
        """Raise TypeError: the function names the fields of its results.

        Raises:
            TypeError: always; it says what to do instead.
        """
        raise TypeError(
            "rename: what the function of map() returns has the names that the function gives; return others there, or "
            "rename the dataset before it is mapped"
        )

    def with_tier(self, tier: Tier | str, **options: Any) -> MappedDataset:
        """Return the mapped dataset with the rows of its base kept on another tier; see ``Dataset.with_tier``.

        Functions run for every batch as before; `cache` stores their results.

        Raises:
            TypeError: the base has no tiers.
        """
        if not hasattr(self.base, "with_tier"):
            raise TypeError(
                f"the rows of {type(self.base).__name__} have no tiers of their own: those of memload.open do, and the "
                'parts of a join; .cache("ram") or .cache(path) keeps what functions make of any rows'
            )
        return MappedDataset(self.base.with_tier(tier, **options), self.fn, in_processes=self.in_processes)

    @property
    def tier(self) -> Tier | None:
        """The tier of the rows of the base; None if parts differ, or if it is unknown."""
        found = getattr(self.base, "tier", None)
        return found if isinstance(found, Tier) else None

    @property
    def tier_reason(self) -> str:
        """The reason why the tier "auto" stored no results; empty if "auto" was not asked for."""
        return self._reason or getattr(self.base, "tier_reason", "")

    def cache(
        self,
        where: str | Path | Tier,
        *,
        tier: Tier | str | None = None,
        version: str | None = None,
        progress: bool | None = None,
        **tier_options: Any,
    ) -> memload.dataset.dataset.Dataset | MappedDataset:
        """Compute every sample once, store the results, and return a dataset that reads them.

        Fields whose rows differ in length become ragged fields; samples of PyTorch Geometric's class ``Data`` become a
        `GraphDataset`. ``fn`` must not draw random numbers. A hash of the rows and the code identifies the results: it
        covers the files (their paths, sizes and modification times) or bytes of the base, and the functions' bytecode,
        constants, captured values and the global functions that they call. When any of these changes, results are
        computed anew beside the old ones; ``memload cache list`` and ``rm`` show and remove entries. The same call
        resumes an interrupted one, and waits while another process computes the same results. See docs/caching.md.

        Args:
            where: a directory for any number of such results, each in a directory of its own; "ram" keeps the results
                in the memory of this process; "auto" does so if they fit.
            tier: the tier on which results in a directory are read: "mmap" (the default), "direct", "hybrid" or "ram".
                "auto" follows the matrix of docs/tiers.md by the size of the results, free RAM and free disk, and gives
                its reason in ``tier_reason``. If the results fit nowhere, the method returns the mapped dataset with
                its rows on the tier that suits them, and functions run for every batch.
            version: a text that identifies the functions if they hold something that cannot be hashed, and the base if
                it cannot be identified otherwise. Change it whenever they change.
            progress: whether to show a bar once it takes longer than a second; None shows it on a terminal.
            tier_options: further arguments of the tier, such as ``cache_bytes=``; see ``Dataset.with_tier``.

        Raises:
            ValueError: a function draws random numbers, or gives another result when it is called again; slices start
                at random; or a function cannot be hashed, and there is no version. Or `where` is a tier that reads
                files, without a directory for them. Or rows cannot form one field: they differ in dtype, in their
                number of axes, or along two axes.
            TypeError: a sample is not made of tensors, arrays, numbers and texts.
            RuntimeError: a function failed; the message names the rows, and the function's error is the cause.
            DiskSpaceError, MemoryError: less than 1.2 times the bytes of all results are free.

        Example:
            >>> import memload, tempfile, torch
            >>> ds = memload.from_arrays(x=torch.arange(4)).map(lambda sample: {"square": sample["x"] ** 2})
            >>> cached = ds.cache(tempfile.mkdtemp())
            >>> cached[3]
            {'square': tensor(9)}
        """
        from memload.caching.map_cache import cached

        return cached(self, where, tier, version, progress, tier_options)

    def __memload_source__(self) -> GatherSpec:
        """Return the gather specification of the base with the function to call for each sample."""
        if self.in_processes:
            raise NotNative(
                "map(..., in_processes=True) asks for the num_workers processes of the stock machinery: "
                "leave it out to have the function called in threads."
            )
        if (reason := getattr(type(self.base), "_why_not_mapped", None)) is not None:
            raise NotNative(reason)
        base = resolve(self.base)
        if isinstance(base.layout, Graphs):
            raise NotNative(
                "Functions of single graphs are called by the stock machinery: give batch_transform= instead."
            )
        if base.tags not in ((), (TAG,)):
            raise NotNative(f"A member of what is mapped has a {TAG!r} of its own: map that member alone.")
        first = (_with_int_tag,) if base.tags and not base.maps else ()
        guards = (PartsGuard.of(lambda: (self.base, self.fn)), *base.guards)
        return replace(base, maps=(*first, *base.maps, self.fn), takes_lists=False, whole=False, guards=guards)

    def _because(self, reason: str) -> MappedDataset:
        """Return this dataset with `reason` as its `tier_reason`."""
        made = self._over(self.base)
        made._reason = reason
        return made

    def _over(self, base: Any) -> MappedDataset:
        made = MappedDataset(base, self.fn, in_processes=self.in_processes)
        made._reason = self._reason
        return made

    def __repr__(self) -> str:
        return f"{self.base!r}\n  {self._how}"

    def _repr_html_(self) -> str:
        """Return the table of what is mapped, which notebooks show, and the function below it."""
        below = getattr(self.base, "_repr_html_", lambda: f"<div>{escape(repr(self.base))}</div>")()
        return f"{below}<div>{escape(self._how)}</div>"

    @property
    def _how(self) -> str:
        name = getattr(self.fn, "__qualname__", None) or type(self.fn).__name__
        reason = f" ({self._reason})" if self._reason else ""
        return f"mapped by {name}{' in worker processes' if self.in_processes else ''}{reason}"


def _with_int_tag(sample: Mapping[str, Any]) -> Any:
    """Return a sample that was cut from a batch with its ``dataset_idx`` as an int, as the joined dataset has it."""
    return tagged(sample, int(sample[TAG]))

"""A dataset whose samples go through a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset, Subset

from memload.tiers.tier import Tier
from memload.transforms.seeding import Drawing

if TYPE_CHECKING:
    import memload.dataset


class MappedDataset(Dataset[Any]):
    """A dataset whose sample ``i`` is ``fn(base[i])``. Made by ``ds.map(fn)``, or directly over any map-style dataset.

    In a `FastLoader` whose base is read natively, rows are gathered natively and ``fn`` runs ahead of the loop in
    background threads, under ``torch.no_grad()``. Anywhere else, a stock DataLoader included, ``ds[i]`` calls it on the
    spot, under ``torch.no_grad()`` too, so that samples never carry an autograd graph.

    If ``fn`` has a parameter named ``rng`` or ``generator``, it is given a numpy Generator or a torch.Generator, which
    is its own during the call: in a `FastLoader` seeded from (base seed, epoch, row), elsewhere from torch's default
    generator.

    Args:
        base: a map-style dataset.
        fn: takes a sample as ``base[i]`` gives it, and may change it; returns what torch's default_collate takes.
        in_processes: let the loader's ``num_workers`` processes call ``fn``, on the stock machinery: for functions that
            are heavy in pure Python, of which one process runs only one at a time.

    Raises:
        TypeError: ``fn`` cannot be called, or ``base`` has no length or no rows.

    Example:
        >>> import memload, torch
        >>> ds = memload.from_arrays(x=torch.arange(4)).map(lambda sample: sample["x"] * 2)
        >>> [batch.tolist() for batch in memload.FastLoader(ds, batch_size=2)]
        [[0, 2], [4, 6]]
    """

    def __init__(self, base: Any, fn: Callable[..., Any], *, in_processes: bool = False) -> None:
        if not callable(fn):
            raise TypeError(f"map takes a function of one sample, got {type(fn).__name__}")
        if not hasattr(base, "__getitem__") or not hasattr(base, "__len__"):
            raise TypeError(f"map needs a dataset with a length and rows, got {type(base).__name__}")
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
        with torch.no_grad():
            return self._drawing(sample)

    def map(self, fn: Callable[..., Any], *, in_processes: bool = False) -> MappedDataset:
        """Return the dataset whose samples go through ``fn`` as well, after what they went through so far."""
        return MappedDataset(self, fn, in_processes=in_processes)

    def select(self, rows: Any) -> MappedDataset:
        """Return the mapped dataset of these rows of the base, in this order; see ``Dataset.select``."""
        return self._over(self.base.select(rows) if hasattr(self.base, "select") else Subset(self.base, list(rows)))

    def split(self, fraction: float, seed: int) -> tuple[MappedDataset, MappedDataset]:
        """Return two shuffled parts of the base without a common row, both mapped; see ``Dataset.split``.

        Raises:
            TypeError: the base has no ``split`` of its own; use torch.utils.data.random_split.
        """
        if not hasattr(self.base, "split"):
            raise TypeError(f"{type(self.base).__name__} has no split: use torch.utils.data.random_split")
        first, second = self.base.split(fraction, seed)
        return self._over(first), self._over(second)

    def with_tier(self, tier: Tier | str, **options: Any) -> MappedDataset:
        """Return the mapped dataset with the rows of its base kept on another tier; see ``Dataset.with_tier``.

        Functions run for every batch as before: `cache` keeps what they make.

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
        """The tier of the rows that the function gets; None where parts differ, or it is unknown."""
        found = getattr(self.base, "tier", None)
        return found if isinstance(found, Tier) else None

    @property
    def tier_reason(self) -> str:
        """Why the tier "auto" keeps these rows where they are instead of the results; empty if it was not asked for."""
        return self._reason or getattr(self.base, "tier_reason", "")

    def cache(
        self,
        where: str | Path | Tier,
        *,
        tier: Tier | str | None = None,
        version: str | None = None,
        progress: bool | None = None,
        **tier_options: Any,
    ) -> memload.dataset.Dataset | MappedDataset:
        """Compute every sample once, store the results, and return a dataset that reads them.

        ``fn`` must not draw random numbers. Results are identified by a hash of the rows and the code: the files (their
        paths, sizes and modification times) or bytes of the base, and the functions' bytecode, constants, captured
        values and the global functions that they call. When any of these changes, results are computed anew beside the
        old ones; ``memload cache list`` and ``rm`` show and remove entries. The same call resumes an interrupted one,
        and waits while another process computes the same results. See docs/caching.md.

        Args:
            where: a directory for any number of such results, each in a directory of its own; or "ram", to keep these
                in the memory of this process; or "auto", to do so if they fit.
            tier: the tier on which results in a directory are read: "mmap" (the default), "direct", "hybrid" or "ram".
                Or "auto", which follows the matrix of docs/tiers.md by the size of the results, free RAM and free disk,
                and explains itself in ``tier_reason``. If the results fit nowhere, the mapped dataset is returned, its
                rows on the tier that suits them, and functions run for every batch.
            version: a text that identifies the functions if they hold something that cannot be hashed, and the base if
                it cannot be identified otherwise. Change it whenever they change.
            progress: whether to show a bar once it takes longer than a second; None shows it on a terminal.
            tier_options: further arguments of the tier, such as ``cache_bytes=``; see ``Dataset.with_tier``.

        Raises:
            ValueError: a function draws random numbers, or gives another result when it is called again; or it cannot
                be hashed, and there is no version. Or `where` is a tier that reads files, without a directory for them.
            TypeError: a sample is not made of tensors, arrays, numbers and texts.
            RuntimeError: a function failed; the message names the rows, and has its error as cause.
            DiskSpaceError, MemoryError: less than 1.2 times the bytes of all results are free.

        Example:
            >>> import memload, tempfile, torch
            >>> ds = memload.from_arrays(x=torch.arange(4)).map(lambda sample: {"square": sample["x"] ** 2})
            >>> cached = ds.cache(tempfile.mkdtemp())
            >>> cached[3]
            {'square': tensor(9)}
        """
        from memload.results.map_cache import cached

        return cached(self, where, tier, version, progress, tier_options)

    def _because(self, reason: str) -> MappedDataset:
        """The same with a reason for where its rows are kept."""
        made = self._over(self.base)
        made._reason = reason
        return made

    def _over(self, base: Any) -> MappedDataset:
        made = MappedDataset(base, self.fn, in_processes=self.in_processes)
        made._reason = self._reason
        return made

    def __repr__(self) -> str:
        name = getattr(self.fn, "__qualname__", None) or type(self.fn).__name__
        reason = f" ({self._reason})" if self._reason else ""
        return f"{self.base!r}\n  mapped by {name}{' in worker processes' if self.in_processes else ''}{reason}"

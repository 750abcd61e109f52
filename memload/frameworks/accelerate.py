"""FastLoader under accelerate: its own preparation, with the native engine put back inside."""

from __future__ import annotations

import inspect
import weakref
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from memload.loader import FastLoader

# Excluded by a batch_sampler, which is what accelerate shards.
_EXCLUDED = ("batch_size", "shuffle", "sampler", "drop_last")


def prepare(accelerator: Any, loader: Any) -> Any:
    """Prepare a FastLoader for accelerate: as ``accelerator.prepare(loader)``, but on the whole native engine.

    ``accelerator.prepare`` alone builds a stock DataLoader around the dataset, which gathers its batches natively, but
    one at a time and not ahead of the loop. This function puts a FastLoader with all of its arguments in its place.
    accelerate remains responsible for sharding, placement on the device, ``even_batches``, the end of the data for
    ``gather_for_metrics`` and the state of checkpoints.

    Args:
        accelerator: an ``accelerate.Accelerator``.
        loader: a FastLoader; or a loader that accelerate made from a prepared one, such as
            ``skip_first_batches(prepared, n)``, which contains a stock loader again: only that one is exchanged.

    Raises:
        TypeError: ``loader`` is neither.

    Example:
        >>> import accelerate, memload, torch
        >>> ds = memload.from_arrays(x=torch.arange(6))
        >>> loader = memload.prepare(accelerate.Accelerator(cpu=True), memload.FastLoader(ds, batch_size=4))
        >>> [batch["x"] for batch in loader], loader.engine
        ([tensor([0, 1, 2, 3]), tensor([4, 5])], 'native')
    """
    if isinstance(getattr(loader, "base_dataloader", None), DataLoader):
        prepared = loader
    elif isinstance(loader, FastLoader):
        prepared = accelerator.prepare(loader)
    else:
        kind = type(loader).__name__
        raise TypeError(f"memload.prepare takes a FastLoader, or what accelerate made of one; got a {kind}")
    base = getattr(prepared, "base_dataloader", None)
    if base is not None and not isinstance(base, FastLoader):
        prepared.base_dataloader = _on_the_engine(base, loader)
        if hasattr(prepared.base_dataloader, "state_dict"):
            prepared.dl_state_dict = prepared.base_dataloader.state_dict()
            _keep_the_readers_state(accelerator, prepared)
    return prepared


def _keep_the_readers_state(accelerator: Any, prepared: Any) -> None:
    """Make the state of a loader that dispatches batches to ranks that of the first rank, after complete steps."""
    from accelerate.data_loader import DataLoaderDispatcher  # type: ignore[import-untyped]

    if type(prepared) is not DataLoaderDispatcher:
        return
    if not prepared.split_batches:
        prepared.adjust_state_dict_for_prefetch = _WholeSteps(prepared)
    if prepared.use_stateful_dataloader:
        _let_the_reader_save(accelerator, prepared)


def _let_the_reader_save(accelerator: Any, prepared: Any) -> None:
    """Make ``save_state`` write the state of the rank that reads, and ``load_state`` give it to all.

    By itself accelerate lets every rank write its state, and all to the same file.
    """
    known = weakref.ref(prepared)  # accelerator.free_memory() shall let go of the loader, and keeps its hooks

    def before_saving(*_: Any) -> None:
        if (one := known()) is not None:
            one.use_stateful_dataloader = one.state.process_index == 0

    def before_loading(*_: Any) -> None:
        if (one := known()) is not None:
            one.use_stateful_dataloader = True

    accelerator.register_save_state_pre_hook(before_saving)
    accelerator.register_load_state_pre_hook(before_loading)


class _WholeSteps:
    """Accelerate's hook for loaders whose state is ahead: it asks for one before each batch of a step.

    Args:
        prepared: a dispatcher, which takes a batch for each rank at a time, and hands them out when it has the next.
    """

    def __init__(self, prepared: Any) -> None:
        self._prepared, self._state = prepared, prepared.dl_state_dict

    def __call__(self) -> None:
        ranks = self._prepared.state.num_processes
        if self._prepared.end_of_dataloader or self._prepared.base_dataloader._state.delivered % ranks == 0:
            self._state = self._prepared.dl_state_dict
        self._prepared.dl_state_dict = self._state


def _on_the_engine(stock: DataLoader[Any], loader: Any) -> FastLoader[Any]:
    """A FastLoader with the arguments of a stock loader, and with those that only a FastLoader has from `loader`."""
    names = inspect.signature(FastLoader).parameters
    arguments: dict[str, Any] = {
        name: getattr(stock, name, getattr(loader, name, None)) for name in names if name != "shuffle"
    }
    excluded: tuple[str, ...] = _EXCLUDED if stock.batch_sampler is not None else ("batch_sampler",)
    if isinstance(stock.dataset, IterableDataset):
        excluded = ("sampler", "batch_sampler")
    if not getattr(loader, "_depth_given", stock.prefetch_factor != 2):
        excluded += ("prefetch_factor",)  # torch's own 2, which is no wish for a depth
    return FastLoader(**{name: value for name, value in arguments.items() if name not in excluded})

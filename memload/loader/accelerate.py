"""memload.prepare: accelerate's own preparation of a loader, with the native engine put back inside."""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from memload.loader.access import access
from memload.loader.fast_loader import FastLoader
from memload.loader.state import batches_of
from memload.sampling.pulls import samplers_in
from memload.sampling.ranks import Ranks
from memload.sampling.samplers import RankedSampler

# Arguments that a batch_sampler excludes; accelerate shards the batch_sampler.
_EXCLUDED = ("batch_size", "shuffle", "sampler", "drop_last")


def prepare(accelerator: Any, loader: Any) -> Any:
    """Prepare a FastLoader as ``accelerator.prepare(loader)`` does, and return a loader that runs the native engine.

    ``accelerator.prepare`` alone builds a stock DataLoader around the dataset, which gathers its batches natively, but
    one at a time and not ahead of the loop. This function replaces it by a FastLoader with all of its arguments.
    accelerate remains responsible for sharding, placement on the device, ``even_batches``, the end of the data for
    ``gather_for_metrics`` and the state of checkpoints.

    Args:
        accelerator: an ``accelerate.Accelerator``.
        loader: a FastLoader; or a loader that accelerate made from a prepared one, such as
            ``skip_first_batches(prepared, n)``, which contains a stock loader again: only that one is replaced.

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
        _leave_sharing_out_to(accelerator, loader)
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


def _leave_sharing_out_to(accelerator: Any, loader: FastLoader[Any]) -> None:
    """Set memload's samplers to draw for one process, since accelerate distributes the batches over ranks."""
    for one in samplers_in(batches_of(loader)):
        if not isinstance(one, Ranks):
            continue
        if not one.shares_by_itself and one.num_replicas > 1 < accelerator.num_processes:
            raise ValueError(
                f"the {type(one).__name__} shares its rows out over num_replicas={one.num_replicas} ranks, and "
                "accelerate would share these out again: leave num_replicas and rank out"
            )
        one.set_ranks(1, 0)
        seedable = getattr(accelerator, "use_seedable_sampler", False)
        if seedable and isinstance(one, RankedSampler) and one.seed is None and one.generator is None:
            one.seed = torch.random.initial_seed() % (1 << 63)  # as in accelerate's own sampler


def _keep_the_readers_state(accelerator: Any, prepared: Any) -> None:
    """Let a loader that dispatches batches save the state of the first rank, as it is after complete steps."""
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
    known = weakref.ref(prepared)  # accelerator.free_memory() must free the loader, but keeps its hooks

    def before_saving(*_: Any) -> None:
        if (one := known()) is not None:
            one.use_stateful_dataloader = one.state.process_index == 0

    def before_loading(*_: Any) -> None:
        if (one := known()) is not None:
            one.use_stateful_dataloader = True

    accelerator.register_save_state_pre_hook(before_saving)
    accelerator.register_load_state_pre_hook(before_loading)


class _WholeSteps:
    """The state hook of accelerate for loaders that read ahead; accelerate calls it before each batch of a step.

    Args:
        prepared: a dispatcher, which reads a batch for each rank, and hands them out once it has read the next ones.
    """

    def __init__(self, prepared: Any) -> None:
        self._prepared, self._state = prepared, prepared.dl_state_dict

    def __call__(self) -> None:
        ranks = self._prepared.state.num_processes
        if self._prepared.end_of_dataloader or _delivered(self._prepared.base_dataloader) % ranks == 0:
            self._state = self._prepared.dl_state_dict
        self._prepared.dl_state_dict = self._state


def _delivered(loader: Any) -> int:
    asked = access(loader)
    return 0 if asked is None else asked.delivered


def _on_the_engine(stock: DataLoader[Any], loader: Any) -> FastLoader[Any]:
    """Return a FastLoader with the arguments of a stock loader, and with `loader`'s own further arguments."""
    names = inspect.signature(FastLoader).parameters
    arguments: dict[str, Any] = {
        name: getattr(stock, name, getattr(loader, name, None)) for name in names if name != "shuffle"
    }
    excluded: tuple[str, ...] = _EXCLUDED if stock.batch_sampler is not None else ("batch_sampler",)
    if isinstance(stock.dataset, IterableDataset):
        excluded = ("sampler", "batch_sampler")
    asked = access(loader)
    if not (stock.prefetch_factor != 2 if asked is None else asked.asks().depth_given):
        excluded += ("prefetch_factor",)  # torch's default of 2 does not ask for a depth
    return FastLoader(**{name: value for name, value in arguments.items() if name not in excluded})

"""The private interface of a loader to other parts of memload, beside its public attributes.

A FastLoader answers ``__memload_loader__()`` with a `LoaderAccess`, as datasets answer ``__memload__()``. Other loaders
have no such method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler

from memload.dataset.grouped_spec import GroupedSpec
from memload.engine.gather_spec import GatherSpec
from memload.engine.request import PassRequest
from memload.loader.composing import settings_of, slots_and_plan
from memload.loader.history import PassHistory
from memload.loader.state import LoaderState
from memload.sampling.row_plan import HeldGroup

if TYPE_CHECKING:
    from memload.loader.composing import Settings


@dataclass(frozen=True)
class LoaderAccess:
    """The view of a loader that other parts of memload use.

    Attributes:
        asks: returns the request of a pass that would begin now.
        resolves: returns the gather specification of the dataset, without the loader's casts; or the reason why the
            engine cannot read the dataset, as a sentence.
        on_device: returns the bytes of the device's memory of a pass by a request, whose batches have so many times the
            rows of the loader's.
        state: the state of the loader.
        history: the history of its native passes.
    """

    asks: Callable[[], PassRequest]
    resolves: Callable[[], GatherSpec | GroupedSpec | str]
    on_device: Callable[[PassRequest, float], int]
    state: LoaderState
    history: PassHistory

    @property
    def source(self) -> GatherSpec | GroupedSpec | str:
        """The gather specification without the loader's casts; or why the engine cannot read, as a sentence."""
        return self.resolves()

    def cast_source(self) -> GatherSpec | GroupedSpec | str:
        """Return the gather specification with the loader's casts; or why the engine cannot read, as a sentence."""
        source = self.resolves()
        return source if isinstance(source, str) else source.with_casts(self.asks().casts)

    def settings(self, source: GatherSpec | GroupedSpec) -> Settings:
        """Return the settings of a pass over a source."""
        return settings_of(self.asks(), source)

    def nbytes_of(self, batch_size: int) -> int | None:
        """Return the bytes of slots and row order if batches had so many rows; None if something else decides that.

        Smaller batches have more slots.
        """
        source = self.cast_source()
        request = self._with_batches_of(batch_size)
        return None if isinstance(source, str) or request is None else slots_and_plan(request, source)

    def device_nbytes_of(self, batch_size: int) -> int | None:
        """Return the bytes of the device's memory if batches had so many rows; None if something else decides that.

        Of small batches more are being copied at one time.
        """
        request = self._with_batches_of(batch_size)
        if request is None or isinstance(self.resolves(), str):
            return None
        now: Any = self.asks().batches
        return self.on_device(request, batch_size / now.batch_size)

    def _with_batches_of(self, batch_size: int) -> PassRequest | None:
        """Return the request of a pass with batches of so many rows; None if something else decides that."""
        request = self.asks()
        if type(request.batches) is not BatchSampler:
            return None
        given = request.batches
        return request._replace(batches=BatchSampler(given.sampler, batch_size, given.drop_last))

    @property
    def delivered(self) -> int:
        """The number of batches of the latest pass that the loop received, including those before a resume."""
        return self.state.delivered

    def take_ahead(self, batches: Iterator[Any], count: int) -> tuple[list[Any], HeldGroup]:
        """Take at most `count` next batches of the latest pass ahead; see `LoaderState.take_ahead`."""
        return self.state.take_ahead(self.asks(), self.resolves, batches, count)


def access(loader: Any) -> LoaderAccess | None:
    """Return the `LoaderAccess` of a loader; None if it is not a FastLoader."""
    ask = getattr(type(loader), "__memload_loader__", None)
    answer: LoaderAccess | None = None if ask is None else ask(loader)
    return answer

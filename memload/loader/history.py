"""The history of a loader's native passes in this process: counters, live passes, and parts to reuse."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from memload import _core
from memload.engine.gatherer import Gatherer
from memload.engine.request import Arrival
from memload.stats import LoaderStats

if TYPE_CHECKING:
    from memload.casts.rule import Cast
    from memload.engine.gather_spec import GatherSpec
    from memload.engine.transforms.cast_advice import CastAdvice
    from memload.engine.transforms.concurrency import ConcurrencyTuner
    from memload.engine.transforms.threads import Transforming
    from memload.engine.transforms.transform_pipeline import TransformPipeline


@dataclass(frozen=True)
class Layers:
    """The layers of one pass.

    Attributes:
        gathers: the innermost layer, which owns the slots.
        transforms: the layer that transforms batches; None if there is none.
        outermost: the layer from which the loop takes batches.
        arrival: the place at which batches arrive.
    """

    gathers: Gatherer
    transforms: Transforming | None
    outermost: Gatherer
    arrival: Arrival


class LivePass(Protocol):
    """A pass that has not ended."""

    layers: Layers

    def stats(self) -> LoaderStats:
        """Return the counters of the pass."""


class PassHistory:
    """The passes of one loader: their counters, the live ones, and the layers that the next one reuses."""

    kept: Layers | None = None
    """The layers of the latest pass that ended, if workers are persistent."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.spares = _core.Spares()
        """Where the memory and threads of passes stay for a while, unless workers are persistent."""
        self.finished = LoaderStats()
        """The counters of the passes that have ended."""
        self.tuner: ConcurrencyTuner | None = None
        """The number of threads that transformed at once in the latest pass."""
        self.advice: CastAdvice | None = None
        """What is known of casts that would replace the functions of the user."""
        self.most_ahead: int | None = None
        """The number of batches gathered ahead, once memory has become short."""
        self._live: weakref.WeakSet[Any] = weakref.WeakSet()
        self.latest_cast: tuple[Any, Any] = (None, None)
        """A gather specification of the dataset, and the same one with the loader's casts."""
        self.stock: list[Any] = []
        """The history of passes on torch's own machinery, once there was one; see `fallback_history`."""

    @property
    def live(self) -> list[LivePass]:
        """The passes that have not ended."""
        return list(self._live)

    def take_kept(self) -> Layers | None:
        """Return the layers that the latest pass kept, to one caller only: another thread may begin a pass, too."""
        kept: Layers | None = self.__dict__.pop("kept", None)
        return kept

    def begun(self, one: LivePass) -> None:
        """Record that a pass has begun."""
        self._live.add(one)

    def ended(self, one: LivePass) -> None:
        """Record that a pass has ended."""
        self._live.discard(one)

    def tuned(self, threads: int, *, fixed: bool) -> ConcurrencyTuner:
        """Return the tuner of a pass with `threads` threads, which continues from the end of the latest pass."""
        from memload.engine.transforms.concurrency import tuned

        self.tuner = tuned(self.tuner, threads, fixed=fixed)
        return self.tuner

    def advised(
        self, pipeline: TransformPipeline, source: GatherSpec, casts: Mapping[Any, Cast] | None
    ) -> TransformPipeline:
        """Return a pipeline whose functions are compared with casts, until it is known whether a cast replaces them."""
        if bool(pipeline.maps) == (pipeline.transform is not None):  # a cast stands between functions of both kinds
            return pipeline
        from memload.engine.transforms.cast_advice import CastAdvice

        fns = pipeline.maps if pipeline.transform is None else (pipeline.transform,)
        if self.advice is None or not self.advice.is_of(fns):
            self.advice = CastAdvice(source, casts or {}, fns, whole=not pipeline.maps)
        return pipeline if self.advice.over else replace(pipeline, advice=self.advice)

    def stats(self) -> LoaderStats:
        """Return the counters of all passes so far, and the advice that they gave."""
        counted = sum((one.stats() for one in self.live), self.finished)
        return counted if self.advice is None else replace(counted, advice=self.advice.text)

    def close(self) -> None:
        """Free what is kept for the next pass; in a forked child it is the parent's, and stays."""
        kept = self.take_kept()
        if kept is not None and self._process == os.getpid():
            kept.gathers.close(keep_slots=False)
        self.spares.release()

    def shrink(self) -> None:
        """Gather one batch ahead from the next pass on, and free memory of transforms that is not in use."""
        self.most_ahead = 1
        for layers in [self.kept, *(one.layers for one in self.live)]:
            if layers is not None and layers.transforms is not None:
                layers.transforms.give_back()

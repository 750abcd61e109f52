"""Composes a native pass: its gather specification, its settings, the layers that they ask for, and their iterator.

source -> settings -> gatherer -> transforms -> where batches arrive -> changes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from memload.dataset.dataset import Dataset
from memload.device import on_request
from memload.engine.collate_function import as_shipped, collated
from memload.engine.gather_spec import GatherSpec, NotNative
from memload.engine.readers import resolve
from memload.engine.request import PassRequest
from memload.engine.settings import PassSettings
from memload.loader.history import Layers, PassHistory
from memload.loader.native_pass import NativePass
from memload.loader.state import LoaderState, caught_up
from memload.sampling.row_plan import plan_bytes

if TYPE_CHECKING:
    from memload.dataset.group_batches import GroupSettings
    from memload.dataset.grouped_spec import GroupedSpec
    from memload.device.devices import Target
    from memload.device.resident_settings import ResidentSettings
    from memload.loader.fallback_passes import FallbackHistory

Settings: TypeAlias = "PassSettings | GroupSettings | ResidentSettings"


def read(request: PassRequest) -> GatherSpec | GroupedSpec | str:
    """Return the gather specification of the dataset; or why the engine cannot read it, as a sentence."""
    try:
        if request.grouped and request.batched:
            from memload.dataset.grouped_spec import resolve_groups

            source: GatherSpec | GroupedSpec = resolve_groups(request.dataset)
            if any(one.caches for one in getattr(source, "sources", ())):
                return "Groups whose rows lie in stores are not read ahead: write them to files, or read one group."
        else:
            source = collated(resolve(request.dataset), request)
    except NotNative as answer:
        return str(answer)
    if not as_shipped():
        return "default_collate was changed for tensors, dicts or tuples: take that out of default_collate_fn_map."
    return source


def read_with_casts(request: PassRequest, history: PassHistory) -> GatherSpec | GroupedSpec | str:
    """Return what `read` returns, with the loader's casts.

    Raises:
        KeyError: a cast names a field that is not there.
        ValueError: a field cannot be cast so.
    """
    source = read(request)
    if isinstance(source, str):
        return source
    latest = history.latest_cast
    if latest[0] is not source:
        latest = source, source.with_casts(request.casts)
        if isinstance(request.dataset, Dataset):  # which is immutable, so that its specification stays the same
            history.latest_cast = latest
    cast: GatherSpec | GroupedSpec = latest[1]
    return cast


def settings_of(request: PassRequest, source: GatherSpec | GroupedSpec) -> Settings:
    """Return the settings of a pass over a source."""
    if not isinstance(source, GatherSpec):
        from memload.dataset.group_batches import GroupSettings

        return GroupSettings.of(request, source)
    bound = request.destination.bound(source, request)
    for field in bound.fields.values():
        if field.resident:
            from memload.device.resident_settings import ResidentSettings

            return ResidentSettings.of(request, bound)
    return PassSettings.of(request, bound)


def settings_around(settings: Settings) -> PassSettings | None:
    """Return the settings of the layers around what gathers; None if nothing can stand there."""
    return settings if isinstance(settings, PassSettings) else settings.around


def native_pass(
    request: PassRequest, source: GatherSpec | GroupedSpec, state: LoaderState, history: PassHistory, owner: object
) -> NativePass:
    """Begin a pass over a source, which reuses what the latest pass kept.

    Args:
        request: of the pass. Rows on a device may give it another destination.
        source: what is gathered, with the loader's casts.
        state: the state of the loader.
        history: the history of its passes.
        owner: the loader, which stays alive as long as the pass runs.
    """
    settings = settings_of(request, source)
    if settings.destination is not request.destination:
        request = request._replace(destination=settings.destination)
    layers = _layers(settings, request, history, history.take_kept())
    one = NativePass(request, layers, state, history, owner)
    history.begun(one)
    if one.progress.behind:
        caught_up(one, one.progress)
    return one


def _layers(settings: Settings, request: PassRequest, history: PassHistory, kept: Layers | None) -> Layers:
    around, before = settings_around(settings), kept.gathers if kept else None
    arrival, transforms = settings.destination.open(kept.arrival if kept else None), None
    gathers = arrival.gatherer(settings, before) if isinstance(settings, PassSettings) else settings.gatherer(before)
    outermost = gathers
    if around is None:
        return Layers(gathers, None, outermost, arrival)
    if around.remote:
        from memload.engine.fetched_batches import FetchedBatches

        outermost = FetchedBatches(outermost, around.source, around.remote, around.batch_rows, around.drop_last)
    if around.transform_pipeline is not None:
        from memload.engine.transforms.threads import Transforming

        tuner = history.tuned(around.transform_threads, fixed=request.options.transform_threads is not None)
        sizes, reused = (around.batch_rows, around.drop_last), kept.transforms if kept else None
        pipeline = history.advised(around.transform_pipeline, around.source, request.casts)
        outermost = transforms = Transforming(outermost, pipeline, *sizes, tuner, reused)
    outermost = arrival.around(outermost, around, request)
    if guards := settings.guards:  # outermost, since work that a device does ahead is gathered ahead, too
        from memload.engine.guarded_batches import GuardedBatches

        outermost = GuardedBatches(outermost, guards, request)
    return Layers(gathers, transforms, outermost, arrival)


def slots_and_plan(request: PassRequest, source: GatherSpec | GroupedSpec) -> int:
    """Return the bytes of the slots of a pass over a source, and of its row order."""
    settings = settings_of(request, source)
    ahead = (settings.depth + 1) * settings.slot_rows
    if isinstance(source, GatherSpec) and source.caches:
        from memload.engine.fetched_batches import fetching_bytes

        return (
            settings.ring_bytes
            + fetching_bytes(source.caches)
            + plan_bytes(getattr(request.batches, "sampler", None), ahead)
        )
    return settings.ring_bytes + plan_bytes(getattr(request.batches, "sampler", None), ahead)


def device_bytes(
    request: PassRequest, source: GatherSpec | GroupedSpec, target: Target | None, buffers: int, count: int
) -> int:
    """Return the most bytes of the device's memory that a pass takes for batches, and for buffers of the loader.

    Args:
        request: of the pass.
        source: what it gathers.
        target: where batches go; None: to the CPU.
        buffers: bytes of static buffers, as far as they are known.
        count: how many sets of them there are.
    """
    from memload.dataset.group_batches import GroupSettings

    settings = settings_of(request, source)
    if not isinstance(settings, PassSettings | GroupSettings):
        return settings.device_bytes + (buffers or count * settings.batch_bytes)
    each = settings.each if isinstance(settings, GroupSettings) else [settings]
    return 0 if target is None else on_request.pass_bytes(each, buffers, count)


def fallback_history(history: PassHistory) -> FallbackHistory:
    """Return the history of a loader's passes on torch's own machinery; the first pass creates it."""
    if not history.stock:
        from memload.loader.fallback_passes import FallbackHistory

        history.stock.append(FallbackHistory())
    kept: FallbackHistory = history.stock[0]  # the same object for all threads, even if two came at once
    return kept


def how_they_go(request: PassRequest, source: GatherSpec | GroupedSpec, target: Target | None) -> str:
    """Return a clause that says how batches of a source reach their device; "" if they stay on the CPU."""
    if isinstance(source, GatherSpec) and source.fields and all(one.resident for one in source.fields.values()):
        from memload.device.resident_settings import how_gathered

        return how_gathered(request, source)
    if target is None:
        return ""
    from memload.device.destination_buffers import why_whole
    from memload.device.destinations import seen_by_device

    if not isinstance(source, GatherSpec):
        return f"batches are moved to {target} whole, since groups are made of several gathers"
    if (why := why_whole(source)) is not None:
        return f"batches are moved to {target} whole, since {why}"
    if seen_by_device(source, target) is not None:
        return f"its rows lie in RAM that is pinned for {target}, which gathers batches out of it by itself"
    return f"batches are copied to {target} while they are gathered"

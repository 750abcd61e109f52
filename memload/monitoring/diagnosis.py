"""Finds problems of memory and their causes in a series of samples, and says each in a sentence.

    memory rises from epoch to epoch         the loop keeps something: a leak
    memory rises from step to step           the loop keeps results, on a GPU with their graph
    reserved far above the peak of tensors   the allocator's memory is fragmented
    a sudden rise that stays                 one large tensor
    memload's own memory rises               the program keeps datasets in RAM
    shared memory rises, without steps       the loop keeps batches of worker processes
    the number of results with a graph rises the loop keeps results, however small
    batches find no free slot                the loop keeps batches; where memory grows by far more, results

All functions here are pure: they read samples and measure nothing. Growth is judged at points that are alike in all
steps, at the beginning of an epoch or between two batches, since a step needs memory temporarily. The series is cut
into parts, and the least value of each part must be above that of the part before. On the host growth is judged only
after the C library's heap has found its size: a loop that allocates and frees the same large blocks in each step may
let the heap grow for some twenty steps. It may do so for longer, by a block an epoch, so a rise counts only where some
of it is in use. That may be little: nodes of a graph that were kept, with holes between them, were 4 % of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from mmap import PAGESIZE

from memload.monitoring.gpu_samples import GpuSample
from memload.monitoring.kept_graphs import LOOKS, KeptGraphs
from memload.monitoring.samples import Sample
from memload.sizes import counted, format_size

_MB = 1 << 20
_LEAST_EPOCHS, _MOST_EPOCHS = 4, 6  # parts that must rise, one for each epoch: the more for a rise that may be chance
_PARTS, _LEAST_IN_PART = 6, 4  # of the second half of the series: parts that must rise, and samples in each
_SETTLED = 30  # steps until the C library's heap has its size: of the half on the host, and before an epoch counts
_STEADY = 1 / 3  # of the mean rise: the least that each part must rise
_HOST_RISE, _GPU_RISE = 64 * _MB, 32 * _MB  # over all parts; a smaller rise is not reported
_USED_SHARE = 0.01  # of a rise on the host: the least that is in use, and not free in the C library's heap
_RISE_SHARE = 0.005  # of the first value: the least rise
_SPARE_BEFORE, _SPARE_SAMPLES = 1.3, 10  # reserved over the peak of allocated, in so many samples
_SPARE_SHARE = 0.1  # of the GPU
_BEFORE, _AFTER = 6, 3  # samples around a sudden step
_SUDDEN_SHARE, _SUDDEN_BYTES = 0.1, 128 * _MB
_UNDER_WAY = 3  # steps, after which a loop should allocate nothing new that lasts
_KEPT_SHARE, _KEPT_BATCHES = 0.25, 8
_RESULTS_SHARE = 0.5  # of batches that found no slot: so many results with their graph explain them
_MOST_LOSSES = 8  # with their graph at one time, in a loop that keeps none
_WITH_GRAPH = 1.5  # of the bytes of kept batches: above that, more than batches is kept
_HUGE_PAGE, _OBJECTS = 2 * _MB, 16384  # bytes: the unit of a large batch's memory; a batch's tensor objects

_RESULTS_A_STEP = 0.25  # with their graph: from so many more in each step on, results are kept

_Free = Mapping[tuple[float, int | None], int]
Graphs = Callable[[bool], KeptGraphs | None]
"""Returns the counts of kept results, given whether the run has ended; None: not known yet."""


@dataclass(frozen=True)
class Finding:
    """A problem that is building up.

    Attributes:
        cause: "leak", "results kept", "fragmentation", "large tensor", "batches kept", "own memory", or "limit".
        text: what was observed, what it means and what to do, in a sentence or two.
        place: "host", or a GPU such as "cuda:0".
    """

    cause: str
    text: str
    place: str = "host"


@dataclass(frozen=True)
class Rise:
    """A steady rise from `first` to `last` bytes between two positions, such as epochs."""

    begin: float
    end: float
    first: int
    last: int

    @property
    def each(self) -> float:
        """Bytes per unit of the position."""
        return (self.last - self.first) / (self.end - self.begin)

    def by_steps(self) -> str:
        """Return the rise as text, for positions that are steps: its rate, its first and its last value."""
        return (
            f"by {format_size(self.each)} a step, from {format_size(self.first)} at step {self.begin:.0f} to "
            f"{format_size(self.last)} at step {self.end:.0f}"
        )


def diagnose(
    series: Sequence[Sample],
    *,
    ended: bool = False,
    graphs: Graphs = lambda _: KeptGraphs(),
    counts: Sequence[tuple[int, int]] = (),
) -> list[Finding]:
    """Return the findings of a series of samples, at most one for each cause and place.

    Args:
        series: the samples, in the order of their time.
        ended: whether no sample will follow, so that findings wait for no further evidence.
        graphs: returns the counts of kept results; called when batches or memory seem to be kept.
        counts: (step, number of results with their graph), some steps apart.
    """
    if not series:
        return []
    found = [kept_batches(series, ended=ended, graphs=graphs)]
    if found == [None]:  # kept batches would explain the growth
        found.append(_explained(leak(series) or host_results_kept(series), series, graphs, ended))
        if found == [None, None]:
            found.append(received_kept(series) or small_results_kept(counts))
    found.append(own_memory_grows(series))
    found.append(sudden_step(series, "host", lambda sample: sample.held - sample.own, series[-1].limit))
    for gpu in series[-1].gpus:
        gpu_series = _gpu_series(series, gpu.index)
        found.append(gpu_results_kept(gpu_series))
        found.append(fragmentation([sample for _, sample in gpu_series]))
        found.append(sudden_step(*_tensor_series(gpu_series), gpu.total))
    return [finding for finding in found if finding is not None]


def _explained(growth: Finding | None, series: Sequence[Sample], graphs: Graphs, ended: bool) -> Finding | None:
    """Return the finding of growth with the objects that the loop keeps; None as long as these are not known."""
    kept = graphs(ended) if growth is not None else None
    if growth is None or kept is None:
        return None
    figures, _, rest = growth.text.partition(": ")
    lasts = "".join(rest.partition(". What is free")[1:])
    if kept.lasting or kept.losses > _MOST_LOSSES:
        results = counted(kept.results, "result is", "results are")
        many = f"{results} there with their graph, {kept.losses} of them single numbers"
        advice = "results are kept together with their graph: keep loss.item() or x.detach() instead"
        return Finding("results kept" if growth.cause != "leak" else "leak", f"{figures}: {many}; {advice}{lasts}")
    if kept.keeps_batches:
        return Finding(
            "batches kept",
            f"{figures}: of {kept.seen} batches that were looked at, {counted(kept.batches, 'is', 'are')} still "
            "there: the loop keeps "
            f"batches, or views of them. Keep results (loss.item(), x.detach()) or copies (x.clone()) instead{lasts}",
        )
    if _mostly_shared(series):
        return Finding(
            "batches kept",
            f"{figures}, and most of it is shared memory, in which worker processes hand batches over: the loop keeps "
            f"batches, or views of them. Keep results (loss.item(), x.detach()) or copies (x.clone()) instead{lasts}",
        )
    if kept.others:
        return Finding(
            growth.cause,
            f"{figures}: tensors without a graph that one step made were there two steps later ({kept.others} of "
            f"them): outputs or copies are kept, such as in a list: keep numbers, or write them to a file{lasts}",
        )
    return Finding(
        "leak",
        f"{figures}. No step that was looked at left a batch or a result behind: what is kept once an epoch (outputs "
        f"of a validation, copies of weights), a list of numbers, a cache without an end, or a library grows{lasts}",
    )


def _mostly_shared(series: Sequence[Sample]) -> bool:
    points = [(one.shared, held) for one in series if (held := one.at_batch or one.at_epoch) is not None]
    (shared, held), (shared_now, held_now) = points[0], points[-1]
    return 2 * (shared_now - shared) > held_now - held > 0


def leak(series: Sequence[Sample]) -> Finding | None:
    """Return the finding that memory rises from epoch to epoch, or None; the first epoch allocates lasting buffers."""
    begun: dict[int, tuple[Sample, int]] = {}
    steps = last_step = 0
    for one in series:
        steps += (
            one.step - last_step if one.step >= last_step else one.step
        )  # a loop may count its steps anew in each epoch
        last_step = one.step
        begun.setdefault(one.epoch, (one, steps))
    settled = [one for one, steps in begun.values() if one.epoch > 1 and steps >= _SETTLED]
    points = [(one.epoch, one.at_epoch) for one in settled if one.at_epoch is not None]
    latest = points[-_MOST_EPOCHS:]
    rising = rise(latest, _HOST_RISE // 2, _LEAST_EPOCHS) or rise(latest, _HOST_RISE // 4, _MOST_EPOCHS)
    last = series[-1]
    left = max(0.0, (1 - last.share) * last.limit)
    free: _Free = {(one.epoch, one.at_epoch): one.free_at_epoch for one in settled}
    if rising is None or not _is_used(rising, free):
        return None
    return Finding(
        "leak",
        f"memory grows by {format_size(rising.each)} an epoch, from {format_size(rising.first)} in epoch "
        f"{rising.begin:.0f} to {format_size(rising.last)} in epoch {rising.end:.0f}: something is kept from epoch to "
        "epoch, such as losses or outputs in a list (keep loss.item() or x.detach().cpu() of what is needed), or a "
        f"cache without an end. What is free lasts for {left / rising.each:.0f} epochs more",
    )


def _is_used(rising: Rise, free: _Free) -> bool:
    """Return whether what is in use in the heap rises as well: small things that are kept part holes of the heap.

    Args:
        rising: the rise.
        free: what the heap had free, by the position and the bytes that were held there.
    """
    grown = rising.last - rising.first
    more = grown - (free[rising.end, rising.last] - free[rising.begin, rising.first])
    return more >= _USED_SHARE * grown


def host_results_kept(series: Sequence[Sample]) -> Finding | None:
    """Return the finding that the memory held between two batches rises from step to step, or None."""
    points = [(sample.step, sample.at_batch) for sample in series if sample.at_batch is not None]
    rising = rise(_parts(points, _SETTLED), _HOST_RISE, _PARTS)
    free: _Free = {(one.step, one.at_batch): one.free_at_batch for one in series}
    if rising is None or not _is_used(rising, free):
        return None
    return Finding(
        "results kept",
        f"memory grows {rising.by_steps()}: results are kept, and those that autograd made with their whole graph: "
        "keep loss.item() or x.detach() instead; or a list or cache grows",
    )


def received_kept(series: Sequence[Sample]) -> Finding | None:
    """Return the finding that mapped shared memory rises in a process whose loop reports no steps, or None."""
    if any(sample.at_batch is not None for sample in series):
        return None
    begun = series[0].time
    points = [(round(1000 * (sample.time - begun)), sample.received) for sample in series]
    rising = rise(_parts(points), _HOST_RISE, _PARTS)
    if rising is None:
        return None
    return Finding(
        "batches kept",
        f"shared memory that this process has mapped grows by {format_size(1000 * rising.each)} a second, from "
        f"{format_size(rising.first)} to {format_size(rising.last)}. Worker processes hand batches over in such: the "
        "loop keeps batches, or views of them. Keep results (loss.item(), x.detach()) or copies (x.clone()) instead",
    )


def small_results_kept(counts: Sequence[tuple[int, int]]) -> Finding | None:
    """Return the finding that each step leaves more results with a graph, though they are small so far, or None."""
    if len(counts) < LOOKS:
        return None
    (begin, first), (end, last) = counts[0], counts[-1]
    each = (last - first) / (end - begin)
    slopes = [(b - a) / (y - x) for (x, a), (y, b) in pairwise(counts)]
    if each < _RESULTS_A_STEP or min(slopes) < each / 2:
        return None
    return Finding(
        "results kept",
        f"{last} results are there with their graph at step {end}, {first} were at step {begin}, and their number grew "
        "all the way, so that they are kept, if small so far. They are kept together with their graph: keep "
        "loss.item() or x.detach() instead",
    )


def own_memory_grows(series: Sequence[Sample]) -> Finding | None:
    """Return the finding that memload's own memory, without caches that have a budget, rises step by step, or None."""
    rising = rise(_parts([(one.step, one.own - one.cached) for one in series], _SETTLED), _HOST_RISE, _PARTS)
    if rising is None:
        return None
    return Finding(
        "own memory",
        f"memload's own memory grows {rising.by_steps()}: rows of datasets that were loaded into RAM. Let go of "
        "datasets, and of their loaders, that are no longer needed",
    )


def gpu_results_kept(series: Sequence[tuple[Sample, GpuSample]]) -> Finding | None:
    """Return the finding that memory allocated on a GPU rises from step to step, or None."""
    points = [(sample.step, _in_tensors(gpu)) for sample, gpu in series]
    rising = rise(_parts(points), _GPU_RISE, _PARTS)
    if rising is None:
        return None
    return Finding(
        "results kept",
        f"tensors on the GPU grow {rising.by_steps()}: results are kept together with their graph, as by `total += "
        "loss` or `outputs.append(y)`: use loss.detach() or loss.item(), y.detach()",
        _name(series),
    )


def fragmentation(series: Sequence[GpuSample]) -> Finding | None:
    """Return the finding that torch reserves far more than was ever allocated at one time, or None."""
    recent = series[-_SPARE_SAMPLES:]
    spare = min(((gpu.reserved or 0) - (gpu.peak or 0) for gpu in recent), default=0)
    last = series[-1] if series else None
    if last is None or len(recent) < _SPARE_SAMPLES or spare < _SPARE_SHARE * last.total:
        return None
    reserved, peak = last.reserved or 0, last.peak or 0
    if reserved < _SPARE_BEFORE * peak:
        return None
    return Finding(
        "fragmentation",
        f"torch reserves {format_size(reserved)} of the GPU's {format_size(last.total)}, and never had more than "
        f"{format_size(peak)} in tensors: memory is fragmented, as batches of many shapes leave it. Set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or give batches equal shapes; empty_cache_every= gives the "
        "rest back to others, at a cost",
        f"cuda:{last.index}",
    )


def sudden_step(series: Sequence[Sample], place: str, figure: Callable[[Sample], int], limit: int) -> Finding | None:
    """Return the finding that a figure rises by far from one step to the next, and stays there; or None."""
    series = _by_step(series)
    values = [figure(sample) for sample in series]
    least = max(_SUDDEN_BYTES, int(_SUDDEN_SHARE * limit))
    for at in range(_BEFORE, len(values) - _AFTER + 1):
        if series[at - _BEFORE].step < _UNDER_WAY:
            continue
        before, after = max(values[at - _BEFORE : at]), min(values[at : at + _AFTER])
        if after - before >= least:
            took = series[at].time - series[at - 1].time
            return Finding(
                "large tensor",
                f"memory rose by {format_size(after - before)} within {took:.1f} s at step {series[at].step} (epoch "
                f"{series[at].epoch}), from {format_size(before)}, and stays there: one large tensor or array was made "
                "then; look at what the loop does at that step, such as validation, a plot or a checkpoint",
                place,
            )
    return None


def _by_step(series: Sequence[Sample]) -> Sequence[Sample]:
    """Return the last sample of each step, since filling a large tensor may take longer than an interval."""
    last = [one for one, following in pairwise(series) if one.step != following.step]
    return [*last, series[-1]]


def kept_batches(
    series: Sequence[Sample], *, ended: bool = False, graphs: Graphs = lambda _: KeptGraphs()
) -> Finding | None:
    """Return the finding that the loop keeps batches, by themselves or in graphs of results; or None."""
    if ended:
        series = _until_loaders_ended(series)
    last = series[-1]
    first = next((one for one in series if _finds_no_slots(one, last)), None)
    if first is None:
        return None
    ticks = [one for one in series if one.at_batch is not None and one.step >= _UNDER_WAY]
    since = last.fresh_at_batch - ticks[0].fresh_at_batch if ticks else 0
    if last.at_batch is not None and since < _KEPT_BATCHES and not ended:
        return None  # a few samples later it is known what else is kept
    each = last.bytes_out / last.batches
    batches, fresh = last.batches - first.batches, last.fresh_batches - first.fresh_batches
    grown = last.held - first.held
    more = f", and memory grew by {format_size(grown)} meanwhile" if grown > _HOST_RISE // 4 else ""
    kept = graphs(ended)
    if kept is None:
        return None  # the counts need some further steps
    growth = _growth_beyond_batches(ticks[0], last, each) if ticks else 0
    if growth and kept.lasting:
        return Finding(
            "results kept",
            f"memory grew by {format_size(growth)} between step {ticks[0].step} and {last.step}, far more than batches "
            f"of {format_size(each)} take that found every slot taken: {kept.results} results are kept, with their "
            "whole graph and the batch that each was made of: keep loss.item() or x.detach() instead",
        )
    if kept.lasting or kept.results >= _RESULTS_SHARE * fresh or kept.losses > _MOST_LOSSES:
        return Finding(
            "results kept",
            f"{kept.results} results are kept with their graph, and each with the batch that it was made of: {fresh} "
            f"of {batches} batches of {format_size(each)} found every slot taken{more}. Keep loss.item() or x.detach() "
            "instead; if they wait for one backward pass, memload.accumulate keeps none, or give depth= their number",
        )
    return Finding(
        "batches kept",
        f"{fresh} of {batches} batches of {format_size(each)} found every slot taken and got memory of their own{more}"
        ": the loop keeps batches, views of them, or losses whose graph holds them. Keep results (loss.item(), "
        "x.detach()) or copies (x.clone()) instead, or give depth= the number of batches you keep",
    )


def _until_loaders_ended(series: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples up to the last one with all loaders; the counters of a loader end with it."""
    most = max(one.batches for one in series)
    return series[: max(k for k, one in enumerate(series) if one.batches == most) + 1]


def _finds_no_slots(first: Sample, last: Sample) -> bool:
    batches, fresh = last.batches - first.batches, last.fresh_batches - first.fresh_batches
    return batches > 0 and fresh >= _KEPT_BATCHES and fresh > _KEPT_SHARE * batches


def _growth_beyond_batches(first: Sample, last: Sample, each: float) -> int:
    """Return the growth between two ticks of the loop if it is far more than kept batches take; else 0."""
    grown = (last.at_batch or 0) - (first.at_batch or 0)
    page = PAGESIZE if each < _HUGE_PAGE else _HUGE_PAGE
    kept = (last.fresh_at_batch - first.fresh_at_batch) * (-(-each // page) * page + _OBJECTS)
    return grown if grown > _WITH_GRAPH * kept and grown - kept > _HOST_RISE // 4 else 0


def rise(points: Sequence[tuple[float, int]], least: int, parts: int) -> Rise | None:
    """Return the rise of (position, bytes) if it has enough parts, each part rises, and the whole is large enough."""
    if len(points) < max(2, parts):
        return None
    (begin, first), (end, last) = points[0], points[-1]
    found = Rise(begin, end, first, last)
    if end <= begin or last - first < max(least, _RISE_SHARE * first):
        return None
    slopes = [(b - a) / max(1e-9, y - x) for (x, a), (y, b) in pairwise(points)]
    return found if min(slopes) >= _STEADY * found.each else None


def _parts(points: Sequence[tuple[int, int]], steps: int = 2 * _PARTS) -> list[tuple[float, int]]:
    """Return (position, least value) of each part of the second half; empty for few samples or steps."""
    half = points[len(points) // 2 :]
    size = len(half) // _PARTS
    if size < _LEAST_IN_PART or half[-1][0] - half[0][0] < steps:
        return []
    begins = range(len(half) - size * _PARTS, len(half), size)
    return [min(half[begin : begin + size], key=lambda point: point[1]) for begin in begins]


def _gpu_series(series: Iterable[Sample], index: int) -> list[tuple[Sample, GpuSample]]:
    return [(sample, gpu) for sample in series for gpu in sample.gpus if gpu.index == index]


def _in_tensors(gpu: GpuSample) -> int:
    """Return the bytes of tensors; at the beginning of a step if known, since that point is alike in all steps."""
    return (gpu.allocated or 0) if gpu.at_batch is None else gpu.at_batch


def _tensor_series(series: Sequence[tuple[Sample, GpuSample]]) -> tuple[list[Sample], str, Callable[[Sample], int]]:
    """Return the samples of a GPU, its name, and the function that returns the bytes of its tensors at a sample."""
    by_time = {sample.time: _in_tensors(gpu) for sample, gpu in series}
    return [sample for sample, _ in series], _name(series), lambda sample: by_time[sample.time]


def _name(series: Sequence[tuple[Sample, GpuSample]]) -> str:
    return f"cuda:{series[-1][1].index}"

"""memload.probe: the peak of one step of the user's, the memory that it leaves behind, and advice."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from memload.device.memory import AllocatorBytes, GpuMemory, gpu_memory
from memload.planning.allocations import Allocations, Timeline, free_unused, is_out_of_memory, no_collection
from memload.sizes import format_size, parse_size

_FRAGMENTED = 0.2  # of reserved memory: the advice mentions a higher share
_ONE_LARGE = 0.3  # of the peak


@dataclass(frozen=True, repr=False)
class ProbeReport:
    """The memory that one step took. Sizes are in bytes.

    Attributes:
        peak: the most bytes alive at one time that the step allocated.
        kept: bytes that the step left, less earlier bytes that it freed: gradients and optimizer states after the first
            step, and near 0 after later ones, wherever the step sets gradients to zero.
        largest: the largest single allocation that was alive at the peak; 0 if it is not known.
        largest_from: the operation that made it.
        allocations: the number of allocations.
        out_of_memory: the message of the error, if memory ran out; else empty.
        fragmentation: the share of torch's reserved GPU memory that is caught between live blocks; 0 on a CPU.
        reserved: the most GPU memory that torch's allocator reserved during the step; 0 on a CPU.
        advice: sentences on what to change.
        results: the number of tensors that the step made and that are still alive with their graph, such as losses in a
            list. A sound step leaves none, in whichever order it calls zero_grad(), backward() and step().
        replaced: the number of results of earlier steps that were alive at its beginning and are gone. A step that
            replaces as many results as it leaves, such as the last loss in a variable, does not leak.
        chained: the number of `results` whose graph goes back into earlier steps, as ``total += loss`` makes it; such a
            graph grows with each step.
    """

    peak: int
    kept: int
    largest: int
    largest_from: str
    allocations: int
    out_of_memory: str
    fragmentation: float
    reserved: int
    advice: tuple[str, ...]
    results: int = 0
    replaced: int = 0
    chained: int = 0

    @property
    def fits(self) -> bool:
        """Whether the step ran to its end."""
        return not self.out_of_memory

    def __repr__(self) -> str:
        ended = "ran" if self.fits else "ran out of memory"
        reserved = f", reserved {format_size(self.reserved)}" if self.reserved else ""
        stays = self.results > self.replaced or self.chained
        results = f" ({self.results} result{'s' * (self.results != 1)} with their graph)" if stays else ""
        kept = f"kept {format_size(self.kept)}{results}"
        lines = [
            f"ProbeReport: the step {ended}; peak {format_size(self.peak)}, {kept}{reserved}, "
            f"fragmentation {self.fragmentation:.0%}",
            f"  largest at the peak: {format_size(self.largest)} by {self.largest_from or 'nothing'}",
        ]
        return "\n".join([*lines, *(f"  {sentence}" for sentence in self.advice)])


def probe(step: Callable[..., Any], *batch: Any, limit: int | str | None = None) -> ProbeReport:
    """Run one step, and return the memory that it took and advice; it catches errors that report exhausted memory.

    The step is the loop's own with forward pass, backward pass and optimizer, and its effects stay. It runs a little
    slower than usual, since each operation is observed. On a GPU the figures are those of torch's allocator.

    Args:
        step: a function of the batch.
        batch: its arguments.
        limit: the most bytes that the step may have alive at one time, such as "2GB"; if it needs more, it runs out of
            memory, as on a device of that size. Default: no limit but the device's own.

    Raises:
        Exception: any error of `step`, except those that report exhausted memory.

    Example:
        >>> import memload, torch
        >>> model = torch.nn.Linear(1000, 1000)
        >>> report = memload.probe(lambda x: model(x).sum().backward(), torch.rand(500, 1000))
        >>> report.peak, report.kept, report.results  # gradients, which stay, and two numbers
        (4004008, 4004000, 0)
        >>> memload.probe(lambda x: model(x), torch.rand(500, 1000), limit="1MB").fits
        False
    """
    before = _gpu(reset=True)
    message = ""
    with no_collection(), Allocations(None if limit is None else parse_size(limit)) as seen:
        tensors = _tensors()
        weights = max((one.nbytes for one in tensors if one.is_leaf and one.requires_grad), default=0)
        seen.know(one.grad for one in tensors if one.is_leaf and one.grad is not None)
        seen.know(tensors)
        earlier = EarlierResults(one for one in tensors if one.grad_fn is not None)
        del tensors
        try:
            step(*batch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        taken = seen.timeline()  # after the result of the step was dropped
        left = max(0, taken.kept - seen.freed_earlier)
        graphs = [one for one in _tensors() if one.grad_fn is not None]
        results = [one for one in graphs if seen.holds(one) or earlier.has_changed(one)]
        del graphs
        count, replaced, chained = len(results), earlier.gone, earlier.reached_from(results)
        del results
    if message:
        free_unused()
    after = _gpu()
    own = after.own if after else AllocatorBytes()
    peak = own.peak_allocated - before.own.allocated if after and before else taken.peak
    largest, operation = taken.largest()
    fragmentation = own.fragmentation
    return ProbeReport(
        peak=max(0, peak),
        kept=0 if message else left,
        largest=largest,
        largest_from=operation,
        allocations=len(taken.operations),
        out_of_memory=message,
        fragmentation=fragmentation,
        reserved=own.peak_reserved,
        advice=tuple(_advice(taken, message, fragmentation, own, 0 if message else count, replaced, chained, weights)),
        results=0 if message else count,
        replaced=0 if message else replaced,
        chained=0 if message else chained,
    )


def _tensors() -> list[torch.Tensor]:
    """Return all tensors and parameters that Python tracks; subclasses are skipped, since their code may run."""
    return [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]


def _gpu(*, reset: bool = False) -> GpuMemory | None:
    """Return the memory of the current GPU; None if this process has not started CUDA."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return None
    torch.cuda.synchronize()
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return gpu_memory()


def _counted(results: int) -> str:
    return "1 result is" if results == 1 else f"{results} results are"


def _advice(
    taken: Timeline,
    message: str,
    fragmentation: float,
    own: AllocatorBytes,
    results: int,
    replaced: int,
    chained: int,
    weights: int,
) -> list[str]:
    sentences = []
    largest, operation = taken.largest()
    if message:
        sentences.append(
            "Memory ran out: a smaller batch with accumulation, autocast in bfloat16 or checkpointing would help; "
            "memload.compute_batch_size finds the batch size; memload.fit says how much each measure saves."
        )
    if chained:
        sentences.append(
            f"{chained} of {_counted(results)} still there: their graph goes back into steps before, and grows with "
            "each: add loss.item() or loss.detach() to a total, and carry states over by x.detach()."
        )
    elif results > replaced:
        sentences.append(
            f"{_counted(results)} still there with their graph after the step: keep loss.item() or x.detach() "
            "instead, unless the next step replaces them, as it does the loss in a variable: a probe of it would tell."
        )
    if taken.peak and largest > max(_ONE_LARGE * taken.peak, weights):  # gradients are as large as their weights
        sentences.append(
            f"One tensor is {largest / taken.peak:.0%} of the peak, made by {operation}: compute it in chunks, in a "
            "smaller dtype, or in place."
        )
    if fragmentation > _FRAGMENTED:
        sentences.append(
            f"{fragmentation:.0%} of reserved memory lies in blocks partly in use: batches of one shape would help, "
            "or PYTORCH_ALLOC_CONF=expandable_segments:True in the environment."
        )
    if own.retries:
        sentences.append(
            f"The allocator had to empty its cache {own.retries} times, each of which waits for the GPU: leave it more "
            "room by a smaller batch."
        )
    if not sentences:
        sentences.append("Nothing to change.")
    return sentences


_MARK = "memload: before the step"


class EarlierResults:
    """The results that exist when it is made, by weak references.

    It marks the graph nodes of these results, in the metadata dictionary of each node.
    """

    def __init__(self, results: Iterable[torch.Tensor]) -> None:
        self._refs: list[weakref.ref[torch.Tensor]] = []
        for one in results:
            self._refs.append(weakref.ref(one))
            _metadata(one.grad_fn)[_MARK] = self._number

    @property
    def _number(self) -> int:
        return id(self)

    @property
    def gone(self) -> int:
        """The number of these results that were freed."""
        return sum(ref() is None for ref in self._refs)

    def has_changed(self, result: torch.Tensor) -> bool:
        """Return whether the graph node of a result is new, as after ``total += loss``, which works in place."""
        return bool(_metadata(result.grad_fn).get(_MARK) != self._number)

    def reached_from(self, results: Iterable[torch.Tensor]) -> int:
        """Return how many of these later results have a graph that reaches an earlier result."""
        return sum(self._reaches(one) for one in results)

    def _reaches(self, result: torch.Tensor) -> bool:
        waiting, seen = [result.grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if _metadata(node).get(_MARK) == self._number:
                return True
            waiting += [before for before, _ in node.next_functions]
        return False


def _metadata(node: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = node.metadata
    return found

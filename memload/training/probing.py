"""probe: one step of the user's, its peak, what is left of it, and what to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from memload.gpu.memory import AllocatorBytes, GpuMemory, gpu_memory
from memload.sizes import format_size, parse_size
from memload.training.allocations import Allocations, Timeline, no_collection
from memload.training.out_of_memory import give_back, is_out_of_memory

_FRAGMENTED = 0.2  # of what is reserved: above this share it is worth a sentence
_ONE_LARGE = 0.3  # of the peak


@dataclass(frozen=True, repr=False)
class ProbeReport:
    """What one step took. Sizes in bytes.

    Attributes:
        peak: the most that was alive at one time beyond what was there before the step.
        kept: of it, what was still there after the step: gradients and what optimizers keep, after the first step;
            near 0 afterwards. If every step keeps some, results are kept with their graph.
        largest: the largest single allocation that was alive at the peak; 0 where it is not known.
        largest_from: the operation that made it.
        allocations: how many were made.
        out_of_memory: what the error said, if memory ran out; empty if it did not.
        fragmentation: the share of what torch has reserved of a GPU that is caught between live blocks; on a CPU 0.
        reserved: what torch's allocator has taken of a GPU at most during the step; on a CPU 0.
        advice: sentences on what to change.
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

    @property
    def fits(self) -> bool:
        """Whether the step ran to its end."""
        return not self.out_of_memory

    def __repr__(self) -> str:
        ended = "ran" if self.fits else "ran out of memory"
        reserved = f", reserved {format_size(self.reserved)}" if self.reserved else ""
        lines = [
            f"ProbeReport: the step {ended}; peak {format_size(self.peak)}, kept {format_size(self.kept)}{reserved}, "
            f"fragmentation {self.fragmentation:.0%}",
            f"  largest at the peak: {format_size(self.largest)} by {self.largest_from or 'nothing'}",
        ]
        return "\n".join([*lines, *(f"  {sentence}" for sentence in self.advice)])


def probe(step: Callable[..., Any], *batch: Any, limit: int | str | None = None) -> ProbeReport:
    """Run one step, and return what it took of memory and what to change; running out of memory is caught.

    The step is the loop's own, forward, backward, optimizer and all, and its effects stay. It runs a little slower
    than usual, since each operation is observed. On a GPU figures are those of torch's allocator.

    Args:
        step: a function of the batch.
        batch: what it is called with.
        limit: bytes that may be alive at one time beyond what is there now, such as "2GB": beyond them the step runs
            out of memory, as on a device of that size. Default: no limit but the device's own.

    Raises:
        Exception: what `step` raises, unless it says that memory ran out.

    Example:
        >>> import memload, torch
        >>> model = torch.nn.Linear(1000, 1000)
        >>> report = memload.probe(lambda x: model(x).sum().backward(), torch.rand(500, 1000))
        >>> report.peak, report.kept  # gradients, which stay, and two numbers
        (4004008, 4004000)
        >>> memload.probe(lambda x: model(x), torch.rand(500, 1000), limit="1MB").fits
        False
    """
    before = _gpu(reset=True)
    said = ""
    with no_collection(), Allocations(None if limit is None else parse_size(limit)) as seen:
        try:
            step(*batch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        taken = seen.timeline()  # what the step returned is gone by now
    if said:
        give_back()
    after = _gpu()
    own = after.own if after else AllocatorBytes()
    peak = own.peak_allocated - before.own.allocated if after and before else taken.peak
    largest, operation = taken.largest()
    fragmentation = own.fragmentation
    return ProbeReport(
        peak=max(0, peak),
        kept=0 if said else taken.kept,
        largest=largest,
        largest_from=operation,
        allocations=len(taken.operations),
        out_of_memory=said,
        fragmentation=fragmentation,
        reserved=own.peak_reserved,
        advice=tuple(_advice(taken, said, fragmentation, own)),
    )


def _gpu(*, reset: bool = False) -> GpuMemory | None:
    """What the current GPU holds, if this process has begun to use one."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return None
    torch.cuda.synchronize()
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return gpu_memory()


def _advice(taken: Timeline, said: str, fragmentation: float, own: AllocatorBytes) -> list[str]:
    sentences = []
    largest, operation = taken.largest()
    if said:
        sentences.append(
            "Memory ran out: a smaller batch with accumulation, autocast in bf16 or checkpointing would help; "
            "memload.compute_batch_size finds the batch size, memload.fit what each brings."
        )
    if taken.peak and largest > _ONE_LARGE * taken.peak:
        sentences.append(
            f"One tensor is {largest / taken.peak:.0%} of the peak, made by {operation}: compute it in chunks, in a "
            "smaller dtype, or in place."
        )
    if fragmentation > _FRAGMENTED:
        sentences.append(
            f"{fragmentation:.0%} of what is reserved lies in blocks partly in use: batches of one shape would help, "
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

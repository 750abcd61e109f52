"""The summary of a monitor's run: peaks, findings, and the cost of the monitor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from memload.monitoring.diagnosis import Finding
from memload.monitoring.samples import Sample
from memload.sizes import counted, format_size


@dataclass(frozen=True)
class MonitorSummary:
    """The peaks of a monitor's run; ``print`` shows a few lines. Sizes are in bytes.

    Attributes:
        seconds: the duration of the run.
        samples: the number of samples.
        overhead: CPU time of the monitor's thread divided by `seconds`: the share of one core that it took.
        peak_held: the most memory without a file behind it that the process and its children held.
        peak_rss: the most of their resident pages, shared ones counted in each.
        peak_pss: the most of their resident pages, shared ones divided; sampled more rarely. None: not known here.
        peak_share: the largest share of `limit` that was in use and could not be reclaimed.
        limit: the memory that the process may use: its control group's limit, or the machine's memory.
        least_disk: the least free disk space; None: not known.
        gpus: for each GPU, the most allocated, the most reserved, the most that other processes took (None: not known),
            and its total.
        wait_share: the share of the passes' time that loops waited for batches.
        findings: the problems of which the monitor warned.
    """

    seconds: float
    samples: int
    overhead: float
    peak_held: int
    peak_rss: int
    peak_pss: int | None
    peak_share: float
    limit: int
    least_disk: int | None
    gpus: dict[str, tuple[int, int, int | None, int]]
    wait_share: float
    findings: tuple[Finding, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        pss = "" if self.peak_pss is None else f", PSS {format_size(self.peak_pss)}"
        lines = [
            f"memory at its peak: {format_size(self.peak_held)} held (RSS {format_size(self.peak_rss)}{pss}); "
            f"{self.peak_share:.0%} of {format_size(self.limit)} taken"
        ]
        for name, (allocated, reserved, others, total) in self.gpus.items():
            rest = "" if others is None else f", others {format_size(others)}"
            lines.append(
                f"{name} at its peak: {format_size(allocated)} in tensors, {format_size(reserved)} reserved{rest}, of "
                f"{format_size(total)}"
            )
        lines += [f"warned of: {finding.cause} ({finding.place})" for finding in self.findings]
        lines.append(f"{counted(self.samples, 'sample')} in {self.seconds:.0f} s took {self.overhead:.2%} of one core")
        return "\n".join(lines)


class Tally:
    """Keeps the peaks of samples, however many there are."""

    def __init__(self, first: Sample) -> None:
        self._first = self._last = first
        self._samples = 0
        self._held = self._rss = 0
        self._pss: int | None = None
        self._share = 0.0
        self._disk: int | None = None
        self._gpus: dict[str, tuple[int, int, int | None, int]] = {}

    def add(self, sample: Sample) -> None:
        """Count a sample."""
        self._last = sample
        self._samples += 1
        self._held, self._rss = max(self._held, sample.held), max(self._rss, sample.rss)
        self._share = max(self._share, sample.share)
        self._pss = _most(self._pss, sample.pss)
        if sample.disk_free is not None:
            self._disk = sample.disk_free if self._disk is None else min(self._disk, sample.disk_free)
        for gpu in sample.gpus:
            allocated, reserved, others, _ = self._gpus.get(f"cuda:{gpu.index}", (0, 0, None, 0))
            self._gpus[f"cuda:{gpu.index}"] = (
                max(allocated, gpu.allocated or 0, gpu.peak or 0),
                max(reserved, gpu.reserved or 0, gpu.own or 0),
                _most(others, gpu.others),
                gpu.total,
            )

    def summary(self, findings: Sequence[Finding], cpu_seconds: float) -> MonitorSummary:
        """Return the summary.

        Args:
            findings: the findings of which the monitor warned.
            cpu_seconds: processor time of the monitor's thread.
        """
        last = self._last
        seconds = max(1e-3, last.time - self._first.time)
        return MonitorSummary(
            seconds=seconds,
            samples=self._samples,
            overhead=cpu_seconds / seconds,
            peak_held=self._held,
            peak_rss=self._rss,
            peak_pss=self._pss,
            peak_share=self._share,
            limit=last.limit,
            least_disk=self._disk,
            gpus=dict(self._gpus),
            wait_share=last.wait_seconds / last.wall_seconds if last.wall_seconds else 0.0,
            findings=tuple(findings),
        )


def _most(first: int | None, second: int | None) -> int | None:
    return max((value for value in (first, second) if value is not None), default=None)

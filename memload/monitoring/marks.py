"""The limits `warn_at` and `stop_at` on the use of memory."""

from __future__ import annotations

import os
from dataclasses import dataclass

from memload.memory.budget import parse_slurm_memory
from memload.memory.limits import group_name
from memload.monitoring.diagnosis import Finding
from memload.monitoring.samples import Sample
from memload.sizes import format_size, parse_size

_OWN_SHARE = 0.05  # of `held`: from there on the message states memload's own memory
_LEAST_BYTES = 1000  # a smaller number is a share, or an error


@dataclass(frozen=True)
class Mark:
    """A limit: a share of the memory that the process may use, on the host and each GPU, or bytes that it holds.

    Attributes:
        name: the name of the argument that set it.
        share: from 0 to 1; None for a mark in bytes.
        nbytes: None for a share.
    """

    name: str
    share: float | None
    nbytes: int | None

    @classmethod
    def of(cls, name: str, value: float | int | str | None) -> Mark | None:
        """Return the mark that an argument sets; None sets none.

        Raises:
            ValueError: it is neither a share, nor a size.
            TypeError: it is neither a number nor a text.
        """
        if value is None:
            return None
        if isinstance(value, bool):
            raise TypeError(f'{name} is a share such as 0.9, or a size such as "12GB"; got {value!r}')
        share = isinstance(value, str) and value.strip().endswith("%")
        number = float(str(value).strip()[:-1]) / 100 if share else value
        if isinstance(number, int | float) and (share or number < _LEAST_BYTES):
            if not 0 < number <= 1:
                raise ValueError(
                    f'{name} is a share above 0 and at most 1, such as 0.9 or "90%", or a size of 1 kB or more, such '
                    f'as "12GB"; got {value!r}'
                )
            return cls(name, float(number), None)
        try:
            return cls(name, None, parse_size(int(value) if isinstance(value, float) else value))
        except (ValueError, OverflowError) as error:
            raise ValueError(f'{name} is a share such as 0.9, or a size such as "12GB"; got {value!r}') from error

    def passed(self, sample: Sample) -> list[Finding]:
        """Return a finding for each place at which a sample reaches the limit."""
        if self.nbytes is not None:
            if sample.held < self.nbytes:
                return []
            text = f"{_holding(sample)}, which is {self._mark_text()}"
            return [Finding("limit", text)]
        found = []
        if sample.share >= (self.share or 0):
            found.append(Finding("limit", f"{_host(sample)}, which is {self._mark_text()}"))
        for gpu in sample.gpus:
            if gpu.share >= (self.share or 0):
                others = f", others {format_size(gpu.others)}" if gpu.others else ""
                tensors = f"tensors take {format_size(gpu.allocated)}{others}" if gpu.allocated is not None else ""
                text = (
                    f"{gpu.share:.1%} of the GPU's {format_size(gpu.total)} are taken, {tensors}: {self._mark_text()}"
                )
                found.append(Finding("limit", text, f"cuda:{gpu.index}"))
        return found

    def _mark_text(self) -> str:
        value = format_size(self.nbytes) if self.nbytes is not None else f"{self.share:g}"
        return f"at or above {self.name}={value}"


def _host(sample: Sample) -> str:
    what = "the machine"
    if sample.group_limit is not None and sample.group_limit < sample.total:
        what = group_name("", sample.group_limit, parse_slurm_memory(os.environ))
    return f"{sample.share:.1%} of the {format_size(sample.limit)} of {what} are taken; {_holding(sample)}"


def _holding(sample: Sample) -> str:
    """Return a clause that says how much the program holds, and how much of that is memload's own."""
    own = min(sample.own, sample.held)
    held = f"this process and its children hold {format_size(sample.held)}"
    if own < _OWN_SHARE * sample.held:
        return held
    cached = f", {format_size(sample.cached)} of it caches that a smaller cache_bytes= bounds" if sample.cached else ""
    return f"{held} (of which {format_size(own)} are memload's own caches and rows in RAM{cached})"

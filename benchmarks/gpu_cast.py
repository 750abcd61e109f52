"""How near does cast_stim on a GPU come to the speed of its memory, and what do eager torch and torch.compile reach?

    python benchmarks/gpu_cast.py --json result.json

For 1 MB to 1 GB of uint8 pixels and each target dtype, the contestants take turns; each turn is timed by CUDA events,
and the median and quartiles of all turns are kept. The ceiling is a device-to-device copy that moves equally many bytes
(read and written together), so a share of 1 means the speed of memory. Sizes that fit into the GPU's cache exceed what
memory gives, the copy as much as the others. Needs a CUDA device; no run on one has been recorded yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from memload.cast import Cast, cast_stim
from memload.device import cuda_state
from memload.measure import machine

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MEGABYTES = (1, 4, 16, 64, 256, 1024)
TURN_MS = 2.0  # a turn repeats a short call until it lasts about this long


@dataclass(frozen=True)
class Figure:
    """One contestant at one size.

    Attributes:
        ms: median, and lower and upper quartile, of one call.
        gb_per_second: bytes read and written per second, at the median.
        share: of the device-to-device copy in the same run; near 1 the memory is the limit.
        exact: the result has the bits of the rule as computed on the CPU.
    """

    contestant: str
    dtype: str
    megabytes: int
    ms: tuple[float, float, float]
    gb_per_second: float
    share: float
    exact: bool


def eager(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (x.to(dtype) - 127) / 255.0


def contestants(x: torch.Tensor, dtype: torch.dtype) -> dict[str, Callable[[], torch.Tensor]]:
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    torch.compiler.reset()  # each size is compiled on its own: torch would give up after eight variants
    compiled = torch.compile(eager, dynamic=False)
    return {
        "cast_stim, out=": lambda: cast_stim(x, True, dtype, out=out),
        "cast_stim": lambda: cast_stim(x, True, dtype),
        "torch, compiled": lambda: compiled(x, dtype),
        "torch, eager": lambda: eager(x, dtype),
    }


def copier(moved: int) -> Callable[[], torch.Tensor]:
    source = torch.ones(moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def milliseconds(call: Callable[[], Any], repeats: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def take_turns(calls: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    for call in calls.values():
        milliseconds(call, 3)
    repeats = {name: max(1, round(TURN_MS / milliseconds(call, 3))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            times[name].append(milliseconds(call, repeats[name]))
    return times


def is_exact(result: torch.Tensor, x: torch.Tensor) -> bool:
    table = Cast(result.dtype, norm_removed=True).apply(torch.arange(256, dtype=torch.uint8)).to(x.device)
    part = slice(0, 1 << 20)
    return bool(torch.equal(result[part], table[x[part].int()]) and torch.equal(result[-999:], table[x[-999:].int()]))


def measure(megabytes: int, dtype: torch.dtype, turns: int) -> Iterator[Figure]:
    x = torch.randint(0, 256, (megabytes << 20,), dtype=torch.uint8, device="cuda")
    moved = x.numel() * (1 + dtype.itemsize)
    calls = contestants(x, dtype)
    exact = {name: is_exact(call(), x) for name, call in calls.items()}
    times = take_turns({"copy": copier(moved), **calls}, turns)
    ceiling = statistics.median(times["copy"])
    for name, measured in times.items():
        lower, median, upper = statistics.quantiles(measured, n=4)
        dtype_name = str(dtype).removeprefix("torch.")
        rate, share = moved / median / 1e6, ceiling / median
        yield Figure(name, dtype_name, megabytes, (median, lower, upper), rate, share, exact.get(name, True))


def line_of(figure: Figure) -> str:
    remark = "" if figure.exact else "  differs from the rule"
    return (
        f"{figure.megabytes:5} MB -> {figure.dtype:9} {figure.contestant:16} {figure.ms[0]:9.4f} ms "
        f"{figure.gb_per_second:8.0f} GB/s  {figure.share:5.2f} of copy{remark}"
    )


def fits(megabytes: int, dtype: torch.dtype) -> bool:
    """Pixels, result, one more result, eager's intermediates, and the copy's two halves."""
    free, _ = torch.cuda.mem_get_info()
    return (megabytes << 20) * (2 + 5 * dtype.itemsize) < free


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="where to write the figures")
    parser.add_argument("--turns", type=int, default=21, help="timed turns per contestant (default 21)")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "gpu_cast.py: torch finds no CUDA device\n")
    figures = []
    for megabytes in MEGABYTES:
        for dtype in (dtype for dtype in DTYPES if fits(megabytes, dtype)):
            for figure in measure(megabytes, dtype, arguments.turns):
                figures.append(figure)
                print(line_of(figure), flush=True)
            torch.cuda.empty_cache()
    gpu = {
        "name": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "cuda_of_torch": torch.version.cuda,
        "memload_cuda": asdict(cuda_state()),
    }
    document = {"machine": machine(), "gpu": gpu, "figures": [asdict(figure) for figure in figures]}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written to {arguments.json}")


if __name__ == "__main__":
    main()

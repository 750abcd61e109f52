"""What the GPU benchmarks share: the device and its clock, and figures that say what they should reach.

Without a GPU, `--quick --device cpu` runs every line of a script and shows only that it runs: nothing of that is a
figure.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from harness import Bench, arguments

from memload.cli.measure import Spread, in_turn, ratio
from memload.dataset.dataset import Dataset
from memload.device.cuda_module import cuda_state
from memload.device.devices import device_of
from memload.engine.request import EngineOptions

TURN_SECONDS = 2e-3  # a turn repeats a short call until it lasts about this long
EPOCH_SECONDS = 0.6  # what is timed by the clock lasts at least half a second, and is planned for this
MB = 1 << 20
# What a loader to the GPU may be told otherwise: what wakes its threads, and what waits for the bus, costs it time.
VARIED = {"8 threads": EngineOptions(threads=8), "8 batches ahead": EngineOptions(depth=8)}
# What nvidia-smi says of the bus; "current" is the least while nothing is copied.
SMI_FIELDS = ("driver_version", "pcie.link.gen.current", "pcie.link.gen.max")
SMI_FIELDS += ("pcie.link.width.current", "pcie.link.width.max", "clocks.max.memory", "power.limit")


def gpu_arguments(question: str, *, rounds: int, default: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The arguments of every GPU benchmark."""
    parser = arguments(question, rounds=rounds, default=default)
    parser.add_argument("--device", default="cuda", help="the GPU (default: the current one), or cpu to try the script")
    return parser


class GpuBench(Bench):
    """One run of a script on a device."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self.device = device_of(args.device)
        self.about = {"gpu": gpu_facts(self.device)}
        self._failed: list[str] = []

    def attempt(self, case: str, part: Callable[..., object], *given: Any) -> None:
        """Does one part of the run. If it fails, that is told and kept among the figures, and the next part follows."""
        try:
            part(*given)
        except Exception as error:  # whatever it is: a machine with a GPU is rarely at hand, and the rest is as good
            traceback.print_exc()
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            self._failed.append(f"{case}, {part.__name__}")
            self.add(case, f"{part.__name__} did not get to its end: {said}", error=f"{part.__name__}: {said}")

    def end(self) -> None:
        """Ends the run, with a status other than 0 if a part of it failed."""
        if self._failed:
            sys.exit(f"{self.name}: did not get to their end, see above: {'; '.join(self._failed)}")

    def add(self, case: str, text: str, **figures: Any) -> None:
        """Keeps one answer, prints it, and writes the JSON as it is by now: the run may be ended at any moment."""
        super().add(case, text, **figures)
        self.save()

    def judge(
        self, case: str, what: str, found: Spread, target: float | None, *, at_most: bool = False, **more: Any
    ) -> None:
        """Keeps one answer beside what it should reach; target None: it is only told."""
        met = None if target is None else found.median <= target if at_most else found.median >= target
        sign, verdict = ("<=" if at_most else ">="), {None: "", True: "met", False: "NOT MET"}[met]
        wanted = "" if target is None else f"  wanted {sign} {target:g}: {verdict}"
        text = f"{what}: {found.median:.3g} ({found.low:.3g} to {found.high:.3g}){wanted}"
        self.add(case, text, what=what, found=found, target=target, at_most=at_most, met=met, **more)


def gpu_facts(device: torch.device) -> dict[str, Any]:
    """What a figure of a GPU must be read with; MEMLOAD_COMMIT names what was measured."""
    commit = os.environ.get("MEMLOAD_COMMIT", "unknown")
    if device.type != "cuda":
        return {"name": f"{device}: a run without a GPU, of which nothing is a figure", "commit": commit}
    return {
        "name": torch.cuda.get_device_name(device),
        "commit": commit,
        "capability": torch.cuda.get_device_capability(device),
        "cuda_of_torch": torch.version.cuda,
        "memload_cuda": asdict(cuda_state(device.index)),
        "nvidia_smi": smi_facts(device),
    }


def smi_facts(device: torch.device) -> dict[str, str]:
    """Driver and bus, as nvidia-smi tells them; one word where there is no nvidia-smi."""
    asked = ["nvidia-smi", f"--id={smi_id(device)}", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return {"unknown": f"{type(error).__name__}: {error}"}
    return dict(zip(SMI_FIELDS, (value.strip() for value in said.split(",")), strict=False))


def smi_id(device: torch.device) -> str:
    """What nvidia-smi knows a device by: its UUID, since CUDA_VISIBLE_DEVICES numbers devices anew."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return str(device.index or 0) if uuid is None else f"GPU-{uuid}"


def finish(device: torch.device) -> None:
    """Waits until the device has done what it was given; a benchmark may, a loader never does."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Seconds that one call takes on the device, from the events around `repeats` of them."""
    if device.type != "cuda":
        begun = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - begun) / repeats
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats / 1e3


def take_turns(
    calls: Mapping[str, Callable[[], Any]], device: torch.device, turns: int, *, warm: int = 3
) -> dict[str, list[float]]:
    """Seconds of a call by name, for each turn; the contestants take turns."""
    for call in calls.values():
        seconds_of(call, device, warm)
    repeats = {name: max(1, round(TURN_SECONDS / seconds_of(call, device, warm))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            times[name].append(seconds_of(call, device, repeats[name]))
    return times


def clocked(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds of something that hands work to the device, until that is done."""
    finish(device)
    begun = time.perf_counter()
    run()
    finish(device)
    return time.perf_counter() - begun


def faster(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """How many times as fast: their seconds over ours, round by round."""
    return ratio(theirs, ours)


def device_copy(moved: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """A copy on the device that moves so many bytes, read and written together: the speed of its memory."""
    source = random_bytes(max(1, moved // 2)).to(device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def random_bytes(nbytes: int, *, pinned: bool = False) -> torch.Tensor:
    """Random uint8 (nbytes,) in RAM: a bus or memory that compresses would move others faster."""
    made = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
    made.numpy()[:] = np.random.default_rng(0).integers(0, 1 << 63, nbytes // 8 + 1, np.int64).view(np.uint8)[:nbytes]
    return made


def lengthened(ds: Dataset, times: int) -> Dataset:
    """The rows so many times, for epochs that last."""
    return ds.select(torch.arange(len(ds)).repeat(times))


def times_to_last(seconds: float, *, quick: bool) -> int:
    """How many times something that takes so many seconds is to be done, for a time that a clock tells well."""
    return 1 if quick else max(1, round(EPOCH_SECONDS / seconds + 0.5))


def compiled_or_none(fn: Callable[..., Any], *example: Any) -> Callable[..., Any] | None:
    """What torch.compile makes of a function, once called with an example; None, and a word, where it cannot."""
    try:
        made: Callable[..., Any] = torch.compile(fn, dynamic=False)
        made(*example)
    except Exception as error:  # no compiler, no headers of Python, a Triton that does not find the driver
        print(f"torch.compile is left out: {str(error).strip().splitlines()[:1]}", flush=True)
        return None
    return made


class PinnedCopies:
    """A plain loop of asynchronous copies from pinned memory, the ceiling of whatever brings batches to a device.

    The loop uses 1, 2 or 4 pairs of buffers in turn, whichever is the fastest.

    Args:
        nbytes: of one copy.
        device: where to.
        quick: makes few copies, for a run that only shows that it runs.
        memory: the pinned memory, a buffer of `nbytes` for each; None: torch's.
    """

    DEPTHS = (1, 2, 4)

    def __init__(
        self,
        nbytes: int,
        device: torch.device,
        *,
        quick: bool = False,
        memory: Sequence[torch.Tensor] | None = None,
    ) -> None:
        noise = random_bytes(nbytes)
        self.nbytes = nbytes
        self._device = device
        buffers = memory or [
            torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda") for _ in range(max(self.DEPTHS))
        ]
        self._pairs = [(buffer.copy_(noise), noise.to(device)) for buffer in buffers]
        self._turn = 0
        self._depth = 1
        loops = {str(depth): lambda depth=depth: self._run(8, depth) for depth in self.DEPTHS}
        in_turn(loops, 1)
        tried = in_turn(loops, 1 if quick else 5)
        self._depth = min(self.DEPTHS, key=lambda depth: median(tried[str(depth)]))
        self._copies = 2 if quick else max(8, times_to_last(median(tried[str(self._depth)]), quick=False))

    def seconds(self) -> float:
        """Seconds of one copy, of a loop that lasts about half a second."""
        return self.run(self._copies)

    def run(self, copies: int) -> float:
        """Seconds of one copy, of a loop of so many."""
        return self._run(copies, self._depth)

    def by_buffer(self) -> list[float]:
        """Seconds of a copy out of each buffer alone: they differ where some of the memory is far from the device."""
        found = []
        for source, target in self._pairs:
            copy = lambda to=target, of=source: to.copy_(of, non_blocking=True)  # noqa: E731
            copy()
            found.append(clocked(lambda copy=copy: [copy() for _ in range(8)], self._device) / 8)
        return found

    def queue_one(self) -> None:
        """Queues one copy in the current stream."""
        self._turn = (self._turn + 1) % self._depth
        source, target = self._pairs[self._turn]
        target.copy_(source, non_blocking=True)

    def _run(self, copies: int, depth: int) -> float:
        self._depth = depth

        def loop() -> None:
            for _ in range(copies):
                self.queue_one()

        return clocked(loop, self._device) / copies


def median(values: Iterable[float]) -> float:
    """The median."""
    return statistics.median(values)

"""What does a training step lose whose frozen teacher lives in RAM, beside the same step with the teacher on the GPU?

A student is trained to say what a teacher of large linear layers says, for steps of several lengths: the student runs
once, 8 times, 32 times ... on each batch. The teacher is on the GPU all the time (the ceiling), is offloaded as
a whole, or layer by layer; its weights are asked for when a step begins. A step that is longer than the transfer of the
weights should lose at most 10 % to a teacher that is offloaded as a whole. Layer by layer the transfer hides behind the
teacher's own work alone, which is told without a target.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from gpu_common import MB, GpuBench, PinnedCopies, clocked, gpu_arguments, median, times_to_last
from gpu_data import OtherDataError, difference

import memload
from memload.cli.measure import Spread, in_turn

REPEATS = (128, 32, 8, 1)  # how often the student runs on a batch; first what has a target, should the run be ended
TRIED = 4  # steps that tell how long one takes
LAYERS, WIDTH, ROWS = 16, 4096, 512  # 512 MB of weights in half precision
SMALL = (4, 64, 8)
COPIED = 64 * MB  # in one copy, as weights are


def teacher_of(layers: int, width: int, dtype: torch.dtype) -> torch.nn.Sequential:
    made = [part for _ in range(layers) for part in (torch.nn.Linear(width, width, dtype=dtype), torch.nn.GELU())]
    return torch.nn.Sequential(*made).eval().requires_grad_(False)


class Loop:
    """Steps of a student that learns from a teacher."""

    def __init__(self, width: int, rows: int, dtype: torch.dtype, device: torch.device, repeats: int) -> None:
        self.x = torch.rand(rows, width, dtype=dtype, device=device)
        self.student = torch.nn.Linear(width, width, dtype=dtype, device=device)
        self.optimizer = torch.optim.SGD(self.student.parameters(), lr=1e-3)
        self.repeats = repeats

    def run(self, steps: int, teach: Callable[[torch.Tensor], torch.Tensor], ask: Callable[[], None]) -> None:
        """Steps in which the teacher is asked for first, and speaks last."""
        for _ in range(steps):
            ask()
            for _ in range(self.repeats - 1):
                self.learn(self.x)
            self.learn(teach(self.x))

    def learn(self, said: torch.Tensor) -> None:
        """One update of the student."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(self.student(self.x), said).backward()
        self.optimizer.step()


def nothing() -> None:
    """What a teacher that is there has to be asked for."""


def offloaded(teacher: torch.nn.Module, device: torch.device, layerwise: bool) -> memload.Offloaded[torch.nn.Module]:
    return memload.offload(copy.deepcopy(teacher), device, layerwise=layerwise)


def teaching(away: memload.Offloaded[torch.nn.Module]) -> Callable[[torch.Tensor], torch.Tensor]:
    def teach(x: torch.Tensor) -> torch.Tensor:
        with away as module, torch.no_grad():
            said: torch.Tensor = module(x)
        return said

    return teach


class Teachers:
    """One teacher on the GPU all the time, and the same one offloaded in either way."""

    def __init__(self, device: torch.device, size: tuple[int, int, int], *, quick: bool) -> None:
        layers, self.width, self.rows = size
        self.dtype = torch.float32 if device.type == "cpu" else torch.float16
        teacher = teacher_of(layers, self.width, self.dtype)
        weights = copy.deepcopy(teacher.state_dict())
        self.nbytes = sum(parameter.nbytes for parameter in teacher.parameters())
        self.away = {
            "as a whole": offloaded(teacher, device, False),
            "layer by layer": offloaded(teacher, device, True),
        }
        for name, away in self.away.items():
            with away as module:
                unlike = None if name == "layer by layer" else difference(module.state_dict(), weights, device)
            if unlike is not None:
                raise OtherDataError(f"a teacher that is offloaded {name} has other weights: {unlike}")
        self._there = teacher.to(device)
        x = torch.rand(self.rows, self.width, dtype=self.dtype, device=device)
        wanted = {"said": self.resident(x).cpu()}
        for name, away in self.away.items():
            unlike = difference({"said": teaching(away)(x)}, wanted, device)
            if unlike is not None:
                raise OtherDataError(f"a teacher that is offloaded {name} says other than one that is there: {unlike}")
        copies = PinnedCopies(min(COPIED, self.nbytes), device, quick=quick)
        self.transfer = copies.seconds() * self.nbytes / copies.nbytes

    def resident(self, x: torch.Tensor) -> torch.Tensor:
        """What the teacher that is always there says."""
        with torch.no_grad():
            said: torch.Tensor = self._there(x)
        return said


def measure(bench: GpuBench, teachers: Teachers, repeats: int) -> None:
    device, steps = bench.device, 2 if bench.args.quick else TRIED
    loop = Loop(teachers.width, teachers.rows, teachers.dtype, device, repeats)
    calls = {"resident": lambda: loop.run(steps, teachers.resident, nothing)}
    calls |= {name: lambda one=one: loop.run(steps, teaching(one), one.prefetch) for name, one in teachers.away.items()}
    for call in calls.values():
        call()
    if not bench.args.quick:
        steps = max(TRIED, times_to_last(clocked(calls["resident"], device) / steps, quick=False))
    timed = {name: lambda call=call: clocked(call, device) / steps for name, call in calls.items()}
    times = in_turn(timed, bench.rounds)
    transfer, step = teachers.transfer, median(times["resident"])
    for name, target in {"as a whole": 0.1 if step > transfer else None, "layer by layer": None}.items():
        lost = Spread.of(ours / ideal - 1 for ours, ideal in zip(times[name], times["resident"], strict=True))
        text = f"time lost, teacher of {teachers.nbytes / MB:.0f} MB offloaded {name}"
        figures = {"step_seconds": Spread.of(times["resident"]), "transfer_seconds": transfer, "repeats": repeats}
        case = f"{step * 1e3:.3g} ms a step, {transfer * 1e3:.3g} ms to copy"
        bench.judge(case, text, lost, target, at_most=True, **figures)


def main() -> None:
    bench = GpuBench(gpu_arguments("a teacher that lives in RAM", rounds=3).parse_args())
    teachers = Teachers(bench.device, SMALL if bench.args.quick else (LAYERS, WIDTH, ROWS), quick=bench.args.quick)
    for repeats in REPEATS[-1:] if bench.args.quick else REPEATS:
        bench.attempt(f"{repeats} repeats", measure, bench, teachers, repeats)
    bench.save()
    bench.end()


if __name__ == "__main__":
    main()

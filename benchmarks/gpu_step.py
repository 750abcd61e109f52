"""What does the loader cost a training loop on a GPU, beside the same loop on tensors that lie there already?

A small convolutional net is trained on W1 in bfloat16, for steps of several lengths: the net runs once, twice, four
times ... on each batch. The same steps on a few batches that stay on the GPU are the ceiling: what is lost to data is
what the loop with the loader takes longer. It should be nothing wherever a step is longer than the transfer of its
batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import torch
from gpu_common import GpuBench, PinnedCopies, clocked, gpu_arguments, lengthened, median, times_to_last
from gpu_data import compare_some
from gpu_loader import loader_of
from harness import Case

from memload.cli.measure import Spread, cpu_seconds, in_turn

REPEATS = (1, 2, 4, 8)  # how often the net runs on a batch
TRIED = 20  # steps that tell how long one takes
PASSES = 20  # how often a pass takes the rows, so that few passes begin while a loop is timed
RESIDENT = 4  # batches that stay on the GPU


class Net(torch.nn.Module):
    """Images (B, H, W, C), or movies (B, T, H, W) as images of T channels, to ten numbers."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(channels, 32, 7, stride=4), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, stride=2),
            torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The ten numbers."""
        made: torch.Tensor = self.layers(x.movedim(-1, 1) if x.shape[-1] <= 4 else x)
        return made


def trainer(device: torch.device, example: torch.Tensor, repeats: int) -> Callable[[torch.Tensor], None]:
    net = Net(example.shape[-1] if example.shape[-1] <= 4 else example.shape[1]).to(device, example.dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(x: torch.Tensor) -> None:
        for _ in range(repeats):
            optimizer.zero_grad(set_to_none=True)
            net(x).float().square().mean().backward()
            optimizer.step()

    return step


def loop(step: Callable[[torch.Tensor], None], batches: Iterable[torch.Tensor]) -> None:
    for batch in batches:
        step(batch)


def first(batches: Iterable[dict[str, torch.Tensor]], count: int) -> Iterator[torch.Tensor]:
    """So many batches, beginning new epochs as often as needed."""
    while count:
        for batch in batches:
            yield batch["stim"]
            count -= 1
            if not count:
                return


def measure(bench: GpuBench, case: Case, repeats: int, copies: PinnedCopies) -> None:
    device, quick = bench.device, bench.args.quick
    compare_some(loader_of(case, device), loader_of(case, torch.device("cpu")), device)
    loader = loader_of(case, device, lengthened(case.workload.open(case.folder), 1 if quick else PASSES))
    resident = [batch.clone() for batch in first(loader, RESIDENT)]
    step = trainer(device, resident[0], repeats)

    def fed(steps: int) -> Iterator[torch.Tensor]:
        return itertools.islice(itertools.cycle(resident), steps)

    def without() -> float:
        return clocked(lambda: loop(step, fed(steps)), device) / steps

    steps = 1 if quick else TRIED
    without()
    steps = 2 if quick else max(TRIED, times_to_last(without(), quick=False))
    cpu: list[float] = []

    def with_loader() -> float:
        batches = first(loader, steps + 2)
        next(batches)  # what it costs to begin is gpu_resident.py's question; and the last one is not taken,
        begun = cpu_seconds()  # so that the pass ends behind what is timed
        seconds = clocked(lambda: loop(step, itertools.islice(batches, steps)), device)
        cpu.append((cpu_seconds() - begun) / seconds)
        return seconds / steps

    times = in_turn({"loader": with_loader, "resident": without, "copy": copies.seconds}, bench.rounds)
    transfer = median(times["copy"])
    lost = Spread.of(ours / ideal - 1 for ours, ideal in zip(times["loader"], times["resident"], strict=True))
    longer = median(times["resident"]) > transfer
    name = f"{case.workload.name}, {median(times['resident']) * 1e3:.2g} ms a step"
    text = "time lost to data" + ("" if longer else f" (a transfer alone takes {transfer * 1e3:.2g} ms)")
    figures = {"step_seconds": Spread.of(times["resident"]), "transfer_seconds": transfer, "repeats": repeats}
    bench.judge(name, text, lost, 0.02 if longer else None, at_most=True, **figures)
    bench.judge(name, "CPUs used by the loop with the loader", Spread.of(cpu), None)


def main() -> None:
    parser = gpu_arguments("a training loop on a GPU", rounds=3, default=("W1",))
    parser.set_defaults(variants=["bf16"])
    bench = GpuBench(parser.parse_args())
    with bench.cases() as cases:
        for case in cases:
            nbytes = case.workload.batch_size * case.workload.row_bytes
            copies = PinnedCopies(nbytes, bench.device, quick=bench.args.quick)
            for repeats in REPEATS[:1] if bench.args.quick else REPEATS:
                bench.attempt(case.name, measure, bench, case, repeats, copies)
    bench.end()


if __name__ == "__main__":
    main()

"""Does a training run take the memory of a GPU that `memload.plan` states beforehand?

Each case is a plan that this process makes, with a model that takes no memory, and a run in a fresh process, of which
this one sees what it leaves free: so the context, the libraries' own memory and what torch's allocator keeps count, as
they do for whoever lacks them. Nobody else may use the GPU meanwhile. Wanted is a plan between 0.85 and 1.10 of what
the run takes, as of RAM (docs/memory-truth.md).

On the CPU, RAM is compared: that shows only that the script runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from gpu_common import GpuBench, finish, gpu_arguments
from truth_training import MODELS, loss_of, make_rows

import memload
from memload.cli.measure import Spread
from memload.sizes import format_size

CASES = [  # model, rows, precision: first those whose parts differ most, should the run be ended
    ("ViT", 64, "bf16-mixed"),
    ("MLP", 256, "float32"),
    ("CNN", 64, "bf16-mixed"),
    ("ViT", 64, "float32"),
    ("LSTM", 256, "float32"),
]
EPOCHS = 8  # of 512 rows
LOW, HIGH = 0.85, 1.10  # a plan, of what the run takes
CHILD, DONE = "--child", "done:"


def stated(folder: Path, name: str, rows: int, precision: str, device: torch.device) -> int:
    """The bytes of the device in the plan of a case."""
    with torch.device("meta"):
        model = MODELS[name]()
    plan = memload.plan(
        memload.open(folder / "rows"),
        rows,
        shuffle=True,
        cast={"x": torch.float32},
        device=device.type,
        model=model,
        optimizer=torch.optim.AdamW,
        loss=lambda batch: loss_of(model, batch),
        precision=precision,
    )
    return (plan.ram if plan.gpu is None else plan.gpu).predicted


def train(folder: Path, name: str, rows: int, precision: str, device: torch.device) -> None:
    """The run of a case, whose memory is held at its end until a line comes."""
    model = MODELS[name]().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    data = memload.open(folder / "rows")
    loader = memload.FastLoader(data, rows, shuffle=True, cast={"x": torch.float32}, device=device)
    for _ in range(EPOCHS):
        for batch in loader:
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed"):
                loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    finish(device)
    print(f"{DONE} {torch.cuda.max_memory_allocated(device) if device.type == 'cuda' else 0}", flush=True)
    sys.stdin.readline()


def taken(device: torch.device, *case: object) -> tuple[int, int]:
    """The bytes that the run of a case takes, and those of its tensors at their most; RSS and 0 on the CPU."""
    before = free_of(device)
    command = [sys.executable, __file__, CHILD, *map(str, case), str(device)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        said = run.stdout.readline()
        if not said.startswith(DONE):
            raise RuntimeError(f"the run ended before its steps were done, with status {run.wait()}; it says {said!r}")
        found = before - free_of(device) if device.type == "cuda" else rss_of(run.pid)
        run.stdin.write("\n")
    return found, int(said.split()[1])


def free_of(device: torch.device) -> int:
    """The bytes of a GPU that nobody has; 0 of the CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def rss_of(pid: int) -> int:
    """The resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(bench: GpuBench, folder: Path, name: str, rows: int, precision: str) -> None:
    predicted = stated(folder, name, rows, precision, bench.device)
    measured, tensors = taken(bench.device, folder, name, rows, precision)
    ratio = predicted / measured
    case = f"{name}, {rows} rows, {precision}"
    figures = {"predicted": predicted, "measured": measured, "tensors": tensors, "ratio": ratio}
    what = f"stated {format_size(predicted)}, taken {format_size(measured)}: {ratio:.2f} times, off by"
    bench.judge(case, what, Spread.of([abs(ratio - 1)]), HIGH - 1 if ratio > 1 else 1 - LOW, at_most=True, **figures)


def main() -> None:
    bench = GpuBench(gpu_arguments("a plan of a GPU's memory beside the run", rounds=1).parse_args())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_rows(folder)
        free_of(bench.device)  # makes this process' own context, which counts for no run
        for case in CASES[1:2] if bench.args.quick else CASES:
            bench.attempt(", ".join(map(str, case)), measure, bench, folder, *case)
    bench.end()


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        place, name, rows, precision, device = sys.argv[2:]
        train(Path(place), name, int(rows), precision, torch.device(device))
    else:
        main()

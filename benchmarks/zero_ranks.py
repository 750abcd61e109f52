"""Are the parameters and optimizer states that plans state for ZeRO those of DeepSpeed itself?

Two processes train a small net under each stage, in float32 and in bfloat16 with float32 copies for the optimizer, on
the CPU (gloo). What each rank keeps is counted as the storages of DeepSpeed's own tensors, padding included, and stands
beside the lines of the plan. Needs DeepSpeed, which nothing else here does: ``pip install deepspeed``.

    python benchmarks/zero_ranks.py    # -> results/zero_ranks.json
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from ranks import Net, planned  # noqa: E402

RANKS, ROWS = 2, 64
STAGES = (1, 2, 3)
PRECISIONS = ("float32", "bf16-mixed")


def nbytes_of(values: Iterable[Any]) -> int:
    """Bytes of the storages of all tensors, each counted once."""
    storages = [value.untyped_storage() for value in values if isinstance(value, torch.Tensor) and value.numel()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def engine_of(stage: int, precision: str) -> tuple[Any, Any]:
    """DeepSpeed's engine and optimizer over a net."""
    import deepspeed

    half = precision == "bf16-mixed"
    net = Net().bfloat16() if half else Net()
    persistent = {"stage3_param_persistence_threshold": 0} if stage == 3 else {}
    settings = {
        "train_micro_batch_size_per_gpu": ROWS,
        "bf16": {"enabled": half},
        "zero_optimization": {"stage": stage, **persistent},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, optimizer, _, _ = deepspeed.initialize(
        model=net, optimizer=torch.optim.AdamW(net.parameters()), config=settings
    )
    return engine, optimizer


def trained(stage: int, precision: str) -> dict[str, int]:
    """What a rank keeps after two steps: its parameters, and its float32 copies and states together."""
    engine, optimizer = engine_of(stage, precision)
    for _ in range(2):
        batch = torch.rand(ROWS, 31, dtype=next(engine.module.parameters()).dtype)
        engine.backward(engine(batch).float().mean())
        engine.step()
    parameters = nbytes_of(getattr(one, "ds_tensor", one) for one in engine.module.parameters())
    return {"parameters": parameters, "optimizer states": nbytes_of(_kept(optimizer))}


def _kept(optimizer: Any) -> Iterator[Any]:
    """The float32 copies of the rank's parameters, whose name depends on the stage, and the optimizer's states."""
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
        yield from getattr(optimizer, name, ())
    for state in optimizer.optimizer.state.values():
        yield from state.values()


def rank() -> None:
    """One of the processes: prints what it found, as the last line."""
    import deepspeed

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    found = {f"zero{stage}, {precision}": trained(stage, precision) for stage in STAGES for precision in PRECISIONS}
    print(json.dumps(found))


def run() -> list[dict[str, dict[str, int]]]:
    """What each rank found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_SIZE": str(RANKS)}
    own = [{"RANK": str(k), "LOCAL_RANK": str(k), "WORLD_SIZE": str(RANKS)} for k in range(RANKS)]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank"],
            env={**os.environ, **common, **one},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for one in own
    ]
    printed = [process.communicate(timeout=600)[0].splitlines() for process in processes]
    return [json.loads(lines[-1]) for lines in printed]


def main() -> None:
    import deepspeed

    found = run()
    figures = []
    for case in found[0]:
        strategy, precision = case.split(", ")
        lines = planned(Net(), torch.optim.AdamW, strategy, RANKS, precision, ROWS)
        for name in ("parameters", "optimizer states"):
            measured = max(one[case][name] for one in found)
            figures.append({"case": case, "figure": name, "planned": lines[name], "measured": measured})
            print(f"{case:18} {name:16} {lines[name]:>9,} planned, {measured:>9,} of DeepSpeed", flush=True)
    about = {"deepspeed": deepspeed.__version__, "torch": torch.__version__, "ranks": RANKS}
    kept = {"benchmark": "zero_ranks", **about, "figures": figures}
    (Path(__file__).parent / "results" / "zero_ranks.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    rank() if "--rank" in sys.argv else main()

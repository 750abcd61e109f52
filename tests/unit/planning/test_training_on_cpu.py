"""device="cpu": models, optimizers and activations are in RAM, and a run lives under the limit of `Plan.mem`."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cgroups import why_not
from repository import BENCHMARKS
from torch import nn
from waiting import MOST_SECONDS

import memload
from memload.planning.gpu_account import OPTIMIZER_LIBRARIES

SHAPE = memload.DatasetShape(1_000, {"x": ("float32", (100,))})
ELSEWHERE = {"ram": "4GB", "disk": "1GB"}


def planned(batch_size=10, model=None, shape=SHAPE, **more):
    with torch.device("meta"):
        model = nn.Linear(100, 1000, bias=False) if model is None else model  # 400 kB
    return memload.plan(shape, batch_size, model=model, **{**ELSEWHERE, **more})


def test_models_that_train_on_the_cpu_are_in_ram_and_no_gpu_is_needed():
    plan = planned(device="cpu", optimizer=torch.optim.AdamW)
    assert plan.gpu is None
    assert plan.ram.of("parameters") == plan.ram.of("gradients") == 400_000
    assert plan.ram.of("optimizer states") == 800_000 + 4
    assert plan.ram.of("libraries") == OPTIMIZER_LIBRARIES
    assert plan.ram.of("activations") >= 10 * 1000 * 4
    assert all(plan.stock.of(name) == plan.ram.of(name) for name in ("parameters", "optimizer states", "activations"))
    assert "MALLOC_MMAP_THRESHOLD_=262144" in str(plan)


def test_without_a_device_models_train_on_a_gpu_as_before():
    plan = planned(optimizer=torch.optim.AdamW, gpu="16GB")
    assert plan.gpu.of("parameters") == 400_000
    assert plan.ram.of("parameters") == plan.ram.of("libraries") == 0


def test_each_process_has_a_model_of_its_own():
    one, two = (planned(device="cpu", optimizer=torch.optim.SGD, processes=count) for count in (1, 2))
    for name in ("parameters", "gradients", "activations", "libraries"):
        assert two.ram.of(name) == 2 * one.ram.of(name) > 0


def test_weights_and_libraries_that_this_process_has_already_count_once():
    importlib.import_module("torch._dynamo")
    plan = memload.plan(SHAPE, 10, model=nn.Linear(100, 1000), device="cpu", optimizer=torch.optim.SGD)
    assert plan.ram.of("parameters") == plan.ram.of("libraries") == 0
    assert plan.ram.of("gradients") == 404_000


def test_auto_leaves_room_for_the_model():
    rows = memload.DatasetShape(1_000, {"x": ("float32", (500_000,))})  # 2 GB
    with torch.device("meta"):
        large = nn.Linear(500_000, 500, bias=False)  # 1 GB, and as much for its gradients
    settings = {"tier": "auto", "ram": "4GB", "disk": "10GB"}
    assert memload.plan(rows, 1, **settings).tier == "mmap"  # the page cache holds them
    with_model = memload.plan(rows, 1, model=large, device="cpu", **settings)
    assert with_model.tier != "mmap"
    assert with_model.fits


def test_a_batch_that_is_too_large_is_cut_into_parts_that_fit_or_computed_in_half_precision():
    rows = memload.DatasetShape(1_000_000, {"x": ("float32", (100,))})
    plan = planned(200_000, shape=rows, device="cpu", ram="1.2GB")
    assert not plan.fits
    assert any("accumulated: RAM" in way for way in plan.ways_out)
    assert any('precision="bf16-mixed"' in way for way in plan.ways_out)


@pytest.mark.parametrize("more", [{"gpu": "16GB"}, {"offload": True}])
def test_what_is_for_a_gpu_contradicts_training_on_the_cpu(more):
    with pytest.raises(ValueError, match='device="cpu" trains the model on the CPU'):
        planned(device="cpu", **more)


def of_a_fresh_run(case, tmp_path):
    """The row of `memory_truth.py` for one of its cases."""
    kept = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "memory_truth.py", "--quick", "--only", case, "--out", kept],
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        env={**os.environ, "PYTHONPATH": str(Path(memload.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(kept.read_text())["figures"]
    assert found["case"] == case
    assert found["survived"], done.stderr
    return found


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_run_lives_under_a_control_group_of_the_size_that_its_plan_asks_for(tmp_path):
    found = of_a_fresh_run("train: MLP, 256 rows, AdamW", tmp_path)
    assert found["limit"] == 2 << 30
    assert 0.85 < found["ratio"]["median"] < 1.1


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_batch_size_that_was_chosen_under_a_limit_fills_it_and_lives(tmp_path):
    pytest.importorskip("torch_geometric")
    found = of_a_fresh_run("limit: GAT, 0.5 GB, 0.8 of what is free, with a loader", tmp_path)
    assert 0.75 * found["limit"] < found["measured"] <= found["limit"]

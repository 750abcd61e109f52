"""The GPU check, rehearsed on the CPU from exactly the folder that would travel, and what it says where it cannot run.

MEMLOAD_WHEEL=... names a wheel of memload for this Python; without it the folder is made with one built here.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import BENCHMARKS, ROOT

PARTS = ("gpu_bytes", "gpu_loader", "gpu_cast", "gpu_copy", "gpu_resident", "gpu_split", "scaling")
PARTS += ("gpu_step", "gpu_offload")


def run(*command: str | Path, within: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env = {**without, "PYTHON": sys.executable, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=within, env=env)


def test_without_a_gpu_the_check_says_so_and_leaves_no_result(tmp_path):
    done = run(BENCHMARKS / "gpu_check.sh", OUT=str(tmp_path), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert "--rehearse" in done.stderr or "there is no" in done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("given", [["--rehearsal"], ["no-such-folder"], [".", "."]])
def test_other_arguments_are_refused(given):
    done = run(BENCHMARKS / "gpu_check.sh", *given)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: gpu_check.sh")


def test_a_bundle_is_not_made_over_another(tmp_path):
    (tmp_path / "memload-0.0.1.whl").touch()
    done = run(BENCHMARKS / "gpu_bundle.sh", tmp_path)
    assert done.returncode == 1
    assert "is not empty" in done.stderr
    assert run(BENCHMARKS / "gpu_bundle.sh").returncode == 2


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("travels") / "gpu"
    done = run(
        BENCHMARKS / "gpu_bundle.sh", folder, "sortedcontainers", within=1500, WHEEL=os.environ.get("MEMLOAD_WHEEL", "")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_check_runs_end_to_end_from_the_folder_that_travels(bundle, tmp_path):
    elsewhere = shutil.copytree(bundle, tmp_path / "there")
    done = run(elsewhere / "check.sh", "--rehearse", within=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "== taken as it is: memload-" in done.stdout
    kept = {
        path.suffixes[-1] if path.suffix == ".json" else "".join(path.suffixes): path
        for path in (elsewhere / "results").iterdir()
    }
    assert kept.keys() == {".json", ".tests.txt", ".table.txt"}
    table = kept[".table.txt"].read_text()
    assert done.stdout.endswith(table)
    assert len(table) <= 10_000
    assert "did not get to its end" not in table
    assert "missing" not in table
    parts = json.loads(kept[".json"].read_text())["parts"]
    assert tuple(part["benchmark"] for part in parts) == PARTS
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {part["gpu"]["commit"] for part in parts} == {commit.strip()}
    assert all("nothing is a figure" in part["gpu"]["name"] for part in parts)
    for name in ("cast", "kernels", "resident", "split"):
        assert f"-- test_{name}_gpu" in kept[".tests.txt"].read_text()

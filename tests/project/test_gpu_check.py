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
from waiting import MOST_SECONDS

import memload

UNDER_TEST = Path(memload.__file__).parent.parent
PARTS = ("gpu_bytes", "gpu_loader", "gpu_cast", "gpu_copy", "gpu_resident", "gpu_split", "scaling")
PARTS += ("gpu_step", "gpu_offload", "gpu_memory")


def run(*command: str | Path, within: float = MOST_SECONDS, **environment: str) -> subprocess.CompletedProcess[str]:
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


SHARES = """
total=570
eval "$(sed -n '/^parts=(/,/^}/p' "$1")"
SECONDS=$2
for part in "${parts[@]}"; do
  share=$(share_of "${part%:*}")
  echo "${part%:*} $share"
  SECONDS=$((SECONDS + share))
done
"""


@pytest.mark.parametrize("begun", [0, 100, 235, 300, 400, 560, 570])
def test_the_parts_fit_into_the_time_that_is_left_though_each_takes_all_of_its_share(begun):
    done = run("bash", "-euc", SHARES, "shares", BENCHMARKS / "gpu_check.sh", str(begun))
    shares = {name: int(share) for name, share in map(str.split, done.stdout.splitlines())}
    assert (*shares,) == (*PARTS, "memory_checker")
    assert begun + sum(shares.values()) <= 570 + 5  # what a second that ends meanwhile may add
    if begun <= 235:  # when the tests are over at the latest, with a wheel that need not be built
        assert min(shares.values()) >= 15
    assert "total=570 " in (BENCHMARKS / "gpu_check.sh").read_text()


def figure(case, median, target, *, at_most=False, **more):
    spread = {"median": median, "low": 0.9 * median, "high": 1.1 * median}
    met = None if target is None else median <= target if at_most else median >= target
    return {"case": case, "what": "share", "found": spread, "target": target, "at_most": at_most, "met": met, **more}


def test_the_plot_shows_each_figure_that_has_a_target_as_a_share_of_it(tmp_path):
    figures = [figure("W1", 0.8, 0.85), figure("W2", 0.02, 0.04, at_most=True), figure("untold", 5.0, None)]
    part = {"benchmark": "gpu_copy", "gpu": {"name": "GPU", "commit": "0123456789abcdef"}, "figures": figures}
    kept = tmp_path / "gpu_a.json"
    kept.write_text(json.dumps({"parts": [part]}))
    assert run(sys.executable, BENCHMARKS / "gpu_plot.py", kept, PYTHONPATH=str(UNDER_TEST)).returncode == 0
    image = kept.with_suffix(".svg").read_text()
    for text in ("W1: share", "0.8, wanted &gt;= 0.85", "0.02, wanted &lt;= 0.04", "commit 0123456789"):
        assert text in image, text
    assert "untold" not in image
    kept.write_text(json.dumps({"parts": [{**part, "figures": []}]}))
    done = run(sys.executable, BENCHMARKS / "gpu_plot.py", kept, PYTHONPATH=str(UNDER_TEST))
    assert done.returncode == 1
    assert "no figure with a target" in done.stderr


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

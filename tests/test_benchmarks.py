"""Every benchmark runs, and keeps figures that can be read again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import memload
from memload.measure import Spread

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
QUICK = {
    "batch_size.py": [],
    "busy_core.py": ["--workloads", "W2", "--variants", "bf16"],
    "codecs.py": ["--kinds", "int16 betas", "spectrograms"],
    "cold.py": ["--workloads", "C4"],
    "door.py": ["--workloads", "W2", "--variants", "f32"],
    "first_batch.py": ["--workloads", "W4"],
    "graphs.py": [],
    "hdf5.py": ["--layouts", "contiguous", "gzip-4"],
    "many.py": ["--workloads", "W2", "--variants", "f32"],
    "monitor.py": [],
    "overlap.py": ["--workloads", "W2", "--variants", "f32"],
    "prediction.py": [],
    "ragged.py": [],
    "resume.py": [],
    "streaming.py": [],
    "transforms.py": ["--workloads", "W2"],
    "throughput.py": ["--workloads", "W1", "W3", "--isas"],
    "versus_rival.py": ["--workloads", "W4"],
    "versus_stock.py": ["--workloads", "W2", "W4"],
    "windows.py": [],
}


def test_every_script_that_uses_the_harness_is_tried_here():
    scripts = {path.name for path in BENCHMARKS.glob("*.py") if "arguments(" in path.read_text()}
    assert scripts - {"harness.py"} == QUICK.keys()


@pytest.mark.slow
@pytest.mark.parametrize("script", QUICK)
def test_the_benchmark_runs(script, tmp_path):
    kept = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, BENCHMARKS / script, "--quick", "--cache", tmp_path, "--out", kept, *QUICK[script]],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(Path(memload.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(kept.read_text())
    assert found["benchmark"] == Path(script).stem
    assert found["machine"]["versions"]["torch"] == torch.__version__
    spreads = [value for figure in found["figures"] for value in figure.values() if isinstance(value, dict)]
    assert spreads
    assert all(Spread(**spread).low <= spread["median"] <= spread["high"] for spread in spreads)

"""What memload.plan predicts is what fresh processes take: loaders and tiers, each within 10 % of the measured peak."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import memload
from memload.cli import main
from memload.prediction import Prediction

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "prediction.py"
LOADERS = ["as stored", "cast", "deep", "transformed"]
TIERS = ["tier direct", "tier hybrid", "tier ram", "tier ram, cast"]
CASES = [*LOADERS, *TIERS]


def rows(folder, count=400, row_bytes=1 << 19):
    path = folder / "rows.npy"
    data = np.lib.format.open_memmap(path, "w+", np.uint8, (count, row_bytes))
    data[:] = 1
    return path


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    done = subprocess.run(
        [sys.executable, PROGRAM, "--child", rows(tmp_path_factory.mktemp("rows")), *CASES],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(memload.__file__).parents[1])},
        timeout=240,
    )
    return {name: Prediction(**figures) for name, figures in json.loads(done.stdout).items()}


@pytest.mark.parametrize("case", CASES)
def test_the_peak_of_a_fresh_process_is_predicted_to_a_tenth(found, case):
    assert abs(found[case].error) < 0.1, found[case]


def test_measuring_on_the_command_line_prints_both(tmp_path, capsys):
    path = rows(tmp_path, count=64, row_bytes=1 << 17)
    assert main(["plan", str(path), "--batch-size", "8", "--measure", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("64 rows of 131 kB, 8.39 MB in all; batches of 8 rows, 1.05 MB")
    assert lines[-1].startswith("RAM over 3 batches: predicted ")


def test_a_machine_to_be_asked_for_is_described_on_the_command_line(capsys):
    shape = ["--rows", "417000", "--field", "stim:uint8:425,425,3", "--ram", "504GB", "--disk", "1.4TB"]
    assert main(["plan", *shape, "--tier", "ram"]) == 0
    assert "\nAsk for --mem=232G" in capsys.readouterr().out
    assert main(["plan", *shape, "--tier", "ram", "--ram-dtype", "stim=float32"]) == 1
    assert 'tier="ram" as bfloat16: RAM 452 GB of 504 GB' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give a path, or --rows and --field"),
        (["--rows", "3"], "needs both --rows and --field"),
        (["--rows", "3", "--field", "x:uint8:a"], "expected NAME:DTYPE:SHAPE"),
        (["--rows", "3", "--field", "x:uint8:4", "--cast", "x"], "expected NAME=DTYPE"),
        (["--rows", "3", "--field", "x:uint8:4", "--ram", "much"], "not a size"),
    ],
)
def test_what_the_command_line_cannot_mean_is_said(capsys, arguments, words):
    assert main(["plan", *arguments]) == 2
    assert words in capsys.readouterr().err

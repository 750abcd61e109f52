"""Every benchmark runs, and keeps figures that can be read again."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import run
from repository import BENCHMARKS

import memload
from memload.cli.measure import Spread

QUICK = {
    "batch_size.py": [],
    "busy_core.py": ["--workloads", "W2", "--variants", "bf16"],
    "codecs.py": ["--kinds", "int16 betas", "spectrograms"],
    "cold.py": ["--workloads", "C4"],
    "batch_fetcher.py": ["--workloads", "W2", "--variants", "f32"],
    "epochs.py": ["--workloads", "W1", "--variants", "f32"],
    "function_or_cast.py": ["--workloads", "W2"],
    "first_batch.py": ["--workloads", "W4"],
    "graphs.py": [],
    "hdf5.py": ["--layouts", "contiguous", "gzip-4"],
    "images.py": [],
    "memory_truth.py": ["--only", "loader"],
    "many.py": ["--workloads", "W2", "--variants", "f32"],
    "monitor.py": [],
    "next_cost.py": [],
    "overlap.py": ["--workloads", "W2", "--variants", "f32"],
    "prediction.py": [],
    "ragged.py": [],
    "resize.py": [],
    "resume.py": [],
    "streaming.py": [],
    "tiers.py": ["--workloads", "C4"],
    "transforms.py": ["--workloads", "W2"],
    "throughput.py": ["--workloads", "W1", "W3", "--isas"],
    "versus_rival.py": ["--workloads", "W4"],
    "versus_stock.py": ["--workloads", "W2", "W4"],
    "warm_tiers.py": ["--workloads", "W2", "--variants", "bf16"],
    "windows.py": [],
}


# Without a GPU they only show that they run. One process runs them all, since each would import torch for itself.
ON_A_GPU = {
    "gpu_bytes.py": ["--workloads", "W2"],
    "gpu_cast.py": [],
    "gpu_copy.py": [],
    "gpu_loader.py": ["--workloads", "W2"],
    "gpu_offload.py": [],
    "gpu_resident.py": ["--workloads", "W2"],
    "gpu_step.py": ["--workloads", "W2"],
}
RUN_ALL = """
import json, runpy, sys
for script, arguments in json.loads(sys.argv[1]):
    sys.argv = [script, *arguments]
    sys.path.insert(0, script.rpartition("/")[0])
    runpy.run_path(script, run_name="__main__")
"""


def spreads_in(found: Any) -> Iterator[Spread]:
    """Every spread of the figures, however deep: a figure may give one for each of several names."""
    if isinstance(found, dict) and found.keys() == {field.name for field in fields(Spread)}:
        yield Spread(**found)
    elif isinstance(found, (dict, list)):
        for value in found.values() if isinstance(found, dict) else found:
            yield from spreads_in(value)


def test_every_script_that_uses_the_harness_is_tried_here():
    texts = {path.name: path.read_text() for path in BENCHMARKS.glob("*.py")}
    scripts = {name for name, text in texts.items() if re.search(r"(arguments|each_case)\(", text)}
    assert scripts - {"harness.py", "gpu_common.py"} == QUICK.keys() | ON_A_GPU.keys()


def test_the_gpu_benchmarks_run_on_a_cpu_and_their_figures_make_one_table(tmp_path):
    kept = [tmp_path / script.replace(".py", ".json") for script in ON_A_GPU]
    common = ["--quick", "--device", "cpu", "--cache", str(tmp_path), "--out"]
    runs = [
        (str(BENCHMARKS / script), [*common, str(path), *more])
        for (script, more), path in zip(ON_A_GPU.items(), kept, strict=True)
    ]
    done = run(RUN_ALL, json.dumps(runs), within=240)
    assert done.status == 0, done.err
    found = [json.loads(path.read_text()) for path in kept]
    assert all("nothing is a figure" in one["gpu"]["name"] for one in found)
    table = [sys.executable, BENCHMARKS / "gpu_table.py", *kept, tmp_path / "missing.json"]
    shown = subprocess.run(table, capture_output=True, text=True, timeout=60).stdout
    assert all(Path(script).stem in shown for script in ON_A_GPU)
    assert "wanted" in shown
    assert "missing.json: missing" in shown


FAILING = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from gpu_common import GpuBench, compiled_or_none, gpu_arguments
from memload.cli.measure import Spread

def fails():
    raise ValueError("no such thing\\nand more")

bench = GpuBench(gpu_arguments("?", rounds=1).parse_args())
bench.attempt("first", fails)
bench.attempt("second", bench.judge, "second", "a figure", Spread.of([2.0]), 1)
assert compiled_or_none(fails) is None
bench.end()
"""


def test_a_part_of_a_gpu_benchmark_that_fails_is_told_and_the_next_one_follows(tmp_path):
    kept = tmp_path / "parts.json"
    done = run(FAILING, str(BENCHMARKS), "--device", "cpu", "--out", str(kept))
    assert done.status == 1
    assert "first, fails" in done.err
    failed, found = json.loads(kept.read_text())["figures"]
    assert failed["error"] == "fails: ValueError: no such thing"
    assert found["found"]["median"] == 2
    table = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu_table.py", kept], capture_output=True, text=True, timeout=60
    )
    assert "did not get to its end: fails: ValueError: no such thing" in table.stdout
    assert "met" in table.stdout


COMPARING = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import torch
from gpu_data import OtherDataError, compare

cpu = torch.device("cpu")
expected = [{"x": torch.arange(1000.) + k, "y": torch.tensor(k)} for k in range(5)]

def said(got, group):
    try:
        return compare(got, expected, cpu, group)
    except OtherDataError as error:
        return str(error)

def other(**fields):
    return [*expected[:3], {**expected[3], **fields}, expected[4]]

flipped = expected[3]["x"].clone()
flipped.view(torch.int32)[250] ^= 1
for group in (1, 2, 5, 9):
    print(said(expected, group), "|", said(other(x=flipped), group), "|", said(other(x=flipped.double()), group))
    print(said(expected[:4], group), "|", said([*expected, expected[0]], group))
"""


def test_a_flipped_bit_another_dtype_and_another_number_of_batches_are_found():
    lines = run(COMPARING, str(BENCHMARKS)).out
    assert len(lines) == 8
    for same, counted in zip(lines[::2], lines[1::2], strict=True):
        right, bit, dtype = same.split(" | ")
        assert right == "5"
        assert bit.startswith("batch 3: x: 1 of 4000 bytes differ, from byte 1000 (")
        assert dtype == ("batch 3: x is ('cpu', torch.float64, (1000,)), not ('cpu', torch.float32, (1000,))")
        fewer, more = counted.split(" | ")
        assert fewer == "after 4 batches, the CPU's loader has more"
        assert more == "after 5 batches, the device's loader has more"


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
    spreads = list(spreads_in(found["figures"]))
    assert spreads
    assert all(spread.low <= spread.median <= spread.high for spread in spreads)

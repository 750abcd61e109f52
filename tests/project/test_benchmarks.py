"""Every benchmark runs, and keeps figures that can be read again."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from programs import run
from repository import BENCHMARKS
from waiting import MOST_SECONDS

import memload
from memload.cli.measure import Spread

QUICK = {
    "batch_size.py": [],
    "block_shuffle.py": [],
    "busy_core.py": ["--workloads", "W2", "--variants", "bf16"],
    "codecs.py": ["--kinds", "int16 betas", "spectrograms"],
    "cold.py": ["--workloads", "C4"],
    "batch_fetcher.py": ["--workloads", "W2", "--variants", "f32"],
    "decoding.py": [],
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
    "parallel_writing.py": [],
    "prediction.py": [],
    "ragged.py": [],
    "recordings.py": [],
    "remote.py": [],
    "remote_opening.py": [],
    "resize.py": [],
    "resume.py": [],
    "scaling.py": ["--device", "cpu", "--workloads", "W2", "--variants", "bf16"],
    "speed.py": ["--workloads", "W2", "W4"],
    "store_writing.py": [],
    "streaming.py": [],
    "tiers.py": ["--workloads", "C4"],
    "transforms.py": ["--workloads", "W2"],
    "throughput.py": ["--workloads", "W1", "W3", "--isas"],
    "versions.py": ["--workloads", "W4"],
    "warm_tiers.py": ["--workloads", "W2", "--variants", "bf16"],
    "windows.py": [],
    "workers.py": [],
}


def spreads_in(found: Any) -> Iterator[Spread]:
    """Every spread of the figures, however deep: a figure may give one for each of several names."""
    if isinstance(found, dict) and found.keys() == {field.name for field in fields(Spread)}:
        yield Spread(**found)
    elif isinstance(found, (dict, list)):
        for value in found.values() if isinstance(found, dict) else found:
            yield from spreads_in(value)


def test_every_script_that_uses_the_harness_is_tried_here_or_by_the_gpu_check():
    texts = {path.name: path.read_text() for path in BENCHMARKS.glob("*.py")}
    scripts = {name for name, text in texts.items() if re.search(r"(arguments|each_case)\(", text)}
    parts = re.search(r"^parts=\(([^)]*)\)", (BENCHMARKS / "gpu_check.sh").read_text(), re.MULTILINE)
    on_a_gpu = {f"{name}.py" for name in re.findall(r"(\w+):\d+", parts[1])} - {"memory_checker.py"}
    assert scripts - {"harness.py", "gpu_common.py"} == QUICK.keys() | on_a_gpu


def lacks(module: ModuleType, name: str) -> bool:
    is_there = hasattr(module, name) or (
        hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.{name}") is not None
    )
    return not is_there


@pytest.mark.parametrize("path", sorted(BENCHMARKS.rglob("*.py")), ids=lambda path: path.name)
def test_what_a_script_imports_of_memload_is_there(path):
    for found in ast.walk(ast.parse(path.read_text())):
        if isinstance(found, ast.ImportFrom) and re.match(r"memload\b(?!\._cuda)", found.module or ""):
            module = importlib.import_module(str(found.module))
            lacking = [name.name for name in found.names if name.name != "_cuda" and lacks(module, name.name)]
            assert not lacking, f"{path.name}, line {found.lineno}: {found.module} lacks {', '.join(lacking)}"


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
    shown = gpu_table(tmp_path / "all.json", kept, tmp_path / "other.json")
    assert "did not get to its end: fails: ValueError: no such thing" in shown
    assert "second: a figure: 2 (2 to 2) >= 1 met" in shown
    assert "other: missing" in shown
    (part,) = json.loads((tmp_path / "all.json").read_text())["parts"]
    assert part == json.loads(kept.read_text())


def gpu_table(*paths: Path) -> str:
    command = [sys.executable, BENCHMARKS / "gpu_table.py", *paths]
    return subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS, check=True).stdout


def test_the_table_of_gpu_figures_leaves_out_what_is_only_told_where_there_is_no_room(tmp_path):
    def part(wanted: int, told: int) -> Path:
        found = {"median": 1.0, "low": 0.5, "high": 2.0, "count": 3}
        one = {"case": "W1", "what": "a figure of about this length", "found": found, "at_most": False}
        figures = [{**one, "target": 2, "met": False}] * wanted + [{**one, "target": None, "met": None}] * told
        kept = {"benchmark": "gpu_x", "gpu": {"name": "G", "commit": "c"}, "machine": {"cpu": "C"}, "figures": figures}
        (tmp_path / "part.json").write_text(json.dumps(kept))
        return tmp_path / "part.json"

    merged = tmp_path / "all.json"
    for wanted, told, lines, verdicts in ((20, 20, 43, 20), (20, 500, 24, 20), (500, 0, None, None)):
        shown = gpu_table(merged, part(wanted, told))
        assert len(shown) <= 10_000
        assert lines is None or len(shown.splitlines()) == lines
        assert verdicts is None or shown.count("NOT MET") == verdicts
        assert len(json.loads(merged.read_text())["parts"][0]["figures"]) == wanted + told
    assert "and more, which the JSON has" in shown


def test_the_table_leaves_out_told_figures_last_where_a_benchmark_has_no_others(tmp_path):
    found = {"median": 1.0, "low": 0.5, "high": 2.0, "count": 3}
    told = {"case": "W1", "what": "a figure", "found": found, "at_most": False, "target": None, "met": None}
    for name, figures in {"gpu_a": [{**told, "target": 2, "met": True}, *[told] * 400], "gpu_b": [told] * 20}.items():
        kept = {"benchmark": name, "gpu": {"name": "G", "commit": "c"}, "machine": {"cpu": "C"}, "figures": figures}
        (tmp_path / f"{name}.json").write_text(json.dumps(kept))
    shown = gpu_table(tmp_path / "all.json", tmp_path / "gpu_a.json", tmp_path / "gpu_b.json")
    assert shown.count("a figure:") == 21
    assert "in the JSON alone: gpu_a" in shown


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


def from_store(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, BENCHMARKS / "peers" / "from_store.py", folder, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS, check=False)


def test_the_comparison_from_a_store_says_what_it_lacks(tmp_path):
    (tmp_path / "data-1024" / "memload").mkdir(parents=True)
    (tmp_path / "data-1024" / "images.npy").touch()
    done = from_store(tmp_path)
    assert done.returncode == 2
    lacking = "data-1024/streaming, data-1024/litdata, streaming/bin/python, litdata/bin/python"
    assert f"{tmp_path} lacks {lacking}: run environments.py and compare.py --search first" in done.stderr


FROM_STORE = """
import json, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
import from_store
import numpy as np, torch, memload
from remote import serving

root = Path(sys.argv[3])
images = torch.randint(0, 255, (128, 16, 16, 3), dtype=torch.uint8)
rows = {"image": images, "row": torch.arange(128)}
memload.write(root / "data-1024" / "memload" / "shards", rows, progress=False)
np.save(root / "data-1024" / "images.npy", images.numpy())
with serving(root, 0.0, root / "log") as url:
    found = from_store.asked(root, root / "data-1024", "memload", url.removesuffix("/set"), {}, check=True)
print(json.dumps(found))
other = [{"first": 1.0, "warm": 2.0}, {"error": "no end"}]
print(from_store.table({"1 ms": {"memload": [{"first": 2.0, "warm": 6.0}] * 2, "other": other[:1] * 2}}))
print(from_store.table({"1 ms": {"memload": [{"first": 2.0, "warm": 6.0}] * 2, "failing": other}}))
"""


def test_a_run_of_the_comparison_from_a_store_reads_what_was_written(tmp_path):
    done = run(FROM_STORE, str(BENCHMARKS), str(BENCHMARKS / "peers"), str(tmp_path))
    assert done.status == 0, done.err
    said = json.loads(done.out[0])
    assert (said["rows"], said["agrees"], said["identical"], said["shuffled"]) == (128, True, True, True)
    assert "1 ms other first: 1 images/s; memload 2.0x (2.0 to 2.0)" in done.out
    assert "1 ms other warm: 2 images/s; memload 3.0x (3.0 to 3.0)" in done.out
    assert "1 ms failing first: [None, 'no end']" in done.out


@pytest.mark.slow
@pytest.mark.parametrize("script", QUICK)
def test_the_benchmark_runs(script, tmp_path):
    kept = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, BENCHMARKS / script, "--quick", "--cache", tmp_path, "--out", kept, *QUICK[script]],
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        env={**os.environ, "PYTHONPATH": str(Path(memload.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(kept.read_text())
    assert found["benchmark"] == Path(script).stem
    assert found["machine"]["versions"]["torch"] == torch.__version__
    spreads = list(spreads_in(found["figures"]))
    assert spreads
    assert all(spread.low <= spread.median <= spread.high for spread in spreads)


@pytest.mark.slow
def test_the_small_benchmarks_run_under_pytest_benchmark_and_are_compared(tmp_path):
    command = [sys.executable, "-m", "pytest", BENCHMARKS, "-q", "--benchmark-only", "--benchmark-min-rounds=1"]
    command += ["--benchmark-max-time=0.05", "--benchmark-autosave", f"--benchmark-storage={tmp_path}"]
    for more in ([], ["--benchmark-compare"]):
        env = {**os.environ, "PYTHONPATH": str(Path(memload.__file__).parents[1])}
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=MOST_SECONDS, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "test_first_batch[cpu] (0001_" in done.stdout
    assert len(list(tmp_path.rglob("*.json"))) == 2

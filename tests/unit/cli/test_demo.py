"""The demo cuts real photographs, compares honestly and says what it found; the doctor says what follows."""

import inspect
import json
import re
import sys
import textwrap

import numpy as np
import pytest
import torch
from repository import ROOT

import memload
from memload.cli import demo, doctor, measure, stock_loops
from memload.cli import main as cli
from memload.cli.measure import Spread
from memload.device.cuda_module import CudaState, driver_version
from memload.memory import budget
from memload.memory.limits import CONTROL_GROUP, MemoryLimit


def arguments(*words):
    return cli.parser().parse_args(["demo", *words])


@pytest.fixture(autouse=True)
def _little_is_copied(monkeypatch):
    monkeypatch.setattr(measure, "_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(measure, "_COPY_SECONDS", 0.01)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the stock loader's workers, from Python 3.12 on
def test_the_demo_finds_identical_batches_and_keeps_its_figures(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(stock_loops, "WORKERS", (0, 1))  # of which the best is looked for
    kept = tmp_path / "demo.json"
    words = ("--crops", "68", "--rounds", "1", "--no-compile", "--folder", str(tmp_path), "--json", str(kept))
    assert demo.run(arguments(*words)) == 0
    out = capsys.readouterr().out
    assert "2 batches compared: bit-identical." in out
    assert "memload.FastLoader" in out
    assert out.rstrip().endswith(demo.NEXT)  # what to do next with one's own data
    figures = json.loads(kept.read_text())
    assert figures["identical"] is True
    assert [row["name"] for row in figures["rows"]] == ["stock DataLoader", "memload.FastLoader", "the ceiling"]
    assert figures["rows"][2]["share"] == 1.0
    assert list(tmp_path.iterdir()) == [kept]  # the shards are gone


def test_the_json_of_the_demo_is_alone_on_standard_output(capsys, monkeypatch):
    row = demo.Row("memload.FastLoader", Spread(9, 8, 10, 3), 2.0, 0.9, 0.1, 5_000_000, float("nan"))
    made = demo.Result([row], Spread(7, 6, 8, 3), 5, True, "plain items", "read beforehand", 12.0)
    monkeypatch.setattr(demo, "play", lambda *_: (demo.say("on the way"), made)[1])
    assert cli.main(["demo", "--json"]) == 0
    said = capsys.readouterr()
    figures = json.loads(said.out)
    assert {"machine", "options", "rows", "identical", "speedup"} <= set(figures)
    assert figures["rows"][0]["first_batch"] is None
    assert "on the way" in said.err


def test_every_command_that_the_demo_names_is_there():
    named = set(re.findall(r"^  memload (\w+)", demo.NEXT, flags=re.MULTILINE))
    assert named == {"init", "info", "write", "plan"}
    assert named <= set(cli.COMMANDS)


@pytest.mark.parametrize("kind", ["real photographs", "drawn pictures"])
def test_crops_are_pieces_of_the_pictures_and_always_the_same(kind, tmp_path, monkeypatch):
    if kind == "real photographs":
        pytest.importorskip("skimage", reason="the demo's photographs come with scikit-image")
    else:
        monkeypatch.setitem(sys.modules, "skimage", None)
    what, images = demo.pictures()
    assert what.startswith(kind)
    first = list(demo.crops_of(images, 12))
    assert all(row["stim"].shape == (425, 425, 3) and row["stim"].dtype == np.uint8 for row in first)
    assert all(row["response"].shape == (256,) and row["response"].dtype == np.float32 for row in first)
    assert len({row["stim"].tobytes() for row in first}) == 12
    assert all(row["stim"].std() > 5 for row in first)  # images, not flat colour
    demo.write_crops(tmp_path / "set", images, 12)
    written = memload.open(tmp_path / "set")
    for k, row in enumerate(first):
        assert np.array_equal(written[k]["stim"].numpy(), row["stim"])
        assert np.array_equal(written[k]["response"].numpy(), row["response"])


@pytest.mark.parametrize("different", [{"stim": torch.zeros(2)}, {"other": torch.ones(2)}])
def test_batches_that_differ_are_found(different):
    same = {"stim": torch.ones(2)}
    assert demo.same_batches([same, same, same], [same, different, same]) == (2, False)
    assert demo.same_batches([same], [same]) == (1, True)


def test_a_difference_is_shouted():
    row = demo.Row("memload.FastLoader", Spread(9, 8, 10, 3), 2.0, 0.9, 0.1, 5_000_000, 0.02)
    text = demo.table(demo.Result([row], Spread(7, 6, 8, 3), 5, False, "plain items", "read beforehand", 12.0))
    assert "NOT IDENTICAL" in text
    assert "7.0 times as fast (6.0 to 8.0, 3 rounds in turn)" in text
    assert "5 MB" in text


def test_a_disk_that_is_too_small_is_reported_before_anything_is_written(tmp_path):
    with pytest.raises(OSError, match=r"wants .*B free .* [GT]B are free; name another folder with --folder"):
        demo.check_room(tmp_path, 10**10)


@pytest.mark.parametrize("wrong", [{"crops": 10}, {"rounds": 0}, {"batch_size": 0}])
def test_options_without_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=r"at least 1 round and two batches of crops; got .* in batches of"):
        demo.Options(**wrong)


def test_the_doctor_says_every_fact_on_one_line(tmp_path, capsys):
    assert doctor.run(cli.parser().parse_args(["doctor", "--folder", str(tmp_path)])) == 0
    lines = capsys.readouterr().out.splitlines()
    names = ["memload", "machine", "CPUs", "instructions", "memcpy", "cache", "huge pages", "memory"]
    assert [line[:16].strip() for line in lines[:8]] == names
    assert {"pinned memory", "disk"} <= {line[:16].strip() for line in lines}


def test_the_options_that_the_doctor_names_are_options_of_the_loader(tmp_path):
    named = {option for fact in doctor.facts(tmp_path) for option in re.findall(r"\b(\w+)=", fact.meaning)}
    assert "threads" in named
    assert named <= set(inspect.signature(memload.FastLoader).parameters)


def test_the_doctor_draws_conclusions():
    assert "costs speed" in doctor.huge_page_fact(budget.HugePages("never", 2 << 20)).meaning
    assert "pages of 2 MB" in doctor.huge_page_fact(budget.HugePages("madvise", 2 << 20)).meaning
    assert "gathers with 2 threads" in doctor.cpu_fact(budget.Cpus(8, 2.5)).meaning
    limited = budget.Memory(10**10, 8 * 10**9, (MemoryLimit(CONTROL_GROUP, 4 * 10**9, 10**9),))
    assert doctor.memory_fact(limited).value.startswith("1.0 of 10.0 GB free")
    assert "its control group" in doctor.memory_fact(limited).meaning
    assert " limited to 4.0 GB by its control group" in str(doctor.memory_fact(limited)), "no two words run together"
    assert "ulimit -l" in doctor.lock_fact(8 << 20, root=False).meaning
    assert "more than 48 MB" in doctor.cache_fact(32 << 20).meaning
    assert "assumed" in doctor.cache_fact(None).meaning


def test_the_doctor_says_what_a_driver_is_too_old_for():
    assert doctor.driver_fact(None, {}).value == "of an unknown version", "a GPU that torch reaches has a driver"
    old = doctor.driver_fact("535.129.03", {"torch": "12.8", "memload._cuda": "13.0"})
    assert old.meaning == "memload._cuda: driver 535.129.03 is older than 580, the oldest for CUDA 13"
    assert "torch (CUDA 12.8)" in doctor.driver_fact("535.129.03", {"torch": "12.8", "memload._cuda": ""}).meaning
    assert doctor.copies_fact(55e9, "").value == "55.0 GB/s"
    assert doctor.copies_fact(0.0, "").value == "refused"
    assert "no nvcc" in doctor.copies_fact(None, "no nvcc was found").meaning


_BUILT, _NOT_BUILT = CudaState(False, "", (75, 90), "13.0"), CudaState(False, "")


@pytest.mark.parametrize(
    ("cuda", "kernels", "driver", "found", "step"),
    [
        (None, _NOT_BUILT, None, "torch is built without CUDA, memload without its CUDA kernels", "install a torch"),
        (None, _BUILT, None, "memload with its CUDA kernels, and no NVIDIA driver is loaded", "docker run --gpus all"),
        ("13.0", _BUILT, None, "torch is built with CUDA 13.0", "load its driver"),
        (None, _BUILT, "580.65.06", "driver 580.65.06 is loaded", "install a torch that is built with CUDA"),
        ("13.0", _BUILT, "535.129.03", "driver 535.129.03 is loaded", "driver 535.129.03 is older than 580"),
        ("13.0", _BUILT, "580.65.06", "driver 580.65.06 is loaded", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_the_doctor_says_in_one_fact_why_there_is_no_gpu(cuda, kernels, driver, found, step):
    fact = doctor.no_gpu_fact(cuda, kernels, driver)
    assert found in fact.meaning
    assert step in fact.meaning.partition("batches stay on the CPU. ")[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_the_doctor_has_one_line_on_it():
    assert [fact.name for fact in doctor.gpu_facts()] == ["GPU"]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:13:49 UTC 2025\n", "580.65.06"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n", "570.86.15"),
        ("something else\n", None),
    ],
)
def test_the_drivers_version_is_read_of_what_the_kernel_module_says(text, version, tmp_path):
    assert driver_version(tmp_path) is None
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(text + "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n")
    assert driver_version(tmp_path) == version


def test_the_readme_shows_how_the_demo_ends():
    shown = (ROOT / "README.md").read_text()
    assert textwrap.indent(demo.NEXT.strip(), "    ") in shown

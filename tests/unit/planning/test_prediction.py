"""What memload.plan predicts is what fresh processes take: loaders and tiers, each within 10 % of the measured peak."""

import io
import json
import os
import sys
from collections import ChainMap

import numpy as np
import pytest
from programs import Ahead, Program, begin_all
from repository import BENCHMARKS

from memload.cli.main import main
from memload.cli.prediction import Prediction

PROGRAM = BENCHMARKS / "prediction.py"
LOADERS = ["as stored", "cast", "deep", "transformed"]
TIERS = ["tier direct", "tier hybrid", "tier ram", "tier ram, cast"]
CASES = [*LOADERS, *TIERS]
MAPPED = ["mapped, 4 KB", "mapped, 100 KB", "mapped, 500 KB", "mapped, 500 KB, longer", "mapped, 500 KB, numpy"]
MANY = "mapped, many passes"
AT_WORK = "widened"  # whose transform works with memory beside what it returns


def rows(folder, count=400, row_bytes=1 << 19):
    path = folder / "rows.npy"
    data = np.lib.format.open_memmap(path, "w+", np.uint8, (count, row_bytes))
    data[:] = 1
    return path


# All but what maps samples in one process, and each of that in one of its own; two at a time.
MEASURES = """
import json, subprocess, sys
from concurrent.futures import ThreadPoolExecutor

def measured(cases):
    child = [sys.executable, *sys.argv[1:3], sys.argv[3], *cases]
    return json.loads(subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True).stdout)

with ThreadPoolExecutor(2) as two:
    for found in two.map(measured, json.loads(sys.argv[4])):
        print(json.dumps(found))
"""


def begin(folder):
    processes = json.dumps([[*CASES, AT_WORK], *([case] for case in [*MAPPED, MANY])])
    measures = Program(MEASURES, (str(PROGRAM), "--child", str(rows(folder)), processes))
    return begin_all({"all": measures}, ahead=folder)


PASSES = Ahead(begin)


@pytest.fixture(scope="module")
def passes():
    ended = PASSES.found["all"]
    assert ended.status == 0, ended.err
    found = ChainMap(*map(json.loads, ended.out))
    return {name: Prediction(**figures) for name, figures in found.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_peak_of_a_fresh_process_is_predicted_to_a_tenth(passes, case):
    assert abs(passes[case].error) < 0.1, passes[case]


def test_threads_that_transform_are_planned_for_as_if_all_were_at_their_peak_at_once(passes):
    assert -0.05 < passes[AT_WORK].error < 0.35, passes[AT_WORK]  # they meet at their peaks, or not


@pytest.mark.parametrize("case", MAPPED)
def test_the_peak_of_passes_that_map_samples_is_predicted_to_a_tenth(passes, case):
    assert abs(passes[case].error) < 0.1, passes[case]


def test_threads_that_stay_for_the_next_pass_keep_samples_in_as_few_arenas_as_in_one_pass(passes):
    assert -0.25 < passes[MANY].error < 0.1, passes[MANY]  # up to 40 % were missing when each pass began new threads


def test_measuring_on_the_command_line_prints_both(tmp_path, capsys):
    path = rows(tmp_path, count=64, row_bytes=1 << 17)
    assert main(["plan", str(path), "--batch-size", "8", "--measure", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("64 rows of 131 kB, 8.39 MB in all; batches of 8 rows, 1.05 MB")
    assert lines[-1].startswith("RAM over 3 batches: predicted ")


def test_what_does_not_fit_here_is_not_measured_and_the_figures_say_why(capsys):
    shape = ["--rows", "900000000", "--field", "x:uint8:1000000", "--tier", "ram", "--ram", "999TB", "--disk", "999TB"]
    assert main(["plan", *shape, "--batch-size", "8", "--measure", "2"]) == 2
    said = capsys.readouterr()
    assert "Under Slurm, ask for --mem=" in said.out
    assert "what --measure would load takes 900 TB; this process can still take " in said.err
    assert "leave --measure out, or load less" in said.err


TRAIN = """
import torch

def make_model():
    return torch.nn.Linear(100_000, 100_000, bias=False)  # 40 GB

class Sign(torch.optim.SGD):
    pass

def loss_of(model, batch):
    return model(batch["x"]).square().mean()

def failing():
    return 1 / 0
"""


def test_a_model_is_named_on_the_command_line_and_takes_no_memory(tmp_path, monkeypatch, capsys):
    (tmp_path / "train_for_plan.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    shape = ["plan", "--rows", "100", "--field", "x:float32:100000", "--ram", "4GB", "--disk", "1GB", "--gpu", "80GB"]
    model = ["--model", "train_for_plan:make_model", "--precision", "bf16-true", "--weights", "mmap"]
    assert main([*shape, *model, "--optimizer", "AdamW"]) == 1
    assert "optimizer states" in capsys.readouterr().out
    assert main([*shape, *model, "--optimizer", "train_for_plan:Sign"]) == 0
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["parameters", "20", "GB"] in said
    assert ["optimizer", "states", "0", "B"] in said
    default = next(line for line in said if line[:1] == ["activations"])
    assert default[-3:] == ["more:", "give", "loss="]
    assert main([*shape, *model[:-1], "ram", "--optimizer", "train_for_plan:Sign"]) == 1
    assert 'weights mapped from their file (weights="mmap")' in capsys.readouterr().out
    assert main([*shape, *model, "--loss", "train_for_plan:loss_of"]) == 0
    (stated,) = [line.split() for line in capsys.readouterr().out.splitlines() if "activations" in line]
    assert (len(stated), stated[2]) == (3, "MB")
    for given, words in [
        (["--model", "train_for_plan"], "expected MODULE:NAME, such as train:make_model, got 'train_for_plan'"),
        (["--model", "train_for_plan:nothing"], "train_for_plan has no 'nothing'"),
        (["--loss", "train_for_plan:loss_of"], "--loss is called with a model and a batch: give --model as well"),
        (["--model", "no_such_module:make"], "import no_such_module raised ModuleNotFoundError"),
        (["--model", "train_for_plan:failing"], "train_for_plan:failing() raised ZeroDivisionError"),
        (["--model", "train_for_plan:torch.Size"], "returned Size, expected a torch.nn.Module"),
        ([*model, "--optimizer", "Adamm"], "--optimizer: torch.optim has no optimizer 'Adamm'; did you mean Adam"),
    ]:
        assert main([*shape, *given]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("buffered", [True, False])
def test_a_reader_that_has_seen_enough_ends_a_command_without_a_word(monkeypatch, capsys, buffered):
    read, write = os.pipe()
    os.close(read)
    with io.TextIOWrapper(os.fdopen(write, "wb", -1 if buffered else 0), write_through=not buffered) as unread:
        monkeypatch.setattr("sys.stdout", unread)
        assert main(["plan", "--rows", "3", "--field", "x:uint8:4"]) == 141
    monkeypatch.undo()
    assert capsys.readouterr().err == ""


def test_a_pipe_of_somebody_elses_is_told_of(monkeypatch, capfd):
    def broken(options):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("memload.cli.plan.trained", broken)
    with open(os.devnull, "w") as output:  # noqa: PTH123 - which has a number, unlike what pytest puts in its place
        monkeypatch.setattr("sys.stdout", output)
        assert main(["plan", "--rows", "3", "--field", "x:uint8:4"]) == 2
    assert "Broken pipe" in capfd.readouterr().err
    monkeypatch.setattr("sys.stdout", io.StringIO())  # as in a notebook
    assert main(["plan", "--rows", "3", "--field", "x:uint8:4"]) == 2
    assert "Broken pipe" in capfd.readouterr().err


def test_a_machine_to_be_asked_for_is_described_on_the_command_line(capsys):
    shape = ["--rows", "417000", "--field", "stim:uint8:425,425,3", "--ram", "504GB", "--disk", "1.4TB"]
    assert main(["plan", *shape, "--tier", "ram"]) == 0
    assert "\nUnder Slurm, ask for --mem=232G" in capsys.readouterr().out
    assert main(["plan", *shape, "--tier", "ram", "--ram-dtype", "stim=float32"]) == 1
    assert 'tier="ram" as bfloat16: RAM 452 GB of 504 GB' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give a path, or --rows and --field"),
        (["--field", "x", "a.npy"], "--field: of a dataset that does not exist yet; leave it out, or the path a.npy"),
        (["--rows", "3"], "needs both --rows and --field"),
        (["--rows", "3", "--field", "x:uint8:a"], "expected NAME:DTYPE:SHAPE"),
        (["--rows", "3", "--field", "x:uint8:4", "--cast", "bf16"], "name it, as in --cast x=bf16; the fields are x"),
        (["--rows", "3", "--field", "x:uint8:4", "--cast", "=bfloat16"], "expected [[SET:]NAME=]DTYPE"),
        (["--rows", "3", "--field", "x:uint8:4", "--ram", "much"], "not a size"),
        (["--rows", "3", "--field", "x:uint8:4", "--measure", "2", "--processes", "2"], "leave --processes out"),
    ],
)
def test_contradictory_options_are_refused_with_the_reason(capsys, arguments, words):
    assert main(["plan", *arguments]) == 2
    assert words in capsys.readouterr().err

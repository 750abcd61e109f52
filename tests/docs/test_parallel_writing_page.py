"""docs/parallel-writing.md runs: its Python, its commands, and its script as each task of a Slurm array runs it."""

import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
import torch
from repository import DOCS

import memload
from memload.cli.main import main

PAGE = "parallel-writing.md"
TEXT = (DOCS / PAGE).read_text()


def run(kind, snippet, names):
    if kind == "python":
        exec(compile(snippet, PAGE, "exec"), names)
        return
    for line in snippet.splitlines():
        program, *arguments = shlex.split(line)
        assert (program, main(arguments)) == ("memload", 0), line


def code(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


def test_the_snippets_and_commands_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for kind, snippet in re.findall(r"^```(python|sh)\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL):
        run(kind, snippet, names)
    stim = torch.from_numpy(names["stim"])
    for part in (3, 1, 2, 0):
        names["convert"](part)
    for made in ("shards", "parts", "by_processes", "by_dask"):
        ds = memload.seal(made)
        assert torch.equal(ds.fields["stim"].gather(np.arange(len(ds))), stim), made


@pytest.mark.slow
def test_the_script_writes_the_part_of_its_task(tmp_path):
    """Tasks end in any order, one fails and is submitted again alone."""
    (script,) = code("bash")
    (tmp_path / "write.sh").write_text(script)
    stim = np.arange(50 * 3, dtype=np.uint8).reshape(50, 3)
    np.save(tmp_path / "stim.npy", stim)
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "memload").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m memload "$@"\n')
    (commands / "memload").chmod(0o755)
    path = os.pathsep.join([str(commands), os.environ["PATH"]])

    def task(number, **more):
        environment = {**os.environ, "PATH": path, "SLURM_ARRAY_TASK_ID": str(number), **more}
        return subprocess.run(
            ["bash", "write.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    count = {"SLURM_ARRAY_TASK_COUNT": "3"}
    assert [task(k, **count).returncode for k in (2, 0)] == [0, 0]
    failed = task(1, SLURM_ARRAY_TASK_COUNT="1")  # submitted again alone, without PARTS
    assert failed.returncode == 2
    assert "part must be from 0 to 0 for 1 part" in failed.stderr
    assert task(1, SLURM_ARRAY_TASK_COUNT="1", PARTS="3").returncode == 0
    ds = memload.seal(tmp_path / "by_slurm")
    assert ds.fields["stim"].gather(np.arange(50)).tolist() == stim.tolist()

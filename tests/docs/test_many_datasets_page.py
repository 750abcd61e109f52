"""docs/many-datasets.md: its programs run, and the one by hand gives the batches of the one by memload."""

import re

import torch
from repository import DOCS
from torch.utils.data import default_collate

PAGE = DOCS / "many-datasets.md"


def same(a, b):
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


def test_the_programs_of_the_page_run_and_give_the_same_batches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    assert len(programs) == 8
    names = {}
    for program in programs[:2]:
        exec(compile(program, str(PAGE), "exec"), names)
    passes = []
    for loader in (names["by_hand"], names["loader"]):
        torch.manual_seed(7)
        passes.append(list(loader))
    assert names["loader"].engine == "native"
    assert len(passes[0]) == len(passes[1]) == 11
    assert all(len(a) == len(b) == 2 and all(map(same, a, b)) for a, b in zip(*passes, strict=True))
    assert default_collate is names["default_collate"]
    for program in programs[2:]:
        exec(compile(program, str(PAGE), "exec"), names)

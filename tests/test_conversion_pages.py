"""docs/converting.md and docs/pictures.md run, commands included, from top to bottom."""

import re
import shlex
from pathlib import Path

import pytest

from memload.cli import main

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["converting.md", "pictures.md"])
def test_the_snippets_and_commands_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text()
    snippets = re.findall(r"^```(python|sh)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert {kind for kind, _ in snippets} == {"python", "sh"}
    names = {"__name__": "page"}
    for kind, snippet in snippets:
        if kind == "python":
            exec(compile(snippet, page, "exec"), names)
            continue
        for line in snippet.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "memload"
            assert main(arguments) == 0, line

"""docs/converting.md, docs/nsd.md and docs/images.md run, commands included, from top to bottom."""

import re
import shlex

import pytest
from repository import DOCS

from memload.cli.main import main


def snippets_of(page):
    return re.findall(r"^```(python|sh)\n(.*?)^```", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)


def run(page, kind, snippet, names):
    if kind == "python":
        exec(compile(snippet, page, "exec"), names)
        return
    for line in snippet.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "memload"
        assert main(arguments) == 0, line


@pytest.mark.parametrize("page", ["converting.md", "nsd.md", "images.md"])
def test_the_snippets_and_commands_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = snippets_of(page)
    assert {kind for kind, _ in snippets} == {"python", "sh"}
    names = {"__name__": "page"}
    for kind, snippet in snippets:
        run(page, kind, snippet, names)


def test_the_check_of_a_page_notices_rows_that_were_joined_by_their_positions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *snippets, (kind, check) = snippets_of("nsd.md")
    join = 'memload.join(memload.join(betas, trials, on=("session", "trial")), stim, on="image_id")'
    by_position = """memload.zip(
        betas=betas,
        image_id=trials.only("image_id").select(range(len(betas))),
        image=stim.only("image").select([int(trials[k]["image_id"]) for k in range(len(betas))]),
    )"""
    names = {"__name__": "page"}
    assert sum(join in snippet for _, snippet in snippets) == 1
    for one, snippet in snippets:
        run("nsd.md", one, snippet.replace(join, by_position), names)
    with pytest.raises(AssertionError):
        run("nsd.md", kind, check, names)
    assert names["session"] == 10  # the one that lies elsewhere than its number says

"""The how-to pages run, from top to bottom."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from repository import DOCS

PAGES = [
    "accumulation.md",
    "batch-size.md",
    "caching.md",
    "cast.md",
    "checkpointing.md",
    "compression.md",
    "five-minutes.md",
    "gpu.md",
    "graphs.md",
    "hdf5.md",
    "monitor.md",
    "offloading.md",
    "scoring.md",
    "shuffling.md",
    "sources.md",
    "tiers.md",
    "tutorials/graphs.md",
    "tutorials/images.md",
    "tutorials/movies.md",
    "tutorials/spectrograms.md",
    "tutorials/text.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for snippet in snippets_of(DOCS / page):
        exec(compile(snippet, page, "exec"), names)


def test_the_programs_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before_and_after, *programs = snippets_of(DOCS.parent / "README.md")
    names = {}
    for snippet in programs:  # as somebody pastes them, one after the other
        exec(compile(snippet, "README.md", "exec"), names)
    names |= {"dataset": names["ds"], "DataLoader": torch.utils.data.DataLoader}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)  # more workers than CPUs
        exec(compile(before_and_after, "README.md", "exec"), names)
    assert next(iter(names["loader"]))["stim"].dtype == torch.bfloat16


def test_every_page_is_in_the_index():
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\(([a-z0-9/-]+\.md)\)", (DOCS / "README.md").read_text()))


def test_links_between_pages_lead_somewhere():
    """A link to a page, and to a heading in it, by GitHub's rule for the names of headings."""
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    broken = []
    for page in pages:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            path, _, heading = target.partition("#")
            if "://" in target:
                continue
            there = page.parent / path if path else page
            if not there.exists() or (heading and heading not in headings_of(there)):
                broken.append(f"{page.name}: {target}")
    assert broken == []


def test_files_that_pages_name_are_there():
    root = DOCS.parent
    named = {
        path
        for page in [root / "README.md", *DOCS.rglob("*.md")]
        for path in re.findall(
            r"`((?:memload|csrc|benchmarks|tests|tools)/[\w/.]+\.(?:py|h|cpp|cu|sh))`", page.read_text()
        )
    }
    assert len(named) > 50
    assert {path for path in named if not (root / path).exists()} == set()


def snippets_of(page: Path) -> list[str]:
    snippets = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert snippets
    return snippets


def headings_of(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

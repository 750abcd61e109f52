"""The how-to pages run, from top to bottom."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


PAGES = [
    "accumulation.md",
    "batch-size.md",
    "caching.md",
    "cast.md",
    "checkpointing.md",
    "compression.md",
    "gpu.md",
    "graphs.md",
    "hdf5.md",
    "monitor.md",
    "nsd.md",
    "offloading.md",
    "scoring.md",
    "sources.md",
    "tiers.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert snippets
    names = {"__name__": "page"}
    for snippet in snippets:
        exec(compile(snippet, page, "exec"), names)

"""The documentation as a site: its reference has every public name and command, its navigation every page."""

import re

import pytest
import site_of_docs
from repository import DOCS

import memload
from memload.cli.main import COMMANDS

PAGES = site_of_docs.generated_pages()


def test_the_reference_has_every_public_name_once():
    names = [name for group in site_of_docs.REFERENCE.values() for name in group.split()]
    assert sorted(names) == sorted(set(memload.__all__) - {"__version__"})


def test_the_navigation_is_what_the_index_says_and_has_every_page():
    sections = site_of_docs.sections((DOCS / "README.md").read_text())
    pages = [
        path for section in sections for entries in section.values() for entry in entries for path in entry.values()
    ]
    assert [*sections[0]] == ["Start"]
    assert sorted(pages) == sorted({str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md"})


def test_pages_that_stand_elsewhere_link_to_pages_of_the_site():
    assert "# memload" in PAGES["index.md"]
    assert "| lease |" in PAGES["glossary.md"]
    known = {*PAGES, *(str(file.relative_to(DOCS)) for file in DOCS.rglob("*.*"))}
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGES["index.md"] + PAGES["changes.md"])
    assert len(targets) > 30
    assert set(targets) <= known


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_of_commands_has(command):
    assert f"\n## memload {command}\n\n```text\nusage: memload {command} " in PAGES["reference/commands.md"]

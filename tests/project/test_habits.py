"""What is said in two places agrees."""

import re

from repository import ROOT

PYPROJECT = (ROOT / "pyproject.toml").read_text()


def test_pre_commit_runs_the_versions_that_ci_installs():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    used = {pin for line in re.findall(r"additional_dependencies: \[(.*)\]", hooks) for pin in line.split(", ")}
    assert used, "the hooks name no versions"
    assert used <= set(re.findall(r'^    "(.*)",$', PYPROJECT, re.MULTILINE))


def test_the_citation_is_of_this_version():
    version = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert version is not None
    assert f'version = "{version[1]}"' in PYPROJECT.splitlines()


def test_the_changelog_has_one_short_line_for_each_change():
    """Its merges keep both sides, so that entries that were shortened or removed may come back: remove them again."""
    lines = (ROOT / "CHANGELOG.md").read_text().partition("## [Unreleased]")[2].splitlines()
    entries = [line for line in lines if line.startswith("- ")]
    assert [line for line in lines if line.startswith("  ") or len(line) > 112] == []
    assert len(set(entries)) == len(entries)
    assert len(entries) < 150

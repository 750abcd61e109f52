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

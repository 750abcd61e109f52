"""What is said in two places agrees."""

import re

import pytest
import release_links
import release_version
from repository import ROOT

PYPROJECT = (ROOT / "pyproject.toml").read_text()


def test_pre_commit_runs_the_versions_that_ci_installs():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    used = {pin for line in re.findall(r"additional_dependencies: \[(.*)\]", hooks) for pin in line.split(", ")}
    assert used, "the hooks name no versions"
    assert used <= set(re.findall(r'^    "(.*)",$', PYPROJECT, re.MULTILINE))


def test_who_opens_an_issue_is_sent_where_security_md_says():
    chooser = (ROOT / ".github/ISSUE_TEMPLATE/config.yml").read_text()
    for words in ('"Report a vulnerability"', 'tab "Security"'):
        assert words in (ROOT / "SECURITY.md").read_text()
        assert words in chooser
    assert re.findall(r"^ +url: (https://[^/]+)/", chooser, re.MULTILINE) == ["https://docs.github.com"]
    assert re.search(r"^blank_issues_enabled: (true|false)\b", chooser, re.MULTILINE)


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


@pytest.fixture
def release(tmp_path):
    """A copy of what names the version, as it is at the release of 1.2.3."""
    for name, text in {
        "pyproject.toml": '[project]\nname = "memload"\nversion = "1.2.3"\n',
        "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.3\n",
        "CHANGELOG.md": "## [Unreleased]\n\n## [1.2.3] - 2027-01-31\n\n## [0.1.0] - 2026-12-01\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_release_has_one_version(release):
    assert release_version.differing("v1.2.3", release) == []
    assert len(release_version.differing("v1.2.4", release)) == 3


@pytest.mark.parametrize("name", release_version.PLACES)
def test_a_release_is_refused_where_one_place_has_another_version(name, release):
    (release / name).write_text((release / name).read_text().replace("1.2.3", "1.2.2"))
    assert release_version.differing("v1.2.3", release) == [f"{name}: 1.2.2, but the tag is v1.2.3: expected 1.2.3"]


def test_the_changelog_has_to_name_what_is_released(release):
    (release / "CHANGELOG.md").write_text("## [Unreleased]\n")
    assert release_version.differing("v1.2.3", release) == [
        "CHANGELOG.md: no version, but the tag is v1.2.3: expected 1.2.3"
    ]


ADDRESS = "https://github.com/someone/memload"


def test_the_readme_of_a_release_links_to_files_of_that_release():
    """Also in a release, where the links are absolute already."""
    text = release_links.readme_of((ROOT / "README.md").read_text(), ADDRESS, "v1.2.3")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    files = [re.fullmatch(r"https://[\w.]+/\w+/memload/(blob|raw)/[\w.]+/([^#]+)(#.*)?", target) for target in targets]
    there = [found for found in files if found is not None]
    assert len(there) > 50
    assert [found[2] for found in there if not (ROOT / found[2]).is_file()] == []
    assert {found[2] for found in there if found[1] == "raw"} == set(re.findall(r"docs/pictures/\w+\.svg", text))
    assert [target for target in targets if "://" not in target] == []


def test_links_that_are_absolute_already_or_stay_on_the_page_are_left_alone():
    text = "[a](https://example.org/x.md), [b](#try-it), [c](docs/c.md#d)"
    expected = f"[a](https://example.org/x.md), [b](#try-it), [c]({ADDRESS}/blob/v1/docs/c.md#d)"
    assert release_links.readme_of(text, ADDRESS, "v1") == expected


def test_the_package_of_a_release_names_its_addresses_once():
    before = '[project]\nname = "memload"\n\n[project.scripts]\nmemload = "memload.cli.main:main"\n'
    text = release_links.project_of(before, ADDRESS, "v1.2.3")
    added = text.partition("[project.urls]\n")[2].partition("\n\n")[0].splitlines()
    assert added == [
        f'Source = "{ADDRESS}"',
        f'Documentation = "{ADDRESS}/blob/v1.2.3/docs/README.md"',
        f'Changelog = "{ADDRESS}/blob/v1.2.3/CHANGELOG.md"',
        f'Issues = "{ADDRESS}/issues"',
    ]
    assert text.replace("[project.urls]\n" + "\n".join(added) + "\n\n", "") == before
    with pytest.raises(ValueError, match="run this once, in a fresh checkout"):
        release_links.project_of(text, ADDRESS, "v1.2.3")

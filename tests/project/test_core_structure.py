"""The folders of csrc in order: who includes whom."""

import re

import pytest
from repository import CSRC

# From the ground up, a line for each floor. A file includes files of its own folder and of folders on lower floors.
FLOORS = [
    {"cast", "codec", "core/base"},
    {"core/sampling", "core/io", "core/slots"},
    {"core/columns"},
    {"core/readers"},
    {"core/gather"},
    {"core/pass"},
    {"bench", "cuda"},
    {"python"},
    {"tests/simulated"},
    {"tests", "fuzz"},
]
FLOOR = {folder: number for number, floor in enumerate(FLOORS) for folder in floor}
FOREIGN = {"blosc2.h"}
LOCAL_TO_TESTS = {"check.h", "fixtures.h"}


def folder_of(path):
    return path.parent.relative_to(CSRC).as_posix()


SOURCES = sorted(path for path in CSRC.rglob("*.*") if path.suffix in {".h", ".cpp", ".cu", ".cuh"})
CORE = sorted(folder for folder in FLOOR if folder.startswith("core/"))


def included(path):
    return set(re.findall(r'^#include "(.+)"$', path.read_text(), re.MULTILINE)) - FOREIGN - LOCAL_TO_TESTS


def may_include(folder):
    """The folders that the head of the folder's CMakeLists.txt allows."""
    head = (CSRC / folder / "CMakeLists.txt").read_text().partition("\ntarget_sources")[0]
    names = re.findall(r"[\w./]+/(?=[\s,.]|$)", head)
    return {(CSRC / folder / ".." / name).resolve().relative_to(CSRC.resolve()).as_posix() for name in names}


def test_every_folder_with_sources_has_one_floor_and_none_is_left_that_is_gone():
    assert sorted(folder for floor in FLOORS for folder in floor) == sorted({folder_of(path) for path in SOURCES})


@pytest.mark.parametrize("folder", sorted(FLOOR))
def test_a_folder_includes_lower_floors_only(folder):
    for path in SOURCES:
        if folder_of(path) != folder:
            continue
        for name in included(path):
            assert (CSRC / name).exists(), f"{path} includes {name}, which is not a path from csrc"
            other = folder_of(CSRC / name)
            assert other == folder or FLOOR[other] < FLOOR[folder], f"{path} may not include {name}"


@pytest.mark.parametrize("folder", CORE)
def test_a_folder_of_the_core_includes_what_its_cmakelists_allows(folder):
    used = {folder_of(CSRC / name) for path in SOURCES if folder_of(path) == folder for name in included(path)}
    assert used - {folder} <= may_include(folder)
    assert {FLOOR[other] < FLOOR[folder] for other in may_include(folder)} <= {True}


def test_no_two_headers_include_each_other():
    headers = {path.relative_to(CSRC).as_posix(): included(path) for path in SOURCES if path.suffix in {".h", ".cuh"}}
    while leaves := [name for name, needs in headers.items() if not needs & set(headers)]:
        for name in leaves:
            del headers[name]
    assert headers == {}


@pytest.mark.parametrize("folder", CORE)
def test_a_folder_of_the_core_stays_readable_in_size(folder):
    assert len({path.stem for path in (CSRC / folder).glob("*.*") if path.name != "CMakeLists.txt"}) <= 15


def test_what_a_wheel_is_built_from_needs_no_newer_headers_of_linux_than_its_container_has():
    """manylinux_2_28 has those of Linux 4.18; core/io/kernel_abi.h says the rest."""
    newer = re.compile(
        r"<linux/(?!futex\.h>|mempolicy\.h>)|\bMADV_(COLD|PAGEOUT|POPULATE)|\b(__NR|SYS)_io_uring|\bgettid\("
    )
    shipped = [path for path in SOURCES if not folder_of(path).startswith(("tests", "fuzz"))]
    code = {path: re.sub("//.*", "", path.read_text()) for path in shipped}
    assert [f"{path}: {found[0]}" for path, text in code.items() if (found := newer.search(text))] == []

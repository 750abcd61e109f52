"""Programs that are begun ahead of the tests that ask for them have their turn, and end where nobody waits for them."""

import subprocess
import sys

import programs
import psutil
import pytest
from programs import Nursery, begin_all, left_in, run
from waiting import until


@pytest.fixture(autouse=True)
def turns(monkeypatch):
    """Turns of their own: those of the run may be taken for long."""
    monkeypatch.setattr(programs, "_last_turn", [])
    yield
    for file in programs._last_turn:
        file.close()


WAITS = """
import os, sys, time
from pathlib import Path
from waiting import until
begun, wanted = map(Path, sys.argv[1:])
begun.write_text(str(os.getpid()))
until(wanted.exists)
print("saw it")
"""


def folder(parent, name):
    made = parent / f"for {name}" / name
    made.mkdir(parents=True)
    return made


def waits(folder, name):
    return {name: f"import sys; sys.argv[1:] = {[str(folder / name), str(folder / 'wanted')]!r}\n{WAITS}"}


def test_programs_in_turn_begin_when_those_before_have_ended_and_others_at_once(tmp_path):
    first, second = (begin_all(waits(tmp_path, name), ahead=folder(tmp_path, name)) for name in ("first", "second"))
    until((tmp_path / "first").exists)
    assert run("print(3)").out == ["3"]
    assert not (tmp_path / "second").exists()
    (tmp_path / "wanted").touch()
    assert [ended.out for ended in (*first().values(), *second().values())] == [["saw it"]] * 2
    assert (tmp_path / "second").stat().st_mtime >= (tmp_path / "wanted").stat().st_mtime


def pid_of(began):
    until(lambda: began.exists() and began.read_text())
    return int(began.read_text())


def test_programs_that_nobody_waits_for_are_killed(tmp_path):
    begun = begin_all(waits(tmp_path, "it"))
    pid = pid_of(tmp_path / "it")
    begun.close()
    until(lambda: not psutil.pid_exists(pid))


def test_what_was_begun_ahead_ends_with_the_run_and_before_is_left_to_all_of_its_processes(tmp_path, monkeypatch):
    of_the_run = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(programs, "the_run", lambda: of_the_run.pid)
    folders = [folder(tmp_path, name) for name in ("first", "second", "third")]
    for one in folders[:2]:
        begin_all(waits(tmp_path, one.name), ahead=one).close()
    pid = pid_of(tmp_path / "first")
    (tmp_path / "wanted").touch()
    assert left_in(folders[0])["first"].out == left_in(folders[1])["second"].out == ["saw it"]
    assert not psutil.pid_exists(pid)
    (tmp_path / "wanted").unlink()
    begin_all(waits(tmp_path, "third"), ahead=folders[2])
    pid = pid_of(tmp_path / "third")
    of_the_run.communicate()
    until(lambda: not psutil.pid_exists(pid))
    assert left_in(folders[2])["third"].status is None


def test_a_nursery_that_cannot_begin_says_why():
    with pytest.raises(AssertionError, match="No module named 'no_such_module'"):
        begin_all({"it": "print(3)"}, nursery=Nursery(imports=("no_such_module",)))()

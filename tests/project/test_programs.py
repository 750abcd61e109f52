"""Programs that are begun ahead of the tests that ask for them have their turn, and end where nobody waits for them."""

import programs
import psutil
import pytest
from programs import Nursery, begin_all, run
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


def waits(folder, name):
    return {name: f"import sys; sys.argv[1:] = {[str(folder / name), str(folder / 'wanted')]!r}\n{WAITS}"}


def test_programs_in_turn_begin_when_those_before_have_ended_and_others_at_once(tmp_path):
    first, second = (begin_all(waits(tmp_path, name), in_turn=True) for name in ("first", "second"))
    until((tmp_path / "first").exists)
    assert run("print(3)").out == ["3"]
    assert not (tmp_path / "second").exists()
    (tmp_path / "wanted").touch()
    assert [ended.out for ended in (*first().values(), *second().values())] == [["saw it"]] * 2
    assert (tmp_path / "second").stat().st_mtime >= (tmp_path / "wanted").stat().st_mtime


def test_programs_that_nobody_waits_for_are_killed_and_the_next_have_their_turn(tmp_path):
    first, second = (begin_all(waits(tmp_path, name), in_turn=True) for name in ("first", "second"))
    until(lambda: (tmp_path / "first").exists() and (tmp_path / "first").read_text())
    pid = int((tmp_path / "first").read_text())
    first.close()
    until(lambda: not psutil.pid_exists(pid))
    until((tmp_path / "second").exists)
    (tmp_path / "wanted").touch()
    assert second()["second"].out == ["saw it"]


def test_a_nursery_that_cannot_begin_says_why():
    with pytest.raises(AssertionError, match="No module named 'no_such_module'"):
        begin_all({"it": "print(3)"}, nursery=Nursery(imports=("no_such_module",)))()

"""`memload monitor --json`: a line for each sample while the process runs."""

import json
import os
import signal
import subprocess
import sys

import pytest

from memload.cli.main import main

PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may have it ignored
from memload.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def sleeper():
    """A process that waits until its input is closed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture
def monitor(sleeper):
    """A monitor of that process, whose output is a pipe."""
    command = [sys.executable, "-c", PROGRAM, "monitor", "--json", "--interval", "0.05", str(sleeper.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_each_sample_is_a_line_as_it_is_taken(monitor, sleeper):
    for _ in range(3):
        line = json.loads(monitor.stdout.readline())
        assert line["pid"] == sleeper.pid
        assert line["sample"]["rss"] > 0
    assert monitor.poll() is None
    monitor.send_signal(signal.SIGINT)
    rest = [json.loads(line) for line in monitor.stdout.read().splitlines()]
    assert monitor.wait() == 0
    assert all("sample" in line for line in rest[:-1])
    assert set(rest[-1]) == {"pid", "command", "ended", "summary"}
    assert (rest[-1]["ended"], rest[-1]["summary"]["samples"]) == (False, 3 + len(rest) - 1)


def test_the_last_line_tells_that_the_process_has_ended(monitor, sleeper):
    monitor.stdout.readline()
    sleeper.kill()
    sleeper.wait()
    assert json.loads(monitor.stdout.read().splitlines()[-1])["ended"] is True


def test_the_lines_are_a_log_that_can_be_drawn(tmp_path, capsys):
    assert main(["monitor", "--json", "--interval", "0.01", "--count", "3", str(os.getpid())]) == 0
    (tmp_path / "mem.jsonl").write_text(capsys.readouterr().out)
    assert main(["monitor", "--plot", str(tmp_path / "mem.jsonl")]) == 0
    assert (tmp_path / "mem.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_keeps_one_document_with_the_samples(tmp_path, capsys):
    kept = tmp_path / "kept.json"
    assert main(["monitor", str(os.getpid()), "--interval", "0.01", "--count", "3", "--json", str(kept)]) == 0
    assert "held" in capsys.readouterr().out
    assert len(json.loads(kept.read_text())["samples"]) == 3

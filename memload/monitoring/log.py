"""The monitor's log: one JSON object a line, so that the log of a killed run can be read.

    {"monitor": 1, "pid": 71, "time": 1.7e9, "command": "train.py"}      a run begins; 1 is the format's version
    {"pid": 71, "sample": {"time": 1.7e9, "rss": 1048576, ...}}          see `Sample`; zeros are left out
    {"pid": 71, "warning": {"time": 1.7e9, "cause": "leak", "text": "...", "place": "host"}}
    {"pid": 71, "summary": {...}}                                        the run ended

Lines are appended, each by one write, so several processes (the ranks of one machine) may share a file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from memload.errors import FormatError
from memload.formats.paths import named_in_errors
from memload.monitoring.diagnosis import Finding
from memload.monitoring.samples import Sample

VERSION = 1


class JsonLog:
    """Appends samples and findings to a file. After a line that was written in part, the next one begins anew.

    Args:
        path: the file, which is created if it does not exist, with its folders.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: int | None = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._torn = self.path.stat().st_size > 0 and not _ends_with_newline(self.path)
        self._pid = os.getpid()

    def begin(self) -> None:
        """Write that a run begins."""
        self._append({"monitor": VERSION, "pid": self._pid, "time": time.time(), "command": " ".join(sys.argv)[:200]})

    def sample(self, sample: Sample) -> None:
        """Write a sample."""
        self._append({"pid": self._pid, "sample": sample.as_json()})

    def warning(self, sample: Sample, finding: Finding) -> None:
        """Write a finding."""
        self._append({"pid": self._pid, "warning": {"time": sample.time, **asdict(finding)}})

    def end(self, summary: Mapping[str, Any]) -> None:
        """Write the summary of the run."""
        self._append({"pid": self._pid, "summary": dict(summary)})

    def close(self) -> None:
        """Close the file. May be called twice."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _append(self, line: Mapping[str, Any]) -> None:
        """Write a line by one call.

        Raises:
            OSError: the disk is full, or gone. The next line begins after the part that was written.
        """
        if self._file is None:
            return
        data = (b"\n" if self._torn else b"") + json.dumps(line).encode() + b"\n"
        self._torn = True
        while data:  # once, unless the disk becomes full: then the second write says so
            data = data[os.write(self._file, data) :]
        self._torn = False


_EXPECTED = "the log of memload.Monitor(log=...)"


@dataclass
class LoggedRun:
    """One run, as a log records it."""

    pid: int
    command: str = ""
    samples: list[Sample] = field(default_factory=list)
    warnings: list[tuple[float, Finding]] = field(default_factory=list)
    summary: dict[str, Any] | None = None


def read_log(path: str | os.PathLike[str]) -> list[LoggedRun]:
    """Return the runs of a log, in the order in which they began; incomplete lines are skipped.

    Raises:
        FileNotFoundError: there is no such file.
        FormatError: it holds no sample, or is of a newer version.
    """
    runs: list[LoggedRun] = []
    with named_in_errors(Path(path), _EXPECTED), Path(path).open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            _add_line(line, runs, path)
    runs = [run for run in runs if run.samples]
    if not runs:
        raise FormatError(f"{path}: no sample in it; expected {_EXPECTED}, one object a line")
    return runs


def _add_line(line: str, runs: list[LoggedRun], path: str | os.PathLike[str]) -> None:
    try:
        entry = json.loads(line)
    except ValueError:
        return
    if not isinstance(entry, dict) or not isinstance(entry.get("pid"), int):
        return
    version = entry.get("monitor")
    if version is not None:
        if version != VERSION:
            raise FormatError(f"{path}: a log of version {version!r}, expected {VERSION}: read it with a newer memload")
        runs.append(LoggedRun(entry["pid"], str(entry.get("command", ""))))
        return
    run = next((run for run in reversed(runs) if run.pid == entry["pid"]), None)
    if run is None:  # its beginning was cut off
        run = LoggedRun(entry["pid"])
        runs.append(run)
    try:
        if "sample" in entry:
            run.samples.append(Sample.from_json(entry["sample"]))
        elif "warning" in entry:
            warning = dict(entry["warning"])
            run.warnings.append((float(warning.pop("time")), Finding(**warning)))
        elif isinstance(entry.get("summary"), dict):
            run.summary = entry["summary"]
    except (KeyError, TypeError, ValueError):
        return


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"

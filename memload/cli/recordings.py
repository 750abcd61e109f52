"""Recordings in the commands: `memload info` tells and draws one, and `memload write` converts one or several."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memload.cli.charts import GREY, OURS, THEIRS, save
from memload.columns.clocks import SECOND, Nanoseconds
from memload.columns.spikes import Spikes
from memload.dataset.recordings.opening import open_recording
from memload.dataset.recordings.recording import Recording
from memload.formats.paths import is_remote, paths_of
from memload.formats.recordings.folder import holds_recording, source_of
from memload.formats.recordings.kinds import reader_of
from memload.monitoring.plots import new_figure
from memload.progress import note
from memload.sizes import counted
from memload.writing.recordings import made_of
from memload.writing.write import write

_INCH_PER_TRACK = 0.4


def recordings_at(sources: Sequence[str]) -> list[Path]:
    """Return the paths of the recordings that a command names; none unless all sources are recordings."""
    if any(is_remote(source) or (not Path(source).exists() and "=" in source) for source in sources):
        return []  # NAME=PATH is a field
    found = [path for source in sources for path in paths_of(source)]
    return found if found and all(path.exists() and reader_of(path) is not None for path in found) else []


def info_of(paths: Sequence[Path], options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return what recordings have, as text and as a document, and draw one if that is asked for.

    Raises:
        ValueError: several are to be drawn.
    """
    if len(paths) > 1:
        if options.plot:
            raise ValueError(
                f"--plot draws one recording, and there are {len(paths)}: {', '.join(map(str, paths[:4]))}"
            )
        told = {str(path): open_recording(path) for path in paths}
        text = "\n".join(f"{path}: {recording}" for path, recording in told.items())
        return text, {"paths": paths, "recordings": {path: described(recording) for path, recording in told.items()}}
    recording = open_recording(paths[0])
    text, document = str(recording), {"paths": paths, **described(recording)}
    if options.plot:
        document["drawn"] = save(drawn(recording), options.plot)
        text += f"\n  drawn: {document['drawn']}"
    return text, document


def described(recording: Recording) -> dict[str, Any]:
    """Return the fields and intervals of a recording for programs; times in seconds."""
    return {
        "name": recording.name,
        "fields": {name: _field(recording, name) for name in recording.fields},
        "intervals": {
            name: {"count": len(table), "seconds": table.seconds, "columns": list(table.columns)}
            for name, table in recording.intervals.items()
        },
        "left_out": dict(recording.left_out),
    }


def _field(recording: Recording, name: str) -> dict[str, Any]:
    one = recording.fields[name]
    begins, ends = (times / SECOND for times in recording.pieces(name))
    if isinstance(one, Spikes):
        return {"spikes": len(one), "units": len(one.names), "start": begins[0], "stop": ends[-1]}
    clock = recording.clocks[name]
    return {
        "dtype": one.kind,
        "shape": one.shape,
        "rows": one.rows,
        "rate": clock.hertz,
        "unit": clock.unit,
        "pieces": [[begin, end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)],
    }


def drawn(recording: Recording) -> Any:
    """Return a figure of a recording: its fields, with their gaps, and its intervals on one axis of time.

    Raises:
        ImportError: matplotlib is not installed.
    """
    tracks = [*recording.fields, *recording.intervals]
    figure = new_figure(9, _INCH_PER_TRACK * len(tracks) + 0.9)
    axes = figure.add_subplot()
    for place, (label, begins, ends, color) in enumerate(_tracks(recording)):
        bars = [(begin / SECOND, (end - begin) / SECOND) for begin, end in zip(begins, ends, strict=True)]
        axes.broken_barh(bars, (place - 0.35, 0.7), facecolors=color, edgecolor="white", linewidth=0.4)
        axes.text(1.01, place, label, transform=axes.get_yaxis_transform(), color=GREY, va="center", size=8)
    axes.set_yticks(range(len(tracks)), tracks)
    axes.set_ylim(len(tracks) - 0.4, -0.6)
    axes.set_xlabel(f"seconds{f' of {recording.name}' if recording.name else ''}", color=GREY)
    axes.tick_params(colors=GREY, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
    return figure


def _tracks(recording: Recording) -> Iterator[tuple[str, Nanoseconds, Nanoseconds, str]]:
    """For each field and table a label, the beginnings and ends of its pieces, and a color."""
    for name, one in recording.fields.items():
        begins, ends = recording.pieces(name)
        label = counted(len(one), "spike") if isinstance(one, Spikes) else f"{recording.clocks[name].hertz:.4g} Hz"
        yield label, begins, ends, OURS
    for table in recording.intervals.values():
        yield counted(len(table), "interval"), table.begins, table.ends, THEIRS


def write_all(sources: Sequence[Path], target: Path, **options: Any) -> dict[str, Recording]:
    """Write recordings, one to `target`, or several to folders in it that are named by their files.

    Those of several that an earlier call has completed, of the same files, are kept.
    """
    if len(sources) == 1:
        return {str(target): write(target, open_recording(sources[0]), **options)}
    names = [source.stem if source.is_file() else source.name for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two of the recordings would be written to {target / name}: give them other names")
    target.mkdir(parents=True, exist_ok=True)
    return {
        str(target / name): _written(source, target / name, options)
        for name, source in zip(names, sources, strict=True)
    }


def _written(source: Path, place: Path, options: dict[str, Any]) -> Recording:
    recording = open_recording(source)
    identity = made_of(recording)
    if options["resume"] and holds_recording(place) and identity is not None and source_of(place) == identity:
        note(f"{place}: complete already", options["progress"])
        return open_recording(place)
    return write(place, recording, **options)

"""`memload info`: the fields of a path, how their rows are read, and what reading a row costs."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memload.cli.charts import BOUND, Bar, check_plot, draw_bars, save
from memload.cli.described import described, of_field, stored
from memload.cli.matlab import matlab_at, variables_at
from memload.cli.options import stated
from memload.cli.output import answer
from memload.cli.recordings import info_of, recordings_at
from memload.cli.source_options import as_fields
from memload.columns.fields import Field, describe
from memload.dataset.dataset import Dataset
from memload.dataset.opening import open  # noqa: A004 - memload's own
from memload.errors import FormatError, LayoutWarning
from memload.formats.costs import cost_of
from memload.formats.formats import Stated, names_at
from memload.formats.keyed_paths import places_of
from memload.formats.paths import is_remote
from memload.sizes import counted, format_size

_OF_BARE_ROWS = ("dtype", "shape")


def run(options: argparse.Namespace) -> int:
    """Print the fields, the number of files, how each field is read, and advice on expensive rows.

    A recording is told by its fields, clocks and intervals, a MATLAB file by its variables. If the arrays of a file do
    not form one dataset, each is listed by itself, also those that cannot be read.
    """
    given = stated(options)
    check_plot(options.plot, "--plot")
    if not given and (recorded := recordings_at(options.path)):
        answer(options, *info_of(recorded, options))
        return 0
    if not given and (files := matlab_at(options.path)):
        answer(options, *variables_at(files, options))
        return 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LayoutWarning)
        try:
            dataset = open(options.path, **given)
        except (FormatError, ValueError) as error:
            places = _places(options.path)
            if len(places) > 1:
                raise ValueError(f"{error}{_each_of(options.path, places, given)}") from error
            arrays = _arrays(places, given)
            if not arrays:
                raise
            text, document = _told_arrays(str(places[0]), arrays), {"paths": options.path, "arrays": arrays}
        else:
            text, document = _told(dataset), {"paths": options.path, "files": _files(dataset), **described(dataset)}
            if options.plot:
                document["drawn"] = _draw(dataset, options.plot)
                text.append(f"  drawn: {document['drawn']}")
    advice = [str(warning.message) for warning in caught]
    answer(options, "\n".join(text + advice), document | {"advice": advice})
    return 0


def _files(dataset: Dataset) -> int:
    storages = (storage for field in dataset.fields.values() for storage in field.column.storages)
    return len({storage.name for storage in storages if storage.mapped})


def _told(dataset: Dataset) -> list[str]:
    fields = [f"  {name}: {_reading(field)}" for name, field in dataset.fields.items()]
    return [str(dataset), f"  files: {_files(dataset)}", *fields]


def _draw(dataset: Dataset, path: Path) -> Path:
    """Draw the bytes of a row of each field, and what reading it takes; return the path of the image."""
    rows = {name: cost_of(field) for name, field in dataset.fields.items()}
    groups = {
        name: [
            Bar("a row", cost.nbytes, cost.nbytes, cost.nbytes, format_size(cost.nbytes)),
            Bar("is read as", cost.touched, cost.touched, cost.touched, str(cost), BOUND),
        ]
        for name, cost in rows.items()
    }
    return save(draw_bars(groups, f"bytes of one of {counted(len(dataset), 'row')}"), path)


def _reading(field: Field) -> str:
    how = stored(field)
    return f"{'read ' if how.startswith('in place') else ''}{how}; {cost_of(field)}"


def _places(given: Sequence[str]) -> list[Path]:
    """Return the paths that are given, or found by patterns; none of stores."""
    return [] if any(map(is_remote, given)) else [place.path for place in places_of(given)]


def _each_of(paths: Sequence[str], places: Sequence[Path], given: dict[str, Any]) -> str:
    """Return how files that form no dataset are told one by one, or written, for the error."""
    found = f"{paths[0]} matches" if len(paths) == 1 else "there are"
    each = f"; {found} {counted(len(places), 'path')}: to see what each has, give one, such as {places[0]}"
    if len(paths) == 1:
        return each
    try:
        return f"{each}; {as_fields(paths, [open(path, **given) for path in paths])}"
    except (FormatError, ValueError):
        return each  # the error is of one of them


def _arrays(places: Sequence[Path], given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what each named array of a file is; nothing if there is none, if `key` selects some, or of bare rows."""
    if len(places) != 1 or not {"key", *_OF_BARE_ROWS}.isdisjoint(given):
        return {}
    names = [name for name in names_at(places[0], Stated(trust=given.get("trust"))) if name]
    return {name: _array(str(places[0]), name, given) for name in names}


def _array(path: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
    try:
        (field,) = open(path, key=name, **given).fields.values()
    except (FormatError, ValueError) as error:
        why = str(error).removeprefix(f"{Path(path).absolute()}: ").removeprefix(f"{path}: ")
        return {"unfit": why, "text": f"unfit: {why}"}
    text = f"{counted(field.rows, 'row')} of {describe(field.dtype, field.shape)}; {_reading(field)}"
    return {"rows": field.rows, **of_field(field), "text": text}


def _told_arrays(path: str, arrays: dict[str, dict[str, Any]]) -> list[str]:
    several = f"{len(arrays)} arrays, which do not form one dataset; select those that belong together by --key"
    head = f"{path}: {several if len(arrays) > 1 else '1 array, which cannot be read'}"
    return [head, *(f"  {name}: {array['text']}" for name, array in arrays.items())]

"""`memload info`: the fields of a path, how their rows are read, and what reading a row costs."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

from memload.cli.charts import BOUND, Bar, check_ending, draw_bars, save
from memload.cli.options import stated
from memload.columns.fields import Field, describe
from memload.dataset.dataset import Dataset
from memload.dataset.opening import open  # noqa: A004 - memload's own
from memload.errors import FormatError, LayoutWarning
from memload.formats.costs import cost_of
from memload.formats.formats import Stated, names_at
from memload.sizes import format_size


def run(options: argparse.Namespace) -> int:
    """Print the fields, the number of files, how each field is read, and advice on expensive rows.

    If the arrays of a file do not form one dataset, each is listed by itself, also those that cannot be read.
    """
    given = stated(options)
    check_ending(options.plot, "--plot")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LayoutWarning)
        try:
            dataset = open(options.path, **given)
        except (FormatError, ValueError):
            if not _list_arrays(options.path, given):
                raise
        else:
            _print_dataset(dataset)
            if options.plot:
                print(f"  drawn: {_draw(dataset, options.plot)}")
    for warning in caught:
        print(warning.message)
    return 0


def _print_dataset(dataset: Dataset) -> None:
    files = {storage.name for field in dataset.fields.values() for storage in field.column.storages if storage.mapped}
    print(dataset)
    print(f"  files: {len(files)}")
    for name, field in dataset.fields.items():
        print(f"  {name}: {_reading(field)}")


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
    return save(draw_bars(groups, f"bytes of one of {len(dataset):,} rows"), path)


def _reading(field: Field) -> str:
    how = str(field.stored)
    return f"{'read ' if how.startswith('in place') else ''}{how}; {cost_of(field)}"


def _list_arrays(paths: list[str], given: dict[str, Any]) -> bool:
    """Print a line for each named array of a file; return False if there is none, or if `key` selects some."""
    if len(paths) != 1 or "key" in given:
        return False
    names = [name for name in names_at(Path(paths[0]), Stated(trust=given.get("trust"))) if name]
    if names:
        several = f"{len(names)} arrays, which do not form one dataset; select those that belong together by --key"
        print(f"{paths[0]}: {several if len(names) > 1 else '1 array, which cannot be read'}")
    for name in names:
        print(f"  {name}: {_array(paths[0], name, given)}")
    return bool(names)


def _array(path: str, name: str, given: dict[str, Any]) -> str:
    try:
        (field,) = open(path, key=name, **given).fields.values()
    except (FormatError, ValueError) as error:
        return f"unfit: {str(error).removeprefix(f'{Path(path).absolute()}: ').removeprefix(f'{path}: ')}"
    return f"{field.rows:,} rows of {describe(field.dtype, field.shape)}; {_reading(field)}"

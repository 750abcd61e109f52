"""`memload info`: what a path holds, how its rows are read, and what one costs."""

from __future__ import annotations

import argparse
import warnings

from memload.errors import LayoutWarning
from memload.opening import open  # noqa: A004 - memload's own
from memload.row_costs import cost_of

HELP = "Say what a set of shards or a file holds, and what reading a row costs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `memload info`."""
    parser.add_argument("path", nargs="+", help="what memload.open takes; several are one dataset")
    parser.add_argument(
        "--key", action="append", help="of a file of several arrays: which one; may be given repeatedly"
    )


def run(options: argparse.Namespace) -> int:
    """Print the fields, the number of files, how each field is read, and advice where rows cost much."""
    stated = {} if options.key is None else {"key": options.key}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LayoutWarning)
        dataset = open(options.path, **stated)
    files = {storage.name for field in dataset.fields.values() for storage in field.column.storages if storage.mapped}
    print(dataset)
    print(f"  files: {len(files)}")
    for name, field in dataset.fields.items():
        print(f"  {name}: {cost_of(field)}")
    for warning in caught:
        print(warning.message)
    return 0

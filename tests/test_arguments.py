"""The table of arguments is complete, and what it says of the native engine holds."""

import inspect
from pathlib import Path

import memload

TABLE = Path(__file__).parent.parent / "docs" / "dataloader-arguments.md"


def rows():
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_table_has_a_row_for_every_argument_in_their_order():
    parameters = list(inspect.signature(memload.FastLoader).parameters)
    assert [row[0].strip("` ") for row in rows()] == parameters


def test_every_row_says_what_both_engines_do():
    assert [row[0] for row in rows() if len(row) != 3 or not all(row)] == []

"""Tables in HTML, by which notebooks show datasets and plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Protocol

from memload.columns.fields import Field
from memload.sizes import format_size

_LEFT, _RIGHT = "text-align: left", "text-align: right"


def html_table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = (), *, right: int = 0
) -> str:
    """Return a table with its title above and notes below. All texts are escaped.

    Args:
        title: what the table shows.
        heads: the heads of the columns.
        rows: the cells of each row, as many as there are heads.
        notes: lines below the table.
        right: how many columns at the end have numbers, which are set to the right.

    Example:
        >>> html_table("a set", ["field", "bytes"], [["<x>", "12"]], right=1).count("&lt;x&gt;")
        1
    """
    styles = [_LEFT] * (len(heads) - right) + [_RIGHT] * right

    def line(cells: Sequence[str], tag: str) -> str:
        made = (f'<{tag} style="{style}">{escape(cell)}</{tag}>' for cell, style in zip(cells, styles, strict=True))
        return f"<tr>{''.join(made)}</tr>"

    body = "\n".join(line(cells, "td") for cells in rows)
    below = "".join(f"<div>{escape(note)}</div>" for note in notes)
    return (
        f"<div><div>{escape(title)}</div>\n<table>\n<thead>{line(heads, 'th')}</thead>\n<tbody>\n{body}\n</tbody>\n"
        f"</table>{below}</div>"
    )


class HasFields(Protocol):
    """A dataset, as far as its table needs it."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields by name."""


def fields_table(dataset: HasFields) -> str:
    """Return the fields of a dataset as a table, below the first line of its description."""
    heads = ("field", "dtype", "shape of a row", "bytes of a row", "of all rows")
    rows = [
        (name, field.kind, str(field.shape), format_size(field.row_bytes), format_size(field.nbytes))
        for name, field in dataset.fields.items()
    ]
    return html_table(repr(dataset).partition("\n")[0], heads, rows, right=2)


def members_table(described: str, members: Mapping[str, Mapping[str, Field]]) -> str:
    """Return the fields of several datasets as one table, below the first line of their description."""
    heads = ("dataset", "rows", "field", "dtype", "shape of a row", "of all rows")
    rows = [
        (name, f"{field.rows:,}", inner, field.kind, str(field.shape), format_size(field.nbytes))
        for name, fields in members.items()
        for inner, field in fields.items()
    ]
    return html_table(described.partition("\n")[0], heads, rows, right=1)

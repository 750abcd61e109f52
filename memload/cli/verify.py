"""`memload verify`: compares every byte of a set of shards with its checksums."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from memload.cli.output import answer, is_json, keep
from memload.errors import ChecksumError, Damage
from memload.formats.verifying import verify
from memload.sizes import format_size

_MOST_LISTED = 100  # places of damage in the JSON


def run(options: argparse.Namespace) -> int:
    """Read the shards and compare their checksums; print the bytes read. With `--json` damages are part of the answer.

    Raises:
        ChecksumError: bytes differ; without `--json` on standard output.
    """
    try:
        nbytes = verify(options.path, progress=False if options.quiet else None)
    except ChecksumError as error:
        keep(options, {"path": options.path, "agrees": False, "nbytes": error.nbytes, **_told(error.damages)})
        if is_json(options):
            return 1
        raise
    text = f"{options.path}: {format_size(nbytes)} read, all checksums agree"
    answer(options, text, {"path": options.path, "agrees": True, "nbytes": nbytes, **_told(())})
    return 0


def _told(damages: Sequence[Damage]) -> dict[str, Any]:
    """Return the first places of damage, how many there are, and how many rows of each field they have."""
    rows: dict[str, list[range]] = {}
    for damage in damages:
        if damage.field is not None and damage.rows is not None:
            rows.setdefault(damage.field, []).append(damage.rows)
    return {
        "damages": [_place(damage) for damage in damages[:_MOST_LISTED]],
        "damaged_places": len(damages),
        "damaged_rows": {name: _count(places) for name, places in rows.items()},
    }


def _count(places: Sequence[range]) -> int:
    """Return how many rows lie in at least one of some places."""
    count = end = 0
    for place in sorted(places, key=lambda one: one.start):
        count += max(0, place.stop - max(place.start, end))
        end = max(end, place.stop)
    return count


def _place(damage: Damage) -> dict[str, Any]:
    rows = damage.rows and {"first": damage.rows[0], "last": damage.rows[-1], "count": len(damage.rows)}
    return {"shard": damage.shard, "reason": damage.reason, "field": damage.field, "rows": rows}

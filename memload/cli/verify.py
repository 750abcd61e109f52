"""`memload verify`: compares every byte of a set of shards with its checksums."""

from __future__ import annotations

import argparse

from memload.cli.output import answer, is_json, keep
from memload.errors import ChecksumError
from memload.formats.shards.reading import verify
from memload.sizes import format_size


def run(options: argparse.Namespace) -> int:
    """Read the shards and compare their checksums; print the bytes read. With `--json` damages are part of the answer.

    Raises:
        ChecksumError: bytes differ; without `--json` on standard output.
    """
    try:
        nbytes = verify(options.path, progress=False if options.quiet else None)
    except ChecksumError as error:
        keep(options, {"path": options.path, "agrees": False, "damages": error.damages})
        if is_json(options):
            return 1
        raise
    text = f"{options.path}: {format_size(nbytes)} read, all checksums agree"
    answer(options, text, {"path": options.path, "agrees": True, "nbytes": nbytes, "damages": []})
    return 0

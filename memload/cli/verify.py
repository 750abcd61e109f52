"""`memload verify`: compares every byte of a set of shards with its checksums."""

from __future__ import annotations

import argparse

from memload.formats.shards.reading import verify
from memload.sizes import format_size


def run(options: argparse.Namespace) -> int:
    """Read the shards and compare their checksums; print the bytes read."""
    nbytes = verify(options.path, progress=False if options.quiet else None)
    print(f"{options.path}: {format_size(nbytes)} read, all checksums agree")
    return 0

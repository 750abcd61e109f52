"""`memload seal`: makes one set of the parts that `memload write --part` wrote."""

from __future__ import annotations

import argparse

from memload.writing.parts import seal


def run(options: argparse.Namespace) -> int:
    """Seal the parts, and print the set."""
    print(seal(options.path, parts=options.parts))
    return 0

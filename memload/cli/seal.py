"""`memload seal`: makes one set of the parts that `memload write --part` wrote."""

from __future__ import annotations

import argparse

from memload.cli.described import described
from memload.cli.output import answer
from memload.writing.parts import seal


def run(options: argparse.Namespace) -> int:
    """Seal the parts, and print the set."""
    dataset = seal(options.path, parts=options.parts)
    answer(options, dataset, {"path": options.path, **described(dataset)})
    return 0

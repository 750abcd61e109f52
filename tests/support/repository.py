"""Where the files of the repository lie that tests read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
CSRC = ROOT / "csrc"
DOCS = ROOT / "docs"
TESTS = ROOT / "tests"
DATA = TESTS / "data"
SUPPORT = TESTS / "support"

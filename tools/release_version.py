"""Says whether the version of a release is the same wherever it is written: the tag, the package, citation, changelog.

python tools/release_version.py v0.2.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Each names a version, or a version and its date, on a line of its own.
PLACES = {
    "pyproject.toml": r'^version = "(.*)"$',
    "CITATION.cff": r"^version: (.*)$",
    "CHANGELOG.md": r"^## \[(\d.*)\] - \d{4}-\d\d-\d\d$",  # the newest that was released
}


def differing(tag: str, root: Path = ROOT) -> list[str]:
    """The places whose version is not that of a tag such as ``v0.2.0``, each as a line for the log."""
    wanted = tag.removeprefix("v")
    lines = []
    for name, pattern in PLACES.items():
        found = re.search(pattern, (root / name).read_text(), re.MULTILINE)
        if found is None or found[1] != wanted:
            lines.append(f"{name}: {found[1] if found else 'no version'}, but the tag is {tag}: expected {wanted}")
    return lines


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} TAG, such as v0.2.0")
    if wrong := differing(sys.argv[1]):
        sys.exit("\n".join(wrong))

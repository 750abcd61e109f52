"""Runs the programs of docs/frameworks.md, those under a heading one after the other."""

import os
import re
import sys
import tempfile

from common import report
from repository import DOCS

PAGE = DOCS / "frameworks.md"


def programs():
    parts = re.split(r"^## (.*)\n", PAGE.read_text(), flags=re.M)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {heading: re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S) for heading, text in found.items()}


def run(heading):
    """As a script: what a program imports and defines, the next one has."""
    names = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for program in programs()[heading]:
            exec(compile(program, f"{PAGE.name}, {heading}", "exec"), names)
        os.chdir("/")
    return {"programs": len(programs()[heading])}


if __name__ == "__main__":
    sys.argv[2:] = sys.argv[2:] or sorted(programs())
    report({heading: lambda heading=heading: run(heading) for heading in programs()})

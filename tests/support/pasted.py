"""A script with everything pasted that `memload init` says of it, each piece where it says."""

import ast
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from memload.cli import init
from memload.cli.main import main
from memload.cli.script import LOADERS, Script

ARGUMENT = re.compile(r"(\w+)=(.*?)  # in FastLoader(?: of lines? ([\d, ]+))?")
MOVED = re.compile(r"; line (\d+) makes \w+, and has to come before line (\d+)")
INSTEAD = re.compile(r"with `(\w+)` in the place of (.*?)(?: in the loader)?$")


@dataclass
class Pasted:
    """Lines of a script, by number from 1, and what stands above and below them."""

    script: Script
    lines: list[str]
    above: dict[int, list[str]] = field(default_factory=dict)
    below: dict[int, list[str]] = field(default_factory=dict)
    arguments: dict[int, dict[str, str]] = field(default_factory=dict)
    instead: list[tuple[str, str]] = field(default_factory=list)

    def take(self, one: init.Finding, words: Mapping[str, str]) -> None:
        """Take what is said of a line; `words` are what its placeholders stand for."""
        for command in one.commands:
            assert main(shlex.split(_said(command, words))[1:]) == 0, command
        code = _said("\n".join(one.change), words)
        for made, first in MOVED.findall(code):
            self.above.setdefault(int(first), []).insert(0, self.lines[int(made) - 1].strip())
            self.lines[int(made) - 1] = "\n"
        statements = []
        for line in code.splitlines():
            if given := ARGUMENT.match(line):
                default = str(self.script.loaders[0].call.lineno)
                for at in (given[3] or default).split(", "):
                    known = self.arguments.setdefault(int(at), {})
                    assert known.setdefault(given[1], given[2]) == given[2], line
            elif "  # in the place of " in line:
                self.instead.append((line.partition("  # in the place of ")[2], line.partition("  # ")[0]))
            elif one.about not in ("loader", "class"):
                statements.append(line)
        if statements:
            self.place(one, statements)

    def place(self, one: init.Finding, statements: list[str]) -> None:
        """Put statements where they are said to stand."""
        kind, first, *more = re.findall(r"above|below|in the place of lines?|\d+(?= to|,|$)|\d+$", one.where)
        if other := INSTEAD.search(one.where):
            self.instead.append((other[2], other[1]))
            calls = [one.call for one in self.script.loaders]
            of_loaders = {line for one in calls for line in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
            for line in {*range(1, len(self.lines) + 1)} - of_loaders if kind == "above" else ():
                self.lines[line - 1] = self.lines[line - 1].replace(other[2], other[1])
        if kind == "below":
            self.below.setdefault(int(first), []).extend(statements)
        else:
            self.above.setdefault(int(first), []).extend(statements)
        if kind.startswith("in the place"):
            for number in range(int(first), int(more[0] if more else first) + 1):
                self.lines[number - 1] = ""

    def text(self) -> str:
        """Return the script."""
        shown = init.lines_of(self.script.text)
        for loader in self.script.loaders:
            if loader.kind in LOADERS:
                self.replace_call(loader.call)
        made = []
        for number, line in enumerate(self.lines, 1):
            ends = [one for one in ast.walk(self.script.tree) if isinstance(one, ast.stmt) and one.end_lineno == number]
            first = min((one.lineno for one in ends if not hasattr(one, "body")), default=number)
            made += [_indented(shown[number - 1], code) for code in self.above.get(number, [])]
            made += [line, *(_indented(shown[first - 1], code) for code in self.below.get(number, []))]
        return "import memload\n" + "".join(made)

    def replace_call(self, call: ast.Call) -> None:
        """Make a loader a FastLoader that is given what it is said to be given."""
        made = ast.parse(ast.unparse(call), mode="eval").body
        assert isinstance(made, ast.Call)
        made.func = ast.parse(init.FAST_LOADER, mode="eval").body
        given = self.arguments.get(call.lineno, {}).items()
        made.keywords += [ast.keyword(name, ast.parse(code, mode="eval").body) for name, code in given]
        code = ast.unparse(made)
        for old, new in self.instead:
            code = re.sub(rf"(?<=FastLoader\(){re.escape(old)}(?=[,)])", new, code)
        init._replace(self.lines, call, code)
        self.lines[call.lineno : call.lineno] = [""] * ((call.end_lineno or call.lineno) - call.lineno)


def _said(text: str, words: Mapping[str, str]) -> str:
    for word, meant in words.items():
        text = re.sub(rf"\b{word}\b", meant, text)
    return text


def _indented(beside: str, code: str) -> str:
    return f"{beside[: len(beside) - len(beside.lstrip())]}{code}\n"


def pasted(text: str, words: Mapping[str, str] | None = None) -> str:
    """Return a script with all the advice that it gets; its commands have been run."""
    Path("train.py").write_text(text)
    script = Script.read(Path("train.py"))
    made = Pasted(script, init.lines_of(text))
    for one in init.findings(script):
        made.take(one, words or {})
    return made.text()

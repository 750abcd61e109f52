"""Each program of docs/errors.md raises the error that stands below it."""

import re

import pytest
from repository import DOCS

import memload

PAGE = (DOCS / "errors.md").read_text()
BEGIN, *REST = re.findall(r"^```(python|text)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_programs_raise_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(BEGIN[1], "errors.md", "exec"), names)
    programs, errors = REST[::2], REST[1::2]
    assert len(programs) == len(errors) > 20
    for (kind, program), (answer, text) in zip(programs, errors, strict=True):
        assert (kind, answer) == ("python", "text"), program
        with pytest.raises(Exception) as caught:  # noqa: PT011 - compared below, with its class
            exec(compile(program, "errors.md", "exec"), names)
        assert plain(told(caught.value).replace(str(tmp_path), "/data")) == plain(text), program


def test_the_table_has_every_class():
    classes = {name for name in memload.__all__ if name.endswith("Error")} - {"MemloadError"}
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)) == classes
    for name, base in re.findall(r"^\| `(\w+)` \| `(\w+)` \|", PAGE, flags=re.MULTILINE):
        assert base in [one.__name__ for one in getattr(memload, name).__bases__]


def told(error: BaseException) -> str:
    """Return an error as a traceback ends with it; a KeyError without the quotes around its message."""
    message = error.args[0] if isinstance(error, KeyError) else str(error)
    return f"{type(error).__name__}: {message}"


def plain(text: str) -> str:
    """Return a text without line ends and without sizes of this machine's memory."""
    return re.sub(r"\d+(\.\d+)? [kMGT]?B", "SIZE", " ".join(text.split()))

"""docs/five-set-ups.md: its programs run, and print what the page shows."""

import re

import pytest
from repository import DOCS

PAGE = DOCS / "five-set-ups.md"
NUMBER = re.compile(r"\d[\d,]*\.?\d*")
EXACTNESS = 0.03  # versions of torch save other tensors for the backward pass


def programs():
    """The programs of the page, each with what it prints."""
    return re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)


def words(text):
    return [" ".join(NUMBER.sub("#", line).split()) for line in text.splitlines() if line.strip()]


def numbers(text):
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


@pytest.mark.slow
def test_the_programs_of_the_page_print_what_it_shows(capsys):
    assert len(programs()) == PAGE.read_text().count("```python")
    names = {"__name__": "page"}
    for program, shown in programs():
        exec(compile(program, str(PAGE), "exec"), names)
        printed = capsys.readouterr().out
        assert words(printed) == words(shown)
        assert numbers(printed) == pytest.approx(numbers(shown), rel=EXACTNESS)

"""docs/ragged.md: its programs run, one after the other."""

import re

from repository import DOCS

PAGE = DOCS / "ragged.md"


def test_the_programs_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    assert len(programs) == 8
    names = {}
    for program in programs:
        exec(compile(program, str(PAGE), "exec"), names)
    assert len(names["stored"]) == 6

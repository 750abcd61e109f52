"""docs/recordings.md: its programs run, one after the other."""

import re

from repository import DOCS

PAGE = DOCS / "recordings.md"


def test_the_programs_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    assert len(programs) == 7
    names = {}
    for program in programs:
        exec(compile(program, str(PAGE), "exec"), names)
    assert names["loader"].engine == "native"
    assert len(names["around"]) == 2
    assert not set(names["parts"]["train"].start) & set(names["parts"]["test"].start)

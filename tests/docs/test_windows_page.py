"""docs/windows.md: its programs run, one after the other."""

import re

import numpy as np
from repository import DOCS

import memload

PAGE = DOCS / "windows.md"


def test_the_programs_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    assert len(programs) == 6
    names = {}
    for program in programs:
        exec(compile(program, str(PAGE), "exec"), names)
    assert names["loader"].engine == "native"
    assert len(names["data"]) == 19 * 8 + 19 * 6 + 19 * 7
    assert len(names["trials"]) == 300
    begun = memload.open("eeg").with_lags(eeg=range(0, -200, -1)).select(names["onsets"][:20] - 50)
    assert np.array_equal(np.stack([one["eeg"] for one in begun]), np.stack([names["trials"][k][0] for k in range(20)]))

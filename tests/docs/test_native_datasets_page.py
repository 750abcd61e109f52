"""docs/native-datasets.md: its program runs."""

import re

from repository import DOCS

PAGE = DOCS / "native-datasets.md"


def test_the_program_of_the_page_runs_and_is_native():
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    names = {}
    exec(compile(program, str(PAGE), "exec"), names)
    assert sum(len(batch["stim"]) for batch in names["loader"]) == 100

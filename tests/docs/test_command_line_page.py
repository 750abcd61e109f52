"""What docs/command-line.md shows of `memload init` is what it prints."""

import re

from repository import DOCS

from memload.cli.main import main

PAGE = (DOCS / "command-line.md").read_text()
SAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(train\.py: .*?)```", re.DOTALL)


def test_the_report_of_the_script_is_the_one_that_is_shown(tmp_path, monkeypatch, capsys):
    ((script, shown),) = SAMPLE.findall(PAGE)
    (tmp_path / "train.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("memload.cli.init._pages", lambda: "a folder of memload's sources")
    assert main(["init", "train.py"]) == 0
    assert capsys.readouterr().out.split() == shown.split()

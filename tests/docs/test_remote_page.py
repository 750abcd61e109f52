"""docs/remote.md runs from top to bottom, against a server of object stores on loopback."""

import re
import shlex

from repository import DOCS

from memload.cli.main import main


def test_the_page_takes_a_folder_to_a_bucket(proxy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page, names = (DOCS / "remote.md").read_text(), {"__name__": "page"}
    for kind, snippet in re.findall(r"^```(python|sh)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
        if kind == "python":
            exec(compile(snippet, "remote.md", "exec"), names)
            continue
        del names["ds"], names["loader"]
        for line in snippet.splitlines():
            assert main(shlex.split(line)[1:]) == 0
    assert names["batch"]["label"].max() < 10
    assert not list(tmp_path.glob("cache/*/*"))

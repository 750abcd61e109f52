"""The script that counts what the architecture is judged by counts right."""

import json
import textwrap

import house
import pytest


@pytest.fixture
def package(tmp_path):
    """A package memload of files given by path and text."""

    def made(**files):
        root = tmp_path / "memload"
        for name, text in {"__init__": "", **files}.items():
            path = root / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
            if path.parent != root:
                (path.parent / "__init__.py").touch()
        return root

    return made


def test_packages_and_root_modules_are_those_directly_below(package):
    root = package(casts__in__rule="", engine__in__native="", loader="", errors="", __main__="")
    assert house.packages_and_root_modules(root) == (["casts", "engine"], ["errors", "loader"])


FORMS = {
    "at the top": "import memload.b.one",
    "of a name": "from memload.b import one",
    "of a package": "from memload import b",
    "for types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from memload.b.one import One",
    "in a function": "def f():\n    from memload.b.one import One",
    "by a text": "import importlib\ndef f():\n    return importlib.import_module('memload.b.one').One",
}


@pytest.mark.parametrize("form", FORMS)
def test_an_import_counts_whatever_its_form(package, form):
    root = package(a__in__one=FORMS[form], b__in__one="import numpy\nfrom memload import _core\nimport memload.b.two")
    assert house.imports_among_units(root)["a"] == {"b"}
    assert house.imports_among_units(root)["b"] == set()


def test_the_face_is_a_unit_of_its_own(package):
    root = package(__init__="from memload.a import one", a="import memload", b="from memload import one")
    assert house.imports_among_units(root) == {"": {"a"}, "a": {""}, "b": {""}}


def test_circles_are_the_strongly_connected_ones_the_largest_first():
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}, "g": set()}
    assert house.circles(edges) == [["a", "b", "c"], ["d", "e"]]
    assert house.circles({"a": {"b"}, "b": set()}) == []


TABLES = {
    "a text": 'FLOORS = floors("""\nerrors sizes\ncasts\n    more of casts\nloader\n""")',
    "texts": 'FLOORS = floors("""\nerrors\ncasts\n""")\nPROGRAMS = floors("""\ncli\n""")',
    "a list": 'FLOORS = ["base", "casts", "loader"]',
    "a dict": 'FLOORS = {"base": "errors sizes", "casts": "", "loader": ""}',
}


@pytest.mark.parametrize("form", TABLES)
def test_floors_are_the_lines_of_the_table(tmp_path, form):
    (tmp_path / "test_structure.py").write_text(TABLES[form])
    assert house.floors(tmp_path / "test_structure.py") == 3


def test_floors_that_cannot_be_counted_are_said_rather_than_none(tmp_path):
    test = tmp_path / "test_structure.py"
    for text in ("", "FLOORS = sorted(x for x in y)"):
        test.write_text(text)
        with pytest.raises(SystemExit, match=r"no list FLOORS|not counted"):
            house.floors(test)


PRIVATE = """
loader._request
self.loader._depth = 2
self._loader._close()
getattr(loader, "_source", None)
"""
PUBLIC = """
loader.depth
loader.__class__
self._other._depth
getattr(loader, "depth")
getattr(other, "_depth")
"""


def test_uses_of_what_is_private_to_a_loader_are_counted(package):
    root = package(engine__in__one=PRIVATE, engine__in__two=PUBLIC, loader="loader._own", state="loader._source")
    (root.parent / "test_structure.py").write_text("FLOORS = ['a']")
    found = house.what_files_say(root, root.parent / "test_structure.py")
    assert (found["private_uses"], found["private_files"]) == (5, 2)
    assert (found["packages"], found["root_modules"], found["floors"]) == (1, 2, 1)
    assert found["lines"] == len((PRIVATE + PUBLIC).splitlines()) + 2
    assert (found["circle"], found["circles"]) == (0, 0)


def test_a_program_that_counts_tells_json_and_its_failure_is_said():
    assert house.outcome("import sys\nprint('before')\nprint(len(sys.argv))", "a", "b") == 3
    with pytest.raises(SystemExit, match=r"status 1:\n(.|\n)*ZeroDivisionError"):
        house.outcome("1 / 0")


def test_a_pass_is_followed_through_its_files(tmp_path):
    house.outcome(house._SHARDS + "print(0)", str(tmp_path / "shards"))
    found = house.what_a_pass_does(str(tmp_path / "shards"))
    assert 1 < found["pass_units"] <= found["pass_files"] <= found["pass_changes"]


def test_modules_around_the_loader_are_told_by_their_package():
    loaded = ["memload", "memload._core", "memload.loader.fast_loader", "memload.monitoring.loops", "memload.planning"]
    assert house.around(loaded) == ["memload.monitoring.loops", "memload.planning"]


WANTED = {
    "kept": house.Wanted("kept", 2, met=True),
    "far": house.Wanted("far", 2),
    "time": house.Wanted("time", 0.2, met=True),
}


def test_only_what_was_met_can_regress():
    assert house.regressed({"kept": 2, "far": 5}, WANTED) == []
    assert house.regressed({"kept": 3, "far": 5}, WANTED) == ["kept: at most 2 wanted, and reached before; now 3"]


def test_what_was_reached_on_the_way_is_held():
    wanted = {"far": house.Wanted("far", 2, held=4)}
    assert house.regressed({"far": 4}, wanted) == []
    assert house.regressed({"far": 5}, wanted) == ["far: at most 4 wanted, and reached before; now 5"]


def test_the_table_has_now_wanted_and_a_mark():
    lines = house.table({"kept": 2, "far": 5_000, "time": 0.25}, WANTED).splitlines()
    assert [line.split() for line in lines] == [
        ["now", "wanted"],
        *(["kept", "2", "2", "met"], ["far", "5,000", "2"], ["time", "0.25", "0.20"]),
    ]


def test_a_check_takes_no_times_and_fails_if_a_figure_regresses(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(house, "WANTED", WANTED)
    monkeypatch.setattr(house, "figures", lambda repeats: asked.append(repeats) or {"kept": 3, "far": 1})
    assert house.main([]) == 0
    assert house.main(["--check"]) == 1
    assert "kept: at most 2 wanted" in capsys.readouterr().err
    assert house.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["far"] == {
        "now": 1,
        "title": "far",
        "most": 2,
        "met": False,
        "held": None,
    }
    assert asked == [5, 0, 5]

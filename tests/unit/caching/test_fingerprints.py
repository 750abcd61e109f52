"""What tells functions from each other: their code, what it goes by, and what they hold; in every process alike."""

import dataclasses
import enum
import functools
import math
import re
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from programs import run_all

import memload
from memload.caching.fingerprints import UnhashableError, fingerprint


def function(source, **held):
    """The function f of a source, whose global variables are `held`."""
    names = {"__name__": "script", "torch": torch, "np": np, **held}
    exec(textwrap.dedent(source), names)
    return names["f"]


def changed(before, after):
    return fingerprint(before) != fingerprint(after)


def test_the_same_source_has_the_same_fingerprint_wherever_it_stands():
    source = "def f(x, *, k=2):\n    return torch.relu(x) * k + sum(v for v in (1, 2))"
    assert not changed(function(source), function(f"\n\n# moved\n{source}"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(x): return x + 1", "def f(x): return x + 2"),
        ("def f(x): return x + 1", "def f(x): return x - 1"),
        ("def f(x): return x + 1", "def f(x): return x + 1.0"),
        ("def f(x): return x + 1", "def f(x): return x + True"),
        ("def f(x, k=1): return x", "def f(x, k=2): return x"),
        ("def f(x, *, k=1): return x", "def f(x, *, k=2): return x"),
        ("def f(x): return torch.sin(x)", "def f(x): return torch.cos(x)"),
        ("def f(x): return [k for k in x if k > 1]", "def f(x): return [k for k in x if k > 2]"),
        ("def g(x): return 1\ndef f(x): return g(x)", "def g(x): return 2\ndef f(x): return g(x)"),
        (
            "def f(x):\n  try: return x\n  except ValueError: return 1",
            "def f(x):\n  try: return x\n  except KeyError: return 1",
        ),
        ("f = lambda x: x in {1, 2}", "f = lambda x: x in {1, 3}"),
        (
            "class C:\n  def m(self, x): return x\nf = C().m",
            "class C:\n  def m(self, x): return -x\nf = C().m",
        ),
    ],
)
def test_whatever_changes_what_a_function_does_changes_its_fingerprint(before, after):
    assert changed(function(before), function(after))


@dataclasses.dataclass
class Scale:
    by: float

    def __call__(self, x):
        return x * self.by


class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        ((1, 2), [1, 2]),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, {1, 3}),
        (0.0, -0.0),
        (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])),
        (np.arange(4), np.arange(1, 5)),
        (np.arange(4), np.arange(4, dtype=np.uint32)),
        (np.array(["a", None]), np.array(["b", None])),
        (np.float32(1), np.float32(2)),
        (Path("a"), Path("b")),
        (re.compile("a"), re.compile("b")),
        (Side.LEFT, Side.RIGHT),
        (Scale(1.0), Scale(2.0)),
        (functools.partial(torch.add, alpha=1), functools.partial(torch.add, alpha=2)),
        (functools.lru_cache(lambda x: x), functools.lru_cache(lambda x: -x)),
        (torch.no_grad()(lambda x: x), torch.no_grad()(lambda x: -x)),
        (torch.vmap(lambda x: x), torch.vmap(lambda x: -x)),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
        (torch.nn.Softmax(0), torch.nn.Softmax(1)),
        (torch.ones(2).add, torch.zeros(2).add),
        (np.add, np.subtract),
        (math.sin, math.cos),
        (torch.Tensor.add, torch.Tensor.sub),
        (memload.from_arrays(x=torch.zeros(3)), memload.from_arrays(x=torch.ones(3))),
        (memload.Cast(torch.float32), memload.Cast(torch.float16)),
    ],
)
def test_values_that_a_function_captures_count(one, other):
    def holding(value):
        return lambda x: (x, value)

    assert changed(holding(one), holding(other))
    assert not changed(holding(one), holding(one))
    assert changed(function("f = lambda x: (x, v)", v=one), function("f = lambda x: (x, v)", v=other))


def test_what_holds_itself_comes_to_an_end():
    one, other = [1], [2]
    one.append(one)
    other.append(other)
    assert changed(one, other)
    recursive = "def f(x): return f(x - 1) if x else 0"
    assert not changed(function(recursive), function(recursive))


def test_helpers_that_are_imported_by_name_count_and_what_else_is_in_their_module_does_not(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_helpers.py").write_text("def used(x):\n    return x + 1\n\ndef other(x):\n    return x\n")
    import own_helpers

    source = "from own_helpers import used\ndef f(x): return used(x)"
    before = fingerprint(function(source))
    own_helpers.other = lambda x: x + 7
    assert fingerprint(function(source)) == before
    exec("def used(x):\n    return x + 2", vars(own_helpers))
    assert fingerprint(function(source)) != before


@pytest.mark.parametrize(
    "source",
    [
        "import own_package.math as own\ndef f(x): return own.used(x)",
        "def f(x):\n    import own_package.math\n    return own_package.math.used(x)",
        "def f(x):\n    from own_package.math import used\n    return used(x)",
        "def f(x):\n    from .math import used\n    return used(x)",
        "def f(x):\n    from . import math\n    return math.used(x)",
        "def f(x):\n    import not_there_at_all\n    return x",
    ],
)
def test_a_module_of_ones_own_is_refused_with_what_to_do(tmp_path, monkeypatch, source):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").touch()
    (tmp_path / "own_package" / "math.py").write_text("def used(x):\n    return x + 1\n")
    with pytest.raises(UnhashableError, match=r"belongs to no installed package.*from module import function"):
        fingerprint(function(source, __package__="own_package"))


def test_installed_modules_are_imported_wherever_one_likes():
    source = "def f(x):\n    import math, torch.nn.functional as F\n    return F.relu(x) * math.pi"
    assert not changed(function(source), function(source))
    assert changed(function(source), function(source.replace("torch.nn.functional", "torch.nn.init")))


def test_a_module_of_ones_own_counts_whatever_else_is_installed_under_the_name_of_its_folder(tmp_path, monkeypatch):
    for place in ("own", "site-packages"):
        (tmp_path / place / "shared_folder").mkdir(parents=True)
        (tmp_path / place / "shared_folder" / f"{place[:3]}.py").write_text("def used(x):\n    return x + 1\n")
        monkeypatch.syspath_prepend(tmp_path / place)
    from shared_folder import own, sit

    before = [fingerprint(module.used) for module in (own, sit)]
    for module in (own, sit):
        exec("def used(x):\n    return x + 2", vars(module))
    assert [fingerprint(module.used) == was for module, was in zip((own, sit), before, strict=True)] == [False, True]


def test_what_cannot_be_told_from_others_is_named_with_its_place(tmp_path):
    with (tmp_path / "log").open("w") as file:
        stats = {"count": 3, "log": file}
        with pytest.raises(UnhashableError, match=r"captured 'stats', in it 'log': .*TextIOWrapper"):
            fingerprint(lambda x: stats)
    lock = threading.Lock()
    with pytest.raises(UnhashableError, match=r"captured 'lock': .*lock"):
        fingerprint(lambda x: lock)
    with pytest.raises(UnhashableError, match="sparse"):
        fingerprint(torch.eye(2).to_sparse())


def test_nested_tensors_are_known_by_their_rows():
    def nested(*lengths):
        return torch.nested.nested_tensor([torch.zeros(n) for n in lengths], layout=torch.jagged)

    assert fingerprint(nested(1, 2)) == fingerprint(nested(1, 2))
    assert len({fingerprint(nested(*lengths)) for lengths in ((1, 2), (2, 1), (3,), (1, 1, 1))}) == 4


PROGRAM = """
    import functools
    import torch
    import memload
    from memload.caching.fingerprints import fingerprint

    {before}
    names = {{"red", "green", "blue", "grey"}}
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    for parameter in net.parameters():
        torch.nn.init.constant_(parameter, 0.5)

    class Crop:
        def __init__(self, size):
            self.size, self.names = size, names
        def __call__(self, x):
            return helper(x[..., : self.size])

    def helper(x):
        return torch.nn.functional.relu(x) if "red" in names else net(x)

    print(fingerprint(functools.partial(Crop(3))), fingerprint(lambda x: (helper(x), x in {{"red", "blue"}})))
"""


def test_fingerprints_are_the_same_in_every_process(capsys):
    program = textwrap.dedent(PROGRAM)
    other = run_all({"other": program.format(before="kept = [str(k) for k in range(9999)]; lambda: 1")})["other"]
    exec(compile(program.format(before=""), "program", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines() == other.out, other.err
    assert len(other.out[0].split()) == 2


def test_attributes_of_a_function_count():
    def scaled(x):
        return x * scaled.factor

    def with_factor(factor):
        scaled.factor = factor
        return fingerprint(scaled)

    assert with_factor(2) == with_factor(2) != with_factor(3)


def test_functions_of_a_package_are_told_from_each_other():
    assert fingerprint(torch.nn.ReLU.forward) != fingerprint(torch.nn.GELU.forward)


def test_enumerations_differ_by_their_methods():
    def made(number):
        class Kind(enum.Enum):
            A = 1

            def scaled(self):
                return self.value * number

        return Kind

    assert fingerprint(made(2)) == fingerprint(made(2)) != fingerprint(made(3))


def test_classes_differ_by_what_their_special_methods_are_bound_to():
    def made(number):
        class Scaling:
            def scale(self, by, value):
                return value * by

            __call__ = functools.partialmethod(scale, number)

        return Scaling

    assert fingerprint(made(2)) == fingerprint(made(2)) != fingerprint(made(3))


def test_arrays_differ_by_the_names_of_their_fields_and_by_their_mask():
    x = np.zeros(3, [("a", "f4"), ("b", "f4")])
    assert fingerprint(x) != fingerprint(x.view([("b", "f4"), ("a", "f4")]))
    masked = [np.ma.masked_array([1, 2], mask) for mask in ([0, 1], [1, 0])]
    assert fingerprint(masked[0]) != fingerprint(masked[1])

"""The comparison with peers: each loop gives the reference's bits, and the page says what was kept."""

import importlib
import json
import sys

import numpy as np
import pytest
from repository import BENCHMARKS, DOCS

PEERS = BENCHMARKS / "peers"
# Those whose packages the extra `test` brings, but WebDataset, which leaves its files open; the others are elsewhere.
HERE = ["memload", "torch", "tensordict", "zarr", "h5py"]


@pytest.fixture
def scripts(monkeypatch):
    """The modules of benchmarks/peers, imported as its scripts import each other."""
    names = ("known", "loops", "contestant", "environments", "compare", "page")
    monkeypatch.syspath_prepend(PEERS)
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", HERE)
def test_the_loop_of_a_peer_gives_each_row_once_with_the_bits_of_the_reference(name, scripts, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (130, *scripts["loops"].SHAPE), np.uint8)
    prepare, settings, make = scripts["loops"].LOOPS[name]
    prepare(images, tmp_path)
    setting = next(one for one in settings if not one.get("workers"))
    assert scripts["contestant"].check(make(tmp_path, 64, 130, setting), images) == {
        "agrees": True,
        "identical": True,
        "rows": 128,
        "shuffled": True,
    }


def test_the_check_notices_other_bits_and_rows_that_come_twice(scripts):
    images = np.zeros((4, 2, 2, 3), np.uint8)
    loops, check = scripts["loops"], scripts["contestant"].check
    rows = loops.torch.tensor([2, 1])
    right = loops.cast(loops.torch.zeros(2, 2, 2, 3, dtype=loops.torch.uint8))
    assert check([(right, rows)], images)["identical"]
    assert not check([(right, rows), (right, rows)], images)["agrees"]
    rounded = check([(right + 5e-8, rows)], images)
    assert (rounded["agrees"], rounded["identical"]) == (True, False)
    assert not check([(right + 1e-6, rows)], images)["agrees"]
    assert not check([(right * float("nan"), rows)], images)["agrees"]
    assert not check([(right[:, :1], rows)], images)["agrees"]
    assert not check([(right.double(), rows)], images)["agrees"]


def test_every_peer_has_a_loop_and_a_result(scripts):
    kept = json.loads(scripts["page"].RESULTS.read_text())
    assert set(scripts["known"].PEERS) == set(scripts["loops"].LOOPS)
    assert set(kept["results"]) == {*scripts["loops"].LOOPS, *scripts["compare"].VARIANTS}
    assert kept["not_installed"] == {}


def test_the_page_has_the_tables_of_the_results(scripts):
    page = (DOCS / "peers.md").read_text()
    assert scripts["page"].speed(json.loads(scripts["page"].RESULTS.read_text())) in page
    assert scripts["page"].beside() in page

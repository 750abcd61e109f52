"""Datasets of a group on other tiers: the same batches, and each dataset where it was asked for."""

import numpy as np
import pytest
import torch

import memload
from memload.engine.tiers.pressure import caches_of

G = {"collate_fn": memload.group_collate}
ROWS = {"mouse": (60, 40), "monkey": (30, 100)}


@pytest.fixture
def both(tmp_path):
    members = {}
    for k, (name, (rows, size)) in enumerate(ROWS.items()):
        fields = {"stim": np.full((rows, size), k + 1, np.uint8), "robs": np.arange(rows * 3.0, dtype=np.float32)}
        memload.write(tmp_path / name, memload.from_arrays(stim=fields["stim"], robs=fields["robs"].reshape(rows, 3)))
        members[name] = memload.open(tmp_path / name)
    return memload.concat(members)


def batches(dataset):
    return [
        {name: values.tolist() for name, values in group.items()}
        for batch in memload.FastLoader(dataset, 16, **G)
        for group in batch
    ]


def tiers(dataset):
    return {name: str(member.tier) for name, member in dataset.members.items()}


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"tier": "ram"}, ["ram", "ram"]),
        ({"tier": {"mouse": "ram"}}, ["ram", "mmap"]),
        ({"tier": {"mouse": "ram", "monkey": "hybrid"}, "cache_bytes": {"monkey": "2MB"}}, ["ram", "hybrid"]),
        ({"tier": "hybrid"}, ["hybrid", "hybrid"]),
        ({"tier": "hybrid", "cache_bytes": "2MB"}, ["hybrid", "hybrid"]),
        ({"tier": memload.Tier.DIRECT}, ["direct", "direct"]),
        ({"tier": "auto"}, ["mmap", "mmap"]),
    ],
)
@pytest.mark.parametrize("rows", [None, [70, 3, 3, 89, 0, 61]])
def test_batches_are_the_same_on_any_tier(both, arguments, wanted, rows):
    data = both if rows is None else both.select(rows)
    placed = data.with_tier(**arguments, progress=False)
    assert list(tiers(placed).values()) == wanted
    assert placed.tier == (wanted[0] if len(set(wanted)) == 1 else None)
    assert batches(placed) == batches(data)
    assert len(placed) == len(data)


def test_of_a_selection_only_its_rows_are_loaded(both):
    placed = both.select([70, 3, 0]).with_tier("ram", progress=False)
    loaded = {name: sum(f.column.storages[0].nbytes for f in ds.fields.values()) for name, ds in placed.members.items()}
    assert loaded == {"mouse": 2 * (40 + 12), "monkey": 100 + 12}
    none_of_one = both.select([1, 2]).with_tier("ram", progress=False)
    assert [len(one) for one in none_of_one.members.values()] == [2, 0]


def test_fields_are_cast_in_all_datasets_or_in_one(both):
    all_cast = both.with_tier("ram", ram_dtype={"robs": "bfloat16"}, progress=False)
    assert all_cast[0]["robs"].dtype == all_cast[-1]["robs"].dtype == torch.bfloat16
    one_cast = both.with_tier("ram", ram_dtype={"monkey": {"robs": "float16"}}, progress=False)
    assert (one_cast[0]["robs"].dtype, one_cast[-1]["robs"].dtype) == (torch.float32, torch.float16)


def test_one_cache_holds_rows_of_all_datasets_unless_each_has_a_size(both):
    def budgets(dataset):
        fields = (field for member in dataset.members.values() for field in member.fields.values())
        return [cache.budget for cache in caches_of(fields)]

    assert budgets(both.with_tier("hybrid", cache_bytes="2MB")) == [2_000_000, 2_000_000]
    assert len(budgets(both.with_tier("hybrid"))) == 1
    assert budgets(both.with_tier({"monkey": "hybrid"}, cache_bytes={"monkey": "3MB"})) == [3_000_000]


def test_a_view_is_placed_with_its_base(both):
    view = memload.Float32View(both, norm_removed=True)
    placed = view.with_tier("ram", progress=False)
    assert placed.base.tier is memload.Tier.RAM
    assert batches(placed) == batches(view)
    with pytest.raises(TypeError, match="the rows of list have no tiers"):
        memload.Float32View([], norm_removed=True).with_tier("ram")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"tier": {"cat": "ram"}}, KeyError, "tier= names the data set 'cat'; there are 'mouse', 'monkey'"),
        ({"tier": "attic"}, ValueError, "attic"),
        ({"tier": "ram", "cache_bytes": "4MB"}, TypeError, 'cache_bytes= is for tier="hybrid"'),
        ({"tier": {"mouse": "ram"}, "cache_bytes": {"monkey": "4MB"}}, TypeError, "'monkey', which has no tier= here"),
        ({"tier": "ram", "ram_dtype": {"x": "float16"}}, KeyError, "the data sets have 'stim', 'robs'"),
        ({"tier": "ram", "ram_dtype": "float16"}, TypeError, "ram_dtype= maps fields"),
        ({"tier": "ram", "device": "cuda"}, TypeError, "device= is for"),
        ({"tier": "ram", "sharing": True}, TypeError, "with_tier takes no sharing="),
    ],
)
def test_what_cannot_be_is_refused(both, arguments, error, words):
    with pytest.raises(error, match=words):
        both.with_tier(**arguments)

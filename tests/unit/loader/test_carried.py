"""What only FastLoader has survives in a stock loader that somebody builds of its attributes."""

import pickle

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

import memload

CAST = {"stim": memload.Cast(torch.float32, norm_removed=True)}


def dataset():
    stim = torch.randint(0, 256, (20, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return memload.from_arrays(stim=stim, id=torch.arange(20))


def doubled(batch):
    return {**batch, "id": batch["id"] * 2}


def rebuilt(loader, **more):
    """A stock loader as accelerate, Ray Train and others make it."""
    kept = {name: getattr(loader, name) for name in ("num_workers", "collate_fn", "pin_memory", "generator")}
    return DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, **{**kept, **more})


def assert_same(ours, theirs):
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs, strict=True):
        assert list(a) == list(b)
        assert all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)


MORE = [{"cast": CAST}, {"batch_transform": doubled}, {"cast": CAST, "batch_transform": doubled}]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("more", MORE)
def test_a_stock_loader_of_its_attributes_casts_and_transforms(more, workers):
    loader = memload.FastLoader(dataset(), 6, **more)
    assert_same(rebuilt(loader, num_workers=workers), loader)


def test_the_cast_of_a_rebuilt_loader_is_part_of_the_gather():
    ds = dataset()
    list(rebuilt(memload.FastLoader(ds, 6, cast=CAST)))
    assert ds.stats().rows == 20
    assert ds.stats().bytes_out == 20 * (3 * 4 + 8)
    assert ds.stats().bytes_in == 20 * (3 + 8)


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("workers", [0, 1])
def test_on_the_stock_engine_the_loader_itself_does_it_once(more, workers):
    ds = dataset()
    forked = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}  # others pickle functions
    loader = memload.FastLoader(ds, 6, collate_fn=lambda rows: default_collate(rows), **forked, **more)
    assert loader.engine == "torch"
    assert_same(loader, memload.FastLoader(ds, 6, **more))


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("with_the_rest", [True, False])
def test_a_fast_loader_made_with_its_collate_function_is_native_and_does_it_once(more, with_the_rest):
    ds = dataset()
    first = memload.FastLoader(ds, 6, **more)
    second = memload.FastLoader(ds, 6, collate_fn=first.collate_fn, **(more if with_the_rest else {}))
    assert second.engine == "native"
    assert_same(second, first)


def test_another_cast_comes_behind_the_one_that_is_carried():
    ds = dataset()
    first = memload.FastLoader(ds, 6, cast=CAST)
    second = memload.FastLoader(ds, 6, collate_fn=first.collate_fn, cast={"stim": memload.Cast(torch.float64)})
    for batch, base in zip(second, first, strict=True):
        assert torch.equal(batch["stim"], base["stim"].double())


def test_a_loader_without_either_shows_the_collate_function_that_it_was_given():
    assert memload.FastLoader(dataset()).collate_fn is default_collate


def test_a_loader_that_carries_a_cast_can_be_pickled():
    loader = memload.FastLoader(dataset(), 6, cast=CAST)
    assert_same(pickle.loads(pickle.dumps(loader)), loader)


def test_a_cast_of_grouped_batches_is_carried():
    a, b = dataset(), dataset()
    both = memload.concat({"a": a, "b": b})
    loader = memload.FastLoader(both, 15, collate_fn=memload.group_collate, cast=CAST)
    for ours, theirs in zip(loader, rebuilt(loader), strict=True):
        assert_same(ours, theirs)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([{"stim": torch.tensor([i], dtype=torch.uint8)} for i in range(7)])


def test_an_iterable_dataset_is_cast_by_a_rebuilt_loader():
    loader = memload.FastLoader(Stream(), 3, cast=CAST)
    assert_same(DataLoader(Stream(), 3, collate_fn=loader.collate_fn), loader)

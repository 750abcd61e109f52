"""Arguments that are slightly wrong, or unusual but sensible: they work, or the error says what to do instead."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import TensorDataset

import memload

FOUR = np.int64(4)


@pytest.fixture(scope="module")
def ds():
    rng = np.random.default_rng(0)
    stim = rng.integers(0, 256, (20, 8, 6, 3), np.uint8)
    return memload.from_arrays(stim=stim, robs=rng.random((20, 5), np.float32), y=np.arange(20))


@pytest.mark.parametrize("name", ["batch_size", "threads", "depth"])
def test_numbers_of_numpy_are_numbers_of_a_loader(ds, name):
    assert sum(len(batch["y"]) for batch in memload.FastLoader(ds, **{"batch_size": 4, name: FOUR})) == 20


def test_numbers_of_numpy_are_numbers_everywhere(ds):
    assert memload.score(lambda batch: batch["y"].float(), ds, FOUR, progress=False).shape == (20,)
    assert len(list(memload.WeightedSampler(np.ones(20), num_samples=FOUR))) == 4
    assert memload.plan(ds, FOUR, processes=np.int32(1)).fits
    assert memload.DatasetShape(FOUR, {"x": ("uint8", FOUR)}).zeros()[0]["x"].shape == (4,)
    assert memload.Cast("f4", mean=[1, 2, 3], channels=np.int64(-1)) == memload.Cast("f4", mean=(1, 2, 3), channels=-1)
    crop = memload.Augment(crop=(FOUR, FOUR), flip=np.float32(0.5), stream=np.uint8(1))
    assert crop == memload.Augment(crop=4, flip=0.5, stream=1)
    assert len(ds.with_lags(stim=torch.arange(5))) == len(ds.with_lags(stim=np.arange(5))) == 16


def test_bools_are_no_numbers(ds):
    for call in (
        lambda: memload.FastLoader(ds, 4, threads=True),
        lambda: memload.score(len, ds, True),
        lambda: memload.WeightedSampler(np.ones(3), num_samples=True),
        lambda: memload.plan(ds, True),
        lambda: memload.DatasetShape(True, {"x": ("uint8", (3,))}),
    ):
        with pytest.raises(ValueError, match="True"):
            call()


def test_means_of_channels_may_have_the_shape_in_which_torch_broadcasts_them():
    mean = np.array([0.1, 0.2, 0.3]).reshape(3, 1, 1)
    assert memload.Cast("f4", mean=mean, channels=-3) == memload.Cast("f4", mean=(0.1, 0.2, 0.3), channels=-3)
    assert memload.Cast("f4", channels=-1, layout=torch.channels_last).layout == "channels_last"
    with pytest.raises(TypeError, match="mean is a number"):
        memload.Cast("f4", mean=np.ones((3, 2)), channels=-1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stim", r"ds\.only\('stim'\)"), ("column_names", r"list\(ds\.fields\)"), ("num_rows", r"len\(ds\)"),
        ("filter", r"ds\.select"), ("shuffle", "shuffle=True"), ("train_test_split", r"ds\.split"),
        ("sort", r"torch\.argsort"), ("repeat", r"memload\.concat\(\[ds\] \* 2\)"),
        ("save_to_disk", r"memload\.write"), ("to", r"memload\.to_device"), ("with_transform", r"ds\.map"),
    ],
)  # fmt: skip
def test_names_of_other_libraries_say_what_is_meant_here(ds, name, words):
    assert not hasattr(ds, name)
    with pytest.raises(AttributeError, match=f"'Dataset' object has no attribute '{name}': .*{words}") as caught:
        getattr(ds, name)
    assert caught.value.name == name


def test_what_such_messages_name_is_there(ds):
    from memload.columns.foreign_names import _INSTEAD

    said = " ".join(_INSTEAD.values())
    for called in set(re.findall(r"\bds\.(\w+)", said)):
        assert hasattr(ds, called)
    for called in set(re.findall(r"\bmemload\.(\w+)", said)):
        assert hasattr(memload, called)
    assert not any(hasattr(ds, name) for name in _INSTEAD)


@pytest.fixture
def both(ds):
    return memload.concat({"a": ds, "b": memload.from_arrays(other=np.arange(3))})


def public(dataset):
    return {name for name in [*dir(dataset), "fields", "borders"] if not name.startswith("_")}


def test_what_a_grouped_or_mapped_dataset_lacks_of_a_dataset_says_what_to_do_instead(ds, both):
    for lacking in (both, ds.map(len)):
        for name in public(ds) - public(lacking):
            with pytest.raises(AttributeError, match=rf"object has no attribute '{name}': .*{name}|rows are dicts in"):
                getattr(lacking, name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("with_lags", r"before they are joined, memload\.concat\({name: one\.with_lags\(\.\.\.\) for"),
        ("only", r"ds\.members\[name\]\.only\(\.\.\.\)"), ("other", r"ds\.members\[name\]\.only\('other'\)"),
        ("column_names", r"one\.fields for name, one in ds\.members"), ("shuffle", "shuffle=True"),
    ],
)  # fmt: skip
def test_what_else_a_grouped_dataset_has(both, name, words):
    with pytest.raises(AttributeError, match=f"'GroupedDataset' object has no attribute '{name}': .*{words}"):
        getattr(both, name)
    with pytest.raises(AttributeError, match=r"no attribute 'robots'$"):
        _ = both.robots


def test_what_a_mapped_dataset_lacks_is_found_where_it_is(ds):
    with pytest.raises(AttributeError, match=r"'MappedDataset' object has no attribute 'only': .*ds\.base\.only\("):
        ds.map(len).only("robs")
    with pytest.raises(AttributeError, match=r"no attribute 'robots'$"):
        _ = ds.map(len).robots


def test_other_names_are_missing_as_ever(ds):
    with pytest.raises(AttributeError, match=r"object has no attribute 'robots'$"):
        _ = ds.robots

    class Broken(memload.Dataset):
        @property
        def size(self):
            return self.nothing_of_that_name

    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = Broken(ds.fields).size


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda ds: memload.FastLoader({"x": np.ones(3)}, 2), TypeError, r"the names 'x' .*memload\.from_arrays"),
        (lambda ds: memload.Float32View(Path("set"), True), TypeError, r"memload\.open\('set'\)"),
        (
            lambda ds: memload.zip(a=memload.Float32View(ds, True)),
            TypeError,
            r"functions and views of samples come after: memload\.zip",
        ),
        (lambda ds: memload.zip(a=ds.map(dict)), TypeError, r"functions and views of samples come after: memload\.zip"),
        (lambda ds: memload.concat(["a", Path("b")]), TypeError, r"memload\.open\(\[one, two\]\)"),
        (
            lambda ds: memload.from_arrays(pandas.DataFrame({"x": [1]})),
            TypeError,
            r"table\[name\]\.to_numpy\(\).*texts as table\[name\]\.tolist\(\)",
        ),
        (lambda ds: memload.from_arrays(x=Path("x.npy")), TypeError, r"memload\.open\(path\)"),
        (lambda ds: memload.write(ds, "set"), TypeError, "The directory to make comes first"),
        (lambda ds: memload.write("set", Path("x.npy")), TypeError, r"'x\.npy'; give memload\.open of it"),
        (lambda ds: memload.write("set", {"x": "x.npy"}), TypeError, r"memload\.open\(path\)"),
        (lambda ds: memload.write("set", pandas.DataFrame({"x": [1]})), TypeError, r"data\[name\]\.to_numpy\(\)"),
        (
            lambda ds: memload.write("set", TensorDataset(torch.ones(2))),
            TypeError,
            '"robs": y} for x, y in data',
        ),
        (lambda ds: ds.split(8, seed=0), ValueError, "8 of 20 rows are 8 / 20"),
        (lambda ds: ds.split(0.9), TypeError, r"seed must be .* ds\.split\(0\.9, seed=0\), and none was given"),
        (lambda ds: ds.map(dict).split(0.9), TypeError, "and none was given"),
        (lambda ds: ds.select(ds.fields["stim"] == 2), TypeError, r"got a bool; .*\.gather\(range\(len\(ds\)\)\) == 2"),
        (
            lambda ds: memload.write_images("o", ["a.png"]),
            TypeError,
            r'images is the path of a folder .* got a list; table={"file": \["a\.png", \.\.\.\]}, skip_unmatched=True',
        ),
        (lambda ds: memload.write_images(["o"], "photos"), TypeError, "path is the path of the directory to make, got"),
        (
            lambda ds: memload.concat([ds, ds.rename({"stim": "x"})]),
            ValueError,
            r"\(\.\.\., collate_fn=memload\.group_",
        ),
        (lambda ds: _opened_together(4, 5), ValueError, r"1: .*two\.npy\); open them one by one: memload\.concat\(\{"),
        (lambda ds: memload.write("all", _unlike(ds)), ValueError, r"memload\.write\('all-a', ds\.members\['a'\]\)"),
        (
            lambda ds: setattr(ds, "mean", 7.0),
            dataclasses.FrozenInstanceError,
            r"cannot set 'mean': a Dataset is immutable: ds\.select, ds\.split, .*ds\.map return changed ones",
        ),
        (
            lambda ds: delattr(_unlike(ds), "members"),
            dataclasses.FrozenInstanceError,
            "cannot delete 'members': a GroupedDataset is immutable: ds.select, ds.split, ds.rename, ds.with_tier",
        ),
        (lambda ds: ds.select(np.array([1.0])), TypeError, r"\.astype\(numpy\.int64\)"),
        (lambda ds: ds.with_lags(range(3)), TypeError, r"with_lags\(stim=range\(32\)\); got a range"),
        (lambda ds: memload.score(len, ds, device="gpu"), ValueError, "device='gpu' is no device of torch's"),
    ],
)
def test_a_call_that_is_slightly_wrong_says_what_to_do(call, error, words, ds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        call(ds)


def _unlike(ds):
    other = memload.from_arrays({name: torch.zeros(4, 1) for name in ds.fields})
    return memload.concat({"a": ds, "b": other})


def _opened_together(*widths):
    for name, width in zip(("one", "two"), widths, strict=True):
        np.save(f"{name}.npy", np.zeros((3, width)))
    return memload.open(["one.npy", "two.npy"])


def test_values_of_a_field_that_is_read_choose_rows(ds):
    session = memload.from_arrays(session=torch.arange(6) % 3)
    assert len(session.select(session.fields["session"].gather(range(len(session))) == 2)) == 2


def test_a_dict_that_is_read_by_its_names_is_a_dataset_as_for_torch():
    rows = {"a": torch.zeros(2), "b": torch.ones(2)}
    assert [batch.tolist() for batch in memload.FastLoader(rows, 1, sampler=["b", "a"])] == [[[1, 1]], [[0, 0]]]


def test_rows_of_a_writer_may_come_as_dicts(tmp_path):
    with memload.ShardWriter(tmp_path / "set") as writer:
        writer.append({"x": 1, "t": "one"})
        writer.append({"x": 2}, t="two")
        writer.extend({"x": np.array([3, 4]), "t": ["three", "four"]})
    ds = memload.open(tmp_path / "set")
    assert [(ds[i]["x"].item(), ds[i]["t"]) for i in range(4)] == [(1, "one"), (2, "two"), (3, "three"), (4, "four")]


def test_views_are_selected_split_and_mapped_as_their_datasets(ds):
    view = memload.Float32View(ds, norm_removed=True)
    assert torch.equal(view.select([3, 1])[0]["stim"], view[3]["stim"])
    parts, expected = view.split(0.5, seed=1), ds.split(0.5, seed=1)
    assert [part[0]["y"] for part in parts] == [part[0]["y"] for part in expected]
    assert memload.FastLoader(parts[0], 4).engine == "native"
    loader = memload.FastLoader(view.map(lambda sample: sample["stim"].mean()), 20)
    assert torch.allclose(next(iter(loader)), torch.stack([view[i]["stim"].mean() for i in range(20)]))
    assert memload.FastLoader(view, 4).engine == "native"

"""Windows of frames: the rows that indexing by hand gives, on every path."""

import pickle
import tracemalloc
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import random_tensor
from torch.utils.data import DataLoader

import memload
from memload._core import Column, Windows


def movie(frames=50, seed=0):
    return {
        "stim": random_tensor(torch.uint8, (frames, 3, 2), seed),
        "robs": torch.rand(frames, 4, generator=torch.Generator().manual_seed(seed)),
    }


def shards(tmp_path, arrays, rows_per_shard):
    return memload.write(tmp_path / "shards", arrays, shard_bytes=rows_per_shard * 22)


def by_hand(values, rows, steps):
    return torch.stack([values[[row + step for step in steps]] for row in rows])


def whole(ds, name):
    return torch.stack([ds[i][name] for i in range(len(ds))])


def test_a_row_has_its_frame_and_those_before(tmp_path):
    arrays = movie()
    for ds in (memload.from_arrays(arrays), shards(tmp_path, arrays, 7)):
        lagged = ds.with_lags(stim=range(5), robs=[0, 2])
        rows = range(4, 50)
        assert len(lagged) == len(rows)
        assert lagged.fields["stim"].shape == (5, 3, 2)
        assert torch.equal(whole(lagged, "stim"), by_hand(arrays["stim"], rows, [0, -1, -2, -3, -4]))
        assert torch.equal(whole(lagged, "robs"), by_hand(arrays["robs"], rows, [0, -2]))


def test_fields_without_lags_keep_their_row():
    arrays = movie()
    lagged = memload.from_arrays(arrays).with_lags(stim=range(5))
    assert torch.equal(whole(lagged, "robs"), arrays["robs"][4:])


def test_negative_lags_are_rows_that_follow():
    arrays = movie()
    lagged = memload.from_arrays(arrays).with_lags(stim=[2, -3])
    assert torch.equal(whole(lagged, "stim"), by_hand(arrays["stim"], range(2, 47), [-2, 3]))


def test_windows_stay_within_trials_given_by_labels_or_by_pairs():
    arrays = movie(20)
    labels = [7] * 6 + [3] * 2 + [7] * 12
    by_label = memload.from_arrays(arrays).with_lags(stim=range(3), segments=labels)
    rows = [2, 3, 4, 5, *range(10, 20)]
    assert torch.equal(whole(by_label, "stim"), by_hand(arrays["stim"], rows, [0, -1, -2]))
    by_pairs = memload.from_arrays(arrays).with_lags(stim=range(3), segments=[(8, 20), (0, 6)])
    rows = [*range(10, 20), 2, 3, 4, 5]
    assert torch.equal(whole(by_pairs, "stim"), by_hand(arrays["stim"], rows, [0, -1, -2]))
    assert torch.equal(whole(by_pairs, "robs"), arrays["robs"][rows])


def test_the_values_of_a_field_are_segments_by_its_name(tmp_path):
    labels = {"trial": torch.tensor([0, 0, 0, 4, 4, 0, 0]), "block": ["a", "a", "a", "b", "b", "c", "c"]}
    ds = memload.write(tmp_path / "set", {"stim": torch.arange(7), **labels})
    for name, labelled in labels.items():
        given = np.array(labelled) if isinstance(labelled, list) else labelled
        expected = ds.with_lags(stim=range(2), segments=given)
        found = ds.with_lags(stim=range(2), segments=name)
        assert [row["stim"].tolist() for row in map(found.__getitem__, range(len(found)))] == [
            row["stim"].tolist() for row in map(expected.__getitem__, range(len(expected)))
        ]
        assert len(ds.windows("stim", window=3, segments=name)) == 1
    with pytest.raises(KeyError, match="no field 'session'"):
        ds.with_lags(stim=range(2), segments="session")
    with pytest.raises(ValueError, match=r"segments='x': a row of this field is float32 \(2,\); labels are one number"):
        memload.from_arrays(x=torch.zeros(4, 2)).with_lags(x=range(2), segments="x")


def test_valid_rows_come_in_the_order_in_which_they_are_named():
    arrays = movie(30)
    for segments, valid in ((None, [29, 4, 4, 2]), ([(10, 30), (0, 10)], [29, 4, 12, 2])):
        lagged = memload.from_arrays(arrays).with_lags(stim=range(3), valid=valid, segments=segments)
        assert torch.equal(whole(lagged, "stim"), by_hand(arrays["stim"], valid, [0, -1, -2]))
        assert torch.equal(whole(lagged, "robs"), arrays["robs"][valid])


def test_valid_rows_may_be_given_as_bools():
    arrays = movie(30)
    mask = np.zeros(30, bool)
    mask[[5, 9]] = True
    lagged = memload.from_arrays(arrays).with_lags(stim=range(3), valid=mask)
    assert torch.equal(whole(lagged, "robs"), arrays["robs"][[5, 9]])


def test_the_boundaries_of_datasets_joined_by_name_are_respected():
    a, b = movie(10, 1), movie(8, 2)
    joined = memload.concat({"a": memload.from_arrays(a), "b": memload.from_arrays(b)}).with_lags(stim=range(4))
    assert len(joined) == 7 + 5
    assert [joined[i]["dataset_idx"] for i in (6, 7)] == [0, 1]
    assert torch.equal(joined[7]["stim"], b["stim"][[3, 2, 1, 0]])


@pytest.fixture
def sessions(tmp_path):
    """Two recordings, in memory and in files, joined in every way that joins recordings."""
    a, b = movie(10, 1), movie(8, 2)
    for name, one in (("s1", a), ("s2", b)):
        np.savez(tmp_path / f"{name}.npz", stim=one["stim"].numpy(), robs=one["robs"].numpy())
    one, other = memload.from_arrays(a), memload.from_arrays(b)
    joined = {
        "listed": memload.concat([one, other]),
        "method": one.concat(other),
        "files": memload.open([tmp_path / "s1.npz", tmp_path / "s2.npz"]),
        "pattern": memload.open(str(tmp_path / "s*.npz")),
        "zipped": memload.zip(
            stim=memload.concat([one.only("stim"), other.only("stim")]),
            robs=memload.from_arrays(robs=torch.cat([a["robs"], b["robs"]])),
        ),
        "copied": pickle.loads(pickle.dumps(memload.concat([one, other]))),
        "picked": memload.concat([one, other, one]).select(range(18)),
        "as tuple and back": memload.zip(both=memload.concat([one, other]).as_tuple("stim", "robs")),
    }
    return joined, a, b


def test_windows_end_where_recordings_were_joined(sessions):
    joined, a, b = sessions
    expected = torch.cat([by_hand(one["stim"], range(3, len(one["stim"])), [0, -1, -2, -3]) for one in (a, b)])
    cut = torch.cat([by_hand(one["stim"], range(0, len(one["stim"]) - 3, 2), range(4)) for one in (a, b)])
    for how, ds in joined.items():
        assert torch.equal(whole(ds.with_lags(stim=range(4)), "stim"), expected), how
        assert torch.equal(whole(ds.windows("stim", window=4, hop=2), "stim"), cut), how


def test_windows_may_reach_across_if_they_are_told_to(sessions):
    joined, a, b = sessions
    frames = torch.cat([a["stim"], b["stim"]])
    for how, ds in joined.items():
        lagged = ds.with_lags(stim=range(4), across=True)
        assert torch.equal(whole(lagged, "stim"), by_hand(frames, range(3, 18), [0, -1, -2, -3])), how
        assert len(ds.windows("stim", window=4, across=True)) == 15
        assert len(ds.windows("stim", window=4, segments=[0] * 18, across=True)) == 15


def test_segments_are_cut_where_recordings_were_joined(sessions):
    joined, a, b = sessions
    ds = joined["listed"]
    trials = [0] * 5 + [1] * 10 + [2] * 3  # the number 1 goes on in the second recording
    rows = [2, 3, 4, 7, 8, 9]
    lagged = ds.with_lags(stim=range(3), segments=trials)
    expected = torch.cat([by_hand(a["stim"], rows, [0, -1, -2]), by_hand(b["stim"], [2, 3, 4, 7], [0, -1, -2])])
    assert torch.equal(whole(lagged, "stim"), expected)
    by_pairs = ds.with_lags(stim=range(3), segments=[(15, 18), (5, 15), (0, 5)])
    assert torch.equal(
        whole(by_pairs, "robs"), torch.cat([b["robs"][[7]], a["robs"][7:], b["robs"][2:5], a["robs"][2:5]])
    )
    with pytest.raises(IndexError, match="row 11, whose window, rows 9 to 11, leaves the data or its segment"):
        ds.with_lags(stim=range(3), valid=[11])
    with pytest.raises(ValueError, match="one spans 11 rows, the longest stretch that it may not leave has 10"):
        ds.with_lags(stim=range(11))


def test_what_was_cut_or_picked_keeps_the_borders_of_its_recordings(sessions):
    joined, a, b = sessions
    again = joined["listed"].with_lags(stim=range(3)).windows("robs", window=2)
    assert torch.equal(
        whole(again, "robs"),
        torch.cat([by_hand(one["robs"][2:], range(len(one["robs"]) - 3), [0, 1]) for one in (a, b)]),
    )
    picked = joined["listed"].with_lags(stim=range(3), valid=[4, 3, 14, 13]).windows("robs", window=2)
    assert torch.equal(whole(picked, "robs"), torch.stack([a["robs"][[4, 3]], b["robs"][[4, 3]]]))
    halves = joined["listed"].select([9, 10, 11, 0, 1])
    assert halves.borders.tolist() == [1, 3]
    empty = memload.from_arrays(a).select([])
    assert memload.concat([empty, joined["listed"], empty]).borders.tolist() == [10]
    assert memload.from_arrays(a).borders.tolist() == []


def test_lagged_recordings_can_be_joined_afterwards():
    a, b = movie(10, 1), movie(8, 2)
    lags = {"stim": range(4)}
    joined = memload.concat([memload.from_arrays(one).with_lags(lags) for one in (a, b)])
    expected = torch.cat([by_hand(one["stim"], range(3, len(one["stim"])), [0, -1, -2, -3]) for one in (a, b)])
    assert torch.equal(whole(joined, "stim"), expected)


@pytest.mark.parametrize(("window", "hop"), [(1, 1), (4, 1), (5, 3), (3, 7), (20, 1)])
def test_windows_begin_a_hop_apart(tmp_path, window, hop):
    arrays = movie(20)
    for ds in (memload.from_arrays(arrays), shards(tmp_path / f"{window}{hop}", arrays, 6)):
        cut = ds.windows("stim", window=window, hop=hop)
        begins = range(0, 20 - window + 1, hop)
        assert torch.equal(whole(cut, "stim"), by_hand(arrays["stim"], begins, range(window)))
        assert torch.equal(whole(cut, "robs"), arrays["robs"][list(begins)])


def test_windows_that_lie_one_behind_the_other_are_read_as_one_run(tmp_path):
    one_shard = shards(tmp_path / "one", movie(), 100)
    assert isinstance(one_shard.windows(window=5).fields["stim"].column, Column)
    several = shards(tmp_path / "several", movie(), 7)
    assert isinstance(several.windows(window=5).fields["stim"].column, Windows)
    assert isinstance(one_shard.with_lags(stim=range(5)).fields["stim"].column, Windows)


@given(st.data())
@pytest.mark.filterwarnings("ignore:windows of")  # of rows in any order
def test_any_windows_of_any_selection_are_those_made_by_hand(data):
    frames = data.draw(st.integers(1, 40))
    arrays = movie(frames)
    chosen = data.draw(st.lists(st.integers(0, frames - 1), min_size=1, max_size=60))
    ds = memload.from_arrays(arrays).select(chosen) if data.draw(st.booleans()) else memload.from_arrays(arrays)
    values = ds.only("stim")
    values = torch.stack([values[i] for i in range(len(ds))])
    lags = data.draw(st.lists(st.integers(-4, 8), min_size=1, max_size=6))
    labels = sorted(data.draw(st.lists(st.integers(0, 3), min_size=len(ds), max_size=len(ds))))
    low, high = max([0, *lags]), max([0, *(-lag for lag in lags)])
    inside = [
        i
        for i in range(len(ds))
        if low <= i < len(ds) - high and len({labels[i - low], labels[i], labels[i + high]}) == 1
    ]
    if not inside:
        with pytest.raises(ValueError, match="no row has a whole window"):
            ds.with_lags(stim=lags, segments=labels)
        return
    lagged = ds.with_lags(stim=lags, segments=labels)
    expected = by_hand(values, inside, [-lag for lag in lags])
    assert torch.equal(whole(lagged, "stim"), expected)
    order = data.draw(st.lists(st.integers(0, len(inside) - 1), max_size=10))
    picked = lagged.select(order).select(range(len(order)))
    cast = {"stim": memload.Cast(torch.bfloat16, norm_removed=True)}
    for batch, at in zip(memload.FastLoader(picked, 4, cast=cast), range(0, len(order), 4), strict=True):
        wanted = memload.cast_stim(expected[order[at : at + 4]], True, torch.bfloat16)
        assert torch.equal(batch["stim"], wanted)


def test_fast_and_stock_loaders_give_the_same_batches(tmp_path):
    lagged = shards(tmp_path, movie(), 7).with_lags(stim=range(6)).select(range(3, 40))
    fast = memload.FastLoader(lagged, 8, shuffle=True, generator=torch.Generator().manual_seed(3))
    stock = DataLoader(lagged, 8, shuffle=True, generator=torch.Generator().manual_seed(3))
    assert fast.engine == "native"
    for ours, theirs in zip(fast, stock, strict=True):
        assert torch.equal(ours["stim"], theirs["stim"])
        assert torch.equal(ours["robs"], theirs["robs"])


@pytest.mark.parametrize("cut", [lambda ds: ds.with_lags(stim=range(6)), lambda ds: ds.windows(window=6, hop=2)])
def test_windows_travel_to_other_processes(tmp_path, cut):
    for ds in (memload.from_arrays(movie()), shards(tmp_path, movie(), 7)):
        there = cut(ds).select([8, 0, 3])
        here = pickle.loads(pickle.dumps(there))
        assert torch.equal(whole(here, "stim"), whole(there, "stim"))


def test_pickled_windows_that_overlap_take_the_bytes_of_the_frames_once():
    ds = memload.from_arrays(x=torch.rand(1000, 16))
    for cut in (ds.windows(window=100), ds.with_lags(x=range(100))):
        assert len(pickle.dumps(cut)) < 2 * ds.nbytes


def test_the_state_of_other_windows_is_refused():
    ds = memload.from_arrays(movie())
    state = memload.FastLoader(ds.with_lags(stim=range(6)), 8).state_dict()
    with pytest.raises(ValueError, match="dataset"):
        memload.FastLoader(ds.with_lags(stim=range(7)), 8).load_state_dict(state)


def test_memory_does_not_grow_with_the_lags():
    ds = memload.from_arrays(x=torch.zeros(100_000, 4))
    tracemalloc.start()
    lagged = ds.with_lags(x=range(512))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
    assert lagged.nbytes > 500 * ds.nbytes


@pytest.mark.parametrize(
    ("lags", "options", "error", "message"),
    [
        (
            {"stim": range(51)},
            {},
            ValueError,
            "no row has a whole window: one spans 51 rows, the longest stretch that it may not leave has 50",
        ),
        ({"stim": 32}, {}, TypeError, "the lags of 'stim' are a sequence, such as range"),
        ({"stim": []}, {}, ValueError, "'stim' has no lags"),
        ({"stim": [0.5]}, {}, TypeError, "whole numbers of rows, got 0.5"),
        ({}, {}, ValueError, "no field has lags"),
        ({"audio": range(3)}, {}, KeyError, "no field 'audio'"),
        ({"stim": range(3)}, {"valid": [10, 1]}, IndexError, "row 1, whose window, rows -1 to 1, leaves the data"),
        ({"stim": range(3)}, {"valid": [50]}, IndexError, "row 50 at position 0 is not one of the 50 rows"),
        ({"stim": range(3)}, {"segments": [(0, 10), (5, 20)]}, ValueError, "segment 1 goes from row 5 to 20"),
        ({"stim": range(3)}, {"segments": [(0, 51)]}, ValueError, "must lie within the 50 rows"),
        ({"stim": range(3)}, {"segments": [1, 2]}, TypeError, "one label for each of the 50 rows"),
        ({"stim": range(3)}, {"segments": [(0, 10)], "valid": [11]}, IndexError, "its segment; leave such rows out"),
    ],
)
def test_what_makes_no_windows_is_refused(lags, options, error, message):
    with pytest.raises(error, match=message):
        memload.from_arrays(movie()).with_lags(lags, **options)


def test_windows_are_not_cut_twice():
    with pytest.raises(ValueError, match="windows already"):
        memload.from_arrays(movie()).with_lags(stim=range(3)).with_lags(stim=range(2))


@pytest.mark.parametrize("options", [{"window": 0}, {"window": 2.5}, {"window": 4, "hop": 0}, {"window": True}])
def test_windows_and_hops_are_numbers_of_rows(options):
    with pytest.raises(ValueError, match="must be a number of rows, at least 1"):
        memload.from_arrays(movie()).windows(**options)


def test_windows_and_hops_may_be_numbers_of_numpy_and_hops_of_any_size():
    ds = memload.from_arrays(movie())
    windows = ds.windows(window=np.int64(4), hop=np.int32(3))
    assert torch.equal(windows[2]["stim"], ds.windows(window=4, hop=3)[2]["stim"])
    assert len(ds.windows(window=4, hop=2**62)) == 1


def test_a_file_cut_short_under_its_windows_raises(tmp_path):
    ds = shards(tmp_path, {"stim": torch.zeros(4000, 100, 22, dtype=torch.uint8)}, 10**6).with_lags(stim=range(8))
    (path,) = (tmp_path / "shards").glob("*.safetensors")
    with path.open("r+b") as file:
        file.truncate(50_000)
    with pytest.raises(memload.ShardReadError, match="truncated"):
        list(memload.FastLoader(ds, 16))


@pytest.mark.parametrize(
    ("selected", "found"),
    [
        (lambda ds: ds.select([*range(5), *range(8, 20)]), "rows 4 and 5 are rows 4 and 8 of the data"),
        (lambda ds: ds.select([0, *range(5, 20)]), "rows 0 and 1 are rows 0 and 5 of the data"),
        (lambda ds: ds.select([0, 1, 9, 10, 11, 12]), "rows 1 and 2 are rows 1 and 9 of the data"),
        (lambda ds: ds.split(0.5, seed=0)[0], "the dataset was selected"),
    ],
)
@pytest.mark.parametrize("cut", [lambda ds: ds.with_lags(x=range(3)), lambda ds: ds.windows("x", window=3)])
def test_windows_of_a_dataset_whose_selected_rows_leave_gaps_give_a_warning(selected, found, cut):
    ds = selected(memload.from_arrays(x=torch.arange(20), y=torch.arange(20)))
    with pytest.warns(UserWarning, match=f"'x' reach over rows that do not follow each other: .*{found}") as caught:
        cut(ds)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "cut",
    [
        lambda ds: ds.select(range(3, 12)).with_lags(x=range(3)),
        lambda ds: ds.select(range(1, 20, 2)).with_lags(x=range(3)),  # every second frame
        lambda ds: ds.select(range(20)[::-1]).with_lags(x=range(3)),
        lambda ds: ds.select([0, 1, 2, 3, 8, 9, 10]).with_lags(x=range(3), across=True),
        lambda ds: ds.select([0, 1, 2, 3, 8, 9, 10]).with_lags(x=range(3), segments=[0] * 4 + [1] * 3),
        lambda ds: memload.concat([ds.select(range(5)), ds.select(range(9, 15))]).with_lags(x=range(3)),
        lambda ds: memload.join(memload.from_arrays(y=torch.arange(20) % 7), ds, on="y").with_lags(x=range(3)),
        lambda ds: (
            memload.join(memload.from_arrays(y=torch.arange(20) % 7), ds, on="y")
            .select(range(15))
            .with_lags(x=range(3))
        ),
        lambda ds: ds.with_lags(x=range(3), valid=[4, 9, 5]),
        lambda ds: ds.select([0, 1, 2, 3, 8, 9, 10]).with_lags(x=range(3), valid=[3, 6]),  # no window is over the gap
        lambda ds: ds.select([0, 1, 2, 3, 8, 9, 10, 11]).windows("x", window=4, hop=4),
        lambda ds: ds.select([0, 1, 5, 9]).with_lags(x=[0]),
    ],
)
def test_selected_rows_in_even_steps_give_no_warning_and_neither_do_rows_that_were_looked_up(cut):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cut(memload.from_arrays(x=torch.arange(20), y=torch.arange(20)))

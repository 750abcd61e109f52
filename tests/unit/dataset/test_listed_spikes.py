"""Spikes of slices as rows that differ in length: their times and units, on every path."""

import pickle
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slice_reference import drawn, listed, ns
from torch.utils.data import DataLoader

import memload
from memload import Cast, FastLoader, Intervals, Spikes

TIMES = st.lists(st.one_of(st.integers(0, 200).map(lambda one: one / 10), st.floats(0, 20)), max_size=30)
LISTED = {"spikes": "times"}


def spiking(**more):
    """The spikes of one unit, recorded from 2 to 4 s, and rows of 10 s."""
    spikes = Spikes([[0.1, 1.0, 2.5, 5.0]], **(more or {"start": 2, "stop": 4}))
    return memload.recording({"a": np.arange(100.0), "s": spikes}, clocks={"a": 10})


def random_units(units=5, spikes=200, seconds=20.0, seed=0):
    rng = np.random.default_rng(seed)
    return [np.sort(rng.uniform(0, seconds, rng.poisson(spikes) if unit else 0)) for unit in range(units)]


def recording_of(units, intervals=None, **fields):
    clocks = dict.fromkeys(fields, 60)
    return memload.recording({**fields, "spikes": Spikes(units, start=0, stop=20)}, clocks=clocks, intervals=intervals)


def whole(loader):
    """The rows of all batches, one after the other: (times, units)."""
    found = [row for b in loader for row in zip(b["spikes"].rows(), b["spikes_unit_index"].rows(), strict=True)]
    return [[one.numpy() for one in row] for row in found]


@settings(max_examples=40)
@given(
    st.lists(TIMES, min_size=1, max_size=3),
    st.sampled_from([Fraction(1), Fraction(1, 3), Fraction(5, 2), Fraction(123457, 10**6)]),
    st.lists(st.one_of(st.integers(-10, 210).map(lambda one: one / 10), st.floats(-1, 21)), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.1, -0.3]),
    st.sampled_from(["offsets", "padded"]),
)
def test_times_and_units_are_those_of_the_definition(units, duration, starts, offset, form):
    units = [*units, [0.0, 3.5]]
    recording = recording_of(units, intervals=[(0.05, 7.3), (7.3, 20)])
    slices = recording.slices(duration, offset={"spikes": offset}, sampling=LISTED, at=starts, pad=True)
    spikes = [[t for t in map(ns, one) if t < ns(20)] for one in units]  # those at `stop` were not recorded
    length = ns(float(duration))
    expected = [listed(spikes, ns(start) + ns(offset), length) for start in starts]
    for row, (times, index) in enumerate(expected):
        np.testing.assert_array_equal(slices[row]["spikes"].numpy(), times)
        np.testing.assert_array_equal(slices[row]["spikes_unit_index"].numpy(), index)
    for loader in (FastLoader, DataLoader):
        found = whole(loader(slices.with_ragged(form), batch_size=4))
        for (times, index), (wanted, units_wanted) in zip(found, expected, strict=True):
            np.testing.assert_array_equal(times, wanted)
            np.testing.assert_array_equal(index, units_wanted)


@settings(max_examples=30)
@given(st.lists(TIMES, min_size=1, max_size=3), st.sampled_from([0.5, 1.0, 2.5]), st.sampled_from([0.0, 0.2]))
def test_listed_spikes_are_those_that_are_counted(units, duration, offset):
    recording = recording_of([*units, [4.0]], intervals=[(1, 6.5), (6.5, 20)])
    arguments = {"hop": 0.4, "within": "trials", "offset": {"spikes": offset}, "pad": True}
    counts = recording.slices(duration, rates={"spikes": 10}, **arguments)
    times = recording.slices(duration, sampling=LISTED, **arguments)
    assert len(counts) == len(times)
    for row in range(len(counts)):
        found, mask = times[row], counts[row]["spikes_mask"]
        bins = np.floor(found["spikes"].numpy() * 10 + 1e-5).astype(int)
        again = np.zeros(counts[row]["spikes"].shape, dtype=np.int16)
        np.add.at(again, (bins, found["spikes_unit_index"].numpy()), 1)
        np.testing.assert_array_equal(again, counts[row]["spikes"].numpy())
        low, high = found["spikes_span"].tolist()
        middles = (np.arange(len(mask)) + 0.5) / 10
        kept = np.abs(middles[:, None] - [low, high]).min(axis=1) > 0.06  # bins that no edge cuts
        np.testing.assert_array_equal(((low <= middles) & (middles < high))[kept], mask.numpy()[kept])


@pytest.mark.parametrize("form", ["offsets", "padded", "jagged"])
def test_a_loader_gives_them_in_the_form_and_dtype_that_is_asked_for(form):
    slices = recording_of(random_units()).slices(1.0, hop=0.3, sampling="times")
    loader = FastLoader(
        slices.with_ragged(form, pad_value=-1 if form == "padded" else None),
        batch_size=7,
        cast={"spikes": torch.float32, "spikes_unit_index": torch.float16},
        num_workers=2,
    )
    assert loader.engine == "native"
    row = 0
    for batch in loader:
        for times, units in zip(*(_rows(batch[name]) for name in slices.fields), strict=True):
            assert torch.equal(times, slices[row]["spikes"].to(torch.float32))
            assert torch.equal(units, slices[row]["spikes_unit_index"].to(torch.float16))
            row += 1
        if form == "padded":
            assert (batch["spikes"].values[~batch["spikes"].mask] == -1).all()
    assert row == len(slices) == 64


def _rows(batch):
    return batch.unbind() if isinstance(batch, torch.Tensor) else batch.rows()


def test_long_rows_are_cut_among_threads_and_are_those_of_one_thread():
    units = [np.arange(0, 20, 1e-4) + unit * 1e-5 for unit in range(6)]
    slices = recording_of(units).slices(7.0, hop=1.0, sampling="times")
    for row, (times, index) in enumerate(whole(FastLoader(slices, batch_size=5, num_workers=2))):
        kept = [one[(one * 1e9 + 1000 >= row * 1e9) & (one * 1e9 + 1000 < (row + 7) * 1e9)] for one in units]
        assert len(times) == sum(map(len, kept))
        assert (np.diff(times) >= 0).all()
        np.testing.assert_array_equal(np.bincount(index), [len(one) for one in kept])


def test_a_cast_with_constants_is_that_of_torch():
    slices = recording_of(random_units()).slices(1.0, sampling="times")
    cast = Cast(torch.float32, scale=1000.0, offset=-500.0)  # milliseconds from the middle
    batch = next(iter(FastLoader(slices, batch_size=20, cast={"spikes": cast})))
    plain = next(iter(FastLoader(slices, batch_size=20)))
    assert torch.equal(batch["spikes"].values, cast.apply(plain["spikes"].values))


def test_starts_are_drawn_alike_for_times_units_and_rows():
    units = random_units()
    recording = recording_of(units, intervals=[(0, 8), (8, 20)], stim=np.arange(1200))
    slices = recording.slices(2.0, within="trials", random=30, sampling=LISTED)
    spikes = [[ns(t) for t in one] for one in units]
    for row in range(len(slices)):
        low, high = (0, 8) if row < 30 else (8, 20)
        start = ns(low) + drawn(ns(high - low - 2), 0, row)
        times, index = listed(spikes, start, ns(2.0), (ns(low), ns(high)))
        np.testing.assert_array_equal(slices[row]["spikes"].numpy(), times)
        np.testing.assert_array_equal(slices[row]["spikes_unit_index"].numpy(), index)
    loader = FastLoader(slices, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    passes = [whole(loader) for _ in range(2)]
    assert [times.tolist() for times, _ in passes[0]] != [times.tolist() for times, _ in passes[1]]
    same = FastLoader(slices, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    for batch in same:
        first = batch["stim"][:, 0].numpy() / 60
        for times, start in zip(batch["spikes"].rows(), first, strict=True):
            every = np.sort(np.concatenate(units))
            wanted = every[(every >= start - 0.01) & (every < start + 2.01)] - start
            assert np.isclose(wanted[:, None], times.numpy(), atol=0.01).any(axis=0).all()


def test_no_batch_of_drawn_slices_is_larger_than_its_slot():
    crowded = [np.concatenate([np.linspace(5, 5.5, 5000), [0.0, 19.0]])]
    slices = recording_of(crowded, intervals=[(0, 20)]).slices(1.0, within="trials", random=64, sampling="times")
    column = slices.fields["spikes"].column
    assert column.longest(1) == 5000
    assert column.longest(3) == 15000
    assert max(len(times) for times, _ in whole(FastLoader(slices, batch_size=16))) <= 5000


def test_rows_are_like_others(tmp_path):
    slices = recording_of(random_units()).slices(1.0, hop=0.5, sampling="times")
    other = recording_of(random_units(seed=1)).slices(1.0, hop=0.5, sampling="times")
    both = memload.concat([slices, other]).select([3, len(slices) + 3, 0])
    for name in slices.fields:
        assert torch.equal(both[0][name], slices[3][name])
        assert torch.equal(both[1][name], other[3][name])
    again = pickle.loads(pickle.dumps(both))
    stored = memload.write(tmp_path / "shards", both, progress=False)
    for changed in (again, stored, both.with_tier("ram"), memload.open(tmp_path / "shards")):
        for row in range(3):
            for name in slices.fields:
                assert torch.equal(changed[row][name], both[row][name])
    assert slices.fields["spikes"].nbytes == sum(slices[i]["spikes"].nbytes for i in range(len(slices)))


def test_a_pickle_holds_the_events_of_both_fields_once():
    units = random_units(spikes=20_000)
    slices = recording_of(units).slices(1.0, sampling="times")
    assert len(pickle.dumps(slices)) < 13 * sum(map(len, units)) + 20_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rates": {"spikes": 10}, "sampling": LISTED}, r"lists the spikes, in no bins: leave 'spikes' out of rates="),
        ({"sampling": "times"}, r"field 'stim' has rows, not spikes"),
        ({"sampling": {"spikes": "when"}}, r"sampling= is one of .*'times'"),
        ({}, r"rates=\{'spikes': 50\}; or sampling=\{'spikes': \"times\"\} lists them"),
    ],
)
def test_arguments_that_do_not_fit_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        recording_of(random_units(), stim=np.arange(1200)).slices(1.0, **arguments)


def test_a_name_that_is_taken_is_told():
    with pytest.raises(ValueError, match=r"two fields 'spikes_unit_index'"):
        recording_of(random_units(), spikes_unit_index=np.arange(1200)).slices(1.0, sampling=LISTED)
    with pytest.raises(ValueError, match=r"two fields 'stim_mask'"):
        session = memload.recording(
            {"stim": np.arange(60), "stim_mask": np.arange(60)}, clocks={"stim": 60, "stim_mask": 60}
        )
        session.slices(0.5, pad=True)


def test_they_make_no_windows_and_go_to_no_device():
    slices = recording_of(random_units()).slices(1.0, sampling="times")
    with pytest.raises(ValueError, match="differ in length"):
        slices.with_lags(spikes=range(2))
    with pytest.raises(ValueError, match="differ in length, and a device cannot gather them"):
        memload.to_device(slices, "cpu")


def test_spikes_outside_of_what_was_recorded_are_neither_counted_nor_listed():
    counted = spiking().slices(2.0, rates={"s": 1}, at=[0.0, 2.0, 4.0], pad=True)
    assert [row["s"].tolist() for row in counted] == [[[0], [0]], [[1], [0]], [[0], [0]]]
    assert [row["s_mask"].tolist() for row in counted] == [[False, False], [True, True], [False, False]]
    times = spiking().slices(2.0, sampling={"s": "times"}, at=[0.0, 2.0, 4.0], pad=True)
    assert [row["s"].tolist() for row in times] == [[], [0.5], []]
    assert [row["s_span"].tolist() for row in times] == [[2.0, 2.0], [0.0, 2.0], [0.0, 0.0]]
    assert spiking().fields["s"].of_unit(0).tolist() == [2.5]


def test_a_window_without_spikes_has_counts_of_zero():
    quiet = memload.recording({"s": Spikes([[1.0, 9.0], [8.0]], 2, 4)}, clocks={})
    assert quiet.slices(1.0, rates={"s": 1})[0]["s"].tolist() == [[0, 0]]
    assert repr(quiet.fields["s"]) == "Spikes(0 of 2 units, 2 of them silent)"
    assert "0 spikes of 2 units, 2 of them silent, 2.0 to 4.0 s" in str(quiet)


def test_the_last_spike_is_in_what_was_recorded():
    row = memload.recording({"s": Spikes([[1.0, 5.0]])}, clocks={}).slices(1.0, rates={"s": 1}, at=[5.0], pad=True)[0]
    assert (row["s"].tolist(), row["s_mask"].tolist()) == ([[1]], [True])


def test_pieces_of_time_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"from start= to a later stop=, got 5 to 2 s"):
        Spikes([[1.0]], 5, 2)
    with pytest.raises(TypeError, match=r"leave out start= and stop="):
        Spikes([[1.0]], 0, recorded=[(0, 2)])
    with pytest.raises(ValueError, match=r"pieces of recorded= may not overlap: interval 1 begins at 1.0 s"):
        Spikes([[1.0]], recorded=[(0, 2), (1, 3)])
    with pytest.raises(ValueError, match=r"recorded= has no pieces"):
        Spikes([[1.0]], recorded=Intervals([], []))
    with pytest.raises(ValueError, match=r"no spikes from 5 s on"):
        memload.recording({"s": Spikes([[1.0]], 5)}, clocks={}).slices(1.0, rates={"s": 1})


@settings(max_examples=40)
@given(
    TIMES,
    st.lists(st.integers(0, 200).map(lambda one: one / 10), min_size=2, max_size=8, unique=True),
    st.lists(st.integers(-10, 210).map(lambda one: one / 10), min_size=1, max_size=6),
    st.sampled_from([1, 2, 5]),
)
def test_gaps_in_what_was_recorded_are_masked_and_crossed_by_no_slice(times, edges, starts, rate):
    edges = sorted(edges)[: len(edges) // 2 * 2]
    pieces = list(zip(edges[::2], edges[1::2], strict=True))
    session = memload.recording({"s": Spikes([times, [0.05]], recorded=pieces)}, clocks={})
    kept = [t for t in map(ns, times) if any(ns(a) <= t + 1000 and t < ns(b) for a, b in pieces)]
    rows = session.slices(1.0, rates={"s": rate}, at=starts, pad=True)
    for row, start in zip(rows, starts, strict=True):
        bins = ns(start) + np.arange(rate + 1) * ns(1 / rate)
        assert row["s"][:, 0].tolist() == [sum(a <= t + 1000 < b for t in kept) for a, b in pairwise(bins.tolist())]
        mask = [any(ns(a) <= t + 1000 < ns(b) for a, b in pieces) for t in bins[:-1].tolist()]
        assert row["s_mask"].tolist() == mask
    whole_ones = [i for i, t in enumerate(starts) if any(ns(a) <= ns(t) and ns(t + 1) <= ns(b) for a, b in pieces)]
    try:
        found = [int(row["onset"]) for row in session.slices(1.0, rates={"s": rate}, at=starts)]
    except ValueError as error:
        assert "no slice" in str(error)  # noqa: PT017 - or there are some
        found = []
    assert found == whole_ones


def test_the_span_of_a_slice_goes_from_its_first_piece_to_its_last():
    session = memload.recording({"s": Spikes([[0.5, 3.0, 7.0]], recorded=[(0, 2), (6, 8)])}, clocks={})
    rows = session.slices(2.0, sampling="times", at=[1.0, 3.0, 5.5, 9.0], pad=True)
    assert [row["s_span"].tolist() for row in rows] == [[0.0, 1.0], [2.0, 2.0], [0.5, 2.0], [0.0, 0.0]]
    assert session.fields["s"].of_unit(0).tolist() == [0.5, 7.0]
    inside = session.slices(6.0, sampling="times", within=[(3, 9)], pad=True)
    assert inside[0]["s_span"].tolist() == [3.0, 5.0]


def test_pieces_are_kept_by_pickles_and_folders(tmp_path):
    session = memload.recording({"s": Spikes([[0.5, 3.0, 7.0]], recorded=[(6, 8), (0, 1), (1, 2)])}, clocks={})
    assert "2 spikes of 1 unit, 0.0 to 8.0 s, 1 gap" in str(session)
    written = memload.write(tmp_path / "s", session, progress=False)
    for one in (session, written, memload.open_recording(tmp_path / "s"), pickle.loads(pickle.dumps(session))):
        begins, ends = one.pieces("s")
        assert (begins.tolist(), ends.tolist()) == ([0, 6 * 10**9], [2 * 10**9, 8 * 10**9])
        assert one.slices(1.0, rates={"s": 1}, at=[0.0, 3.0, 6.5], pad=True)[1]["s_mask"].tolist() == [False]

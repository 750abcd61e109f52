"""Recordings: slices of time are those of the definition, on every path."""

import itertools
import math
import pickle
from fractions import Fraction

import h5py
import numpy as np
import pytest
import slice_reference as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slice_reference import Times, between, counted, drawn, ns, periods, sample_times, sampled

import memload
from memload import Clock, FastLoader, Intervals, Spikes
from memload.columns.pickled_columns import pack_columns

SAMPLINGS = ("nearest", "previous", "linear", "mean")
RATES = [Fraction(60), Fraction(30), Fraction(8), Fraction(50), Fraction(30000, 1001), Fraction(781, 100)]


def values_of(rows, dtype="float32", sides=(3,), seed=0):
    found = np.random.default_rng(seed).normal(0, 50, (rows, *sides))
    return np.abs(found).astype(dtype) if dtype.startswith("u") else found.astype(dtype)


def session(**more):
    """Sixty seconds: frames at 60 Hz, responses at about 8 Hz, spikes of two units, ten trials of 4 s."""
    times = np.arange(480) / 8 + np.random.default_rng(0).uniform(0, 0.01, 480)
    arguments = {
        "fields": {
            "stim": values_of(3600, "uint8", (4, 5)),
            "responses": values_of(480),
            "spikes": Spikes([np.arange(1, 599) / 10, [30.0, 0.0, 60.0]]),
        },
        "clocks": {"stim": 60, "responses": Clock(timestamps=times)},
        "intervals": {
            "trials": {"start": np.arange(10) * 5 + 2.0, "stop": np.arange(10) * 5 + 6.0, "angle": range(10)}
        },
    }
    return memload.recording(**{**arguments, **more})


@st.composite
def clocks(draw):
    """A clock and its definition: regular, or with jitter and gaps."""
    rows, rate = draw(st.integers(2, 60)), draw(st.sampled_from(RATES))
    start = draw(st.sampled_from([0.0, 0.1, 1 / 3, 1234.567]))
    if draw(st.booleans()):
        return rows, Clock(rate=rate, start=start), Times.regular(rate, start, rows)
    steps = draw(st.lists(st.sampled_from([0.9, 1.0, 1.1, 1.4, 7.5]), min_size=rows - 1, max_size=rows - 1))
    times = start + np.concatenate([[0], np.cumsum(steps)]) / float(rate)
    clock = Clock(timestamps=times)
    return rows, clock, Times([ns(one) for one in times], clock.period, int(clock.period * 1.5))


@given(
    clocks(),
    st.sampled_from(RATES),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.1, -0.05, 1 / 60]),
    st.sampled_from(SAMPLINGS),
    st.sampled_from(["uint8", "int16", "float32", "float64", "int32"]),
    st.lists(st.floats(-0.5, 3, width=32), min_size=1, max_size=5),
)
def test_samples_and_masks_are_those_of_the_definition(made, rate, samples, offset, sampling, dtype, starts):
    rows, clock, times = made
    values = values_of(rows, dtype)
    first = times.times[0] / 1e9
    starts = [first + one for one in starts] + [times.times[rows // 2] / 1e9 - offset]
    recording = memload.recording({"x": values}, clocks={"x": clock})
    slices = recording.slices(
        samples / rate, rates={"x": rate}, offset={"x": offset}, sampling=sampling, at=starts, pad=True
    )
    for i, start in enumerate(starts):
        expected, mask = sampled(values, times, sample_times(ns(start), samples, rate, offset), sampling)
        np.testing.assert_array_equal(slices[i]["x"].numpy(), expected)
        np.testing.assert_array_equal(slices[i]["x_mask"].numpy(), mask)


@given(clocks(), st.sampled_from(RATES), st.integers(1, 6), st.sampled_from([0.0, 0.1, -0.05]), st.data())
def test_without_padding_the_slices_are_those_that_are_covered_as_a_whole(made, rate, samples, offset, data):
    rows, clock, times = made
    first = times.times[0] / 1e9
    starts = [first + one for one in data.draw(st.lists(st.floats(-0.25, 8, width=32), min_size=1, max_size=20))]
    starts += [one / 1e9 for one in times.times[:10]]
    recording = memload.recording({"x": values_of(rows)}, clocks={"x": clock})
    edges = [sample_times(ns(start), samples, rate, offset) for start in starts]
    whole = [sampled(values_of(rows), times, one, "previous")[1].all() for one in edges]
    whole = [
        found and len({_piece(times, time) for time in one[:-1]}) == 1 for found, one in zip(whole, edges, strict=True)
    ]
    try:
        slices = recording.slices(samples / rate, rates={"x": rate}, offset={"x": offset}, at=starts)
        kept = [int(row["onset"]) for row in slices]
    except ValueError as error:
        if "no slice" not in str(error):
            raise
        kept = []
    assert kept == np.flatnonzero(whole).tolist()


def test_a_slice_is_drawn_within_what_is_covered_though_that_is_as_long_as_the_slice_to_the_nanosecond():
    """The second row covers the time up to 400,000,001 ns, of which the last 1,000 are not told from what follows."""
    clock = Clock(timestamps=np.array([333_333_333, 366_666_667]) / 1e9)
    recording = memload.recording({"x": np.float32([1, 2])}, clocks={"x": clock})
    within = [(0.366666667, 1.0)]
    slices = recording.slices(3 / 60, rates={"x": 60}, sampling="nearest", within=within, random=True)
    assert [row["x"].tolist() for row in slices] == [[2, 2, 2]]
    (start,) = slices.fields["x"].column.times.starts
    given = recording.slices(3 / 60, rates={"x": 60}, sampling="nearest", within=within, at=[start / 1e9])
    assert len(given) == 1


@settings(max_examples=30)
@given(
    clocks(),
    st.sampled_from(RATES),
    st.integers(1, 6),
    st.sampled_from(SAMPLINGS),
    st.lists(st.floats(0, 3, width=32), min_size=2, max_size=5, unique=True),
    st.booleans(),
    st.data(),
)
def test_slices_of_intervals_read_the_rows_of_their_interval(made, rate, samples, sampling, edges, pad, data):
    rows, clock, times = made
    values, first = values_of(rows), times.times[0] / 1e9
    near_rows = [one / 1e9 for one in data.draw(st.lists(st.sampled_from(times.times), max_size=3, unique=True))]
    edges = sorted({ns(one) for one in [*(first + one for one in edges), *near_rows]})
    within = [(a / 1e9, b / 1e9) for a, b in itertools.pairwise(edges)]
    recording = memload.recording({"x": values}, clocks={"x": clock})
    arguments = {"rates": {"x": rate}, "sampling": sampling, "within": within, "pad": pad}
    starts = [*(data.draw(st.floats(a, b)) for a, b in within), *(a for a, _ in within)]
    for how in ({"hop": Fraction(1, 3) / rate}, {"at": starts}, {} if pad else {"random": 2}):
        try:
            slices = recording.slices(samples / rate, **arguments, **how)
        except ValueError as error:
            if "no slice" not in str(error):
                raise
            continue
        column = slices.fields["x"].column
        lows, highs, found = column.times.lows, column.times.highs, column.times.starts
        for i, row in enumerate(slices):
            start = int(found[i]) + (drawn(int(column.times.spans[i]), 0, i) if "random" in how else 0)
            inside = (int(lows[i]), int(highs[i]))
            assert (inside[0] / 1e9, inside[1] / 1e9) in [(ns(a) / 1e9, ns(b) / 1e9) for a, b in within]
            expected, mask = sampled(values, times, sample_times(start, samples, rate, 0), sampling, inside)
            np.testing.assert_array_equal(row["x"].numpy(), expected)
            assert mask.all() if not pad else (row["x_mask"].numpy() == mask).all()


@given(
    st.sampled_from(["nearest", "linear", "mean"]),
    st.sampled_from(RATES),
    st.integers(1, 5),
    st.lists(st.integers(1, 200).map(lambda k: k / 40), min_size=1, max_size=6, unique=True),
)
def test_parts_of_adjacent_intervals_share_no_row(sampling, rate, samples, inner):
    edges = [0.0, *sorted(inner), 6.0]
    rows = np.eye(48, dtype=np.float32)  # whatever is made of a row shows where it lies
    recording = memload.recording({"x": rows}, clocks={"x": (8, 0.01)}, intervals=list(itertools.pairwise(edges)))
    try:
        slices = recording.slices(samples / rate, hop=1 / 16, rates={"x": rate}, sampling=sampling, within="trials")
    except ValueError:
        return
    times = 0.01 + np.arange(48) / 8
    read = {}
    for row in slices:
        read.setdefault(int(row["interval"]), set()).update(row["x"].nonzero()[:, 1].tolist())
    for number, found in read.items():
        low, high = edges[number], edges[number + 1]
        inside = np.flatnonzero((times >= low) & (times < high))
        assert found <= set(inside.tolist()) or not len(inside)


def test_previous_takes_the_row_that_holds_as_the_interval_begins_and_none_after_it():
    recording = memload.recording({"x": np.arange(10)}, clocks={"x": 1}, intervals=[(2.5, 5.5)])
    slices = recording.slices(3.0, within="trials", rates={"x": 2}, sampling="previous")
    assert slices[0]["x"].tolist() == [2, 3, 3, 4, 4, 5]
    nearest = recording.slices(3.0, within="trials", rates={"x": 2})
    assert nearest[0]["x"].tolist() == [3, 3, 4, 4, 5, 5]
    short = recording.slices(0.25, within=[(2.5, 2.75)], rates={"x": 4}, sampling="linear")
    assert short[0]["x"].tolist() == [2.0]  # no row begins in the interval


def _piece(times, time):
    """How many gaps lie before a time."""
    return sum(not times.joined(j) for j in range(times.last_at(time + reference.SLACK)))


@given(
    st.lists(st.lists(st.integers(0, 300).map(lambda k: k / 90), max_size=12), min_size=1, max_size=3),
    st.sampled_from(RATES),
    st.integers(1, 9),
    st.sampled_from([0.0, 1 / 90, 0.5]),
)
def test_counts_of_spikes_are_those_of_the_definition(times, rate, bins, start):
    spikes = [sorted(map(ns, one)) for one in [*times, [0.0, 3.5]]]
    recording = memload.recording({"spikes": Spikes([*times, [0.0, 3.5]], start=0, stop=20)}, clocks={})
    slices = recording.slices(bins / rate, rates={"spikes": rate}, at=[start])
    expected = counted(spikes, sample_times(ns(start), bins, rate, 0))
    np.testing.assert_array_equal(slices[0]["spikes"].numpy(), expected)


def test_rounding_to_nanoseconds_never_decides_between_two_rows():
    stim = np.arange(3600)
    recording = memload.recording({"stim": stim}, clocks={"stim": 60})
    for sampling in ("nearest", "previous"):
        frames = recording.slices(1.0, hop=1 / 60, rates={"stim": 30}, sampling=sampling)
        expected = np.arange(len(frames))[:, None] + 2 * np.arange(30)
        batch = next(iter(FastLoader(frames, batch_size=len(frames))))
        assert len(frames) == 3600 - 58
        np.testing.assert_array_equal(batch["stim"].numpy(), expected)
    samples = np.arange(0, 90_000, 7)
    spikes = memload.recording({"spikes": Spikes([samples / 30_000], start=0, stop=3)}, clocks={})
    counts = spikes.slices(1.0, hop=1 / 30, rates={"spikes": 30})
    for i in range(0, len(counts), 5):
        expected = np.histogram(samples, np.arange(31) * 1000 + i * 1000)[0]
        expected[-1] -= (i + 30) * 1000 % 7 == 0 and (i + 30) * 1000 < 90_000  # numpy's last bin has its right edge
        np.testing.assert_array_equal(counts[i]["spikes"][:, 0].numpy(), expected)


def test_hops_do_not_drift_and_start_with_their_interval():
    stim = np.arange(60 * 600)
    recording = memload.recording({"stim": stim}, clocks={"stim": 60}, intervals=[(0.5, 500), (510, 520)])
    slices = recording.slices(0.5, hop=1 / 60, within="trials")
    firsts = torch.stack([slices[i]["stim"][0] for i in (0, 1, len(slices) - 600 + 29)])
    assert firsts.tolist()[:2] == [30, 31]
    last = slices[len(slices) - 1]
    assert int(last["stim"][-1]) == 520 * 60 - 1
    assert int(last["interval"]) == 1


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_loader_gives_the_slices_with_its_casts(sampling):
    slices = session().slices(1.0, hop=0.25, rates={"spikes": 20, "responses": 10}, sampling=sampling, within="trials")
    casts = {
        "stim": memload.Cast(torch.bfloat16, scale=0.5, offset=3.0),
        "responses": memload.Cast(torch.float16),
        "spikes": torch.float32,
    }
    loader = FastLoader(slices, batch_size=7, cast=casts, num_workers=0)
    assert loader.engine == "native"
    row = 0
    for batch in loader:
        for i in range(len(batch["stim"])):
            sample = slices[row]
            assert torch.equal(batch["stim"][i], casts["stim"].apply(sample["stim"]))
            assert torch.equal(batch["responses"][i], sample["responses"].to(torch.float16))
            assert torch.equal(batch["spikes"][i], sample["spikes"].float())
            assert batch["interval"][i] == sample["interval"]
            row += 1
    assert row == len(slices)


def test_starts_are_drawn_anew_in_each_pass_and_again_after_a_resume():
    recording = memload.recording({"stim": np.arange(3600)}, clocks={"stim": 60}, intervals=[(0, 20), (20, 60)])
    slices = recording.slices(2.0, within="trials", random=20)
    assert len(slices) == 40
    times = np.array(Times.regular(60, 0, 3600).times)
    for row in range(40):
        start = ns(0 if row < 20 else 20) + drawn(ns(18 if row < 20 else 38), 0, row)
        assert int(slices[row]["stim"][0]) == int(np.abs(times - start - 1000).argmin())
    loader = FastLoader(slices, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    passes = [[batch["stim"][:, 0].tolist() for batch in loader] for _ in range(2)]
    assert sorted(itertools.chain(*passes[0])) != sorted(itertools.chain(*passes[1]))
    loader = FastLoader(slices, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    batches = iter(loader)
    begun = [next(batches)["stim"][:, 0].tolist() for _ in range(2)]
    state = loader.state_dict()
    resumed = FastLoader(slices, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    resumed.load_state_dict(state)
    assert begun + [batch["stim"][:, 0].tolist() for batch in resumed] == passes[0]


def test_drawn_slices_stay_in_their_interval_and_out_of_gaps():
    times = np.concatenate([np.arange(100), np.arange(150, 400)]) / 10
    recording = memload.recording({"x": np.arange(350)}, clocks={"x": Clock(timestamps=times)})
    slices = recording.slices(1.0, within=[(2, 30)], random=50)
    assert len(slices) == 100  # the gap parts the interval
    for row in slices:
        assert (np.diff(row["x"].numpy()) == 1).all()
        assert int(row["x"][0]) >= 20
        assert int(row["x"][-1]) <= 250


def test_slices_are_rows_like_others():
    slices = session().slices(0.5, rates={"spikes": 10, "responses": 8}, within="trials", columns=["angle"])
    twice = slices.concat(slices).select([3, len(slices) + 3, 0])
    for name in slices.fields:
        assert torch.equal(twice[0][name], slices[3][name])
        assert torch.equal(twice[1][name], slices[3][name])
    again = pickle.loads(pickle.dumps(slices.select([5, 1])))
    in_ram = slices.with_tier("ram")
    for name in slices.fields:
        assert torch.equal(again[0][name], slices[5][name])
        assert torch.equal(in_ram[4][name], slices[4][name])
    assert slices[3]["angle"] == slices[3]["interval"]
    numbers = memload.from_arrays(number=np.arange(len(slices)))
    assert torch.equal(
        memload.zip(slices=slices.only("stim"), number=numbers.only("number"))[2]["slices"], slices[2]["stim"]
    )


def test_the_pickled_form_of_slices_has_nothing_of_this_process():
    times = np.concatenate([np.arange(100), np.arange(150, 400)]) / 10
    recording = memload.recording({"x": np.arange(350)}, clocks={"x": Clock(timestamps=times)})
    packed = pack_columns([field.column for field in recording.slices(1.0).fields.values()])
    assert " at 0x" not in repr(packed)  # by it an interrupted write is known again in another process


def test_slices_are_written_as_they_are(tmp_path):
    slices = session().slices(0.5, rates={"spikes": 10, "responses": 8}, sampling={"responses": "linear"})
    written = memload.write(tmp_path / "shards", slices, progress=False)
    for name in slices.fields:
        assert torch.equal(written[7][name], slices[7][name])


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_frames_in_compressed_chunks_and_in_files_give_the_same(tmp_path, sampling):
    values = values_of(300, "int16", (40, 9))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(7, 40, 9), compression="gzip")
    np.save(tmp_path / "x.npy", values)
    expected = memload.recording({"x": values}, clocks={"x": 30}).slices(
        0.7, hop=0.1, rates={"x": 20}, sampling=sampling
    )
    for path in ("x.h5", "x.npy"):
        recording = memload.recording({"x": memload.open(tmp_path / path)}, clocks={"x": 30})
        slices = recording.slices(0.7, hop=0.1, rates={"x": 20}, sampling=sampling)
        for tier in ("mmap", "ram", "direct"):
            rows = [batch["x"] for batch in FastLoader(slices.with_tier(tier), batch_size=16)]
            assert torch.equal(torch.cat(rows), torch.stack([expected[i]["x"] for i in range(len(expected))]))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_file_that_is_cut_short_meanwhile_ends_with_an_error(tmp_path, sampling):
    np.save(tmp_path / "x.npy", values_of(3000, "float32", (1000,)))
    recording = memload.recording({"x": memload.open(tmp_path / "x.npy")}, clocks={"x": 30})
    loader = FastLoader(recording.slices(2.0, rates={"x": 15}, sampling=sampling), batch_size=4)
    batches = iter(loader)
    next(batches)
    with (tmp_path / "x.npy").open("r+b") as file:
        file.truncate(8_000_000)
    with pytest.raises(memload.ShardReadError, match=r"x\.npy"):
        list(batches)


def test_large_frames_are_averaged_and_interpolated_in_parts():
    values = values_of(70, "uint8", (150, 300, 3))
    recording = memload.recording({"x": values}, clocks={"x": 60})
    times = Times.regular(60, 0, 70)
    for sampling, rate in (("mean", Fraction(3)), ("linear", Fraction(25))):
        samples = int(rate)
        slices = recording.slices(1, rates={"x": rate}, sampling=sampling)
        expected, _ = sampled(values, times, sample_times(0, samples, rate, 0), sampling)
        batch = next(iter(FastLoader(slices, batch_size=1, num_workers=0)))
        np.testing.assert_array_equal(batch["x"][0].numpy(), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_are_as_far_apart_as_numbers_can_be_have_finite_rows_between_them(dtype):
    most = np.finfo(dtype).max
    values = np.zeros((3, 40), dtype)
    values[0], values[1], values[2, 5] = -most, most, np.inf
    slices = memload.recording({"x": values}, clocks={"x": 1}).slices(2.0, rates={"x": 4}, sampling="linear")
    found = slices[0]["x"].numpy()
    for step in range(8):
        expected = (
            between(values[step // 4], values[step // 4 + 1], dtype(step % 4 / 4)) if step % 4 else values[step // 4]
        )
        np.testing.assert_array_equal(found[step], expected)
    assert np.isfinite(found[:5]).all()
    assert found[2, 0] == 0
    assert np.isinf(found[6:, 5]).all()


def test_sessions_with_other_neurons_are_joined_by_name():
    a = session().only("stim", "responses").slices(1.0, rates={"responses": 8})
    other = {"stim": values_of(3600, "uint8", (4, 5), 1), "responses": values_of(480, sides=(7,))}
    b = memload.recording(other, clocks={"stim": 60, "responses": 8}).slices(
        1.0, random=True, within=[(0, 30), (30, 60)]
    )
    both = memload.concat({"mouse1": a, "mouse2": b.select(range(2))})
    found = {0: 0, 1: 0}
    for batch in FastLoader(both, batch_size=16, collate_fn=memload.group_collate):
        for group in batch:
            tag = int(group["dataset_idx"][0])
            found[tag] += len(group["responses"])
            assert group["responses"].shape[1:] == ((8, 3), (8, 7))[tag]
    assert found == {0: len(a), 1: 2}


def test_joined_sessions_draw_their_starts_anew_in_each_pass():
    recording = memload.recording({"x": np.arange(6000)}, clocks={"x": 60})
    a = recording.slices(1.0, within=[(0, 50), (50, 100)], random=5)
    b = memload.recording({"x": np.zeros((600, 2))}, clocks={"x": 60}).slices(1.0)
    loader = FastLoader(memload.concat({"a": a, "b": b}), batch_size=20, collate_fn=memload.group_collate)
    passes = [[group["x"][:, 0].tolist() for batch in loader for group in batch] for _ in range(2)]
    (first, *_), (second, *_) = passes
    assert loader.engine == "native"
    assert len(first) == 10
    assert first != second
    with pytest.raises(ValueError, match="drawn anew in each pass"):
        memload.to_device(a, "cpu")


@pytest.mark.parametrize("by", ["interval", "angle", "word"])
@pytest.mark.parametrize("random", [False, 2])
def test_slices_are_split_by_what_their_intervals_have(by, random):
    table = {"start": np.arange(10) * 5 + 2.0, "stop": np.arange(10) * 5 + 6.0, "angle": [k % 5 for k in range(10)]}
    trials = {"trials": {**table, "word": [f"w{k % 4}" for k in range(10)]}}
    slices = (
        session(intervals=trials).only("stim").slices(1.0, within="trials", columns=["angle", "word"], random=random)
    )
    parts = [part.select(range(len(part))) for part in slices.split(0.6, 0, by=by)]
    keys = [[row[by] if by == "word" else int(row[by]) for row in part] for part in parts]
    assert not set(keys[0]) & set(keys[1])
    assert len(keys[0]) + len(keys[1]) == len(slices)
    read = [[int(number) for batch in FastLoader(part, 4) for number in batch["interval"]] for part in parts]
    assert read == [[int(row["interval"]) for row in part] for part in parts]


def test_parts_of_intervals_share_no_time():
    recording = session()
    parts = recording.intervals["trials"].split(train=0.6, valid=0.2, test=0.2, seed=3)
    assert [len(part) for part in parts.values()] == [6, 2, 2]
    read = {}
    for name, part in parts.items():
        slices = recording.only("responses").slices(
            1.0, hop=0.5, rates={"responses": 8}, offset={"responses": 0.5}, within=part, columns=["angle"]
        )
        read[name] = {int(row["angle"]) for row in slices}
        lows = part.start[[int(row["interval"]) for row in slices]]
        assert (lows >= 0).all()
    assert sum(map(len, read.values())) == len(set.union(*read.values())) == 10
    blocks = recording.blocks(10)
    assert len(blocks) == 5
    assert blocks.seconds == pytest.approx(50)


def test_rows_that_hold_up_to_the_next_have_no_gap_in_their_mask():
    clock = Clock(timestamps=np.arange(10) / 10, gap=0.05)  # each row is a piece of its own
    slices = memload.recording({"x": np.arange(10)}, clocks={"x": clock}).slices(0.5, at=[0.0, 0.7], pad=True)
    assert [row["x_mask"].tolist() for row in slices] == [[True] * 5, [True] * 3 + [False] * 2]


def test_a_recording_tells_what_it_has():
    said = str(session(name="mouse1"))
    assert "memload.Recording 'mouse1': 60.0 s" in said
    assert "about 8" in said
    assert "3,600 rows" in said
    assert "601 spikes of 2 units" in said
    assert "10 intervals of 4.0 s" in said
    assert "angle" in said


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Clock(timestamps=[0, 0.2, 0.1, 0.3]),
            r"row 2 is at 0.1 s, and row 1 before it at 0.2 s; 1 of 3 steps",
        ),
        (lambda: Clock(timestamps=[0, math.nan, 0.1]), r"nan is no time at position 1; 1 of 3 are not finite"),
        (lambda: Clock(rate=0), r"positive, got 0"),
        (lambda: Clock(rate=math.nan), r"positive, got nan"),
        (lambda: Clock(rate=1e6), r"at most 500,000 times a second"),
        (lambda: Clock(timestamps=[0, 1e-6]), r"rows 0 and 1 are 1000 ns apart"),
        (lambda: Clock(timestamps=[[0, 1]]), r"one number for each row, got shape \(1, 2\)"),
        (lambda: Spikes([]), r"there are no units"),
        (lambda: Spikes([[], []]), r"2 units have no spikes"),
        (lambda: Spikes([[0.1, math.inf]]), r"unit 0: inf is no time"),
        (lambda: Intervals([0, 1], [1, 1]), r"interval 1 is empty: it goes from 1.0 to 1.0 s; 1 of 2 are"),
        (lambda: Intervals([0], [1], {"a": [1, 2]}), r"column 'a' has 2 values for 1 interval"),
        (lambda: Intervals([0, 1], [2, 3]).split(a=1.0), r"may not overlap: interval 1 begins at 1.0 s"),
        (lambda: Intervals([0, 1], [1, 3]).split(a=0.9, b=0.2), r"together at most 1"),
        (lambda: session(clocks={"stim": 60}), r"field 'responses' has no clock"),
        (lambda: session(clocks={"stim": 60, "responses": np.arange(9.0)}), r"480 rows, and its clock 9 timestamps"),
        (lambda: session(clocks={"stim": 60, "responses": 8, "eye": 1}), r"clock of 'eye', but no such field"),
        (lambda: session(clocks={"stim": 60, "responses": 8, "spikes": 1}), r"spikes, which have times of their own"),
        (lambda: session().only("spikes").slices(1.0), r"rates= needs the bins in a second for the spikes of 'spikes'"),
        (lambda: session().slices(0.99, rates={"spikes": 10}), r"has 59.4 samples of 'stim' at 60 Hz"),
        (lambda: session().slices(100, rates={"spikes": 10, "responses": 8}), r"no slice of 100 s"),
        (lambda: session().slices(5, rates={"spikes": 10, "responses": 8}, within="trials"), r"10 intervals has 4 s"),
        (
            lambda: session().slices(1, rates={"spikes": 10, "responses": 8}, within=[(0, 3), (2, 5)]),
            r"may not overlap",
        ),
        (lambda: session().only("stim").slices(1, sampling="cubic"), r"sampling= is one of"),
        (lambda: session().only("stim").slices(-1), r"positive, got -1"),
        (lambda: session().only("stim").slices(1, at=[]), r"at= has no starts"),
        (lambda: session().only("stim").slices(1, within=Intervals([], [])), r"within= has no intervals"),
    ],
)
def test_bad_input_is_told(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"within": "epochs"}, KeyError, r"no table of intervals 'epochs'; there are \['trials'\]"),
        ({"rates": {"eye": 1}}, KeyError, r"rates= names the field 'eye'"),
        ({"at": [1.0], "hop": 1}, TypeError, r"at= gives each start"),
        ({"random": True, "pad": True}, TypeError, r"leave out pad="),
        ({"random": True, "hop": 1.0}, TypeError, r"leave out hop="),
        ({"columns": ["angle"]}, TypeError, r"within=, which is not given"),
        ({"within": "trials", "columns": ["x"]}, KeyError, r"the intervals have \['angle'\]"),
    ],
)
def test_arguments_that_do_not_fit_are_told(arguments, kind, message):
    with pytest.raises(kind, match=message):
        session().only("stim").slices(1.0, **arguments)


def test_intervals_are_a_table_or_pairs():
    with pytest.raises(TypeError, match=r"intervals 'a': .*pairs \(start, stop\); got a list of shape \(2,\)"):
        session(intervals={"a": [1, 2]})
    with pytest.raises(ValueError, match=r"needs the columns start and stop; it has \['onsets'\]"):
        session(intervals={"a": {"onsets": [1, 2]}})


def test_slices_make_no_windows_and_no_images():
    slices = session().only("stim").slices(1.0, sampling="linear")
    with pytest.raises(ValueError, match="slices of time already"):
        slices.with_lags(stim=range(2))
    assert periods(Fraction(60), 3) == 50_000_000


def test_numbers_of_numpy_are_rates_and_gaps(tmp_path):
    for rate in (np.int64(30), np.float32(30), 30):
        assert memload.recording({"a": np.arange(60)}, clocks={"a": rate}).clocks["a"].rate == 30
    gap = Clock(timestamps=np.arange(60) / 30, gap=np.float32(0.5))
    written = memload.write(tmp_path / "r", memload.recording({"a": np.arange(60)}, clocks={"a": gap}), progress=False)
    assert written.clocks["a"].gap == 0.5
    with pytest.raises(TypeError, match="gap=: times are numbers of seconds"):
        Clock(timestamps=[0, 1], gap="x")


@pytest.mark.parametrize(("argument", "given"), [("rates", 30), ("offset", 0.1), ("rates", 0)])
def test_what_is_by_field_is_told(argument, given):
    with pytest.raises(TypeError, match=rf"{argument}= is by field, as in {argument}=\{{'stim': .*\}}; got {given}"):
        session().slices(1.0, **{argument: given})


def test_padding_is_not_advised_where_it_is_given_or_excluded():
    for arguments in ({"pad": True, "at": [100.0]}, {"random": True}):
        with pytest.raises(ValueError, match="no slice of 1 s") as caught:
            session().only("stim").slices(1.0, within=[(70, 80)], **arguments)
        assert "pad=True" not in str(caught.value)
    with pytest.raises(ValueError, match="pad=True keeps"):
        session().only("stim").slices(1.0, at=[100.0])


def test_a_field_without_rows_and_fields_that_share_no_time_are_told():
    with pytest.raises(ValueError, match=r"field 'a' has no rows, and so no slices"):
        memload.recording({"a": np.zeros((0, 2))}, clocks={"a": 10}).slices(1.0, pad=True, at=[1.0])
    apart = memload.recording({"a": np.arange(10), "b": np.arange(10)}, clocks={"a": 10, "b": (10, 100.0)})
    assert repr(apart) == "<Recording of a, b: no time in all of them>"
    with pytest.raises(ValueError, match=r"no time is in all fields: a 0 to 1 s, b 100 to 101 s"):
        apart.blocks(0.5)


def test_some_fields_keep_what_was_left_out_of_the_file():
    whole = session()
    told = memload.Recording(whole.fields, whole.clocks, left_out={"/x": "its rows have no times"})
    assert told.only("stim").left_out == {"/x": "its rows have no times"}


def test_a_loader_over_a_recording_says_that_it_has_to_be_cut():
    with pytest.raises(TypeError, match=r"a Recording has no rows until it is cut: give its slices\(2\.0\)"):
        FastLoader(session(), batch_size=2)

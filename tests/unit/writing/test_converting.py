"""memload.write converts: rows, mask, scale and cast as numpy and torch have them; what is killed is resumed."""

import json
import os
import signal
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
import strategies
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import run

import memload
from memload.cli.main import main
from memload.columns.blocks import Block
from memload.columns.fields import Field
from memload.formats.shards.rows import as_rows
from memload.writing.conversion import Conversion, Conversions
from memload.writing.same_source import identity_of
from memload.writing.stream import ShardStream


def all_rows(dataset, name):
    return dataset.fields[name].gather(np.arange(len(dataset)))


def hidden(parent):
    return sorted(path.name for path in parent.iterdir() if path.name.startswith("."))


@pytest.fixture
def betas(tmp_path):
    """int16 (50, 4, 3, 2), and its file."""
    array = np.random.default_rng(0).integers(-(2**15), 2**15, (50, 4, 3, 2)).astype(np.int16)
    np.save(tmp_path / "betas.npy", array)
    return torch.from_numpy(array), tmp_path / "betas.npy"


# Rows, mask, scale, cast


@given(
    st.data(),
    st.sampled_from(
        [torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
    ),
    st.lists(st.integers(1, 4), max_size=3).map(tuple),
)
def test_a_conversion_is_what_torch_makes_of_the_rows(data, dtype, shape):
    x = strategies.random_tensor(dtype, (data.draw(st.integers(1, 5)), *shape), seed=data.draw(st.integers(0, 255)))
    axes = data.draw(st.integers(0, len(shape)))
    mask = None
    if axes:
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=(n := int(np.prod(shape[:axes]))), max_size=n)))
        mask = mask.reshape(shape[:axes]) if mask.any() else None
    factor = data.draw(st.none() | st.floats(-4, 4).filter(bool))
    target = data.draw(st.sampled_from([None, torch.bfloat16, torch.float32, torch.float64]))
    cast = None if target is None else memload.Cast(target, norm_removed=data.draw(st.booleans()))
    expected = x if mask is None else x[:, torch.from_numpy(mask)]
    if factor is not None:
        expected = expected.to(torch.float64 if torch.float64 in (dtype, target) else torch.float32) * factor
    if cast is not None:
        expected = cast.apply(expected)
    made = Conversion(mask, factor, cast).apply(as_rows("x", x))
    assert (made.dtype, (len(made), *made.shape)) == (expected.dtype, tuple(expected.shape))
    assert Conversion(mask, factor, cast).form(dtype, shape) == (made.dtype, made.shape)
    assert made.data.tobytes() == strategies.as_bytes(expected)


def test_a_file_is_selected_masked_scaled_and_cast_in_this_order(tmp_path, betas):
    x, path = betas
    roi = np.zeros((4, 3), bool)
    roi[1:3, 1:] = True
    ds = memload.write(
        tmp_path / "s",
        memload.open(path, field="betas"),
        rows=range(40, 10, -3),
        mask=roi,
        scale=1 / 300,
        cast="bfloat16",
    )
    expected = (x[torch.arange(40, 10, -3)][:, torch.from_numpy(roi)].float() * (1 / 300)).bfloat16()
    assert torch.equal(all_rows(ds, "betas"), expected)
    assert memload.verify(tmp_path / "s") == ds.nbytes


@pytest.mark.parametrize("kind", ["arrays", "iterable"])
def test_arrays_and_iterables_are_converted_as_datasets_are(tmp_path, kind):
    x, trial = torch.rand(9, 4), torch.arange(9)
    data = (
        {"x": x, "trial": trial} if kind == "arrays" else [{"x": a, "trial": b} for a, b in zip(x, trial, strict=True)]
    )
    ds = memload.write(tmp_path / "s", data, mask={"x": [1, 0, 0, 1]}, scale={"x": 3}, cast="bfloat16")
    assert torch.equal(all_rows(ds, "x"), (x[:, [0, 3]] * 3.0).bfloat16())
    assert torch.equal(all_rows(ds, "trial"), trial)


def test_arrays_are_selected_by_rows_or_bools(tmp_path):
    x = torch.arange(6)
    assert all_rows(memload.write(tmp_path / "a", {"x": x}, rows=[4, 4, 0]), "x").tolist() == [4, 4, 0]
    assert all_rows(memload.write(tmp_path / "b", {"x": x}, rows=x > 3), "x").tolist() == [4, 5]
    with pytest.raises(TypeError, match="rows= selects from a dataset or from arrays; data is of type list"):
        memload.write(tmp_path / "c", [{"x": 1}], rows=[0])


def test_a_cast_for_all_leaves_integers_alone_and_a_named_one_keeps_the_values_of_pixels(tmp_path):
    data = {"stim": torch.arange(256, dtype=torch.uint8), "trial": torch.arange(256), "y": torch.rand(256)}
    ds = memload.write(tmp_path / "a", data, cast=torch.bfloat16)
    assert [ds.fields[name].dtype for name in data] == [torch.uint8, torch.int64, torch.bfloat16]
    ds = memload.write(tmp_path / "b", data, cast={"stim": "bfloat16"})
    assert all_rows(ds, "stim").tolist() == list(range(256))
    cast = memload.Cast(torch.float32, norm_removed=True)
    ds = memload.write(tmp_path / "c", data, cast={"stim": cast})
    assert torch.equal(all_rows(ds, "stim"), cast.apply(data["stim"]))


FORMS = {
    "stim": (torch.uint8, (3, 4)),
    "pupil": (torch.int16, (2,)),
    "trial": (torch.int64, ()),
    "ok": (torch.bool, ()),
}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mask": np.ones((4, 3), bool)}, ValueError, r"mask \(4, 3\): no row begins with .*stim uint8 \(3, 4\)"),
        ({"mask": {"stim": np.ones((4, 3), bool)}}, ValueError, r"the mask is \(4, 3\); its axes are .* in reverse"),
        ({"mask": np.ones((4, 3), bool)}, ValueError, r"the mask has the axes of 'stim' in reverse: transpose it"),
        ({"mask": {"robs": np.ones(3, bool)}}, ValueError, "mask= names 'robs', which is no field; there are stim"),
        ({"mask": np.zeros(3, bool)}, ValueError, "keeps none of its 3 elements"),
        ({"mask": np.array([0, 2, 1])}, ValueError, "values other than 0 and 1, such as 2; make it bool"),
        ({"mask": True}, TypeError, "expected a bool array"),
        ({"mask": np.array(["a"])}, TypeError, "expected a bool array"),
        ({"scale": 2}, ValueError, r"there are several: name it, as in scale=\{'stim': 2.0\}; the fields are stim"),
        ({"scale": {"stim": 0}}, ValueError, "finite and not 0, got 0"),
        ({"scale": {"stim": float("nan")}}, ValueError, "finite and not 0, got nan"),
        ({"scale": "2"}, TypeError, "a scale must be a number, such as 1 / 300, got a str"),
        ({"scale": {"ok": 2}}, TypeError, "'ok' is bool, which can be neither scaled nor cast"),
        ({"cast": "bfloat16"}, ValueError, r"no field is: name it, as in cast=\{'stim': 'bfloat16'\}"),
        ({"cast": {"stim": "int32"}}, TypeError, "a cast is to one of"),
        ({"cast": "bfloat17"}, TypeError, "a cast is to one of the dtypes .*'bfloat17'"),
    ],
)
def test_conversions_that_do_not_fit_say_why(options, error, message):
    with pytest.raises(error, match=message):
        Conversions(**options).of(FORMS)


def test_a_scale_without_a_name_leaves_keys_and_labels_alone(tmp_path):
    data = {"session": torch.arange(5), "betas": torch.arange(10).reshape(5, 2), "name": [*"abcde"]}
    ds = memload.write(tmp_path / "a", data, scale=0.5)
    assert all_rows(ds, "betas").tolist() == [[k, k + 0.5] for k in range(5)]
    assert all_rows(ds, "session").tolist() == [*range(5)]
    assert all_rows(memload.write(tmp_path / "b", {"label": torch.arange(3)}, scale=2), "label").tolist() == [0, 2, 4]


def test_arrays_that_must_not_be_written_to_are_converted(tmp_path):
    x = np.arange(6.0)
    x.flags.writeable = False
    assert all_rows(memload.write(tmp_path / "s", {"x": x}, scale=2, cast="float32"), "x").tolist() == [
        0,
        2,
        4,
        6,
        8,
        10,
    ]
    assert x[1] == 1


@pytest.mark.parametrize("content", [b"", b"text", b"\x93NUMPY\x01\x00"])
def test_a_mask_or_rows_from_no_npy_file_say_so(tmp_path, capsys, content):
    (tmp_path / "bad.npy").write_bytes(content)
    np.save(tmp_path / "x.npy", np.zeros((5, 2), np.float32))
    for option in ("--mask", "--rows"):
        assert main(["write", str(tmp_path / "x.npy"), str(tmp_path / "s"), option, str(tmp_path / "bad.npy")]) == 2
        assert "bad.npy: not a .npy file of numbers" in capsys.readouterr().err


def test_a_conversion_that_does_not_fit_writes_nothing(tmp_path):
    with pytest.raises(ValueError, match="no field is: name it"):
        memload.write(tmp_path / "s", {"x": torch.arange(3)}, cast="bfloat16")
    with pytest.raises(ValueError, match="no field is: name it"):
        memload.write(tmp_path / "s", [{"x": 1}], cast="bfloat16")
    assert list(tmp_path.iterdir()) == []


# Taken up where it was interrupted


def write_killed(source, target, shards, with_signal=signal.SIGKILL, **options):
    """Convert in a forked process, which gets a signal once so many shards are complete; return how it ended."""
    finish, left = ShardStream.finish, [shards]

    def finish_and_die(self):
        finish(self)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), with_signal)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may have it ignored
        ShardStream.finish = finish_and_die
        try:
            write_again(source, target, **options)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def write_killed_after(source, target, seconds, **options):
    """Convert in a forked process that is killed after so many seconds, unless it was faster."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)  # whose signal, not handled, ends the process at once
            write_again(source, target, **options)
            os._exit(0)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def write_again(source, target, **options):
    options = {"shard_bytes": 480, "cast": {"betas": "float32"}, **options}
    return memload.write(target, memload.open(source, field="betas"), **options)


@pytest.mark.parametrize("shards", [1, 4])
def test_a_killed_conversion_goes_on_behind_its_complete_shards(tmp_path, betas, shards, capfd):
    x, path = betas
    target = tmp_path / "s"
    assert write_killed(path, target, shards) == -signal.SIGKILL
    assert not target.exists()
    kept = {one.name: one.stat().st_mtime_ns for one in (tmp_path / ".s.memload" / "set").glob("*")}
    with pytest.raises(ValueError, match=r"no index\.json|no format"):
        memload.open(tmp_path / ".s.memload" / "set")
    ds = write_again(path, target)
    said = capfd.readouterr().err
    assert f"resumed where it was interrupted, at row {5 * shards}: {shards} shard" in said
    assert torch.equal(all_rows(ds, "betas"), x.float())
    assert memload.verify(target) == ds.nbytes
    now = {one.name: one.stat().st_mtime_ns for one in target.glob("*.safetensors")}
    assert sum(now[name] == changed for name, changed in kept.items()) == shards
    assert hidden(tmp_path) == []


def test_a_conversion_that_is_killed_again_and_again_comes_to_its_end(tmp_path):
    x = np.random.default_rng(0).integers(0, 2**15, (3000, 50)).astype(np.int16)
    np.save(tmp_path / "betas.npy", x)
    options = {"shard_bytes": 20_000, "progress": False}
    ends = []
    for delay in (0.002, 0.01, 0.02, 0.03, 0.05, 0.08):
        ends.append(write_killed_after(tmp_path / "betas.npy", tmp_path / "s", delay, **options))
        if (tmp_path / "s").exists():
            break
    if not (tmp_path / "s").exists():
        write_again(tmp_path / "betas.npy", tmp_path / "s", **options)
    ds = memload.open(tmp_path / "s")
    assert -signal.SIGALRM in ends
    assert torch.equal(all_rows(ds, "betas"), torch.from_numpy(x).float())
    assert memload.verify(tmp_path / "s") == ds.nbytes


def test_what_is_damaged_meanwhile_is_written_again(tmp_path, betas, capfd):
    x, path = betas
    write_killed(path, tmp_path / "s", 6)
    shard = tmp_path / ".s.memload" / "set" / "shard-00003.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    ds = write_again(path, tmp_path / "s")
    assert "at row 15: 3 shards" in capfd.readouterr().err
    assert torch.equal(all_rows(ds, "betas"), x.float())
    memload.verify(tmp_path / "s")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cast": {"betas": "float64"}}, "another cast"),
        ({"mask": np.ones(4, bool)}, "another mask"),
        ({"scale": 2}, "another scale"),
        ({"shard_bytes": 960}, "another shard_bytes"),
        ({"rows": range(20)}, "another source"),
        ({"resume": False}, ""),
        ("another file", "another source"),
    ],
)
def test_another_source_or_other_options_begin_anew_and_say_so(tmp_path, betas, options, said, capfd):
    x, path = betas
    write_killed(path, tmp_path / "s", 6)
    if options == "another file":
        options, x = {}, x + 1
        np.save(path, x.numpy())
    ds = write_again(path, tmp_path / "s", **options)
    assert said in (err := capfd.readouterr().err)
    assert "resumed" not in err
    expected = x[:20] if "rows" in options else x
    factor = options.get("scale", 1)
    assert torch.equal(all_rows(ds, "betas").double().reshape(-1), expected.double().reshape(-1) * factor)
    memload.verify(tmp_path / "s")
    assert hidden(tmp_path) == []


def test_ctrl_c_keeps_what_is_complete_too(tmp_path, betas, capfd):
    x, path = betas
    write_killed(path, tmp_path / "s", 6, signal.SIGINT)
    assert "interrupted; 30 rows are complete and kept" in capfd.readouterr().err
    assert not (tmp_path / "s").exists()
    ds = write_again(path, tmp_path / "s", progress=False)
    assert torch.equal(all_rows(ds, "betas"), x.float())


def test_an_addition_is_taken_up_as_well(tmp_path, betas, capfd):
    x, path = betas
    base = write_again(path, tmp_path / "s", shard_bytes=2000)
    assert write_killed(path, tmp_path / "s", 4, append=True) == -signal.SIGKILL
    assert len(memload.open(tmp_path / "s")) == 50
    ds = write_again(path, tmp_path / "s", append=True)
    assert "at row 20: 4 shards" in capfd.readouterr().err
    assert torch.equal(all_rows(ds, "betas"), torch.cat([x, x]).float())
    assert torch.equal(all_rows(base, "betas"), x.float())
    assert memload.verify(tmp_path / "s") == ds.nbytes
    assert [one.name for one in (tmp_path / "s").iterdir() if one.name.startswith(".")] == []


def test_a_killed_conversion_whose_shards_were_all_complete_only_needs_its_name(tmp_path, betas, capfd):
    x, path = betas
    write_killed(path, tmp_path / "s", 10)
    ds = write_again(path, tmp_path / "s")
    assert "at row 50" in capfd.readouterr().err
    assert torch.equal(all_rows(ds, "betas"), x.float())


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"plan": 3}', b"\xff"])
def test_a_damaged_account_of_what_is_complete_begins_anew(tmp_path, betas, damage):
    x, path = betas
    write_killed(path, tmp_path / "s", 6)
    (tmp_path / ".s.memload" / "unfinished.json").write_bytes(damage)
    assert torch.equal(all_rows(write_again(path, tmp_path / "s"), "betas"), x.float())
    memload.verify(tmp_path / "s")


def test_a_writer_that_names_what_it_writes_is_taken_up_by_the_next(tmp_path):
    for attempt in range(3):
        try:
            with memload.ShardWriter(
                tmp_path / "s", shard_bytes=80, resume={"what": "squares"}, progress=False
            ) as writer:
                assert writer.rows_there == [0, 10, 20][attempt]
                for i in range(writer.rows_there, 25):
                    if i == [13, 29, 99][attempt] or (attempt == 1 and i == 24):
                        raise ZeroDivisionError
                    writer.extend(x=[i * i])
        except ZeroDivisionError:
            assert not (tmp_path / "s").exists()
    assert all_rows(memload.open(tmp_path / "s"), "x").tolist() == [i * i for i in range(25)]


# Memory

LARGE = """
import memload, numpy as np, sys, threading
path, most, done = sys.argv[1], [0], threading.Event()
def private():
    text = open("/proc/self/status").read()
    return int(text.split("RssAnon:")[1].split()[0]) // 1024
def watch():
    while not done.wait(0.002):
        most[0] = max(most[0], private())
ds = memload.open(path, field="x")
memload.write(path + ".warm", ds, rows=range(2), mask=np.ones(500, bool), scale=0.5, cast="bfloat16")
before = private()
watcher = threading.Thread(target=watch)
watcher.start()
memload.write(path + ".s", ds, mask=np.arange(500) % 2 == 0, scale=0.5, cast="bfloat16")
done.set()
watcher.join()
print(most[0] - before)
"""


def test_a_conversion_holds_no_more_than_it_states(tmp_path):
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.int16, (400, 500, 1000)).flush()
    done = run(LARGE, tmp_path / "x.npy")
    assert done.status == 0, done.err
    assert int(done.out[0]) < 128  # MiB, for 400 MB


# Rows that are stored across


class Across:
    """An array that is read in boxes of some elements of all rows of a band, as a file of such chunks would be."""

    def __init__(self, array, band, box):
        self.array, self.band, self.box, self.boxes_read = array, band, box, 0

    @property
    def rows(self):
        return len(self.array)

    def bands(self):
        return [range(at, min(at + self.band, self.rows)) for at in range(0, self.rows, self.band)]

    def read(self, band, wanted, nbytes):
        shape = self.array.shape[1:]
        for corner in np.ndindex(*(-(-side // step) for side, step in zip(shape, self.box, strict=True))):
            box = tuple(
                slice(k * step, min((k + 1) * step, side))
                for k, step, side in zip(corner, self.box, shape, strict=True)
            )
            if wanted is None or wanted[box].any():
                self.boxes_read += 1
                yield Block(slice(None), box, self.array[(slice(band.start, band.stop), *box)])


def dataset_across(array, band, box):
    rowwise = memload.from_arrays(betas=array).fields["betas"]
    across = Across(array, band, box)
    return memload.Dataset({"betas": Field(rowwise.dtype, rowwise.shape, rowwise.column, blocks=across)}), across


@settings(max_examples=40)
@given(st.data())
def test_rows_that_are_stored_across_are_written_as_rows(tmp_path_factory, data):
    shape = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(1, 4)))
    x = strategies.random_tensor(torch.int16, shape, seed=1)
    parts = [
        dataset_across(
            x.numpy(), data.draw(st.integers(1, 12)), data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
        )
        for _ in range(data.draw(st.integers(1, 2)))
    ]
    ds, x = parts[0][0].concat(*[part for part, _ in parts[1:]]), torch.cat([x] * len(parts))
    numbers = torch.arange(len(x))
    if data.draw(st.booleans()):
        numbers = torch.tensor(data.draw(st.lists(st.integers(0, len(x) - 1), min_size=1, max_size=9)))
        ds = ds.select(numbers)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=shape[1], max_size=shape[1])))
    mask = mask if mask.any() else None
    path = tmp_path_factory.mktemp("across") / "s"
    with_trial = memload.zip(betas=ds, trial=memload.from_arrays(trial=numbers))
    if data.draw(st.booleans()):
        with_trial = memload.zip(
            all=with_trial, prompt=memload.from_arrays(prompt=[f"trial {k}" for k in numbers.tolist()])
        )
    written = memload.write(
        path, with_trial, mask=None if mask is None else {"betas": mask}, scale={"betas": 0.5}, shard_bytes=99
    )
    expected = x[numbers] if mask is None else x[numbers][:, torch.from_numpy(mask)]
    assert torch.equal(all_rows(written, "betas"), expected * 0.5)
    assert torch.equal(all_rows(written, "trial"), numbers)
    memload.verify(path)
    assert hidden(path.parent) == []


def test_boxes_outside_the_mask_are_not_read(tmp_path):
    x = torch.arange(6 * 8 * 2, dtype=torch.int16).reshape(6, 8, 2)
    ds, across = dataset_across(x.numpy(), 6, (1, 2))
    mask = np.arange(8) == 5
    assert torch.equal(all_rows(memload.write(tmp_path / "s", ds, mask=mask), "betas"), x[:, 5:6])
    assert across.boxes_read == 1


def test_chunks_of_hdf5_that_hold_one_voxel_of_many_trials_become_rows(tmp_path, capfd):
    x = np.random.default_rng(0).integers(-3000, 3000, (40, 6, 5, 4)).astype(">i2")
    for k in (1, 2):
        with h5py.File(tmp_path / f"session{k}.hdf5", "w") as file:
            file.create_dataset("betas", data=x[20 * k - 20 : 20 * k], chunks=(20, 1, 1, 4), compression="gzip")
    roi = np.random.default_rng(1).random((6, 5, 4)) > 0.7
    np.save(tmp_path / "roi.npy", roi)
    sessions = [str(tmp_path / f"session{k}.hdf5") for k in (1, 2)]
    more = ["--key", "betas", "--mask", str(tmp_path / "roi.npy"), "--scale", "1/300", "--rows", "5:35", "--quiet"]
    assert main(["write", *sessions, str(tmp_path / "s"), *more]) == 0
    expected = torch.from_numpy(x.astype(np.int16)[5:35][:, roi]).float() * (1 / 300)
    assert torch.equal(all_rows(memload.open(tmp_path / "s"), "betas"), expected)


def test_a_source_in_files_is_known_again_and_one_in_memory_is_not(tmp_path):
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_dataset("x", (6, 4), "f4", chunks=(2, 4), fillvalue=3)[:2] = 1  # the other chunks are never written
    ds = memload.open(tmp_path / "x.hdf5")
    assert identity_of(ds) == identity_of(memload.open(tmp_path / "x.hdf5"))
    assert identity_of(ds) != identity_of(ds.select([1, 0, 2, 3, 4, 5]))
    assert identity_of(ds) is not None
    assert identity_of(memload.from_arrays(x=np.zeros((6, 4)))) is None
    bounded = [memload.open(tmp_path / "x.hdf5", max_open_files=1) for _ in range(2)]  # each has a table of its own
    cached = [memload.open(tmp_path / "x.hdf5", tier="hybrid", cache_bytes="2MB") for _ in range(2)]
    for one, other in (bounded, cached):
        assert identity_of(one) == identity_of(other)
    before = identity_of(ds)
    os.utime(tmp_path / "x.hdf5", ns=(0, 0))
    assert identity_of(ds) != before


# Codecs


def test_a_codec_by_sample_is_stated_and_kept_where_a_run_is_taken_up(tmp_path, capfd):
    x = np.repeat(np.arange(60, dtype=np.int16)[:, None], 3000, axis=1)
    np.save(tmp_path / "betas.npy", x)
    options = {"codec": "auto", "cast": None, "shard_bytes": 60_000}
    assert write_killed(tmp_path / "betas.npy", tmp_path / "s", 2, **options) == -signal.SIGKILL
    assert "betas: " in (said := capfd.readouterr().err)
    assert "times smaller, decoded at" in said
    ds = write_again(tmp_path / "betas.npy", tmp_path / "s", **options)
    said = capfd.readouterr().err
    assert "resumed where it was interrupted" in said
    assert "times smaller" not in said
    assert torch.equal(all_rows(ds, "betas"), torch.from_numpy(x))
    assert sum(one.stat().st_size for one in (tmp_path / "s").glob("*.safetensors")) < x.nbytes / 2


def test_a_sample_is_taken_of_what_will_be_written(tmp_path, capfd):
    noise = torch.randint(0, 256, (64, 4096), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    memload.write(tmp_path / "s", {"x": noise}, codec="auto")
    assert "x: not compressed" in capfd.readouterr().err
    even = np.arange(4096) % 2 == 0
    noise[:, torch.from_numpy(even)] = 7
    memload.write(tmp_path / "t", {"x": noise}, codec="auto", mask=even)
    assert "times the rows per second" in (said := capfd.readouterr().err)
    assert "not compressed" not in said
    with pytest.raises(TypeError, match="an iterable of rows has no sample"):
        memload.write(tmp_path / "u", [{"x": 1}], codec="auto")


def test_a_sample_decides_for_the_fields_that_ask_for_one(tmp_path, capfd):
    fields = {name: torch.zeros(64, 1000) for name in "abc"}
    memload.write(tmp_path / "s", fields, codec={"a": "auto", "b": "lz4:3"})
    said = capfd.readouterr().err
    assert "a: " in said
    assert "b: " not in said
    fields_there = json.loads((tmp_path / "s" / "index.json").read_text())["fields"]
    assert [name for name, one in fields_there.items() if "codec" in one] == ["a", "b"]
    with pytest.raises(ValueError, match="codec= names the field 'd'; the rows have 'a', 'b', 'c'"):
        memload.write(tmp_path / "t", fields, codec={"d": "auto"})


# The command line


def test_the_command_line_converts(tmp_path, betas, capsys):
    x, path = betas
    roi = np.zeros((4, 3), bool)
    roi[0, 1] = roi[3, 2] = True
    np.save(tmp_path / "roi.npy", roi)
    np.save(tmp_path / "trial.npy", np.arange(50))
    command = ["write", f"betas={path}", f"trial={tmp_path / 'trial.npy'}", "--rows", "5:20:3"]
    command += [
        "--mask",
        str(tmp_path / "roi.npy"),
        "--scale",
        "betas=1/300",
        str(tmp_path / "s"),
        "--cast",
        "bfloat16",
    ]
    assert main(command) == 0
    assert "5 rows" in capsys.readouterr().out
    ds = memload.open(tmp_path / "s")
    assert torch.equal(all_rows(ds, "betas"), (x[5:20:3][:, torch.from_numpy(roi)].float() * (1 / 300)).bfloat16())
    assert all_rows(ds, "trial").tolist() == [5, 8, 11, 14, 17]


def test_rows_and_scales_that_begin_with_a_minus_need_no_equals_sign(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(8, dtype=np.float32))
    for rows, expected in (("-3:", [5, 6, 7]), ("-3:-1", [5, 6]), (":2", [0, 1])):
        target = tmp_path / rows
        assert main(["write", str(tmp_path / "x.npy"), "--rows", rows, "--scale", "-1/2", str(target), "--quiet"]) == 0
        assert all_rows(memload.open(target), "data").tolist() == [-0.5 * row for row in expected]


def test_sources_of_one_name_follow_one_another(tmp_path, betas):
    x, path = betas
    np.save(tmp_path / "rows.npy", np.arange(100) % 7 == 0)
    assert (
        main(["write", str(path), str(path), str(tmp_path / "s"), "--rows", str(tmp_path / "rows.npy"), "--quiet"]) == 0
    )
    assert torch.equal(all_rows(memload.open(tmp_path / "s"), "data"), torch.cat([x, x])[::7])


def test_bare_rows_are_converted_where_they_are_described(tmp_path):
    x = torch.arange(24, dtype=torch.uint8).reshape(4, 3, 2)
    (tmp_path / "x.raw").write_bytes(b"head" + x.numpy().tobytes())
    command = [
        "write",
        str(tmp_path / "x.raw"),
        "--dtype",
        "uint8",
        "--shape",
        "3,2",
        "--offset",
        "4",
        str(tmp_path / "s"),
    ]
    assert main([*command, "--cast", "data=float32,norm_removed"]) == 0
    cast = memload.Cast(torch.float32, norm_removed=True)
    assert torch.equal(all_rows(memload.open(tmp_path / "s"), "data"), cast.apply(x))


def test_codecs_are_named_on_the_command_line(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((40, 1000), np.float32))
    for k, codecs in enumerate((["zstd:level=9,shuffle=bit"], ["data=lz4:3"], ["auto"], ["data=auto"])):
        more = [word for codec in codecs for word in ("--codec", codec)]
        assert main(["write", str(tmp_path / "x.npy"), str(tmp_path / f"s{k}"), "--quiet", *more]) == 0
        (shard,) = (tmp_path / f"s{k}").glob("*.safetensors")
        assert shard.stat().st_size < 20_000
        assert not all_rows(memload.open(tmp_path / f"s{k}"), "data").any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected what to convert and the directory to make"),
        (["only.npy"], "expected what to convert and the directory to make"),
        (["x.npy", "s", "--scale", "a third"], "--scale: 'a third' is no number such as 0.00333 or 1/300"),
        (["x.npy", "s", "--scale", "1e400"], "--scale: '1e400' is no number such as 0.00333 or 1/300"),
        (["x.npy", "s", "--scale", "1/0"], "--scale: '1/0' is no number"),
        (["x.npy", "s", "--rows", "3"], "--rows: expected a slice such as 0:1000, or a .npy file, got '3'"),
        (["x.npy", "s", "--cast", "bfloat16,twice"], "--cast: expected DTYPE or DTYPE,norm_removed"),
        (["x.npy", "s", "--cast", "data=float32", "--cast", "bfloat16"], "--cast is given once for all fields, or as"),
        (["x.npy", "s", "--cast", "data=float32", "--cast", "data=float64"], "--cast names a field twice"),
        (["x.npy", "s", "--mask", "nowhere.npy"], "nowhere.npy"),
        (["x.npy", "s", "--shape", "a"], "--shape: expected sides"),
    ],
)
def test_the_command_line_says_what_is_wrong(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((5, 2), np.float32))
    assert main(["write", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not Path("s").exists()


def test_an_option_that_is_not_known_is_told_from_a_path(capsys):
    with pytest.raises(SystemExit):
        main(["write", "a", "b", "--maks", "c"])
    assert "unrecognized arguments: --maks" in capsys.readouterr().err


def test_the_help_shows_the_order_and_examples(capsys):
    with pytest.raises(SystemExit):
        main(["write", "--help"])
    said = capsys.readouterr().out
    assert "memload write [options] [NAME=]SRC... DST" in said
    assert "memload write betas.npy shards/" in said


@pytest.mark.parametrize("given", ["array", "memmap", "h5py", "rows"])
def test_numbers_in_the_other_byte_order_are_written_in_this_one(tmp_path, given):
    numbers = np.random.default_rng(0).standard_normal((9, 4)).astype(">f4")
    np.save(tmp_path / "x.npy", numbers)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = numbers
        sources = {
            "array": {"x": numbers},
            "memmap": {"x": np.load(tmp_path / "x.npy", mmap_mode="r")},  # as the refusal of the .npy file says
            "h5py": {"x": file["x"]},
            "rows": ({"x": row} for row in numbers),
        }
        written = memload.write(tmp_path / "shards", sources[given])
    assert written.fields["x"].gather(np.arange(9)).numpy().tobytes() == numbers.astype("<f4").tobytes()


@pytest.mark.parametrize("append", [False, True])
def test_an_empty_folder_is_as_good_as_none(append, tmp_path):
    (tmp_path / "made").mkdir()
    memload.write(tmp_path / "made", {"x": torch.arange(3)}, append=append, progress=False)
    assert len(memload.open(tmp_path / "made")) == 3
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    (tmp_path / "link").symlink_to(tmp_path / "made" / "..")
    for taken in ("made", "other", "link") if not append else ():
        with pytest.raises(FileExistsError, match="exists already"):
            memload.write(tmp_path / taken, {"x": torch.arange(3)}, progress=False)


def test_what_comes_into_an_empty_folder_while_a_set_is_written_stays(tmp_path):
    (tmp_path / "made").mkdir()
    with pytest.raises(FileExistsError, match="something was made there"), memload.ShardWriter(tmp_path / "made") as to:
        to.append(x=1)
        (tmp_path / "made" / "notes.txt").touch()
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["notes.txt"]

"""Sets written in parts: what is sealed is what one writer writes, whoever is killed, late or at work twice."""

import contextlib
import errno
import fcntl
import json
import multiprocessing
import os
import random
import shutil
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from children import in_fork, write_parts_and_seal
from hypothesis import given, settings
from hypothesis import strategies as st

import memload
from memload.cli.main import main
from memload.formats.shards import attempts, staging
from memload.formats.shards.part_terms import PartNumber
from memload.formats.shards.parts import PartsFolder

ROWS = 24


def arrays(start=0, stop=ROWS):
    return {"x": torch.arange(start, stop), "image": torch.arange(start, stop).view(-1, 1, 1).expand(-1, 3, 4).float()}


def mixed(start, stop):
    """Rows of every kind: plain, compressed, ragged along either axis, and texts."""
    numbers = range(start, stop)
    return {
        "x": torch.arange(start, stop),
        "big": torch.stack([torch.full((300,), k % 7, dtype=torch.uint8) for k in numbers])
        if numbers
        else torch.zeros(0, 300, dtype=torch.uint8),
        "tokens": memload.ragged(
            [torch.arange(k % 5, dtype=torch.int32) for k in numbers] or [torch.zeros(0, dtype=torch.int32)][:0]
        ),
        "text": [f"row {k}" * (k % 3) for k in numbers],
    }


def all_rows(ds):
    return [
        {name: value.tolist() if hasattr(value, "tolist") else value for name, value in ds[k].items()}
        for k in range(len(ds))
    ]


def files_of(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def listed_in(path):
    return sorted(["index.json", *(shard["file"] for shard in json.loads((path / "index.json").read_text())["shards"])])


def write_halves(path, which=(0, 1), **options):
    for part in which:
        memload.write_part(path, arrays(part * 12, part * 12 + 12), part=part, parts=2, **options)


def check_sealed(path, rows=ROWS):
    ds = memload.open(path)
    assert ds.fields["x"].gather(np.arange(len(ds))).tolist() == list(range(rows))
    memload.verify(path)
    assert files_of(path) == listed_in(path)


# What is sealed


@settings(max_examples=20)
@given(st.data())
def test_parts_in_any_order_make_the_set_that_one_writer_makes(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("sets")
    cuts = sorted(data.draw(st.lists(st.integers(0, ROWS), max_size=4)))
    bounds = list(zip([0, *cuts], [*cuts, ROWS], strict=True))
    codec = data.draw(st.sampled_from([None, "zstd", {"big": "lz4", "tokens": "zstd:rows=3"}]))
    shard_bytes = data.draw(st.sampled_from([1000, "512MB"]))
    for part in data.draw(st.permutations(range(len(bounds)))):
        start, stop = bounds[part]
        rows = mixed(start, stop) if start < stop else []
        written = memload.write_part(
            folder / "parts", rows, part=part, parts=len(bounds), codec=codec, shard_bytes=shard_bytes
        )
        assert written.rows == stop - start
    sealed = memload.seal(folder / "parts")
    alone = memload.write(folder / "alone", mixed(0, ROWS), codec=codec)
    assert all_rows(sealed) == all_rows(alone)
    assert {name: field.described for name, field in sealed.fields.items()} == {
        name: field.described for name, field in alone.fields.items()
    }
    memload.verify(folder / "parts")
    assert files_of(folder / "parts") == listed_in(folder / "parts")
    shutil.rmtree(folder)


def test_rows_are_selected_masked_scaled_and_cast_as_in_write(tmp_path):
    x, roi = np.arange(60, dtype=np.int16).reshape(10, 6), np.array([1, 0, 1, 1, 0, 0], bool)
    np.save(tmp_path / "x.npy", x)
    options = {"mask": roi, "scale": 0.5, "cast": "bfloat16"}
    for part in (1, 0):
        rows = range(10 * part // 2, 10 * (part + 1) // 2)
        memload.write_part(tmp_path / "s", memload.open(tmp_path / "x.npy"), part=part, parts=2, rows=rows, **options)
    alone = memload.write(tmp_path / "alone", memload.open(tmp_path / "x.npy"), **options)
    assert all_rows(memload.seal(tmp_path / "s")) == all_rows(alone)


def test_rows_that_share_rows_of_another_set_are_written_out_as_in_write(tmp_path):
    shared = memload.from_arrays(image=torch.arange(12.0).view(3, 4))
    pairs = memload.zip(image=shared.select([2, 0, 0, 1]), y=memload.from_arrays(y=torch.arange(4)))
    for part in (0, 1):
        memload.write_part(tmp_path / "s", pairs.select(range(part * 2, part * 2 + 2)), part=part, parts=2)
    assert all_rows(memload.seal(tmp_path / "s")) == all_rows(memload.write(tmp_path / "alone", pairs))


def test_an_iterable_of_rows_is_a_part(tmp_path):
    for part in (0, 1):
        rows = ({"x": k, "tokens": np.arange(k % 3)} for k in range(part * 12, part * 12 + 12))
        memload.write_part(tmp_path / "s", rows, part=part, parts=2, ragged=["tokens"])
    ds = memload.seal(tmp_path / "s")
    assert [(int(row["x"]), row["tokens"].tolist()) for row in map(ds.__getitem__, range(ROWS))] == [
        (k, list(range(k % 3))) for k in range(ROWS)
    ]


def test_sealing_moves_no_shard(tmp_path):
    write_halves(tmp_path / "s")
    before = {file.name: file.stat().st_ino for file in (tmp_path / "s").glob("shard-*")}
    memload.seal(tmp_path / "s")
    assert {file.name: file.stat().st_ino for file in (tmp_path / "s").glob("shard-*")} == before


def test_the_number_of_parts_may_be_told_by_sealing_alone(tmp_path):
    for part in (1, 0):
        memload.write_part(tmp_path / "s", arrays(part * 12, part * 12 + 12), part=part)
    with pytest.raises(ValueError, match=r"written without their number, .*; give their number: parts=2"):
        memload.seal(tmp_path / "s")
    with pytest.raises(ValueError, match=r"1 of 3 parts are missing: part 2\."):
        memload.seal(tmp_path / "s", parts=3)
    with pytest.raises(ValueError, match="parts=1, but part 1 is complete, too"):
        memload.seal(tmp_path / "s", parts=1)
    memload.seal(tmp_path / "s", parts=2)
    check_sealed(tmp_path / "s")


@pytest.mark.parametrize("told", [{"parts": 2}, {}])
def test_a_sealed_set_says_of_how_many_parts_it_was_made(tmp_path, told):
    for part in range(2):
        memload.write_part(tmp_path / "s", arrays(part * 12, part * 12 + 12), part=part, **told)
    memload.seal(tmp_path / "s", parts=2)
    memload.seal(tmp_path / "s", parts=2)
    for other in (1, 3):
        with pytest.raises(ValueError, match=rf"s: parts={other}, but a set is sealed here already, of parts=2; "):
            memload.seal(tmp_path / "s", parts=other)
    check_sealed(tmp_path / "s")


def test_an_index_of_an_older_memload_does_not_say_of_how_many_parts_it_is(tmp_path):
    write_halves(tmp_path / "s")
    memload.seal(tmp_path / "s")
    index = json.loads((tmp_path / "s" / "index.json").read_text())
    assert index.pop("parts") == 2
    (tmp_path / "s" / "index.json").write_text(json.dumps(index))
    memload.seal(tmp_path / "s", parts=3)
    check_sealed(tmp_path / "s")


def test_a_sealed_set_is_extended_like_any_other(tmp_path):
    write_halves(tmp_path / "s")
    memload.seal(tmp_path / "s")
    memload.write(tmp_path / "s", arrays(ROWS, ROWS + 3), append=True)
    check_sealed(tmp_path / "s", ROWS + 3)
    memload.seal(tmp_path / "s", parts=3)  # leaves it as it is, a set of two parts and of further rows
    check_sealed(tmp_path / "s", ROWS + 3)


# What is refused


def test_nothing_opens_before_it_is_sealed_and_nobody_else_writes_there(tmp_path):
    write_halves(tmp_path / "s")
    with pytest.raises(
        memload.ShardFormatError, match=r"parts of a set are here, which .*memload\.seal, makes one set of"
    ):
        memload.open(tmp_path / "s")
    with pytest.raises(FileExistsError):
        memload.write(tmp_path / "s", arrays())
    with pytest.raises(memload.ShardFormatError, match="parts of a set"):
        memload.write(tmp_path / "s", arrays(), append=True)
    memload.seal(tmp_path / "s")
    check_sealed(tmp_path / "s")
    with pytest.raises(FileExistsError, match="this set is complete"):
        write_halves(tmp_path / "s")


def test_missing_parts_are_named_and_can_be_written_then(tmp_path):
    memload.write_part(tmp_path / "s", arrays(0, 12), part=0, parts=4)
    with pytest.raises(ValueError, match="3 of 4 parts are missing: part 1, 2, 3"):
        memload.seal(tmp_path / "s")
    for part in (1, 2, 3):
        memload.write_part(tmp_path / "s", arrays(8 + part * 4, 12 + part * 4), part=part, parts=4)
    memload.seal(tmp_path / "s")
    check_sealed(tmp_path / "s")


DISAGREEING = {
    "fields": ({"y": torch.arange(3)}, r"part 1 of 2 has the fields \['y'\], part 0 of 2 has \['x'\]"),
    "dtypes": ({"x": torch.arange(3, dtype=torch.int32)}, r"field 'x' is int32 \(\) in part 1 of 2, and int64 \(\) in"),
    "shapes": ({"x": torch.zeros(3, 2, dtype=torch.int64)}, r"field 'x' is int64 \(2,\) in part 1 of 2"),
    "raggedness": ({"x": memload.ragged([torch.arange(2)])}, r"field 'x' is int64 \(None,\) in part 1 of 2"),
    "texts": ({"x": ["a"]}, r"field 'x' is uint8 \(None,\) as text in part 1 of 2"),
}


@pytest.mark.parametrize("what", DISAGREEING)
def test_a_part_that_disagrees_is_refused_before_it_is_written(tmp_path, what):
    rows, message = DISAGREEING[what]
    memload.write_part(tmp_path / "s", {"x": torch.arange(3)}, part=0, parts=2)
    before = files_of(tmp_path / "s")
    with pytest.raises(ValueError, match=message):
        memload.write_part(tmp_path / "s", rows, part=1, parts=2)
    assert files_of(tmp_path / "s") == before


@pytest.mark.parametrize("what", DISAGREEING)
def test_parts_that_disagree_are_not_sealed_if_they_were_written_at_once(tmp_path, what):
    rows, message = DISAGREEING[what]
    memload.write_part(tmp_path / "s", {"x": torch.arange(3)}, part=0, parts=2)
    memload.write_part(tmp_path / "t", rows, part=1, parts=2)
    for file in [*(tmp_path / "t").glob("shard*"), *(tmp_path / "t" / ".parts").iterdir()]:
        shutil.copy(file, tmp_path / "s" / file.relative_to(tmp_path / "t"))
    with pytest.raises(ValueError, match=message):
        memload.seal(tmp_path / "s")
    with pytest.raises(memload.ShardFormatError):
        memload.open(tmp_path / "s")


def test_a_codec_that_differs_is_refused(tmp_path):
    write_halves(tmp_path / "s", [0], codec={"image": "zstd"})
    with pytest.raises(ValueError, match=r"field 'image' is float32 \(3, 4\) in part 1 of 2, and .* with zstd:level="):
        write_halves(tmp_path / "s", [1])
    with pytest.raises(ValueError, match='codec="auto" may choose differently for each part'):
        write_halves(tmp_path / "s", [1], codec="auto")


def test_another_scale_is_refused_although_the_fields_agree(tmp_path):
    memload.write_part(tmp_path / "s", {"x": torch.arange(3)}, part=0, parts=2, scale=0.5)
    with pytest.raises(ValueError, match="part 1 of 2 was written with another scale than part 0 of 2"):
        memload.write_part(tmp_path / "s", {"x": torch.arange(3)}, part=1, parts=2, scale=0.25)


def scaled_rows(start, stop):
    return ({"x": np.float32(k)} for k in range(start, stop))


@pytest.mark.parametrize("scale", [0.25, None])
def test_another_scale_of_an_iterable_of_rows_is_refused(tmp_path, scale):
    memload.write_part(tmp_path / "s", scaled_rows(0, 3), part=0, parts=2, scale=0.5)
    before = files_of(tmp_path / "s")
    with pytest.raises(ValueError, match="part 1 of 2 was written with another scale than part 0 of 2"):
        memload.write_part(tmp_path / "s", scaled_rows(3, 4), part=1, parts=2, scale=scale)
    assert files_of(tmp_path / "s") == before


def test_iterables_arrays_and_parts_without_rows_agree_in_their_conversions(tmp_path):
    memload.write_part(tmp_path / "s", scaled_rows(0, 0), part=0, parts=3, scale=0.5)
    memload.write_part(tmp_path / "s", scaled_rows(0, 2), part=1, parts=3, scale=0.5)
    memload.write_part(tmp_path / "s", {"x": np.arange(2, 4, dtype=np.float32)}, part=2, parts=3, scale=0.5)
    assert [row["x"] for row in all_rows(memload.seal(tmp_path / "s"))] == [0, 0.5, 1, 1.5]


def test_the_order_of_fields_makes_no_other_conversion(tmp_path):
    for part, names in enumerate(("xy", "yx")):
        rows = {name: np.full(2, part, np.float32) for name in names}
        memload.write_part(tmp_path / "s", rows, part=part, parts=2, cast="float16")
    assert len(memload.seal(tmp_path / "s")) == 4


def test_a_part_without_rows_does_not_hide_one_that_disagrees(tmp_path):
    memload.write_part(tmp_path / "s", [], part=0, parts=3)
    memload.write_part(tmp_path / "s", {"x": torch.arange(3)}, part=1, parts=3)
    with pytest.raises(ValueError, match=r"part 2 of 3 has the fields \['y'\], part 1 of 3 has \['x'\]"):
        memload.write_part(tmp_path / "s", {"y": torch.arange(3)}, part=2, parts=3)


def test_a_huge_number_of_parts_is_refused_by_names_of_the_first_that_are_missing(tmp_path):
    memload.write_part(tmp_path / "s", arrays(), part=1, parts=10**15)
    with pytest.raises(ValueError, match=r"parts are missing: part 0, 2, .*, 12 and 999,999,999,999,987 more\. Write"):
        memload.seal(tmp_path / "s")


def test_numbers_of_numpy_are_numbers_of_parts(tmp_path):
    assert memload.write_part(tmp_path / "s", arrays(), part=np.int64(0), parts=np.int32(1)).part == 0
    memload.seal(tmp_path / "s", parts=np.int64(1))
    check_sealed(tmp_path / "s")


def test_another_number_of_parts_is_refused(tmp_path):
    write_halves(tmp_path / "s", [0])
    with pytest.raises(ValueError, match=r"part 0 of 2 is complete, and this is part 1 of 3; all parts .* remove"):
        memload.write_part(tmp_path / "s", arrays(), part=1, parts=3)
    with pytest.raises(ValueError, match="parts=3, but the parts were written as 2 parts"):
        memload.seal(tmp_path / "s", parts=3)
    parts = tmp_path / "s" / ".parts"
    other = (parts / "00000-of-00002.json").read_text().replace('"parts": 2', '"parts": 3')
    (parts / "00000-of-00003.json").write_text(other)
    with pytest.raises(ValueError, match="part 0 of 2 and part 0 of 3 are here"):
        memload.seal(tmp_path / "s")


@pytest.mark.parametrize(
    ("part", "parts", "message"),
    [
        (2, 2, "part must be from 0 to 1"),
        (-1, 2, "got -1"),
        (0, 0, "at least 1"),
        (-1, None, "0 or more"),
        (True, 2, "an int"),
    ],
)
def test_a_part_that_is_not_one_of_them_is_refused(tmp_path, part, parts, message):
    with pytest.raises((ValueError, TypeError), match=message):
        memload.write_part(tmp_path / "s", arrays(), part=part, parts=parts)
    assert not (tmp_path / "s").exists()


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="no parts of a set are in it"):
        write_halves(tmp_path / "s")
    with pytest.raises(FileNotFoundError, match="no parts of a set are here"):
        memload.seal(tmp_path / "s")
    assert files_of(tmp_path / "s") == ["mine.txt"]


def test_a_file_is_not_sealed(tmp_path):
    (tmp_path / "s").write_text("mine")
    for path in (tmp_path / "s", tmp_path / "s" / "inside"):
        with pytest.raises(FileNotFoundError, match="no parts of a set are here"):
            memload.seal(path)


def test_the_directory_that_may_not_be_written_to_is_named(tmp_path, monkeypatch):
    write_halves(tmp_path / "s", [0])
    open_file = os.open

    def refusing(path, flags, *mode, **options):
        if flags & os.O_EXCL:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_file(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(PermissionError, match=r"may not write to .*/s/\.parts;"):
        write_halves(tmp_path / "s", [1])


def test_parts_without_rows_agree_with_all_but_make_no_set_alone(tmp_path):
    memload.write_part(tmp_path / "s", [], part=1, parts=2)
    memload.write_part(tmp_path / "s", arrays(0, 0), part=0, parts=2)
    with pytest.raises(ValueError, match="no part has a row"):
        memload.seal(tmp_path / "s")
    memload.write_part(tmp_path / "s", arrays(), part=0, parts=2)
    memload.seal(tmp_path / "s")
    check_sealed(tmp_path / "s")


@pytest.mark.parametrize("damage", ["missing", "cut", "header"])
def test_a_damaged_shard_is_refused_and_its_part_can_be_written_again(tmp_path, damage):
    write_halves(tmp_path / "s")
    shard = next((tmp_path / "s").glob("shard-00001-*"))
    if damage == "missing":
        shard.unlink()
    elif damage == "cut":
        os.truncate(shard, 100)
    else:
        shard.write_bytes(b"\xff" * shard.stat().st_size)
    with pytest.raises(memload.ShardFormatError, match="shard-00001"):
        memload.seal(tmp_path / "s")
    write_halves(tmp_path / "s", [1])
    memload.seal(tmp_path / "s")
    check_sealed(tmp_path / "s")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"part": 1, "parts": 2}', b"\xff"])
def test_a_damaged_index_of_a_part_is_refused_and_the_part_can_be_written_again(tmp_path, content):
    write_halves(tmp_path / "s")
    (tmp_path / "s" / ".parts" / "00001-of-00002.json").write_bytes(content)
    with pytest.raises(memload.ShardFormatError, match=r"00001-of-00002\.json"):
        memload.seal(tmp_path / "s")
    write_halves(tmp_path / "s", [1])
    memload.seal(tmp_path / "s")
    check_sealed(tmp_path / "s")


# Written again, and interrupted


def test_a_complete_part_is_replaced_as_a_whole(tmp_path):
    memload.write_part(tmp_path / "s", {"x": torch.full((5,), 99)}, part=0, parts=1, shard_bytes=8)
    assert len(list((tmp_path / "s").glob("shard*"))) == 5
    memload.write_part(tmp_path / "s", arrays(), part=0, parts=1)
    assert len(list((tmp_path / "s").glob("shard*"))) == 1
    memload.seal(tmp_path / "s")
    check_sealed(tmp_path / "s")


def test_a_complete_part_of_the_same_files_is_left_as_it_is(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.arange(10))
    ds = memload.open(tmp_path / "x.npy", field="x")
    write = lambda **options: memload.write_part(tmp_path / "s", ds, part=0, parts=1, **options)  # noqa: E731
    first = write()
    before = files_of(tmp_path / "s")
    assert write() == first
    assert files_of(tmp_path / "s") == before
    assert "part 0 of 1 is complete, of the same rows and options; left as it is" in capsys.readouterr().err
    write(resume=False)
    assert files_of(tmp_path / "s") != before
    before = files_of(tmp_path / "s")
    np.save(tmp_path / "x.npy", np.arange(11))
    ds = memload.open(tmp_path / "x.npy", field="x")
    assert write().rows == 11
    assert files_of(tmp_path / "s") != before


class Steps:
    """Counts what reaches the disk, and kills the process at one of these steps: before it, or right after it."""

    def __init__(self, monkeypatch, at, after):
        self.count, self.at, self.after = 0, at, after
        for owner, name in (
            (os, "fsync"),
            (Path, "rename"),
            (Path, "unlink"),
            (Path, "mkdir"),
            (shutil, "rmtree"),
            (os, "open"),
        ):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function):
        def counted(*args, **options):
            self.count += 1
            if self.count == self.at and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            found = function(*args, **options)
            if self.count >= self.at and self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return counted


def killed_at_every_step(monkeypatch, prepare, act, check):
    """Does something in a fork that is killed at its first step, at its second, ..., until it comes to its end."""
    for after in (False, True):
        for at in range(1, 200):
            prepare()

            def body(at=at, after=after):
                Steps(monkeypatch, at, after)
                act()

            if in_fork(body) == 99:
                break
            check()
        assert 5 < at < 199


def test_a_part_that_is_killed_at_any_step_never_opens_and_is_written_again(tmp_path, monkeypatch):
    path = tmp_path / "s"

    def prepare():
        shutil.rmtree(path, ignore_errors=True)
        write_halves(path, [0])

    def check():
        for refused in (lambda: memload.open(path), lambda: memload.open(path / ".parts")):
            with pytest.raises(memload.FormatError):
                refused()
        write_halves(path, [1])
        assert len(files_of(path)) == 4  # two shards and two indices of parts: nothing is left of the killed writer
        memload.seal(path)
        check_sealed(path)

    killed_at_every_step(monkeypatch, prepare, lambda: write_halves(path, [1]), check)


def test_a_part_that_is_killed_while_it_is_written_again_keeps_the_old_one_or_has_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "s"

    def prepare():
        shutil.rmtree(path, ignore_errors=True)
        write_halves(path)

    def check():
        memload.seal(path)
        check_sealed(path)

    killed_at_every_step(monkeypatch, prepare, lambda: write_halves(path, [1]), check)


def test_a_sealing_that_is_killed_at_any_step_is_ended_by_the_next(tmp_path, monkeypatch):
    path, ready = tmp_path / "s", tmp_path / "ready"
    write_halves(ready)

    def prepare():
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(ready, path)

    def check():
        if (path / "index.json").exists():
            assert len(memload.open(path)) == ROWS
        else:
            with pytest.raises(memload.FormatError):
                memload.open(path)
            if (path / ".sealing").exists():
                with pytest.raises(memload.WriterBusyError, match=r"is being sealed; .* memload\.seal ends it"):
                    write_halves(path, [1])
        memload.seal(path)
        check_sealed(path)

    killed_at_every_step(monkeypatch, prepare, lambda: memload.seal(path), check)


def test_an_exception_in_the_rows_leaves_the_other_parts_alone(tmp_path):
    write_halves(tmp_path / "s", [0])
    before = files_of(tmp_path / "s")

    def rows():
        yield {"x": 1, "image": torch.zeros(3, 4)}
        raise RuntimeError("a broken file")

    with pytest.raises(RuntimeError, match="a broken file"):
        memload.write_part(tmp_path / "s", rows(), part=1, parts=2)
    assert files_of(tmp_path / "s") == before


@pytest.mark.parametrize("made_before", [False, True])
def test_a_first_part_that_fails_leaves_no_directory_that_it_made(tmp_path, made_before):
    if made_before:
        (tmp_path / "s").mkdir()
    with pytest.raises(TypeError, match="row 1 is a str"):
        memload.write_part(tmp_path / "s", [{"x": 1}, "no row"], part=0, parts=2)
    assert list(tmp_path.rglob("*")) == ([tmp_path / "s"] if made_before else [])


def test_a_writer_that_fails_does_not_disturb_one_that_begins(tmp_path, monkeypatch):
    begin, failed = PartsFolder.begin, []

    def begin_before_another_fails(folder):
        is_new = begin(folder)
        if not failed:
            failed.append(folder)
            with pytest.raises(TypeError, match="row 0 is a str"):
                memload.write_part(tmp_path / "s", ["no row"], part=1, parts=2)
            folder.leave(is_new)  # as the other would have done, had it been the first
        return is_new

    monkeypatch.setattr(PartsFolder, "begin", begin_before_another_fails)
    assert memload.write_part(tmp_path / "s", arrays(), part=0, parts=2).rows == ROWS


@pytest.mark.parametrize(("made", "refusal"), [(".parts", None), (".sealing", "this set is being sealed")])
def test_a_writer_that_begins_while_another_begins_or_seals(tmp_path, monkeypatch, made, refusal):
    (tmp_path / "s").mkdir()
    exists = Path.exists

    def before_another(path, **options):
        there = exists(path, **options)
        if path.name == ".parts":
            (path.parent / made).mkdir(exist_ok=True)
        return there

    monkeypatch.setattr(Path, "exists", before_another)
    with contextlib.nullcontext() if refusal is None else pytest.raises(memload.WriterBusyError, match=refusal):
        memload.write_part(tmp_path / "s", arrays(), part=0, parts=1)


# A .parts that a writer makes beside a sealing, between its two looks for one


@pytest.fixture
def beside_a_sealing(tmp_path):
    write_halves(tmp_path / "s")
    (tmp_path / "s" / ".parts").rename(tmp_path / "s" / ".sealing")
    (tmp_path / "s" / ".parts").mkdir()
    return tmp_path / "s"


@pytest.mark.parametrize("left", [[], ["00001-of-00002.0123abcd"]])
def test_a_folder_made_beside_a_sealing_hides_no_part(beside_a_sealing, left):
    for name in left:
        (beside_a_sealing / ".parts" / name).touch()
    memload.seal(beside_a_sealing)
    check_sealed(beside_a_sealing)


@pytest.mark.parametrize("left", [[], ["00001-of-00002.0123abcd"]])
def test_a_sealing_that_fails_beside_such_a_folder_lets_writers_go_on(beside_a_sealing, left):
    for name in left:
        (beside_a_sealing / ".parts" / name).touch()
    shard = next(beside_a_sealing.glob("shard-00001-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(memload.ShardFormatError, match=shard.name):
        memload.seal(beside_a_sealing)
    assert not (beside_a_sealing / ".sealing").exists()
    write_halves(beside_a_sealing, [1])
    memload.seal(beside_a_sealing)
    check_sealed(beside_a_sealing)


def test_a_writer_does_not_begin_in_such_a_folder(beside_a_sealing, monkeypatch):
    monkeypatch.setattr(PartsFolder, "begin", lambda _: False)  # its looks were too early
    with pytest.raises(memload.WriterBusyError, match="is being sealed"):
        write_halves(beside_a_sealing, [1])
    memload.seal(beside_a_sealing)
    check_sealed(beside_a_sealing)


def test_a_writer_that_begins_in_such_a_folder_as_the_set_is_sealed_is_told_so(beside_a_sealing, monkeypatch):
    memload.seal(beside_a_sealing)
    (beside_a_sealing / ".parts").mkdir()
    monkeypatch.setattr(PartsFolder, "begin", lambda _: False)
    with pytest.raises(FileExistsError, match="this set is complete"):
        write_halves(beside_a_sealing, [1])
    check_sealed(beside_a_sealing)


def before(monkeypatch, owner, name, which, happens):
    """Have something happen before the first call of a function whose first argument is `which`."""
    real, left = getattr(owner, name), [happens]

    def call(first, *args, **options):
        if left and which(first):
            left.pop()()
        return real(first, *args, **options)

    monkeypatch.setattr(owner, name, call)


def is_named(name):
    return lambda path: Path(path).name == name


@pytest.mark.parametrize(("moved", "happens"), [("00001-of-00002.0123abcd", Path.unlink), (".sealing", Path.touch)])
def test_a_sealing_that_fails_lets_writers_go_on_while_a_ticket_comes_or_goes(
    beside_a_sealing, monkeypatch, moved, happens
):
    ticket = beside_a_sealing / ".parts" / "00001-of-00002.0123abcd"
    if happens is Path.unlink:
        ticket.touch()
    shard = next(beside_a_sealing.glob("shard-00001-*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    before(monkeypatch, Path, "rename", is_named(moved), lambda: happens(ticket))
    with pytest.raises(memload.ShardFormatError, match=shard.name):
        memload.seal(beside_a_sealing)
    write_halves(beside_a_sealing, [1])
    memload.seal(beside_a_sealing)
    check_sealed(beside_a_sealing)


def test_a_folder_made_between_two_looks_hides_no_part(beside_a_sealing, monkeypatch):
    parts, sealing = beside_a_sealing / ".parts", beside_a_sealing / ".sealing"
    sealing.rename(parts)

    def claim():
        parts.rename(sealing)
        parts.mkdir()
        (parts / "00001-of-00002.0123abcd").touch()

    before(monkeypatch, Path, "iterdir", is_named(".parts"), claim)
    memload.seal(beside_a_sealing)
    check_sealed(beside_a_sealing)


@pytest.mark.parametrize(
    ("replaces", "claims", "at"), [(False, 0, "check"), (True, 0, "check"), (True, 1, "publish"), (True, 2, "publish")]
)
def test_a_sealing_goes_on_after_another_one_has_failed(tmp_path, monkeypatch, replaces, claims, at):
    write_halves(tmp_path / "s")

    def fail():
        PartsFolder(tmp_path / "s").release()
        if replaces:
            write_halves(tmp_path / "s", [1], resume=False)
        for _ in range(claims):  # by others, so that an index of the replaced part finds its place again
            PartsFolder(tmp_path / "s").claim()

    before(monkeypatch, PartsFolder, at, lambda _: True, fail)
    memload.seal(tmp_path / "s")
    check_sealed(tmp_path / "s")


def test_a_sealing_that_fails_while_a_writer_begins_refuses_it_no_place(tmp_path, monkeypatch):
    write_halves(tmp_path / "s")
    folder, looks = PartsFolder(tmp_path / "s"), []
    look = PartsFolder.check_open

    def look_and_claim(self):
        if looks == [1]:
            folder.release()
        look(self)
        looks.append(1)
        if looks == [1]:
            folder.claim()

    monkeypatch.setattr(PartsFolder, "check_open", look_and_claim)
    write_halves(tmp_path / "s", [1], resume=False)
    memload.seal(tmp_path / "s")
    check_sealed(tmp_path / "s")


def test_a_sealing_that_begins_while_a_writer_makes_the_folder_is_what_the_writer_is_told(tmp_path, monkeypatch):
    write_halves(tmp_path / "s")
    mkdir = os.mkdir

    def make(path, *args, **options):
        try:
            mkdir(path, *args, **options)
        except FileExistsError:
            PartsFolder(tmp_path / "s").claim()
            raise

    monkeypatch.setattr(os, "mkdir", make)
    with pytest.raises(memload.WriterBusyError, match="is being sealed"):
        write_halves(tmp_path / "s", [1], resume=False)
    memload.seal(tmp_path / "s")
    check_sealed(tmp_path / "s")


def test_a_writer_that_has_not_locked_its_ticket_yet_is_not_dead(tmp_path, monkeypatch):
    write_halves(tmp_path / "s", [0])

    def begin_another():
        memload.write_part(tmp_path / "s", {name: rows[:5] for name, rows in arrays().items()}, part=1, parts=2)

    before(monkeypatch, fcntl, "flock", lambda _: True, begin_another)
    assert memload.write_part(tmp_path / "s", arrays(12), part=1, parts=2).rows == 12
    memload.seal(tmp_path / "s")
    check_sealed(tmp_path / "s")


@pytest.mark.parametrize("is_sealed", [False, True])
def test_an_interrupt_as_soon_as_a_part_is_complete_removes_no_shard_of_it(tmp_path, monkeypatch, is_sealed):
    write_halves(tmp_path / "s")

    def interrupt():
        if is_sealed:
            memload.seal(tmp_path / "s")
        raise KeyboardInterrupt

    before(monkeypatch, attempts, "fsync_directory", is_named(".parts"), interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_halves(tmp_path / "s", [1], resume=False)
    memload.seal(tmp_path / "s")
    check_sealed(tmp_path / "s")


# Two at once


def one_by_one(start, stop, at, then):
    """Rows of `arrays`, before one of which something else happens."""
    for k in range(start, stop):
        if k == at:
            then()
        yield {name: values[0] for name, values in arrays(k, k + 1).items()}


def test_of_two_writers_of_a_part_the_last_one_to_complete_counts(tmp_path):
    path = tmp_path / "s"
    write_halves(path, [0])
    other = {"x": torch.full((2,), 99), "image": torch.zeros(2, 3, 4)}
    rows = one_by_one(12, 24, 20, lambda: memload.write_part(path, other, part=1, parts=2))
    assert memload.write_part(path, rows, part=1, parts=2, shard_bytes=200).rows == 12
    assert len(files_of(path)) == 2 + 1 + 4  # nothing is left of the other
    memload.seal(path)
    check_sealed(path)


def test_a_writer_that_is_late_does_not_disturb_a_set_that_was_sealed_meanwhile(tmp_path, capsys):
    path = tmp_path / "s"
    write_halves(path)
    other = one_by_one(12, 24, 20, lambda: memload.seal(path))
    assert memload.write_part(path, other, part=1, parts=2, shard_bytes=200).rows == 12
    assert "sealed meanwhile, with part 1 of 2 by another writer" in capsys.readouterr().err
    check_sealed(path)


def test_a_late_writer_that_is_killed_leaves_what_the_next_sealing_removes(tmp_path):
    path = tmp_path / "s"
    write_halves(path)

    def late():
        def seal_and_die():
            memload.seal(path)
            (path / "shard-00001-00000000-00000.safetensors").write_bytes(b"what it wrote after that")
            os.kill(os.getpid(), signal.SIGKILL)

        memload.write_part(path, one_by_one(12, 24, 20, seal_and_die), part=1, parts=2, shard_bytes=200)

    assert in_fork(late) == -signal.SIGKILL
    assert len(memload.open(path)) == ROWS
    memload.seal(path)
    check_sealed(path)


def refused_lock(*_):
    raise OSError(errno.ENOLCK, "No locks available")


def test_without_locks_what_killed_writers_left_is_removed_by_the_sealing(tmp_path, monkeypatch):
    path = tmp_path / "s"
    monkeypatch.setattr(fcntl, "flock", refused_lock)

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    rows = lambda: one_by_one(12, 24, 20, die)  # noqa: E731
    assert in_fork(lambda: memload.write_part(path, rows(), part=1, parts=2, shard_bytes=200)) == -signal.SIGKILL
    write_halves(path)
    left = files_of(path)
    assert len(left) > 4
    memload.seal(path)
    check_sealed(path)


def test_a_writer_that_another_machine_takes_for_dead_gives_way(tmp_path, monkeypatch):
    path = tmp_path / "s"
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # locks that reach only this far
    write_halves(path, [0])
    rows = one_by_one(12, 24, 20, lambda: write_halves(path, [1]))
    assert memload.write_part(path, rows, part=1, parts=2, shard_bytes=200).shards == 1  # those of the other
    assert len(files_of(path)) == 4
    memload.seal(path)
    check_sealed(path)


def test_a_writer_that_was_taken_for_dead_says_so_if_the_other_is_not_done(tmp_path, monkeypatch):
    path = tmp_path / "s"
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    taken = []

    def begin_another():
        taken.append(PartsFolder(path).attempt(PartNumber(1, 2)))

    with pytest.raises(memload.WriterBusyError, match="another writer of part 1 of 2 took this one for dead"):
        memload.write_part(path, one_by_one(12, 24, 20, begin_another), part=1, parts=2, shard_bytes=200)
    taken[0].discard()
    assert files_of(path) == []


def test_a_folder_that_another_writer_makes_meanwhile_is_not_taken_for_other_content(tmp_path, monkeypatch):
    path, look = tmp_path / "s", Path.iterdir

    def makes_it_behind_the_look(self):
        if self == path and not path.exists():
            path.mkdir()
            raise FileNotFoundError(path)
        return look(self)

    monkeypatch.setattr(Path, "iterdir", makes_it_behind_the_look)
    memload.write_part(path, arrays(), part=0, parts=1)
    memload.seal(path)
    check_sealed(path)


def test_many_processes_write_all_parts_and_seal_at_once(tmp_path):
    context = multiprocessing.get_context("forkserver")
    all_parts = {
        part: {name: rows.numpy() for name, rows in arrays(part * 3, part * 3 + 3).items()} for part in range(8)
    }
    orders = [dict(random.Random(seed).sample(sorted(all_parts.items()), 8)) for seed in range(4)]
    workers = [context.Process(target=write_parts_and_seal, args=(tmp_path / "s", parts, 8)) for parts in orders]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    memload.seal(tmp_path / "s")
    check_sealed(tmp_path / "s")


def test_a_fork_of_a_writer_neither_completes_nor_removes_its_part(tmp_path):
    path = tmp_path / "s"

    def fork():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    memload.write_part(path, one_by_one(0, ROWS, 20, fork), part=0, parts=1)
    memload.seal(path)
    check_sealed(path)


# The command


def test_the_command_divides_the_rows_and_seals(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.arange(40).reshape(10, 4))
    path, source = str(tmp_path / "s"), str(tmp_path / "x.npy")
    options = ["--rows", "1:", "--scale", "1/2"]
    for part in (2, 0, 3, 1):
        assert main(["write", source, path, "--part", f"{part}/4", *options]) == 0
    assert "part 1 of 4: 2 rows in 1 shard" in capsys.readouterr().out
    assert main(["seal", path]) == 0
    assert "9 rows" in capsys.readouterr().out
    alone = memload.write(tmp_path / "alone", memload.open(source), rows=range(1, 10), scale=0.5)
    assert all_rows(memload.open(path)) == all_rows(alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--part", "1"], "expected PART/PARTS, counted from 0"),
        (["--part", "2/2"], "part must be from 0 to 1"),
        (["--part", "1/3"], "part 0 of 2 is complete, and this is part 1 of 3"),
        (["--part", "1/2", "--append"], "not with --append"),
        (["--part", "1/2", "--images", "photos"], "not with --images"),
        (["--part", "1/2", "--rows", "0:9"], "part 1 of 2 was written with another source or rows than part 0 of 2"),
    ],
)
def test_the_command_refuses_parts_of_other_rows(tmp_path, capsys, options, message):
    np.save(tmp_path / "x.npy", np.arange(10))
    assert main(["write", str(tmp_path / "x.npy"), str(tmp_path / "s"), "--part", "0/2"]) == 0
    assert main(["write", str(tmp_path / "x.npy"), str(tmp_path / "s"), *options]) == 2
    assert message in capsys.readouterr().err
    assert main(["seal", str(tmp_path / "s")]) == 2
    assert "1 of 2 parts are missing: part 1" in capsys.readouterr().err
    assert staging.being_written(tmp_path / "s").exists() is False

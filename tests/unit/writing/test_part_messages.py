"""What is said where writers were killed, and then something else is done at the same path or address."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from obstore.store import LocalStore

import memload
from memload.formats.shards.staging import unfinished_of
from memload.writing.parts import parts_at

WAITING = "parts of a set are here, which `memload seal`, or memload.seal, makes one set of once all are written"
OF_JOB = "parts of a job of Ray are here, which seals them itself; if it was killed, remove them"
SEALING = "being sealed.*if that was interrupted, memload.seal ends it"

pytestmark = pytest.mark.usefixtures("uploads")


@pytest.fixture(params=["folder", "store"])
def place(request, tmp_path):
    """Where sets are written: a folder, or a store."""
    return tmp_path / "set" if request.param == "folder" else LocalStore(tmp_path / "set", mkdir=True)


def write(place, part, parts=2):
    return memload.write_part(place, {"x": torch.arange(5)}, part=part, parts=parts)


def killed(act):
    """Do something in a forked process, which does not end by itself."""
    child = os.fork()
    if not child:
        try:
            act()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def dying(count):
    for k in range(count):
        yield {"x": k}
    os.kill(os.getpid(), signal.SIGKILL)


def test_parts_that_wait_are_told_alike_whatever_is_done(place):
    write(place, 0)
    with pytest.raises((memload.ShardFormatError, FileNotFoundError), match=WAITING):
        memload.open(place)
    with pytest.raises((FileExistsError, ValueError), match=WAITING):
        memload.write(place, {"x": torch.arange(5)})
    with pytest.raises(ValueError, match="1 of 2 parts are missing: part 1"):
        memload.seal(place)
    with pytest.raises(
        ValueError, match=r"part 0 of 2 is complete, and this is part 0 of 3; .* same number of parts\. "
    ):
        write(place, 0, 3)
    with pytest.raises(ValueError, match="or all be written without that number"):
        write(place, 0, None)


def test_parts_of_a_job_are_told_alike_whatever_is_done(place):
    parts_at(place, "job-one").reserve()
    with pytest.raises((memload.ShardFormatError, FileNotFoundError), match=OF_JOB):
        memload.open(place)
    for act in (lambda: write(place, 0), lambda: memload.seal(place), lambda: memload.write(place, {"x": [1]})):
        with pytest.raises(FileExistsError, match="job of Ray"):
            act()


def test_the_number_of_parts_that_is_missing_is_proposed(place):
    for part in range(3):
        write(place, part, None)
    with pytest.raises(ValueError, match="the last one that is here is part 2; give their number: parts=3, if that"):
        memload.seal(place)
    assert len(memload.seal(place, parts=3)) == 15


def test_a_sealing_that_was_interrupted_is_told_whatever_is_done(tmp_path):
    path = tmp_path / "set"
    for part in (0, 1):
        write(path, part)
    (path / ".parts").rename(path / ".sealing")
    for act in (lambda: memload.open(path), lambda: memload.write(path, {"x": [1]}), lambda: write(path, 0)):
        with pytest.raises((memload.ShardFormatError, FileExistsError, memload.WriterBusyError), match=SEALING):
            act()
    assert len(memload.seal(path)) == 10


def test_a_part_that_is_written_again_says_why(place, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.arange(10.0).reshape(5, 2))
    ds = memload.open(tmp_path / "x.npy")
    memload.write_part(place, ds, part=0, parts=1)
    memload.write_part(place, ds, part=0, parts=1, rows=range(3), scale=2)
    assert "part 0 of 1 is complete, but with another scale, source; writing it again" in capsys.readouterr().err
    index = next((tmp_path / "set" / ".parts").glob("*.json"))
    index.write_bytes(b"{}")
    memload.write_part(place, ds, part=0, parts=1)
    assert "not the index of a part" in (said := capsys.readouterr().err)
    assert "writing part 0 of 1 again" in said
    memload.write_part(place, ds, part=0, parts=1)
    assert "part 0 of 1 is complete, of the same rows and options; left as it is" in capsys.readouterr().err


def test_options_that_differ_are_shown(tmp_path):
    rows = {"x": torch.ones(3)}
    memload.write_part(tmp_path / "set", rows, part=0, parts=2, scale=2)
    with pytest.raises(ValueError, match=r"another scale than part 0 of 2: \{'x': '3.0'\}, not \{'x': '2.0'\}"):
        memload.write_part(tmp_path / "set", rows, part=1, parts=2, scale=3)


def interrupted(tmp_path):
    """A write of ten rows, of which some are complete."""
    np.save(tmp_path / "x.npy", np.arange(10))
    ds = memload.open(tmp_path / "x.npy")

    def write_some():
        add = memload.writing.growing_set.GrowingSet.add

        def add_and_die(self, shard):
            add(self, shard)
            if self.rows >= 4:
                os.kill(os.getpid(), signal.SIGKILL)

        memload.writing.growing_set.GrowingSet.add = add_and_die
        memload.write(tmp_path / "set", ds, shard_bytes=16)

    killed(write_some)
    return ds


def test_a_write_that_was_interrupted_is_named_where_nothing_is_yet(tmp_path):
    interrupted(tmp_path)
    with pytest.raises(
        FileNotFoundError, match="but an unfinished write; if its writer was killed, the same call goes"
    ):
        memload.open(tmp_path / "set")


@pytest.mark.parametrize("change", ["format", "version"])
def test_a_write_that_an_older_version_left_is_begun_anew_and_says_so(tmp_path, capsys, change):
    ds, path = interrupted(tmp_path), unfinished_of(tmp_path / "set")
    content = json.loads(path.read_text())
    if change == "format":
        del content["plan"]
        said = "cannot go on with: its list of complete shards is damaged, or of another version; starting over"
    else:
        content["memload"], content["plan"]["source"] = "0.0.9", "as it was written then"
        said = (
            f"left 4 rows, but with another source, by memload 0.0.9, and this is {memload.__version__}; starting over"
        )
    path.write_text(json.dumps(content))
    assert len(memload.write(tmp_path / "set", ds, shard_bytes=16)) == 10
    assert said in capsys.readouterr().err


def test_what_is_made_at_the_path_meanwhile_is_told(tmp_path):
    def rows():
        yield {"x": 1}
        write(tmp_path / "set", 0)

    with pytest.raises(FileExistsError, match="something was made there while this set was written, and stays"):
        memload.write(tmp_path / "set", rows())


def test_a_disk_that_fills_up_leaves_no_part_and_the_others_as_they_were(small_disk):
    path, rows = small_disk / "set", {"x": torch.zeros(1, 50_000)}
    memload.write_part(path, rows, part=0, parts=2)
    before = sorted(path.rglob("*"))
    with pytest.raises(memload.DiskSpaceError, match=str(small_disk)):
        memload.write_part(path, ({"x": torch.zeros(50_000)} for _ in range(20)), part=1, parts=2, shard_bytes="400kB")
    assert sorted(path.rglob("*")) == before
    memload.write_part(path, rows, part=1, parts=2)
    assert len(memload.seal(path)) == 2


def test_a_full_temporary_disk_leaves_nothing_in_a_store(small_disk, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    monkeypatch.setattr("memload.formats.remote.upload_buffers.LARGEST", 0)
    (tmp_path / "store").mkdir()
    rows = ({"x": torch.full((300_000,), k, dtype=torch.float32)} for k in range(3))
    with pytest.raises(memload.DiskSpaceError) as raised:
        memload.write_part(LocalStore(tmp_path / "store"), rows, part=0, parts=1, shard_bytes="2MB")
    assert str(small_disk) in str(raised.value)
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []
    assert list(small_disk.iterdir()) == []

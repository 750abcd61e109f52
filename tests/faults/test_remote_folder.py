"""The folder of a cache that a kill or a damage has left: what is wrong goes, all else stays, no byte is wrong."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
from block_sets import cache_of, rows_of_blocks
from programs import run
from waiting import until

import memload
from memload.cli.main import main
from memload.formats.remote import cache_folder
from memload.formats.remote.cache_folder import evicted

X = rows_of_blocks(64)


@pytest.fixture(scope="session")
def sets(tmp_path_factory):
    """Two sets of eight shards each."""
    folder = tmp_path_factory.mktemp("folders")
    for name in ("one", "two"):
        memload.write(folder / name, {"x": X}, shard_bytes=8 << 16, progress=False)
    return folder


def opened(sets, folder, name="one"):
    return memload.open(f"file://{sets / name}", cache=folder, cache_bytes="64MB")


def read(sets, folder, name="one"):
    """Read a set and close it."""
    ds = opened(sets, folder, name)
    got, gone = torch.cat([batch["x"] for batch in memload.FastLoader(ds, 8)]), weakref.ref(cache_of(ds))
    del ds
    until(lambda: gone() is None)
    assert torch.equal(got, X)


MAKES = """
import os, signal, sys
from pathlib import Path
import memload

at = sys.argv[3]
count = 0

def stops(event, arguments):
    global count
    if event == "os.truncate" or (event == "open" and ".new-" in str(arguments[0])):
        count += 1
        if count == int(at):
            print("made", flush=True)
            signal.pause()

sys.addaudithook(stops)
memload.open(f"file://{sys.argv[1]}", cache=sys.argv[2], cache_bytes="64MB")
"""


@pytest.mark.parametrize("step", [2, 3, 6])
def test_a_set_that_a_killed_process_had_begun_to_make_is_removed_and_none_in_the_making(sets, tmp_path, capsys, step):
    folder = tmp_path / "cache"
    read(sets, folder, "two")
    command = [sys.executable, "-c", MAKES, str(sets / "one"), str(folder), str(step)]
    maker = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert maker.stdout.readline() == b"made\n"
    begun = list(folder.glob(".new-*"))
    assert len(begun) == 1
    assert main(["cache", "list", str(folder)]) == 0
    assert "begun" not in capsys.readouterr().out
    assert list(folder.glob(".new-*")) == begun
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    (folder / ".new-mine").mkdir()
    (folder / ".new-mine" / "notes.txt").write_text("mine")
    assert main(["cache", "list", str(folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert (len(listed["entries"]), listed["unfinished"]) == (1, 1)
    assert [path.name for path in (folder / ".new-mine").iterdir()] == ["notes.txt"]
    assert len(list(folder.glob(".new-*"))) == 1
    read(sets, folder)


def _damaged(path):
    path.write_bytes(b"x" * 4096)


def _cut(path):
    path.write_bytes(path.read_bytes()[:5000])


def _removed(path):
    path.unlink()


@pytest.mark.parametrize(
    ("name", "damage"),
    [("blocks", _damaged), ("shard-00003.safetensors", _removed), ("shard-00003.safetensors", _cut)],
)
def test_a_damaged_set_is_fetched_again_and_the_others_stay(sets, tmp_path, capsys, name, damage):
    folder = tmp_path / "cache"
    read(sets, folder)
    (path,) = folder.glob(f"*/{name}")
    read(sets, folder, "two")
    (path.parent / "notes.txt").write_text("mine")
    damage(path)
    two = opened(sets, folder, "two")
    cache_of(two).hold(range(cache_of(two).table.blocks))
    assert cache_of(two).counts.requests == 0
    assert cache_of(two).room.used == sum(file.nbytes for file in cache_of(two).files)
    read(sets, folder)
    damage(path)
    ds = opened(sets, folder)  # while the other set is read
    assert torch.equal(ds[33]["x"], X[33])
    gone = [weakref.ref(cache_of(one)) for one in (ds, two)]
    del ds, two
    until(lambda: not any(one() for one in gone))
    damage(path)
    assert main(["cache", "rm", str(folder), "--all"]) == 0
    assert [one.name for one in folder.rglob("*") if one.is_file() and one.name != "room"] == ["notes.txt"]


def test_the_bytes_of_a_damaged_set_count_no_more_while_another_one_is_read(sets, tmp_path):
    folder = tmp_path / "cache"
    two = opened(sets, folder, "two")
    read(sets, folder)
    (path,) = [path for path in folder.glob("*/shard-00003*") if path.parent != cache_of(two)._entry.path]
    path.unlink()
    one = opened(sets, folder)
    assert cache_of(one).room.used == 0
    assert torch.equal(one[33]["x"], X[33])


def test_the_command_names_a_damaged_set(sets, tmp_path, capsys):
    folder = tmp_path / "cache"
    read(sets, folder)
    read(sets, folder, "two")
    damaged = next(iter(folder.glob("*/blocks")))
    _damaged(damaged)
    assert main(["cache", "list", str(folder)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "which was damaged" in line]
    assert line.startswith(f"{damaged.parent.name}       0 B of ")


def test_a_set_that_is_damaged_while_it_is_read_is_left_to_its_readers(sets, tmp_path, capsys):
    folder = tmp_path / "cache"
    ds = opened(sets, folder)
    assert torch.equal(ds[33]["x"], X[33])
    _removed(next(iter(folder.glob("*/shard-00007*"))))
    with pytest.raises(memload.ShardReadError, match=r"a mirror file of a shard of .* is missing there"):
        memload.open(f"file://{sets / 'one'}", cache=folder, cache_bytes="65MB")
    assert torch.equal(ds[33]["x"], X[33])


def test_a_room_that_was_removed_is_made_again_unless_processes_read_through_it(sets, tmp_path, capsys):
    folder = tmp_path / "cache"
    read(sets, folder)
    (folder / "room").unlink()
    ds = opened(sets, folder)
    cache_of(ds).hold(range(cache_of(ds).table.blocks))
    assert cache_of(ds).counts.requests == 0
    assert cache_of(ds).room.used == cache_of(ds).nbytes
    (folder / "room").unlink()
    with pytest.raises(FileNotFoundError, match="room: the file was removed while processes read"):
        opened(sets, folder, "two")
    assert main(["cache", "list", str(folder)]) == 2
    assert not (folder / "room").exists()


@pytest.mark.parametrize("has_read", [False, True])
def test_a_folder_that_is_removed_and_made_anew_gives_nobody_wrong_bytes(sets, tmp_path, has_read):
    """Who had the old one open would write into the new mirror files, and read its own, or punch holes into them."""
    folder = tmp_path / "cache"
    ds = opened(sets, folder)
    assert not has_read or torch.equal(ds[0]["x"], X[0])
    shutil.rmtree(folder)
    anew = memload.open(f"file://{sets / 'one'}", cache=folder, cache_bytes="65MB")
    assert torch.equal(torch.cat([batch["x"] for batch in memload.FastLoader(anew, 8)]), X)
    cache = cache_of(ds)
    if has_read:
        assert torch.equal(ds[0]["x"], X[0])
        with pytest.raises(FileNotFoundError, match=r"removed or replaced .* open the set again.*shard-0000[1-7]"):
            cache.hold(np.arange(cache.table.blocks))
        evicted(cache.table, np.arange(cache.table.blocks), cache.mirrors.place)
    with pytest.raises(FileNotFoundError, match="removed or replaced"):
        ds[63]
    new = cache_of(anew)
    new.hold(np.arange(new.table.blocks))
    assert torch.equal(torch.cat([batch["x"] for batch in memload.FastLoader(anew, 8)]), X)
    assert new.counts.requests == len(new.files)


def test_a_set_whose_folder_was_removed_is_opened_again_beside_the_dataset_that_reads_it(sets, tmp_path):
    ds = opened(sets, tmp_path / "cache")
    assert torch.equal(ds[0]["x"], X[0])
    shutil.rmtree(tmp_path / "cache")
    again = opened(sets, tmp_path / "cache")
    assert torch.equal(torch.stack([row["x"] for row in again]), X)
    assert torch.equal(ds[0]["x"], X[0])


@pytest.mark.parametrize("what", ["blocks", "."])
@pytest.mark.parametrize("is_read", [False, True])
def test_the_bytes_of_a_set_that_somebody_removed_do_not_count(sets, tmp_path, what, is_read):
    """Else the others that have the cache open lack room, until all of them have closed it."""
    folder = tmp_path / "cache"
    one, two = opened(sets, folder), opened(sets, folder, "two")
    blocks, cache, entry = np.arange(cache_of(one).table.blocks), cache_of(two), cache_of(one)._entry
    cache_of(one).hold(blocks)
    cache_of(one).let_go(blocks)
    gone = weakref.ref(cache_of(one))
    if not is_read:
        del one
        until(lambda: gone() is None)
    path = entry.path / what
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    cache.limit = cache.nbytes
    cache.hold(blocks)
    assert cache.room.used == cache.nbytes
    if is_read:
        evicted(gone().table, blocks, gone().mirrors.place)
        assert cache.room.used == cache.nbytes


def test_whoever_counts_reads_the_sets_without_the_lock_that_the_end_of_a_pass_takes(sets, tmp_path, monkeypatch):
    """Python may collect a pass wherever objects are made, and the thread that has the lock would wait for itself."""
    one, two = opened(sets, tmp_path / "cache"), opened(sets, tmp_path / "cache", "two")
    blocks, cache, ended = np.arange(1), cache_of(one), []
    set_at = cache_folder._set_at

    def set_at_as_a_pass_ends(path):
        ending = threading.Thread(target=cache.let_go, args=[blocks], daemon=True)
        ending.start()
        ending.join(10)
        ended.append(not ending.is_alive())
        return set_at(path)

    monkeypatch.setattr(cache_folder, "_set_at", set_at_as_a_pass_ends)
    cache_of(two).folder.make_room(1, cache_of(two)._entry)
    assert ended
    assert all(ended)


def test_a_set_that_was_opened_since_the_sets_were_read_counts(sets, tmp_path):
    ds = opened(sets, tmp_path / "cache")
    cache = cache_of(ds)
    cache.hold(np.arange(3))
    cache.room.set_used(0)
    cache.folder._count([])
    assert cache.room.used == cache.bytes_of(np.arange(3))


def test_a_folder_that_was_made_anew_is_emptied_by_nobody_who_had_the_old_one(sets, tmp_path):
    """Their locks are not those of its readers."""
    folder = tmp_path / "cache"
    cache = cache_of(opened(sets, folder))
    shutil.rmtree(folder)
    read(sets, folder, "two")
    assert cache.folder.make_room(1, cache._entry) == 0
    assert cache_of(opened(sets, folder, "two")).room.used > 0


def test_blocks_of_a_folder_that_was_made_anew_are_removed_by_no_table_of_the_old_one(sets, tmp_path):
    folder = tmp_path / "cache"
    cache = cache_of(opened(sets, folder))
    blocks = np.arange(cache.table.blocks)
    cache.hold(blocks)
    cache.let_go(blocks)
    shutil.rmtree(folder)
    ds = memload.open(f"file://{sets / 'one'}", cache=folder, cache_bytes="65MB")
    cache_of(ds).hold(blocks)
    cache._entry.remove_blocks(cache.table, blocks)
    assert torch.equal(torch.stack([row["x"] for row in ds]), X)


@pytest.mark.parametrize("names", [["blocks"], ["blocks", "shard-00003.safetensors"]])
@pytest.mark.parametrize("next_one", ["opens it", "lists it"])
def test_a_table_that_was_removed_while_it_is_read_costs_no_bytes(sets, tmp_path, names, next_one):
    """Whoever opens the set then does not see its readers: it gets files of its own, and nobody empties others'."""
    folder = tmp_path / "cache"
    ds = opened(sets, folder)
    cache = cache_of(ds)
    blocks = np.arange(cache.table.blocks)
    cache.hold(blocks)
    for name in names:
        (cache._entry.path / name).unlink()
    if next_one == "lists it":
        assert main(["cache", "list", str(folder)]) == 0
    other = memload.open(f"file://{sets / 'one'}", cache=folder, cache_bytes="65MB")
    cache_of(other).hold(blocks)
    assert torch.equal(torch.stack([row["x"] for row in ds]), X)
    cache.let_go(blocks)
    evicted(cache.table, blocks, cache.mirrors.place)
    assert torch.equal(torch.stack([row["x"] for row in other]), X)


# A remover takes the lock between a maker's folder and the maker's own lock, and is suspended then.
MAKES_BESIDE_A_REMOVER = """
import fcntl, os, sys
import memload

removers = []

def locks(event, arguments):
    if event == "fcntl.flock" and not removers:
        path = os.readlink(f"/proc/self/fd/{arguments[0]}")
        if ".new-" in path:
            removers.append(os.open(path, os.O_RDONLY))
            fcntl.flock(removers[0], fcntl.LOCK_EX)

sys.addaudithook(locks)
print(len(memload.open(f"file://{sys.argv[1]}", cache=sys.argv[2], cache_bytes="64MB")), len(removers))
"""


def test_a_maker_whose_folder_a_suspended_remover_has_makes_another_one(sets, tmp_path):
    done = run(MAKES_BESIDE_A_REMOVER, str(sets / "one"), str(tmp_path / "cache"))
    assert done.status == 0, done.err
    assert done.out == [f"{len(memload.open(sets / 'one'))} 1"]
    assert len(list((tmp_path / "cache").glob(".new-*"))) == 1

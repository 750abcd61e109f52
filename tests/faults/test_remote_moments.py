"""Processes that open, count, clear or read a shared cache at the same moment: each pauses where it hurts most."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from block_sets import cache_of, closed, rows_of_blocks
from waiting import until

import memload
from memload import _core
from memload.engine.fetched_batches import FetchedBatches
from memload.formats.remote import cache_folder, unfinished
from memload.formats.remote.cache_folder import CachedSet, CacheFolder
from memload.formats.remote.descriptors import Descriptor

X = rows_of_blocks(32)


IS_KILLED = """
import contextlib, os, signal, sys
import numpy as np
import memload

cache = memload.open(sys.argv[1], cache=sys.argv[2], cache_bytes="64MB").fields["x"].column.storages[0].origin
blocks = np.arange(cache.table.blocks)
cache.hold(blocks)
cache.let_go(blocks)
refusing = os.open(os.devnull, os.O_RDWR)
with contextlib.suppress(OSError):
    cache.table.evict(blocks, {number: (refusing, 0) for number in range(len(cache.files))})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="session")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moments") / "set"
    memload.write(folder, {"x": X}, shard_bytes=8 << 16, progress=False)
    return f"file://{folder}"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def opened(url, folder):
    return memload.open(url, cache=folder, cache_bytes="64MB")


def filled(url, folder):
    """Fill a cache with a set, as a process that ends then; return the set."""
    ds = opened(url, folder)
    assert torch.equal(torch.cat([batch["x"] for batch in memload.FastLoader(ds, 8)]), X)
    del ds
    (one,) = closed(folder)
    return one


def test_nobody_claims_room_while_what_is_there_is_counted(url, folder, monkeypatch):
    """What was claimed meanwhile would be missing in the count, and the cache would grow over its room."""
    filled(url, folder)
    early, held, others = [], CacheFolder.held, []

    def held_slowly(self, one):
        others.append(threading.Thread(target=_core.CacheRoom, args=(str(folder / "room"),)))
        others[-1].start()
        others[-1].join(0.2)
        early.append(not others[-1].is_alive())
        return held(self, one)

    monkeypatch.setattr(CacheFolder, "held", held_slowly)
    CacheFolder(folder)
    for other in others:
        other.join()
    assert early == [False]


def test_of_processes_that_open_a_cache_at_once_one_counts(url, folder, monkeypatch):
    """What died may have left too much in the count."""
    one, room, others, found = filled(url, folder), _core.CacheRoom, [], []

    def room_beside_another_opener(path):
        made = room(path)
        if not others:
            others.append(threading.Thread(target=lambda: found.append(CacheFolder(folder))))
            others[0].start()
            others[0].join(0.5)
        return made

    room(str(folder / "room")).set_used(10 * one.nbytes)
    monkeypatch.setattr(cache_folder, "CacheRoom", room_beside_another_opener)
    first = CacheFolder(folder)
    others[0].join()
    assert first.room.used == found[0].room.used == one.nbytes


def test_a_set_that_is_opened_while_it_is_cleared_stays(url, folder, monkeypatch):
    one, others, remove = filled(url, folder), [], CachedSet.remove_blocks

    def removed(self, table, blocks):
        freed = remove(self, table, blocks)
        others.append(self.table(_core.CacheRoom(str(folder / "room"))))  # as another process does
        return freed

    clearing = CacheFolder(folder)
    monkeypatch.setattr(CachedSet, "remove_blocks", removed)
    assert clearing.clear(one) == (one.nbytes, False)
    assert one.has_mirrors
    assert (one.path / "set.json").exists()
    others.clear()
    monkeypatch.undo()
    assert clearing.clear(one) == (0, True)
    assert not one.path.exists()


def test_a_set_that_is_cleared_while_it_is_opened_is_made_anew(url, folder, monkeypatch):
    filled(url, folder)
    table = CachedSet.table

    def cleared_first(self, room):
        monkeypatch.undo()
        assert CacheFolder(folder).clear(self)[1]
        return table(self, room)

    clears = CacheFolder(folder)  # so that the room is in use, and nobody counts
    monkeypatch.setattr(CachedSet, "table", cleared_first)
    ds = opened(url, folder)
    assert torch.equal(torch.cat([batch["x"] for batch in memload.FastLoader(ds, 8)]), X)
    assert len(clears.sets()) == 1


def test_blocks_without_a_known_etag_are_fetched_again_beside_other_processes(url, folder):
    """They may be of another version of the object than the blocks that are fetched from now on."""
    one = filled(url, folder)
    (one.path / "etags").unlink()
    other = one.table(_core.CacheRoom(str(folder / "room")))
    cache = cache_of(opened(url, folder))
    assert not cache.table.was_alone
    cache.hold(np.arange(cache.table.blocks))
    assert cache.counts.fetched_bytes == one.nbytes
    assert other.states(0, other.blocks).tolist() == [2 | 4] * other.blocks


@pytest.mark.parametrize("by", ["who opens", "who waits", "who waits again", "who was interrupted"])
def test_bytes_that_a_killed_process_was_about_to_remove_are_removed(url, folder, by):
    """Else they would lie on the disk beside the room that is counted."""
    waits = None if by == "who opens" else cache_of(opened(url, folder))
    killed = subprocess.run([sys.executable, "-c", IS_KILLED, url, str(folder)])
    assert killed.returncode == -signal.SIGKILL
    (one,) = cache_folder._sets_in(folder)
    assert on_disk(one) >= one.nbytes // 2
    if waits is None:
        waits = cache_of(opened(url, folder))
    else:
        if by == "who waits again":
            waits.table.recover()  # and did not get the lock once more, to ask which blocks are left
        if by == "who was interrupted":
            waits.table.recover()
            assert len(waits.table.left()) == waits.table.blocks  # as it was about to be told
        waits.recover()
    assert on_disk(one) == 0
    assert waits.room.used == 0


def test_processes_that_make_a_cache_at_the_same_moment_share_it(folder, monkeypatch):
    looks = []

    def is_folder_just_before(path, look=cache_folder.is_folder):
        looks.append(look(path))
        if len(looks) == 1:
            _core.CacheRoom(str(folder / "room"))  # as another process makes it
        return looks[-1]

    monkeypatch.setattr(cache_folder, "is_folder", is_folder_just_before)
    assert CacheFolder(folder).sets() == []
    assert looks[0] is False


@pytest.mark.parametrize("does", ["counts", "makes room", "clears"])
def test_a_set_that_another_process_removes_meanwhile_stops_nobody(url, folder, monkeypatch, does):
    one = filled(url, folder)
    opening, removes, sets = CacheFolder(folder), CacheFolder(folder), CacheFolder.sets

    def removed_then(self):
        found = sets(self)
        monkeypatch.undo()
        assert removes.clear(one) == (one.nbytes, True)
        return found

    monkeypatch.setattr(CacheFolder, "sets", removed_then)
    if does == "makes room":
        assert opening.make_room(1, CachedSet(folder, "", 1, ())) == 0
    else:
        (found,) = opening.sets()
        assert (opening.held(found) if does == "counts" else opening.clear(found)) == {
            "counts": 0,
            "clears": (0, True),
        }[does]
    assert list(folder.iterdir()) == [folder / "room"]


def half_removed(one):
    """Leave of the folder of a set what another process made anew while it was removed."""
    for path in one.path.iterdir():
        path.unlink()
    (one.path / "blocks").touch()


def test_a_set_whose_removal_left_a_part_of_its_folder_is_counted_again(url, folder):
    half_removed(filled(url, folder))
    one = filled(url, folder)
    assert CacheFolder(folder).room.used == one.nbytes


def test_a_set_that_is_removed_while_its_table_is_opened_is_made_anew(url, folder, monkeypatch):
    one = filled(url, folder)
    table, removals = CacheFolder.table, [half_removed]

    def table_amid_removal(self, opening):
        if removals and not self.room.used:
            removals.pop()(opening)
        return table(self, opening)

    CacheFolder(folder).clear(one)
    monkeypatch.setattr(CacheFolder, "table", table_amid_removal)
    assert filled(url, folder) == one
    assert not removals
    assert CacheFolder(folder).room.used == one.nbytes


def on_disk(one):
    return sum((one.path / file.name).stat().st_blocks for file in one.files) * 512


def test_a_removal_that_is_interrupted_leaves_the_count_right(url, folder):
    cache, opened_files = cache_of(opened(url, folder)), []
    blocks = np.arange(cache.table.blocks)
    cache.hold(blocks)
    cache.let_go(blocks)
    (one,) = cache_folder._sets_in(folder)

    def place(number):
        if len(opened_files) == 2:
            raise KeyboardInterrupt
        opened_files.append(number)
        return cache.mirrors.place(number)

    with pytest.raises(KeyboardInterrupt):
        cache_folder.evicted(cache.table, blocks, place)
    assert cache.room.used == on_disk(one)
    cache_folder.evicted(cache.table, blocks, cache.mirrors.place)
    assert cache.room.used == on_disk(one) == 0


def test_an_interrupt_of_the_removal_of_many_blocks_of_a_file_is_raised_amid_them():
    table, blocks, looks = _core.BlockTable(_core.CacheRoom(), "", 4096, [5000 * 4096]), np.arange(5000), []
    table.hold(blocks, 5000 * 4096)

    def place(_number):
        looks.append(None)
        if len(looks) == 2:
            raise KeyboardInterrupt
        return mirror, 0

    mirror = Descriptor.of_memory("mirror", 5000 * 4096)
    table.store(0, [0] * 5000, mirror.number, 0, bytes(5000 * 4096), False)
    table.let_go(blocks)
    with pytest.raises(KeyboardInterrupt):
        cache_folder.evicted(table, blocks, place)
    assert 0 < table.room.used < 5000 * 4096


def test_what_the_file_system_does_not_take_back_counts_and_is_tried_again(url, folder):
    cache, blocks = cache_of(opened(url, folder)), np.arange(8)
    cache.hold(blocks)
    cache.let_go(blocks)
    used, before = cache.room.used, descriptors(folder)
    with (
        Path(os.devnull).open("r+b") as refusing,
        pytest.raises(OSError, match=r"take back the bytes of 8 .* try again"),
    ):
        cache_folder.evicted(cache.table, blocks, lambda _number: (Descriptor(os.dup(refusing.fileno())), 0))
    assert cache.room.used == used
    assert descriptors(folder) == before
    missing = cache.begin(blocks)
    assert cache.table.has_to_wait(missing)
    cache.recover()
    assert cache.room.used == 0
    cache.hold(blocks)
    cache.let_go(blocks)
    assert (cache.table.states(0, 8) == (2 | 4)).all()


def descriptors(folder):
    """How many files of a cache, and of nothing, are open; connections of other tests close at any time."""
    open_now = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    return sum(path == os.devnull or path.startswith(str(folder)) for path in open_now)


@pytest.mark.parametrize("call", ["hold", "take_over", "evict"])
def test_an_interrupt_while_another_process_has_the_lock_leaves_nothing_claimed_or_half_removed(
    tmp_path, call, request
):
    """It is raised as soon as the lock is had, before anybody knows what was claimed."""
    handler = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # what runs in the background may have it ignored
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, handler))
    path, blocks = str(tmp_path / "blocks"), np.arange(2)
    kept, mine = (_core.CacheRoom(str(tmp_path / "room")) for _ in range(2))
    other, table = (_core.BlockTable(room, path, 4096, [8192]) for room in (kept, mine))
    if call != "hold":
        (other if call == "take_over" else table).hold(blocks, 8192, False)
    if call == "take_over":
        table.hold(blocks, 8192, False)
    if call == "evict":
        with (tmp_path / "mirror").open("w+b") as mirror:
            table.store(0, [0, 0], mirror.fileno(), 0, bytes(8192), False)
        table.let_go(blocks)
    arguments = {"hold": [8192, False], "take_over": [], "evict": [{0: (-1, 0)}]}[call]
    before, has_lock, main = table.states(0, 2).tolist(), threading.Event(), threading.get_ident()

    def called():
        getattr(table, call)(blocks, *arguments)

    def interrupt():
        with kept.lock():
            has_lock.set()
            until(lambda: sys._current_frames()[main].f_code is called.__code__)
            time.sleep(0.1)
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    has_lock.wait()
    with pytest.raises(KeyboardInterrupt):
        called()
    thread.join()
    after = table.states(0, 2) & (cache_folder.STATE | cache_folder.PINNED)
    assert after.tolist() == {"hold": before, "take_over": [0 | 4] * 2, "evict": [0, 0]}[call]


def test_a_check_of_blocks_that_is_broken_off_lets_others_have_those_that_it_found_bad(url, folder):
    one = filled(url, folder)
    for file in one.files:
        (one.path / file.name).write_bytes(bytes(file.nbytes))
    cache = cache_of(opened(url, folder))
    blocks = np.arange(cache.table.blocks)
    checks = []

    def interrupt_of_the_third(frame, event, _argument):
        if event == "call" and frame.f_code.co_name == "_is_sound":
            checks.append(frame.f_lineno)
            if len(checks) == 3:
                raise KeyboardInterrupt

    sys.settrace(interrupt_of_the_third)
    try:
        with pytest.raises(KeyboardInterrupt):
            cache.begin(blocks)
    finally:
        sys.settrace(None)
    states = cache.table.states(0, len(blocks)) & cache_folder.STATE
    assert states.tolist() == [0, 0] + [cache_folder.PRESENT] * (len(blocks) - 2)
    assert cache.room.used == sum(cache.table.bytes_of(block) for block in blocks[2:].tolist())


def test_who_opens_a_set_without_a_mirror_file_waits_while_another_process_empties_it(url, folder):
    """Both have its table open meanwhile, and neither would empty it while the other one has it."""
    one = filled(url, folder)
    other = CacheFolder(folder)
    (one.path / one.files[2].name).unlink()
    found = []
    thread = threading.Thread(target=lambda: found.append(opened(url, folder)))
    with unfinished.locked(one.path):
        table = one.table(other.room)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        del table
        other._empty(one)
    thread.join()
    assert len(found[0]) == len(X)
    assert other.room.used == 0


OVERLAID = """
import ctypes, os, sys
import torch
import memload

url, lower, folder = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)


def call(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)


call("unshare", 0x20000)
call("mount", b"none", b"/", None, 1 << 18 | 1 << 14, None)
call("mount", b"tmpfs", folder.encode(), b"tmpfs", 0, b"")
for name in ("upper", "work", "seen"):
    os.mkdir(f"{folder}/{name}")
layers = f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work,xino=off"
call("mount", b"overlay", f"{folder}/seen".encode(), b"overlay", 0, layers.encode())
ds = memload.open(url, cache=f"{folder}/seen", cache_bytes="64MB")
rows = torch.cat([batch["x"] for batch in memload.FastLoader(ds, 8)])
print(torch.equal(rows, torch.arange(1, 33, dtype=torch.int32)[:, None].expand_as(rows)))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts overlays")
@pytest.mark.parametrize("step", [2, 1])
def test_a_cache_of_a_container_image_gives_the_rows_that_are_fetched_later(url, folder, tmp_path, step):
    """An overlay copies a file when it is opened to be written; a mapping made before does not see the copy."""
    cache = cache_of(opened(url, folder))
    some = np.arange(0, cache.table.blocks, step)
    cache.hold(some)
    cache.let_go(some)
    mirror = cache.folder.sets()[0].path / cache.files[0].name
    del cache
    with mirror.open("r+b") as file:
        file.seek(2 << 16)  # amid a block that is there
        file.write(b"damaged")
    (tmp_path / "layers").mkdir()
    command = [sys.executable, "-c", OVERLAID, url, str(folder), str(tmp_path / "layers")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"


class Whole:
    """Stands for the table of a cache that can be held as a whole, or the lock of which is not to be had."""

    def __init__(self, error=None):
        self.error, self.table, self.holds = error, self, 0

    def hold_all(self):
        if self.error is not None:
            raise self.error
        self.holds += 1
        return True

    def let_go_all(self):
        self.holds -= 1


def test_a_set_is_let_go_of_where_the_next_one_cannot_be_held():
    first, gatherer = Whole(), SimpleNamespace(rows=32, depth=1, begin=lambda seed: None)
    batches = FetchedBatches(gatherer, None, [first, Whole(TimeoutError())], 8, False)
    with pytest.raises(TimeoutError):
        batches.begin(None)
    assert first.holds == 0

"""The folder of a cache that a kill or a damage has left: what is wrong goes, all else stays, no byte is wrong."""

import json
import signal
import subprocess
import sys
import weakref

import pytest
import torch
from waiting import until

import memload
from memload.cli.main import main

X = torch.arange(1, 65, dtype=torch.int32).repeat(16_384, 1).T.contiguous()  # rows of a block of 64 KiB each


@pytest.fixture(scope="session")
def sets(tmp_path_factory):
    """Two sets of eight shards each."""
    folder = tmp_path_factory.mktemp("folders")
    for name in ("one", "two"):
        memload.write(folder / name, {"x": X}, shard_bytes=8 << 16, progress=False)
    return folder


def opened(sets, folder, name="one"):
    return memload.open(f"file://{sets / name}", cache=folder, cache_bytes="64MB")


def cache_of(ds):
    return ds.fields["x"].column.storages[0].origin


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

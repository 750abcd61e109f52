"""`memload.verify` of a set in a store tells what it tells of the same files in a folder."""

import tempfile
from pathlib import Path

import numpy as np
import obstore
import pytest
import torch
from damage import damaged
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore, MemoryStore
from PIL import Image

import memload
from memload.cli.main import main
from memload.formats import verifying

ROWS = 60


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A set of several shards, with a plain field, a compressed one and a ragged one."""
    path = tmp_path_factory.mktemp("verifying") / "set"
    rows = {
        "x": torch.arange(ROWS * 300, dtype=torch.float32).view(ROWS, 300),
        "zeros": torch.zeros(ROWS, 400, dtype=torch.uint8),
        "tokens": memload.ragged([np.arange(k % 5, dtype=np.int32) for k in range(ROWS)]),
    }
    memload.write(path, rows, codec={"zeros": "zstd"}, shard_bytes=40_000, progress=False)
    assert len(list(path.glob("*.safetensors"))) > 1
    return path


def in_store(folder, store=None):
    """A store with the files of a folder and of those in it."""
    store = MemoryStore() if store is None else store
    for file in folder.rglob("*"):
        if file.is_file():
            obstore.put(store, str(file.relative_to(folder)), file.read_bytes())
    return store


def found_in(path):
    """The bytes that were read, and the places that differ: shard, field and rows."""
    try:
        return memload.verify(path, progress=False), []
    except memload.ChecksumError as error:
        return error.nbytes, [(one.shard, one.field, one.rows) for one in error.damages]


def test_a_sound_set_has_as_many_bytes_as_in_its_folder(sound):
    assert found_in(in_store(sound)) == found_in(sound)
    assert found_in(f"file://{sound}") == found_in(sound)
    assert found_in(sound)[1] == []


@given(st.data())
@settings(max_examples=25)
def test_what_differs_is_told_as_of_a_folder(sound, data):
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "set")
        folder.mkdir()
        for file in sound.iterdir():
            raw = file.read_bytes()
            if file.suffix == ".safetensors":
                raw = data.draw(st.none() | st.just(raw) | damaged(raw))
            if raw is not None:
                (folder / file.name).write_bytes(raw)
        store = LocalStore(folder) if data.draw(st.booleans()) else in_store(folder)
        assert found_in(store) == found_in(folder)


def test_damage_is_named_by_the_address_of_its_shard(sound):
    store = in_store(sound)
    name = "shard-00001.safetensors"
    raw = bytearray(obstore.get(store, name).bytes().to_bytes())
    raw[9] ^= 1  # in the header
    obstore.put(store, name, bytes(raw))
    obstore.delete(store, "shard-00000.safetensors")
    with pytest.raises(memload.ChecksumError) as caught:
        memload.verify(store)
    first, second = str(caught.value).splitlines()[1:]
    assert "shard-00000.safetensors: " in first
    assert name in second
    assert tempfile.gettempdir() not in str(caught.value)


def test_rows_that_several_rows_share_are_verified_too(tmp_path):
    for name in "ab":
        Image.fromarray(np.full((9, 9, 3), ord(name), np.uint8)).save(tmp_path / f"{name}.png")
    table = {"file": ["a.png", "b.png", "a.png"], "score": [1.0, 2.0, 3.0]}
    memload.write_images(tmp_path / "set", tmp_path, table=table, image_column="file", progress=False)
    inner = sorted((tmp_path / "set").glob("rows/*.safetensors"))
    assert found_in(in_store(tmp_path / "set")) == found_in(tmp_path / "set")
    inner[0].write_bytes(inner[0].read_bytes()[:-1] + b"\1")
    nbytes, places = found_in(in_store(tmp_path / "set"))
    assert (nbytes, places) == found_in(tmp_path / "set")
    assert [shard for shard, _, _ in places] == [f"rows/{inner[0].name}"]


def test_pieces_of_a_large_shard_come_in_their_order_and_a_replaced_one_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(verifying, "_PIECE", 1000)
    memload.write(tmp_path / "set", {"x": torch.arange(20_000)}, progress=False)
    store = in_store(tmp_path / "set")
    assert found_in(store) == (160_000, [])

    class Replacing:
        """Has the objects, of which one is replaced once something of it was read."""

        def __init__(self, objects):
            self.objects, self.asked = objects, 0

        def parts(self, wanted):
            self.asked += 1
            if self.asked == 3:
                obstore.put(store, "shard-00000.safetensors", obstore.get(store, "shard-00000.safetensors").bytes())
            return self.objects.parts(wanted)

        def url_of(self, name):
            return self.objects.url_of(name)

    objects = verifying.Address(store).objects()
    (shard,) = verifying.read_index(tmp_path / "set").shards
    with pytest.raises(memload.ShardReadError, match="was replaced while it was verified: try again"):
        verifying._fetch(Replacing(objects), shard, tmp_path / "fetched", verifying.byte_bar("", None, show=False))


def test_what_is_no_set_and_what_is_no_set_of_shards_is_said(sound, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no index\.json there"):
        memload.verify(MemoryStore())
    store = in_store(sound)
    obstore.put(store, "index.json", b"{")
    with pytest.raises(memload.ShardFormatError, match=r"index\.json: not JSON"):
        memload.verify(store)
    obstore.put(store, "recording.json", b"{}")
    with pytest.raises(ValueError, match="a recording in a store: copy it to a folder, and verify that"):
        memload.verify(store)


def test_the_command_verifies_an_address(sound, tmp_path, capsys):
    assert main(["verify", f"file://{sound}", "--quiet"]) == 0
    assert "all checksums agree" in capsys.readouterr().out

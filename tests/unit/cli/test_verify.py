"""`memload verify`: what it tells of damage, and how much of it."""

import json

import numpy as np
import pytest
import torch

import memload
from memload.cli.main import main


def flip(path, offset=-1):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def verified(capsys, path):
    """The status and the JSON of `memload verify`."""
    status = main(["verify", str(path), "--json"])
    return status, json.loads(capsys.readouterr().out)


def shards_of(folder):
    return sorted(folder.glob("*.safetensors"))


def test_json_tells_damaged_rows_by_their_ends_and_their_count(tmp_path, capsys):
    memload.write(tmp_path / "set", {"x": torch.zeros(3000, 4)}, progress=False)
    flip(shards_of(tmp_path / "set")[0])
    status, found = verified(capsys, tmp_path / "set")
    assert status == 1
    assert list(found) == ["path", "agrees", "nbytes", "damages", "damaged_places", "damaged_rows"]
    assert (found["agrees"], found["nbytes"]) == (False, 3000 * 16)
    (damage,) = found["damages"]
    assert (damage["shard"], damage["field"]) == ("shard-00000.safetensors", "x")
    assert damage["rows"] == {"first": 0, "last": 2999, "count": 3000}
    assert (found["damaged_places"], found["damaged_rows"]) == (1, {"x": 3000})


def test_many_places_are_counted_and_the_first_are_listed(tmp_path, capsys):
    memload.write(tmp_path / "set", {"x": torch.arange(240).reshape(120, 2)}, shard_bytes=16, progress=False)
    for shard in shards_of(tmp_path / "set"):
        flip(shard)
    found = verified(capsys, tmp_path / "set")[1]
    assert len(found["damages"]) == 100
    assert (found["damaged_places"], found["damaged_rows"]) == (120, {"x": 120})
    assert main(["verify", str(tmp_path / "set")]) == 1
    said = capsys.readouterr().err
    assert said.count("field 'x'") == 20
    assert said.endswith("and 100 more places\n")
    with pytest.raises(memload.ChecksumError) as caught:
        memload.verify(tmp_path / "set")
    assert (len(caught.value.damages), caught.value.nbytes) == (120, 120 * 16)


def test_rows_that_two_places_share_count_once_and_a_shard_that_is_gone_has_none(tmp_path, capsys):
    rows = memload.ragged([np.arange(k % 3 + 1, dtype=np.float32) for k in range(40)])
    memload.write(tmp_path / "set", {"x": rows}, shard_bytes=200, progress=False)
    first, second, *_ = shards_of(tmp_path / "set")
    first.unlink()
    data = second.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = {name: one for name, one in json.loads(data[8:begin]).items() if name != "__metadata__"}
    assert len(tensors) == 2
    for one in tensors.values():
        flip(second, begin + one["data_offsets"][1] - 1)
    found = verified(capsys, tmp_path / "set")[1]
    assert (found["damages"][0]["shard"], found["damages"][0]["rows"]) == (first.name, None)
    index = json.loads((tmp_path / "set" / "index.json").read_text())
    assert found["damaged_places"] == 3
    assert 0 < found["damaged_rows"]["x"] <= index["shards"][1]["rows"]


def test_every_damaged_field_of_a_recording_is_told(tmp_path, capsys):
    clocks = {"stim": memload.Clock(rate=60.0), "robs": memload.Clock(rate=20.0)}
    recording = memload.recording({"stim": np.zeros((60, 4)), "robs": np.zeros((20, 3))}, clocks=clocks)
    memload.write(tmp_path / "day", recording, progress=False)
    folders = [index.parent for index in sorted((tmp_path / "day").glob("*/index.json"))]
    for folder in folders:
        flip(shards_of(folder)[0])
    found = verified(capsys, tmp_path / "day")[1]
    assert [one["shard"] for one in found["damages"]] == [f"{one.name}/shard-00000.safetensors" for one in folders]
    assert found["damaged_rows"] == {"robs": 20, "stim": 60}


def test_json_of_a_set_that_agrees_has_the_same_keys(tmp_path, capsys):
    memload.write(tmp_path / "set", {"x": torch.zeros(30, 4)}, progress=False)
    status, found = verified(capsys, tmp_path / "set")
    assert status == 0
    assert (found["agrees"], found["nbytes"], found["damages"]) == (True, 480, [])
    assert (found["damaged_places"], found["damaged_rows"]) == (0, {})

"""Compressed fields whose rows differ in length, texts and graphs: all that is read of them is what plain sets give."""

import json
import pickle
import shutil
import tempfile

import numpy as np
import pytest
import torch
from damage import damaged, shard_of, told_by_reading_and_by_verify
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_cases import forms, graphs, row_lists, same, sentences
from repository import DATA
from safetensors.torch import load_file
from strategies import codecs

import memload
from memload.formats.shards.safetensors_header import read_layout


@settings(max_examples=25)
@given(st.data())
def test_what_is_written_with_any_codec_is_read_as_it_was(data):
    axis = data.draw(st.integers(0, 1))
    rows = data.draw(row_lists(axis))
    x = memload.ragged(rows, axis=axis)
    fields = {"x": x, "y": torch.arange(len(rows) * 80).view(-1, 80), "t": [f"{k} é" * k for k in range(len(rows))]}
    chosen = {name: data.draw(codecs) for name in fields if data.draw(st.booleans())}
    with tempfile.TemporaryDirectory() as folder:
        size = data.draw(st.integers(1, 3000))
        plain = memload.write(f"{folder}/plain", fields, shard_bytes=size)
        coded = memload.write(f"{folder}/coded", fields, shard_bytes=size, codec=chosen)
        memload.verify(f"{folder}/coded")
        order = [*data.draw(st.permutations(range(len(rows)))), 0]
        form = "offsets" if axis else data.draw(forms)
        batch = len(order)
        loaders = [memload.FastLoader(ds.select(order).with_ragged(x=form), batch) for ds in (plain, coded)]
        assert same(*(next(iter(loader)) for loader in loaders))
        assert same(coded[0], plain[0])
        joined = memload.concat([coded, plain, coded]).select(order)
        wanted = next(iter(memload.FastLoader(plain.select(order), batch)))
        assert same(next(iter(memload.FastLoader(joined, batch))), wanted)


def test_a_loader_pads_and_casts_compressed_rows_natively(tmp_path):
    plain = sentences(200)
    coded = memload.write(tmp_path / "s", plain, codec="lz4", shard_bytes=4000)
    cast = {"tokens": memload.Cast(torch.float32)}
    for form in ("offsets", "padded", ("padded", -100)):
        loaders = [memload.FastLoader(ds, 32, ragged={"tokens": form}, cast=cast) for ds in (plain, coded)]
        assert {loader.engine for loader in loaders} == {"native"}
        assert same(*map(list, loaders))
    assert coded.fields["tokens"].stored.how == "decoded: shuffle+lz4, 2,048 items a block"
    assert same(list(memload.FastLoader(pickle.loads(pickle.dumps(coded)), 64)), list(memload.FastLoader(plain, 64)))
    ram = coded.with_tier("ram")
    assert same(list(memload.FastLoader(ram, 64)), list(memload.FastLoader(plain, 64)))


def test_graphs_that_are_compressed_make_the_same_batches(tmp_path):
    data = pytest.importorskip("torch_geometric.data")
    made = [data.Data(x=x, edge_index=edges) for x, edges in zip(*graphs(50), strict=True)]
    plain = memload.write_graphs(tmp_path / "plain", made)
    coded = memload.write_graphs(tmp_path / "coded", made, codec="zstd", shard_bytes=2000)
    batches = [
        list(memload.FastLoader(ds, 8, collate_fn=memload.graph_collate, generator=torch.Generator().manual_seed(1)))
        for ds in (plain, coded)
    ]
    for one, other in zip(*batches, strict=True):
        assert one.to_dict().keys() == other.to_dict().keys()
        assert all(same(one[name], other[name]) for name in one.to_dict())
    assert same(coded.as_plain()[7], plain.as_plain()[7])


def test_the_set_that_an_older_memload_wrote_stays_readable():
    old = DATA / "shards-v2-ragged-codec"
    ds = memload.open(old)
    x = [torch.arange(n, dtype=torch.int16) * 7 for n in (40, 0, 3, 60, 1, 25)]
    edges = [torch.arange(2 * n).reshape(2, n) for n in (1, 30, 0, 12, 5, 40)]
    texts = ["é", "", "two words", "日本" * 20, "x" * 60, "end"]
    assert len(list(old.glob("*.safetensors"))) > 1
    for k, row in enumerate(x):
        assert same(list(ds[k].values()), [row, edges[k], texts[k], torch.tensor(float(k))])
    memload.verify(old)


def test_a_shard_has_blocks_of_items_as_the_format_says(tmp_path):
    rows = [torch.arange(n, dtype=torch.int16) for n in (3, 0, 4)]
    edges = [torch.full((2, n), n) for n in (1, 2, 0)]
    fields = {"x": memload.ragged(rows), "e": memload.ragged(edges, axis=1)}
    memload.write(tmp_path / "s", fields, codec={"x": "zstd:shuffle=none,rows=4", "e": "zstd:shuffle=none,rows=2"})
    tensors = load_file(tmp_path / "s" / "shard-00000.safetensors")
    assert set(tensors) == {"x", "x.blocks", "x.offsets", "e", "e.blocks", "e.offsets"}
    assert tensors["x.offsets"].tolist() == [0, 3, 3, 7]
    assert len(tensors["x.blocks"]) == 3  # of 4 items, and of 3
    assert len(tensors["e.blocks"]) == 5  # of 2 and 1 in each of two runs
    first, second, third = tensors["x.blocks"].tolist()
    block = tensors["x"][second:third].numpy().tobytes()
    assert memload._core.Chain([("zstd", 0, 0)]).decode(block, 6) == np.array([1, 2, 3], np.int16).tobytes()
    assert (first, third) == (0, len(tensors["x"]))
    index = json.loads((tmp_path / "s" / "index.json").read_text())
    assert index["version"] == 2
    assert index["fields"]["x"]["codec"] == {"name": "zstd", "level": 3, "shuffle": "none", "rows": 4}
    assert index["fields"]["x"]["block_rows"] % 4 == 0


def test_a_codec_for_all_takes_items_by_its_own_measure_and_a_set_keeps_its_codecs(tmp_path):
    source = sentences(20)
    ds = memload.write(tmp_path / "s", source, codec="zstd:rows=3")
    assert [name for name, field in ds.fields.items() if "decoded" in field.stored.how] == ["tokens", "text"]
    assert "2,048 items a block" in ds.fields["tokens"].stored.how
    assert "16,384 items a block" in ds.fields["text"].stored.how
    with pytest.raises(ValueError, match="a set keeps its codecs"):
        memload.write(tmp_path / "s", source, codec="lz4", append=True)
    memload.write(tmp_path / "s", source, codec="zstd", append=True)
    both = memload.write(tmp_path / "s", source, append=True)
    assert same(list(memload.FastLoader(both, 60)), list(memload.FastLoader(memload.concat([source] * 3), 60)))
    with pytest.raises(ValueError, match=r"has the name of the blocks of field 'x'"):
        memload.write(
            tmp_path / "t", {"x": memload.ragged([torch.arange(2)]), "x.blocks": torch.ones(1)}, codec={"x": "lz4"}
        )


def test_a_codec_is_chosen_by_the_items_as_they_will_be_written(tmp_path, capfd):
    rows = [torch.arange(1000 + k) // 100 for k in range(200)]
    fields = {"x": memload.ragged(rows), "noise": torch.randint(0, 256, (200, 4000), dtype=torch.uint8)}
    ds = memload.write(tmp_path / "s", fields, codec="auto", scale={"x": 2.0}, progress=None)
    assert "decoded" in ds.fields["x"].stored.how
    assert ds.fields["noise"].stored.how == "in place"
    assert torch.equal(ds[7]["x"], rows[7].float() * 2)
    said = capfd.readouterr().err
    assert "x: " in said
    assert "rows=" not in said.partition("x: ")[2].partition(":")[0]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "s"
    memload.write(path, sentences(40), codec={"tokens": "zstd:rows=50", "text": "lz4:rows=100"})
    return path


@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_shard_is_told_by_reading_and_by_verify(sound, data):
    told_by_reading_and_by_verify(sound, data.draw(damaged(shard_of(sound).read_bytes())))


def test_a_damaged_block_names_its_rows_and_spares_the_others(sound, tmp_path):
    path = tmp_path / "s"
    shutil.copytree(sound, path)
    layout = read_layout(shard_of(path)).tensors["tokens"]
    with shard_of(path).open("r+b") as file:
        file.seek(layout.end - 40)
        file.write(bytes(40))
    ds, whole = memload.open(path), memload.open(sound)
    with pytest.raises(memload.ShardReadError, match=r"shard-00000.*row 39 .*cannot be decoded \(zstd: "):
        ds.fields["tokens"].gather(np.array([39]))
    assert same(*(list(memload.FastLoader(one.select(range(20)), 20)) for one in (ds, whole)))
    with pytest.raises(memload.ChecksumError) as caught:
        memload.verify(path)
    assert [damage.field for damage in caught.value.damages] == ["tokens"]


@pytest.mark.parametrize(
    ("change", "says"),
    [({"rows": 7}, "do not fit checksums of"), ({"rows": 2**40}, "do not fit"), ({"name": "gzip"}, "no codec")],
)
def test_an_index_with_a_codec_that_cannot_be_is_refused(sound, tmp_path, change, says):
    path = tmp_path / "s"
    shutil.copytree(sound, path)
    index = json.loads((path / "index.json").read_text())
    index["fields"]["tokens"]["codec"].update(change)
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(memload.ShardFormatError, match=says):
        memload.open(path)

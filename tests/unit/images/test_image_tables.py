"""Tables about images: each image is stored once, and each row of the table is a row of the set, joined by name."""

import json
import os
import signal

import datasets
import numpy as np
import pandas
import PIL.Image
import pyarrow
import pyarrow.parquet
import pytest
import torch
from children import in_fork

import memload
from memload.cli.main import main
from memload.images.tables import read_table
from memload.writing.stream import ShardStream

ROWS = {
    "file_name": ["b.png", "a.jpg", "b.png", "sub/c.png", "b.png"],
    "prompt": ["a dog", "a cat, asleep", "Ein Hund ☃", "", "two dogs"],
    "score": [0.5, 1.0, -2.0, 3.25, 0.0],
    "year": [1999, 2001, 1999, 2003, 2**53 + 1],
}
NAMES = ["a.jpg", "b.png", "sub/c.png"]


@pytest.fixture
def photos(tmp_path):
    """A folder of three images, each of one colour of its own."""
    folder = tmp_path / "photos"
    for k, name in enumerate(NAMES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(np.full((6, 8, 3), 60 * (k + 1), np.uint8)).save(folder / name)
    return folder


def written(path, folder, *more, **options):
    return memload.write_images(path, folder, *more, progress=False, **options)


def as_csv(path, separator=","):
    pandas.DataFrame(ROWS).to_csv(path, sep=separator, index=False)
    return path


def as_parquet(path):
    pyarrow.parquet.write_table(pyarrow.table(ROWS), path)
    return path


def as_text(path, text):
    path.write_text(text)
    return path


OBJECTS = [dict(zip(ROWS, cells, strict=True)) for cells in zip(*ROWS.values(), strict=True)]
KINDS = {
    "csv": lambda folder: as_csv(folder / "t.csv"),
    "tsv": lambda folder: str(as_csv(folder / "t.tsv", "\t")),
    "jsonl": lambda folder: as_text(folder / "metadata.jsonl", "\n".join(map(json.dumps, OBJECTS)) + "\n"),
    "json": lambda folder: as_text(folder / "t.json", json.dumps(OBJECTS)),
    "json of columns": lambda folder: as_text(folder / "t.json", json.dumps(ROWS)),
    "parquet": lambda folder: as_parquet(folder / "t.parquet"),
    "dict": lambda _: ROWS,
    "arrays": lambda _: {**ROWS, "year": np.array(ROWS["year"]), "score": torch.tensor(ROWS["score"])},
    "pandas": lambda _: pandas.DataFrame(ROWS),
    "pyarrow": lambda _: pyarrow.table(ROWS),
    "datasets": lambda _: datasets.Dataset.from_dict(ROWS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_of_a_table_is_a_row_of_the_set_and_each_image_is_stored_once(kind, photos, tmp_path):
    made = written(tmp_path / "s", photos, table=KINDS[kind](tmp_path))
    for ds in (made, memload.open(tmp_path / "s")):
        assert len(ds) == 5
        assert list(ds.fields) == ["image", "file", "prompt", "score", "year"]
        assert [ds[i]["prompt"] for i in range(5)] == ROWS["prompt"]
        assert [ds[i]["score"].item() for i in range(5)] == ROWS["score"]
        assert [ds[i]["year"].item() for i in range(5)] == ROWS["year"]
        assert [ds[i]["file"] for i in range(5)] == ROWS["file_name"]
        for i, name in enumerate(ROWS["file_name"]):
            colour = 60 * (NAMES.index(name) + 1)
            assert (ds[i]["image"].int() - colour).abs().max() <= 2
    index = json.loads((tmp_path / "s" / "index.json").read_text())
    assert index["rows"] == 3
    assert memload.verify(tmp_path / "s") > 3 * 6 * 8 * 3


def test_a_loader_over_such_rows_is_native_and_equal_to_a_join_by_hand(photos, tmp_path):
    ds = written(tmp_path / "s", photos, table=ROWS)
    images = written(tmp_path / "images", photos)
    order = [NAMES.index(name) for name in ROWS["file_name"]]
    texts = memload.write(tmp_path / "t", {"prompt": ROWS["prompt"]}, progress=False)
    by_hand = memload.zip(images=images.select(order), prompt=texts)
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    one, other = (
        memload.FastLoader(each, 2, shuffle=True, generator=g, cast={"image": "bfloat16"})
        for each, g in zip((ds, by_hand), generators, strict=True)
    )
    assert one.engine == "native"
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a["image"], b["image"])
        assert (a["prompt"], a["file"]) == (b["prompt"], b["file"])


@pytest.mark.parametrize(
    "key", ["photos/a.jpg", "a", "./a.jpg", "{}/photos/a.jpg", "../{name}/photos/a.jpg", "photos/sub/../a.jpg"]
)
def test_a_row_names_its_image_below_the_folder_from_the_table_or_absolutely(key, photos, tmp_path):
    for name in NAMES[1:]:
        (photos / name).unlink()
    row = {"file": key.format(tmp_path, name=tmp_path.name), "n": 1}
    assert written(tmp_path / "s", photos, table=as_text(tmp_path / "t.jsonl", json.dumps(row)))[0]["file"] == "a.jpg"


def test_images_named_by_numbers_and_by_a_column_of_ones_own_are_found(photos, tmp_path):
    (photos / "a.jpg").rename(photos / "17.jpg")
    table = {"id": [17, 17], "text": ["x", "y"]}
    ds = written(tmp_path / "s", photos, table=table, image_column="id", skip_unmatched=True)
    assert [(row["file"], row["text"]) for row in (ds[0], ds[1])] == [("17.jpg", "x"), ("17.jpg", "y")]


UNMATCHED = {"stem": ["a", "b", "zebra", "b", "yak"], "text": list("vwxyz")}


def test_rows_and_images_without_a_partner_are_refused_with_their_numbers(photos, tmp_path):
    for option in ("table", "labels"):
        with pytest.raises(ValueError, match=r"1 image has no row: sub/c\.png; 2 rows name no image: zebra, yak"):
            written(tmp_path / "s", photos, **{option: UNMATCHED})
    assert not (tmp_path / "s").exists()
    with pytest.raises(ValueError, match=r"no row of it names an image in .*photos"):
        written(tmp_path / "s", photos, table={"file": ["x"]}, skip_unmatched=True)


def test_rows_and_images_without_a_partner_are_left_out_if_asked_and_told(photos, tmp_path, capfd):
    ds = written(tmp_path / "s", photos, table=UNMATCHED, skip_unmatched=True)
    assert [(ds[i]["file"], ds[i]["text"]) for i in range(3)] == [("a.jpg", "v"), ("b.png", "w"), ("b.png", "y")]
    assert json.loads((tmp_path / "s" / "index.json").read_text())["rows"] == 2
    memload.write_images(tmp_path / "t", photos, table=UNMATCHED, skip_unmatched=True)
    said = capfd.readouterr().err
    assert "left out: 1 image has no row: sub/c.png" in said
    assert "left out: 2 rows name no image: zebra, yak" in said


def test_masks_and_labels_of_each_image_are_stored_once_too(photos, tmp_path):
    for k, name in enumerate(NAMES):
        mask = (tmp_path / "masks" / name).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(np.full((6, 8), k, np.uint8)).save(mask)
    labels = {"file": NAMES, "split": ["train", "test", "train"]}
    table = {"file": ["b.png", "a.jpg", "b.png"], "text": list("xyz")}
    ds = written(tmp_path / "s", photos, tmp_path / "masks", labels=labels, table=table, skip_unmatched=True)
    assert list(ds.fields) == ["image", "mask", "split", "file", "text"]
    assert [(ds[i]["mask"].max().item(), ds[i]["split"], ds[i]["text"]) for i in range(3)] == [
        (1, "test", "x"), (0, "train", "y"), (1, "test", "z"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"both labels= and table= have the fields \['text'\]"):
        written(tmp_path / "t", photos, labels={"file": NAMES, "text": NAMES}, table={"file": NAMES, "text": NAMES})


def test_a_table_of_labels_that_names_an_image_twice_says_what_takes_it(photos, tmp_path):
    with pytest.raises(ValueError, match=r"1 image has several rows: b; given as table=, each row"):
        written(tmp_path / "s", photos, labels={"file": [*NAMES, "b"]})


def test_rows_of_damaged_images_are_left_out_with_them(photos, tmp_path):
    cut = photos / "b.png"
    cut.write_bytes(cut.read_bytes()[:45])
    with pytest.raises(memload.FormatError, match=r"b\.png"):
        written(tmp_path / "s", photos, table=ROWS)
    ds = written(tmp_path / "s", photos, table=ROWS, skip_damaged=True)
    assert [(ds[i]["file"], ds[i]["prompt"]) for i in range(2)] == [("a.jpg", "a cat, asleep"), ("sub/c.png", "")]
    assert len(ds) == 2


@pytest.mark.parametrize("shard", range(1, 5))
def test_a_run_that_is_killed_anywhere_opens_as_nothing_and_goes_on(shard, photos, tmp_path, monkeypatch):
    finish, left = ShardStream.finish, [shard]

    def finish_and_die(self):
        finish(self)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def write():
        return written(tmp_path / "s", photos, table=ROWS, shard_bytes=150, threads=1)

    with monkeypatch.context() as patch:
        patch.setattr(ShardStream, "finish", finish_and_die)
        assert in_fork(write) == -signal.SIGKILL
    with pytest.raises(FileNotFoundError):
        memload.open(tmp_path / "s")
    ds = write()
    assert [ds[i]["prompt"] for i in range(5)] == ROWS["prompt"]
    assert [ds[i]["file"] for i in range(5)] == ROWS["file_name"]
    memload.verify(tmp_path / "s")
    assert [one.name for one in tmp_path.rglob(".*")] == []


def test_what_is_damaged_afterwards_is_found(photos, tmp_path):
    written(tmp_path / "s", photos, table=ROWS)
    shard = next((tmp_path / "s" / "rows").glob("*.safetensors"))
    raw = bytearray(shard.read_bytes())
    place = raw.index(b"a dog")
    raw[place] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(memload.ChecksumError, match=r"rows: bytes differ.*(.|\n)*prompt"):
        memload.verify(tmp_path / "s")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"lookup.row": np.array([0, 3])}, "row 1 looks up row 3, and .* has 3"),
        ({"lookup.row": np.array([0, -1])}, "row 1 looks up row -1"),
        ({"lookup.row": np.array([0.0])}, "expected an int64"),
        ({"x": np.array([0])}, "no field 'lookup.row'"),
        ({"lookup.row": np.array([0]), "file": ["x"]}, r"the fields \['file'\] are in .*, too"),
    ],
)
def test_rows_that_look_up_what_is_not_there_do_not_open(rows, message, photos, tmp_path):
    written(tmp_path / "s", photos)
    memload.write(tmp_path / "s" / "rows", rows, progress=False)
    with pytest.raises(memload.ShardFormatError, match=message):
        memload.open(tmp_path / "s")


def test_such_a_set_is_not_extended_but_joined(photos, tmp_path):
    for name in "st":
        written(tmp_path / name, photos, table=ROWS)
    for extend in (
        lambda: written(tmp_path / "s", photos, append=True),
        lambda: memload.write(tmp_path / "s", {"x": [1]}, append=True),
    ):
        with pytest.raises(FileExistsError, match=r"cannot be extended.*memload\.open\(\[one, two\]\)"):
            extend()
    with pytest.raises(ValueError, match="append="):
        written(tmp_path / "s", photos, table=ROWS, append=True)
    both = memload.open([tmp_path / "s", tmp_path / "t"])
    assert len(both) == 10
    assert both[7]["prompt"] == ROWS["prompt"][2]
    again = memload.write(tmp_path / "u", both.select(range(5, 10)), progress=False)
    assert again[2]["prompt"] == both[7]["prompt"]
    assert torch.equal(again[2]["image"], both[7]["image"])


def test_a_table_among_the_images_is_named_unless_it_is_taken(photos, tmp_path, capfd):
    table = as_text(photos / "metadata.jsonl", "\n".join(map(json.dumps, OBJECTS)))
    memload.write_images(tmp_path / "s", photos)
    assert f"metadata.jsonl may be a table of the images: --table {table} takes it" in capfd.readouterr().err
    assert len(memload.write_images(tmp_path / "t", photos, table=table)) == 5
    assert "metadata" not in capfd.readouterr().err


def test_texts_beside_the_images_become_a_field(photos, tmp_path, capfd):
    for k, name in enumerate(NAMES):
        (photos / name).with_suffix(".txt").write_text(f"number {k} ☃\n")
    ds = memload.write_images(tmp_path / "s", photos, labels="texts")
    assert [(ds[i]["file"], ds[i]["text"]) for i in range(3)] == [(n, f"number {k} ☃") for k, n in enumerate(NAMES)]
    assert "stay out" not in capfd.readouterr().err
    (photos / "b.txt").unlink()
    with pytest.raises(ValueError, match=r"1 image has no \.txt file of its name: b\.png"):
        written(tmp_path / "t", photos, labels="texts")


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ({"name": ["a"]}, ValueError, r"it needs a column one of file, .*; image_column=.* It has \['name'\]$"),
        (
            {"file": ["a"], "x": [[1, 2]]},
            ValueError,
            "column 'x' must have only numbers.*row 0 has a list; make a row for each",
        ),
        ({"file": ["a", "b"], "x": [1, "y"]}, ValueError, "column 'x' must have only numbers.*row 1 has a str"),
        ({"file": ["a", "b"], "x": [1]}, ValueError, "different lengths"),
        ({"file": ["a", "b"], "x": ["y", 1]}, ValueError, "row 0 has a str, row 1 an int"),
        ({"file": ["a", "b"], "x": [True, None]}, ValueError, "row 0 has a bool, row 1 nothing"),
        ({"file": ["a"], "x": [2**70]}, ValueError, "more than 64 bits"),
        ({"file": ["a", "b"], "x": [2**53 + 1, None]}, ValueError, "float64 would round, such as 9007199254740993"),
        ({"file": [None]}, ValueError, "names the image of each row by its file; row 0 has nothing"),
        ({"file": [{"bytes": b""}]}, ValueError, "row 0 has a dict"),
        ({"file": ["a"], "mask": [1]}, ValueError, r"the set has fields named \['mask'\] already"),
        ({"image": ["a"], "file": [1]}, ValueError, r"the set has fields named \['image'\] already.*image_column="),
        (["a", "b"], TypeError, "or a dict of lists; got a list"),
        ("t.jsonl", ValueError, "line 2 is not JSON"),
        ("t.json", ValueError, "row 1 is an int; expected an object"),
        ("t.parquet", ValueError, "not a Parquet file"),
        ("none.csv", FileNotFoundError, "none.csv"),
    ],
)
def test_a_table_that_cannot_be_read_says_why(table, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").write_text('{"file": "a"}\n{"file": \n')
    (tmp_path / "t.json").write_text("[3]")
    (tmp_path / "t.parquet").write_text("PAR1")
    with pytest.raises(error, match=message):
        read_table(table)


def test_cells_without_a_value_are_nan_among_numbers_and_empty_among_texts():
    table = read_table(
        {"file": list("abc"), "x": [1, None, 2], "t": ["u", None, float("nan")], "b": [True, False, True]}
    )
    assert table.columns["x"] == [1.0, pytest.approx(np.nan, nan_ok=True), 2.0]
    assert table.columns["t"] == ["u", "", ""]
    assert table.columns["b"] == [True, False, True]


def test_bools_of_a_table_are_a_field_of_bools(photos, tmp_path):
    ds = written(tmp_path / "s", photos, table={"file": NAMES, "nice": [True, False, True]})
    assert ds.fields["nice"].dtype == torch.bool
    ds = written(tmp_path / "t", photos, labels={"file": NAMES, "nice": [True, False, True]})
    assert [ds[i]["nice"].item() for i in range(3)] == [True, False, True]


def test_the_command_line_writes_tables_and_borders(photos, tmp_path, capsys):
    as_csv(tmp_path / "t.csv")
    command = ["write", "--images", photos, "--table", tmp_path / "t.csv", "--image-column", "file_name", "--size", "9"]
    command += ["--fit", "pad", "--pad-value", "1,2,3", "--mask-pad-value", "255", "--quiet", tmp_path / "s"]
    assert main([str(part) for part in command]) == 0
    assert "5 rows" in capsys.readouterr().out
    assert memload.open(tmp_path / "s")[1]["image"][:, 0, 0].tolist() == [1, 2, 3]
    for command in (["info"], ["verify", "--quiet"], ["plan"], ["bench", "--rounds", "1", "--batch-size", "2"]):
        assert main([*command, str(tmp_path / "s")]) == 0, capsys.readouterr().err
    assert main(["write", "--images", str(photos), "--fit", "pad", "--pad-value", "red", str(tmp_path / "t")]) == 2
    assert "--pad-value: expected a number, or one for each channel" in capsys.readouterr().err


@pytest.mark.parametrize("made", [pandas.DataFrame, pyarrow.table, datasets.Dataset.from_dict])
def test_labels_may_be_a_table_in_memory(tmp_path, photos, made):
    (photos / "notes.txt").write_text("beside them")
    ds = written(tmp_path / "s", photos, labels=made({"file_name": NAMES, "score": [1.5, 2.5, 3.5]}))
    assert [row["score"].item() for row in ds] == [1.5, 2.5, 3.5]


def test_the_index_that_pandas_writes_is_named_and_how_to_leave_it_out(tmp_path, photos):
    pandas.DataFrame(ROWS).to_csv(tmp_path / "t.csv")
    with pytest.raises(ValueError, match=r"t\.csv: column 1 has no name .*to_csv\(path, index=False\)"):
        written(tmp_path / "s", photos, table=tmp_path / "t.csv")

"""Notebooks show datasets and plans as tables, in which no text of the data is markup."""

from html.parser import HTMLParser

import torch

import memload
from memload.columns.html_tables import html_table
from memload.dataset.mapped import MappedDataset


class _Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.rows, self.open, self.other = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        elif data.strip():
            self.other.append(data)


def page(shown):
    read = _Page(shown._repr_html_())
    assert read.open == []
    return read


def test_a_dataset_is_a_table_of_its_fields():
    shown = page(memload.from_arrays(stim=torch.zeros(10, 3, 8, dtype=torch.uint8), text=["a"] * 10))
    assert shown.rows == [
        ["field", "dtype", "shape of a row", "bytes of a row", "of all rows"],
        ["stim", "uint8", "(3, 8)", "24 B", "240 B"],
        ["text", "text", "(None,)", "1 B", "10 B"],
    ]
    assert shown.other == ["memload.Dataset: 10 rows, 250 B, in memory"]


def test_names_are_no_markup(tmp_path):
    shown = page(memload.from_arrays(**{"<script>alert(1)</script>": torch.zeros(2, 1), "a&b\"'": torch.zeros(2)}))
    assert {row[0] for row in shown.rows[1:]} == {"<script>alert(1)</script>", "a&b\"'"}
    assert "script" not in shown.tags
    (tmp_path / "<i>x").mkdir()
    memload.write(tmp_path / "<i>x" / "set", {"y": torch.zeros(2)}, progress=False)
    assert "i" not in page(memload.open(tmp_path / "<i>x" / "set")).tags


def test_joined_and_mapped_datasets_show_what_they_are_made_of():
    one, other = memload.from_arrays(x=torch.zeros(3, 2)), memload.from_arrays(y=torch.zeros(4))
    joined = page(memload.concat({"one": one, "<other>": other}))
    assert [row[:3] for row in joined.rows[1:]] == [["one", "3", "x"], ["<other>", "4", "y"]]

    def twice(row):
        return row

    assert page(one.map(twice)).other[-1].startswith("mapped by ")
    assert "twice" in page(one.map(twice)).other[-1]
    assert page(MappedDataset([1], twice)).other[0] == "[1]"


def test_a_plan_is_a_table_with_its_notes():
    made = memload.plan(memload.DatasetShape(3_000, {"betas": ("float32", (150, 150, 100))}), 32, ram="1GB", disk="1TB")
    shown = page(made)
    assert shown.rows[0] == ["", "predicted", "free", ""]
    assert [row[0] for row in shown.rows if row[0] in ("RAM", "disk")] == ["RAM", "disk"]
    assert all(len(row) == 4 for row in shown.rows)
    assert shown.other[0].startswith("3,000 rows of 9 MB")
    assert any(note.startswith("Under Slurm, ask for --mem=") for note in shown.other)


def test_numbers_are_set_to_the_right():
    assert html_table("t", ["a", "b"], [["x", "1"]], right=1).count("right") == 2

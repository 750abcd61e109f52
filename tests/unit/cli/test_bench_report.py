"""`memload bench` and `memload info` draw what they found, and write a page that needs no other file."""

import re
from html.parser import HTMLParser

import pytest
import torch

import memload
from memload.cli.charts import Bar, draw_bars, svg_of
from memload.cli.main import main


@pytest.fixture
def shards(tmp_path):
    rows = {"stim": torch.randint(0, 256, (64, 40, 40), dtype=torch.uint8), "text": ["a < b & c"] * 64}
    memload.write(tmp_path / "shards", memload.from_arrays(**rows), progress=False)
    return str(tmp_path / "shards")


def test_a_page_has_figures_data_and_machine_and_refers_to_nothing(shards, tmp_path, capsys):
    page, image = tmp_path / "report.html", tmp_path / "bench.svg"
    assert main(["bench", shards, "--rounds", "2", "--report", str(page), "--plot", str(image)]) == 0
    assert f"Written: {page}" in capsys.readouterr().out
    text = page.read_text()
    assert tags_of(text).count("svg") == 1
    assert re.findall(r"<h[12]>(.*?)</h", text) == ["memload bench", "The data", "The machine"]
    assert len(re.findall(r"<td>(as stored|cast to float32|cast to bfloat16)</td>", text)) == 6  # with all fields, too
    assert set(re.findall(r"(?:src|href)=\"([^\"]*)\"", text)) <= set(re.findall(r"\"(#\w+)\"", text))
    assert "all fields" in image.read_text()
    assert not list(tmp_path.glob("*.part"))


def test_the_name_of_a_field_is_no_markup(tmp_path):
    page = tmp_path / "report.html"
    memload.write(tmp_path / "odd", {"<b>": torch.zeros(64, 8)}, progress=False)
    assert main(["bench", str(tmp_path / "odd"), "--rounds", "1", "--ceiling", "--report", str(page)]) == 0
    assert "b" not in tags_of(page.read_text())
    assert "&lt;b&gt;" in page.read_text()


def test_info_draws_what_a_row_is_read_as(shards, tmp_path, capsys):
    assert main(["info", shards, "--plot", str(tmp_path / "rows")]) == 0
    assert f"drawn: {tmp_path / 'rows.png'}" in capsys.readouterr().out
    assert (tmp_path / "rows.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "--plot", "x.docx"], "--plot x.docx: an image ends in .png, .svg, .pdf"),
        (["bench", "--report", "report.pdf"], "--report report.pdf: the page is HTML; end its name in .html"),
        (["bench", "--report", "no/such/report.html"], "--report no/such/report.html: there is no folder"),
        (["info", "x.npy", "--plot", "x.docx"], "--plot x.docx: an image ends in .png, .svg, .pdf"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_beforehand(arguments, words, capsys):
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_bars_show_their_texts_and_spreads():
    image = svg_of(draw_bars({"speed": [Bar("ours", 2, 1, 3, "2.0"), Bar("theirs", 1, 1, 1, "1.0")]}, "rows"))
    assert re.findall(r"<text[^>]*>([^<]*)</text>", image)[-3:] == ["speed", "2.0", "1.0"]


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found.append(tag)


def tags_of(text):
    tags = Tags()
    tags.feed(text)
    return tags.found

"""The images of the docs show the figures that benchmarks/results has."""

import re
import sys

import pytest
from repository import BENCHMARKS, DOCS

sys.path.insert(0, str(BENCHMARKS))
import pictures

sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize("name", pictures.PLOTS)
def test_an_image_has_the_bars_and_figures_of_its_results(name):
    groups, axis_label = pictures.PLOTS[name]()
    shown = texts_of(name)
    wanted = [axis_label, *groups, *(bar.text for bars in groups.values() for bar in bars)]
    assert len(wanted) > 5
    assert [text for text in wanted if shown.count(text) < wanted.count(text)] == [], "run benchmarks/pictures.py"


def test_an_image_is_drawn_as_it_was():
    images = [pictures.svg_of(pictures.draw_bars(*pictures.memory())) for _ in range(2)]
    assert images[0] == images[1]


def test_the_pipeline_has_its_steps():
    assert [title for title, _ in pictures.STEPS if title not in texts_of("pipeline")] == []


def texts_of(name: str) -> list[str]:
    """Return the texts of an image."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", (DOCS / "pictures" / f"{name}.svg").read_text())

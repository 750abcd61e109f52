"""docs/migration.md: the programs before and after run, with the libraries that they are about."""

import ast
import re

import pytest
from repository import DOCS

PAGE = DOCS / "migration.md"


def programs():
    """The Python programs of the page by heading."""
    parts = re.split(r"^## (.*)\n", PAGE.read_text(), flags=re.M)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {heading: re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S) for heading, text in found.items()}


def run(heading, folder, monkeypatch):
    """Run the programs under a heading one after the other, as one script; return its names."""
    monkeypatch.chdir(folder)
    names = {"__name__": "the_page"}
    for program in programs()[heading]:
        exec(compile(program, f"{PAGE.name}, {heading}", "exec"), names)
    return names


def test_every_heading_has_a_program_before_and_one_after_of_which_the_latter_uses_memload():
    assert list(programs()) == ["DataLoader", "StatefulDataLoader", "FFCV", "WebDataset", "MosaicML streaming"]
    for heading, found in programs().items():
        assert len(found) >= 2, heading
        assert "memload" in {
            one.name for node in ast.parse("".join(found)).body if isinstance(node, ast.Import) for one in node.names
        }
        assert "FastLoader(" in found[-1]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # stock workers, from Python 3.12 on
@pytest.mark.filterwarnings("ignore::UserWarning:torchdata")
@pytest.mark.parametrize("heading", ["DataLoader", "StatefulDataLoader", "FFCV"])
def test_its_programs_run(heading, tmp_path, monkeypatch):
    names = run(heading, tmp_path, monkeypatch)
    assert names["loader"].engine == "native"
    assert names["loader"].stats().batches > 0 or list(names["loader"])


@pytest.mark.filterwarnings("ignore")  # of webdataset's own: files left open, tensors made of read-only arrays
def test_shards_of_webdataset_are_converted_by_its_own_reader(tmp_path, monkeypatch):
    pytest.importorskip("webdataset", reason="webdataset comes with the test extra")
    names = run("WebDataset", tmp_path, monkeypatch)
    stored = [(int(label), image.numpy()) for image, label in names["dataset"].as_tuple("image", "label")]
    read = [(label, image) for image, label in names["samples"]]
    assert all(a == b and (x == y).all() for (a, x), (b, y) in zip(stored, read, strict=True))
    assert names["loader"].engine == "native"


@pytest.mark.streaming
@pytest.mark.filterwarnings("ignore")  # of mosaicml-streaming's own, and of the clouds' libraries that it imports
def test_shards_of_mosaicml_streaming_are_converted_by_its_own_reader(tmp_path, monkeypatch):
    import vision  # noqa: F401 - where torchvision's operators are for another torch, it declares them

    names = run("MosaicML streaming", tmp_path, monkeypatch)
    reader = names["StreamingDataset"](local="mds", shuffle=False, batch_size=32)
    stored = [(int(row["label"]), row["image"].numpy()) for row in names["dataset"]]
    read = [(int(sample["label"]), sample["image"]) for sample in reader]
    assert all(a == b and (x == y).all() for (a, x), (b, y) in zip(stored, read, strict=True))
    assert names["loader"].engine == "native"

"""Pages with Python and commands run from top to bottom; what `memload init` says of scripts is what the page does."""

import re
import shlex

import pytest
import vision  # noqa: F401 - torchvision's transforms, where its operators do not load, too
from repository import DOCS

from memload.cli import init
from memload.cli.main import main
from memload.cli.script import Script


def snippets_of(page):
    return re.findall(r"^```(python|sh)\n(.*?)^```", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)


def run(page, kind, snippet, names):
    if kind == "python":
        exec(compile(snippet, page, "exec"), names)
        return
    for line in snippet.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line)
        assert program == "memload"
        assert main(arguments) == 0, line


@pytest.mark.parametrize("page", ["converting.md", "converting-scripts.md", "nsd.md", "images.md", "tutorials/fmri.md"])
def test_the_snippets_and_commands_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = snippets_of(page)
    assert {kind for kind, _ in snippets} == {"python", "sh"}
    names = {"__name__": "page"}
    for kind, snippet in snippets:
        run(page, kind, snippet, names)


def test_the_check_of_a_page_notices_rows_that_were_joined_by_their_positions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *snippets, (kind, check) = snippets_of("nsd.md")
    join = 'memload.join(memload.join(betas, trials, on=("session", "trial")), stim, on="image_id")'
    by_position = """memload.zip(
        betas=betas,
        image_id=trials.only("image_id").select(range(len(betas))),
        image=stim.only("image").select([int(trials[k]["image_id"]) for k in range(len(betas))]),
    )"""
    names = {"__name__": "page"}
    assert sum(join in snippet for _, snippet in snippets) == 1
    for one, snippet in snippets:
        run("nsd.md", one, snippet.replace(join, by_position), names)
    with pytest.raises(AssertionError):
        run("nsd.md", kind, check, names)
    assert names["session"] == 10  # the one that lies elsewhere than its number says


SCRIPTS = {
    "Photos": False,
    "Landmarks": False,
    "image_datasets": False,
    "sentences": False,
}  # what each loader is made of, and its verdict


def test_what_is_said_of_the_scripts_of_the_page_is_what_the_page_does(tmp_path):
    before = [text for kind, text in snippets_of("converting-scripts.md") if kind == "python" and "DataLoader(" in text]
    scripts = [text for text in before if "memload" not in text]
    assert len(scripts) == 4
    for name, text in zip(SCRIPTS, scripts, strict=True):
        (tmp_path / "script.py").write_text(text)
        found = init.findings(Script.read(tmp_path / "script.py"))
        (loader,) = [one for one in found if one.about == "loader"]
        assert loader.native is SCRIPTS[name]
        said = "\n".join(line for one in found for line in (*one.change, *one.commands, *one.notes))
        wanted = {
            "Photos": [
                "memload write --images",
                "--images photos --table labels.csv",
                '.as_tuple("image", "label")',
                'cast={"image": memload.Cast(torch.float32, std=255)}',
            ],
            "Landmarks": [
                "transform=transforms.Compose([Rescale(28, 28)]))",
                "writer.extend(**batch)  # image, landmarks",
                "random = transforms.Compose([RandomCrop(24), ToTensor()])",
                "lambda sample: random({name: value.numpy() for name, value in sample.items()})",
            ],
            "image_datasets": [
                *("memload write --images", "--labels folders", "--fit crop", "device=device"),
                "mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), channels=-3, augment=memload.Augment(",
                "resize=(32, 32), scale=(0.08, 1), flip=0.5",
            ],
            "sentences": ["memload.ragged(", "EmbeddingBag"],
        }
        assert all(words in said for words in wanted[name]), said

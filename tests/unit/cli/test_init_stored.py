"""`memload init`: sets that are stored once have folders and names of their own, and say what is frozen in them."""

import ast
from pathlib import Path

import pytest
import torch
import vision  # noqa: F401 - torchvision's transforms, where its operators do not load, too

import memload
from memload.cli import init
from memload.cli.script import Script

TWO = """
import random
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
random.seed(0)
writer, batch, train_random = "a log", 4, None
class Shift:
    def __call__(self, sample):
        return {"x": sample["x"].roll(int(torch.randint(0, 3, ())), -1), "y": sample["y"]}
class Scale:
    def __call__(self, sample):
        return {"x": torch.as_tensor(sample["x"]).float() / 4, "y": sample["y"]}
class Rows(Dataset):
    def __init__(self, first, transform=None):
        self.first, self.transform = first, transform
    def __len__(self):
        return 12
    def __getitem__(self, i):
        sample = {"x": [self.first + i, 2, 3, 4], "y": i % 3}
        if self.transform:
            sample = self.transform(sample)
        return sample
train_data = Rows(0, transforms.Compose([Scale(), Shift()]))
val_data = Rows(100, transforms.Compose([Scale()]))
train_loader = DataLoader(train_data, batch_size=4)
val_loader = DataLoader(val_data, batch_size=4)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def advised(text):
    Path("train.py").write_text(text)
    return [one for one in init.findings(Script.read(Path("train.py"))) if one.about in ("dataset", "transform")]


def test_two_sets_of_a_class_are_stored_apart_and_hide_no_name_of_the_script():
    exec(TWO, names := {"memload": memload})
    before = dict(names)
    advice = advised(TWO)
    for one in advice:
        exec("\n".join(one.change), names)
    changed = {name for name, value in before.items() if names[name] is not value}
    assert changed <= {"train_data", "val_data", "__builtins__"}
    assert {one.name for one in Path().iterdir()} == {"train.py", "train_shards"}
    for name in ("train", "val"):
        loader = memload.FastLoader(names[f"{name}_data"], batch_size=4)
        assert loader.engine == "native", loader.why
        theirs = torch.cat([one["x"].sort(-1).values for one in names[f"{name}_loader"]])
        ours = torch.cat([one["x"].sort(-1).values for one in loader])
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_compose_that_is_stored_or_mapped_has_no_other_advice():
    assert {one.about for one in advised(TWO)} == {"dataset"}


def test_arrays_are_for_random_steps_that_make_tensors_of_them():
    text = TWO.replace("[Scale(), Shift()]", "[Shift(), Scale()]")
    (code,) = [line for line in advised(text)[0].change if line.startswith("train_data = ")]
    assert "value.numpy()" in code
    assert not any("value.numpy()" in line for line in advised(TWO)[0].change)


def test_samples_that_are_padded_hide_no_name_of_the_script():
    text = """
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
samples, sample, number, writer = 1, 2, 3, 4
class Rows(Dataset):
    def __len__(self):
        return 9
    def __getitem__(self, i):
        return torch.arange(i + 1)
dataset = Rows()
loader = DataLoader(dataset, batch_size=4, collate_fn=lambda rows: pad_sequence([one for one in rows], True))
"""
    exec(text, names := {"memload": memload})
    stock = names["loader"]
    for one in advised(text):
        exec("\n".join(one.change), names)
    assert [names[name] for name in ("samples", "sample", "number", "writer")] == [1, 2, 3, 4]
    assert names["loader"].engine == "native", names["loader"].why
    torch.testing.assert_close([*names["loader"]], [*stock], rtol=0, atol=0)


def test_a_dataset_without_a_name_gets_one_that_is_free():
    text = """
from torch.utils.data import DataLoader, Dataset
dataset = "the name of a set"
class Rows(Dataset):
    def __getitem__(self, i):
        return {"x": i + 1}
loader = DataLoader(Rows(), batch_size=4)
"""
    (one,) = advised(text)
    assert one.change[-1].startswith("dataset_2 = ")
    assert one.where == "above line 7, with `dataset_2` in the place of Rows()"
    assert advised(text.replace("dataset =", "title ="))[0].change[-1].startswith("dataset = ")


def test_a_function_of_samples_has_a_name_that_is_free():
    text = """
import torch
from torch.utils.data import DataLoader, Dataset
def prepare(path):
    return path
class Rows(Dataset):
    def __init__(self, path):
        self.x = torch.load(prepare(path))
    def __getitem__(self, i):
        return self.x[i] + 1
dataset = Rows("x.pt")
loader = DataLoader(dataset, batch_size=4)
"""
    code = "\n".join(advised(text)[0].change)
    assert [one.name for one in ast.walk(ast.parse(code)) if isinstance(one, ast.FunctionDef)] == ["prepare_2"]
    assert "dataset.map(prepare_2)" in code


@pytest.mark.parametrize(
    ("code", "draws"),
    [
        ("torch.empty(4).normal_()", True),
        ("torch.empty(4).uniform_(0, 1)", True),
        ("torch.normal(0.0, 0.1, (4,))", True),
        ("torch.bernoulli(torch.ones(4) / 2)", True),
        ("torch.as_tensor(self.rng.integers(9))", True),
        ("torch.as_tensor(shared.integers(9))", True),
        ("self.noise()", True),
        ("torch.zeros(4).clamp_(0, 1)", False),
        ("torch.as_tensor(self.rows.index(i))", False),
    ],
)
def test_random_numbers_that_would_be_frozen_are_said(code, draws):
    text = f"""
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
shared = np.random.default_rng(1)
class Rows(Dataset):
    def __init__(self):
        self.rng, self.rows = np.random.default_rng(0), [0, 1, 2]
    def noise(self):
        return torch.randn(4)
    def __getitem__(self, i):
        if i % 2:
            return torch.zeros(4)
        return {code}
loader = DataLoader(Rows(), batch_size=4)
"""
    (one,) = advised(text)
    assert any("ShardWriter" in line for line in one.change)
    told = [note for note in one.notes if note.startswith("__getitem__ draws random numbers")]
    assert [note.endswith("what is stored with them is the same in each epoch") for note in told] == [True] * draws


OWN = """
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
shared = transforms.Compose([transforms.ToTensor(), transforms.RandAugment()])
plain = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.5, 0.5)])
class Rows(Dataset):
    def __init__(self):
        self.change = CHANGE
    def __getitem__(self, i):
        return self.change(made(i)), torch.tensor(i)
loader = DataLoader(Rows(), batch_size=4)
"""


@pytest.mark.parametrize(
    ("change", "draws"),
    [
        ("plain", False),
        ("transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.5, 0.5)])", False),
        ("transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])", True),
        ("shared", True),
    ],
)
def test_a_class_that_is_stored_with_its_own_transforms_has_no_cast_that_does_them_again(change, draws):
    told = advised(OWN.replace("CHANGE", change))
    (one,) = [one for one in told if one.about == "dataset"]
    assert any("ShardWriter" in line for line in one.change)
    assert any("are stored" in note or "stored with them" in note for note in one.notes) is draws
    line = "self.change = " if "Compose" in change else change
    assert not [one for one in told if one.about == "transform" and one.code.startswith(line)]


def test_a_random_transform_of_several_parts_at_once_is_mapped_to_none_of_them():
    text = OWN.replace("def __init__(self):", "def __init__(self, change):").replace("CHANGE", "change")
    text = text.replace("self.change(made(i)), torch.tensor(i)", "self.change(image_of(i), mask_of(i))")
    (one,) = [one for one in advised(text.replace("Rows()", "Rows(shared)")) if one.about == "dataset"]
    assert one.change == ()
    assert one.notes[0].startswith("not followed: transforms.Compose([transforms.RandAugment()]) changes several parts")
    (one,) = [one for one in advised(text.replace("Rows()", "Rows(plain)")) if one.about == "dataset"]
    assert any("ShardWriter" in line for line in one.change)


def test_a_transform_that_one_dataset_stores_and_another_needs_is_a_cast_of_the_other():
    text = OWN.replace("CHANGE", "plain").replace("from torchvision import", "from torchvision import datasets,")
    last = text.count("\n") + 1
    told = advised(f"{text}other = DataLoader(datasets.ImageFolder('photos', plain))\n")
    (one,) = [one for one in told if one.about == "transform" and "Normalize" in one.code]
    assert one.change[0].endswith(f"# in FastLoader of line {last}")


def test_placeholders_are_said_to_be_headings_of_columns():
    text = """
import os
import pandas as pd
from PIL import Image
from torch.utils.data import DataLoader, Dataset
class Photos(Dataset):
    def __init__(self, table, folder):
        self.table, self.folder = pd.read_csv(table), folder
    def __getitem__(self, i):
        image = Image.open(os.path.join(self.folder, self.table.iloc[i, 0]))
        return image, RETURNED
loader = DataLoader(Photos("train.csv", "photos"), batch_size=4)
"""
    (one,) = advised(text.replace("RETURNED", "self.table.iloc[i, 1]"))
    assert "NAME, COLUMN: the headings of columns 0 and 1 of train.csv" in one.notes
    (one,) = advised(text.replace("RETURNED", "self.table.iloc[i, 1], self.table.iloc[i, 2]"))
    assert "NAME, COLUMN_1, COLUMN_2: the headings of columns 0 and 1 and 2 of train.csv" in one.notes
    assert '.as_tuple("image", "COLUMN_1", "COLUMN_2")' in one.change[0]
    (one,) = advised(text.replace("RETURNED", 'self.table.iloc[i]["label"]'))
    assert "NAME: the heading of column 0 of train.csv" in one.notes


TURNS = """
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset
class Rows(Dataset):
    def __init__(self, first):
        self.first = first
    def __len__(self):
        return 3
    def __getitem__(self, i):
        return {"x": torch.tensor([self.first, i])}
found = []
"""


@pytest.mark.parametrize(
    "making",
    [
        "for first in (1, 5):\n    data = Rows(first)\n    found.append(DataLoader(data))",
        "for row in range(1, 6, 4):\n    first = row + 0\n    data = Rows(first)\n    found.append(DataLoader(data))",
        "def made(first):\n    data = Rows(first)\n    return DataLoader(data)\nfound += [made(1), made(first=5)]",
        "def made(first=1):\n    data = Rows(first)\n    return DataLoader(data)\n"
        "for other in [1, 5]:\n    found.append(made(other))",
    ],
)
def test_datasets_that_one_line_makes_are_stored_apart(making):
    (one,) = advised(TURNS + making)
    lines, place = (TURNS + making).splitlines(), int(one.where.removeprefix("in the place of line ")) - 1
    indent = " " * (len(lines[place]) - len(lines[place].lstrip()))
    lines[place : place + 1] = [f"{indent}{line}" for code in one.change for line in code.splitlines()]
    for _ in range(2):
        exec("\n".join(lines), names := {"memload": memload})
        assert [loader.dataset[0]["x"][0].item() for loader in names["found"]] == [1, 5]


@pytest.mark.parametrize(
    "making",
    [
        "for fold, (first, last) in enumerate([(1, 2), (5, 6)]):\n    data = Rows(first)\n    DataLoader(data)",
        "def made(first):\n    data = Rows(first)\n    return DataLoader(data)\nmade(len(found)), made(open)",
    ],
)
def test_folders_of_datasets_that_only_running_the_script_tells_apart_are_to_be_named(making):
    """Of two arrays the texts may be equal, and one set would be read in the place of the other."""
    (one,) = advised(TURNS + making)
    assert 'memload.open(f"train_shards/{NAME}/")' in one.change[-1]
    assert one.notes[-1].startswith("NAME: a text that tells the datasets of this line apart")


def test_datasets_of_a_comprehension_are_made_by_a_function():
    made = "data = ConcatDataset([Rows(first) for first in (1, 5)])\nloader = DataLoader(data)"
    (one,) = advised(TURNS + made)
    assert one.where == "in a function of first that returns `dataset`, called in the place of Rows(first)"
    body = "\n    ".join("\n".join(one.change).splitlines())
    function = f"def rows_of(first):\n    {body}\n    return dataset\n"
    exec(TURNS + function + made.replace("Rows(first)", "rows_of(first)"), names := {"memload": memload})
    loader = memload.FastLoader(names["data"], batch_size=6)
    assert loader.engine == "native", loader.why
    assert [batch["x"][:, 0].tolist() for batch in loader] == [[1, 1, 1, 5, 5, 5]]


OF_RUNS = """
import argparse
import torch
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __init__(self, split, root=""):
        self.first = {"train": 1, "test": 5}[split]
    def __len__(self):
        return 3
    def __getitem__(self, i):
        return {"x": torch.tensor([self.first, i])}
class Settled(Dataset):
    def __init__(self, settings):
        self.first = {"train": 1, "test": 5}[settings.split]
    def __len__(self):
        return 3
    def __getitem__(self, i):
        return {"x": torch.tensor([self.first, i])}
parser = argparse.ArgumentParser()
parser.add_argument("--split", default="train"DECLARED)
parser.add_argument("--root", default="photos")
args = parser.parse_args()
"""


@pytest.mark.parametrize("declared", ["", ', choices=["train", "test"]'])
@pytest.mark.parametrize(
    "making",
    [
        "data = Rows(args.split)\nloader = DataLoader(data)",
        "split = args.split\ndata = Rows(split=split)\nloader = DataLoader(data)",
        "def made(kind):\n    data = Rows(kind)\n    return DataLoader(data)\nloader = made(args.split)",
        "def made(options):\n    data = Rows(options.split)\n    return DataLoader(data)\nloader = made(args)",
        "data = Settled(args)\nloader = DataLoader(data)",
    ],
)
def test_a_dataset_of_an_option_of_the_command_line_is_not_that_of_another_value(making, declared, monkeypatch):
    text = f"{OF_RUNS.replace('DECLARED', declared)}{making}\n"
    (one,) = advised(text)
    lines, place = text.splitlines(), int(one.where.removeprefix("in the place of line ")) - 1
    indent = " " * (len(lines[place]) - len(lines[place].lstrip()))
    lines[place : place + 1] = [f"{indent}{line}" for code in one.change for line in code.splitlines()]
    for split, first in [("train", 1), ("test", 5)] * 2:
        monkeypatch.setattr("sys.argv", ["train.py", "--split", split])
        exec("\n".join(lines), names := {"memload": memload})
        assert names["loader"].dataset[0]["x"][0].item() == first


@pytest.mark.parametrize(
    ("making", "code"),
    [
        ("data = Rows('train', args.root)", "args.root"),
        ("import sys\ndata = Rows(sys.argv[1])", "sys.argv[1]"),
        ("import os\nsplit = os.environ['SPLIT']\ndata = Rows(split)", "os.environ['SPLIT']"),
        ("data = Rows(**vars(args))", "args"),
        ("from torchvision import datasets\ndata = datasets.ImageFolder(args.root)", "args.root"),
    ],
)
def test_what_changes_a_dataset_and_cannot_name_its_folder_is_said(making, code):
    (one,) = advised(f"{OF_RUNS.replace('DECLARED', '')}{making}\nloader = DataLoader(data)\n")
    assert f"{code} may change the data, and not the folder: give each value a folder of its own" in one.notes


def test_a_file_of_an_option_is_opened_by_it():
    text = OF_RUNS.replace("DECLARED", "").replace("self.first =", "self.file = np.load(f'{split}.npy')  #")
    text = f"import numpy as np\n{text.replace('torch.tensor([self.first, i])', 'self.file[i]')}"
    (one,) = advised(f"{text}data = Rows(args.split)\nloader = DataLoader(data)\n")
    assert one.change == ("data = memload.open(f'{args.split}.npy', field=\"x\")",)

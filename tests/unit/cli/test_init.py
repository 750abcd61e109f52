"""`memload init`: what it says of a script is what happens when the script runs, and its changes are safe."""

import ast
import json
import re
import subprocess
import textwrap

import pytest
import torch
import vision  # noqa: F401 - torchvision's transforms, where its operators do not load, too
from torchvision import transforms

import memload
from memload.cli import init
from memload.cli.main import main
from memload.cli.script import Script

HEAD = """
import torch, memload
from torch.utils.data import (
    ConcatDataset, DataLoader, Dataset, IterableDataset, StackDataset, Subset, TensorDataset, random_split
)
x, y = torch.arange(40.0).reshape(20, 2), torch.arange(20)
"""


def read(tmp_path, text, name="train.py"):
    (tmp_path / name).write_bytes(text.encode())
    return Script.read(tmp_path / name)


def found(tmp_path, text):
    return init.findings(read(tmp_path, text))


# Whether a loader is native: what is said beside what it is

NATIVE = {
    "tensors": ("data = TensorDataset(x, y)", "data", True),
    "split": ("train, valid = random_split(TensorDataset(x), [15, 5])", "train", True),
    "subset": ("data = Subset(TensorDataset(x), range(5))", "data", True),
    "joined": ("a = TensorDataset(x); data = ConcatDataset([a, TensorDataset(x)])", "data", True),
    "memload's own": ("data = memload.from_arrays(x=x)", "data", True),
    "a list": ("data = [(x[k], y[k]) for k in range(20)]", "data", False),
    "a class that computes": (
        """
        class Data(Dataset):
            def __len__(self):
                return 20
            def __getitem__(self, k):
                return x[k] * 2
        data = Data()
        """,
        "data",
        False,
    ),
    "a class that says what it holds": (
        """
        class Data(Dataset):
            def __len__(self):
                return 20
            def __getitem__(self, k):
                return x[k]
            def __memload__(self):
                return memload.from_arrays(x=x).only("x")
        """,
        "Data()",
        True,
    ),
    "part of what computes": (
        """
        class Data(Dataset):
            def __len__(self):
                return 20
            def __getitem__(self, k):
                return x[k] * 2
        """,
        "ConcatDataset([TensorDataset(x), Subset(Data(), [1, 2])])",
        False,
    ),
    "an iterable": (
        """
        class Data(IterableDataset):
            def __iter__(self):
                return iter(x)
        """,
        "Data()",
        False,
    ),
    "what a function returns": ("def made():\n    return TensorDataset(x)", "made()", None),
    "a dict of datasets": ("sets = {name: TensorDataset(x) for name in ('a', 'b')}", "sets['a']", True),
    "a collate function": (
        "def pick(samples):\n    return samples[0]\ndata = TensorDataset(x)",
        "data, collate_fn=pick",
        False,
    ),
}


@pytest.mark.parametrize("kind", NATIVE)
def test_what_is_said_to_be_native_is(tmp_path, kind):
    before, argument, native = NATIVE[kind]
    text = f"{HEAD}{textwrap.dedent(before)}\nloader = DataLoader({argument})\n"
    (one,) = [one for one in found(tmp_path, text) if one.about == "loader"]
    assert one.native is native
    names = {}
    exec(init.converted(read(tmp_path, text)), names)
    assert isinstance(names["loader"], memload.FastLoader)
    assert names["loader"].engine == {True: "native", False: "torch", None: "native"}[native]


def test_a_class_that_only_indexes_arrays_gets_the_method_that_makes_it_native(tmp_path):
    for returned in ("self.a[k], self.b[k]", '{"one": self.a[k], "two": self.b[k]}'):
        made = f"""
class Data(Dataset):
    def __init__(self):
        self.a, self.b = x, y
    def __len__(self):
        return 20
    def __getitem__(self, k):
        return {returned}
"""
        (advice,) = [one for one in found(tmp_path, f"{HEAD}{made}\nDataLoader(Data())") if one.about == "dataset"]
        method = textwrap.indent("\n".join(advice.change), "    ")
        names = {}
        exec(f"{HEAD}{made}{method}\nloader = memload.FastLoader(Data(), 4)\nstock = DataLoader(Data(), 4)", names)
        assert names["loader"].engine == "native"
        for ours, theirs in zip(names["loader"], names["stock"], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_classes_that_do_more_than_index_get_no_such_method(tmp_path):
    for returned in ("self.a[k] + 1, self.b[k]", "self.a[k], self.a[k]", "self.a[k - 1], self.b[k]", "self.a[k]"):
        made = f"class Data(Dataset):\n    def __getitem__(self, k):\n        return {returned}\n"
        advice = [one for one in found(tmp_path, f"{HEAD}{made}DataLoader(Data())") if one.about == "dataset"]
        assert not any("__memload__" in line for one in advice for line in one.change)


def test_files_that_a_class_reads_name_what_opens_them(tmp_path):
    for call, words in (
        ('h5py.File("trials.h5")["x"][k]', 'memload.open("trials.h5"'),
        ('np.load("x.npy", mmap_mode="r")[k]', 'memload.open("x.npy"'),
        ("Image.open(self.paths[k])", "memload write --images"),
        ("compute(k)", "memload.ShardWriter"),
    ):
        text = f"""
import h5py
import numpy as np
from PIL import Image
from torch.utils import data
class Data(data.Dataset):
    def __getitem__(self, k):
        return {call}
data.DataLoader(Data())
"""
        (advice,) = [one for one in found(tmp_path, text) if one.about == "dataset"]
        assert words in "\n".join(advice.change + advice.commands), call


# Arguments, loops and transforms


def test_arguments_that_mean_something_else_are_named_and_those_of_no_effect_are_not(tmp_path):
    text = f"{HEAD}DataLoader(TensorDataset(x),\n    num_workers=4,\n    pin_memory=False, prefetch_factor=2)\n"
    told = [(one.line, one.why.partition(":")[0]) for one in found(tmp_path, text) if one.about == "argument"]
    first = HEAD.count("\n") + 1
    assert told == [(first + 1, "num_workers=4"), (first + 2, "prefetch_factor=2")]


def test_an_argument_of_several_loaders_is_told_once_at_the_first(tmp_path):
    text = f"""{HEAD}DataLoader(TensorDataset(x), num_workers=4)
DataLoader(TensorDataset(x), num_workers=0)
DataLoader([1, 2], num_workers=3)
DataLoader(TensorDataset(x), num_workers=4, pin_memory=True)
"""
    first = HEAD.count("\n") + 1
    told = [(one.line, one.why) for one in found(tmp_path, text) if one.about == "argument"]
    assert [line for line, _ in told] == [first, first + 3]
    assert told[0][1].startswith(f"num_workers=4, likewise in lines {first + 2}, {first + 3}: as before while torch's")
    assert "processes" not in told[0][1]
    assert told[1][1].startswith("pin_memory=True: with a GPU")


@pytest.mark.parametrize(
    ("calls", "native"),
    [
        ("make(TensorDataset(x)); make(dataset=[1, 2])", False),
        ("make(TensorDataset(x)); make(unknown())", None),
        ("make(TensorDataset(x)); make(TensorDataset(y))", True),
        ("make()", False),
        ("", None),
    ],
)
def test_a_loader_of_a_functions_argument_is_as_what_the_function_is_given(tmp_path, calls, native):
    default = "=[3]" * (calls == "make()")
    text = f"{HEAD}def make(dataset{default}):\n    return DataLoader(dataset)\n{calls}\n"
    (one,) = [one for one in found(tmp_path, text) if one.about == "loader"]
    assert one.native is native
    assert ("gives it" in one.why) is bool(calls)
    datasets = [other.line for other in found(tmp_path, text) if other.about == "dataset"]
    assert datasets == {"make()": [one.line - 1], "make(TensorDataset(x)); make(dataset=[1, 2])": [one.line + 1]}.get(
        calls, []
    )


def test_what_is_said_of_transforms_begins_a_sentence(tmp_path):
    text = """from torchvision import datasets, transforms
from torch.utils.data import DataLoader
casts = {"a": transforms.Compose([transforms.ToTensor()]), "b": transforms.Compose([transforms.Pad(4)])}
loaders = {x: DataLoader(datasets.ImageFolder(x, casts[x])) for x in ["a", "b"]}
"""
    assert [one.why.partition(" ")[0] for one in found(tmp_path, text) if one.about == "transform"] == [
        "A",
        "Rows",
        "The",
    ]


def test_loops_that_move_or_convert_batches_are_told_also_in_functions_that_are_given_the_loader(tmp_path):
    text = f"""{HEAD}
loader = DataLoader(TensorDataset(x, y))
def train(batches, device):
    for step, (a, b) in enumerate(batches):
        a = a.to(device)
        other = x.to(device)
        b = b.float() / 255
        total = b.cuda(non_blocking=True)
train(loader, "cpu")
"""
    loops = [one for one in found(tmp_path, text) if one.about == "loop"]
    assert [one.code for one in loops] == [
        "a = a.to(device)",
        "b = b.float() / 255",
        "total = b.cuda(non_blocking=True)",
    ]
    assert [one.change[0].split("=")[0] for one in loops] == ["device", "cast", "device"]


def test_the_cast_of_transforms_does_what_they_do(tmp_path):
    compose = "transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.4, 0.5, 0.6], (0.2, 0.3, 0.25))])"
    text = f"""
from torchvision import datasets, transforms
from torch.utils.data import DataLoader
data = datasets.CIFAR10("here", transform={compose})
DataLoader(data)
"""
    (one,) = [one for one in found(tmp_path, text) if one.about == "transform"]
    cast = eval(one.change[0].removeprefix("cast="), {"memload": memload, "torch": torch})["image"]
    images = torch.randint(0, 256, (4, 5, 6, 3), dtype=torch.uint8)
    made = next(
        iter(
            memload.FastLoader(
                memload.from_arrays(image=images.permute(0, 3, 1, 2).contiguous()), 4, cast={"image": cast}
            )
        )
    )["image"]
    wanted = torch.stack([eval(compose, {"transforms": transforms})(image.numpy()) for image in images])
    torch.testing.assert_close(made, wanted)


def test_transforms_that_no_cast_does_are_named(tmp_path):
    text = """
from torchvision import datasets, transforms
from torch.utils.data import DataLoader
jitter = transforms.ColorJitter(0.1)
change = transforms.Compose([transforms.RandomResizedCrop(24), jitter, transforms.Resize(9), given_elsewhere])
DataLoader(datasets.ImageFolder("photos", transform=change))
"""
    (transform,) = [one for one in found(tmp_path, text) if one.about == "transform"]
    assert "augment=memload.Augment(resize=(24, 24), scale=(0.08, 1))" in transform.change[0]
    assert "Resize is done once, by the command of line 6" in transform.notes[0]
    assert transform.notes[1].startswith("not followed: ColorJitter, given_elsewhere:")
    assert transform.notes[1].endswith("tuples of fn have no names, so the cast is then cast={0: ...}")
    (advice,) = [one for one in found(tmp_path, text) if one.about == "dataset"]
    assert advice.commands[0].startswith("memload write --images photos --labels folders")


# The changes


@pytest.mark.parametrize(
    "text",
    [
        "from torch.utils.data import DataLoader\nx = DataLoader(data)\n",
        "import torch\nx = torch.utils.data.DataLoader(data)\n",
        "import torch.utils.data as d\nx = {k: d.DataLoader(data) for k in 'ab'}\n",
        "from torch.utils.data import DataLoader as L\nprint('ä'); x = L(\n    data,\n    2)\n",
        '"""Words."""\nfrom torch.utils.data import DataLoader\nx, y = DataLoader(data), DataLoader(data)',
        "import memload\nfrom torch.utils.data import DataLoader\nx = DataLoader(data)\n",
        "def f():\n    from torch.utils.data import DataLoader\n    return DataLoader(data)\n",
        '"""Words."""\ndef f():\n    from torch.utils.data import DataLoader\n    return DataLoader(data)\n',
        "from __future__ import annotations\r\nfrom torch.utils.data import DataLoader\r\nx = DataLoader(data)\r\n",
        "from torch.utils.data import DataLoader\nx = (DataLoader)(data)\n",
    ],
)
def test_changes_are_the_import_and_the_class_and_nothing_else(tmp_path, text):
    changed = init.converted(read(tmp_path, text))
    tree = ast.parse(changed)
    assert changed.count("import memload") == 1
    assert "DataLoader(" not in changed.replace("FastLoader(", "").replace("StatefulDataLoader(", "")
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and "Loader" in ast.unparse(node.func)]
    assert calls
    assert all(ast.unparse(call.func) == "memload.FastLoader" for call in calls)
    kept = changed.replace("memload.FastLoader", "L")
    assert all(line in kept or "Loader" in line or "L(" in line for line in text.splitlines())
    assert ("\r\n" in text) == ("import memload\r\n" in changed)


def test_the_patch_applies_and_the_copy_is_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = f"{HEAD}loader = DataLoader(TensorDataset(x, y), 4)"  # no newline at the end
    script = read(tmp_path, text)
    assert main(["init", "train.py", "--write", "copy.py"]) == 0
    assert "Written: copy.py" in capsys.readouterr().out
    assert (tmp_path / "copy.py").read_text() == init.converted(script)
    assert main(["init", "train.py", "--write", "copy.py"]) == 2
    assert "copy.py is there already" in capsys.readouterr().err
    assert main(["init", "train.py", "--diff"]) == 0
    patch = capsys.readouterr().out
    applied = subprocess.run(
        ["git", "apply", "--unsafe-paths", "-p0", "-"], input=patch, text=True, capture_output=True
    )
    assert applied.returncode == 0, applied.stderr
    assert (tmp_path / "train.py").read_text() == init.converted(script)


def test_a_converted_script_gives_the_same_batches(tmp_path):
    text = f"{HEAD}loader = DataLoader(TensorDataset(x, y), 4, shuffle=True, num_workers=0)\n"
    names = {}
    for name, program in (("stock", text), ("fast", init.converted(read(tmp_path, text)))):
        exec(program, space := {})
        torch.manual_seed(3)
        names[name] = [tuple(part.tolist() for part in batch) for batch in space["loader"]]
    assert names["fast"] == names["stock"]


def test_what_cannot_be_changed_safely_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"train\.py: the name memload is that of something else here"):
        init.converted(read(tmp_path, f"{HEAD.replace(', memload', '')}memload = 3\nDataLoader(TensorDataset(x))"))
    text = (
        f"{HEAD}from functools import partial\nclass Mine(DataLoader): pass\nmake = partial(DataLoader, batch_size=2)\n"
    )
    about = [(one.about, one.safe) for one in found(tmp_path, f"{text}isinstance(make, DataLoader)\n")]
    assert about == [("class", False), ("class", False)]


def test_a_script_without_a_loader_says_where_to_look(tmp_path, capsys):
    read(tmp_path, "print(1)\n")
    assert main(["init", str(tmp_path / "train.py")]) == 0
    said = capsys.readouterr().out
    assert "no loader is made here, so there is nothing to change" in said
    assert "torch.utils.data.DataLoader, torchdata's StatefulDataLoader" in said
    assert "Modules that it imports are not read: give the file that makes the loader" in said


@pytest.mark.parametrize(
    ("stated", "where"),
    [
        ("Project-URL: Source, https://h/x\nProject-URL: Documentation, https://h/x/blob/v1/docs/README.md", None),
        ("Project-URL: Source, https://h/x", "a folder of memload's sources"),
    ],
)
def test_the_pages_are_where_the_package_says(tmp_path, monkeypatch, capsys, stated, where):
    (tmp_path / "memload-0.1.0.dist-info").mkdir()
    (tmp_path / "memload-0.1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.4\nName: memload\n{stated}\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "train.py").write_text("from torch.utils.data import DataLoader\nloader = DataLoader([1, 2])\n")
    assert main(["init", str(tmp_path / "train.py")]) == 0
    assert capsys.readouterr().out.rstrip().endswith(f"docs is {where or 'https://h/x/blob/v1/docs'}")


@pytest.mark.parametrize(
    ("step", "advice"),
    [
        ("RandomResizedCrop(224, (0.5, 1.0), ratio=(1, 1))", "resize=(224, 224), scale=(0.5, 1.0), ratio=(1, 1)"),
        ("RandomResizedCrop(size=side, scale=[0.2, 1])", "resize=(64, 64), scale=(0.2, 1)"),
        ("RandomResizedCrop(32)", "resize=(32, 32), scale=(0.08, 1))"),
        ("RandomResizedCrop(32, interpolation=NEAREST)", "RandomResizedCrop: dataset.map(fn)"),
        ("Resize(side), CenterCrop((side, 48))", "--size 64 --fit crop --crop 64x48"),
        ("Resize([300])", "--size 300 --fit crop"),
        ("Resize(max_size)", "--size N --fit crop  # N: the number max_size"),
        (
            "Grayscale(), ColorJitter(), GaussianBlur(3), Pad(4)",
            "Grayscale, ColorJitter, GaussianBlur, Pad: dataset.map",
        ),
    ],
)
def test_steps_keep_what_they_are_given(tmp_path, step, advice):
    steps = ", ".join(f"T.{one}" for one in re.split(r", (?=[A-Z])", step))
    text = f"from torchvision import transforms as T\nside = 64\nsteps = T.Compose([{steps}])\n"
    path = tmp_path / "steps.py"
    path.write_text(text)
    ((_, line, cast, notes),) = init.casts_of_transforms(Script.read(path))
    assert line == 3
    assert advice in "\n".join((cast, *notes))


def test_names_of_an_import_of_all_are_known(tmp_path, capsys):
    (tmp_path / "train.py").write_text(
        "from torch.utils.data import *\nloader = DataLoader(TensorDataset(x), batch_size=4)\n"
    )
    assert main(["init", str(tmp_path / "train.py")]) == 0
    assert "1 loader: 1 native" in capsys.readouterr().out


def test_other_loaders_have_their_page(tmp_path):
    text = "from torch_geometric.loader import DataLoader\nfrom ffcv.loader import Loader\n"
    text += "DataLoader(g, 8, follow_batch=['x'])\nLoader('x')\n"
    graphs, ffcv = found(tmp_path, text)
    assert graphs.change == (
        "memload.FastLoader(memload.from_graphs(g), 8, collate_fn=functools.partial(memload.graph_collate, "
        "follow_batch=['x']))",
    )
    assert "docs/migration.md" in ffcv.why
    assert init.converted(read(tmp_path, text)) == text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"loader = DataLoader(", "train.py:1: this Python cannot parse it"),
        (b"\xff\xfe", "not a Python script"),
        (b"x\0", "cannot parse it"),
        (b"(" * 200_000, "train.py"),
    ],
)
def test_files_that_are_no_scripts_are_refused_in_a_line(tmp_path, capsys, content, words):
    (tmp_path / "train.py").write_bytes(content)
    assert main(["init", str(tmp_path / "train.py")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_odd_scripts_are_read(tmp_path):
    for text in (
        "# no statement\n",
        "\ufeffimport torch\nx = torch.utils.data.DataLoader(*a, **k)\n",
        "x = x = DataLoader\nx = x\nfrom torch.utils.data import DataLoader\nx = DataLoader(x)\n",
        "from torch.utils.data import DataLoader, ConcatDataset\na = ConcatDataset([a])\nDataLoader(dataset=a)\n",
        "from torch.utils.data import DataLoader\nfor a in DataLoader(x): a.to(0)\n",
        "from torch.utils.data import DataLoader\nDataLoader((lambda: 0)())\n",
        "from torchvision.transforms import *\nfrom torch.utils.data import *\nCompose([Normalize()])\n",
    ):
        script = read(tmp_path, text)
        init.report(script, init.findings(script))
        ast.parse(init.converted(script))


def test_the_json_has_findings_and_patch(tmp_path, capsys):
    read(tmp_path, f"{HEAD}loader = DataLoader(TensorDataset(x))\n")
    assert main(["init", str(tmp_path / "train.py"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["findings"][0]["native"] is True
    assert "+loader = memload.FastLoader(TensorDataset(x))" in made["patch"]


def test_a_lone_to_tensor_has_its_cast_and_the_advice_has_the_names_of_the_script(tmp_path):
    text = """
from torchvision import datasets
from torchvision.transforms import ToTensor
from torch.utils.data import DataLoader
training_data = datasets.FashionMNIST("here", transform=ToTensor())
train = DataLoader(training_data, batch_size=64)
again = DataLoader(training_data, batch_size=32)
"""
    (cast,) = [one.change[0] for one in found(tmp_path, text) if one.about == "transform"]
    cast = cast.removesuffix("  # in FastLoader of lines 6, 7")
    assert cast == 'cast={"image": memload.Cast(torch.float32, std=255, channels=-3)}'
    (dataset,) = [one.change[0] for one in found(tmp_path, text) if one.about == "dataset"]
    assert dataset.startswith("training_data = memload.from_arrays(image=training_data.data")
    grey = memload.from_arrays(image=torch.zeros(4, 1, 28, 28, dtype=torch.uint8), label=torch.arange(4))
    options = eval(f"dict({cast})", {"memload": memload, "torch": torch})
    image, _ = next(iter(memload.FastLoader(grey.as_tuple("image", "label"), 4, **options)))
    assert (image.dtype, image.shape) == (torch.float32, (4, 1, 28, 28))


def test_arguments_that_are_not_read_are_told(tmp_path):
    text = """
import torch
from torch.utils.data import DataLoader
more = {"num_workers": 4}
DataLoader(torch.zeros(4), **more)
"""
    (one,) = [one for one in found(tmp_path, text) if one.about == "loader"]
    assert "**arguments were not read" in one.why


FOLDERS = """
import os
from torchvision import datasets, transforms
from torch.utils.data import DataLoader
crops = {
    "train": transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()]),
    "val": transforms.Compose([transforms.Resize(256), transforms.CenterCrop((224, 200)), transforms.ToTensor()]),
}
root = "photos"
sets = {x: datasets.ImageFolder(os.path.join(root, x), crops[x]) for x in ["train", "val"]}
loaders = {x: DataLoader(sets[x], num_workers=4) for x in ["train", "val"]}
device = "cuda"
for inputs, labels in loaders["train"]:
    inputs = inputs.to(device)
    labels = labels.to(device)
"""


def test_each_folder_of_a_loader_has_a_command(tmp_path):
    (advice,) = [one for one in found(tmp_path, FOLDERS) if one.about == "dataset"]
    assert advice.commands == (
        "memload write --images photos/train --labels folders --size N --fit crop shards/train/",
        "memload write --images photos/val --labels folders --size 256 --fit crop --crop 224x200 shards/val/",
    )


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("f'photos/{part}'", "photos/a"),
        ("pathlib.Path('photos') / part", "photos/a"),
        ("'photos-' + part", "photos-a"),
        ("sys.argv[1]", "DIR"),
        ("f'{part:>9}'", "DIR"),
    ],
)
def test_folders_are_those_of_the_script_where_it_says_them(tmp_path, path, folder):
    text = f"""
import pathlib, sys
from torchvision import datasets
from torch.utils.data import DataLoader
part = "a"
DataLoader(datasets.ImageFolder({path}))
"""
    (advice,) = [one for one in found(tmp_path, text) if one.about == "dataset"]
    assert advice.commands[0].startswith(f"memload write --images {folder} --labels folders")


def test_a_folder_by_the_number_of_a_turn_is_left_to_the_user(tmp_path):
    text = """
from torchvision import datasets
from torch.utils.data import ConcatDataset, DataLoader
DataLoader(ConcatDataset([datasets.ImageFolder(f"photos/{k}") for k in range(3)]))
"""
    (advice,) = [one for one in found(tmp_path, text) if one.about == "dataset"]
    assert advice.commands[0].startswith("memload write --images DIR ")


def test_an_element_of_a_dict_is_the_dataset_of_its_key(tmp_path):
    text = f"""{HEAD}
from torchvision import datasets
sets = {{"train": TensorDataset(x), "val": datasets.ImageFolder("photos")}}
DataLoader(sets["train"])
DataLoader(sets["val"])
"""
    loaders = [one for one in found(tmp_path, text) if one.about == "loader"]
    assert [one.native for one in loaders] == [True, False]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("train, val = DataLoader(x), DataLoader(y)", "train"),
        ("loaders = {}\nloaders['val'] = DataLoader(x)", "loaders['val']"),
        ("loaders = {}\nfor part in ('a', 'b'):\n    loaders[part] = DataLoader(x)", "loaders['a']"),
    ],
)
def test_the_last_lines_ask_a_loader_by_its_name(tmp_path, monkeypatch, capsys, code, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(f"{HEAD}{code}\n")
    assert main(["init", "train.py"]) == 0
    assert f"print({name}.engine, {name}.why)" in capsys.readouterr().out


def test_sizes_of_transforms_are_those_of_the_command(tmp_path):
    _, transform, loader = [one for one in found(tmp_path, FOLDERS) if one.about == "transform"]
    assert "Resize and CenterCrop are done once, by the command of line 10" in transform.notes
    assert (transform.where, transform.change[0].partition(" ")[0]) == ("below line 8", "crops_casts['val']")
    assert loader.change == ('cast={"image": crops_casts[x]}  # in FastLoader',)
    alone = FOLDERS.replace("crops[x]", "None")
    _, transform = [one for one in found(tmp_path, alone) if one.about == "transform"]
    assert (
        "Resize and CenterCrop are done once, by memload write --images DIR --size 256 --fit crop --crop 224x200"
        in (transform.notes)
    )
    assert transform.change[0].startswith('cast={"image": memload.Cast(')


def test_a_device_that_is_made_behind_the_loader_is_told_and_its_advice_is_given_once(tmp_path):
    loops = [one for one in found(tmp_path, FOLDERS) if one.about == "loop"]
    assert [one.why for one in loops][1:] == ["likewise"]
    assert loops[0].change == ("device=device  # in FastLoader; line 12 makes device, and has to come before line 11",)


def test_arguments_of_torchs_own_code_keep_their_meaning_there(tmp_path):
    (argument,) = [one for one in found(tmp_path, FOLDERS) if one.about == "argument"]
    assert argument.why.startswith("num_workers=4: as before while torch's own code loads; once the loader is native")


def test_transforms_that_the_script_defines_are_not_torchvisions(tmp_path):
    text = """
from torchvision import transforms
from torch.utils.data import DataLoader
class RandomCrop:
    def __call__(self, sample): ...
DataLoader(x, transform=transforms.Compose([RandomCrop(224), transforms.RandomHorizontalFlip()]))
"""
    (transform,) = [one for one in found(tmp_path, text) if one.about == "transform"]
    assert "crop=" not in transform.change[0]
    assert "(boxes, landmarks) do not follow" in transform.why
    assert transform.notes[0].startswith("not followed: RandomCrop: dataset.map(fn)")


def test_a_name_that_is_assigned_a_part_of_itself_is_followed_once(tmp_path):
    text = f"{HEAD}ds = TensorDataset(x)\nds = Subset(\n    ds, [1, 2])\nds = Subset(ds, [0])\nDataLoader(ds)\n"
    (loader,) = [one for one in found(tmp_path, text) if one.about == "loader"]
    assert (loader.native, loader.why.count("Subset of")) == (True, 2)


def test_the_dataset_below_a_collate_function_has_its_advice_too(tmp_path):
    text = """
from PIL import Image
from torch.utils.data import DataLoader
class Photos:
    def __getitem__(self, k):
        return Image.open(f"{k}.png")
DataLoader(Photos(), collate_fn=lambda batch: tuple(zip(*batch)))
"""
    told = [one for one in found(tmp_path, text) if one.about == "dataset"]
    changes = ["\n".join([*one.commands, *one.notes]) for one in told]
    assert sorted("memload write --images" in change for change in changes) == [False, True]
    assert sorted("batch_transform=fn" in change for change in changes) == [False, True]


def test_a_function_of_labels_is_not_left_out_in_silence(tmp_path):
    text = """
from torchvision.datasets import MNIST
from torch.utils.data import DataLoader
digits = MNIST("here", target_transform=one_hot)
DataLoader(digits)
"""
    (advice,) = [one for one in found(tmp_path, text) if one.about == "dataset"]
    assert "target_transform=one_hot" in advice.notes[0]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nothing.py", "nothing.py: there is nothing at this path, in the folder "),
        ("x", "; that folder holds 'empty.py', 'folder', 'train.py', 'wrong.py', '.git'; give the path"),
        (
            "trian.py",
            "similar names there: 'train.py', 'wrong.py'; give the path of the script that makes the DataLoader",
        ),
        (".", ".: a folder; give one script: `memload init train.py`"),
        ("folder", "folder: a folder; give the path of the script that makes the DataLoader: no .py file directly in"),
        ("empty.py", "empty.py: the file is empty; give the path of the script that makes the DataLoader"),
        ("wrong.py", "wrong.py:2: this Python cannot parse it: invalid syntax, in `x = = 1`; correct the line, or run"),
    ],
)
def test_a_path_of_no_script_is_an_error_with_the_next_step(tmp_path, monkeypatch, capsys, path, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / ".git").mkdir()
    for name, text in (("train.py", "DataLoader(x)"), ("empty.py", " \n"), ("wrong.py", "y = 1\nx = = 1\n")):
        (tmp_path / name).write_text(text)
    assert main(["init", path]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1

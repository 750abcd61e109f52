"""`memload init`: encodings, paths, loops and what else a script says, as its advice has them."""

import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import vision  # noqa: F401 - torchvision's transforms, where its operators do not load, too
from PIL import Image

import memload
from memload.cli import init
from memload.cli.main import main
from memload.cli.script import Script

HEAD = "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\nx = y = torch.arange(8.0)\n"


def found(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    return init.findings(Script.read(tmp_path / "train.py"))


# Encodings and lines


def test_a_script_in_the_encoding_that_it_declares_is_read_patched_and_copied(tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    text = f"# -*- coding: latin-1 -*-\n{HEAD}loader = DataLoader(TensorDataset(x))  # für Mäuse\n"
    (tmp_path / "train.py").write_bytes(text.encode("latin-1"))
    assert main(["init", "train.py", "--write", "copy.py"]) == 0
    copy = (tmp_path / "copy.py").read_bytes()
    assert "memload.FastLoader(TensorDataset(x))  # für Mäuse" in copy.decode("latin-1")
    capfdbinary.readouterr()
    assert main(["init", "train.py", "--diff"]) == 0
    patch = capfdbinary.readouterr().out
    applied = subprocess.run(["git", "apply", "--unsafe-paths", "-p0", "-"], input=patch, capture_output=True)
    assert applied.returncode == 0, applied.stderr
    assert (tmp_path / "train.py").read_bytes() == copy


@pytest.mark.parametrize(
    ("first", "encoding", "words"),
    [
        ("", "latin-1", "byte 6 (0xe4, line 2) is not utf-8, the file declares no other encoding: save it as UTF-8"),
        ("# coding: ascii\n", "latin-1", "byte 22 (0xe4, line 3) is not ascii, which the file declares"),
        ("# coding: klingon\n", "utf-8", "unknown encoding: klingon"),
    ],
)
def test_bytes_of_another_encoding_are_an_error_with_their_place(tmp_path, capsys, first, encoding, words):
    (tmp_path / "train.py").write_bytes(f"{first}\nx = 'ä'\n".encode(encoding))
    assert main(["init", str(tmp_path / "train.py")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_lines_are_those_that_python_counts(tmp_path):
    text = f"{HEAD}# a page ends here:\x0c and a line at\u2028 this\nloader = DataLoader(TensorDataset(x))\n"
    (one,) = [one for one in found(tmp_path, text) if one.about == "loader"]
    assert one.code == "loader = DataLoader(TensorDataset(x))"
    changed = init.converted(Script.read(tmp_path / "train.py"))
    assert "\nloader = memload.FastLoader(TensorDataset(x))\n" in changed


# Loops


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        (
            "a = a.to(device).float() / 255",
            ["device=device", "cast={0: memload.Cast(torch.float32, std=255)}"],
        ),
        ("b = b.to(device, torch.float16)", ["device=device", "cast={1: memload.Cast(torch.float16)}"]),
        ("b = (b.float() - 127) / 255", ["cast={1: memload.Cast(torch.float32, mean=127, std=255)}"]),
        ("c = a.double() * b", ["cast={0: memload.Cast(torch.float64)}"]),
    ],
)
def test_a_line_that_moves_and_converts_is_told_both(tmp_path, line, changes):
    text = f"{HEAD}device = 'cpu'\nfor a, b in DataLoader(TensorDataset(x, y)):\n    {line}\n"
    text = text.replace("for a, b in DataLoader(", "loader = DataLoader(").replace("y)):", "y))\nfor a, b in loader:")
    loops = [one for one in found(tmp_path, text) if one.about == "loop"]
    assert [one.change[0].partition("  #")[0] for one in loops] == changes


@pytest.mark.parametrize(
    ("line", "cast", "left"),
    [
        ("a = a.float().div(255)", "{0: memload.Cast(torch.float32, std=255)}", "a.float().div(255) becomes a here"),
        (
            "a = a.to(device).float() / 255",
            "{0: memload.Cast(torch.float32, std=255)}",
            "a.to(device).float() / 255 becomes a.to(device) here",
        ),
        ("a = a.permute(0, 3, 1, 2).float() / 255", "{0: memload.Cast(torch.float32)}", ""),
        ("c = b[0].float() / 255", "{1: memload.Cast(torch.float32, std=255)}", "b[0].float() / 255 becomes b[0] here"),
        ("b = b.double()", "{1: memload.Cast(torch.float64)}", ""),
    ],
)
def test_a_conversion_that_a_cast_would_do_twice_is_said_to_go(tmp_path, line, cast, left):
    text = f"{HEAD}device = 'cpu'\nloader = DataLoader(TensorDataset(x, y))\nfor a, b in loader:\n    {line}\n"
    (told,) = [one for one in found(tmp_path, text) if one.about == "loop" and "cast=" in one.change[0]]
    assert told.change[0].startswith(f"cast={cast}  #")
    assert told.why.partition("; ")[2] == (f"{left}, since it would be done twice" if left else "")


def test_a_field_that_lines_convert_in_several_ways_is_cast_to_floats_and_the_lines_stay(tmp_path):
    text = f"{HEAD}loader = DataLoader(TensorDataset(x, y))\nfor a, b in loader:\n    c = a.float() / 255\n"
    (first, second) = [one for one in found(tmp_path, f"{text}    d = a.float() / 4\n") if one.about == "loop"]
    assert first.change[0].startswith("cast={0: memload.Cast(torch.float32)}  #")
    assert "twice" not in first.why + second.why


def test_the_first_loop_is_told_and_later_ones_likewise(tmp_path):
    text = f"""{HEAD}loader = DataLoader(TensorDataset(x))
def train():
    for epoch in range(3):
        for a, in loader:
            a.cuda()
train()
for a, in loader:
    a.cuda()
"""
    loops = [(one.line, one.why) for one in found(tmp_path, text) if one.about == "loop"]
    assert [line for line, _ in loops] == [8, 11]
    assert [why == "likewise" for _, why in loops] == [False, True]


@pytest.mark.parametrize(
    ("makes", "calls", "lines"),
    [
        ("    return train, DataLoader(TensorDataset(y))", "one, other = made()", [(4,), (5,)]),
        ("    other = DataLoader(TensorDataset(y))\n    return (train, other)", "one, other = made()", [(4,), (5,)]),
        ("    return {'train': train}", "one = made()['train']\nother = one", [(4,), (4,)]),
        ("    return train", "one = made()\nother = given(one)", [(4,), (4,)]),
    ],
)
def test_loops_over_what_functions_return_are_those_of_their_loaders(tmp_path, makes, calls, lines):
    text = f"""{HEAD.strip()}
def made():
    train = DataLoader(TensorDataset(x))
{makes}
def given(loader):
    return loader
{calls}
for a, in one:
    a = a.float()
for a, in other:
    a = a.cuda()
"""
    lines = [tuple(line + text.splitlines().index("def made():") - 2 for line in one) for one in lines]
    loops = {one.code: one.of for one in found(tmp_path, text) if one.about == "loop"}
    assert loops == {"a = a.float()": lines[0], "a = a.cuda()": lines[1]}


def test_loops_over_the_call_of_a_function_are_those_of_what_it_returns(tmp_path):
    text = f"{HEAD}def made():\n    return DataLoader(TensorDataset(x))\nfor a, in made():\n    a = a.cuda()\n"
    assert [one.change for one in found(tmp_path, text) if one.about == "loop"] == [('device="cuda"  # in FastLoader',)]


# Folders


@pytest.mark.parametrize(
    ("before", "path"),
    [
        ("import argparse\np = argparse.ArgumentParser()\np.add_argument('--root', default='photos')", "args.root"),
        ("config = {'root': 'photos'}", "config['root']"),
        ("from pathlib import Path\nroot = Path('data').joinpath('..')", "str(root / 'photos')"),
        ("root = 'photos'", "root"),
    ],
)  # fmt: skip
def test_folders_of_options_and_settings_are_known(tmp_path, before, path):
    text = f"{before}\nfrom torchvision import datasets\n{HEAD}DataLoader(datasets.ImageFolder({path}))\n"
    (advice,) = [one for one in found(tmp_path, text) if one.about == "dataset"]
    folder = "data/../photos" if "Path" in before else "photos"
    assert advice.commands[0].startswith(f"memload write --images {folder} --labels folders")


def test_folders_that_a_function_is_given_are_known_by_its_one_call(tmp_path):
    text = f"""from torchvision import datasets
{HEAD}
def made(root="other", size=3):
    return DataLoader(datasets.ImageFolder(root=root))
loader = made("photos")
"""
    (advice,) = [one for one in found(tmp_path, text) if one.about == "dataset"]
    assert advice.commands[0].startswith("memload write --images photos ")
    (advice,) = [one for one in found(tmp_path, text.replace('"photos"', "")) if one.about == "dataset"]
    assert advice.commands[0].startswith("memload write --images other ")
    (advice,) = [one for one in found(tmp_path, f"{text}more = made('third')\n") if one.about == "dataset"]
    assert advice.commands[0].startswith("memload write --images DIR ")


@pytest.mark.parametrize(
    ("made", "labels"),
    [
        ('ImageFolder("photos")', [0, 1]),
        ('ImageFolder("photos", target_transform=function)', [10, 11]),
        ('ImageFolder("photos", None, function)', [10, 11]),
        ('MNIST("here", True, None, function)', [13, 11]),
        ('CIFAR10("here", target_transform=function)', [13, 11]),
        ('QMNIST("here", "test", target_transform=None)', [3, 1]),
    ],
)
def test_labels_are_those_that_a_function_of_them_makes(tmp_path, monkeypatch, made, labels):
    monkeypatch.chdir(tmp_path)
    for name in ("ants", "bees"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(f"photos/{name}/0.png")
    text = f"from torchvision import datasets\n{HEAD}data = datasets.{made}\n"
    (advice,) = [one for one in found(tmp_path, f"{text}DataLoader(data)\n") if one.about == "dataset"]
    assert [main(line.split()[1:]) for line in advice.commands] == [0] * made.startswith("ImageFolder")
    assert any("labels are as before" in note for note in advice.notes) is (made == 'ImageFolder("photos")')
    held = SimpleNamespace(data=torch.zeros(2, 4, 4), targets=torch.tensor([3, 1]))
    if made.startswith("CIFAR10"):
        held = SimpleNamespace(data=np.zeros((2, 3, 4, 4)).transpose(0, 2, 3, 1), targets=[3, 1])
    elif made.startswith("QMNIST"):
        held.targets = torch.tensor([[3, 7], [1, 7]])
    names = {"memload": memload, "torch": torch, "data": held, "function": lambda label: label + 10}
    exec("\n".join(advice.change), names)
    loader = memload.FastLoader(names["data"], 2, batch_transform=names.get("batch_transform"))
    assert [batch[1].tolist() for batch in loader] == [labels]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ('ImageFolder("photos", is_valid_file=chosen)', "is_valid_file=chosen: the command takes all JPEG and PNG"),
        ('DatasetFolder("photos", np.load, (".npy",))', "which files DatasetFolder reads, and the labels"),
        ('OxfordIIITPet("here", target_types="segmentation")', "which files OxfordIIITPet reads, and the masks"),
        ('VOCSegmentation("here")', "which files VOCSegmentation reads, and the masks"),
        ('CocoDetection("here", "boxes.json")', "which files CocoDetection reads, and the labels"),
        ('Flowers102("here", transform=flip)', "which files Flowers102 reads, and the labels"),
    ],
)
def test_files_and_labels_that_are_not_followed_have_no_command(tmp_path, made, words):
    before = "from torchvision import datasets, transforms\nflip = transforms.Compose([transforms.ToTensor()])\n"
    told = found(tmp_path, f"{before}{HEAD}data = datasets.{made}\nDataLoader(data)\n")
    (advice,) = [one for one in told if one.about == "dataset"]
    assert (advice.change, advice.commands) == ((), ())
    assert advice.notes[0].startswith(f"not followed: {words}")
    assert not any("labels are as before" in note for note in advice.notes)
    assert not [one for one in told if one.about == "transform" and "Flowers" in made]


def test_arguments_that_may_hold_a_function_of_labels_are_named(tmp_path):
    text = f"from torchvision import datasets\n{HEAD}data = datasets.EMNIST('here', 'letters', **more)\n"
    (advice,) = [one for one in found(tmp_path, f"{text}DataLoader(data)\n") if one.about == "dataset"]
    assert "not followed: **more may have a target_transform" in advice.notes


def test_a_split_of_imagenet_is_the_folder_of_its_command(tmp_path):
    text = f"from torchvision import datasets\n{HEAD}data = datasets.ImageNet('here', 'val')\nDataLoader(data)\n"
    (advice,) = [one for one in found(tmp_path, text) if one.about == "dataset"]
    assert advice.commands[0].startswith("memload write --images here/val --labels folders")


def test_two_folders_do_not_share_a_set_of_shards(tmp_path):
    text = f"""from torchvision import datasets
{HEAD}
DataLoader(datasets.ImageFolder("photos/train"))
DataLoader(datasets.ImageFolder("photos/val"))
"""
    advice = [one for one in found(tmp_path, text) if one.about == "dataset"]
    assert ["shards/train/" in one.commands[0] for one in advice] == [True, False]
    assert 'memload.open("shards/val/")' in advice[1].change[-1]


def test_the_advice_for_a_dict_of_folders_runs_and_names_its_classes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for phase in ("train", "val"):
        for name in ("bees", "ants"):
            (tmp_path / "photos" / phase / name).mkdir(parents=True)
            Image.new("RGB", (8, 8 + (name == "ants"))).save(f"photos/{phase}/{name}/0.png")
    text = f"""from torchvision import datasets, transforms
{HEAD}
small = transforms.Compose([transforms.Resize(6), transforms.CenterCrop(4), transforms.ToTensor()])
crops = {{"train": transforms.Compose([transforms.RandomResizedCrop(4), transforms.ToTensor()]), "val": small}}
sets = {{x: datasets.ImageFolder(f"photos/{{x}}", crops[x]) for x in ["train", "val"]}}
loaders = {{x: DataLoader(sets[x], num_workers=4) for x in ["train", "val"]}}
names = sets["train"].classes
numbers = sets["val"].class_to_idx
"""
    told = found(tmp_path, text)
    (advice,) = [one for one in told if one.about == "dataset"]
    for line in advice.commands:
        assert main(line.replace("--size N", "--size 8").split()[1:]) == 0
    assert advice.notes[0].startswith("N: how large images are kept")
    exec(advice.change[-1], made := {"memload": memload})
    assert made["sets"]["train"][0][0].shape == (3, 8, 8)
    assert made["sets"]["val"][0][0].shape == (3, 4, 4)
    names, numbers = [eval(one.change[0], made) for one in told if one.about == "use"]
    assert names == ["ants", "bees"]
    assert numbers == {"ants": 0, "bees": 1}


def test_a_set_in_memory_that_is_indexed_elsewhere_keeps_its_name(tmp_path):
    text = f"""from torchvision import datasets
{HEAD}
data = datasets.FashionMNIST("here")
loader = DataLoader(data)
print(data[0])
"""
    (advice,) = [one for one in found(tmp_path, text) if one.about == "dataset"]
    assert advice.change[0].startswith("data_rows = memload.from_arrays(image=data.data")
    assert advice.notes[0] == "data stays: line 8 indexes it"
    assert advice.where == "below line 6, with `data_rows` in the place of data in the loader"
    (advice,) = [one.change for one in found(tmp_path, text.replace("[0]", "")) if one.about == "dataset"]
    assert advice[0].startswith("data = memload.from_arrays(image=data.data")


def test_the_advice_for_sets_of_torchvision_opens_data_as_they_hold_it(tmp_path):
    """CIFAR shows (N, H, W, 3) of what lies as (N, 3, H, W): no row of that is one run of bytes."""
    rng = np.random.default_rng(0)
    stored = rng.integers(0, 256, (5, 3, 32, 32), np.uint8)
    for kind, data, wanted in (
        ("CIFAR10", stored.transpose(0, 2, 3, 1), stored),
        ("MNIST", torch.from_numpy(stored[:, 0]), stored[:, :1]),
    ):
        text = f"from torchvision import datasets\n{HEAD}data = datasets.{kind}('here')\nDataLoader(data)\n"
        (advice,) = [one.change for one in found(tmp_path, text) if one.about == "dataset"]
        held = SimpleNamespace(data=data, targets=[3, 1, 4, 1, 5])
        exec(advice[0], names := {"memload": memload, "torch": torch, "data": held})
        images, labels = next(iter(memload.FastLoader(names["data"], 5)))
        assert torch.equal(images, torch.from_numpy(wanted))
        assert labels.tolist() == held.targets


@pytest.mark.parametrize(
    "made",
    [
        'loaders = {x: DataLoader(TensorDataset(x), 4) for x in ["train", "val"]}',
        'loaders = {"train": DataLoader(TensorDataset(x), 4)}',
    ],
)
def test_a_loader_in_a_dict_is_asked_by_its_key(tmp_path, capsys, made):
    (tmp_path / "train.py").write_text(f"{HEAD}{made}\n")
    assert main(["init", str(tmp_path / "train.py")]) == 0
    assert "print(loaders['train'].engine, loaders['train'].why)" in capsys.readouterr().out

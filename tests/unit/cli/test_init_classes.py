"""`memload init` of Dataset classes: the code that it gives makes the batches that the class makes."""

import csv
import shutil
import textwrap
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import vision  # noqa: F401 - torchvision's transforms, where its operators do not load, too
from PIL import Image

import memload
from memload.cli import init
from memload.cli.main import main
from memload.cli.script import Script

HEAD = """
import os

import h5py
import numpy as np
import pandas as pd
import torch
from PIL import Image
from skimage import io
from torch.utils.data import DataLoader, Dataset
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in "st":
        with h5py.File(f"{name}.h5", "w") as file:
            file["stim"] = rng.integers(0, 256, (20, 8, 6, 3), dtype=np.uint8)
            file["trials/robs"] = rng.random((20, 5), dtype=np.float32)
            file["label"] = rng.integers(0, 9, 20)
    np.save("robs.npy", rng.random((20, 5)))
    return tmp_path


def found(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    return init.findings(Script.read(tmp_path / "train.py"))


def replaced(tmp_path, text):
    """Return the lines that are said to replace the one dataset, without what follows the code."""
    (one,) = [one for one in found(tmp_path, text) if one.about == "dataset"]
    return [line.partition("  # ")[0] for line in one.change]


CLASSES = {
    "a file that is opened late, in tuples": (
        """
        class Trials(Dataset):
            def __init__(self, path, scale=255):
                self.path, self.file, self.scale = path, None, scale
            def __len__(self):
                return 20
            def __getitem__(self, idx):
                if self.file is None:
                    self.file = h5py.File(self.path, "r")
                x = torch.from_numpy(self.file["stim"][idx]).float() / self.scale
                x = x.permute(2, 0, 1)
                return x, torch.tensor(self.file["trials/robs"][idx])
        """,
        'Trials("s.h5")',
        'memload.open("s.h5", key={"stim": "stim", "robs": "trials/robs"}).as_tuple("stim", "robs")',
        '{"stim": memload.Cast(torch.float32, std=255, channels=-1, layout="NCHW")}',
    ),
    "rows that are chosen, in dicts with other names": (
        """
        class Trials(Dataset):
            def __init__(self, path, rows):
                f = h5py.File(path, "r")
                self.stim, self.rows = f["stim"], rows
                self.robs = f["trials"]["robs"][:]
            def __len__(self):
                return 5
            def __getitem__(self, i):
                i = self.rows[i]
                image = (self.stim[i].astype(np.float32) - 127) / 255
                sample = {"image": image, "target": self.robs[i]}
                return sample
        """,
        'Trials("s.h5", [3, 1, 4, 15, 9])',
        'memload.open("s.h5", key={"image": "stim", "target": "trials/robs"}).select([3, 1, 4, 15, 9])',
        '{"image": memload.Cast(torch.float32, mean=127, std=255)}',
    ),
    "one value, by a key that the call names": (
        """
        class Trials(Dataset):
            def __init__(self, path, key="stim"):
                self.path, self.key = path, key
            def __len__(self):
                return 20
            def __getitem__(self, k):
                with h5py.File(self.path, "r") as f:
                    return torch.as_tensor(f[self.key][k], dtype=torch.float32)
        """,
        'Trials(os.path.join(".", "s.h5"), key="stim")',
        'memload.open("./s.h5", key="stim").only("stim")',
        '{"stim": memload.Cast(torch.float32)}',
    ),
    "labels as numbers of Python": (
        """
        class Trials(Dataset):
            def __init__(self, path):
                self.file = h5py.File(path, "r")
            def __len__(self):
                return 20
            def __getitem__(self, i):
                return torch.from_numpy(self.file["stim"][i]).float() / 255, int(self.file["label"][i])
        """,
        'Trials("s.h5")',
        'memload.open("s.h5", key=["stim", "label"]).as_tuple("stim", "label")',
        '{"stim": memload.Cast(torch.float32, std=255)}',
    ),
    "two files": (
        """
        class Trials(Dataset):
            def __init__(self, folder):
                self.stim = h5py.File(f"{folder}/s.h5", "r").get("stim")
                self.robs = np.load(os.path.join(folder, "robs.npy"), mmap_mode="r")
            def __len__(self):
                return 20
            def __getitem__(self, k):
                return self.stim[k] * np.float32(0.5), torch.from_numpy(self.robs[k].copy()).float()
        """,
        'Trials(".")',
        'memload.zip(stim=memload.open("./s.h5", key="stim"), robs=memload.open("./robs.npy"))'
        '.as_tuple("stim", "robs")',
        '{"stim": memload.Cast(torch.float32, scale=0.5), "robs": memload.Cast(torch.float32)}',
    ),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_the_file_that_replaces_a_class_gives_its_batches(files, kind):
    made, call, opened, cast = CLASSES[kind]
    text = f"{HEAD}{textwrap.dedent(made)}\ndataset = {call}\nloader = DataLoader(dataset, batch_size=4)\n"
    lines = replaced(files, text)
    casts = [line.removeprefix("cast=") for line in lines if line.startswith("cast=")]
    program = "\n".join(line for line in lines if not line.startswith("cast="))
    assert casts == [cast]
    assert program.replace("\ndataset = dataset", "") == f"dataset = {opened}"
    exec(text, names := {})
    exec(f"import memload, torch\n{program}\nloader = memload.FastLoader(dataset, 4, cast={cast})", fast := {})
    assert fast["loader"].engine == "native", fast["loader"].why
    for ours, theirs in zip(fast["loader"], names["loader"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_what_no_cast_does_is_left_to_a_function(files):
    text = f"""{HEAD}
class Trials(Dataset):
    def __init__(self, path):
        self.file = h5py.File(path)
    def __getitem__(self, k):
        return torch.sqrt(torch.as_tensor(self.file["stim"][k])).unsqueeze(0)
DataLoader(Trials("s.h5"))
"""
    (advice,) = [one.change for one in found(files, text) if one.about == "dataset"]
    assert advice[0].startswith('dataset = memload.open("s.h5", key="stim")')
    assert advice[-1] == "dataset = dataset.map(prepare)"
    assert "    return torch.sqrt(sample).unsqueeze(0)" in advice


BEYOND_ROWS = {
    "a field that depends on a condition": "x = self.x[k]\n        if k % 2: x = -x\n        return x, self.x[k]",
    "a number beside a row": "return self.x[k], k",
    "rows of two kinds": "return self.x[k], self.x[2 * k % 20], self.x[3 * k % 20]",
    "a file for each sample": "return np.load(self.names[k]), self.x[k]",
    "a file for each sample, by a local name": "name = self.names[k]\n        return np.load(name)",
}


@pytest.mark.parametrize("body", BEYOND_ROWS.values(), ids=BEYOND_ROWS)
def test_what_is_more_than_rows_of_files_is_stored_once(files, body):
    text = f"""{HEAD}
class Trials(Dataset):
    def __init__(self):
        self.x, self.names = np.load("robs.npy"), ["row.npy"] * 20
    def __len__(self):
        return 20
    def __getitem__(self, k):
        {body}
dataset = Trials()
loader = DataLoader(dataset, 4)
"""
    np.save("row.npy", np.arange(7))
    (advice,) = [one.change for one in found(files, text) if one.about == "dataset"]
    assert "ShardWriter" in " ".join(advice)
    exec(text, names := {"memload": memload})
    stock = list(names["loader"])
    exec("\n".join(advice), names)
    ours = memload.FastLoader(names["dataset"], 4)
    assert ours.engine == "native"
    for batch, wanted in zip(ours, stock, strict=True):
        batch, wanted = ([*one] if isinstance(one, tuple | list) else [one] for one in (batch, wanted))
        torch.testing.assert_close(batch, wanted)


def test_random_numbers_of_a_class_are_told(files):
    text = f"""{HEAD}
class Trials(Dataset):
    def __init__(self):
        self.x = np.load("robs.npy")
    def __getitem__(self, k):
        x = self.x[k]
        if np.random.rand() < 0.5:
            x = x[::-1].copy()
        return x
DataLoader(Trials())
"""
    (advice,) = [one for one in found(files, text) if one.about == "dataset"]
    assert "__getitem__ draws random numbers: by torch.rand" in advice.notes[-1]
    assert "[::-1]" not in " ".join(advice.change)


@pytest.mark.parametrize("count", ["3", "self.lags"])
def test_windows_become_lags(files, count):
    text = f"""{HEAD}
class Trials(Dataset):
    def __init__(self, path, lags=3):
        self.stim, self.robs, self.lags = h5py.File(path)["stim"], np.load("robs.npy"), lags
    def __len__(self):
        return 18
    def __getitem__(self, i):
        return self.stim[i : i + {count}], self.robs[i + {count} - 1]
dataset = Trials("s.h5")
loader = DataLoader(dataset, 4)
"""
    lines = replaced(files, text)
    assert lines[-1] == "dataset = dataset.with_lags(stim=range(2, -1, -1))"
    exec(text, names := {"memload": memload})
    stock = [list(batch) for batch in names["loader"]]
    exec("\n".join(lines), names)
    ours = memload.FastLoader(names["dataset"], 4)
    assert ours.engine == "native"
    torch.testing.assert_close([list(batch) for batch in ours], stock)


def test_windows_around_events_are_stored_once_and_attributes_of_the_class_are_named(files):
    np.save("events.npy", [3, 11, 4, 7, 4])
    text = f"""{HEAD}
class Epochs(Dataset):
    def __init__(self, path, events):
        self.series, self.events, self.other = np.load(path, mmap_mode="r"), np.load(events), 0
    def __len__(self):
        return len(self.events)
    def __getitem__(self, i):
        start = self.events[i]
        return self.series[start : start + 6].astype(np.float32), self.events[i]
dataset = Epochs("robs.npy", "events.npy")
loader = DataLoader(dataset, 2, sampler=np.argsort(dataset.events))
print(dataset.map, dataset.events.max())
"""
    (advice,) = [one for one in found(files, text) if one.about == "dataset"]
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "dataset.events" in line]
    listed = ", ".join(map(str, lines))
    told = f"memload's dataset has no .events, for lines {listed}: take it from Epochs('robs.npy', 'events.npy').events"
    assert [note for note in advice.notes if "has no" in note] == [told]
    exec(text.replace("print(dataset.map", "print(0"), names := {"memload": memload})
    stock = [list(batch) for batch in names["loader"]]
    exec("\n".join(advice.change), names)
    ours = memload.FastLoader(names["dataset"], 2, sampler=names["loader"].sampler)
    assert ours.engine == "native", ours.why
    torch.testing.assert_close([list(batch) for batch in ours], stock)


def test_a_class_that_hides_what_it_reads_has_the_keys_of_its_files(files):
    text = f"""{HEAD}
class Trials(Dataset):
    def __init__(self, path):
        self.file = h5py.File(path)
    def __getitem__(self, k):
        return compute(self.file["stim"][k], self.file["trials"]["robs"][k])
DataLoader(Trials(path=folder / "s.h5"))
"""
    lines = replaced(files, text)
    assert lines[0] == """dataset = memload.open(folder / 's.h5', key=["stim", "trials/robs"])"""


def test_arrays_of_each_sample_are_stored_once(files):
    text = f"""{HEAD}
class Trials(Dataset):
    def __len__(self):
        return 20
    def __getitem__(self, k):
        with h5py.File("each.h5") as file:
            stim = file[f"trial{{k}}/stim"][:]
        return {{"stim": stim, "trial": k}}
dataset = Trials()
loader = DataLoader(dataset, 4)
"""
    with h5py.File("each.h5", "w") as file:
        for k in range(20):
            file[f"trial{k}/stim"] = np.full((3, 4), k)
    (advice,) = [one.change for one in found(files, text) if one.about == "dataset"]
    exec(text, names := {"memload": memload})
    stock = list(names["loader"])
    exec("\n".join(advice), names)
    assert memload.FastLoader(names["dataset"], 4).engine == "native"
    torch.testing.assert_close(list(memload.FastLoader(names["dataset"], 4)), stock)


PHOTOS = """
class Photos(Dataset):
    def __init__(self, table, folder, transform=None):
        self.rows = pd.read_csv(table)
        self.folder, self.transform = folder, transform
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, idx):
        path = os.path.join(self.folder, self.rows.iloc[idx]["image_name"])
        image = io.imread(path)
        if self.transform:
            image = self.transform(image)
        return image, self.rows.iloc[idx]["score"]
dataset = Photos("table.csv", folder="photos/")
loader = DataLoader(dataset, 4)
"""


def test_images_that_a_table_names_have_their_command(files):
    (files / "photos").mkdir()
    with Path("table.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image_name", "score"])
        for k in (3, 0, 7, 1):
            Image.fromarray(np.full((8, 8, 3), k, np.uint8)).save(f"photos/{k}.png")
            table.writerow([f"{k}.png", k])
    (advice,) = [one for one in found(files, HEAD + PHOTOS) if one.about == "dataset"]
    (command,), (opened,) = advice.commands, advice.change
    assert command == "memload write --images photos --table table.csv shards/"
    assert not any(note.startswith("N: ") for note in advice.notes)
    assert main(command.split()[1:]) == 0
    exec(HEAD + PHOTOS, names := {"memload": memload})
    exec(opened, names)
    ((image, score),) = memload.FastLoader(names["dataset"], 4)
    ((wanted, wanted_score),) = names["loader"]
    torch.testing.assert_close(image.permute(0, 2, 3, 1), wanted)
    torch.testing.assert_close(score, wanted_score)


def test_a_size_is_asked_of_images_of_several_sizes_and_of_those_that_are_not_there(files):
    for sizes, option in (((8, 8), " "), ((8, 9), " --size N "), ((), " --size N ")):
        (files / "photos").mkdir(exist_ok=True)
        for k, side in enumerate(sizes):
            Image.new("RGB", (8, side)).save(f"photos/{k}.png")
        (advice,) = [one for one in found(files, HEAD + PHOTOS) if one.about == "dataset"]
        assert advice.commands == (f"memload write --images photos --table table.csv{option}shards/",)
        assert any(note.startswith("N: ") for note in advice.notes) is ("N" in option)
        shutil.rmtree("photos")


HEADINGS = """
class Photos(Dataset):
    def __init__(self, table, folder):
        self.rows, self.folder = pd.read_csv(TABLE), folder
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, idx):
        return io.imread(os.path.join(self.folder, self.rows.iloc[idx, 1])), self.rows.iloc[idx, 2]
loader = DataLoader(Photos("table.csv", "photos"), 4)
"""


@pytest.mark.parametrize(
    ("table", "read", "column", "label"),
    [
        ("n,plate,score", "table", "plate", "score"),
        ("n,my plate,score", "table", "'my plate'", "score"),
        ("n,file,score", "table", "", "score"),
        ("n,plate,score", "table, index_col=0", "NAME", "COLUMN"),
        ("n,plate", "table", "plate", "COLUMN"),
        ("", "table", "NAME", "COLUMN"),
        (None, "table", "NAME", "COLUMN"),
    ],
)
def test_headings_of_a_table_beside_the_script_are_named_where_the_class_reads_it_as_it_is(
    files, monkeypatch, table, read, column, label
):
    if table is not None:
        Path("table.csv").write_text(f"{table}\n" * bool(table))
    (files / "elsewhere").mkdir()
    monkeypatch.chdir(files / "elsewhere")
    (advice,) = [one for one in found(files, HEAD + HEADINGS.replace("TABLE", read)) if one.about == "dataset"]
    option = f" --image-column {column}" * bool(column)
    assert advice.commands == (f"memload write --images photos --table table.csv{option} --size N shards/",)
    assert advice.change[0].endswith(f'.as_tuple("image", "{label}")')
    told = [note for note in advice.notes if "heading" in note]
    assert bool(told) is (label == "COLUMN")


def test_photos_of_tables_that_a_loop_reads_have_a_set_for_each(files):
    made = 'for split in ("train", "val"):\n    data = Photos(split + ".csv", "photos")\n    DataLoader(data, 4)\n'
    text = HEADINGS.replace("TABLE", "table").replace('loader = DataLoader(Photos("table.csv", "photos"), 4)\n', made)
    (advice,) = [one for one in found(files, HEAD + text) if one.about == "dataset"]
    assert advice.commands[0].endswith(" 'shards/{split}/'")
    assert advice.change[0].startswith('data = memload.open(f"shards/{split}/")')
    assert "each dataset that this line makes has its own {split}: the command once for each" in advice.notes


def test_fields_of_a_stored_table_keep_the_names_and_the_dtypes_that_samples_had(files):
    cells = "self.rows.iloc[idx, 1])), torch.tensor(self.rows.iloc[idx, 2], dtype=torch.float32)"
    text = HEADINGS.replace("TABLE", "table").replace("self.rows.iloc[idx, 1])), self.rows.iloc[idx, 2]", cells)
    Path("table.csv").write_text("n,plate,score\n")
    (advice,) = [one for one in found(files, HEAD + text) if one.about == "dataset"]
    assert advice.change[1:] == ('cast={"score": torch.float32}  # in FastLoader',)
    image = "io.imread(os.path.join(self.folder, self.rows.iloc[idx, 1]))"
    returned = '{"x": IMAGE, "age": np.float32(self.rows.iloc[idx]["score"]), "n": self.rows.iloc[idx]["n"]}'
    text = HEADINGS.replace(f"{image}, self.rows.iloc[idx, 2]", returned.replace("IMAGE", image)).replace(
        "TABLE", "table"
    )
    (advice,) = [one for one in found(files, HEAD + text) if one.about == "dataset"]
    assert advice.change[0].endswith('memload.open("shards/").rename({"image": "x", "score": "age"})')
    assert advice.change[1:] == ('cast={"age": torch.float32}  # in FastLoader',)
    assert 'images are then "x", in cast=, too' in advice.notes
    assert not any("as_tuple" in note for note in advice.notes)


def test_a_transform_of_images_that_is_no_cast_is_named(files):
    for given, told in (("np.flipud", True), ("transforms.Compose([transforms.ToTensor()])", False), ("None", False)):
        text = HEAD + PHOTOS.replace('"photos/"', f'"photos/", transform={given}')
        (advice,) = [one for one in found(files, text) if one.about == "dataset"]
        note = f"not followed: {given}, of images: .map(fn) of samples, whose images are uint8 (C, H, W)"
        assert (note in advice.notes) is told, advice.notes


PAIRS = """
from torchvision import tv_tensors
from torchvision.transforms import v2
class Pairs(Dataset):
    def __init__(self, images, masks, transform=None):
        self.images, self.masks, self.transform = images, masks, transform
        self.names = sorted(os.listdir(images))
    def __len__(self):
        return len(self.names)
    def __getitem__(self, i):
        img = tv_tensors.Image(Image.open(os.path.join(self.images, self.names[i])).convert("RGB"))
        mask = tv_tensors.Mask(Image.open(os.path.join(self.masks, self.names[i].replace(".png", "_mask.png"))))
        CHANGE
        return RETURNED
change = v2.Compose([STEPS, v2.ToDtype(torch.float32, scale=True)])
data = Pairs("photos", "masks", change)
loader = DataLoader(data, 4, shuffle=True)
"""
BOTH = "if self.transform: img, mask = self.transform(img, mask)"


def written_pairs(files):
    rng = np.random.default_rng(0)
    for folder in ("photos", "masks"):
        (files / folder).mkdir()
    for k in range(12):
        mask = np.kron(rng.integers(0, 4, (2, 2), dtype=np.uint8), np.ones((4, 4), np.uint8))  # each value in a block
        Image.fromarray(np.repeat(mask[..., None] * 60, 3, -1)).save(f"photos/{k}.png")
        Image.fromarray(mask).save(f"masks/{k}_mask.png")


@pytest.mark.parametrize(
    ("returned", "fields"),
    [
        ('{"image": img, "mask": mask}', ("image", "mask")),
        ('{"x": img, "target": mask}', ("x", "target")),
        ("img, mask", (0, 1)),
        ("mask, img", (1, 0)),
    ],
)
@pytest.mark.parametrize("step", ["v2.RandomHorizontalFlip(0.5)", "v2.RandomCrop(4)", "v2.RandomResizedCrop(6)"])
def test_images_and_masks_that_a_transform_changes_together_stay_together(files, returned, fields, step):
    written_pairs(files)
    text = HEAD + PAIRS.replace("CHANGE", BOTH).replace("RETURNED", returned).replace("STEPS", step)
    told = found(files, text)
    (advice,) = [one for one in told if one.about == "dataset"]
    (command,) = advice.commands
    assert command.startswith("memload write --images photos --masks masks --mask-suffix _mask ")
    assert main(command.replace("--size N", "--size 8").split()[1:]) == 0
    exec(advice.change[0], names := {"memload": memload, "torch": torch})
    (code,) = [line for one in told if one.about == "transform" for line in one.change]
    exec(code, names)
    torch.manual_seed(0)
    loader = memload.FastLoader(names["data"], 4, shuffle=True, cast=names["cast"])
    assert loader.engine == "native", loader.why
    alike = 0
    for batch in loader:
        image, mask = (batch[field] for field in fields)
        assert image.shape[-2:] == mask.shape[-2:] == ((6, 6) if "Resized" in step else image.shape[-2:])
        alike += ((image[:, 0] * 255 - mask * 60).abs() < 1).float().mean().item() / 3
    assert alike == 1 or ("Resized" in step and alike > 0.6)  # pixels at borders of blocks are mixed there
    assert not any('"label"' in line for one in told for line in one.change)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("img = self.transform(img)", "not followed: a random step, which masks have to follow: augment="),
        ("img = self.transform(img); mask = self.transform(mask)", "not followed: a random step, which masks"),
        ("mask = self.transform(mask)", "not followed: these steps, of masks"),
    ],
)
def test_a_random_step_that_does_not_change_images_and_masks_together_is_no_part_of_a_cast(files, change, why):
    text = PAIRS.replace("CHANGE", change.replace("; ", "\n        ")).replace("RETURNED", "img, mask")
    text = text.replace("STEPS", "v2.RandomHorizontalFlip(0.5)")
    (told,) = [one for one in found(files, HEAD + text) if one.about == "transform"]
    assert not any("augment=" in line for line in told.change)
    assert bool(told.change) is ("img" in change)
    assert any(note.startswith(why) for note in told.notes)


def test_what_is_not_followed_of_images_and_masks_is_said(files):
    text = PAIRS.replace("CHANGE", BOTH).replace("RETURNED", "img, mask, i").replace("STEPS", "v2.ToImage()")
    text = text.replace("change = v2.Compose", "change = albumentations.Compose").replace("_mask.png", "_mask.gif")
    (advice,) = [one for one in found(files, HEAD + text) if one.about == "dataset"]
    for note in (
        "not followed: masks are .gif files: --masks takes PNG",
        "not followed: the fields of a sample, img, mask, i",
        "not followed: change (line ",
    ):
        assert any(one.startswith(note) for one in advice.notes), advice.notes
    assert not any("as_tuple" in line for line in advice.change)


def test_several_images_that_are_no_mask_are_stored_as_the_class_returns_them_but_for_random_steps(files):
    text = (
        PAIRS.replace("CHANGE", BOTH)
        .replace("RETURNED", "img, sharp")
        .replace("mask", "sharp")
        .replace("Mask", "Image")
    )
    (advice,) = [one for one in found(files, HEAD + text.replace("STEPS", "v2.ToImage()")) if one.about == "dataset"]
    assert any("memload.ShardWriter(" in line for line in advice.change)
    told = found(files, HEAD + text.replace("STEPS", "v2.RandomHorizontalFlip()"))
    (advice,) = [one for one in told if one.about == "dataset"]
    assert (advice.change, advice.commands) == ((), ())
    assert advice.notes[0].startswith("not followed: a sample has several images, or masks that it makes: a random")
    assert not [one for one in told if one.about == "transform"]


LANDMARKS = """
from torchvision import transforms
class Faces(Dataset):
    def __init__(self, csv_file, root_dir, transform=None):
        self.frame = pd.read_csv(csv_file)
        self.root_dir, self.transform = root_dir, transform
    def __len__(self):
        return len(self.frame)
    def __getitem__(self, idx):
        image = io.imread(os.path.join(self.root_dir, self.frame.iloc[idx, 0]))
        landmarks = np.array([self.frame.iloc[idx, 1:]], dtype=float).reshape(-1, 2)
        sample = {"image": image, "landmarks": landmarks}
        if self.transform:
            sample = self.transform(sample)
        return sample
class Half:
    def __call__(self, sample):
        return {"image": sample["image"][::2, ::2], "landmarks": sample["landmarks"] / 2}
class RandomShift:
    def __call__(self, sample):
        return {**sample, "landmarks": sample["landmarks"] + np.random.randint(1)}
class ToTensor:
    def __call__(self, sample):
        image = torch.from_numpy(sample["image"].transpose((2, 0, 1)).copy())
        return {"image": image, "landmarks": torch.from_numpy(sample["landmarks"])}
change = transforms.Compose([Half(), RandomShift(), ToTensor()])
faces = Faces(csv_file="faces.csv", root_dir="faces/", transform=change)
loader = DataLoader(faces, batch_size=2)
"""


def test_a_class_of_images_and_landmarks_is_stored_up_to_its_random_transforms(files):
    (files / "faces").mkdir()
    with Path("faces.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["name", "x0", "y0", "x1", "y1"])
        for k in range(6):
            Image.fromarray(np.full((8, 8, 3), k, np.uint8)).save(f"faces/{k}.png")
            table.writerow([f"{k}.png", k, 1, 2, 3])
    (told,) = [one for one in found(files, HEAD + LANDMARKS) if one.about == "dataset"]
    advice = told.change
    assert "writer.extend(**batch)  # image, landmarks" in advice[3]
    text = f"{HEAD}{LANDMARKS}"
    drawn = text[: text.index("np.random.randint(1)")].count("\n") + 1
    assert any(one.startswith(f"RandomShift (line {drawn}) draws from a generator that") for one in told.notes)
    exec(HEAD + LANDMARKS, names := {"memload": memload})
    stock = list(names["loader"])
    exec("\n".join(advice), names)
    loader = memload.FastLoader(names["faces"], 2)
    assert loader.engine == "native"
    torch.testing.assert_close(list(loader), stock)
    assert memload.open("train_shards/").fields["image"].shape == (4, 4, 3)


def test_a_class_of_two_loaders_is_told_for_each_dataset_and_a_dataset_of_two_once(files, capsys):
    made, call, *_ = CLASSES["a file that is opened late, in tuples"]
    text = f"{HEAD}{textwrap.dedent(made)}\ntrain = DataLoader({call})\nvalid = DataLoader(Trials('t.h5'))\n"
    advice = [one for one in found(files, text) if one.about == "dataset"]
    last = text.count("\n")
    assert [one.line for one in advice] == [last - 1, last]
    assert [one.change[0].partition(",")[0] for one in advice] == [
        'train_dataset = memload.open("s.h5"',
        'valid_dataset = memload.open("t.h5"',
    ]
    assert [one.change[1].rpartition("  ")[2] for one in advice] == [
        f"# in FastLoader of line {last - 1}",
        f"# in FastLoader of line {last}",
    ]
    shared = text.replace("DataLoader(Trials('t.h5'))", "DataLoader(data)").replace(
        "\ntrain = ", f"\ndata = {call}\ntrain = "
    )
    (one,) = [
        one
        for one in found(files, shared.replace(f"DataLoader({call})", "DataLoader(data)"))
        if one.commands or one.about == "dataset"
    ]
    assert one.line == last - 1
    assert one.change[1].endswith(f"# in FastLoader of lines {last}, {last + 1}")


def test_classes_that_assign_names_to_themselves_are_read(files):
    for body in (
        "self.x = self.x[k]; self.x = self.y[self.x]; self.y = self.x + self.y; self.x = h5py.File(self.x)",
        "x = x[k]; x = x + x * x; k = k + 1",
        "self.x = self.x.get(self.x)",
    ):
        lines = "".join(f"        {line.strip()}\n" for line in body.split(";") * 12)
        made = f"class Odd(Dataset):\n    def __getitem__(self, k):\n{lines}        return self.x[k] / x, x\n"
        assert found(files, f"{HEAD}{made}DataLoader(Odd())")

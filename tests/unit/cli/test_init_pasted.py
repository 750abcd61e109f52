"""`memload init`: scripts as users have them, with all of its advice pasted where it says, run and are native."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import vision  # noqa: F401 - torchvision's transforms, where its operators do not load, too
from pasted import pasted
from PIL import Image
from torchvision import datasets

import memload

HEAD = """
import os
import h5py
import numpy as np
import pandas as pd
import torch
from PIL import Image
from skimage import io
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split
from torchvision import datasets, transforms
from torchvision.transforms import ToTensor
torch.manual_seed(0)
"""
WINDOWS = """
class Windows(Dataset):
    def __init__(self, path, length=16):
        self.series, self.length = np.load(path).astype(np.float32), length
    def __len__(self):
        return len(self.series) - self.length
    def __getitem__(self, i):
        return torch.from_numpy(self.series[i:i + self.length]), torch.from_numpy(self.series[i + self.length])
train_dataloader = DataLoader(Windows("series.npy"), shuffle=True, batch_size=16)
eval_dataloader = DataLoader(Windows("others.npy"), batch_size=32)
loaders = [train_dataloader, eval_dataloader]
"""
LAZY = """
class H5Dataset(Dataset):
    def __init__(self, h5_path):
        self.h5_path, self._h5 = h5_path, None
        with h5py.File(self.h5_path, "r") as f:
            self.length = len(f["images"])
            self.mean = f["mean"][:]
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        if self._h5 is None:
            self._h5 = h5py.File(self.h5_path, "r", swmr=True)
        return torch.sqrt(torch.from_numpy(self._h5["images"][index] - self.mean)), int(self._h5["labels"][index])
if True:
    train_ds = H5Dataset("train.h5")
    val_ds = H5Dataset(
        "val.h5"
    )
    train_dl = DataLoader(train_ds, batch_size=16, shuffle=True)
    val_dl = DataLoader(
        val_ds,
        batch_size=16,
    )
loaders = [train_dl, val_dl]
"""
TENSORS = """
dataset = TensorDataset(torch.from_numpy(np.load("series.npy")), torch.from_numpy(np.load("series.npy")[:, 0]))
train_set, val_set = random_split(dataset, [250, 50])
train_loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)
val_loader = DataLoader(val_set, batch_size=64)
device = "cpu"
loaders = [train_loader, val_loader]
def fit():
    for xb, yb in train_loader:
        xb = xb.float().to(device)
        yb = yb.float().to(device)
    return sum(b.float().to(device).sum().item() for a, b in val_loader)
"""
MAPPED = """
class Roots(Dataset):
    def __init__(self, path):
        self.file = h5py.File(path, "r")
        self.images, self.labels = self.file["images"], self.file["labels"]
    def __len__(self):
        return len(self.images)
    def __getitem__(self, i):
        return np.sqrt(self.images[i]), self.labels[i]
dataset = Roots("train.h5")
loader = DataLoader(dataset, batch_size=16)
loaders = [loader]
def fit():
    for images, labels in loader:
        images = images.float()
"""
HANDED = (
    MAPPED[: MAPPED.index("dataset = ")]
    + """
def make_loader(dataset, shuffle=False):
    return DataLoader(dataset, batch_size=16, shuffle=shuffle)
dataset = Roots("train.h5")
others = Roots("val.h5")
loaders = [make_loader(dataset, True), make_loader(dataset=others)]
"""
)
DIGITS = """
training_data = datasets.FashionMNIST(
    root="data",
    train=True,
    transform=ToTensor(),
)
test_data = datasets.FashionMNIST(
    root="data",
    train=False,
    transform=ToTensor(),
)
train_dataloader = DataLoader(training_data, batch_size=8, shuffle=True)
test_dataloader = DataLoader(test_data, batch_size=8)
device = "cpu"
def train(dataloader):
    for batch, (X, y) in enumerate(dataloader):
        X, y = X.to(device), y.to(device)
train(train_dataloader)
train(test_dataloader)
first, label = test_data[0][0], test_data[0][1]
assert first.shape == (1, 28, 28)
loaders = [train_dataloader, test_dataloader]
"""
PHOTOS = """
class CustomImageDataset(Dataset):
    def __init__(self, annotations_file, img_dir, transform=None, target_transform=None):
        self.img_labels = pd.read_csv(annotations_file)
        self.img_dir = img_dir
        self.transform = transform
        self.target_transform = target_transform
    def __len__(self):
        return len(self.img_labels)
    def __getitem__(self, idx):
        img_path = os.path.join(self.img_dir, self.img_labels.iloc[idx, 0])
        image = Image.open(img_path).convert("RGB")
        label = self.img_labels.iloc[idx, 1]
        if self.transform:
            image = self.transform(image)
        return image, label
transform = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
training_data = CustomImageDataset("annotations.csv", "images", transform=transform)
test_data = CustomImageDataset("others.csv", "images", transform=transform)
train_loader = DataLoader(training_data, batch_size=4, shuffle=True)
test_loader = DataLoader(test_data, batch_size=4)
loaders = [train_loader, test_loader]
"""
HOT = (
    PHOTOS.replace(
        "        return image",
        """        if self.target_transform:
            label = self.target_transform(label)
        return image""",
    )
    .replace(
        """transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
""",
        """transforms.ToTensor()
one_hot = transforms.Lambda(lambda y: torch.zeros(2).scatter_(0, torch.tensor(y), value=1))
""",
    )
    .replace("transform=transform)", "transform=transform, target_transform=one_hot)")
)
FACES = """
class Faces(Dataset):
    def __init__(self, csv_file, root_dir, transform=None):
        self.frame = pd.read_csv(csv_file)
        self.root_dir, self.transform = root_dir, transform
    def __len__(self):
        return len(self.frame)
    def __getitem__(self, idx):
        sample = {"image": io.imread(os.path.join(self.root_dir, self.frame.iloc[idx, 0])), "label": np.arange(4.0)}
        if self.transform:
            sample = self.transform(sample)
        return sample
class Rescale:
    def __init__(self, size):
        self.size = size
    def __call__(self, sample):
        return {**sample, "image": sample["image"][: self.size, : self.size]}
class RandomShift:
    def __call__(self, sample):
        return {**sample, "label": sample["label"] + int(torch.randint(1, ()))}
shown = transforms.Compose([Rescale(4), RandomShift()])
faces = Faces(csv_file="annotations.csv",
              root_dir="images",
              transform=transforms.Compose([Rescale(6), RandomShift()]))
loaders = [DataLoader(faces, batch_size=4)]
"""
FOLDERS = """
data_transforms = {
    "train": transforms.Compose([transforms.Resize(8), transforms.ToTensor(), transforms.Normalize(0.5, 0.2)]),
    "val": transforms.Compose([transforms.Resize(8), transforms.CenterCrop(8), transforms.ToTensor()]),
}
image_datasets = {x: datasets.ImageFolder(os.path.join("insects", x),
                                          data_transforms[x])
                  for x in ["train", "val"]}
dataloaders = {x: torch.utils.data.DataLoader(image_datasets[x], batch_size=4,
                                              shuffle=True)
               for x in ["train", "val"]}
loaders = list(dataloaders.values())
"""
FILLED = (
    FOLDERS[: FOLDERS.index("image_datasets = ")]
    + """
image_datasets, dataloaders = {}, {}
for x in ["train", "val"]:
    image_datasets[x] = datasets.ImageFolder(os.path.join("insects", x), data_transforms[x])
    dataloaders[x] = DataLoader(image_datasets[x], batch_size=4, shuffle=True)
loaders = list(dataloaders.values())
"""
)
WRITTEN = """
dark = transforms.Compose([transforms.Resize(8), transforms.ToTensor(), transforms.Normalize(0.5, 0.2)])
plain = transforms.Compose([transforms.Resize(8), transforms.ToTensor()])
sets = {
    "train": datasets.ImageFolder('insects/train', dark),
    "val": datasets.ImageFolder('insects/val', plain),
}
dataloaders = {x: DataLoader(sets[x], batch_size=4, shuffle=True) for x in sets}
loaders = list(dataloaders.values())
"""
KEYED = f"""{WRITTEN[: WRITTEN.index("sets = ")]}
sets = {{}}
sets["train"] = datasets.ImageFolder('insects/train', dark)
sets["val"] = datasets.ImageFolder('insects/val', plain)
dataloaders = {{x: DataLoader(sets[x], batch_size=4, shuffle=True) for x in ["train", "val"]}}
loaders = list(dataloaders.values())
"""
PAIR = """
plain = transforms.Compose([transforms.Resize(8), transforms.ToTensor()])
train_set, val_set = datasets.ImageFolder('insects/train', plain), datasets.ImageFolder('insects/val', plain)
train_loader = DataLoader(train_set, batch_size=4, shuffle=True)
val_loader = DataLoader(val_set, batch_size=4)
loaders = [train_loader, val_loader]
"""
NAMED = PHOTOS.replace(
    "        self.img_labels = pd.read_csv(annotations_file)",
    """        with open(annotations_file) as file:
            self.img_labels = list(csv.reader(file))[1:]""",
)
NAMED = NAMED.replace("self.img_labels.iloc[idx, 0]", "self.img_labels[idx][0]").replace("(8, 8)", "8")
NAMED = f"import csv\n{NAMED}".replace("self.img_labels.iloc[idx, 1]", "int(self.img_labels[idx][1])")
MOVIES = """
class Movies(Dataset):
    def __init__(self, root):
        self.movies = np.load(f"{root}/series.npy", mmap_mode="r")
    def __len__(self):
        return len(self.movies)
    def __getitem__(self, i):
        movie = torch.from_numpy(np.array(self.movies[i])).float()
        return movie[None]
class Data:
    def __init__(self, root="elsewhere", batch_size=16):
        self.root, self.batch_size = root, batch_size
    def loader(self):
        data = Movies(self.root)
        return DataLoader(data, batch_size=self.batch_size)
loaders = [Data(".").loader()]
"""
SCRIPTS = {
    "windows and the next row, of datasets without names": WINDOWS,
    "a file opened late, twice, with what each file has": LAZY,
    "parts of tensors, converted in loops and in a comprehension": TENSORS,
    "tuples that a function makes, converted in a loop": MAPPED,
    "datasets that a function is given": HANDED,
    "the quickstart": DIGITS,
    "photographs, resized by torchvision": PHOTOS,
    "photographs that csv names": NAMED,
    "photographs of a table, and labels that a function changes": HOT,
    "samples with transforms of their own": FACES,
    "folders, and a dict of transforms": FOLDERS,
    "folders of a loop, and a dict of transforms": FILLED,
    "folders in a dict, each with transforms": WRITTEN,
    "folders in a dict that is filled, each with transforms": KEYED,
    "folders in one assignment": PAIR,
    "movies of a folder that a class is given": MOVIES,
}
RESIZED = (
    "photographs, resized by torchvision",
    "photographs that csv names",
    *(one for one in SCRIPTS if "folders" in one),
)


class Digits:
    """As torchvision's, with data in the place of files."""

    def __init__(self, root, train, transform):
        self.data = torch.arange(20 * 28 * 28).to(torch.uint8).view(20, 28, 28)
        self.targets, self.transform = torch.arange(20) % (10 if train else 5), transform

    def __len__(self):
        return 20

    def __getitem__(self, k):
        return self.transform(self.data[k].numpy()), int(self.targets[k])


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "FashionMNIST", Digits)
    rng = np.random.default_rng(0)
    np.save("series.npy", rng.random((300, 3)))
    np.save("others.npy", rng.random((100, 3)))
    for name, count in (("train", 40), ("val", 20)):
        with h5py.File(f"{name}.h5", "w") as file:
            file["images"], file["mean"] = rng.random((count, 3, 4)) + 9, rng.random(4)
            file["labels"] = rng.integers(0, 4, count)
        for kind in ("ants", "bees"):
            Path("insects", name, kind).mkdir(parents=True)
            for k in range(4):
                _image(rng).save(f"insects/{name}/{kind}/{k}.png")
    Path("images").mkdir()
    for table, count in (("annotations", 12), ("others", 8)):
        Path(f"{table}.csv").write_text("file,class\n" + "".join(f"{k}.png,{k % 2}\n" for k in range(count)))
    for k in range(12):
        _image(rng).save(f"images/{k}.png")


def _image(rng):
    return Image.fromarray(np.full((8, 8, 3), rng.integers(0, 256, 3), np.uint8))


def batches_of(text):
    exec(text, names := {"__name__": "script"})
    torch.manual_seed(3)
    made = [[[*one] if isinstance(one, tuple) else one for one in loader] for loader in names["loaders"]]
    return names, made


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_with_its_advice_pasted_has_the_same_batches_from_the_native_engine(files, kind):
    text = f"{HEAD}{SCRIPTS[kind]}"
    _, stock = batches_of(text)
    changed = pasted(text)
    names, ours = batches_of(changed)
    for loader in names["loaders"]:
        assert isinstance(loader, memload.FastLoader)
        assert loader.engine == "native", loader.why
    if "fit" in names:
        stock, ours = ([[[part.float() for part in one] for one in part] for part in parts] for parts in (stock, ours))
    torch.testing.assert_close(ours, stock, rtol=0, atol=2e-6 if kind in RESIZED else 0)
    if "ShardWriter(" in changed:
        torch.testing.assert_close(batches_of(changed)[1], ours, rtol=0, atol=0)


@pytest.mark.parametrize("imported", ["import os\n", ""])
def test_a_first_run_that_fails_leaves_the_next_one_to_write_the_set(files, imported):
    join = "os.path.join(self.root_dir, self.frame.iloc[idx, 0])"
    text = f"{HEAD}{FACES}".replace(join, '"images/" + self.frame.iloc[idx, 0]').replace("import os\n", imported)
    changed = pasted(text)
    Path("images/7.png").rename("away.png")
    with pytest.raises(FileNotFoundError):
        batches_of(changed)
    Path("away.png").rename("images/7.png")
    _, stock = batches_of(text)
    for _ in range(2):
        torch.testing.assert_close(batches_of(changed)[1], stock, rtol=0, atol=0)

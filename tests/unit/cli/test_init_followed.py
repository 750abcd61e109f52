"""`memload init`: its advice is followed to the letter, and the batches are those of the script, to the bit."""

import ast
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import vision  # noqa: F401 - torchvision's transforms, where its operators do not load, too

import memload
from memload.cli import init
from memload.cli.script import Script

HEAD = """
import csv
import h5py
import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset, WeightedRandomSampler, random_split
torch.manual_seed(0)
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    with h5py.File("session.h5", "w") as file:
        file["frames"] = rng.integers(0, 256, (30, 6, 5), dtype=np.uint8)
        file["behaviour/pupil"] = rng.random((30, 2), dtype=np.float32)
        file["spikes"] = rng.integers(0, 5, (30, 7)).astype(np.int16)
        file["kind"] = rng.integers(0, 3, 30)
        file["used"] = rng.permutation(30)[:20]
        file["mean"] = rng.random(7)
    rng.random((20, 6)).astype(np.float32).tofile("features.dat")
    rng.integers(0, 256, (20, 8)).astype(np.uint8).tofile("codes.dat")
    np.save("targets.npy", rng.random(20).astype(np.float32))
    Path("clips.csv").write_text("file,label\n" + "".join(f"{k}.npy,{k % 4}\n" for k in range(20)))
    for k in range(20):
        np.save(f"{k}.npy", rng.random((4, int(rng.integers(3, 9)))).astype(np.float32))
    return tmp_path


def found(text):
    Path("train.py").write_text(text)
    return init.findings(Script.read(Path("train.py")))


def told_of(text, about="dataset"):
    (one,) = [one for one in found(text) if one.about == about]
    return one


def followed(text):
    """Run the code that is said of a script behind it; return the old loader and the new one."""
    exec(text, names := {"memload": memload, "__name__": "script"})
    stock = names["loader"]
    for one in found(text):
        if one.about == "dataset":
            if one.change and one.change[0].startswith("loader = "):
                exec(_split_again(text), names)
            exec("\n".join(one.change), names)
            if "__memload__" in names:
                names[one.code.split()[1].partition("(")[0]].__memload__ = names.pop("__memload__")
    options = {name: names[name] for name in ("cast", "batch_transform") if name in names}
    loader = names["loader"]
    if loader is stock:
        (made,) = Script.read(Path("train.py")).loaders
        names["FastLoader"], names["options"] = memload.FastLoader, options
        made.call.func = ast.Name("FastLoader", ast.Load())
        made.call.keywords.append(ast.keyword(None, ast.Name("options", ast.Load())))
        loader = eval(ast.unparse(made.call), names)
    elif options:
        code = next(line for one in found(text) for line in one.change if line.startswith("loader = "))
        loader = eval(f"{code.removeprefix('loader = ').removesuffix(')')}, **options)", {**names, "options": options})
    return stock, loader


def _split_again(text):
    """Return what makes parts of `data`, drawn as before."""
    lines = [line for line in text.splitlines() if "random_split(data," in line]
    return "\n".join(["torch.manual_seed(0)", *lines] if lines else [])


def batches_of(loader):
    torch.manual_seed(3)
    return [[*batch] if isinstance(batch, tuple) else batch for batch in loader]


SESSION = """
class Session(Dataset):
    def __init__(self, path):
        self.path, self.file = path, None
        with h5py.File(path, "r") as file:
            self.used = file["used"][:]
            self.pupil = file["behaviour/pupil"][:]
            self.mean = file["mean"][:]
    def __len__(self):
        return len(self.used)
    def __getitem__(self, i):
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        j = self.used[i]
        return {
            "frame": torch.from_numpy(self.file["frames"][j]).unsqueeze(0).float().div_(255),
            "pupil": torch.from_numpy(self.pupil[j]),
            "spikes": SPIKES,
            "kind": int(self.file["kind"][j]),
        }
def collate(batch):
    return {
        "frame": torch.stack([b["frame"] for b in batch]),
        "pupil": torch.stack([b["pupil"] for b in batch]),
        "spikes": torch.stack([torch.as_tensor(b["spikes"]) for b in batch]),
        "kind": torch.tensor([b["kind"] for b in batch]),
    }
dataset = Session("session.h5")
loader = DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=collate)
"""
BARE = """
N, D = 20, 6
class Regression(Dataset):
    def __init__(self, root):
        self.x = np.memmap(f"{root}/features.dat", dtype="float32", mode="r", shape=(N, D))
        self.codes = np.memmap(f"{root}/codes.dat", mode="r", shape=(N, 8))
        self.y = np.load(f"{root}/targets.npy", mmap_mode="r")
    def __len__(self):
        return N
    def __getitem__(self, i):
        codes = torch.from_numpy(np.array(self.codes[i])).long()
        return torch.from_numpy(np.array(self.x[i])).view(2, 3), codes, torch.tensor(self.y[i])
dataset = Regression(".")
loader = DataLoader(dataset, batch_size=8, shuffle=True)
"""
PADDED = """
class Spectrograms(Dataset):
    def __init__(self, table):
        with open(table) as file:
            self.rows = list(csv.DictReader(file))
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, k):
        row = self.rows[k]
        spec = torch.from_numpy(np.load(row["file"])).t()
        spec = (spec - spec.mean()) / (spec.std() + 1e-6)
        return spec, int(row["label"])
def pad_collate(batch):
    specs, labels = zip(*batch)
    lengths = torch.tensor([len(s) for s in specs])
    return pad_sequence(specs, batch_first=True, padding_value=-1.0), lengths, torch.tensor(labels)
train = Spectrograms("clips.csv")
loader = DataLoader(train, batch_size=4, shuffle=True, collate_fn=pad_collate)
"""
SPLIT = """
x = torch.randn(60, 4)
y = (x[:, 0] > 0.5).long()
train, valid = random_split(TensorDataset(x, y), [40, 20])
sampler = SAMPLER
loader = DataLoader(train, batch_size=8, sampler=sampler, num_workers=0)
"""
WORDS = """
class Words(Dataset):
    def __init__(self, texts, labels):
        self.texts, self.labels = texts, labels
    def __len__(self):
        return len(self.texts)
    def __getitem__(self, i):
        tokens = torch.tensor([ord(one) for one in self.texts[i]])
        return tokens, self.labels[i]
def collate(batch):
    texts, labels = zip(*batch)
    lengths = torch.tensor([len(text) for text in texts])
    return pad_sequence(texts, batch_first=True, padding_value=7), lengths, torch.tensor(labels)
data = Words(["abc", "de", "a", "cdef"] * 10, [0, 1, 0, 1] * 10)
data_part, _ = random_split(data, [30, 10])
loader = DataLoader(data_part, batch_size=8, shuffle=True, collate_fn=collate)
"""
IN_LISTS = """
class Series(Dataset):
    def __init__(self, n):
        self.x = [torch.arange(float(k % 5 + 1)) for k in range(n)]
        self.y = [k / 3 for k in range(n)]
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i], self.y[i]
def collate(batch):
    xs, ys = zip(*batch)
    return pad_sequence(xs, batch_first=True, padding_value=-1.0), torch.tensor(ys)
data = Series(40)
loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=collate)
"""
NAMED = IN_LISTS.replace("return self.x[i], self.y[i]", 'return {"x": self.x[i], "y": self.y[i]}').replace(
    "xs, ys = zip(*batch)", 'xs, ys = [one["x"] for one in batch], [one["y"] for one in batch]'
)
FOLLOWED = {
    "HDF5 rows, a chain of steps, a collate function": SESSION.replace(
        "SPIKES", 'torch.from_numpy(self.file["spikes"][j].astype(np.float32))'
    ),
    "HDF5 rows, and what no cast does": SESSION.replace("SPIKES", 'np.sqrt(self.file["spikes"][j]) - self.mean'),
    "bare rows": BARE,
    "rows that are padded": PADDED,
    "padded in another order": PADDED.replace(", batch_first=True", "").replace(
        "torch.tensor(labels)\n", "torch.tensor(labels).float()\n"
    ),
    "rows of lists that are padded": IN_LISTS,
    "rows of lists that are padded, by name": NAMED,
    "rows that are padded, in a part of a dataset": WORDS,
    "weights": SPLIT.replace("SAMPLER", "WeightedRandomSampler(torch.ones(40), num_samples=40)"),
    "one of two ranks": SPLIT.replace("SAMPLER", "DistributedSampler(train, num_replicas=2, rank=1)"),
}


@pytest.mark.parametrize("kind", FOLLOWED)
def test_a_script_that_follows_its_advice_has_the_same_batches(files, kind):
    stock, loader = followed(HEAD + FOLLOWED[kind])
    assert isinstance(loader, memload.FastLoader) or kind in ("weights", "one of two ranks")
    assert loader.engine == "native", loader.why
    torch.testing.assert_close(batches_of(loader), batches_of(stock), rtol=0, atol=0)


@pytest.mark.parametrize("kind", FOLLOWED)
def test_code_is_python_and_sentences_are_apart_from_it(files, kind, capsys):
    told = found(HEAD + FOLLOWED[kind])
    for one in told:
        ast.parse("\n".join(one.change))
        assert not any(line in one.change for line in (*one.notes, *one.commands))
    said = init.report(Script.read(Path("train.py")), told)
    assert ".unsqueeze(0); torch.float32; 255" not in said


@pytest.mark.parametrize(
    "sorts",
    [
        "batch.sort(key=lambda one: len(one[0]), reverse=True)",
        "batch = sorted(batch, key=lambda one: len(one[0]))",
    ],
)
def test_rows_that_are_sorted_and_padded_are_stored_with_their_lengths(files, sorts):
    text = HEAD + PADDED.replace("def pad_collate(batch):", f"def pad_collate(batch):\n    {sorts}")
    code = "\n".join(line for one in found(text) if one.about == "dataset" for line in one.change)
    assert 'ragged=["spec"]' in code
    assert "with_ragged" not in code
    stock, loader = followed(text)
    assert loader is not stock
    torch.testing.assert_close(batches_of(loader), batches_of(stock), rtol=0, atol=0)


# Files


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ('mode="r", shape=(20, 8)', 'memload.open("codes.dat", field="codes", dtype="uint8", shape=(8,))'),
        ('mode="r"', 'memload.open("codes.dat", field="codes", dtype="uint8", shape=())'),
        (
            'np.int16, "r", 16, (18, 4)',
            'memload.open("codes.dat", field="codes", dtype=np.int16, shape=(4,), offset=16)',
        ),
        (
            'mode="r", shape=tuple([20, 8])',
            'memload.from_arrays(codes=np.memmap("codes.dat", dtype="uint8", mode=\'r\', shape=tuple([20, 8])))',
        ),
    ],
)
def test_bare_rows_have_the_dtype_that_numpy_takes(files, arguments, code):
    text = f"""{HEAD}
class Codes(Dataset):
    def __init__(self):
        self.codes = np.memmap("codes.dat", {arguments})
    def __len__(self):
        return len(self.codes)
    def __getitem__(self, i):
        return torch.as_tensor(np.array(self.codes[i]))
loader = DataLoader(Codes(), batch_size=4)
"""
    assert told_of(text).change == (f'dataset = {code}.only("codes")',)
    exec(told_of(text).change[0], names := {"memload": memload, "np": np})
    exec(text, names)
    ours = memload.FastLoader(names["dataset"], 4)
    assert ours.engine == "native"
    torch.testing.assert_close(list(ours), list(names["loader"]), rtol=0, atol=0)


def test_bare_rows_that_are_not_seen_in_a_sample_have_their_dtype_too(files):
    text = f"""{HEAD}
class Codes(Dataset):
    def __init__(self):
        self.codes = np.memmap("codes.dat", mode="r", shape=(20, 8))
    def __getitem__(self, i):
        return compute(self.codes, i)
loader = DataLoader(Codes(), batch_size=4)
"""
    advice = told_of(text)
    assert 'dtype="uint8", shape=(8,)' in advice.change[0]
    assert advice.change[1] == "def prepare(sample):  # yours to write: what __getitem__ (line 13) makes of a row"
    assert advice.where.endswith("with `dataset` in the place of Codes()")


@pytest.mark.parametrize(
    "used", ['f["used"][:]', 'np.where((f["kind"][:] > 0) & (f["used"][:8].sum() > 0))[0]', 'f["used"]']
)
def test_a_file_is_opened_once(files, used):
    text = f"""{HEAD}
class Session(Dataset):
    def __init__(self, path):
        f = h5py.File(path, "r")
        self.x, self.used, self.mean = f["spikes"], {used}, f["mean"][:]
    def __len__(self):
        return len(self.used)
    def __getitem__(self, i):
        return (self.x[self.used[i]] - self.mean) / self.mean
dataset = Session("session.h5")
loader = DataLoader(dataset, batch_size=8)
"""
    code = "\n".join(told_of(text).change)
    assert code.count("h5py.File(") == 1
    assert code.count("memload.open(") == 1
    stock, loader = followed(text)
    assert loader.engine == "native"
    torch.testing.assert_close(batches_of(loader), batches_of(stock), rtol=0, atol=0)


# What a sample is


STEPS = {
    "self.x[i][None].astype(np.float32) / 4": (True, "unsqueeze(1)"),
    "np.expand_dims(self.x[i], 0)": (True, "unsqueeze(1)"),
    "torch.from_numpy(self.x[i]).reshape(-1, 5).double()": (True, "flatten(1).unflatten(1, (-1, 5))"),
    "torch.from_numpy(self.x[i]).t().flatten().long()": (True, "transpose(1, 2).flatten(1).to(torch.int64)"),
    "torch.from_numpy(self.x[i]).float().clamp(0, 9) / 2": (False, "def prepare(sample):  # of one row, in threads"),
    "self.x[i].T.copy()": (False, "    return sample.numpy().T.copy()"),
    "self.x[i].mean(axis=0)": (False, "    return sample.numpy().mean(axis=0)"),
    "self.change(self.x[i], 2)": (
        False,
        "def prepare(sample):  # yours to write: what __getitem__ (line 20) makes of x",
    ),
}


@pytest.mark.parametrize("code", STEPS)
def test_a_chain_of_steps_is_expressed_or_kept_whole(files, code):
    in_batches, words = STEPS[code]
    text = f"""{HEAD}
class Session(Dataset):
    def __init__(self, path):
        self.path = path
        self.x = h5py.File(path, "r")["frames"]
    def change(self, x, factor):
        return x * factor
    def __len__(self):
        return 30
    # a sample is one value


    def __getitem__(self, i):
        return {code}
dataset = Session("session.h5")
loader = DataLoader(dataset, batch_size=8)
"""
    text = text.replace("    # a sample is one value\n\n\n", "\n")
    advice = told_of(text)
    assert words.partition(" (line")[0] in "\n".join(advice.change)
    assert ("prepare" in "\n".join(advice.change)) is not in_batches
    if "yours" not in words:
        stock, loader = followed(text)
        assert loader.engine == "native"
        torch.testing.assert_close(batches_of(loader), batches_of(stock), rtol=0, atol=0)


@pytest.mark.parametrize(
    "body",
    [
        "x = self.x[i].copy(); x[x > 1] = 0; return x, self.x[i]",
        "x = torch.from_numpy(self.x[i]).float(); x.div_(255); return x, self.x[i]",
        "x = self.x[i]\n        if self.flip: x = x[::-1].copy()\n        return x, self.x[i]",
        "if i % 2: return self.x[i] * 0, self.x[i]\n        return self.x[i], self.x[i]",
    ],
)
def test_what_a_statement_changes_is_not_overlooked(files, body):
    text = f"""{HEAD}
class Session(Dataset):
    def __init__(self, path, flip=False):
        self.x, self.flip = h5py.File(path, "r")["frames"], flip
    def __len__(self):
        return 30
    def __getitem__(self, i):
        {body}
dataset = Session("session.h5")
loader = DataLoader(dataset, batch_size=8)
"""
    code = "\n".join(told_of(text).change)
    assert "cast=" not in code
    if "yours to write" in code:
        return
    assert "ShardWriter" in code
    stock, loader = followed(text)
    assert loader.engine == "native"
    torch.testing.assert_close(batches_of(loader), batches_of(stock), rtol=0, atol=0)


ROWS = """
class Session(Dataset):
    def __init__(self, path, transform=None, train=True):
        self.f = h5py.File(path, "r")
        self.x, self.y, self.transform, self.win = self.f["frames"], self.f["kind"], transform, 4
        SET
    def __len__(self):
        return len(self.x) - 4
    def __getitem__(self, i):
        BODY
change = transforms.Compose([transforms.Normalize(0.5, 0.25)])
dataset = Session("session.h5", transform=change)
loader = DataLoader(dataset, batch_size=8)
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "return self.x[i : i + self.win], self.y[i + self.win]",
            "other fields are those of the row behind a window",
        ),
        ("return self.x[i : i + 4], self.x[i : i + 3]", "windows are joined with rows that are not"),
        ("return self.x[i + 1], float(self.y[i + 1])", ""),
        (
            "x = torch.from_numpy(self.x[i + 1])[None].float()\n"
            "        if self.transform is not None:\n            x = self.transform(x)\n"
            "        return x, self.y[i + 1]",
            "",
        ),
    ],
)
def test_rows_that_a_class_puts_together_are_those_of_its_samples(files, body, words):
    text = f"{HEAD}from torchvision import transforms\n" + ROWS.replace("SET", "pass").replace("BODY", body)
    told = found(text)
    assert not any("memload.Cast(torch.float32, scale" in line for one in told for line in one.change)
    (advice,) = [one for one in told if one.about == "dataset"]
    assert words in "\n".join(advice.notes)
    stock, loader = followed(text)
    assert loader.engine == "native"
    torch.testing.assert_close(batches_of(loader), batches_of(stock), rtol=0, atol=0)
    assert not [one for one in told if one.about == "transform" and "transform(x)" in body]


CHANGED = """
class Rows(Dataset):
    def __init__(self, first=1.0):
        self.x, self.scale, self.rows = torch.arange(9.0), first, []
    def __len__(self):
        return 9
    def set_scale(self, scale):
        self.scale = scale
    def total(self):
        return self.x.sum()
    def __getitem__(self, i):
        return self.x[i] * self.scale
data = Rows()
loader = DataLoader(data, batch_size=4)
"""


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("data.scale = 5.0", "line 21 sets data.scale"),
        ("data.scale += 5.0", "line 21 sets data.scale"),
        ("data.scale, data.x = other.scale, other.x", "line 21 sets data.scale, line 21 sets data.x"),
        ("data.x[2] = 7", "line 21 sets data.x[2]"),
        ("data.x.mul_(2)", "line 21 calls data.x.mul_(2)"),
        ("data.rows.append(2)", "line 21 calls data.rows.append(2)"),
        ("data.set_scale(5)", "line 21 calls data.set_scale(5)"),
        ("setattr(data, 'scale', 5.0)", "line 21 calls setattr(data, 'scale', 5.0)"),
        ("same = data\nsame.scale = 5.0", "line 22 sets same.scale"),
        ("loader.dataset.scale = 5.0", "line 21 sets loader.dataset.scale"),
        ("a, b = random_split(data, [5, 4])\nb.dataset.scale = 5.0", "line 22 sets b.dataset.scale"),
        ("for one in (data, None):\n    one.scale = 5.0", "line 22 sets one.scale"),
        ("def halve(one):\n    one.scale = 0.5\nhalve(data)", "line 22 sets one.scale"),
    ],
)
def test_a_dataset_that_is_changed_after_it_is_made_is_not_followed(files, lines, told):
    text = HEAD + CHANGED + lines
    first = text[: text.index("data = Rows()")].count("\n") + 3
    words = told.replace("line 21", f"line {first}").replace("line 22", f"line {first + 1}")
    advice = told_of(text)
    assert (advice.change, advice.commands) == ((), ())
    assert [note.partition(", after ")[0] for note in advice.notes] == [f"not followed: {words}"]


@pytest.mark.parametrize(
    "lines",
    [
        "loader.batch_sampler = None",
        "other = Rows(2)\nother.scale = 5.0",
        "a, b = random_split(data, [5, 4])\nb.indices = [1]",
        "data.total()",
        "print(data.x)",
    ],
)
def test_what_does_not_change_a_dataset_is_no_reason_against_its_advice(files, lines):
    assert any("ShardWriter" in line for line in told_of(HEAD + CHANGED + lines).change)


def test_a_set_of_torchvision_that_is_changed_is_not_followed(files):
    text = f"{HEAD}from torchvision import datasets\ndata = datasets.CIFAR10('here')\ndata.targets[3] = 5\n"
    advice = told_of(f"{text}loader = DataLoader(data)\n")
    assert advice.change == ()
    assert advice.notes[0].startswith("not followed: line 11 sets data.targets[3], after datasets.CIFAR10('here')")


@pytest.mark.parametrize("line", ["x, y = flip(x, y)", "for x in (x, y): pass", "x, *y = x", "(x := x * 2)"])
def test_a_name_that_gets_a_part_of_a_value_is_not_what_it_was(files, line):
    text = f"{HEAD}from torchvision import transforms\n" + ROWS.replace("SET", "pass").replace(
        "BODY", f"x, y = self.x[i], self.y[i]\n        {line}\n        return x, y"
    )
    code = "\n".join(told_of(text).change)
    assert "as_tuple" not in code or "ShardWriter" in code


def test_an_attribute_that_has_several_values_is_not_followed(files):
    text = f"{HEAD}from torchvision import transforms\n" + ROWS.replace(
        "SET", "self.x = self.x[:20] if train else self.x[20:]"
    ).replace("BODY", "return self.x[i] * 2")
    advice = told_of(text)
    assert "yours to write" in "\n".join(advice.change)
    assert any(note.startswith("not followed: which rows a sample has") for note in advice.notes)


def test_a_class_with_fewer_samples_than_rows_says_so(files):
    text = f"{HEAD}from torchvision import transforms\n" + ROWS.replace("SET", "pass").replace(
        "BODY", "return self.x[i]"
    )
    advice = told_of(text)
    assert (
        "the class has len(self.x) - 4 samples: compare len(dataset), and choose by .select(range(n))" in advice.notes
    )


@pytest.mark.parametrize("returned", ["self.x[i], float(self.mean)", '{"x": self.x[i], "mean": self.mean}'])
def test_what_a_file_has_once_is_no_row_of_it(files, returned):
    np.savez("rows.npz", x=np.arange(60).reshape(20, 3), mean=np.float32(0.3))
    text = f"""{HEAD}
class Rows(Dataset):
    def __init__(self, path):
        self.file = np.load(path)
        self.x, self.mean = self.file["x"], self.file["mean"]
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return {returned}
data = Rows("rows.npz")
loader = DataLoader(data, batch_size=4)
"""
    assert any(note.startswith("mean: not a row of an array") for note in told_of(text).notes)
    exec(text, names := {"memload": memload})
    exec("\n".join(told_of(text).change), names)
    loader = memload.FastLoader(names["data"], batch_size=4)
    assert loader.engine == "native"
    torch.testing.assert_close(batches_of(loader), batches_of(names["loader"]), rtol=0, atol=0)
    names["loader"].dataset.file.close()


# Collate functions


COLLATES = {
    "lambda batch: (torch.stack([b[0] for b in batch]), torch.stack([b[1] for b in batch], dim=0))": True,
    "lambda batch: [torch.stack([a for a, b in batch]), torch.tensor([b for a, b in batch])]": True,
    "lambda batch: tuple(map(torch.stack, zip(*batch)))": None,
    "lambda batch: (torch.stack([b[1] for b in batch]), torch.stack([b[0] for b in batch]))": False,
    "lambda batch: {'x': torch.stack([b[0] for b in batch]), 'y': torch.stack([b[1] for b in batch]).float()}": False,
    "appends": True,
    "lambda batch: (torch.stack([b[0] for b in batch if b[1] > 3]), torch.stack([b[1] for b in batch]))": None,
    "lambda batch: torch.stack([b[0] for b in batch])": False,
    "lambda batch: batch": None,
}


@pytest.mark.parametrize("collate", COLLATES)
def test_a_collate_function_that_only_stacks_can_be_left_out(files, collate):
    text = f"""{HEAD}
def appends(batch):
    xs, ys = [], []
    for x, y in batch:
        xs.append(x)
        ys.append(y)
    return torch.stack(xs), torch.stack(ys)
loader = DataLoader(TensorDataset(torch.arange(20.0).view(10, 2), torch.arange(10)), 4, collate_fn={collate})
"""
    advice = told_of(text)
    if COLLATES[collate] is None:
        assert advice.change == ()
        assert advice.notes[0].startswith(f"not followed: {collate.replace('(0, )', '(0,)')[:20]}")
        return
    assert ("it can be left out" in advice.why) is COLLATES[collate]
    assert ("batch_transform" in advice.change[0]) is not COLLATES[collate]
    stock, loader = followed(text)
    assert loader.engine == "native", loader.why
    torch.testing.assert_close(batches_of(loader), batches_of(stock), rtol=0, atol=0)

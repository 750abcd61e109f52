"""Files of torch.save: read in place, as torch.load reads them, and without running what they name."""

import collections
import datetime
import importlib
import pickle
import warnings
import zipfile
from dataclasses import dataclass

import h5py
import numpy as np
import pytest
import strategies
import torch
from damage import damaged, opens_or_says_why
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import memload
from memload.formats import torch_file
from memload.formats.hdf5 import is_hdf5
from memload.formats.torch_file import load_mapped


def all_rows(field):
    return field.gather(np.arange(field.rows))


@given(strategies.field_sets())
@example({"0": torch.zeros(100, 0, 3, 4)})  # no bytes, but a stride
def test_a_dict_of_tensors_is_read_as_torch_load_reads_it(tmp_path_factory, tensors):
    path = tmp_path_factory.mktemp("torch") / "x.pt"
    torch.save(tensors, path)
    loaded = torch.load(path, mmap=True, weights_only=True)
    ds = memload.open(path)
    assert list(ds.fields) == list(loaded)
    for name, field in ds.fields.items():
        assert field.shape == tuple(loaded[name].shape[1:])
        assert strategies.as_bytes(all_rows(field)) == strategies.as_bytes(loaded[name])
        assert field.nbytes == 0 or [(s.mapped, s.name) for s in field.column.storages] == [(True, str(path))]


def test_a_single_tensor_takes_the_name_given(tmp_path):
    torch.save(torch.arange(6).reshape(3, 2), tmp_path / "x.pt")
    assert memload.open(tmp_path / "x.pt")[1]["data"].tolist() == [2, 3]
    assert list(memload.open(tmp_path / "x.pt", field="stim").fields) == ["stim"]


def test_nested_containers_become_paths_and_what_is_no_tensor_is_left_out(tmp_path):
    torch.save(
        {"train": {"x": torch.ones(3), "note": "text"}, "pair": [torch.zeros(3), (torch.arange(3),)]}, tmp_path / "x"
    )
    assert list(memload.open(tmp_path / "x").fields) == ["train/x", "pair/0", "pair/1/0"]


def test_key_picks_a_group_an_array_or_several(tmp_path):
    path = tmp_path / "x.pt"
    parts = {part: {"x": torch.ones(n, 2), "y": torch.arange(n)} for part, n in (("train", 5), ("test", 3))}
    torch.save(parts, path)
    assert {name: field.rows for name, field in memload.open(path, key="test").fields.items()} == {"x": 3, "y": 3}
    assert list(memload.open(path, key=["train/y", "train/x"]).fields) == ["train/y", "train/x"]
    assert list(memload.open(path, key="train/y", field="label").fields) == ["label"]
    with pytest.raises(ValueError, match=r"train/x: 5, train/y: 5, test/x: 3, test/y: 3; pick .* key="):
        memload.open(path)
    with pytest.raises(KeyError, match=r"nothing is named 'valid'; there are 'train/x'"):
        memload.open(path, key="valid")
    with pytest.raises(TypeError, match="field= names a single array"):
        memload.open(path, key="train", field="label")


def test_views_of_one_storage_stay_where_they_are(tmp_path):
    whole = torch.arange(40.0).reshape(10, 4)
    torch.save({"every_second": whole[::2], "first_half": whole[:5], "same": whole[:5].expand(5, 4)}, tmp_path / "x.pt")
    ds = memload.open(tmp_path / "x.pt")
    assert torch.equal(all_rows(ds.fields["every_second"]), whole[::2])
    assert torch.equal(all_rows(ds.fields["first_half"]), whole[:5])
    assert {storage.mapped for field in ds.fields.values() for storage in field.column.storages} == {True}


class Rescaled(torch.Tensor):
    """A tensor that is made while the file is loaded."""

    def __reduce_ex__(self, protocol):
        return torch.full, ((3,), 0.5)


@pytest.mark.parametrize("names", [["made", "x"], ["x", "made"]])
def test_tensors_are_read_in_place_whatever_is_beside_them(tmp_path, names):
    tensors = {"made": torch.zeros(3).as_subclass(Rescaled), "x": torch.arange(3.0)}
    torch.save({name: tensors[name] for name in names}, tmp_path / "x.pt")
    ds = memload.open(tmp_path / "x.pt", trust=True)
    assert ds[1]["made"] == 0.5
    assert ds[1]["x"] == 1
    assert [[one.mapped for one in ds.fields[name].column.storages] for name in tensors] == [[False], [True]]


class Scaled:
    """Changes its numbers in place while it is loaded, past torch's own account of changes."""

    def __init__(self, x):
        self.x = x

    def __setstate__(self, state):
        self.x = state["x"]
        self.x.numpy()[:] *= 2


@pytest.mark.parametrize("allowed", [False, True])
def test_numbers_that_a_class_changes_while_it_is_loaded_are_those_it_made(tmp_path, allowed):
    x = torch.arange(8.0)
    torch.save({"kept": Scaled(x), "x": x, "part": x[2:6]}, tmp_path / "x.pt")
    with torch.serialization.safe_globals([Scaled] if allowed else []):
        ds = [memload.open(tmp_path / "x.pt", key=key, trust=None if allowed else True) for key in ("x", "part")]
    assert [one[3][key].item() for one, key in zip(ds, ("x", "part"), strict=True)] == [6, 10]


def test_a_file_of_torch_is_one_though_its_numbers_are_those_of_an_hdf5_file(tmp_path):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["y"] = np.arange(5)
    content = np.fromfile(tmp_path / "in.h5", np.uint8)
    paths = [tmp_path / f"{'n' * length}.pt" for length in range(40, 120)]
    for path in paths:
        torch.save({"file": torch.from_numpy(content)}, path)
    odd = next(filter(is_hdf5, paths))  # the file's name moves its tensors: some lie where HDF5's signature may stand
    assert np.array_equal(all_rows(memload.open(odd).fields["file"]), content)
    assert list(memload.open(tmp_path / "in.h5").fields) == ["y"]


def test_parameters_and_ordered_dicts_are_plain_rows(tmp_path):
    torch.save(collections.OrderedDict(w=torch.nn.Parameter(torch.ones(3, 2))), tmp_path / "x.pt")
    assert memload.open(tmp_path / "x.pt")[0]["w"].tolist() == [1, 1]


def test_a_dataset_on_such_a_file_travels_as_its_path(tmp_path):
    torch.save({"x": torch.arange(100_000)}, tmp_path / "x.pt")
    sent = pickle.dumps(memload.open(tmp_path / "x.pt"))
    assert len(sent) < 2000
    assert pickle.loads(sent)[99_999]["x"] == 99_999


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # by torch 2.11, of sparse files
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"x": torch.zeros(3, 4).t()}, r"'x': a row is not one contiguous run of bytes; pass tensor.contiguous"),
        ({"x": torch.zeros(3), "y": torch.tensor(1)}, r"'y' is a single number.*key="),
        ({"x": torch.zeros(3, dtype=torch.complex128)}, "cannot be stored"),
        ({"x": torch.eye(3).to_sparse()}, "expected a dense tensor"),
        ({"n": 3}, "holds no arrays"),
    ],
)
def test_tensors_that_cannot_be_rows_say_why(tmp_path, value, message):
    torch.save(value, tmp_path / "x.pt")
    with pytest.raises(memload.FormatError, match=message):
        memload.open(tmp_path / "x.pt")


class Ran:
    done = False

    def __reduce__(self):
        return setattr, (Ran, "done", True)


@pytest.mark.parametrize(
    ("sample", "rows"),
    [
        (lambda: {"x": torch.rand(3), "y": 1}, r"torch\.load\('x\.pt'\)\)"),
        (lambda: torch.rand(3), r"\(\{'x': x\} for x in torch\.load\('x\.pt'\)\)"),
        (lambda: (torch.rand(3), 1), r"\(\{'x': x, 'y': y\} for x, y in torch\.load\('x\.pt'\)\)"),
    ],
)
def test_a_long_list_of_samples_is_told_from_fields_and_how_to_write_it(tmp_path, sample, rows):
    samples = [sample() for _ in range(65)]
    torch.save(samples, tmp_path / "x.pt")
    with pytest.raises(memload.FormatError, match=rf"a list of 65, which looks like samples.*directory, {rows}"):
        memload.open(tmp_path / "x.pt")
    assert len(memload.open(tmp_path / "x.pt", key="7").fields) == 1
    torch.save(samples[:64], tmp_path / "x.pt")
    assert len(memload.open(tmp_path / "x.pt").fields) == 64


def test_a_class_that_is_not_allowed_is_named_and_not_run(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"x": torch.arange(3), "code": Ran()}, path)
    with pytest.raises(memload.FormatError, match=r"setattr.*add_safe_globals.*trust=True"):
        memload.open(path)
    assert not Ran.done
    assert memload.open(path, trust=True)[2]["x"] == 2
    assert Ran.done


def test_trusted_files_may_hold_arrays_of_numpy_and_tensor_datasets(tmp_path):
    torch.save({"x": np.arange(3), "when": datetime.datetime(2020, 1, 1)}, tmp_path / "a.pt")
    with pytest.raises(memload.FormatError, match=r"datetime\.datetime, numpy"):
        memload.open(tmp_path / "a.pt")
    assert memload.open(tmp_path / "a.pt", trust=True)[1]["x"] == 1
    torch.save(TensorDataset(torch.ones(4, 2), torch.arange(4)), tmp_path / "b.pt")
    ds = memload.open(tmp_path / "b.pt", trust=True)
    assert ds[3]["1"] == 3
    assert ds.fields["0"].column.storages[0].mapped


@pytest.fixture(scope="module")
def graphs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch_geometric uses what torch deprecates
        return importlib.import_module("torch_geometric.data")


def test_classes_of_torch_geometric_are_allowed_and_stay_so(tmp_path, graphs):
    graph = graphs.Data(x=torch.rand(4, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
    hetero = graphs.HeteroData()
    hetero["paper"].x = torch.rand(3, 2)
    hetero["paper", "cites", "paper"].edge_index = torch.zeros(2, 1, dtype=torch.long)
    torch.save((graph, hetero), tmp_path / "x.pt")
    file = load_mapped(tmp_path / "x.pt")
    read, read_hetero = file.value
    assert torch.equal(all_rows(file.field("x", read.x)), graph.x)
    assert file.offset(read_hetero["paper"].x) is not None
    assert file.field("x", read.x).column.storages[0].mapped
    assert graphs.Data in torch.serialization.get_safe_globals()


def test_what_the_user_allowed_is_allowed(tmp_path):
    torch.save({"x": torch.arange(3), "when": datetime.date(2020, 1, 1)}, tmp_path / "x.pt")
    with torch.serialization.safe_globals([datetime.date]):
        assert len(memload.open(tmp_path / "x.pt")) == 3


def test_the_old_format_of_torch_save_says_what_to_do(tmp_path):
    torch.save(torch.arange(3), tmp_path / "x.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(memload.FormatError, match=r"before torch 1\.6.*save it again"):
        memload.open(tmp_path / "x.bin")


def rewritten(source, target, **changed):
    """A copy of a zip file with other bytes for some members, by the last part of their names."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, changed.get(info.filename.rpartition("/")[2], old.read(info)))


def test_numbers_of_another_byte_order_are_refused(tmp_path):
    torch.save(torch.arange(3), tmp_path / "x.pt")
    rewritten(tmp_path / "x.pt", tmp_path / "y.pt", byteorder=b"big")
    with pytest.raises(memload.FormatError, match="big-endian"):
        memload.open(tmp_path / "y.pt")


def test_a_record_that_claims_to_be_compressed_is_refused(tmp_path):
    torch.save(torch.zeros(300), tmp_path / "x.pt")
    with (
        zipfile.ZipFile(tmp_path / "x.pt") as old,
        zipfile.ZipFile(tmp_path / "y.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    with pytest.raises(memload.FormatError, match=r"is not stored as torch\.save stores it"):
        memload.open(tmp_path / "y.pt")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "x.pt"
    torch.save({"x": torch.arange(30).reshape(10, 3), "y": torch.ones(10)}, path)
    return path.read_bytes()


@given(st.data())
@settings(max_examples=60)
def test_a_damaged_file_opens_or_says_what_is_wrong(tmp_path_factory, sound, data):
    path = tmp_path_factory.getbasetemp() / "damaged.pt"
    path.write_bytes(data.draw(damaged(sound)))
    opens_or_says_why(path)


def test_an_odd_escape_in_a_damaged_pickle_is_no_warning_of_pythons(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02]c\\A\nx\n.")
    with pytest.raises(memload.FormatError, match=r"x\.pt"):
        memload.open(tmp_path / "x.pt")


def test_tensors_without_rows_are_read_beside_each_other(tmp_path):
    torch.save({"x": torch.rand(4, 3)[:0], "y": torch.zeros(0)}, tmp_path / "none.pt")
    ds = memload.open(tmp_path / "none.pt")
    assert len(ds) == 0
    assert ds.fields["x"].shape == (3,)


@dataclass
class Output(collections.OrderedDict):
    """A mapping that is a dataclass, too, as outputs of transformers' models are."""

    logits: torch.Tensor | None = None


def test_a_mapping_that_is_a_dataclass_is_looked_into():
    output = Output()
    output["logits"] = torch.arange(6.0).reshape(3, 2)
    assert [(path, leaf.shape) for path, leaf in torch_file._walk({"of": output}, ())] == [(("of", "logits"), (3, 2))]

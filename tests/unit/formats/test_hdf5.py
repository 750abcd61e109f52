"""HDF5 files read in place: every layout beside h5py, links, several files, and what is refused."""

import os
import pickle
import subprocess
import sys

import h5py
import numpy as np
import psutil
import pytest
import torch
from programs import run

import memload
from memload.formats.hdf5_layout import by_place


def rows_of(dataset, name):
    return dataset.fields[name].gather(np.arange(len(dataset))).numpy()


def agrees(path, key, **options):
    """Whether memload reads what h5py reads, bit by bit; also rows in another order and twice."""
    dataset = memload.open(path, key=key, **options)
    with h5py.File(path) as file:
        expected = file[key][:]
    expected = expected.astype(expected.dtype.newbyteorder("="))
    order = np.random.default_rng(0).permutation(np.r_[np.arange(len(expected)), np.arange(len(expected))])
    found = dataset.fields[key.strip("/")].gather(order).numpy()
    assert rows_of(dataset, key.strip("/")).tobytes() == expected.tobytes()
    assert found.tobytes() == expected[order].tobytes()
    return dataset


DATA = np.arange(13 * 5 * 3, dtype=np.int16).reshape(13, 5, 3)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("user_block", [0, 512, 4096])
@pytest.mark.parametrize("chunks", [None, (1, 5, 3), (4, 5, 3), (13, 5, 3), (4, 8, 3), True])
def test_rows_that_are_runs_of_bytes_are_read_in_place(tmp_path, libver, user_block, chunks):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver, userblock_size=user_block) as file:
        options = {"chunks": (7, 5, 3) if chunks is True else chunks, "maxshape": (None, None, 3) if chunks else None}
        file.create_dataset("x", data=DATA, **options)
    dataset = agrees(path, "x")
    assert all(storage.mapped and storage.name == str(path) for storage in dataset.fields["x"].column.storages)


@pytest.mark.parametrize("dtype", ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8"])
def test_every_dtype_that_torch_has_is_read(tmp_path, dtype):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(24).reshape(4, 2, 3).astype(dtype)
    agrees(tmp_path / "a.h5", "x")


def test_whole_numbers_with_names_are_read_as_numbers(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=[1, 2], dtype=h5py.enum_dtype({"left": 1, "right": 2}, basetype="i2"))
    assert agrees(tmp_path / "a.h5", "x").fields["x"].dtype == torch.int16


def test_a_dataset_so_small_that_it_lies_in_the_metadata_is_read(tmp_path):
    path = tmp_path / "a.h5"
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_layout(h5py.h5d.COMPACT)
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((4, 3))
        h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I16BE, space, made)
        file["x"][:] = np.arange(12).reshape(4, 3)
    dataset = agrees(path, "x")
    assert pickle.loads(pickle.dumps(dataset))[3]["x"].tolist() == [9, 10, 11]


@pytest.mark.parametrize("chunks", [None, (2, 3), (1, 3)])
def test_what_was_never_written_has_the_fill_value(tmp_path, chunks):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        never = file.create_dataset("never", (5, 3), "i4", chunks=chunks, fillvalue=-7)
        partly = file.create_dataset("partly", (5, 3), "i4", chunks=chunks, fillvalue=-7)
        grown = file.create_dataset("grown", (3, 3), "i4", chunks=chunks or (2, 3), fillvalue=9, maxshape=(None, 3))
        assert never.id.get_storage_size() == 0
        partly[3] = 1
        grown[:] = 2
        grown.resize((5, 3))
    for key in ("never", "partly", "grown"):
        agrees(path, key)


def test_a_dataset_that_shrank_has_the_rows_that_are_left(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(30).reshape(10, 3), chunks=(4, 3), maxshape=(None, 3)).resize((5, 3))
    assert len(agrees(path, "x")) == 5


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0,)])
def test_datasets_without_rows_or_without_bytes_are_empty(tmp_path, shape):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", shape, "f4")
        file.create_dataset("chunked", shape, "f4", maxshape=(None,) * len(shape), chunks=(2, 3)[: len(shape)])
    assert len(agrees(tmp_path / "a.h5", "x")) == shape[0]
    assert len(agrees(tmp_path / "a.h5", "chunked")) == shape[0]


def test_several_keys_are_fields_and_a_mapping_names_them(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["session/stim"], file["robs"], file["other"] = np.arange(6).reshape(3, 2), np.arange(3.0), np.zeros(99)
    assert list(memload.open(path, key=["session/stim", "/robs"]).fields) == ["session/stim", "robs"]
    dataset = memload.open(path, key={"stim": "session/stim", "y": "robs"})
    assert dataset[2]["stim"].tolist() == [4, 5]
    assert dataset[2]["y"].item() == 2.0
    assert list(memload.open(path, key="session").fields) == ["stim"]
    assert list(memload.open(path, key="robs", field="y").fields) == ["y"]


def test_without_a_key_all_datasets_of_equal_length_are_fields(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["g/stim"], file["robs"] = np.zeros((3, 2)), np.zeros(3)
    assert list(memload.open(path).fields) == ["g/stim", "robs"]
    with h5py.File(path, "a") as file:
        file["rate"] = 30.0
    with pytest.raises(ValueError, match=r"key=:\n  'g/stim'  float64 \(3, 2\)\n  'rate'  float64 \(\)\n"):
        memload.open(path)


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("none", KeyError, "nothing is named 'none'; there are 'g/x', 'y'"),
        ("g/x/y", KeyError, "nothing is named 'g/x/y'"),
        ("", KeyError, "nothing is named ''"),
        ([], ValueError, "empty; there are 'g/x'"),
        (["g/x", "/g/x"], ValueError, r"\['g/x'\] twice"),
        ({"a": 3}, TypeError, "takes the names of arrays, got 3"),
        ({"a": "none"}, KeyError, "nothing is named 'none'"),
        (["y", "none"], KeyError, "nothing is named 'none'; there are 'g/x', 'y'"),
    ],
)
def test_a_key_that_leads_nowhere_says_what_there_is(tmp_path, key, error, message):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g/x"], file["y"] = np.zeros(3), np.zeros(3)
    with pytest.raises(error, match=message):
        memload.open(tmp_path / "a.h5", key=key)


def test_groups_that_hold_each_other_are_walked_once(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g/x"] = np.zeros(3)
        file["g/round"] = file["g"]
        file["again"] = file["g/x"]
    assert list(memload.open(tmp_path / "a.h5").fields) == ["again", "g/x"]


def test_a_name_that_is_no_text_is_a_format_error(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        h5py.h5d.create(file.id, b"\xff", h5py.h5t.STD_I16LE, h5py.h5s.create_simple((4,)))
    with pytest.raises(memload.FormatError, match=r"a\.h5: HDF5 cannot read it .*utf-8"):
        memload.open(tmp_path / "a.h5")


def test_links_are_followed_into_other_files(tmp_path):
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["data"] = DATA
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["there"] = h5py.ExternalLink("b.h5", "/data")
        file["soft"] = h5py.SoftLink("/there")
    for key in ("there", "soft"):
        dataset = agrees(tmp_path / "a.h5", key)
        assert {storage.name for storage in dataset.fields[key].column.storages} == {str(tmp_path / "b.h5")}


def test_links_that_lead_nowhere_are_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["there"], file["soft"] = h5py.ExternalLink("b.h5", "/data"), h5py.SoftLink("/gone")
    with pytest.raises(memload.FormatError, match=r"'there' is a link to '/data' in 'b\.h5'.*open it itself"):
        memload.open(tmp_path / "a.h5", key="there")
    with pytest.raises(memload.FormatError, match=r"'there' is a link to"):
        memload.open(tmp_path / "a.h5", key="there/below")
    with pytest.raises(memload.FormatError, match=r"'soft' is a link to '/gone'"):
        memload.open(tmp_path / "a.h5", key="soft")


def test_links_that_leave_the_folder_are_refused_by_link_and_target(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for place in ("out.h5", "in/deep/b.h5"):
        with h5py.File(tmp_path / place, "w") as file:
            file["data"] = DATA
            file["up"] = h5py.ExternalLink("../a.h5", "/below")
            file["far"] = h5py.ExternalLink("../../out.h5", "/data")
    absolute = str(tmp_path / "out.h5")
    with h5py.File(tmp_path / "in" / "a.h5", "w") as file:
        file["out"], file["absolute"] = h5py.ExternalLink("../out.h5", "/data"), h5py.ExternalLink(absolute, "/data")
        file["below"] = h5py.ExternalLink(str(tmp_path / "in" / "deep" / "b.h5"), "/data")
        file["far"], file["back"] = h5py.ExternalLink("deep/b.h5", "far"), h5py.ExternalLink("deep/b.h5", "up")
    opened = tmp_path / "in" / "a.h5"
    for key in ("below", "back"):
        assert agrees(opened, key).fields[key].rows == len(DATA)
    for key, target in (("out", "../out.h5"), ("absolute", absolute), ("far", "../../out.h5")):
        with pytest.raises(memload.FormatError, match=rf"'{key}'.* is a link to '/data' in '{target}', outside the"):
            memload.open(opened, key=key)


def test_links_of_a_file_behind_a_symlink_are_found_beside_the_file_itself(tmp_path):
    (tmp_path / "store").mkdir()
    with h5py.File(tmp_path / "store" / "b.h5", "w") as file:
        file["data"] = DATA
    with h5py.File(tmp_path / "store" / "a.h5", "w") as file:
        file["own"], file["there"], file["group"] = (
            DATA,
            h5py.ExternalLink("b.h5", "data"),
            h5py.ExternalLink("b.h5", "/"),
        )
    (tmp_path / "a.h5").symlink_to("store/a.h5")
    assert agrees(tmp_path / "a.h5", "there").fields["there"].rows == len(DATA)
    with pytest.raises(KeyError, match="nothing is named 'group/nothing'"):
        memload.open(tmp_path / "store" / "a.h5", key="group/nothing")


def test_links_in_a_circle_and_to_what_is_no_hdf5_file_are_told(tmp_path, monkeypatch):
    (tmp_path / "text.h5").write_text("no HDF5")
    os.mkfifo(tmp_path / "pipe.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["back"] = h5py.ExternalLink("a.h5", "/round")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["self"], file["round"] = h5py.SoftLink("/self/x"), h5py.ExternalLink("b.h5", "/back")
        file["text"], file["pipe"] = h5py.ExternalLink("text.h5", "/x"), h5py.ExternalLink("pipe.h5", "/x")
        file["elsewhere"] = h5py.ExternalLink("here.h5", "/x")
    for key, says in {
        "self": "in a circle: 'self' is a link to '/self/x'",
        "round": r"in a circle: .*'back' of 'b\.h5' is a link to '/round' in 'a\.h5'",
        "text": r"'text' is a link to '/x' in 'text\.h5', which HDF5 cannot read",
        "pipe": r"'pipe' is a link to '/x' in 'pipe\.h5', which does not exist",
        "elsewhere": r"'elsewhere' is a link to '/x' in 'here\.h5', which does not exist",
    }.items():
        (tmp_path / "cwd").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "cwd")  # where HDF5 would look, too
        with h5py.File("here.h5", "w") as file:
            file["x"] = DATA
        with pytest.raises(memload.FormatError, match=says):
            memload.open(tmp_path / "a.h5", key=key)
    with pytest.raises(
        memload.FormatError, match=r"no datasets but by links.*'elsewhere' is a link to '/x' in 'here\.h5'"
    ):
        memload.open(tmp_path / "a.h5")


def odd_number(file):
    kind = h5py.h5t.STD_I16LE.copy()
    kind.set_precision(12)
    h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((4,)))


def virtual(file):
    layout = h5py.VirtualLayout(shape=(4,), dtype="f4")
    layout[:] = h5py.VirtualSource("elsewhere.h5", "data", shape=(4,))
    file.create_virtual_dataset("x", layout)


def virtual_over_itself(file):
    file["data"] = np.arange(4, dtype="f4")
    layout = h5py.VirtualLayout(shape=(4,), dtype="f4")
    layout[:] = h5py.VirtualSource(file["data"])
    file.create_virtual_dataset("x", layout)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda file: file.create_dataset("x", data=3.0), "a single number"),
        (lambda file: file.create_dataset("x", data=h5py.Empty("f4")), "without a shape"),
        (lambda file: file.create_dataset("x", (4,), "S5"), r"texts.*list\(file\['/x'\]\.asstr\(\)\)"),
        (lambda file: file.create_dataset("x", (4,), h5py.string_dtype()), "texts"),
        (lambda file: file.create_dataset("x", (4,), "f4,i4"), r"compound elements.*\[\"column\"\]"),
        (lambda file: file.create_dataset("x", (4,), "V4"), "opaque"),
        (lambda file: file.create_dataset("x", (4,), np.dtype("(3,)f4")), "elements that are arrays"),
        (lambda file: file.create_dataset("x", (4,), h5py.vlen_dtype("i4")), r"different lengths.*ragged\("),
        (lambda file: file.create_dataset("x", (4,), h5py.ref_dtype), "references"),
        (lambda file: file.create_dataset("x", (4,), "c16"), r"complex128 is not among.*complex64"),
        (odd_number, "unusual precision"),
        (virtual, r"virtual dataset over 'elsewhere\.h5'; open these files.*key='data'\); or let h5py"),
        (virtual_over_itself, r"over others of this file; open these: key='/data'; or let h5py read it once"),
        (
            lambda file: file.create_dataset("x", (4, 2), "f4", external=[("raw.bin", 8, 32)]),
            r"another file, 'raw\.bin'.*dtype=\"float32\", shape=\(2,\), offset=8\)",
        ),
        (
            lambda file: file.create_dataset("x", (4,), ">f4", external=[("raw.bin", 0, 16)]),
            r"another file, 'raw\.bin'; let h5py read it once",
        ),
        (
            lambda file: file.create_dataset("x", (4,), "f4", external=[("a.bin", 0, 8), ("b.bin", 0, 8)]),
            r"in 2 other files, the first 'a\.bin'; let h5py read it once",
        ),
        (
            lambda file: file.create_dataset("x", data=np.arange(4), scaleoffset=3),
            r"filter 6 \(scaleoffset\).*h5repack.*\{'x': h5py\.File\('.*a\.h5'\)\['x'\]\}\)$",
        ),
    ],
)
def test_what_cannot_be_read_is_named_when_it_is_opened(tmp_path, make, message):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
    with pytest.raises(memload.FormatError, match=rf"a\.h5, '/x': .*{message}"):
        memload.open(tmp_path / "a.h5", key="x")


def test_a_file_that_is_no_sound_hdf5_says_so(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros((1000, 10))
    os.truncate(path, 5000)
    with pytest.raises(memload.FormatError, match=r"a\.h5: HDF5 cannot read it .*truncated.*; it was cut short"):
        memload.open(path)
    with h5py.File(path, "w") as file:
        pass
    with pytest.raises(memload.FormatError, match="holds no arrays"):
        memload.open(path)


def test_a_file_that_is_being_written_is_refused(tmp_path):
    code = "import h5py, sys; file = h5py.File(sys.argv[1], 'w'); file['x'] = [1]; print(1, flush=True); input()"
    command = [sys.executable, "-c", code, tmp_path / "a.h5"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        writer.stdout.readline()
        with pytest.raises(memload.FormatError, match="open for writing in another process"):
            memload.open(tmp_path / "a.h5")
        writer.communicate("\n")
    assert len(memload.open(tmp_path / "a.h5")) == 1


@pytest.mark.parametrize("how", [{}, {"chunks": (10, 10)}, {"chunks": (10, 10), "compression": "gzip"}])
def test_rows_that_this_process_has_written_and_not_flushed_are_read(tmp_path, how):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        rows = file.create_dataset("x", (300, 40), np.float32, **how)
        for row in range(300):
            rows[row] = row + 1  # small writes, which HDF5 holds back
        found = rows_of(memload.open(tmp_path / "a.h5"), "x")
    assert found[:, 0].tolist() == [*range(1, 301)]


def test_several_files_are_one_dataset_in_the_order_of_their_numbers(tmp_path):
    for session in (10, 9, 1):
        with h5py.File(tmp_path / f"betas_session{session}.hdf5", "w") as file:
            file["betas"] = np.full((2, 3), session, np.int16)
    found = memload.open(f"{tmp_path}/betas_session*.hdf5", key="betas")
    assert rows_of(found, "betas")[:, 0].tolist() == [1, 1, 9, 9, 10, 10]
    listed = memload.open([tmp_path / f"betas_session{k}.hdf5" for k in (9, 1, 9)], key="betas")
    assert rows_of(listed, "betas")[:, 0].tolist() == [9, 9, 1, 1, 9, 9]


def test_files_that_are_no_one_dataset_are_named(tmp_path):
    for number in (1, 2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.zeros((2, number))
    with pytest.raises(ValueError, match=r"in dataset 1, but float64 \(1,\) in the first one \(0: .*1\.h5, 1: "):
        memload.open(f"{tmp_path}/*.h5")
    with pytest.raises(FileNotFoundError, match="no path matches this pattern"):
        memload.open(f"{tmp_path}/*.hdf")
    with pytest.raises(ValueError, match="empty list"):
        memload.open([])


def test_other_formats_may_be_several_files_too(tmp_path):
    memload.write(tmp_path / "a1", {"x": torch.arange(3)})
    memload.write(tmp_path / "a2", {"x": torch.arange(4)})
    assert len(memload.open([tmp_path / "a1", tmp_path / "a2"])) == 7
    for number in (1, 2):
        np.save(tmp_path / f"{number}.npy", np.zeros((number, 3)))
    assert len(memload.open(f"{tmp_path}/*.npy", field="stim")) == 3


def test_a_dataset_whose_name_no_field_can_have_is_told_how_to_get_another(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["__metadata__"] = np.arange(3)
    with pytest.raises(ValueError, match=r"a\.h5: not a name for a field: '__metadata__'.*key= gives others"):
        memload.open(tmp_path / "a.h5")
    assert len(memload.open(tmp_path / "a.h5", key={"x": "__metadata__"})) == 3


def test_a_path_with_the_letters_of_a_pattern_is_itself(tmp_path):
    with h5py.File(tmp_path / "a[1].h5", "w") as file:
        file["x"] = np.zeros(3)
    assert len(memload.open(str(tmp_path / "a[1].h5"))) == 3


def test_no_file_stays_open_and_hundreds_are_one_dataset(tmp_path):
    for number in range(200):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.full((2, 2), number)
    before = psutil.Process().num_fds()
    dataset = memload.open(f"{tmp_path}/*.h5")
    assert psutil.Process().num_fds() <= before
    assert rows_of(dataset, "x")[::2, 0].tolist() == list(range(200))
    assert not [object_ for object_ in h5py.h5f.get_obj_ids(types=h5py.h5f.OBJ_FILE) if object_.valid]


def test_a_file_that_is_cut_while_it_is_read_raises_with_row_and_offset(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros((100, 1024))
    dataset = memload.open(path)
    os.truncate(path, 10_000)
    with pytest.raises(memload.ShardReadError, match=r"a\.h5"):
        dataset[99]


def test_chunks_looked_up_one_by_one_are_those_that_are_listed(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        written = file.create_dataset("x", (7, 5), "i4", chunks=(2, 3))
        written[1:3] = 1
        listed = []
        written.id.chunk_iter(listed.append)
        assert list(by_place(written, (4, 2), (2, 3))) == sorted(listed)


def test_a_state_knows_its_file_by_where_the_rows_lie_in_it(tmp_path):
    for name, chunks in (("a", (3, 2)), ("b", (3, 2)), ("c", (2, 2))):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=np.zeros((6, 2)), chunks=chunks)
    a, b, c = (memload.open(tmp_path / f"{name}.h5").fields["x"].digest for name in "abc")
    assert a == b != c
    assert a


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_workers_read_the_file(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=DATA, chunks=(4, 5, 3), compression="gzip")
    dataset = memload.open(tmp_path / "a.h5").only("x")
    loader = torch.utils.data.DataLoader(dataset, 4, num_workers=1, multiprocessing_context="fork")
    assert torch.equal(torch.cat(list(loader)), torch.from_numpy(DATA))


def test_another_process_reads_it_without_the_library(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=DATA, chunks=(4, 5, 3))
        file.create_dataset("y", data=DATA.astype(">i2"), chunks=(4, 2, 3), compression="gzip", shuffle=True)
    (tmp_path / "dataset").write_bytes(pickle.dumps(memload.open(tmp_path / "a.h5")))
    code = (
        "import memload, pickle, sys; dataset = pickle.load(open(sys.argv[1], 'rb'))\n"
        "batches = list(memload.FastLoader(dataset, 13))\n"
        "assert 'h5py' not in sys.modules\n"
        "print((batches[0]['x'] == batches[0]['y']).all().item(), batches[0]['x'].sum().item())"
    )
    done = run(code, tmp_path / "dataset")
    assert done.out == [f"True {DATA.sum()}"], done.err


def test_a_missing_h5py_says_how_to_get_it(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = DATA
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r'needs h5py; install it by pip install "memload\[hdf5\]"'):
        memload.open(tmp_path / "a.h5")


def test_the_loader_reads_it_natively(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=DATA, chunks=(4, 5, 3))
    loader = memload.FastLoader(memload.open(tmp_path / "a.h5"), batch_size=5)
    assert np.array_equal(torch.cat([batch["x"] for batch in loader]).numpy(), DATA)
    assert loader.engine == "native"


def test_what_is_left_to_h5py_is_written_as_the_message_says(tmp_path):
    path = tmp_path / "a.h5"
    numbers = np.arange(12).reshape(4, 3)
    with h5py.File(path, "w") as file:
        file.create_dataset("in/x", data=numbers, chunks=(2, 3), scaleoffset=4)
        file.create_dataset("text", data=["a", "", "b c", "d"])
    with pytest.raises(memload.FormatError, match=r"memload\.write\(DIRECTORY, .*\)$") as refused:
        memload.open(path, key="in/x")
    said = str(refused.value).rpartition("let h5py read it once: ")[2]
    written = eval(said, {"memload": memload, "h5py": h5py, "DIRECTORY": tmp_path / "shards"})
    assert torch.equal(written.fields["x"].gather(np.arange(4)), torch.from_numpy(numbers))
    with h5py.File(path) as file:
        texts = memload.from_arrays(text=list(file["/text"].asstr()))
    assert memload.zip(x=written, t=texts)[2]["t"] == "b c"


def test_a_file_that_was_never_closed_says_how_to_mark_it(tmp_path):
    path = tmp_path / "a.h5"
    script = (
        f"import h5py, os; f = h5py.File({str(path)!r}, 'w', libver='latest'); f['x'] = [1]; f.flush(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(memload.FormatError, match=rf"already open for write.*h5clear -s {path}$"):
        memload.open(path, key="x")

"""NIfTI files: the rows are the volumes that nibabel reads, and what cannot be read is told."""

import gzip
import pickle
import struct
import warnings

import nibabel
import numpy as np
import pytest
import torch
from nifti_cases import rows_of, saved

import memload
from memload.cli.main import main
from memload.formats.nifti import decoded_volumes, parse_header, read_header

RNG = np.random.default_rng(0)
VALUES = RNG.integers(0, 100, (3, 4, 5, 6))
DTYPES = ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_the_transposed_volumes_of_nibabel(tmp_path, dtype, version):
    path = saved(tmp_path / "x.nii", VALUES.astype(dtype), version=version)
    ds = memload.open(path, field="bold")
    theirs = np.asarray(nibabel.load(path).dataobj)
    assert len(ds) == 6
    np.testing.assert_array_equal(ds.fields["bold"].gather(np.arange(6)).numpy(), theirs.T)
    assert ds[5]["bold"].numpy().dtype == theirs.dtype


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
@pytest.mark.parametrize("order", "<>")
def test_decoded_volumes_are_those_of_nibabel_in_any_order_of_bytes(tmp_path, order, ending, version):
    path = saved(tmp_path / f"x{ending}", VALUES.astype("i4"), version=version, order=order)
    header = read_header(path)
    theirs = np.asarray(nibabel.load(path).dataobj).T
    for start, count in ((0, 6), (0, 4), (2, 1), (5, 9)):
        found = np.concatenate([block.copy() for block in decoded_volumes(path, header, count, start)])
        np.testing.assert_array_equal(found.view("i4").reshape(-1, 5, 4, 3), theirs[start:])


def test_the_header_byte_by_byte():
    raw = bytearray(348)
    struct.pack_into("<i", raw, 0, 348)
    struct.pack_into("<8h", raw, 40, 4, 2, 3, 4, 5, 1, 1, 1)
    struct.pack_into("<hh", raw, 70, 4, 16)
    struct.pack_into("<8f", raw, 76, 1, 2, 2, 2, 800, 0, 0, 0)
    struct.pack_into("<3f", raw, 108, 352, 0.5, -3)
    raw[123] = 2 | 16  # millimetres, milliseconds
    struct.pack_into("<f", raw, 136, 1500)
    raw[344:348] = b"n+1\0"
    header = parse_header(bytes(raw), "x")
    assert (header.dtype, header.shape, header.volumes, header.offset) == (torch.int16, (4, 3, 2), 5, 352)
    assert (header.scale, header.seconds, header.start, header.has_unit) == ((0.5, -3.0), 0.8, 1.5, True)
    assert not header.swapped
    assert header.place is None


def test_a_recording_has_the_time_and_the_scale_of_the_header(tmp_path):
    values = RNG.normal(100, 10, (3, 4, 5, 6))
    path = saved(tmp_path / "run.nii", values, dtype="i2", seconds=0.8)
    run = memload.open_nifti(path)
    assert list(run.fields) == ["volumes"]
    assert run.name == "run"
    assert run.clocks["volumes"].rate == 1.25
    mine = run.casts["volumes"].apply(torch.from_numpy(rows_of(run, "volumes"))).numpy()
    np.testing.assert_allclose(mine, nibabel.load(path).get_fdata().T, rtol=1e-5)
    batch = next(iter(memload.FastLoader(run.slices(1.6, hop=0.8), 4, cast=run.casts)))
    np.testing.assert_allclose(batch["volumes"][2], mine[2:4], rtol=1e-6)
    assert memload.open_nifti(path, tr=2.5).span == (0, 15)
    assert str(memload.open_recording(path)) == str(run)


@pytest.mark.parametrize(("unit", "seconds", "rate"), [("msec", 1500, 1 / 1.5), ("usec", 5e5, 2), ("unknown", 2, 0.5)])
def test_units_of_time(tmp_path, unit, seconds, rate):
    run = memload.open_nifti(saved(tmp_path / "x.nii", VALUES.astype("i2"), seconds=seconds, units=("mm", unit)))
    assert run.clocks["volumes"].hertz == pytest.approx(rate)
    assert ("xyzt_units" in run.left_out) == (unit == "unknown")


def test_volumes_of_other_forms(tmp_path):
    flat = saved(tmp_path / "flat.nii", VALUES[..., 0].astype("i2"))
    assert memload.open(flat)[0]["data"].shape == (5, 4, 3)
    vector = saved(tmp_path / "vector.nii", RNG.random((3, 4, 5, 1, 2)).astype("f4"))
    np.testing.assert_array_equal(memload.open(vector)[0]["data"], nibabel.load(vector).get_fdata()[:, :, :, 0].T)
    colours = RNG.integers(0, 255, (3, 4, 5, 3), np.uint8)
    kind = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
    nibabel.save(nibabel.Nifti1Image(colours.view(kind)[..., 0], np.eye(4)), tmp_path / "rgb.nii")
    np.testing.assert_array_equal(memload.open(tmp_path / "rgb.nii")[0]["data"], colours.transpose(2, 1, 0, 3))


def test_several_files_are_one_dataset_unless_their_scales_differ(tmp_path):
    for name, factor in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        saved(tmp_path / f"{name}.nii", factor * np.linspace(0, 1, 360).reshape(3, 4, 5, 6), dtype="i2")
    both = memload.open([tmp_path / "a.nii", tmp_path / "b.nii"])
    assert len(both) == 12
    assert len(pickle.loads(pickle.dumps(both)).select([3, 9])) == 2
    assert next(iter(memload.FastLoader(both, 12)))["data"].shape == (12, 5, 4, 3)
    with pytest.raises(ValueError, match=r"int16 \(5, 4, 3\) with the scale .* in dataset 1, but int16"):
        memload.open([tmp_path / "a.nii", tmp_path / "c.nii"])


def test_slices_of_runs_are_one_dataset_unless_their_scales_differ(tmp_path):
    for name, factor in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        saved(tmp_path / f"{name}.nii", factor * np.linspace(0, 1, 360).reshape(3, 4, 5, 6), dtype="i2", seconds=1.0)
    a, b, c = (memload.open_nifti(tmp_path / f"{name}.nii").slices(2.0, hop=2.0) for name in "abc")
    assert len(memload.concat([a, b])) == 6
    with pytest.raises(ValueError, match=r"with the scale .* in dataset 1, but int16"):
        memload.concat([a, c])


@pytest.mark.parametrize("tier", ["mmap", "ram", "hybrid"])
def test_a_dataset_has_the_casts_to_what_is_meant_and_a_cast_without_them_warns(tmp_path, tier):
    path = saved(tmp_path / "run.nii", RNG.normal(100, 10, (3, 4, 5, 6)), dtype="i2")
    meant = nibabel.load(path).get_fdata().T
    ds = pickle.loads(pickle.dumps(memload.open(path))).with_tier(tier)
    assert "by cast=ds.casts" in repr(ds)
    for one in (ds, memload.to_device(ds, "cpu"), ds.select(range(6)), ds.rename({"data": "data"})):
        (batch,) = memload.FastLoader(one, 6, cast=one.casts)
        np.testing.assert_allclose(batch["data"], meant, rtol=1e-5)
    plain = r"field 'data': its file means .* times the stored values plus .*, which a cast to a dtype leaves out"
    with pytest.warns(RuntimeWarning, match=plain) as warned:
        (stored,) = memload.FastLoader(ds, 6, cast={"data": "float32"})
    assert warned[0].filename == __file__
    assert torch.equal(stored["data"], ds.fields["data"].gather(np.arange(6)).float())
    if tier == "ram":
        with pytest.warns(RuntimeWarning, match=plain):
            kept = ds.with_tier("ram", ram_dtype={"data": "float32"})
        (batch,) = memload.FastLoader(kept, 6, cast=kept.casts)
        np.testing.assert_allclose(batch["data"], meant, rtol=1e-5)
        kept = ds.with_tier("ram", ram_dtype=ds.casts)
        assert kept.casts == {}
        np.testing.assert_allclose(kept.fields["data"].gather(np.arange(6)), meant, rtol=1e-5)
    assert memload.from_arrays(x=np.arange(3)).casts == {}


def test_a_scale_in_the_place_of_that_of_the_file_warns(tmp_path):
    path = saved(tmp_path / "run.nii", RNG.normal(100, 10, (3, 4, 5, 6)), dtype="i2")
    with pytest.warns(UserWarning, match=r"whose place scale=2 takes; cast=.float32. alone") as warned:
        memload.write(tmp_path / "set", memload.open(path), scale={"data": 2.0}, progress=False)
    assert warned[0].filename == __file__


def damaged(tmp_path, change, values=None, **options):
    path = saved(tmp_path / "x.nii", VALUES.astype("i2") if values is None else values, **options)
    raw = bytearray(path.read_bytes())
    change(raw)
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda raw: raw.__delitem__(slice(500, None)),
            r"cut short: 6 volumes of int16 .* make 1,072 bytes, .* are 500",
        ),
        (lambda raw: raw.__delitem__(slice(100, None)), r"cut short: 100 bytes, within the header of 348"),
        (lambda raw: raw.__setitem__(slice(344, 348), b"nope"), r"its magic is b'nop'; expected b'n\+1'"),
        (lambda raw: raw.__setitem__(slice(344, 348), b"\0\0\0\0"), "ANALYZE 7.5, perhaps"),
        (lambda raw: raw.__setitem__(slice(344, 348), b"ni1\0"), "a pair of files"),
        (lambda raw: raw.__setitem__(slice(0, 4), b"abcd"), "no NIfTI file: it begins with b'abcd'"),
        (lambda raw: struct.pack_into("<h", raw, 70, 32), r"datatype 32 \(complex64\), .* real and imaginary parts"),
        (lambda raw: struct.pack_into("<h", raw, 70, 99), r"datatype 99 \(unknown\), which memload does not read$"),
        (lambda raw: struct.pack_into("<h", raw, 72, 8), "bitpix is 8, and voxels of datatype 4 have 16 bits"),
        (lambda raw: struct.pack_into("<h", raw, 42, -3), r"dim is \[4, -3, 4, 5, 6"),
        (lambda raw: struct.pack_into("<h", raw, 40, 9), "expected 1 to 7 axes"),
        (lambda raw: struct.pack_into("<2h", raw, 40, 5, 3) or struct.pack_into("<h", raw, 50, 2), "2 components each"),
        (lambda raw: struct.pack_into("<f", raw, 108, 12), "vox_offset is 12, .* expected 352"),
        (lambda raw: struct.pack_into("<f", raw, 108, float("nan")), "vox_offset is nan"),
        (lambda raw: struct.pack_into("<2f", raw, 112, 2, float("nan")), "scl_slope is 2, and scl_inter nan"),
        (lambda raw: struct.pack_into("<2f", raw, 112, 1e-40, 3), r"scl_slope is 9\.99995e-41, and scl_inter 3"),
    ],
)
def test_damaged_headers_are_told(tmp_path, change, message):
    with pytest.raises(memload.FormatError, match=message):
        memload.open(damaged(tmp_path, change))


def test_what_is_not_read_in_place_is_told(tmp_path):
    packed = saved(tmp_path / "x.nii.gz", VALUES.astype("i2"))
    with pytest.raises(memload.FormatError, match=r"compressed by gzip, .* once: memload write .*x\.nii\.gz DST"):
        memload.open(packed)
    with pytest.raises(memload.FormatError, match="compressed by gzip"):
        memload.open_recording(packed)
    with pytest.raises(IsADirectoryError, match="and open_bids the folder of a data set"):
        memload.open_nifti(tmp_path)
    bytes_alone = saved(tmp_path / "x.nii", VALUES.astype("u1"), order=">")
    np.testing.assert_array_equal(memload.open(bytes_alone)[2]["data"], VALUES[..., 2].T)
    packed.rename(tmp_path / "named.nii")
    with pytest.raises(memload.FormatError, match=r"compressed by gzip: name it \.nii\.gz"):
        memload.open(tmp_path / "named.nii")
    with pytest.raises(memload.FormatError, match=r"which has no time; memload\.open reads such files as rows"):
        memload.open_nifti(saved(tmp_path / "flat.nii", VALUES[..., 0].astype("i2")))
    timeless = saved(tmp_path / "x.nii", VALUES.astype("i2"), units=("mm", "hz"))
    with pytest.raises(memload.FormatError, match=r"pixdim\[4\] of the header is no time, and it has no name of BIDS"):
        memload.open_nifti(timeless)
    assert memload.open_nifti(timeless, tr=2).span == (0, 12)
    with pytest.raises(memload.FormatError, match=r"x\.nii: the seconds between its volumes .* millionth"):
        memload.open_nifti(saved(tmp_path / "x.nii", VALUES.astype("i2"), seconds=1e9))
    with pytest.raises(ValueError, match="tr= is the seconds from one volume to the next"):
        memload.open_nifti(timeless, tr=0)
    with pytest.raises(KeyError, match="no field 'eye'; there is 'volumes'"):
        memload.open_recording(saved(tmp_path / "y.nii", VALUES.astype("i2")), fields=["eye"])
    with pytest.raises(FileNotFoundError, match=r"similar names there: 'y\.nii'"):
        memload.open_nifti(tmp_path / "yy.nii")


def test_damaged_compressed_files_are_told(tmp_path):
    path = saved(tmp_path / "x.nii.gz", RNG.integers(0, 99, (20, 20, 20, 6)).astype("i2"))
    header, whole = read_header(path), path.read_bytes()

    def told(raw):
        path.write_bytes(raw)
        return pytest.raises(memload.FormatError, match=f"{path}: (cut short|no valid gzip file)")

    for raw in (whole[:-9], whole[: len(whole) // 2], whole[:-5] + b"\0" + whole[-4:], whole + b"rest"):
        with told(raw):
            list(decoded_volumes(path, header, 2))
    with told(whole[:5]):
        read_header(path)
    with told(b"plain bytes"):
        read_header(path)
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:50_000]))
    with pytest.raises(memload.FormatError, match=r"cut short: 6 volumes .* make 96,352 bytes, and there are 50,000"):
        list(decoded_volumes(path, header, 2))


def test_members_of_a_compressed_file_follow_one_another(tmp_path):
    path = saved(tmp_path / "x.nii", VALUES.astype("i2"))
    raw, packed = path.read_bytes(), tmp_path / "x.nii.gz"
    packed.write_bytes(gzip.compress(raw[:400]) + gzip.compress(raw[400:]) + bytes(512))
    found = np.concatenate([block.copy() for block in decoded_volumes(packed, read_header(packed), 4)])
    np.testing.assert_array_equal(found.view("i2").reshape(6, 5, 4, 3), VALUES.T)


def test_long_runs_of_one_value_are_decoded_in_bounded_pieces(tmp_path):
    """Whose compressed bytes end long before the decoded ones."""
    path = saved(tmp_path / "x.nii.gz", np.zeros((64, 64, 64, 20), np.uint8))
    assert sum(block.nbytes for block in decoded_volumes(path, read_header(path), 3)) == 20 * 64**3


def test_a_volume_alone_is_a_dataset_of_one_row(tmp_path, capsys):
    flat = saved(tmp_path / "T1w.nii", VALUES[..., 0].astype("i2"))
    assert main(["info", str(flat)]) == 0
    assert "1 row, 120 B" in capsys.readouterr().out
    assert len(memload.open(flat)) == 1


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("dtype", DTYPES)
def test_compressed_volumes_that_stand_alone_are_read_as_nibabel_reads_them(tmp_path, dtype, order, version):
    path = saved(tmp_path / "T1w.nii.gz", VALUES[..., 0].astype(dtype), order=order, version=version)
    np.testing.assert_array_equal(memload.open(path)[0]["data"].numpy(), VALUES[..., 0].T)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f8"])
def test_volumes_in_another_order_of_bytes_are_read_one_by_one(tmp_path, dtype):
    path = saved(tmp_path / "run.nii", VALUES.astype(dtype), order=">")
    rows = memload.open(path).fields["data"].gather(np.array([5, 0, 3])).numpy()
    np.testing.assert_array_equal(rows, VALUES.T[[5, 0, 3]])
    assert memload.open_nifti(path).slices(4.0)[1]["volumes"].shape == (2, 5, 4, 3)


def test_maps_of_trials_are_rows_with_the_keys_of_their_names(tmp_path, capsys):
    maps = RNG.random((12, 3, 4, 5)).astype("f4")
    for trial in range(12):
        saved(tmp_path / "betas" / f"sub-{trial % 2 + 1:02}_trial-{trial}_beta.nii.gz", maps[trial])
    pattern = str(tmp_path / "betas" / "sub-{subject}_trial-{trial:d}_beta.nii.gz")
    ds = memload.open(pattern, field="beta", file_field="file")
    assert list(ds.fields) == ["beta", "subject", "trial", "file"]
    loader = memload.FastLoader(ds, batch_size=5, shuffle=True)
    assert loader.engine == "native"
    for batch in loader:
        np.testing.assert_array_equal(batch["beta"].numpy(), maps[batch["trial"]].transpose(0, 3, 2, 1))
    mask = RNG.random((3, 4, 5)) > 0.5
    place = saved(tmp_path / "mask.nii.gz", mask.astype("u1"))
    out = str(tmp_path / "set")
    assert main(["write", f"beta={pattern}", out, "--mask", f"beta={place}", "--cast", "bfloat16", "--quiet"]) == 0
    written = memload.open(out)
    for row in written:
        found = torch.from_numpy(maps[row["trial"]][mask]).bfloat16()  # in the order of nibabel and nilearn
        assert torch.equal(row["beta"], found)
    assert "sub-01" not in capsys.readouterr().err
    again = memload.write(tmp_path / "again", ds, mask={"beta": place}, cast="bfloat16")
    assert torch.equal(again[3]["beta"], written[3]["beta"])


def test_a_mask_of_another_grid_is_told_of_maps_too(tmp_path):
    ds = memload.open(saved(tmp_path / "a.nii.gz", VALUES[..., 0].astype("f4")))
    with pytest.raises(ValueError, match=r"mask \(5, 4, 2\): no row begins with the mask's shape; the fields are data"):
        memload.write(tmp_path / "out", ds, mask=saved(tmp_path / "m.nii", np.ones((2, 4, 5), "u1")))


def test_a_cast_stores_the_values_that_a_header_means(tmp_path):
    for name, factor in (("a", 1.0), ("b", 3.0)):
        saved(tmp_path / f"{name}.nii.gz", factor * np.linspace(-1, 1, 60).reshape(3, 4, 5), dtype="i2")
    with pytest.raises(ValueError, match=r'different scales, write one after the other with cast="float32", append='):
        memload.open(tmp_path / "*.nii.gz")
    with pytest.warns(UserWarning, match=r"its file means .* times the stored values plus .* cast=\"float32\" stores"):
        memload.write(tmp_path / "stored", memload.open(tmp_path / "a.nii.gz"))
    for name in "ab":
        part = memload.open(tmp_path / f"{name}.nii.gz")
        memload.write(tmp_path / "meant", part, cast="float32", append=True)
    for row, name in zip(memload.open(tmp_path / "meant"), "ab", strict=True):
        np.testing.assert_allclose(row["data"], nibabel.load(tmp_path / f"{name}.nii.gz").get_fdata().T, rtol=1e-5)


def test_a_recording_that_is_written_keeps_its_scale_beside_its_rows(tmp_path):
    run = memload.open_nifti(saved(tmp_path / "run.nii", RNG.normal(100, 10, (3, 4, 5, 6)), dtype="i2"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written = memload.write(tmp_path / "run", run)
    assert written.casts == run.casts
    np.testing.assert_array_equal(rows_of(written, "volumes"), rows_of(run, "volumes"))


@pytest.mark.parametrize("cut", [30, 400])
def test_a_damaged_map_is_told_with_its_file(tmp_path, cut):
    path = saved(tmp_path / "x.nii.gz", RNG.random((9, 9, 9)).astype("f4"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with pytest.raises(memload.ShardReadError, match=r"x\.nii\.gz.*deflate: the stream is cut short"):
        memload.open(path)[0]
    raw = bytearray(gzip.decompress(whole))
    path.write_bytes(gzip.compress(raw[:-8]))
    with pytest.raises(memload.ShardReadError, match=r"x\.nii\.gz.*prefix: gives 2908 bytes where 2916 are expected"):
        memload.open(path)[0]
    path.write_bytes(gzip.compress(raw + b"more"))
    with pytest.raises(memload.ShardReadError, match=r"x\.nii\.gz.*holds more than the 3268 bytes"):
        memload.open(path)[0]

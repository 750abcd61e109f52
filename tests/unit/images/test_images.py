"""Images: pixels as Pillow has them, masks exact, pairs and labels complete, what is damaged named."""

import contextlib
import io
import math
import os
import signal
from fractions import Fraction

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import strategies  # noqa: F401 - its profile of hypothesis: files take their time
import torch
from children import in_fork
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL.Image import Image
from programs import run

import memload
from memload.cli.main import main
from memload.images.files import read_headers
from memload.images.pixels import Pixels
from memload.images.tables import read_table
from memload.writing.stream import ShardStream

MODES = ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"]


def random_image(mode, height, width, seed=0) -> Image:
    """An image of random pixels, of a palette with as random colours."""
    rng = np.random.default_rng(seed)
    if mode == "I;16":
        return PIL.Image.fromarray(rng.integers(0, 65536, (height, width)).astype(np.uint16))
    channels = {"LA": (2,), "RGB": (3,), "RGBA": (4,), "CMYK": (4,)}.get(mode, ())
    pixels = rng.integers(0, 256, (height, width, *channels)).astype(np.uint8)
    if mode == "1":
        return PIL.Image.fromarray(pixels > 127)
    if mode != "P":
        return PIL.Image.fromarray(pixels, mode) if mode == "CMYK" else PIL.Image.fromarray(pixels)
    made = PIL.Image.fromarray(pixels, "L")
    made.putpalette(rng.integers(0, 256, 768).astype(np.uint8).tobytes())
    return made


def save(made, path, orientation=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    made.save(path, exif=exif, **({"quality": 95} if path.suffix == ".jpg" else {}))
    return path


def read(dataset, name):
    return dataset.fields[name].gather(np.arange(len(dataset)))


def written(path, folder, *more, **options):
    return memload.write_images(path, folder, *more, progress=False, **options)


def by_pillow(path, mode):
    """The image as Pillow's own functions give it: turned, and in a mode."""
    with PIL.Image.open(path) as opened:
        turned = PIL.ImageOps.exif_transpose(opened)
    if mode == "I;16" or turned.mode == mode:
        return turned
    return (turned.convert("RGBA") if turned.mode == "P" else turned).convert(mode)


def planes(image):
    array = np.asarray(image)
    return torch.from_numpy((array[None] if array.ndim == 2 else array.transpose(2, 0, 1)).copy())


sides = st.integers(1, 24)


@pytest.mark.filterwarnings("ignore:'mode' parameter:DeprecationWarning")
@settings(max_examples=40)
@given(st.sampled_from([*MODES, "CMYK"]), sides, sides, st.integers(1, 8), st.sampled_from([".png", ".jpg"]))
def test_pixels_are_those_of_pillow_turned_as_exif_says(tmp_path_factory, mode, height, width, turn, suffix):
    if mode == "CMYK":
        suffix = ".jpg"
    elif mode not in ("L", "RGB"):
        suffix = ".png"
    folder = tmp_path_factory.mktemp("images")
    path = save(random_image(mode, height, width), folder / f"a{suffix}", turn)
    ds = written(folder / "s", folder)
    expected = planes(by_pillow(path, {"I;16": "I;16", "1": "L", "L": "L", "LA": "L"}.get(mode, "RGB")))
    assert ds[0]["image"].dtype == expected.dtype
    assert torch.equal(ds[0]["image"], expected)
    assert ds[0]["file"] == path.name


def box_of(size, wanted, fit):
    """Left, top, right and bottom of what is taken of an image, as fractions."""
    (height, width), (new_height, new_width) = size, wanted
    tall, broad = Fraction(height), Fraction(width)
    if fit == "crop":
        scale = min(tall / new_height, broad / new_width)
        tall, broad = new_height * scale, new_width * scale
    return ((width - broad) / 2, (height - tall) / 2, (width + broad) / 2, (height + tall) / 2)


def chunks_of(png):
    """The chunks of a PNG file."""
    at = 8
    while at < len(png):
        end = at + 12 + int.from_bytes(png[at : at + 4], "big")
        yield png[at:end]
        at = end


@pytest.mark.parametrize("turn", [1, 3, 6])
def test_images_are_turned_as_exif_says_wherever_a_png_file_has_it(tmp_path, turn):
    """Tools that add EXIF to a finished PNG file may put it behind the pixels."""
    path = save(random_image("RGB", 5, 9), tmp_path / "a.png", turn)
    chunks = list(chunks_of(path.read_bytes()))
    late = sorted(chunks[1:-1], key=lambda chunk: chunk[4:8] == b"eXIf")
    assert late[-1][4:8] == b"eXIf"
    path.write_bytes(path.read_bytes()[:8] + b"".join([chunks[0], *late, chunks[-1]]))
    with PIL.Image.open(path) as opened:
        opened.load()
        expected = planes(PIL.ImageOps.exif_transpose(opened))
    assert torch.equal(written(tmp_path / "s", tmp_path)[0]["image"], expected)


@settings(max_examples=40)
@given(
    st.sampled_from(["L", "RGB", "RGBA"]),
    sides,
    sides,
    sides,
    sides,
    st.sampled_from(["stretch", "crop"]),
    st.integers(1, 8),
)
def test_images_are_resized_as_pillow_resizes_them_once_they_are_turned(
    tmp_path_factory, mode, height, width, new_height, new_width, fit, turn
):
    folder = tmp_path_factory.mktemp("images")
    path = save(random_image(mode, height, width), folder / "a.png", turn)
    ds = written(folder / "s", folder, size=(new_height, new_width), fit=fit, mode=mode)
    whole = by_pillow(path, mode)
    box = tuple(map(float, box_of(whole.size[::-1], (new_height, new_width), fit)))
    expected = whole
    if whole.size != (new_width, new_height):
        expected = whole.resize((new_width, new_height), PIL.Image.Resampling.BICUBIC, box=box)
    assert torch.equal(ds[0]["image"], planes(expected))


@settings(max_examples=60)
@given(
    st.sampled_from(["1", "L", "P", "I;16"]),
    sides,
    sides,
    st.none() | st.tuples(sides, sides),
    st.sampled_from(["stretch", "crop"]),
    st.integers(1, 8),
)
def test_numbers_of_a_mask_are_numbers_of_its_file_each_that_of_the_nearest_pixel(
    tmp_path_factory, mode, height, width, size, fit, turn
):
    folder = tmp_path_factory.mktemp("images")
    save(random_image("RGB", height, width), folder / "images" / "a.jpg", turn)
    path = save(random_image(mode, height, width), folder / "masks" / "a.png", turn)
    ds = written(folder / "s", folder / "images", folder / "masks", size=size, fit=fit)
    with PIL.Image.open(path) as opened:
        whole = np.asarray(PIL.ImageOps.exif_transpose(opened))
    whole = whole.astype(np.uint16 if mode == "I;16" else np.uint8)
    expected = whole
    if size is not None:
        left, top, right, bottom = box_of(whole.shape, size, fit)
        rows = [int(top + (2 * k + 1) * (bottom - top) / (2 * size[0])) for k in range(size[0])]
        columns = [int(left + (2 * k + 1) * (right - left) / (2 * size[1])) for k in range(size[1])]
        expected = whole[np.ix_(rows, columns)]
    found = ds[0]["mask"].numpy()
    assert found.dtype == whole.dtype
    assert np.array_equal(found, expected)


def inner_of(size, wanted):
    """Height and width of what lies within the border, and where it begins."""
    shrink = max(Fraction(size[0], wanted[0]), Fraction(size[1], wanted[1]))
    inner = [max(1, math.floor(side / shrink + Fraction(1, 2))) for side in size]
    assert inner[0] == wanted[0] or inner[1] == wanted[1]
    return inner, [(side - own) // 2 for side, own in zip(wanted, inner, strict=True)]


@settings(max_examples=40)
@given(
    st.sampled_from(["L", "RGB", "RGBA"]), sides, sides, sides, sides, st.integers(1, 8),
    st.integers(0, 255), st.booleans(),
)  # fmt: skip
def test_padded_images_are_resized_by_pillow_and_pasted_into_the_middle(
    tmp_path_factory, mode, height, width, new_height, new_width, turn, value, alike
):
    folder = tmp_path_factory.mktemp("images")
    path = save(random_image(mode, height, width), folder / "a.png", turn)
    bands = len(mode)
    border = value if alike else tuple((value + k) % 256 for k in range(bands))
    ds = written(folder / "s", folder, size=(new_height, new_width), fit="pad", mode=mode, pad_value=border)
    whole = by_pillow(path, mode)
    (high, wide), (top, left) = inner_of(whole.size[::-1], (new_height, new_width))
    if whole.size != (wide, high):
        whole = whole.resize((wide, high), PIL.Image.Resampling.BICUBIC)
    each = (value,) * bands if alike else border
    expected = PIL.Image.new(mode, (new_width, new_height), each[0] if bands == 1 else each)
    expected.paste(whole, (left, top))
    assert torch.equal(ds[0]["image"], planes(expected))


@settings(max_examples=40)
@given(st.sampled_from(["1", "L", "P", "I;16"]), sides, sides, sides, sides, st.integers(1, 8), st.integers(0, 255))
def test_padded_masks_are_numbers_of_the_nearest_pixel_in_the_middle_of_their_own_border(
    tmp_path_factory, mode, height, width, new_height, new_width, turn, value
):
    folder = tmp_path_factory.mktemp("images")
    save(random_image("RGB", height, width), folder / "images" / "a.jpg", turn)
    path = save(random_image(mode, height, width), folder / "masks" / "a.png", turn)
    size = (new_height, new_width)
    ds = written(folder / "s", folder / "images", folder / "masks", size=size, fit="pad", mask_pad_value=value)
    with PIL.Image.open(path) as opened:
        whole = np.asarray(PIL.ImageOps.exif_transpose(opened))
    (high, wide), (top, left) = inner_of(whole.shape, size)
    rows = [int(Fraction((2 * k + 1) * whole.shape[0], 2 * high)) for k in range(high)]
    columns = [int(Fraction((2 * k + 1) * whole.shape[1], 2 * wide)) for k in range(wide)]
    expected = np.full(size, value, np.uint16 if mode == "I;16" else np.uint8)
    expected[top : top + high, left : left + wide] = whole[np.ix_(rows, columns)]
    assert np.array_equal(ds[0]["mask"].numpy(), expected)
    assert ds[0]["mask"].numpy().dtype == expected.dtype


def test_16_bit_images_are_padded_with_16_bits(tmp_path):
    save(random_image("I;16", 4, 8), tmp_path / "p" / "a.png")
    image = written(tmp_path / "s", tmp_path / "p", size=8, fit="pad", pad_value=60000)[0]["image"]
    assert image.dtype == torch.uint16
    assert (image[0, [0, 1, 6, 7]].int() == 60000).all()


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
@pytest.mark.parametrize(("crop", "top", "left"), [(4, 2, 2), ((7, 1), 0, 3), ((1, 7), 3, 0), ((2, 5), 2, 1)])
def test_what_is_kept_of_resized_images_is_the_middle_where_torchvision_cuts_it(tmp_path, fit, crop, top, left):
    """Where the rest is odd, halves are rounded to even: 3 / 2 to 2, 5 / 2 to 2, 1 / 2 to 0."""
    save(random_image("RGB", 20, 33), tmp_path / "images" / "a.png")
    save(random_image("L", 20, 33, seed=1), tmp_path / "masks" / "a.png")
    folders = tmp_path / "images", tmp_path / "masks"
    whole = written(tmp_path / "whole", *folders, size=7, fit=fit)[0]
    part = written(tmp_path / "part", *folders, size=7, fit=fit, crop=crop)[0]
    height, width = (crop, crop) if isinstance(crop, int) else crop
    for name in ("image", "mask"):
        torch.testing.assert_close(part[name], whole[name][..., top : top + height, left : left + width])


@pytest.mark.parametrize("fit", ["stretch", "crop", "pad"])
def test_an_image_and_its_mask_stay_on_top_of_each_other(tmp_path, fit):
    blocks = np.kron(np.arange(12).reshape(3, 4), np.ones((40, 50), int)).astype(np.uint8)
    save(PIL.Image.fromarray(blocks * 20), tmp_path / "images" / "a.png")
    save(PIL.Image.fromarray(blocks), tmp_path / "masks" / "a.png")
    ds = written(tmp_path / "s", tmp_path / "images", tmp_path / "masks", size=(60, 60), fit=fit)
    image, mask = ds[0]["image"][0].float(), ds[0]["mask"].float() * 20
    assert ((image - mask).abs() < 10).float().mean() > 0.9  # all but the blurred edges


def test_16_bit_images_are_resized_in_16_bits(tmp_path):
    save(PIL.Image.fromarray(np.full((8, 8), 51234, np.uint16)), tmp_path / "a.png")
    ds = written(tmp_path / "s", tmp_path, size=5)
    assert ds.fields["image"].dtype == torch.uint16
    assert (ds[0]["image"].numpy() == 51234).all()


def test_grey_images_among_others_become_colours_and_alone_stay_grey(tmp_path):
    save(random_image("L", 4, 4), tmp_path / "grey" / "a.png")
    save(random_image("LA", 4, 4), tmp_path / "grey" / "b.png")
    assert written(tmp_path / "s", tmp_path / "grey").fields["image"].shape == (1, 4, 4)
    assert written(tmp_path / "t", tmp_path / "grey", mode="RGB").fields["image"].shape == (3, 4, 4)
    save(random_image("RGB", 4, 4), tmp_path / "grey" / "c.png")
    assert written(tmp_path / "u", tmp_path / "grey").fields["image"].shape == (3, 4, 4)
    assert written(tmp_path / "v", tmp_path / "grey", mode="L").fields["image"].shape == (1, 4, 4)


def test_transparency_is_kept_where_asked_and_dropped_with_a_word(tmp_path, capfd):
    made = random_image("RGBA", 4, 4)
    save(made, tmp_path / "p" / "a.png")
    memload.write_images(tmp_path / "s", tmp_path / "p")
    assert "1 image has transparency, which is dropped" in capfd.readouterr().err
    ds = memload.write_images(tmp_path / "t", tmp_path / "p", mode="RGBA")
    assert capfd.readouterr().err == ""
    assert torch.equal(ds[0]["image"], planes(made))


def test_masks_in_colours_count_where_their_channels_are_equal(tmp_path):
    grey = np.random.default_rng(0).integers(0, 9, (4, 5)).astype(np.uint8)
    save(random_image("RGB", 4, 5), tmp_path / "images" / "a.jpg")
    alpha = np.full((4, 5, 1), 255, np.uint8)
    path = tmp_path / "masks" / "a.png"
    for k, stack in enumerate(([grey] * 3, [grey, grey, grey, alpha[..., 0]], [grey, alpha[..., 0]])):
        save(PIL.Image.fromarray(np.stack(stack, -1)), path)
        ds = written(tmp_path / f"s{k}", tmp_path / "images", tmp_path / "masks")
        assert np.array_equal(ds[0]["mask"].numpy(), grey)
    save(random_image("RGB", 4, 5), path)
    with pytest.raises(memload.FormatError, match=r"a\.png: a mask has one number for each pixel, .* RGB colours"):
        written(tmp_path / "t", tmp_path / "images", tmp_path / "masks")


# What does not fit


@pytest.fixture
def pairs(tmp_path):
    """Four images 6 x 8 and their masks, and a table of labels."""
    for name in "abcd":
        save(random_image("RGB", 6, 8, ord(name)), tmp_path / "images" / f"{name}.jpg")
        save(random_image("L", 6, 8, ord(name)), tmp_path / "masks" / f"{name}.png")
    (tmp_path / "labels.csv").write_text(
        'file,prompt,weight,age,id\nb.jpg,"two, cats",.5,2,007\na.jpg,"a ""dog"" ☃",1e3,,8\nd,,2,4,9\nc,x,-1,5.5,10\n'
    )
    return tmp_path


def remove(pairs, name):
    (pairs / name).unlink()


def test_masks_may_have_a_suffix_to_the_names_of_their_images(pairs):
    for mask in (pairs / "masks").iterdir():
        mask.rename(mask.with_stem(f"{mask.stem}_mask"))
    folders = pairs / "images", pairs / "masks"
    with pytest.raises(ValueError, match=r"All match with mask_suffix='_mask'$"):
        written(pairs / "s", *folders)
    with pytest.raises(ValueError, match=r"mask_suffix='mask.': 4 masks do not end so: a_mask, b_mask"):
        written(pairs / "s", *folders, mask_suffix="mask.")
    with pytest.raises(ValueError, match="give their folder, masks="):
        written(pairs / "s", pairs / "images", mask_suffix="_mask")
    for row, name in zip(written(pairs / "s", *folders, mask_suffix="_mask"), "abcd", strict=True):
        assert np.array_equal(row["mask"], np.asarray(random_image("L", 6, 8, ord(name))))
    remove(pairs, "images/a.jpg")
    with pytest.raises(ValueError, match=r"no image of their name: a_mask, b_mask, c_mask, d_mask$"):
        written(pairs / "t", *folders)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: remove(p, "masks/b.png"), "1 image has no mask of its name: b"),
        (lambda p: remove(p, "images/c.jpg"), "1 mask has no image of its name: c"),
        (lambda p: save(random_image("L", 6, 8), p / "masks/e/a.png"), "1 mask has no image of its name: e/a"),
        (lambda p: save(random_image("L", 6, 8), p / "images/a.png"), r"differ in their suffix only.*: a\.jpg, a\.png"),
        (lambda p: save(random_image("L", 6, 8), p / "masks/a.jpg"), r"differ in their suffix only"),
        (lambda p: save(random_image("L", 8, 6), p / "masks/a.png"), r"1 does not: a\.png 8 x 6 for 6 x 8"),
        (lambda p: save(random_image("I;16", 6, 8), p / "masks/a.png"),
         r"8 bits, or all of them 16; of 4, 1 has 16: a"),
        (lambda p: [save(random_image("I;16", 6, 8), p / "images/e.png"),
                    save(random_image("L", 6, 8), p / "masks/e.png")],
         r"1 image is 16-bit grey \(e\.png\) and 4 are not \(a\.jpg, b\.jpg, c\.jpg, d\.jpg\)"),
        (lambda p: [remove(p, "masks/a.png"), save(random_image("L", 6, 8), p / "masks/a.jpg")],
         r"JPEG changes numbers: save them as PNG, .*a\.jpg"),
    ],
)  # fmt: skip
def test_pairs_that_do_not_fit_are_listed(pairs, change, message):
    change(pairs)
    with pytest.raises(ValueError, match=message):
        written(pairs / "s", pairs / "images", pairs / "masks")
    assert not (pairs / "s").exists()


def test_mixed_sizes_are_refused_with_all_of_them_and_the_choice(pairs):
    save(random_image("RGB", 5, 9), pairs / "images" / "z.jpg")
    with pytest.raises(
        ValueError, match=r"2 sizes.*6 x 8: 4 \(such as a\.jpg\), 5 x 9: 1 \(such as z\.jpg\)"
    ) as caught:
        written(pairs / "s", pairs / "images")
    assert all(word in str(caught.value) for word in ("size=6 ", "size=(6, 8)", 'fit="crop"', "a set of each"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, r"size is \(height, width\), or one number"),
        ({"size": (3,)}, r"size is \(height, width\), or one number"),
        ({"size": 99_999_999}, "more than 178,956,970 pixels"),
        ({"crop": 0}, r"crop is \(height, width\), or one number"),
        ({"size": 5, "crop": (5, 6)}, "keeps a part of images of 5 x 5; got 5 x 6"),
        ({"fit": "fill"}, "fit is one of stretch, crop, pad; got 'fill'"),
        ({"pad_value": 3}, 'are for fit="pad"'),
        ({"mask_pad_value": 255, "fit": "crop"}, 'are for fit="pad"'),
        ({"pad_value": 256, "fit": "pad"}, "pad_value is a whole number from 0 to 255, or 3 of them, .* got 256"),
        ({"pad_value": (1, 2), "fit": "pad"}, r"pad_value is a whole number .* got \(1, 2\)"),
        ({"mask_pad_value": -1, "fit": "pad"}, "mask_pad_value is a whole number from 0 to 255; got -1"),
        ({"mode": "L", "pad_value": (1, 2, 3), "fit": "pad"}, "pad_value is a whole number from 0 to 255; got"),
        ({"mode": "CMYK"}, "mode is one of L, RGB, RGBA, I;16; got 'CMYK'"),
        ({"mode": "I;16"}, 'mode "I;16" is for images of 16-bit grey, which these are not'),
        ({"labels": "folders"}, r"these are in none: a\.jpg, b\.jpg"),
    ],
)
def test_options_that_do_not_fit_say_why(pairs, options, message):
    with pytest.raises(ValueError, match=message):
        written(pairs / "s", pairs / "images", **options)


def test_16_bit_images_are_not_made_8_bit_by_a_mode(tmp_path):
    save(random_image("I;16", 6, 8), tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"do not fit into mode 'RGB': a\.png; mode \"I;16\" keeps them"):
        written(tmp_path / "s", tmp_path, mode="RGB")


def test_folders_that_are_not_there_or_hold_no_images_say_so(tmp_path):
    (tmp_path / "somewhere").mkdir()
    missing = "nowhere: there is nothing at this path; similar names there: 'somewhere'; give a folder of JPEG or PNG"
    with pytest.raises(FileNotFoundError, match=missing):
        written(tmp_path / "s", tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        NotADirectoryError, match=f"file: a file; give the folder that has the images, such as {tmp_path}"
    ):
        written(tmp_path / "s", tmp_path / "file")
    with pytest.raises(ValueError, match=r"no JPEG or PNG file in it \(1 other\)"):
        written(tmp_path / "s", tmp_path)


def test_other_files_stay_out_and_are_named_and_hidden_ones_are_not_seen(pairs, capfd):
    for name in ("notes.txt", "x.webp", ".hidden.png", ".cache/y.png"):
        (pairs / "images" / name).parent.mkdir(exist_ok=True)
        (pairs / "images" / name).write_text("")
    assert len(memload.write_images(pairs / "s", pairs / "images", pairs / "masks")) == 4
    assert "2 files are neither JPEG nor PNG and left out: notes.txt, x.webp" in capfd.readouterr().err


# Labels


def test_labels_come_from_folders_in_alphabetical_order(tmp_path):
    for name in ("dog/1.png", "cat/deep/2.png", "cat/1.png"):
        save(random_image("L", 3, 3), tmp_path / "p" / name)
    ds = written(tmp_path / "s", tmp_path / "p", labels="folders")
    assert [ds[i]["file"] for i in range(3)] == ["cat/1.png", "cat/deep/2.png", "dog/1.png"]
    assert read(ds, "label").tolist() == [0, 0, 1]
    assert [ds[i]["label_name"] for i in range(3)] == ["cat", "cat", "dog"]


def test_labels_of_a_table_are_numbers_where_all_cells_are_and_texts_otherwise(pairs):
    ds = written(pairs / "s", pairs / "images", pairs / "masks", labels=pairs / "labels.csv")
    assert list(ds.fields) == ["image", "mask", "prompt", "weight", "age", "id", "file"]
    assert [ds[i]["prompt"] for i in range(4)] == ['a "dog" ☃', "two, cats", "x", ""]
    assert read(ds, "weight").tolist() == [1000.0, 0.5, -1.0, 2.0]
    assert [str(age) for age in read(ds, "age").tolist()] == ["nan", "2.0", "5.5", "4.0"]
    assert [ds[i]["id"] for i in range(4)] == ["8", "007", "10", "9"]
    assert {name: ds.fields[name].dtype for name in ("weight", "age")} == {
        "weight": torch.float64,
        "age": torch.float64,
    }


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1)
    | st.lists(st.floats(), min_size=1)
    | st.lists(st.text("a1.e -", min_size=1), min_size=1)
)
def test_what_is_written_into_a_table_is_what_is_read(tmp_path_factory, cells):
    path = tmp_path_factory.mktemp("table") / "t.csv"
    text = [cell if isinstance(cell, str) else repr(cell) for cell in cells]
    path.write_text("stem,y\n" + "".join(f'{k},"{cell}"\n' for k, cell in enumerate(text)))
    found = read_table(path).columns["y"]
    if isinstance(cells[0], str):
        assert [str(cell) if isinstance(cell, str) else float(cell) for cell in found] == (
            text
            if isinstance(found[0], str)
            else [float(cell) if cell.strip() else pytest.approx(np.nan, nan_ok=True) for cell in text]
        )
    else:
        assert [repr(cell) for cell in found] == [repr(cell) for cell in cells]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("name,label\na,1\n", "its first line needs one of file, file_name, stem"),
        ("file;label\na;1\n", "separated by commas, not by ';'"),
        ("stem,label\na,1\nb,2\nc,3\nd.gif,4\n", "1 image has no row: d.*; 1 row names no image: d.gif"),
        ("", "its first line needs one of"),
        ("stem,label\na,1\nb,2\n", r"2 images have no row: c\.jpg, d\.jpg"),
        ("stem,label\na,1\nb,2\nc,3\nd,4\ne,5\n", "1 row names no image: e"),
        ("stem,label\na,1\nb,2\nc,3\nd,4\na.jpg,5\n", "1 image has several rows: a"),
        ("stem,label\na,1\nb,2,3\n", r"row 2 \(b, 2, 3\) has 3 cells, the first line 2"),
        ("stem,label,label\na,1,1\n", r"the columns \['label'\] occur twice"),
        ("stem,image\na,1\n", r"the set has fields named \['image'\] already"),
        ("stem,\na,1\n", "column 2 has no name"),
        (b"stem,label\n\xff,1\n", "not a CSV file in UTF-8"),
    ],
)
def test_a_table_that_does_not_fit_says_why(pairs, table, message):
    (pairs / "t.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
    with pytest.raises(ValueError, match=message):
        written(pairs / "s", pairs / "images", labels=pairs / "t.csv")


def test_a_number_of_threads_below_none_is_refused(pairs):
    with pytest.raises(ValueError, match="threads is a number of threads, or None for one for each core; got -1"):
        written(pairs / "s", pairs / "images", threads=-1)


# Damage


def damaged_versions():
    made = io.BytesIO()
    random_image("RGB", 60, 80).save(made, "PNG")
    png = made.getvalue()
    made = io.BytesIO()
    random_image("RGB", 60, 80).save(made, "JPEG")
    jpeg = made.getvalue()
    flipped = bytearray(png)
    flipped[len(png) // 2] ^= 0x10
    huge = png[:16] + (100_000).to_bytes(4, "big") * 2 + png[24:]
    return {
        "empty.png": b"",
        "text.jpg": b"not an image",
        "cut.png": png[: len(png) // 2],
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "flipped.png": bytes(flipped),
        "huge.png": huge,
        "header.jpg": jpeg[:20],
    }


@pytest.mark.parametrize("name", damaged_versions())
def test_a_damaged_image_is_an_error_that_names_it_or_is_left_out_and_listed(pairs, name, capfd):
    for folder in ("images", "masks"):
        for path in (pairs / folder).iterdir():
            made = random_image("RGB" if folder == "images" else "L", 60, 80)
            save(made, path)
    stem, _, suffix = name.partition(".")
    (pairs / "images" / f"bad-{name}").write_bytes(damaged_versions()[name])
    save(random_image("L", 60, 80), pairs / "masks" / f"bad-{stem}.png")
    with pytest.raises(memload.FormatError, match=f"bad-{stem}.{suffix}"):
        written(pairs / "s", pairs / "images", pairs / "masks")
    assert not (pairs / "s").exists()
    ds = memload.write_images(pairs / "t", pairs / "images", pairs / "masks", skip_damaged=True)
    assert [ds[i]["file"] for i in range(len(ds))] == ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    said = capfd.readouterr().err
    assert "1 damaged image was left out" in said
    assert f"bad-{name}" in said


def test_damaged_images_keep_the_labels_of_the_others_in_place(pairs):
    (pairs / "images" / "b.jpg").write_bytes((pairs / "images" / "b.jpg").read_bytes()[:-40])
    (pairs / "masks" / "c.png").write_bytes(b"")
    ds = written(pairs / "s", pairs / "images", pairs / "masks", labels=pairs / "labels.csv", skip_damaged=True)
    assert [(ds[i]["file"], ds[i]["id"]) for i in range(len(ds))] == [("a.jpg", "8"), ("d.jpg", "9")]


def test_a_folder_of_damaged_images_alone_makes_no_set(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.png").write_bytes(b"")
    with pytest.raises(memload.FormatError, match=r"all images are damaged, such as a\.png"):
        written(tmp_path / "s", tmp_path / "p", skip_damaged=True)


# Long runs


def test_a_killed_run_goes_on_and_does_not_decode_again_what_is_there(tmp_path, monkeypatch, capfd):
    for k in range(40):
        save(random_image("RGB", 30, 30, k), tmp_path / "p" / f"{k:02}.png")
    for k in (3, 17, 35):
        cut = tmp_path / "p" / f"{k:02}.png"
        cut.write_bytes(cut.read_bytes()[:1500])
    options = {"skip_damaged": True, "shard_bytes": 9000, "labels": None, "threads": 2}
    finish, left = ShardStream.finish, [8]

    def finish_and_die(self):
        finish(self)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(ShardStream, "finish", finish_and_die)
        assert in_fork(lambda: memload.write_images(tmp_path / "s", tmp_path / "p", **options)) == -signal.SIGKILL
    ds = memload.write_images(tmp_path / "s", tmp_path / "p", **options)
    said = capfd.readouterr().err
    assert "resumed where it was interrupted, at row" in said
    assert "3 damaged images were left out" in said
    assert [ds[i]["file"] for i in range(len(ds))] == [f"{k:02}.png" for k in range(40) if k not in (3, 17, 35)]
    for i in (0, 20, 36):
        assert torch.equal(ds[i]["image"], planes(by_pillow(tmp_path / "p" / ds[i]["file"], "RGB")))
    memload.verify(tmp_path / "s")
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


MANY = """
import memload, sys, threading
folder, most, done = sys.argv[1], [0], threading.Event()
def private():
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) // 1024
def watch():
    while not done.wait(0.002):
        most[0] = max(most[0], private())
memload.write_images(folder + "/warm", folder + "/few", threads=2)
before = private()
watcher = threading.Thread(target=watch)
watcher.start()
memload.write_images(folder + "/all", folder + "/many", threads=2)
done.set()
watcher.join()
print(most[0] - before)
"""


def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    first = save(PIL.Image.fromarray(np.zeros((800, 1000, 3), np.uint8)), tmp_path / "few" / "0.jpg")
    (tmp_path / "many").mkdir()
    for k in range(80):
        os.link(first, tmp_path / "many" / f"{k}.jpg")
    done = run(MANY, tmp_path)
    assert done.status == 0, done.err
    assert int(done.out[0]) < 2 * 8 * 2.4 + 32  # MiB, for 192 MB of pixels


def test_the_command_line_writes_images(pairs, capsys):
    command = ["write", "--images", pairs / "images", "--masks", pairs / "masks", "--size", "4x3", "--quiet"]
    command += ["--labels", pairs / "labels.csv", "--fit", "crop", "--crop", "2x3", "--mode", "L", pairs / "s"]
    assert main([str(part) for part in command]) == 0
    assert "4 rows" in capsys.readouterr().out
    ds = memload.open(pairs / "s")
    assert ds.fields["image"].shape == (1, 2, 3)
    assert ds[1]["prompt"] == "two, cats"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--images", "images", "more", "s"], "expected only the directory to make, got 2 paths"),
        (["--images", "images", "s", "--cast", "bfloat16"], "expected only the directory to make, got --cast"),
        (["--images", "images", "s", "--codec", "zstd"], "expected only the directory to make, got --codec"),
        (["--images", "images", "s", "--size", "1x2x3"], "--size: expected a number of pixels, or height x width"),
        (["x.npy", "s", "--size", "3"], "--size: only for images, which --images DIR gives"),
    ],
)
def test_the_command_line_keeps_images_and_sources_apart(pairs, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(pairs)
    assert main(["write", *arguments]) == 2
    assert message in capsys.readouterr().err


@given(
    st.sampled_from(["PNG", "JPEG"]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=8),
    st.floats(0, 1),
)
def test_bytes_that_are_changed_give_pixels_or_an_error_of_ours(tmp_path_factory, kind, changes, cut):
    made = io.BytesIO()
    random_image("RGB", 12, 20).save(made, kind)
    raw = bytearray(made.getvalue())
    for place, value in changes:
        raw[int(place * (len(raw) - 1))] = value
    folder = tmp_path_factory.mktemp("changed")
    (folder / "a.png").write_bytes(raw[: len(raw) if cut > 0.5 else int(2 * cut * len(raw))])
    headers, damaged = read_headers(folder, {"a": folder / "a.png"}, 1, progress=False)
    assert len(headers) + len(damaged) == 1
    for header in headers.values():
        if math.prod(header.size) > 10**6:
            continue  # a few bytes may state a large image, up to Pillow's limit
        with contextlib.suppress(memload.FormatError):
            assert Pixels("RGB", (12, 20), "stretch").image(header).shape == (3, 12, 20)


def test_images_are_added_to_a_set(pairs):
    options = {"labels": pairs / "labels.csv"}
    written(pairs / "s", pairs / "images", pairs / "masks", **options)
    ds = written(pairs / "s", pairs / "images", pairs / "masks", append=True, **options)
    assert [ds[i]["file"] for i in range(8)] == ["a.jpg", "b.jpg", "c.jpg", "d.jpg"] * 2
    assert torch.equal(ds[6]["mask"], ds[2]["mask"])
    memload.verify(pairs / "s")
    with pytest.raises(FileExistsError, match="append=True"):
        written(pairs / "s", pairs / "images", pairs / "masks", **options)


@pytest.mark.parametrize("ids", [["9223372036854775809", "1"], ["36028797018963969", ""]])
def test_whole_numbers_that_would_be_rounded_stay_text(tmp_path, ids):
    (tmp_path / "ids.csv").write_text(f"file,id\na.png,{ids[0]}\nb.png,{ids[1]}\n")
    assert read_table(tmp_path / "ids.csv").columns == {"id": ids}

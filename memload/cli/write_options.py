"""Options of `memload write` for images, and for files that become recordings. Nothing here imports torch."""

from __future__ import annotations

from typing import Any

from memload.images.forms import FITS, MODES


def add_images(group: Any) -> None:
    """Declare the options of `--images`; `--size` and `--mode` are those of videos, too."""
    group.add_argument("--images", metavar="DIR", help="a folder of JPEG and PNG files")
    group.add_argument("--masks", metavar="DIR", help="a folder of PNG files, one of the same name for each image")
    group.add_argument("--mask-suffix", metavar="TEXT", help="what their names have more, such as _mask")
    group.add_argument(
        "--labels",
        metavar="folders|texts|TABLE",
        help="the folder of each image; the .txt file beside it; or a table with one row for each image",
    )
    group.add_argument(
        "--table",
        metavar="TABLE",
        help="a .csv, .tsv, .json, .jsonl or .parquet file whose rows become the rows of the set, such as several "
        "prompts for one image; each image is stored once",
    )
    group.add_argument("--image-column", metavar="NAME", help="the column of TABLE that names the image")
    group.add_argument("--size", metavar="N|HxW", help="resize images, videos (bicubic) and masks (nearest pixel)")
    group.add_argument(
        "--fit",
        choices=FITS,
        help="stretch to that size (default), crop to its proportions first, or pad all of it",
    )
    group.add_argument("--crop", metavar="N|HxW", help="then keep the central part of this size")
    group.add_argument("--pad-value", metavar="N|R,G,B", help="in the border of images with --fit pad (default: 0)")
    group.add_argument("--mask-pad-value", type=int, metavar="N", help="in that of masks, such as 255 (default: 0)")
    group.add_argument(
        "--mode",
        choices=MODES,
        help="of images (default: grey if all are, otherwise RGB) and videos (RGB or L, which is grey)",
    )
    group.add_argument("--skip-damaged", action="store_true", help="leave damaged images out, and list them")
    group.add_argument(
        "--skip-unmatched", action="store_true", help="leave out images without a row, and rows without an image"
    )


def add_decoded(group: Any) -> None:
    """Declare the options of files that are decoded into recordings."""
    group.add_argument("--tr", type=float, metavar="S", help="seconds between volumes, where files do not say it")
    group.add_argument("--raw", metavar="DIR", help="the BIDS data set from which these runs were derived: its events")
    group.add_argument("--rate", type=float, metavar="HZ", help="frames in a second of a video (default: every frame)")

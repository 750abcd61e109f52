"""What does it cost to decode videos and compressed NIfTI files once, in time and on the disk?

Videos: clips of 1280 x 720 at 30 Hz, a photograph that moves under noise, by x264 at its default quality. Written are
all frames as they are, frames of 144 x 256, and these in grey; sizes are those of the folders over those of the videos.
Their rate is held against a loop of PyAV over the same clips, one after the other, with as many threads for each as
there are cores, which makes the same arrays and keeps none.

NIfTI: runs of int16 volumes, smooth with noise, masked to a third of the voxels and stored as float32. Their rate is
held against nibabel, which loads each run whole and masks it, and against gzip alone, one process of it.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import nibabel
import numpy as np
from harness import Bench, arguments
from skimage import data, transform

import memload
from memload.cli.measure import Spread, ratio

SIZE, RATE = (720, 1280), 30
FORMS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "144 x 256": {"size": (144, 256)},
    "144 x 256, grey": {"size": (144, 256), "mode": "L"},
    "144 x 256, zstd": {"size": (144, 256), "codec": "zstd"},
}


def clip(path: Path, seconds: float, seed: int) -> Path:
    """A video of a photograph that moves."""
    rng = np.random.default_rng(seed)
    photograph = (255 * transform.resize(data.astronaut(), (1600, 1600))).astype(np.int16)
    noise = rng.integers(-6, 7, (8, *SIZE, 3)).astype(np.int16)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(RATE))
        stream.height, stream.width = SIZE
        stream.pix_fmt = "yuv420p"
        for number in range(round(seconds * RATE)):
            top, left = (round(side * (0.5 + 0.5 * np.sin(number / 40 + side))) for side in (880, 320))
            frame = photograph[top : top + SIZE[0], left : left + SIZE[1]] + noise[number % 8]
            picture = av.VideoFrame.from_ndarray(np.clip(frame, 0, 255).astype(np.uint8), "rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path


def loop_of_pyav(clips: list[Path], size: tuple[int, int] | None = None, mode: str = "RGB", **_: Any) -> None:
    height, width = size or (None, None)
    for path in clips:
        with av.open(str(path)) as container:
            container.streams.video[0].thread_type = "AUTO"
            for frame in container.decode(video=0):
                frame.reformat(width, height, "gray" if mode == "L" else "rgb24").to_ndarray()


def run(path: Path, volumes: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    smooth = 1000 * np.sin(np.linspace(0, 60, 64 * 64 * 36)).reshape(64, 64, 36, 1)
    values = (smooth + rng.integers(-30, 30, (64, 64, 36, volumes))).astype(np.int16)
    image = nibabel.Nifti1Image(values, np.eye(4))
    image.header.set_xyzt_units("mm", "sec")
    image.header["pixdim"][4] = 2
    nibabel.save(image, path)
    return path


def by_nibabel(runs: list[Path], mask: Path) -> None:
    inside = nibabel.load(mask).get_fdata() > 0
    for path in runs:
        np.ascontiguousarray(np.asarray(nibabel.load(path).dataobj)[inside].T, np.float32)


def by_gzip(runs: list[Path]) -> None:
    for path in runs:
        with gzip.open(path) as file:
            while file.read(1 << 20):
                pass


def in_turn(bench: Bench, contestants: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Runs of each contestant in a second; a round before the first warms up."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(-1, bench.rounds):
        for name, call in contestants.items():
            begun = time.perf_counter()
            call()
            if number >= 0:
                found[name].append(1 / (time.perf_counter() - begun))
    return found


def anew(target: Path, write: Callable[[], Any]) -> None:
    shutil.rmtree(target, ignore_errors=True)
    write()


def measure_videos(bench: Bench, folder: Path) -> None:
    seconds = 0.1 if bench.args.quick else 5
    clips = [clip(folder / f"clip{number}.mp4", seconds, number) for number in range(2)]
    frames, stored = 2 * round(seconds * RATE), sum(path.stat().st_size for path in clips)
    target = folder / "clips"
    for name, form in list(FORMS.items())[: 2 if bench.args.quick else None]:
        write = lambda form=form: memload.write_videos(target, clips, progress=False, **form)  # noqa: E731
        found = in_turn(
            bench, {"memload": lambda w=write: anew(target, w), "PyAV": lambda f=form: loop_of_pyav(clips, **f)}
        )
        nbytes = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        rates = Spread.of([frames * one for one in found["memload"]])
        share = ratio(found["memload"], found["PyAV"])
        text = f"{nbytes / stored:.1f} times the video's bytes, {rates.median:,.0f} frames/s, {share} of a loop of PyAV"
        bench.add(name, text, bytes=nbytes, video_bytes=stored, frames=frames, frames_per_second=rates, of_pyav=share)


def measure_nifti(bench: Bench, folder: Path) -> None:
    runs = [run(folder / f"run{number}.nii.gz", 10 if bench.args.quick else 200, number) for number in range(2)]
    inside = np.random.default_rng(9).random((64, 64, 36)) < 1 / 3
    mask = folder / "mask.nii.gz"
    nibabel.save(nibabel.Nifti1Image(inside.astype(np.uint8), np.eye(4)), mask)
    target, volumes = folder / "runs", 2 * (10 if bench.args.quick else 200)
    write = lambda: memload.write_nifti(target, runs, mask=mask, cast="float32", progress=False)  # noqa: E731
    found = in_turn(
        bench,
        {
            "memload": lambda: anew(target, write),
            "nibabel": lambda: by_nibabel(runs, mask),
            "gzip": lambda: by_gzip(runs),
        },
    )
    over = {name: ratio(found["memload"], found[name]) for name in ("nibabel", "gzip")}
    rates = Spread.of([volumes * one for one in found["memload"]])
    text = f"{rates.median:,.0f} volumes/s, " + ", ".join(f"{one} of {name}" for name, one in over.items())
    bench.add("NIfTI", text, volumes_per_second=rates, over=over)


def main() -> None:
    args = arguments(__doc__ or "", rounds=5).parse_args()
    bench = Bench(args)
    with tempfile.TemporaryDirectory(prefix="memload-bench-", dir=args.cache) as folder:
        measure_videos(bench, Path(folder))
        measure_nifti(bench, Path(folder))
    bench.save()


if __name__ == "__main__":
    main()

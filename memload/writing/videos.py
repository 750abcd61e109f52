"""`memload.write_videos`: videos, decoded once, as recordings of their frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from memload.columns.clocks import fraction
from memload.dataset.recordings.recording import Recording
from memload.errors import FormatError
from memload.formats.codecs.by_field import Codecs, check_known, words_of
from memload.formats.packages import package
from memload.formats.paths import PathLike, nothing_at, paths_of
from memload.formats.recordings.found import Found
from memload.formats.shards.rows import Rows
from memload.formats.shards.staging import target_of
from memload.formats.video import FrameForm, Video, VideoHeader, is_video, read_video_header
from memload.memory.guards import check_space
from memload.sizes import sides_of
from memload.writing.decoding import Options, Task, stamp_of, write_decoded
from memload.writing.recordings import SetOf, codec_of, write_folder
from memload.writing.sampled_codecs import is_sampled
from memload.writing.writer import ShardWriter

FIELD = "frames"
_BLOCK_BYTES = 2**24


def write_videos(
    path: str | Path,
    sources: PathLike | Sequence[PathLike],
    *,
    size: int | tuple[int, int] | None = None,
    rate: float | None = None,
    mode: Literal["RGB", "L"] = "RGB",
    threads: int | None = None,
    shard_bytes: int | str = "512MB",
    codec: Codecs = None,
    resume: bool = True,
    progress: bool | None = None,
) -> dict[str, Recording]:
    """Decode videos once, several at a time, write their frames as recordings, and return these by name.

    Of one file, `path` becomes the folder of its recording; of several, it gets a folder for each, named by its file.
    The field "frames" has rows (H, W, 3), or (H, W) of grey, uint8, upright. Its clock has the times of the container:
    a rate where one explains them, else a timestamp for each frame, which stays until the next. An interrupted call is
    continued by the same call. PyAV decodes: ``pip install "memload[video]"``.

    Frames take height x width x 3 bytes each, many times what they took in the video: see docs/video.md.

    Args:
        path: the folder to make.
        sources: the files, or patterns of these.
        size: (height, width), or a number for squares, to which frames are stretched by FFmpeg's bicubic filter, which
            averages when it reduces the size. None: the size of the video.
        rate: frames in a second: at each time, from that of the first frame on, the frame that is shown then. None:
            every frame once.
        mode: "RGB", or "L" for grey, as FFmpeg converts to "rgb24" and "gray".
        threads: how many files are decoded at a time; None: one for each core. The cores are shared among these.
        shard_bytes, codec, resume, progress: as in `memload.write`; codec="auto" is not possible.

    Raises:
        FileNotFoundError: there is no such file.
        FormatError: a file has no video, is damaged or cut short, or its frames have no times; the message names it.
        ValueError: an option is invalid, or two files have one name.
        ImportError: PyAV is not installed.
        FileExistsError, DiskSpaceError, WriterBusyError: as in `memload.write`.

    Example:
        >>> import memload
        >>> clips = memload.write_videos("clips/", "movies/*.mp4", size=(144, 256), rate=30)  # doctest: +SKIP
        >>> slices = clips["beach"].slices(2.0, hop=0.5)  # doctest: +SKIP
    """
    if mode not in ("RGB", "L"):
        raise ValueError(f'mode is "RGB" or "L" for videos; got {mode!r}')
    if is_sampled(codec):
        raise ValueError(
            'codec="auto" samples rows, which a video has only once it is decoded; name one, such as "lz4"'
        )
    check_known(codec, [FIELD])
    form, at = FrameForm(sides_of("size", size), mode == "L"), None if rate is None else fraction(rate, "rate=")
    places = paths_of(sources)
    for place in places:
        if not place.is_file():
            raise FileNotFoundError(f"{place}: {nothing_at(place) if not place.exists() else 'a folder, no video'}")
        if not is_video(place):
            raise FormatError(f"{place}: it has no name of a video, such as {place.stem}.mp4")
    files = [VideoFile(place, read_video_header(place), form, at) for place in places]
    if codec is None:
        check_space(target_of(path), sum(file.nbytes for file in files))
    options = Options(shard_bytes, codec, resume, progress)
    return write_decoded(path, files, options, together=len(files) != 1, threads=threads, unit="frame")


@dataclass(frozen=True)
class VideoFile:
    """A video that is decoded into the folder of a recording."""

    path: Path
    header: VideoHeader
    form: FrameForm
    rate: Fraction | None

    @property
    def name(self) -> str:
        """The name of the recording."""
        return self.path.stem

    @property
    def amount(self) -> float:
        """About how many frames are written."""
        return round(self.header.seconds * float(self.rate)) if self.rate else self.header.expected

    @property
    def nbytes(self) -> int:
        """About how many bytes they take."""
        return round(self.amount) * prod(self.form.size or self.header.size) * (1 if self.form.grey else 3)

    @property
    def words(self) -> str:
        """A text that differs if the file, or the form of its frames, is another."""
        return stamp_of(self.path, repr((self.form, self.rate)), str(package("av", "video", "videos").__version__))

    def identity(self, options: Options) -> dict[str, str]:
        """Return what the recording is made of."""
        return {FIELD: f"{self.words} {words_of(codec_of(FIELD, options.codec))}"}

    def write(self, target: Path, task: Task) -> None:
        """Make the folder of the recording."""
        options, identity = task.options, self.identity(task.options)
        video = Video(self.path, self.form, self.rate, task.threads)

        def write_set(place: Path) -> None:
            plan = {"source": self.words} if options.resume else None
            with ShardWriter(
                place,
                shard_bytes=options.shard_bytes,
                codec=codec_of(FIELD, options.codec),
                resume=plan,
                progress=options.progress,
            ) as writer:
                for block in _blocks(video, writer.rows_there, task):
                    writer.extend_rows({FIELD: Rows(torch.uint8, block.shape[1:], block.reshape(len(block), -1))})

        write_folder(
            target,
            {FIELD: SetOf(identity[FIELD], write_set)},
            lambda: self._found(video, task),
            identity,
            options.resume,
            options.progress,
        )

    def _found(self, video: Video, task: Task) -> Found:
        """Return the clock of the frames; they are decoded again if an earlier call wrote them all."""
        if not video.times:
            for _ in video.frames(2**62):
                task.check()
        left_out = {}
        if video.rotation:
            left_out["rotation"] = f"by {video.rotation} degrees, no quarter turns: frames are as they are stored"
        return Found(clocks={FIELD: video.clock}, left_out=left_out, name=self.name)


def _blocks(video: Video, start: int, task: Task) -> Iterator[NDArray[np.uint8]]:
    """Yield frames from number `start` on, many at once; each block is valid until the next."""
    block, filled = np.empty((0, 0, 0), np.uint8), 0
    for frame in video.frames(start):
        task.check()
        task.update(1)
        if frame is None:
            continue
        if not block.size:
            block = np.empty((max(1, _BLOCK_BYTES // frame.nbytes), *frame.shape), np.uint8)
        block[filled] = frame
        filled += 1
        if filled == len(block):
            yield block
            filled = 0
    if filled:
        yield block[:filled]

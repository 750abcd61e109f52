"""Video files: decoded once, frame by frame, by PyAV (FFmpeg), with the times of the container.

container -> packets -> FFmpeg's decoder -> frames in the order of their times -> size and colours -> uint8
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.columns.clocks import SLACK, Clock
from memload.errors import FormatError
from memload.formats.packages import package
from memload.formats.paths import VIDEOS
from memload.sizes import counted

_SLACK = Fraction(SLACK, 10**9)
_MOST_ROUNDING = Fraction(2, 1000)  # seconds by which a time may be rounded: ticks of Matroska are a thousandth
_MICROSECOND = Fraction(1, 10**6)  # the unit of a container's duration


def is_video(path: Path) -> bool:
    """Return whether a path has the name of a video."""
    return path.suffix.lower() in VIDEOS


@dataclass(frozen=True)
class VideoHeader:
    """What a container says of its video, before a frame is decoded.

    Attributes:
        size: height and width of a frame, before it is rotated.
        frames: how many there are, as far as the container says it; 0 if it does not.
        seconds: the duration; 0 if it is not known.
        rate: frames in a second, on average; None if it is not known.
    """

    size: tuple[int, int]
    frames: int
    seconds: float
    rate: Fraction | None

    @property
    def expected(self) -> int:
        """About how many frames there are; 0 if that is not known."""
        return self.frames or round(self.seconds * float(self.rate or 0))


@dataclass(frozen=True)
class FrameForm:
    """The form in which frames are wanted.

    Attributes:
        size: height and width; None: those of the video.
        grey: one number for each pixel, rather than red, green and blue.
    """

    size: tuple[int, int] | None = None
    grey: bool = False

    def of(self, frame: Any) -> NDArray[np.uint8]:
        """Return a frame of PyAV as uint8 (H, W) or (H, W, 3), upright."""
        turns, odd = divmod(frame.rotation, 90)
        turns = 0 if odd else turns % 4
        height, width = self.size or (None, None)
        if turns % 2:
            height, width = width, height
        how = "BICUBIC" if self.size else None
        made = frame.reformat(width, height, "gray" if self.grey else "rgb24", interpolation=how, threads=1)
        return np.rot90(made.to_ndarray(), turns)


def read_video_header(path: Path) -> VideoHeader:
    """Return what the container of a video says.

    Raises:
        FormatError: FFmpeg cannot open it, or it has no video.
        ImportError: PyAV is not installed.
    """
    with _opened(path, 1) as (container, stream):
        return _header_of(container, stream)


def _header_of(container: Any, stream: Any) -> VideoHeader:
    seconds = Fraction(container.duration or 0) * _MICROSECOND
    if stream.duration:
        seconds = stream.duration * stream.time_base
    rate = stream.average_rate or stream.guessed_rate
    context = stream.codec_context
    return VideoHeader((context.height, context.width), stream.frames, float(seconds), rate)


class Video:
    """The frames of a video, while they are decoded.

    Args:
        path: the file.
        form: the form of the frames.
        rate: frames in a second, each the one that is shown then; None: every frame once.
        threads: how many threads FFmpeg takes.

    Attributes:
        times: of the frames so far, in seconds.
        rotation: degrees by which frames are turned, which were not, since they are no quarter turns; 0 else.
    """

    def __init__(self, path: Path, form: FrameForm, rate: Fraction | None, threads: int) -> None:
        self.times: list[Fraction] = []
        self.rotation = 0
        self._path, self._form, self._rate, self._threads = path, form, rate, threads
        self._rounding = self._stated = self._begin = Fraction(0)

    def frames(self, start: int = 0) -> Iterator[NDArray[np.uint8] | None]:
        """Yield each frame in the order of times; None for those before number `start`, which are not converted.

        Raises:
            FormatError: the file is damaged or cut short, its frames have no times or differ in size.
        """
        shape: tuple[int, ...] | None = None
        for number, frame in enumerate(self._at_rate()):
            if number < start:
                yield None
                continue
            made = self._form.of(frame)
            if shape is not None and made.shape != shape:
                raise FormatError(
                    f"{self._path}: frame {number:,} is {made.shape[:2]}, and those before it {shape[:2]} (height, "
                    "width): give them one size, by size="
                )
            shape = made.shape
            self.rotation = self.rotation or (frame.rotation if frame.rotation % 90 else 0)
            yield made
        if not self.times:
            raise FormatError(f"{self._path}: no frame in it can be decoded")

    @property
    def clock(self) -> Clock:
        """The clock of the frames so far.

        It is regular if a rate explains all times but for the container's rounding; else a frame stays until the next.
        """
        first = float(self.times[0])
        for rate in dict.fromkeys((self._rate, self._stated)):
            if rate and all(abs(t - self.times[0] - k / rate) <= self._rounding for k, t in enumerate(self.times)):
                return Clock(rate=rate, start=first)
        times = [float(time) for time in self.times]
        return Clock(timestamps=times, gap=max(1.0, 2 * (times[-1] - times[0])))

    def _at_rate(self) -> Iterator[Any]:
        """Yield the frames of PyAV, and note their times: all, or those that are shown at the times of the rate."""
        shown, ends = None, Fraction(0)
        for frame, time in self._decoded():
            if self._rate is None:
                self.times.append(time)
                yield frame
                continue
            if shown is None:
                self._begin = time
            else:
                yield from self._until(shown, time)
            shown, ends = frame, time + Fraction(frame.duration or 0) * frame.time_base
        if shown is not None:
            yield from self._until(shown, max(ends, self._begin + 2 * self._rounding))

    def _until(self, frame: Any, end: Fraction) -> Iterator[Any]:
        """Yield a frame for each time of the rate that comes before `end` and had no frame yet."""
        assert self._rate is not None
        while (time := self._begin + len(self.times) / self._rate) + self._rounding < end:
            self.times.append(time)
            yield frame

    def _decoded(self) -> Iterator[tuple[Any, Fraction]]:
        """Yield the frames of PyAV and their times, which rise."""
        decoded, before = 0, None
        with _opened(self._path, self._threads) as (container, stream):
            header = _header_of(container, stream)
            self._rounding = min(Fraction(stream.time_base), _MOST_ROUNDING) + _SLACK
            self._stated = Fraction(header.rate or 0)
            try:
                for frame in container.decode(stream):
                    before = self._time_of(frame, decoded, before)
                    yield frame, before
                    decoded += 1
            except _av_error() as error:
                raise FormatError(
                    f"{self._path}: cut short or damaged at frame {decoded:,} of about {header.expected:,}: "
                    f"{_said(error)}; get the file again"
                ) from error
            self._check_end(container, stream, decoded, before)

    def _time_of(self, frame: Any, number: int, before: Fraction | None) -> Fraction:
        if frame.pts is None or frame.time_base is None:
            raise FormatError(
                f"{self._path}: frame {number:,} has no time, as in bare streams; put it into a container that has: "
                f"ffmpeg -r 30 -i {self._path.name} -c copy {self._path.stem}.mp4"
            )
        time = Fraction(frame.pts * frame.time_base)
        if before is not None and time - before < 2 * _SLACK:
            raise FormatError(
                f"{self._path}: frame {number:,} is at {float(time):g} s, and the one before at {float(before):g} s; "
                "times must rise by two microseconds or more: write the file anew, as by ffmpeg"
            )
        return time

    def _check_end(self, container: Any, stream: Any, decoded: int, last: Fraction | None) -> None:
        """Raise FormatError if the container promises more: in time and, where it counts them, in frames."""
        promised = Fraction(container.duration or 0) * _MICROSECOND  # Matroska counts from 0, MP4 from the first frame
        missing = promised - (last or 0) > max(Fraction(1, 2), promised / 50)
        fewer = decoded < stream.frames if stream.frames else len(container.streams) == 1
        if missing and fewer:
            raise FormatError(
                f"{self._path}: cut short: its {counted(decoded, 'frame ends', 'frames end')} at "
                f"{float(last or 0):.3f} s, and the container "
                f"promises {float(promised):.3f} s; get the file again"
            )


@contextlib.contextmanager
def _opened(path: Path, threads: int) -> Iterator[tuple[Any, Any]]:
    """Open the container of a video, and give it and its first stream of frames."""
    av = package("av", "video", str(path))
    try:
        container = av.open(str(path))
    except _av_error() as error:
        raise FormatError(
            f"{path}: no video that FFmpeg opens ({_said(error)}); it was cut short, perhaps: get it again"
        ) from error
    with container:
        if not container.streams.video:
            kinds = sorted({stream.type for stream in container.streams})
            raise FormatError(f"{path}: it has no video; its streams are {', '.join(kinds) or 'none'}")
        stream = container.streams.video[0]
        stream.thread_type, stream.codec_context.thread_count = "AUTO", threads
        yield container, stream


def _av_error() -> Any:
    return package("av", "video", "videos").error.FFmpegError


def _said(error: Exception) -> str:
    """Return what FFmpeg says, without the number of the error and its function."""
    return re.sub(r"^\[Errno \d+\] |: '[^']*'$", "", str(error))

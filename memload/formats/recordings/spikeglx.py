"""Files of SpikeGLX, as Neuropixels probes and NI cards are recorded: int16 in a .bin file, described by a .meta file.

    NAME.ap.bin     samples, each int16 of all saved channels: the AP band, then the LF band, then sync
    NAME.ap.meta    a line KEY=VALUE each

Channels of one kind are a field that is read in place. Gains: volts = value x range / largest integer / gain. The keys
are those of https://billkarsh.github.io/SpikeGLX/, "Metadata Guide"; fixed gains are those of the probes' tables in
its sources, https://github.com/billkarsh/SpikeGLX, Src-imro.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from memload._core import Column, Storage
from memload.columns.clocks import Clock
from memload.columns.fields import Field
from memload.errors import FormatError
from memload.formats.cells import number_of
from memload.formats.paths import no_file
from memload.formats.recordings.found import Found

_STREAMS = {  # by `typeThis`: the key of how many channels of each kind there are, and the kinds
    "imec": ("snsApLfSy", ("ap", "lf", "sync")),
    "obx": ("snsXaDwSy", ("xa", "digital", "sync")),
    "nidq": ("snsMnMaXaDw", ("mn", "ma", "xa", "digital")),
}
_RATES = {"imec": "imSampRate", "obx": "obSampRate", "nidq": "niSampRate"}
_FIXED = {  # by `imDatPrb_type`: the gain and the largest integer of probes whose tables of channels have no gains
    **dict.fromkeys(("21", "2000", "24", "2010"), (80.0, 8192)),
    **dict.fromkeys(("2003", "2004", "2005", "2006", "2013", "2014"), (100.0, 2048)),  # Neuropixels 2.0
    **dict.fromkeys(("2020", "2021", "2022"), (100.0, 2048)),  # of four shanks that are read at once
    **dict.fromkeys(("3010", "3011", "3020", "3021", "3022"), (100.0, 2048)),  # NXT
}
_LARGEST_OF_CARDS = 32768
_WITH_GAINS = re.compile("0|1|1[0-9]{3}|3000", re.ASCII)  # types of probes whose tables have the gains of each channel
_GAIN_AT = {"ap": 3, "lf": 4}  # in an entry of such a table


def is_spikeglx(path: Path) -> bool:
    """Return whether a path is that of a .bin or .meta file which has the other one beside it."""
    return (
        path.suffix in (".bin", ".meta") and path.with_suffix(".bin").is_file() and path.with_suffix(".meta").is_file()
    )


def read_spikeglx(path: Path, wanted: Sequence[str] | None = None) -> Found:
    """Return the channels of a file by kind, with the scale that makes volts of them.

    Args:
        path: the .bin or the .meta file.
        wanted: kinds of channels, such as "ap"; all if not given.

    Raises:
        FileNotFoundError, IsADirectoryError: one of the two files is missing.
        FormatError: the .meta file lacks a key, or does not fit the .bin file.
        KeyError: there are no channels that are wanted.
    """
    if path.is_dir():
        raise no_file(path)
    data, described = path.with_suffix(".bin"), path.with_suffix(".meta")
    for one in (data, described):
        if not one.is_file():
            raise FileNotFoundError(f"{one}: no such file; SpikeGLX writes a .bin and a .meta file of one name")
    meta = _Meta.read(described)
    channels, stride = meta.channels, 2 * meta.count("nSavedChans")
    if sum(channels.values()) * 2 != stride:
        raise FormatError(f"{described}: nSavedChans is {stride // 2}, and the channels by kind are {channels}")
    rows, rest = divmod(data.stat().st_size, stride)
    if not rows:
        raise FormatError(f"{data}: {data.stat().st_size:,} bytes, and a sample has {stride:,}")
    found = Found(name=path.stem.rpartition(".")[0] or path.stem)
    if rest:
        found.left_out[data.name] = f"{rest:,} bytes at its end are no whole sample: it was cut short"
    there = {kind: count for kind, count in channels.items() if count}
    for name in wanted or ():
        if name not in there:
            raise KeyError(f"{path}: no channels {name!r}; there are {there}")
    storage, before = Storage.map_file(str(data.absolute())), 0
    for kind, count in there.items():
        if wanted is None or kind in wanted:
            column = Column(2 * count, [(storage, 2 * before, rows, stride)])
            found.fields[kind] = Field(torch.int16, (count,), column)
            _describe(found, kind, meta)
        before += count
    return found


def _describe(found: Found, kind: str, meta: _Meta) -> None:
    """Give the channels of a kind their clock and scale."""
    volts = kind not in ("sync", "digital")
    rate = meta.above_zero(key := _RATES[meta.stream])
    try:
        found.clocks[kind] = Clock(rate=rate, unit="V" if volts else "")
    except ValueError as error:
        raise FormatError(f"{meta.path}: {key} is {meta[key]!r}: {error}") from error
    if not volts:
        return
    gains = meta.gains(kind)
    if len(gains) == 1:
        found.scales[kind] = (meta.volts / gains.pop(), 0.0)
    else:
        found.left_out[f"gains of {kind}"] = (
            f"channels differ in gain ({sorted(gains)}); values stay as they are stored"
        )


class _Meta(dict[str, str]):
    """The keys of a .meta file and their values."""

    path: Path

    @classmethod
    def read(cls, path: Path) -> _Meta:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        meta = cls(line.removeprefix("~").split("=", 1) for line in lines if "=" in line)
        meta.path = path
        if meta.stream not in _STREAMS:
            raise FormatError(f"{path}: typeThis is {meta.stream!r}; known are {', '.join(_STREAMS)}")
        return meta

    @property
    def stream(self) -> str:
        """What recorded the file."""
        return self.text("typeThis")

    @property
    def channels(self) -> dict[str, int]:
        """How many channels of each kind were saved, in the order of a sample."""
        key, kinds = _STREAMS[self.stream]
        counts = self.text(key).split(",")
        if len(counts) != len(kinds) or not all(count.strip().isdecimal() for count in counts):
            raise FormatError(
                f"{self.path}: {key} is {self.text(key)!r}; expected a number for each of {', '.join(kinds)}"
            )
        return dict(zip(kinds, map(int, counts), strict=True))

    @property
    def volts(self) -> float:
        """The volts of the integer 1 at gain 1."""
        prefix = {"imec": "im", "obx": "ob", "nidq": "ni"}[self.stream]
        if (key := f"{prefix}MaxInt") in self:
            largest = self.count(key)
        else:
            largest = _FIXED.get(self.get("imDatPrb_type", ""), (0, 512))[1] if prefix == "im" else _LARGEST_OF_CARDS
        return self.above_zero(f"{prefix}AiRangeMax") / largest

    def gains(self, kind: str) -> set[float]:
        """The gains that channels of a kind have."""
        if self.stream == "obx" or kind == "xa":
            return {1.0}
        if self.stream == "nidq":
            return {self.above_zero({"mn": "niMNGain", "ma": "niMAGain"}[kind])}
        if (key := f"imChan0{kind}Gain") in self:
            return {self.above_zero(key)}
        probe = self.get("imDatPrb_type", "0")  # older files have none
        if probe in _FIXED:
            return {_FIXED[probe][0]}
        if not _WITH_GAINS.fullmatch(probe):
            raise FormatError(
                f"{self.path}: imDatPrb_type is {probe!r}, a probe whose gain memload does not know, and there is no "
                f"{key}, which states it"
            )
        return self._gains_of_channels(_GAIN_AT[kind])

    def _gains_of_channels(self, place: int) -> set[float]:
        """The gains in the entries (channel bank reference ap lf ...) of imroTbl."""
        entries = [entry.split() for entry in re.findall(r"\(([^()]*)\)", self.text("imroTbl"))[1:]]
        gains = {number_of(entry[place]) if len(entry) >= 5 else None for entry in entries}
        found = {gain for gain in gains if gain is not None and 0 < gain < math.inf}
        if not found or found != gains:
            raise FormatError(
                f"{self.path}: imroTbl is {self['imroTbl'][:60]!r}, without gains of channels; expected entries such "
                "as (0 0 0 500 250 1), with the gains of AP and LF at their fourth and fifth place"
            )
        return found

    def text(self, key: str) -> str:
        """The value of a key. Raises FormatError if there is none."""
        if key not in self:
            raise FormatError(f"{self.path}: no {key}; is it a .meta file of SpikeGLX? Its keys are {[*self][:8]}")
        return self[key]

    def above_zero(self, key: str) -> float:
        """The value of a key that is a number above 0. Raises as `text`, or FormatError if it is none."""
        value = number_of(self.text(key))
        if value is None or not 0 < value < math.inf:
            raise FormatError(f"{self.path}: {key} is {self[key]!r}; expected a number above 0")
        return value

    def count(self, key: str) -> int:
        """The value of a key that is a whole number above 0. Raises as `above_zero`."""
        value = self.above_zero(key)
        if value != int(value):
            raise FormatError(f"{self.path}: {key} is {self[key]!r}; expected a whole number")
        return int(value)

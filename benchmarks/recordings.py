"""How many slices of time a second, beside temporaldata, a numpy loop, and the ceiling of the gather?

A session of an hour in one HDF5 file that temporaldata writes: frames of 36 x 64 uint8 at 60 Hz, and 1,000 responses
float32 at 30 Hz. A slice has two seconds of both, at a random time; batches are 32 slices. temporaldata slices its lazy
HDF5 file, torch_brain's Dataset does so by DatasetIndex where it is installed, and the numpy loop slices memory maps of
the same bytes; all are data sets of stock DataLoaders, with 0 and with as many workers as there are cores, and the
better one counts. "linear" resamples the responses to 60 Hz, which the
numpy loop does by one expression for all units. A share compares with the same rows gathered one by one, which for
"linear" are as many rows of float32 as come out; how many times faster than the loop in numpy the memory allows follows
from the same gathers. The loader is measured with its defaults, and with eight batches ahead. Opening is that of an NWB
file of the same series, beside pynwb.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from harness import Bench, arguments, compete, rates, share
from torch.utils.data import DataLoader

import memload
from memload.cli.bench import GatherCeiling, default_threads
from memload.cli.measure import Epoch, Spread, held_in_memory, peak_memory, run_epoch

BATCH, SECONDS, SLICES = 32, 2.0, 4096
DEEP = 8  # batches ahead, whose slots are larger than the caches, so that results are written past these
FRAMES, RESPONSES = ("stim/frames", 60, (36, 64), np.uint8), ("responses/df", 30, (1000,), np.float32)


def make(folder: Path, minutes: float) -> Path:
    """The session, as temporaldata writes it."""
    from temporaldata import Data, RegularTimeSeries

    rng = np.random.default_rng(0)
    count = int(minutes * 60)
    frames = rng.integers(0, 256, (count * 60, 36, 64), np.uint8)
    responses = rng.random((count * 30, 1000), np.float32)
    data = Data(
        stim=RegularTimeSeries(sampling_rate=60.0, frames=frames),
        responses=RegularTimeSeries(sampling_rate=30.0, df=responses),
        domain="auto",
    )
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "session.part", "w") as file:
        data.to_hdf5(file)
    (folder / "session.part").rename(folder / "session.h5")
    return folder / "session.h5"


class ByNumpy(torch.utils.data.Dataset):
    """Slices of memory maps."""

    def __init__(self, arrays: list[np.memmap], starts: np.ndarray, linear: bool) -> None:
        self.frames, self.responses = arrays
        self.starts, self.linear = starts, linear

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        start = self.starts[i]
        frame = round(start * 60)
        return {"stim": self.frames[frame : frame + 120].copy(), "responses": self._responses(start)}

    def _responses(self, start: float) -> np.ndarray:
        if not self.linear:
            first = round(start * 30)
            return self.responses[first : first + 60].copy()
        at = start * 30 + np.arange(120) / 2
        first = np.floor(at).astype(int)
        weight = (at - first).astype(np.float32)[:, None]
        low, high = self.responses[first], self.responses[first + 1]
        return low + (high - low) * weight


class ByTemporaldata(torch.utils.data.Dataset):
    """Lazy slices of the HDF5 file, as torch_brain's data sets take them; a process opens it once."""

    def __init__(self, path: Path, starts: np.ndarray) -> None:
        self.path, self.starts, self.data = path, starts, None

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        from temporaldata import Data

        if self.data is None:
            self.data = Data.from_hdf5(h5py.File(self.path, "r"), lazy=True)
        part = self.data.slice(self.starts[i], self.starts[i] + SECONDS)
        return {"stim": part.stim.frames, "responses": part.responses.df}


class ByTorchBrain(torch.utils.data.Dataset):
    """Slices of torch_brain's own data set, which is indexed by the time that its samplers choose."""

    def __init__(self, path: Path, starts: np.ndarray) -> None:
        self.path, self.starts, self.sessions = path, starts, None

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        from torch_brain.datasets import Dataset, DatasetIndex

        if self.sessions is None:
            self.sessions = Dataset(self.path.parent, recording_ids=[self.path.stem])
        part = self.sessions[DatasetIndex(self.path.stem, self.starts[i], self.starts[i] + SECONDS)]
        return {"stim": part.stim.frames, "responses": part.responses.df}


def peers_in_hdf5(path: Path, starts: np.ndarray) -> dict[str, torch.utils.data.Dataset]:
    """The peers that slice the file of temporaldata, by their names; torch_brain where it is installed."""
    found: dict[str, torch.utils.data.Dataset] = {"temporaldata": ByTemporaldata(path, starts)}
    if importlib.util.find_spec("torch_brain") is not None:
        found["torch_brain"] = ByTorchBrain(path, starts)
    return found


def check_alike(slices: memload.Dataset, peer: torch.utils.data.Dataset) -> None:
    """Raise AssertionError unless a peer gives the slices of memload."""
    for row in range(min(20, len(slices))):
        theirs = peer[row]
        for name in theirs:
            np.testing.assert_array_equal(theirs[name], slices[row][name].numpy(), err_msg=f"{name} of slice {row}")


def stock(dataset: Any) -> Iterator[tuple[str, Callable[[], Epoch]]]:
    """The dataset in stock loaders, without workers and with one for each core."""
    for workers in (0, default_threads()):
        loader = DataLoader(dataset, BATCH, num_workers=workers, persistent_workers=workers > 0)
        yield str(workers), lambda loader=loader: run_epoch(loader)


def mapped(path: Path) -> list[np.memmap]:
    """The arrays of the file."""
    with h5py.File(path) as file:
        found = [file[name] for name, *_ in (FRAMES, RESPONSES)]
        return [np.memmap(path, one.dtype, "r", one.id.get_offset(), one.shape) for one in found]


def recording(path: Path) -> memload.Recording:
    """The session as memload opens it."""
    fields = {name.partition("/")[0]: memload.open(path, key=name) for name, *_ in (FRAMES, RESPONSES)}
    return memload.recording(fields, clocks={"stim": 60, "responses": 30})


def loader_of(slices: memload.Dataset, depth: int | None = None) -> memload.FastLoader:
    """The loader that is measured: threads and slots stay between epochs, as workers do."""
    return memload.FastLoader(
        slices, BATCH, num_workers=default_threads(), persistent_workers=True, prefetch_factor=depth
    )


def beside_peers(bench: Bench, path: Path, starts: np.ndarray, *, linear: bool) -> None:
    """Slices of both fields, beside the loops in Python."""
    more = {"rates": {"responses": 60}, "sampling": {"responses": "linear"}} if linear else {}
    with peak_memory() as peak:
        slices = recording(path).slices(SECONDS, at=starts, **more)
        loader = loader_of(slices)
        run_epoch(loader, limit=4)
        memory = peak()
    deep = loader_of(slices, DEEP)
    contestants = {"fast": lambda: run_epoch(loader), "deep": lambda: run_epoch(deep)}
    contestants |= {f"numpy {n}": run for n, run in stock(ByNumpy(mapped(path), starts, linear))}
    lazy = {} if linear else peers_in_hdf5(path, starts)
    for peer, dataset in lazy.items():
        check_alike(slices, dataset)
        contestants |= {f"{peer} {n}": run for n, run in stock(dataset)}
    epochs = compete(contestants, bench.rounds)
    most = slices_of_memory(path, starts, linear)
    for peer in ("numpy", *lazy):
        best = max((name for name in epochs if name.startswith(peer)), key=lambda name: np.median(rates(epochs[name])))
        times = share(epochs["fast"], epochs[best])
        fast, theirs = Spread.of(rates(epochs["fast"])), Spread.of(rates(epochs[best]))
        text = (
            f"{times.median:.1f} times ({times.low:.1f} to {times.high:.1f}) {best} workers: {fast.median:,.0f} "
            f"slices/s, {theirs.median:,.0f}; {share(epochs['deep'], epochs[best]).median:.1f} times with {DEEP} "
            f"batches ahead; of the memory at most {most / theirs.median:.1f} times"
        )
        what = f"{'linear' if linear else 'nearest'} beside {peer}"
        ceiling = {"slices_of_memory": most, "most_times": most / theirs.median}
        ceiling["deep_times"] = share(epochs["deep"], epochs[best])
        bench.add(what, text, times=times, fast=fast, peer=theirs, best=best, memory=memory, **ceiling)


def slices_of_memory(path: Path, starts: np.ndarray, linear: bool) -> float:
    """Slices a second of nothing but the gather of the rows that come out: what the memory of this machine allows."""
    seconds = 0.0
    for name, rate in (("stim", 60), ("responses", 60 if linear else 30)):
        ceiling, steps = gather_of(path, starts, name, rate)
        rate = max(ceiling.run(streaming=one).rate for one in (False, True) for _ in range(2)) / steps
        seconds += 1 / rate
    return 1 / seconds


def gather_of(path: Path, starts: np.ndarray, name: str, rate: int) -> tuple[GatherCeiling, int]:
    """The ceiling of the rows of these slices, and how many rows a slice has."""
    own = {"stim": 60, "responses": 30}[name]
    steps = np.arange(int(SECONDS * rate)) * own // rate
    rows = (np.rint(starts * own).astype(np.int64)[:, None] + steps).reshape(-1)
    frames = memload.open(path, key={"stim": FRAMES, "responses": RESPONSES}[name][0])
    return GatherCeiling(frames, rows, BATCH * len(steps)), len(steps)


def beside_ceiling(bench: Bench, path: Path, starts: np.ndarray, name: str, rate: int, sampling: str) -> None:
    """Slices of one field, beside the gather of as many rows."""
    one = recording(path).only(name)
    slices = one.slices(SECONDS, at=starts, rates={name: rate}, sampling=sampling)
    loader, deep = loader_of(slices), loader_of(slices, DEEP)
    ceiling, steps = gather_of(path, starts, name, rate)
    streaming = max((False, True), key=lambda one: ceiling.run(streaming=one).rate)
    contestants = {"fast": lambda: run_epoch(loader), "deep": lambda: run_epoch(deep)}
    epochs = compete(contestants | {"ceiling": lambda: ceiling.run(streaming=streaming)}, bench.rounds)
    shares = {}
    for which in contestants:
        found = share(epochs[which], epochs["ceiling"])
        shares[which] = Spread(*(value * steps for value in (found.median, found.low, found.high)), found.count)
    text = "; ".join(f"{one.median:.2f} ({one.low:.2f} to {one.high:.2f})" for one in shares.values())
    fast, theirs = (Spread.of(rates(epochs[which])) for which in contestants)
    text = f"{text} of the ceiling, by default and with {DEEP} batches ahead"
    bench.add(
        f"{name} {sampling} at {rate} Hz", text, share=shares["fast"], deep_share=shares["deep"], fast=fast, deep=theirs
    )


def opening(bench: Bench, path: Path, folder: Path) -> None:
    """An NWB file of the same series and of 1,000 units."""
    import datetime

    import pynwb

    place = folder / "session.nwb"
    if not place.exists():
        frames, responses = mapped(path)
        file = pynwb.NWBFile("-", "-", datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc))
        file.add_acquisition(pynwb.TimeSeries(name="stim", data=np.asarray(frames), unit="-", rate=60.0))
        file.add_acquisition(pynwb.TimeSeries(name="responses", data=np.asarray(responses), unit="-", rate=30.0))
        rng, seconds = np.random.default_rng(0), len(frames) / 60
        for _ in range(1000):
            file.add_unit(spike_times=np.sort(rng.uniform(0, seconds, int(seconds))), obs_intervals=[[0.0, seconds]])
        with pynwb.NWBHDF5IO(str(place), "w") as io:
            io.write(file)

    def theirs() -> None:
        with pynwb.NWBHDF5IO(str(place), "r") as io:
            io.read()

    taken = {"memload": lambda: memload.open_nwb(place), "pynwb": theirs}
    seconds_of: dict[str, list[float]] = {name: [] for name in taken}
    for _ in range(max(3, bench.rounds)):
        for name, run in taken.items():
            begin = time.perf_counter()
            run()
            seconds_of[name].append(time.perf_counter() - begin)
    ours, other = (Spread.of([1000 * one for one in found[1:]]) for found in seconds_of.values())
    text = f"{ours.median:.1f} ms ({ours.low:.1f} to {ours.high:.1f}), pynwb {other.median:.0f} ms"
    bench.add("opening NWB", text, milliseconds=ours, pynwb_milliseconds=other)


def main() -> None:
    bench = Bench(arguments("slices of time beside loops in Python and the ceiling", rounds=5, default=()).parse_args())
    minutes, count = (1.0, 128) if bench.args.quick else (60.0, SLICES)
    with contextlib.ExitStack() as stack:
        folder = bench.args.cache or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memload-bench-")))
        folder = folder / "recordings" / f"{minutes:g}"
        path = folder / "session.h5"
        path = path if path.exists() else make(folder, minutes)
        bench.pages = stack.enter_context(held_in_memory({path}))
        starts = np.random.default_rng(1).integers(0, int(minutes * 60 - SECONDS - 1) * 30, count) / 30
        beside_ceiling(bench, path, starts, "stim", 60, "nearest")
        beside_ceiling(bench, path, starts, "responses", 30, "nearest")
        beside_ceiling(bench, path, starts + 1 / 120, "responses", 60, "linear")
        beside_peers(bench, path, starts, linear=False)
        beside_peers(bench, path, starts + 1 / 120, linear=True)
        opening(bench, path, folder)
    bench.save()


if __name__ == "__main__":
    main()

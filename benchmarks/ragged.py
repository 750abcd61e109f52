"""How near to the ceiling are batches of rows that differ in length, and how far from what users write by hand?

Token sequences of 10 to 2,000 int64 items and small graphs' edges of 2 x 2 to 2 x 60, batch 256, shuffled. The ceiling
gathers rows of one length, with the same number of threads into reused memory: for joined batches rows that have as
many bytes in all, for padded ones rows that are stored padded. By hand: sequences in a memmap, cut out by their
offsets, and a collate function that concatenates, or pads, in the stock DataLoader at its best of num_workers 0, 1, 2.

The tokens once more behind each codec: beside the same rows uncompressed, and beside a loop by hand that keeps each
sequence as a chunk of Blosc (numcodecs; the same codec, bytes shuffled) and decodes it when it is asked for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import torch
from harness import Bench, arguments, compete, rates, share
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

import memload
from memload.cli.bench import GatherCeiling, default_threads
from memload.cli.measure import Epoch, Spread, held_in_memory, run_epoch

BATCH = 256
CODECS = ("lz4", "zstd", "zstd:rows=512")
KINDS = {"tokens": (10, 2_000, 1), "edges": (2, 60, 2)}  # the least and the most items, and runs of items a row


def make(folder: Path, name: str, rows: int) -> Path:
    """Rows of lengths that are spread evenly over their logarithm, as one shard; and the same bytes for users."""
    least, most, planes = KINDS[name]
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.uniform(np.log(least), np.log(most), rows)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    items = int(offsets[-1])
    values = rng.integers(0, 30_000, (planes, items) if planes > 1 else items)
    path = folder / name
    path.mkdir(parents=True)
    np.save(path / "values.npy", values)
    np.save(path / "offsets.npy", offsets)
    ragged = memload.ragged(values, offsets, axis=int(planes > 1))
    memload.write(path / "set", {"x": ragged}, shard_bytes="8GB", progress=False)
    equal = np.zeros((rows, items * planes // rows), dtype=np.int64)  # rows of one length that have as many bytes
    memload.write(path / "offsets", {"x": equal}, shard_bytes="8GB", progress=False)
    if planes == 1:
        stored_padded = np.zeros((rows, most), dtype=np.int64)
        memload.write(path / "padded", {"x": stored_padded}, shard_bytes="8GB", progress=False)
    return path


def make_coded(path: Path, codec: str) -> Path:
    """The same rows behind a codec: a set, and what users would keep."""
    folder = path / codec.replace(":", "-")
    if folder.exists():
        return folder
    unfinished = folder.with_name(f"{folder.name}.part")
    memload.write(unfinished / "set", memload.open(path / "set"), codec={"x": codec}, shard_bytes="8GB", progress=False)
    one, values = by_row(codec), np.load(path / "values.npy", mmap_mode="r")
    chunks = [one.encode(np.ascontiguousarray(row)) for row in np.split(values, np.load(path / "offsets.npy")[1:-1])]
    np.save(unfinished / "chunks.npy", np.frombuffer(b"".join(chunks), np.uint8))
    np.save(unfinished / "offsets.npy", np.cumsum([0, *map(len, chunks)]))
    unfinished.rename(folder)
    return folder


def by_row(codec: str) -> Any:
    """How users would compress one sequence."""
    return numcodecs.Blosc(cname=codec.partition(":")[0], clevel=5, shuffle=numcodecs.Blosc.SHUFFLE)


class ByHand(Dataset[torch.Tensor]):
    """What users write: the rows of a memmap."""

    def __init__(self, path: Path) -> None:
        self._values = torch.from_numpy(np.load(path / "values.npy", mmap_mode="c"))
        self._offsets = np.load(path / "offsets.npy").tolist()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> torch.Tensor:
        return self._values[..., self._offsets[row] : self._offsets[row + 1]]


class DecodedByHand(Dataset[torch.Tensor]):
    """What users write where each row is a chunk of its own."""

    def __init__(self, path: Path, codec: str) -> None:
        self._chunks = np.load(path / "chunks.npy", mmap_mode="r")
        self._offsets = np.load(path / "offsets.npy").tolist()
        self._codec = by_row(codec)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> torch.Tensor:
        decoded = self._codec.decode(self._chunks[self._offsets[row] : self._offsets[row + 1]])
        return torch.frombuffer(bytearray(decoded), dtype=torch.int64)


def joined(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The collate function that users write."""
    lengths = torch.tensor([0, *(row.shape[-1] for row in rows)])
    return torch.cat(rows, dim=-1), lengths.cumsum(0)


def padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, padded."""
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


class Counted:
    """A loop whose batches `run_epoch` can count: the rows and bytes of each."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Any:
        for values, numbers in self._loader:
            yield numbers[:BATCH], values


def fast(path: Path, form: str) -> memload.FastLoader[Any]:
    """memload's loop over the set of a folder."""
    return memload.FastLoader(
        memload.open(path / "set").only("x").with_ragged(form),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=default_threads(),
        persistent_workers=True,  # slots and threads are kept between epochs, as the ceiling keeps its buffers
        generator=torch.Generator().manual_seed(0),
    )


def by_hand(rows: Dataset[torch.Tensor], form: str, workers: int) -> Counted:
    """The loop that users write."""
    loader = DataLoader(
        rows,
        BATCH,
        shuffle=True,
        drop_last=True,
        collate_fn=padded if form == "padded" else joined,
        num_workers=workers,
        persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(0),
    )
    return Counted(loader)


def best_by_hand(rows: Dataset[torch.Tensor], form: str, *, quick: bool) -> tuple[int, Counted]:
    """The fastest loop that users write, and with how many workers it is that."""

    def trial(loop: Counted) -> float:
        run_epoch(loop, limit=2)
        return run_epoch(loop, seconds=0.5).rate

    loops = {workers: by_hand(rows, form, workers) for workers in ((0,) if quick else (0, 1, 2))}
    found = {workers: trial(loop) for workers, loop in loops.items()}
    workers = max(found, key=lambda count: found[count])
    return workers, loops[workers]  # the workers of the others end with them


def measure(bench: Bench, path: Path, name: str, form: str) -> None:
    """Compares on one set."""
    loader = fast(path, form)
    equal = memload.open(path / form)
    rows = torch.randperm(len(equal), generator=torch.Generator().manual_seed(0)).numpy()
    ceiling = GatherCeiling(equal, rows[: len(rows) // BATCH * BATCH], BATCH)
    streaming = max((False, True), key=lambda s: ceiling.run(streaming=s).rate)
    workers, theirs = best_by_hand(ByHand(path), form, quick=bench.args.quick)
    contestants: dict[str, Callable[[], Epoch]] = {
        "fast": lambda: run_epoch(Counted(loader)),
        "ceiling": lambda: ceiling.run(streaming=streaming),
        "stock": lambda: run_epoch(theirs, seconds=3.0),
    }
    epochs = compete(contestants, bench.rounds)
    part, speedup = share(epochs["fast"], epochs["ceiling"]), share(epochs["fast"], epochs["stock"])
    text = f"{part.median:.2f} ({part.low:.2f} to {part.high:.2f}) of the ceiling, {speedup.median:.1f}x by hand"
    bench.add(
        f"{name} {form}",
        f"{text} (num_workers={workers})",
        share=part,
        speedup=speedup,
        setting=f"num_workers={workers}",
        fast=Spread.of(rates(epochs["fast"])),
        stock=Spread.of(rates(epochs["stock"])),
        nbytes=loader.nbytes,
    )


def measure_coded(bench: Bench, path: Path, codec: str) -> None:
    """Compares on the tokens behind one codec."""
    folder = make_coded(path, codec)
    shard = next((folder / "set").glob("*.safetensors"))
    plain_shard = next((path / "set").glob("*.safetensors"))
    with held_in_memory({shard, folder / "chunks.npy"}):
        plain, coded = fast(path, "offsets"), fast(folder, "offsets")
        rows = DecodedByHand(folder, codec)
        workers, theirs = best_by_hand(rows, "offsets", quick=bench.args.quick)
        contestants: dict[str, Callable[[], Epoch]] = {
            "coded": lambda: run_epoch(Counted(coded)),
            "plain": lambda: run_epoch(Counted(plain)),
            "by hand": lambda: run_epoch(theirs, seconds=3.0),
        }
        epochs = compete(contestants, bench.rounds)
    of_plain, speedup = share(epochs["coded"], epochs["plain"]), share(epochs["coded"], epochs["by hand"])
    loading = Spread.of(epoch.gb_per_second for epoch in epochs["coded"])
    smaller = plain_shard.stat().st_size / shard.stat().st_size
    text = f"{smaller:.2f} times smaller, {loading.median:.2f} GB/s, {of_plain.median:.2f} of plain, "
    bench.add(
        f"tokens offsets, {codec}",
        text + f"{speedup.median:.1f}x by hand (num_workers={workers})",
        codec=codec,
        ratio=smaller,
        ratio_by_hand=plain_shard.stat().st_size / (folder / "chunks.npy").stat().st_size,
        gb_per_second=loading,
        of_plain=of_plain,
        speedup=speedup,
        setting=f"num_workers={workers}",
        fast=Spread.of(rates(epochs["coded"])),
        stock=Spread.of(rates(epochs["by hand"])),
    )


def main() -> None:
    parser = arguments("rows that differ in length beside rows of one length, and beside loops by hand", rounds=9)
    bench = Bench(parser.parse_args())
    with tempfile.TemporaryDirectory(prefix="memload-bench-") as folder:
        cache = bench.args.cache or Path(folder)
        for name, count in (("tokens", 30_000), ("edges", 400_000)):
            count //= 20 if bench.args.quick else 1
            path = cache / "ragged" / str(count)
            if not (path / name).exists():
                make(path, name, count)
            files = {*(path / name).rglob("*.safetensors"), path / name / "values.npy"}
            with held_in_memory(files) as pages:
                bench.pages = pages
                for form in ("offsets", "padded") if name == "tokens" else ("offsets",):
                    measure(bench, path / name, name, form)
                for codec in CODECS if name == "tokens" else ():
                    measure_coded(bench, path / name, codec)
    bench.save()


if __name__ == "__main__":
    main()

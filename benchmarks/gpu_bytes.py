"""Are whole epochs on the GPU those of the CPU, bit for bit, however late and in whichever stream the loop uses them?

Each way to use batches runs one epoch of W1 and of W2, as they are stored and as bfloat16, and of batches of 1 MB to
256 MB, which cross the bus in many slices. Each batch is compared with the one of the same loader without a device. A
figure is the number of batches that were compared; if a bit differs, the part fails and says which batch, field and
byte. This comes before anything that is timed: a fast loader of wrong bytes is none.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from gpu_common import MB, GpuBench, gpu_arguments
from gpu_data import Batch, compare
from harness import Case
from loops import SEED

import memload
from memload.cli.measure import Spread
from memload.dataset.dataset import Dataset

ASLEEP = 10_000_000  # cycles of the device, some 6 ms: several batches are gathered and copied meanwhile
GROUP = 4  # batches that are used before the CPU waits for any
MEGABYTES = (16, 4, 1, 64, 256)  # of batches; those of several slices first
EARLY = 2  # steps of which the end is waited for before batches by their size
ROWS = 64  # of a batch of these
STORED = 4  # of these batches; the rows of an epoch are drawn from so many

Way = Callable[[Iterable[Batch], torch.device], Iterator[Batch]]


def sleep(device: torch.device) -> None:
    """Lets the current stream of the device do nothing for a while; the CPU goes on at once."""
    if device.type == "cuda":
        torch.cuda._sleep(ASLEEP)


def current(stream: Any) -> contextlib.AbstractContextManager[Any]:
    """Makes a stream the current one; None, without a device that has any."""
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


def streams_of(device: torch.device, count: int) -> list[Any]:
    return [torch.cuda.Stream(device) if device.type == "cuda" else None for _ in range(count)]


def copied(batch: Batch) -> Batch:
    """The batch as a kernel that is queued now will find it."""
    return {name: x.clone() for name, x in batch.items()}


def at_once(batches: Iterable[Batch], _device: torch.device) -> Iterator[Batch]:
    """Reads batches where they are."""
    return iter(batches)


def asleep(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Reads each batch late: its memory must not be given to a later one before that."""
    for batch in batches:
        sleep(device)
        yield copied(batch)


def switching(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Takes and reads each batch in another stream than the one before, after a sleep."""
    taking, streams = iter(batches), itertools.cycle(streams_of(device, 3))
    for stream in streams:
        with current(stream):
            batch = next(taking, None)
            if batch is None:
                return
            sleep(device)
            late = copied(batch)
        del batch
        yield late


def handing_over(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Takes batches in one stream and reads them late in another, with the calls that torch asks for."""
    (side,) = streams_of(device, 1)
    for batch in batches:
        if side is not None:
            side.wait_stream(torch.cuda.current_stream(device))
            for x in batch.values():
                x.record_stream(side)
        with current(side):
            sleep(device)
            late = copied(batch)
        yield late


WAYS: tuple[Way, ...] = (at_once, asleep, switching, handing_over)


def loader_of(ds: Dataset, batch_size: int, casts: dict[str, memload.Cast], **options: Any) -> Any:
    generator = torch.Generator().manual_seed(SEED)
    return memload.FastLoader(ds, batch_size, shuffle=True, generator=generator, cast=casts, **options)


def measure(
    bench: GpuBench, case: str, ds: Dataset, batch_size: int, casts: dict[str, memload.Cast], way: Way, **options: Any
) -> None:
    """One epoch in one way; `options` are of the loader, and `near` of them is the data set nearer to the device."""
    near, kept = options.pop("near", ds), {}
    if options:  # static buffers want batches of one shape
        kept["drop_last"] = True
    ours = loader_of(near, batch_size, casts, device=bench.device, **kept, **options)
    theirs = loader_of(ds, batch_size, casts, **kept)
    # A kept batch keeps its memory; used `at_once` they are compared one by one, so that memory goes round, too.
    count = compare(way(ours, bench.device), theirs, bench.device, 1 if way is at_once else GROUP)
    said = ", ".join([way.__name__.replace("_", " "), *(f"{name}={value}" for name, value in options.items())])
    said += "" if near is ds else ", of rows that lie nearer"
    bench.add(case, f"{count} batches like the CPU's, {said}", way=said, batches=count)


def static(bench: GpuBench, case: Case, ds: Dataset, _: None) -> None:
    """Batches whose memory the next but one overwrites, behind what the loop has queued."""
    casts = case.workload.casts(case.variant)
    measure(bench, case.name, ds, case.workload.batch_size, casts, asleep, static_buffers=2)


def nearer(bench: GpuBench, case: Case, ds: Dataset, tier: str) -> None:
    """Rows that lie in the device's memory, in pinned RAM or half in each, which the device gathers itself."""
    half = {"bytes": ds.nbytes // 2} if tier == "split" else {}
    near = memload.to_device(ds, bench.device, tier=tier, progress=False, **half)
    casts = case.workload.casts(case.variant)
    measure(bench, f"{case.name}, {tier}", ds, case.workload.batch_size, casts, switching, near=near)


def used(bench: GpuBench, case: Case, ds: Dataset, way: Way) -> None:
    """Rows of files, used in one way."""
    measure(bench, case.name, ds, case.workload.batch_size, case.workload.casts(case.variant), way)


STEPS: Sequence[tuple[Callable[..., None], Any]] = (  # each of all cases before the next, should the run be ended
    (used, at_once),
    (nearer, "split"),
    (used, asleep),
    (used, switching),
    (nearer, "pinned"),
    (used, handing_over),
    (nearer, "device"),
    (static, None),
)


def sized(bench: GpuBench, nbytes: int) -> None:
    """Batches of about so many bytes, of rows of an odd length."""
    generator = torch.Generator().manual_seed(SEED)
    table = torch.randint(0, 256, (ROWS * STORED, nbytes // ROWS + 1), dtype=torch.uint8, generator=generator)
    ds = memload.from_arrays(x=table).select(torch.arange(len(table)).repeat(3))
    for way in WAYS:
        bench.attempt(f"{nbytes / MB:g} MB", measure, bench, f"{nbytes / MB:g} MB", ds, ROWS, {}, way)


def compare_all(bench: GpuBench) -> None:
    """All steps of all cases, and batches by their size, of which one comes early."""
    with bench.cases() as cases:
        opened = [(case, case.workload.open(case.folder)) for case in cases]
        sizes = (0.25,) if bench.args.quick else MEGABYTES

        def take(steps: Sequence[tuple[Callable[..., None], Any]]) -> None:
            for step, given in steps:
                for case, ds in opened:
                    named = given if isinstance(given, str) else getattr(given, "__name__", "static")
                    bench.attempt(f"{case.name}, {named}", step, bench, case, ds, given)

        take(STEPS[:EARLY])
        for megabytes in sizes[:1]:
            sized(bench, int(megabytes * MB))
        take(STEPS[EARLY:])
        for megabytes in sizes[1:]:
            sized(bench, int(megabytes * MB))


def sum_up(bench: GpuBench) -> None:
    """How much was compared, and was right."""
    tried, same = len(bench.figures), [figure for figure in bench.figures if "batches" in figure]
    if not tried:
        return
    batches = Spread.of([float(sum(figure["batches"] for figure in same))])
    bench.judge("all", "batches whose bytes are the CPU's", batches, None)
    share = Spread.of([len(same) / tried])
    bench.judge("all", "ways of use with the CPU's bytes in all batches, share", share, 1)


def main() -> None:
    parser = gpu_arguments("the bytes of whole epochs", rounds=1, default=("W1", "W2"))
    parser.set_defaults(variants=["bf16", "raw"])
    bench = GpuBench(parser.parse_args())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a part that is ended still sums up
    try:
        compare_all(bench)
    finally:
        sum_up(bench)
    bench.end()


if __name__ == "__main__":
    main()

"""How near does cast_stim on a GPU come to the speed of its memory, and what do eager torch and torch.compile reach?

For 1 MB to 1 GB of uint8 pixels and each target dtype the contestants take turns; each turn is timed by events on the
device. The ceiling is a copy on the device that moves equally many bytes (read and written together), so a share of 1
means the speed of memory. Sizes that fit into the GPU's cache exceed what memory gives, the copy as much as the others.
The kernels for images that are cropped and flipped, and for windows of frames, are held against the same ceiling.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from gpu_common import MB, GpuBench, compiled_or_none, device_copy, faster, gpu_arguments, take_turns

from memload import Augment
from memload.casts.native import ImageJob
from memload.casts.rule import Cast
from memload.cli.measure import Spread
from memload.device.cast_stim import cast_stim
from memload.device.casting import cast_on_device
from memload.device.gathering import expand_windows
from memload.device.kernels import augment_images

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MEGABYTES = (64, 256, 1024, 16, 4, 1)  # first what has most to say, should the run be ended
FULL_SPEED_FROM = 64  # MB; below, a launch is a good part of the time
SIDE, CUT = 256, 224  # of images, and of what is cut out of them
COLOURS = {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "channels": -1}
FRAME, LAGS = (128, 128), 16  # of windows
COMPARED = 8  # images, and windows, that are compared with the CPU's
COMPILED_AT = 64  # MB at which torch.compile competes for every dtype; for bfloat16 it does at every size


def eager(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (x.to(dtype) - 127) / 255.0


def contestants(x: torch.Tensor, dtype: torch.dtype, *, compiled: bool) -> dict[str, Callable[[], torch.Tensor]]:
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    calls: dict[str, Callable[[], torch.Tensor]] = {
        "cast_stim": lambda: cast_stim(x, True, dtype, out=out),
        "cast_stim, fresh": lambda: cast_stim(x, True, dtype),
        "eager": lambda: eager(x, dtype),
    }
    if compiled:
        torch.compiler.reset()  # each size is compiled on its own: torch would give up after eight variants
        fused = compiled_or_none(eager, x, dtype)
        if fused is not None:
            calls["compiled"] = lambda: fused(x, dtype)
    return calls


def is_exact(result: torch.Tensor, x: torch.Tensor) -> bool:
    table = Cast(result.dtype, norm_removed=True).apply(torch.arange(256, dtype=torch.uint8)).to(x.device)
    part = slice(0, 1 << 20)
    return bool(torch.equal(result[part], table[x[part].int()]) and torch.equal(result[-999:], table[x[-999:].int()]))


def measure(bench: GpuBench, megabytes: int, dtype: torch.dtype) -> None:
    x = torch.randint(0, 256, (megabytes * MB,), dtype=torch.uint8, device=bench.device)
    moved = x.numel() * (1 + dtype.itemsize)
    compiled = not bench.args.quick and (dtype == torch.bfloat16 or megabytes == COMPILED_AT)
    calls = contestants(x, dtype, compiled=compiled)
    exact = {name: is_exact(call(), x) for name, call in calls.items()}
    if not (exact["cast_stim"] and exact["cast_stim, fresh"]):
        raise ValueError(f"cast_stim gives other values than Cast.apply on the CPU: {exact}")
    times = take_turns({"copy": device_copy(moved, bench.device), **calls}, bench.device, bench.rounds)
    case = f"{megabytes} MB -> {str(dtype).removeprefix('torch.')}"
    full = megabytes >= FULL_SPEED_FROM
    rate = Spread.of(moved / seconds / 1e9 for seconds in times["cast_stim"])
    share = faster(times["cast_stim"], times["copy"])
    bench.judge(case, "cast_stim, share of a device copy", share, 0.92 if full else None, gb_per_s=rate, exact=exact)
    bench.judge(case, "cast_stim, times eager torch", faster(times["cast_stim"], times["eager"]), 3 if full else None)
    bench.judge(
        case, "cast_stim without out=, share of a device copy", faster(times["cast_stim, fresh"], times["copy"]), None
    )
    if "compiled" in times:
        found = faster(times["cast_stim"], times["compiled"])
        bench.judge(case, "cast_stim, times torch.compile", found, 1)


def compare(found: torch.Tensor, expected: torch.Tensor) -> None:
    if not torch.equal(found[:COMPARED].cpu(), expected) or not torch.equal(found[-1], found[COMPARED - 1]):
        raise ValueError("the kernel gives other values than Cast.apply on the CPU")


def images(bench: GpuBench, layout: str | None) -> None:
    """Images that are cropped, flipped and cast with constants by channel; the last one is the last compared."""
    count, device = COMPARED if bench.args.quick else 1024, bench.device
    x = torch.randint(0, 256, (count, SIDE, SIDE, 3), dtype=torch.uint8, device=device)
    x[-1] = x[COMPARED - 1]
    rule = Cast(torch.bfloat16, layout=layout, augment=Augment((CUT, CUT), 0.5), **COLOURS)
    seeds = [*range(count - 1), COMPARED - 1]
    made = cast_on_device(x, rule, seeds=seeds)
    compare(made, rule.apply(x[:COMPARED].cpu(), seeds[:COMPARED]))
    job = ImageJob.of(rule, x.shape, x.dtype, seeds)
    assert job is not None
    assert made.is_contiguous()

    def call() -> None:
        if device.type == "cuda":
            augment_images(x, made, rule, job)  # what is drawn is drawn once
        else:
            cast_on_device(x, rule, seeds=seeds)

    moved = count * CUT * CUT * 3 * (x.itemsize + made.itemsize)
    times = take_turns({"copy": device_copy(moved, device), "images": call}, device, bench.rounds)
    what = f"cropped and flipped, {layout or 'NHWC'}, share of a device copy"
    bench.judge(f"{count} images -> bfloat16", what, faster(times["images"], times["copy"]), 0.85)


def windows(bench: GpuBench) -> None:
    """Windows in the order of time, of frames that are read once; the last one is the last compared."""
    count, device = COMPARED if bench.args.quick else 512, bench.device
    frames = torch.randint(0, 256, (count + LAGS, *FRAME), dtype=torch.uint8, device=device)
    begins = torch.arange(LAGS - 1, LAGS - 1 + count, device=device)
    begins[-1] = begins[COMPARED - 1]
    steps, rule = -torch.arange(LAGS, device=device), Cast(torch.bfloat16, norm_removed=True)
    chosen = (begins[:COMPARED, None] + steps).cpu()
    compare(expand_windows(frames, begins, steps, rule), rule.apply(frames.cpu()[chosen]))
    moved = frames.nbytes + count * LAGS * frames[0].numel() * rule.dtype.itemsize
    calls = {"copy": device_copy(moved, device), "windows": lambda: expand_windows(frames, begins, steps, rule)}
    times = take_turns(calls, device, bench.rounds)
    what = f"of {LAGS} frames, share of a device copy"
    bench.judge(f"{count} windows -> bfloat16", what, faster(times["windows"], times["copy"]), 0.85)


def fits(bench: GpuBench, megabytes: int, dtype: torch.dtype) -> bool:
    """Pixels, result, one more result, eager's intermediates, and the copy's two halves."""
    if bench.device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(bench.device)
    return megabytes * MB * (2 + 5 * dtype.itemsize) < free


def main() -> None:
    parser = gpu_arguments("cast_stim against the speed of a GPU's memory", rounds=21)
    bench = GpuBench(parser.parse_args())
    for layout in (None, "NCHW"):
        bench.attempt(f"images, {layout or 'NHWC'}", images, bench, layout)
    bench.attempt("windows", windows, bench)
    for megabytes in (1,) if bench.args.quick else MEGABYTES:
        for dtype in (dtype for dtype in DTYPES if fits(bench, megabytes, dtype)):
            bench.attempt(f"{megabytes} MB", measure, bench, megabytes, dtype)
            if bench.device.type == "cuda":
                torch.cuda.empty_cache()
    bench.save()
    bench.end()


if __name__ == "__main__":
    main()

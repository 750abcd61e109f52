"""Which share of two ceilings do images reach whose pixels change places or are normalised by channel?

Stored uint8 images (H, W, C), to float32 and bfloat16: as they are stored (NHWC) and as (C, H, W) (NCHW), each
normalised by `norm_removed` and by scale, mean and std by channel; of W1 crops of 224 x 224, half of them mirrored.
Each is held against

- bytes: the ceiling of all benchmarks, which reads as many pixels, line by line of the crop, asks for lines ahead, and
  writes as many bytes in the stored order, normalised by `norm_removed`. It neither moves pixels nor has constants by
  channel: an upper bound.
- plain: plain C++ loops that do the same as the loader, crop, flip, layout and constants, and give the same bits, with
  as many threads and reused memory. The compiler makes vector code of them.

All of them run in turn. `nchw_time` is the time of NCHW over that of NHWC in the same round. `cpu_share` is the
processor time that the ceiling takes over that of the loader, which other work on the machine changes less.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from harness import Bench, Case, arguments, compete, rates, share
from loops import SEED, fast_loader

from memload import Augment, Cast
from memload.cli.bench import Crop, GatherCeiling, PlainImages, shuffled
from memload.cli.measure import Spread, ratio, run_epoch

COLOURS = {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
NORMALISED = {"norm_removed": {"norm_removed": True}, "mean and std": COLOURS}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SIDE = 224


def ceiling_of(case: Case, dtype: torch.dtype, augment: Augment | None) -> GatherCeiling:
    """The ceiling of the same rows in another order, cropped at other places."""
    dataset = case.workload.open(case.folder)
    crops = {} if augment is None else {"stim": crop_of(case, augment)}
    plan = shuffled(len(dataset), SEED)
    return GatherCeiling(
        dataset, plan, case.workload.batch_size, cast={"stim": Cast(dtype, norm_removed=True)}, crops=crops
    )


def crop_of(case: Case, augment: Augment) -> Crop:
    """The lines of crops of the rows of a case."""
    ((_, (height, width, channels), _),) = case.workload.fields
    high, wide = augment.size(height, width)
    draws = augment.draws(range(case.workload.rows), height, width)
    begins = (draws[:, 0] * width + draws[:, 1]) * channels
    return wide * channels, width * channels, high, np.ascontiguousarray(begins)


def plain_of(case: Case, cast: Cast) -> PlainImages:
    """Plain loops over the rows of `ceiling_of`, with the draws of these rows."""
    dataset, rows = case.workload.open(case.folder), shuffled(case.workload.rows, SEED)
    ((_, (height, width, _), _),) = case.workload.fields
    draws = None if cast.augment is None else cast.augment.draws(rows, height, width)
    return PlainImages(dataset, rows, case.workload.batch_size, cast={"stim": cast}, draws=draws)


def measure(bench: Bench, case: Case, normalised: str) -> None:
    dtype = DTYPES[case.variant]
    ((_, (height, _, _), _),) = case.workload.fields
    augment = None if height == SIDE else Augment(crop=(SIDE, SIDE), flip=0.5)
    ceiling = ceiling_of(case, dtype, augment)
    rule = {"channels": -1, "augment": augment, **NORMALISED[normalised]}
    casts = {"NHWC": Cast(dtype, **rule), "NCHW": Cast(dtype, layout="NCHW", **rule)}
    loaders = {name: fast_loader(case, persistent=True, cast={"stim": cast}) for name, cast in casts.items()}
    plain = {f"plain {name}": plain_of(case, cast).run for name, cast in casts.items()}
    ours = {name: functools.partial(run_epoch, loader) for name, loader in loaders.items()}
    epochs = compete({**ours, "bytes": ceiling.best, **plain}, bench.rounds)
    shares = {name: share(epochs[name], epochs["bytes"]) for name in casts}
    of_plain = {name: share(epochs[name], epochs[f"plain {name}"]) for name in casts}
    nchw_time = ratio(rates(epochs["NHWC"]), rates(epochs["NCHW"]))
    every = {name: Spread.of(rates(runs)) for name, runs in epochs.items()}
    cpu = {name: [epoch.cpu_per_gb for epoch in runs] for name, runs in epochs.items()}
    cpu_share = {name: ratio(cpu["bytes"], cpu[name]) for name in casts}
    text = f"{told(shares)} of {every['bytes'].median:,.0f} samples/s; of plain loops {told(of_plain)}; "
    text += f"NCHW takes {nchw_time.median:.2f} ({nchw_time.low:.2f} to {nchw_time.high:.2f}) times as long as NHWC; "
    text += "in processor time " + ", ".join(f"{name} {one.median:.2f}" for name, one in cpu_share.items())
    name = f"{case.name}{', crop and flip' if augment else ''}, {normalised}"
    found = {"share": shares, "share_of_plain": of_plain, "nchw_time": nchw_time}
    bench.add(f"{name:36}", text, **found, rate=every, cpu_share=cpu_share)


def told(shares: dict[str, Spread]) -> str:
    """The shares of both layouts in words."""
    return ", ".join(f"{name} {one.median:.2f} ({one.low:.2f} to {one.high:.2f})" for name, one in shares.items())


def main() -> None:
    parser = arguments(__doc__ or "", rounds=15, default=("I224", "W1"))
    parser.add_argument("--normalised", nargs="+", choices=NORMALISED, default=list(NORMALISED), metavar="HOW")
    bench = Bench(parser.parse_args())
    with bench.cases() as cases:
        for case in cases:
            for normalised in bench.args.normalised if case.variant in DTYPES else ():
                measure(bench, case, normalised)


if __name__ == "__main__":
    main()

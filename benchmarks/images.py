"""Which share of the ceiling do images reach whose pixels change places or are normalised by channel?

Stored uint8 images (H, W, C), to float32 and bfloat16: as they are stored (NHWC) and as (C, H, W) (NCHW), each
normalised by `norm_removed` and by scale, mean and std by channel; of W1 crops of 224 x 224, half of them mirrored. The
ceiling reads as many pixels, line by line of the crop, and writes as many bytes in the stored order, normalised by
`norm_removed`: it neither moves pixels nor has constants by channel. Both layouts and the ceiling run in turn, and
`nchw_time` is the time of NCHW over that of NHWC in the same round. `cpu_share` is the processor time that the ceiling
takes over that of the loader, which other work on the machine changes less.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from harness import Bench, Case, arguments, compete, rates, share
from loops import SEED, fast_loader

from memload import Augment, Cast
from memload.cli.bench import Crop, GatherCeiling, shuffled
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


def measure(bench: Bench, case: Case, normalised: str) -> None:
    dtype = DTYPES[case.variant]
    ((_, (height, _, _), _),) = case.workload.fields
    augment = None if height == SIDE else Augment(crop=(SIDE, SIDE), flip=0.5)
    ceiling = ceiling_of(case, dtype, augment)
    rule = {"channels": -1, "augment": augment, **NORMALISED[normalised]}
    layouts = {
        "NHWC": fast_loader(case, persistent=True, cast={"stim": Cast(dtype, **rule)}),
        "NCHW": fast_loader(case, persistent=True, cast={"stim": Cast(dtype, layout="NCHW", **rule)}),
    }
    ours = {name: functools.partial(run_epoch, loader) for name, loader in layouts.items()}
    epochs = compete({**ours, "ceiling": ceiling.best}, bench.rounds)
    shares = {name: share(epochs[name], epochs["ceiling"]) for name in layouts}
    nchw_time = ratio(rates(epochs["NHWC"]), rates(epochs["NCHW"]))
    every = {name: Spread.of(rates(runs)) for name, runs in epochs.items()}
    cpu = {name: [epoch.cpu_per_gb for epoch in runs] for name, runs in epochs.items()}
    cpu_share = {name: ratio(cpu["ceiling"], cpu[name]) for name in layouts}
    text = ", ".join(f"{name} {one.median:.2f} ({one.low:.2f} to {one.high:.2f})" for name, one in shares.items())
    text += f" of {every['ceiling'].median:,.0f} samples/s; NCHW takes {nchw_time.median:.2f} "
    text += f"({nchw_time.low:.2f} to {nchw_time.high:.2f}) times as long as NHWC"
    text += "; in processor time " + ", ".join(f"{name} {one.median:.2f}" for name, one in cpu_share.items())
    name = f"{case.name}{', crop and flip' if augment else ''}, {normalised}"
    bench.add(f"{name:36}", text, share=shares, nchw_time=nchw_time, rate=every, cpu_share=cpu_share)


def main() -> None:
    bench = Bench(arguments(__doc__ or "", rounds=15, default=("I224", "W1")).parse_args())
    with bench.cases() as cases:
        for case in cases:
            for normalised in NORMALISED if case.variant in DTYPES else ():
                measure(bench, case, normalised)


if __name__ == "__main__":
    main()

"""How many times as fast as stock is FastLoader where a function converts a batch, and where a Cast does the same?

The function is ``(x.float() - 127) / 255`` of a batch, given as ``batch_transform=``; the cast is `Cast` with
``mean=127, std=255``, which makes the same bits. Stock is at its best of 0, 1 and 2 workers, with plain items and with
batched __getitems__, and calls the function where its batches are made. The three run in turn in each round. The
script also checks that all three make the same batch, and that the statistics of the loader name the cast.
"""

from __future__ import annotations

from typing import Any

import torch
from harness import Bench, Case, arguments, compete, rates, share
from loops import fast_loader
from transforms import Transform, best_stock, epoch_of

from memload import Cast
from memload.cli.measure import Spread

Batch = dict[str, Any]
CAST = Cast(torch.float32, mean=127, std=255)


def normalise(batch: Batch) -> Batch:
    """To float32, by torch."""
    return {**batch, "stim": (batch["stim"].float() - 127) / 255}


def same(one: Batch, other: Batch) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def measure(bench: Bench, case: Case, seconds: float) -> None:
    setting, slow = best_stock(case, Transform(normalise, whole=True), seconds / 3, bench.args.quick)
    function = fast_loader(case, persistent=True, batch_transform=normalise)
    cast = fast_loader(case, persistent=True, cast={"stim": CAST})
    if not same(next(iter(function)), next(iter(cast))):
        raise SystemExit("the function and the cast make different batches")
    loaders = {"function": function, "cast": cast, "stock": slow}
    epochs = compete({name: epoch_of(loader, seconds) for name, loader in loaders.items()}, bench.rounds)
    advice = function.stats().advice
    if "memload.Cast" not in advice:
        raise SystemExit(f"the statistics do not name the cast; they say {advice!r}")
    found = {name: share(epochs[name], epochs["stock"]) for name in ("function", "cast")}
    gain, rate = share(epochs["cast"], epochs["function"]), Spread.of(rates(epochs["stock"]))
    times = ", ".join(f"{name} {one.median:.1f}x ({one.low:.1f} to {one.high:.1f})" for name, one in found.items())
    bench.add(
        case.workload.name,
        f"{times} of {rate.median:,.0f} samples/s ({setting}); the cast is {gain.median:.1f} times "
        f"({gain.low:.1f} to {gain.high:.1f}) as fast as the function. {advice}",
        function=found["function"],
        cast=found["cast"],
        cast_over_function=gain,
        setting=setting,
        stock=rate,
        advice=advice,
    )


def main() -> None:
    parser = arguments("a function of a batch against the same cast", rounds=5, default=("W1", "W2"))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each epoch (default %(default)s)")
    args = parser.parse_args()
    args.variants = ["f32"]  # of a workload once
    bench = Bench(args)
    with bench.cases() as cases:
        for case in cases:
            measure(bench, case, 0.2 if args.quick else args.seconds)


if __name__ == "__main__":
    main()

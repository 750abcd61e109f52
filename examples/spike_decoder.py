"""Decode what an animal saw from its spikes, with the trials of an NWB file.

    python examples/spike_decoder.py                                       # a synthetic session
    python examples/spike_decoder.py session.nwb --label orientation       # a column of its trials

Spikes are counted in bins of 50 ms from the start of each trial; a linear model over all of them tells the label.
"""

import argparse

import numpy as np
import torch

import memload


def synthetic(trials=200, neurons=30):
    """A session whose neurons prefer one of four orientations each."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 4, trials)
    times: list[list[float]] = [[] for _ in range(neurons)]
    for trial in range(trials):
        for unit in range(neurons):
            count = rng.poisson(12 if unit % 4 == label[trial] else 4)
            times[unit].extend(2.0 * trial + rng.uniform(0, 1, count))
    starts = 2.0 * np.arange(trials)
    table = {"start": starts, "stop": starts + 1.0, "orientation": label * 45.0}
    return memload.recording({"units": memload.Spikes(times)}, clocks={}, intervals={"trials": table})


def main():
    """Train on some trials and report on others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", help="an NWB file, or a folder of memload; default: a synthetic session")
    parser.add_argument("--label", default="orientation", help="a column of the trials")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each trial, from its start on")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)

    session = synthetic() if options.path is None else memload.open_recording(options.path, fields=["units"])
    print(session)
    trials = session.intervals["trials"]
    classes = np.unique(trials.columns[options.label])
    loaders = {}
    for name, part in trials.split(train=0.8, test=0.2).items():
        counts = session.slices(
            options.seconds, hop=1e5, within=part, rates={"units": 20}, columns=[options.label]
        )  # one slice of each trial
        loaders[name] = memload.FastLoader(
            counts, batch_size=32, shuffle=name == "train", cast={"units": torch.float32}
        )

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(len(classes)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-3)
    for epoch in range(options.epochs):
        for batch in loaders["train"]:
            wanted = torch.from_numpy(np.searchsorted(classes, batch[options.label].numpy()))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch["units"]), wanted).backward()
            optimizer.step()
        right = []
        with torch.no_grad():
            for batch in loaders["test"]:
                wanted = np.searchsorted(classes, batch[options.label].numpy())
                right += (model(batch["units"]).argmax(1).numpy() == wanted).tolist()
        print(f"epoch {epoch}: {np.mean(right):.0%} of the test trials")


if __name__ == "__main__":
    main()

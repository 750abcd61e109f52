"""Predict the responses of neurons from the movie that the animal sees, as in the Sensorium competition.

    python examples/movie_to_responses.py                      # a synthetic session
    python examples/movie_to_responses.py session.nwb --movie natural_movie --responses dff --within epochs
    python examples/movie_to_responses.py dynamic29513/ --movie screen     # a folder of experanto

A small convolutional network over space and time reads two seconds of the movie, and gives the rate of each neuron at
each response. Trials are split before they are sliced, so that no time is in two parts.
"""

import argparse
import functools

import numpy as np
import torch

import memload

RATE = 8  # samples in a second, of movie and responses


def synthetic(seconds=240, neurons=20):
    """A session whose neurons follow the brightness of one part of the frame each."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (seconds * 30 // 15, 4, 5), np.uint8).repeat(15, axis=0)
    movie = coarse.repeat(4, axis=1).repeat(4, axis=2)
    drive = coarse.reshape(len(coarse), -1)[:, rng.integers(0, 20, neurons)] / 255
    times = np.arange(seconds * 8) / 8 + rng.uniform(0, 0.02, seconds * 8)  # a microscope jitters
    shown = drive[np.clip((times * 30).astype(int), 0, len(drive) - 1)]
    responses = rng.poisson(4 * shown).astype(np.float32)
    trials = {"start": np.arange(0, seconds, 10.0), "stop": np.arange(0, seconds, 10.0) + 10}
    return memload.recording(
        {"movie": movie, "responses": responses}, clocks={"movie": 30, "responses": times}, intervals={"trials": trials}
    )


class Encoder(torch.nn.Module):
    """Space and time to rates: (B, T, H, W) to (B, T, neurons)."""

    def __init__(self, height, width, neurons, channels=8):
        super().__init__()
        self.look = torch.nn.Conv3d(1, channels, (3, 5, 5), padding=(1, 2, 2))
        self.read = torch.nn.Linear(channels * (height // 2) * (width // 2), neurons)

    def forward(self, movie):
        """Return the rates of all neurons at all samples."""
        seen = torch.nn.functional.max_pool3d(torch.relu(self.look(movie.unsqueeze(1))), (1, 2, 2))
        return torch.nn.functional.softplus(self.read(seen.transpose(1, 2).flatten(2)))


def loss_of(model, batch, names):
    """Return the loss of a batch, per neuron and sample."""
    return torch.nn.functional.poisson_nll_loss(model(batch[names[0]]), batch[names[1]], log_input=False)


def main():
    """Train on some trials and report on others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", help="an NWB file, a folder of experanto or of memload; default: synthetic")
    parser.add_argument("--movie", default="movie")
    parser.add_argument("--responses", default="responses")
    parser.add_argument("--within", default="trials", help="the table of intervals that is split and sliced")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    names = options.movie, options.responses
    torch.manual_seed(0)

    session = synthetic() if options.path is None else memload.open_recording(options.path, fields=names)
    print(session)
    session = session.only(*names)
    parts = session.intervals[options.within].split(train=0.8, valid=0.2)
    slices = functools.partial(
        session.slices, 2.0, rates=dict.fromkeys(names, RATE), sampling={options.responses: "linear"}
    )
    train = slices(within=parts["train"], random=5)
    valid = slices(within=parts["valid"])
    cast = {options.movie: memload.Cast(torch.float32, scale=1 / 255), options.responses: memload.Cast(torch.float32)}
    loader = memload.FastLoader(train, batch_size=16, shuffle=True, cast=cast)
    valid_loader = memload.FastLoader(valid, batch_size=64, cast=cast)

    _, height, width = train.fields[options.movie].shape
    model = Encoder(height, width, train.fields[options.responses].shape[-1])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(options.epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, batch, names).backward()
            optimizer.step()
        with torch.no_grad():
            losses = [float(loss_of(model, batch, names)) for batch in valid_loader]
        print(f"epoch {epoch}: validation loss {np.mean(losses):.4f}")


if __name__ == "__main__":
    main()

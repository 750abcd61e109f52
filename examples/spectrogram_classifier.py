"""Tell sounds apart by their spectrograms, with windows of audio that are read where they lie.

    python examples/spectrogram_classifier.py                              # a synthetic recording
    python examples/spectrogram_classifier.py birds.wav songs.csv          # columns start, stop (in seconds) and label

The samples stay in the WAV file as they are (16 bits). Windows are drawn at random times within the labelled intervals,
anew in each pass; spectrograms are made in the loader's threads. Intervals are split before they are cut.
"""

import argparse
import csv
import wave
from pathlib import Path

import numpy as np
import torch

import memload

FRAME = 256  # samples of one column of a spectrogram


def synthetic(sounds=120, rate=8000):
    """A recording of chirps that go up, go down, or stay, in noise."""
    rng = np.random.default_rng(0)
    label, time = rng.integers(0, 3, sounds), np.arange(rate) / rate
    slope = np.array([1500, -1500, 0])[label][:, None]
    tones = np.sin(2 * np.pi * (2000 * time + slope * (time**2 / 2 - time / 2)))
    audio = (4000 * tones + rng.normal(0, 1000, (sounds, rate))).astype(np.int16).reshape(-1)
    table = {"start": np.arange(sounds), "stop": np.arange(sounds) + 1.0, "label": label.astype(str)}
    return memload.recording({"audio": audio}, clocks={"audio": rate}, intervals={"sounds": table})


def of_files(path, labels):
    """The recording of a WAV file of 16 bits and one channel, and of a table of its sounds."""
    with wave.open(path) as file:
        rate, count = file.getframerate(), file.getnframes()
        if (file.getsampwidth(), file.getnchannels()) != (2, 1):
            raise SystemExit(f"{path}: expected one channel of 16 bits")
    header = Path(path).read_bytes()[:65536]
    samples = memload.open(path, field="audio", dtype="int16", shape=(), offset=header.index(b"data") + 8)
    with Path(labels).open(newline="") as file:
        rows = list(csv.DictReader(file))
    times = {name: [float(row[name]) for row in rows] for name in ("start", "stop")}
    table = {**times, "label": [row["label"] for row in rows]}
    return memload.recording(
        {"audio": samples.select(range(count))}, clocks={"audio": rate}, intervals={"sounds": table}
    )


def spectrogram(batch):
    """Add the logarithm of the power at each frequency and time: (B, 1, frequencies, times)."""
    window = torch.hann_window(FRAME)
    power = torch.stft(batch["audio"], FRAME, FRAME // 2, window=window, return_complex=True).abs().square()
    return {**batch, "power": torch.log(power + 1e-6).unsqueeze(1)}


def main():
    """Train on some sounds and report on others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="a WAV file and a table of its sounds; default: a synthetic one")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a window")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    torch.manual_seed(0)

    recording = of_files(*options.paths) if options.paths else synthetic()
    print(recording)
    sounds = recording.intervals["sounds"]
    classes = np.unique(sounds.columns["label"].astype(str))
    loaders = {}
    for name, part in sounds.split(train=0.8, test=0.2).items():
        windows = recording.slices(options.seconds, within=part, random=4, columns=["label"])
        cast = {"audio": memload.Cast(torch.float32, scale=1 / 32768)}
        loaders[name] = memload.FastLoader(
            windows, batch_size=32, shuffle=name == "train", cast=cast, batch_transform=spectrogram
        )

    layers = [torch.nn.Conv2d(1, 8, (9, 3)), torch.nn.ReLU(), torch.nn.AdaptiveMaxPool2d((16, 6)), torch.nn.Flatten()]
    model = torch.nn.Sequential(*layers, torch.nn.LazyLinear(len(classes)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(options.epochs):
        right = []
        for name, loader in loaders.items():
            for batch in loader:
                wanted, found = torch.from_numpy(np.searchsorted(classes, batch["label"])), model(batch["power"])
                if name == "test":
                    right += (found.argmax(1) == wanted).tolist()
                    continue
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(found, wanted).backward()
                optimizer.step()
        print(f"epoch {epoch}: {np.mean(right):.0%} of the test windows")


if __name__ == "__main__":
    main()

"""The choice of a codec: by a sample, with its figures."""

import numpy as np
import pytest
import torch

import memload
from memload.formats.codecs.choice import choose_codec


@pytest.fixture(scope="module")
def betas():
    """Smooth over voxels, so that the upper bytes hardly change."""
    walk = np.cumsum(np.random.default_rng(0).integers(-3, 4, (200, 4000)), axis=1)
    return torch.from_numpy(walk.astype(np.int16))


def test_data_that_compresses_gets_a_codec_for_a_slow_disk(betas):
    # Of a disk so slow that no processor, however busy, decodes more slowly: then the ratio alone counts.
    choice = choose_codec({"x": memload.from_arrays(x=betas).fields["x"]}, disk_rate="100kB")["x"]
    assert choice.codec is not None
    chosen = next(trial for trial in choice.trials if trial.codec == choice.codec)
    assert chosen.ratio > 1.5
    assert chosen.gain == pytest.approx(chosen.ratio)
    assert "times smaller, decoded at" in str(choice)
    assert "100 kB/s" in str(choice)


def test_noise_and_tiny_rows_are_left_as_they_are():
    noise = torch.randint(0, 256, (100, 5000), dtype=torch.uint8)
    choices = choose_codec(memload.from_arrays(x=noise, label=torch.arange(100)).fields)
    assert choices["x"].codec is None
    assert "not compressed: the best for a sample of" in str(choices["x"])
    assert choices["label"].codec is None
    assert "less than 256 bytes" in str(choices["label"])


def test_a_disk_that_outruns_every_decoder_leaves_rows_as_they_are(betas):
    assert choose_codec(memload.from_arrays(x=betas).fields, disk_rate="1000GB")["x"].codec is None


def test_the_choice_can_be_written(betas, tmp_path):
    ds = memload.from_arrays(x=betas, label=torch.arange(200))
    choices = choose_codec(ds.fields, disk_rate="100kB")
    codecs = {name: choice.codec for name, choice in choices.items() if choice.codec is not None}
    assert list(codecs) == ["x"]
    written = memload.write(tmp_path / "s", ds, codec=codecs)
    assert torch.equal(written.fields["x"].gather(np.arange(200)), betas)

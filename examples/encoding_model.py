"""Predict the betas of voxels from the images that were seen, as with the Natural Scenes Dataset.

    python examples/encoding_model.py                                                    # synthetic images and betas
    python examples/encoding_model.py subj01-betas nsd_stimuli.hdf5 nsd_expdesign.mat    # of subject 1

The betas are a set of shards with the keys session and trial, which `memload write` makes once (docs/nsd.md); images
stay in their file. A convolutional network gives features, and a linear layer the betas. No image is in two parts.
"""

import argparse

import numpy as np
import torch

import memload

TRIALS = 750  # of a session of NSD


def synthetic(images=300, trials=1200, voxels=40):
    """Betas that follow the brightness of one quarter of the image each."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (images, 2, 2, 1), np.uint8)
    shown = rng.integers(0, images, trials)
    drive = coarse.reshape(images, 4)[shown][:, rng.integers(0, 4, voxels)] / 127.5 - 1
    betas = (drive + rng.normal(0, 0.5, drive.shape)).astype(np.float32)
    pictures = coarse.repeat(16, axis=1).repeat(16, axis=2).repeat(3, axis=3)
    return joined(
        memload.from_arrays(betas=betas, trial=np.arange(trials)),
        memload.from_arrays(image=pictures, image_id=np.arange(images)),
        memload.from_arrays(trial=np.arange(trials), image_id=shown),
        on="trial",
    )


def nsd(betas, images, design, *, subject):
    """The betas of a subject, and of each trial the image by the design of the experiment."""
    import scipy.io

    tables = scipy.io.loadmat(design)
    order, count = tables["masterordering"][0].astype(int) - 1, np.arange(tables["masterordering"].size)
    image_id = tables["subjectim"][subject - 1].astype(int)[order] - 1
    table = memload.from_arrays(session=count // TRIALS + 1, trial=count % TRIALS, image_id=image_id)
    stimuli = memload.open(images, key="imgBrick", field="image", row_field="image_id")
    return joined(memload.open(betas), stimuli, table, on=("session", "trial"))


def joined(betas, images, table, on):
    """Each trial with its image, which is looked up by its number and not copied."""
    return memload.join(memload.join(betas, table, on=on), images, on="image_id")


class Encoder(torch.nn.Module):
    """Images (B, H, W, 3) to betas (B, voxels)."""

    def __init__(self, voxels, channels=16):
        super().__init__()
        self.look = torch.nn.Sequential(
            torch.nn.AdaptiveAvgPool2d(32), torch.nn.Conv2d(3, channels, 5, stride=2, padding=2), torch.nn.ReLU()
        )
        self.read = torch.nn.Sequential(torch.nn.AvgPool2d(4), torch.nn.Flatten(), torch.nn.LazyLinear(voxels))

    def forward(self, images):
        """Return the betas of all voxels."""
        return self.read(self.look(images.permute(0, 3, 1, 2)))


def main():
    """Train on the trials of some images and report on those of others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="betas, images and design; default: synthetic ones")
    parser.add_argument("--subject", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)

    data = nsd(*options.paths, subject=options.subject) if options.paths else synthetic()
    print(data)
    image_ids = data.fields["image_id"].gather(np.arange(len(data))).numpy()
    held_out = np.isin(image_ids, np.unique(image_ids)[::5])
    cast = {"image": memload.Cast(torch.float32, norm_removed=True), "betas": memload.Cast(torch.float32)}
    loader = memload.FastLoader(data.select(~held_out), batch_size=32, shuffle=True, cast=cast)
    valid_loader = memload.FastLoader(data.select(held_out), batch_size=64, cast=cast)

    model = Encoder(data.fields["betas"].shape[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(options.epochs):
        for batch in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch["image"]), batch["betas"]).backward()
            optimizer.step()
        with torch.no_grad():
            losses = [float((model(one["image"]) - one["betas"]).square().mean()) for one in valid_loader]
        print(f"epoch {epoch}: validation loss {np.mean(losses):.4f}")


if __name__ == "__main__":
    main()

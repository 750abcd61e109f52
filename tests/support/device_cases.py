"""What tests of batches on a device load."""

import torch
from torch.utils.data import Dataset

import memload

ROWS, BATCH = 120, 8
CAST = {"stim": memload.Cast(torch.float32, norm_removed=True)}


def dataset(rows=ROWS):
    made = torch.Generator().manual_seed(1)
    stim = torch.randint(0, 256, (rows, 3, 24, 24), dtype=torch.uint8, generator=made)
    return memload.from_arrays(stim=stim, y=torch.randn(rows, 5, generator=made), label=torch.arange(rows))


def loader(ds=None, **options):
    options = {"batch_size": BATCH, "shuffle": True, "generator": torch.Generator().manual_seed(3)} | options
    return memload.FastLoader(dataset() if ds is None else ds, **options)


class Nested(Dataset):
    """Samples of many kinds, which only the stock machinery reads."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        image = torch.full((4, 4), index, dtype=torch.uint8)
        return {"stim": image, "deep": (torch.tensor([index * 0.5]), [torch.tensor(index), f"text {index}"])}

"""PyTorch Geometric's DataLoader, which collates by a function of its own, given a memload dataset."""

import torch
from common import BATCH, Noted, Plain, dataset, report
from torch_geometric.loader import DataLoader

import memload


def seen(wrapped, layout, **arguments):
    torch.manual_seed(2)
    ds = dataset()
    given = {"dict": ds, "tuple": ds.as_tuple(), "view": memload.Float32View(ds, norm_removed=True)}[layout]
    noted = Noted(ds)
    for _ in range(2):
        noted.begin()
        for batch in DataLoader(wrapped(given), BATCH, shuffle=True, **arguments):
            if layout == "view":
                batch["stim"] = (batch["stim"] * 255 + 127).round()
            noted.see(batch if isinstance(batch, dict) else dict(zip(ds.fields, batch, strict=True)))
    return {"epochs": noted.epochs, "native_rows": given.stats().rows, "fresh": given.stats().fresh_batches}


def compared(layout, **arguments):
    return {"ours": seen(lambda ds: ds, layout, **arguments), "stock": seen(Plain, layout, **arguments)}


report(
    {
        "dict": lambda: compared("dict"),
        "tuple": lambda: compared("tuple"),
        "view": lambda: compared("view"),
    }
)

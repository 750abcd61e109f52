"""Under torchrun, the program of the page, and a plain loop with DistributedSampler and DistributedDataParallel."""

import page
import torch
from common import (
    BATCH,
    ROWS,
    Net,
    Noted,
    common_orders,
    dataset,
    drawing_sampler,
    fetcher_loader,
    report,
    stock_loader,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

import memload


def trained(make_loader, *, drop_last=False, shuffle=True, budget=None, drawn=None):
    torch.manual_seed(7 if drawn is None else 7 + torch.distributed.get_rank())
    ds = dataset()
    if drawn is not None:
        sampler = drawing_sampler(drawn)
        loader = make_loader(ds, batch_size=BATCH, sampler=sampler)
    elif budget is None:
        sampler = DistributedSampler(ds, shuffle=shuffle, seed=3, drop_last=drop_last)
        loader = make_loader(ds, batch_size=BATCH, sampler=sampler)
    else:
        sampler = memload.BudgetBatchSampler([1 + row % 5 for row in range(len(ds))], budget, seed=3)
        loader = make_loader(ds, batch_sampler=sampler)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noted = Noted(ds)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        noted.begin()
        for batch in loader:
            noted.see(batch)
            optimizer.zero_grad()
            model(batch["stim"]).backward()
            optimizer.step()
    fast = isinstance(loader, memload.FastLoader)
    stats = loader.stats() if fast else ds.stats()
    weight = model.module.linear.weight.flatten().tolist()
    return {"epochs": noted.epochs, "native_rows": stats.rows, "fresh": stats.fresh_batches, "weight": weight}


def changed_weights():
    """The loop of docs/many-datasets.md: all ranks set the same weights at the same step."""
    ds, sampler = dataset(), memload.WeightedSampler(torch.ones(ROWS), num_samples=400)
    rows = []
    for batch in memload.FastLoader(ds, BATCH, sampler=sampler):
        mine = [batch["id"], batch["stim"].double().mean(1)]
        every = [[torch.empty_like(part) for _ in range(torch.distributed.get_world_size())] for part in mine]
        for gathered, part in zip(every, mine, strict=True):
            torch.distributed.all_gather(gathered, part)
        ids, losses = map(torch.cat, every)
        sampler.weights[ids] = losses
        rows += batch["id"].tolist()
    return {"rows": rows, "weights": sampler.weights.tolist()}


def compared(make_loader, **arguments):
    return {"ours": trained(make_loader, **arguments), "stock": trained(stock_loader, **arguments)}


report(
    {
        "the page": lambda: page.run("torchrun"),  # it begins the group of processes that the others use
        "FastLoader": lambda: compared(memload.FastLoader),
        "FastLoader, drop_last": lambda: compared(memload.FastLoader, drop_last=True),
        "FastLoader, in order": lambda: compared(memload.FastLoader, shuffle=False),
        "FastLoader, by budget": lambda: compared(memload.FastLoader, budget=16),
        "the batch fetcher": lambda: compared(fetcher_loader),
        "weighted": lambda: {**compared(memload.FastLoader, drawn="weighted"), "common": common_orders("weighted", 3)},
        "mixed": lambda: {**compared(memload.FastLoader, drawn="mixed"), "common": common_orders("mixed", 3)},
        "changed weights": changed_weights,
    }
)

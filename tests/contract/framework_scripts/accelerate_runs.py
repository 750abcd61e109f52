"""accelerate: its own preparation, which rebuilds a stock DataLoader, and memload.prepare."""

import tempfile

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration, set_seed
from common import BATCH, ROWS, Net, Noted, dataset, drawing_sampler, report, stock_loader

import memload


def accelerator(**configuration):
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**configuration))


def by_itself(helper, ds, **arguments):
    return helper.prepare(memload.FastLoader(ds, **arguments))


def by_memload(helper, ds, **arguments):
    return memload.prepare(helper, memload.FastLoader(ds, **arguments))


def with_casts(prepare):
    """What only FastLoader has must survive that accelerate builds another loader, even twice."""
    set_seed(5)
    ds = dataset()
    helper = accelerator()
    cast = {"stim": memload.Cast(torch.float32, norm_removed=True)}
    loader = prepare(helper, ds, batch_size=BATCH, cast=cast)
    skipped = skip_first_batches(loader, 2)
    skipped = memload.prepare(helper, skipped) if prepare is by_memload else skipped
    seen = [[batch["id"].tolist() for batch in one] for one in (loader, skipped)]
    values = [
        torch.equal(batch["stim"], cast["stim"].apply(ds.fields["stim"].gather(batch["id"].numpy())))
        for one in (loader, skipped)
        for batch in one
    ]
    native = ds.stats().rows + sum(
        one.base_dataloader.stats().rows for one in (loader, skipped) if prepare is by_memload
    )
    return {
        "seen": seen,
        "values": all(values),
        "native_rows": native,
        "rows": 2 * sum(len(b) for s in seen for b in s),
    }


def resumed(**configuration):
    """accelerate's checkpoints in the middle of an epoch, which it takes with `use_stateful_dataloader`."""

    def begun():
        helper = accelerator(use_stateful_dataloader=True, **configuration)
        return helper, by_memload(helper, dataset(), batch_size=BATCH, shuffle=True)

    set_seed(5)
    helper, loader = begun()
    whole = []
    with tempfile.TemporaryDirectory() as folder:
        folder = helper.gather_for_metrics([folder], use_gather_object=True)[0]
        for batch in loader:
            whole.append(batch["id"].tolist())
            if len(whole) == 3:
                for rank in range(helper.num_processes):  # the last one last: all of them name the same file
                    helper.wait_for_everyone()
                    if rank == helper.process_index:
                        helper.save_state(folder)
        drawn = torch.rand(1).item()
        helper, loader = begun()
        helper.wait_for_everyone()
        helper.load_state(folder)
        rest = [batch["id"].tolist() for batch in loader]
        draws = [drawn, torch.rand(1).item()]
        helper.wait_for_everyone()
    return {"whole": whole, "rest": rest, "next": [batch["id"].tolist() for batch in loader], "draws": draws}


def stock(helper, ds, **arguments):
    return helper.prepare(stock_loader(ds, **arguments))


def trained(
    prepared_of, *, shuffle=True, epochs=2, batch_size=BATCH, drop_last=False, skip=0, alone=False, **configuration
):
    set_seed(5)
    ds = dataset()
    helper = accelerator(**configuration)
    loader = prepared_of(helper, ds, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
    length, prepared = len(loader), loader
    model = helper.prepare(Net())
    optimizer = helper.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    noted, metrics, ends = Noted(ds), [], []
    for epoch in range(epochs):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        if skip and epoch == 1:
            loader = skip_first_batches(prepared, skip)
            loader = memload.prepare(helper, loader) if prepared_of is by_memload else loader
        noted.begin()
        metrics.append([])
        for batch in loader:
            noted.see(batch)
            ends.append([helper.gradient_state.end_of_dataloader, helper.gradient_state.remainder])
            if alone:
                continue  # ranks have batches of different numbers and sizes: nothing that they would do together
            optimizer.zero_grad()
            helper.backward(model(batch["stim"]))
            optimizer.step()
            metrics[-1] += helper.gather_for_metrics(batch["id"]).tolist()
    inner = prepared.base_dataloader
    fast = isinstance(inner, memload.FastLoader)
    stats = inner.stats() if fast else ds.stats()
    if fast and loader is not prepared:
        stats += loader.base_dataloader.stats()
    return {
        "epochs": noted.epochs,
        "metrics": metrics,
        "ends": ends,
        "length": length,
        "total": [getattr(prepared, name, None) for name in ("total_batch_size", "total_dataset_length")],
        "native_rows": stats.rows,
        "fresh": stats.fresh_batches,
        "engine": getattr(inner, "engine", "stock"),
    }


def drawn(prepare, kind, *, alone=False, **configuration):
    """A sampler of memload's: accelerate deals its batches out, so it has to draw for all ranks."""
    set_seed(5)
    ds, helper = dataset(), accelerator(**configuration)
    how = {"num_replicas": 1, "rank": 0} if alone else {}
    loader = prepare(helper, ds, batch_size=BATCH, sampler=drawing_sampler(kind, **how))
    epochs = []
    for _ in range(2):
        epochs.append([])
        for batch in loader:
            epochs[-1] += helper.gather_for_metrics(batch["id"]).tolist()
    return {"metrics": epochs}


def by_budget():
    """Batches of each rank of a BudgetBatchSampler, which accelerate deals out."""
    set_seed(5)
    ds = dataset()
    sampler = memload.BudgetBatchSampler([1 + row % 5 for row in range(ROWS)], 16)
    loader = memload.prepare(accelerator(), memload.FastLoader(ds, batch_sampler=sampler))
    return {"batches": [batch["id"].tolist() for batch in loader]}


def twice():
    """A sampler that was told to share its rows out over two ranks."""
    sampler = drawing_sampler("weighted", num_replicas=2, rank=0)
    try:
        by_memload(accelerator(), dataset(), batch_size=BATCH, sampler=sampler)
    except ValueError as error:
        return str(error)
    return ""


def compared(ours, **arguments):
    return {"ours": trained(ours, **arguments), "stock": trained(stock, **arguments)}


def checkpointed(prepared_of):
    """A prepared loader takes part in save_state and load_state."""
    set_seed(5)
    helper = accelerator()
    ds = dataset()
    loader = prepared_of(helper, ds, batch_size=BATCH, shuffle=True)
    model = helper.prepare(Net())
    with tempfile.TemporaryDirectory() as folder:
        for batch in loader:
            model(batch["stim"])
        helper.wait_for_everyone()
        folder = helper.gather_for_metrics([folder], use_gather_object=True)[0]
        helper.save_state(folder)
        helper.wait_for_everyone()
        first = [batch["id"].tolist() for batch in loader]
        helper.wait_for_everyone()
        helper.load_state(folder)
        helper.wait_for_everyone()
    return {"first": first, "again": [batch["id"].tolist() for batch in loader]}


scenarios = {}
for name, ours in (("accelerator.prepare", by_itself), ("memload.prepare", by_memload)):
    for what, arguments in {
        "": {},
        ", in order": {"shuffle": False},
        ", drop_last": {"drop_last": True},
        ", split_batches": {"split_batches": True},
        ", uneven batches": {"even_batches": False, "alone": True},
        ", dispatch_batches": {"dispatch_batches": True},
        ", seedable sampler": {"use_seedable_sampler": True},
        ", skip_first_batches": {"skip": 2},
    }.items():
        scenarios[name + what] = lambda ours=ours, arguments=arguments: compared(ours, **arguments)

scenarios["accelerator.prepare, cast"] = lambda: with_casts(by_itself)
scenarios["memload.prepare, cast"] = lambda: with_casts(by_memload)
scenarios["memload.prepare, save_state"] = lambda: {"ours": checkpointed(by_memload), "stock": checkpointed(stock)}
scenarios["memload.prepare, stateful"] = resumed
for what, arguments in {"dispatch_batches": {}, "split_batches": {"split_batches": True}}.items():
    scenarios[f"memload.prepare, stateful, {what}"] = lambda arguments=arguments: resumed(
        dispatch_batches=True, **arguments
    )
for what, arguments in {
    "": {},
    ", seedable sampler": {"use_seedable_sampler": True},
    ", dispatch_batches": {"dispatch_batches": True},
    ", split_batches": {"split_batches": True},
}.items():
    for kind in ("weighted", "mixed"):
        scenarios[f"memload.prepare, {kind}{what}"] = lambda kind=kind, arguments=arguments: drawn(
            by_memload, kind, **arguments
        )
    scenarios["accelerator.prepare, alone" + what] = lambda arguments=arguments: drawn(
        by_itself, "weighted", alone=True, **arguments
    )
scenarios["accelerator.prepare, weighted"] = lambda: drawn(by_itself, "weighted")
scenarios["memload.prepare, shared out already"] = twice
scenarios["memload.prepare, a budget"] = by_budget
report(scenarios)

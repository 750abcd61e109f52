"""What `torch.set_default_device` says is no business of data that lies on the CPU.

The default device here is "meta", which every machine has: what is made there by mistake has no memory, so that it
cannot go unnoticed. Torch itself draws a pass's seed on the default device, so passes begin outside.
"""

import contextlib

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    StackDataset,
    Subset,
    TensorDataset,
)
from torch_geometric.data import Data

import memload

PIXELS = (torch.arange(20 * 3 * 4 * 4) % 251).to(torch.uint8).view(20, 3, 4, 4)
NUMBERS = torch.arange(40.0).view(20, 2)
RAGGED = [torch.arange(k % 4 + 1) for k in range(20)]
NORMED = memload.Cast(torch.float32, norm_removed=True)
MEANS = memload.Cast(torch.float16, scale=255.0, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0), channels=-3)


def elsewhere():
    return torch.device("meta")


def rows():
    return memload.from_arrays(stim=PIXELS, robs=NUMBERS)


def ragged(form, **pad):
    return memload.from_arrays(tokens=memload.ragged(RAGGED), robs=NUMBERS).with_ragged(form, **pad)


def graphs():
    x, edges = NUMBERS[:3], torch.from_numpy(np.array([[0, 1], [1, 2]]))
    return memload.from_graphs([Data(x=x, edge_index=edges, n=k) for k in range(8)])


def of_loader(dataset, device, kind=memload.FastLoader, **arguments):
    """The batches of a loader that is made, and iterated, with another default device."""
    with device():
        loader = kind(dataset, 6, **arguments)
    batches = iter(loader)
    with device():
        return list(batches)


def written(folder, device):
    with device():
        memload.write(folder / "set", rows(), progress=False)
        opened = memload.open(folder / "set")
        return [opened[3], opened.with_tier("ram")[3]]


def drawn(kind, *arguments):
    return list(kind(*arguments, torch.Generator().manual_seed(3)))


def in_context(make):
    def result(device, _):
        with device():
            return make()

    return result


CASES = {
    "a row": in_context(lambda: rows()[3]),
    "rows": in_context(lambda: list(rows().__getitems__([3, 1]))),
    "a view": in_context(lambda: memload.Float32View(rows(), norm_removed=True)[3]),
    "a view of arrays": in_context(lambda: memload.Float32View([{"stim": PIXELS[0].numpy()}], norm_removed=True)[0]),
    "rows of lists": in_context(lambda: memload.from_arrays(tokens=memload.ragged([[1, 2], [3]]))[0]),
    "a padded row": in_context(lambda: ragged("padded", pad_value=-1)[3]),
    "a cast": in_context(lambda: (memload.cast_stim(PIXELS, norm_removed=True), MEANS.apply(PIXELS))),
    "a split": in_context(lambda: [part.fields["robs"].gather(torch.arange(3, device="cpu").numpy())
                                   for part in rows().split(0.5, seed=1)]),
    "by budget": in_context(lambda: list(memload.BudgetBatchSampler([1, 2, 3, 4] * 5, 10, shuffle=True, seed=1))),
    "weighted": in_context(lambda: [drawn(memload.WeightedSampler, [1.0, 2.0], 2, how) for how in (True, False)]),
    "mixed": in_context(lambda: [
        drawn(memload.MixingSampler, memload.concat({"a": rows(), "b": rows()}), [1, 2], 9, r) for r in (True, False)
    ]),
    "shards": lambda device, folder: written(folder, device),
    "dicts": lambda device, _: of_loader(rows(), device),
    "casts": lambda device, _: of_loader(rows(), device, cast={"stim": NORMED}),
    "casts by channel": lambda device, _: of_loader(rows(), device, cast={"stim": MEANS}),
    "tensors": lambda device, _: of_loader(TensorDataset(PIXELS, NUMBERS), device),
    "nestings": lambda device, _: of_loader(
        StackDataset(Subset(TensorDataset(NUMBERS), range(10)), ConcatDataset([TensorDataset(PIXELS[:5])] * 2)), device
    ),
    "lags": lambda device, _: of_loader(rows().with_lags(robs=range(3)), device),
    "padded": lambda device, _: of_loader(ragged("padded", pad_value=-1), device),
    "offsets": lambda device, _: of_loader(ragged("offsets"), device),
    "jagged": lambda device, _: [batch["tokens"].unbind() for batch in of_loader(ragged("jagged"), device)],
    "groups": lambda device, _: of_loader(
        memload.concat({"a": rows(), "b": memload.from_arrays(x=NUMBERS)}), device, collate_fn=memload.group_collate
    ),
    "graphs": lambda device, _: [
        batch.to_dict() for batch in of_loader(graphs(), device, collate_fn=memload.graph_collate)
    ],
    "the batch fetcher": lambda device, _: of_loader(rows(), device, DataLoader),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_data_on_the_cpu_stays_there_whatever_the_default_device(case, tmp_path):
    (tmp_path / "there").mkdir()
    expected = CASES[case](contextlib.nullcontext, tmp_path)
    assert plain(CASES[case](elsewhere, tmp_path / "there")) == plain(expected)


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return plain(vars(value)) if hasattr(value, "__dict__") else value


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_functions_of_samples_and_batches_find_the_default_device_of_the_loop(engine):
    def device(_):
        return torch.empty(1).device.type

    base = rows()
    of_samples = memload.FastLoader(base.map(device, in_processes=engine == "torch"), 2)
    of_batches = memload.FastLoader(base if engine == "native" else [0, 1], 2, batch_transform=device)
    for loader, expected in (of_samples, ["meta", "meta"]), (of_batches, "meta"):
        assert loader.engine == engine
        batches = iter(loader)
        with elsewhere():
            assert next(batches) == expected

"""Loaders of every kind over the same rows, and what their passes give, as bytes."""

import torch

import memload

ROWS = 96


def plain(rng, folder):
    return memload.FastLoader(dataset(), 4, shuffle=True, generator=generator(rng), threads=rng.randint(1, 3))


def cast(rng, folder):
    return memload.FastLoader(dataset(), 4, cast={"x": memload.Cast(torch.float32, norm_removed=True)})


def mapped(rng, folder):
    return memload.FastLoader(dataset().map(doubled), 4, shuffle=True, generator=generator(rng), threads=2)


def transformed(rng, folder):
    return memload.FastLoader(dataset(), 4, batch_transform=of_batch, depth=rng.randint(1, 3))


def kept(rng, folder):
    return memload.FastLoader(dataset(), 4, num_workers=2, persistent_workers=rng.random() < 0.5)


def ragged(rng, folder):
    rows = [torch.arange(k % 7) for k in range(ROWS)]
    ds = memload.from_arrays(x=memload.ragged(rows), id=torch.arange(ROWS))
    return memload.FastLoader(ds, 4, ragged=rng.choice(["offsets", "padded"]))


def windows(rng, folder):
    return memload.FastLoader(dataset().with_lags(x=range(5)), 4, shuffle=True, generator=generator(rng))


def groups(rng, folder):
    parts = {"a": dataset(), "b": memload.from_arrays(y=torch.arange(40.0))}
    return memload.FastLoader(memload.concat(parts), 8, collate_fn=memload.group_collate)


def files(rng, folder):
    path = folder / "rows"
    if not path.exists():
        memload.write(path, {"x": dataset().fields["x"].gather(range(ROWS))}, codec="zstd", progress=False)
    return memload.FastLoader(memload.open(path), 4, shuffle=True, generator=generator(rng))


def in_order(rng, folder):
    files(rng, folder)
    return memload.FastLoader(memload.open(folder / "rows"), 4)


def cached(rng, folder):
    files(rng, folder)
    return memload.FastLoader(memload.open(folder / "rows", tier="hybrid", cache_bytes="2MB"), 4)


def stock(rng, folder):
    rows = [torch.full((3,), float(k)) for k in range(ROWS)]
    return memload.FastLoader(rows, 4, shuffle=True, generator=generator(rng))


KINDS = [plain, cast, mapped, transformed, kept, ragged, windows, groups, files, in_order, cached, stock]


def dataset():
    x = (torch.arange(ROWS * 300) * 7 % 251).to(torch.uint8).view(ROWS, 300)
    return memload.from_arrays(x=x, id=torch.arange(ROWS))


def generator(rng):
    return torch.Generator().manual_seed(rng.randrange(2**32))


def doubled(sample):
    return {"x": sample["x"].float() * 2, "id": sample["id"]}


def of_batch(batch):
    return {"x": batch["x"].float().mean(dim=1), "id": batch["id"]}


def plainly(value):
    """A batch as something that compares and holds no memory of it."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return {name: plainly(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plainly(one) for one in value]
    return repr(value)

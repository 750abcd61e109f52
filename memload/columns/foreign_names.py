"""Names of other libraries for methods of a dataset, so that an AttributeError can name memload's own."""

from __future__ import annotations

from collections.abc import Collection

_FIELDS = "the names of the fields are list(ds.fields)"
_ROWS = "rows are chosen by ds.select(rows), with row numbers or one bool for each row"
_WRITE = "memload.write(path, ds) stores a dataset"
_MAP = "rows are tensors already; ds.map(fn), or batch_transform= of the loader, changes them"
_DEVICE = 'memload.to_device(ds, "cuda") keeps rows on a GPU, and device= of the loader moves batches'
_INSTEAD = {
    "keys": _FIELDS,
    "columns": _FIELDS,
    "column_names": _FIELDS,
    "features": "ds.fields has dtype and shape of each field",
    "dtypes": "ds.fields has dtype and shape of each field",
    "shape": "len(ds) is the number of rows, and ds.fields[name].shape the shape of one",
    "num_rows": "len(ds) is the number of rows",
    "filter": _ROWS,
    "loc": _ROWS,
    "iloc": _ROWS,
    "take": "the first n rows are ds.select(range(n))",
    "skip": "all but the first n rows are ds.select(range(n, len(ds)))",
    "head": "the first n rows are ds.select(range(n))",
    "shuffle": "memload.FastLoader(ds, shuffle=True) shuffles, or ds.select(torch.randperm(len(ds)))",
    "train_test_split": "ds.split(0.8, seed=0) gives two shuffled parts",
    "random_split": "ds.split(0.8, seed=0) gives two shuffled parts",
    "batch": "memload.FastLoader(ds, batch_size=...) makes batches",
    "to": _DEVICE,
    "cuda": _DEVICE,
    "pin_memory": "FastLoader(ds, pin_memory=True) gives pinned batches",
    "with_format": _MAP,
    "set_format": _MAP,
    "with_transform": _MAP,
    "set_transform": _MAP,
    "transform": _MAP,
    "save": _WRITE,
    "save_to_disk": _WRITE,
    "memmap": _WRITE,
    "rename_column": 'ds.rename({"old": "new"}) renames fields',
    "rename_columns": 'ds.rename({"old": "new"}) renames fields',
    "cast": "cast= of memload.FastLoader or memload.write converts fields",
    "cast_column": "cast= of memload.FastLoader or memload.write converts fields",
    "cache": "ds.with_tier(...) keeps rows in memory, and ds.map(fn).cache(...) results",
}


def no_attribute(owner: object, name: str, fields: Collection[str]) -> AttributeError | None:
    """Return the error for an attribute that other libraries have, with memload's equivalent; None for other names.

    Args:
        owner: the object without such an attribute.
        name: the name of the attribute.
        fields: the names of the owner's fields.
    """
    instead = f"ds.only({name!r}) is the dataset of that field, and ds[i][{name!r}] is it in row i"
    if name not in fields:
        instead = _INSTEAD.get(name, "")
    if not instead:
        return None
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}: {instead}", name=name, obj=owner)

"""Identify the rows of a dataset by a text that stays the same in later processes."""

from __future__ import annotations

import numpy as np
import xxhash

from memload.columns.ragged_fields import RaggedField
from memload.dataset.dataset import Dataset
from memload.formats.shards.ragged_input import RaggedRows, blocks_of
from memload.progress import byte_bar
from memload.writing.same_source import identity_of

_BLOCK_BYTES = 2**24


def content_of(dataset: Dataset, progress: bool | None = None) -> str:
    """Return a short text that is equal for datasets with the same rows in the same order.

    Rows in files are identified by the paths, sizes and modification times of the files and by the rows' places in
    them. If more than a few bytes are in memory, every row is read and hashed.

    Args:
        dataset: the rows.
        progress: whether to show a bar while rows are read; None shows it on a terminal.
    """
    known = identity_of(dataset)
    rows = known if known is not None else _hash_of_rows(dataset, progress)
    return f"{rows} {dataset.layout} {','.join(dataset.names)}{_forms(dataset)}"


def _forms(dataset: Dataset) -> str:
    """Return the forms of ragged fields that differ from the default, because functions see the form; "" if none do."""
    ragged = {name: field for name, field in dataset.fields.items() if isinstance(field, RaggedField)}
    forms = ((name, field) for name, field in ragged.items() if field.form != "offsets")
    return "".join(f" {name} {field.form} {field.pad_value!r}" for name, field in forms)


def _hash_of_rows(dataset: Dataset, progress: bool | None) -> str:
    hashers: dict[str, xxhash.xxh3_128] = {}
    with byte_bar("hash the rows", dataset.nbytes, progress) as bar:
        for field in dataset.fields.values():
            field.check_in_place()
        for block in blocks_of(dataset.fields, _BLOCK_BYTES):
            for name, rows in block.items():
                parts = [*rows.planes, rows.lengths] if isinstance(rows, RaggedRows) else [rows.data]
                for number, part in enumerate(parts):
                    hashers.setdefault(f"{name}\0{number}", xxhash.xxh3_128()).update(np.ascontiguousarray(part).data)
                bar.update(rows.nbytes)
    forms = [f"{name}\0{field.kind}\0{field.shape}\0{field.rows}" for name, field in dataset.fields.items()]
    digests = [f"{part}\0{hasher.hexdigest()}" for part, hasher in hashers.items()]
    return xxhash.xxh3_128_hexdigest("\n".join([*forms, *digests]).encode())

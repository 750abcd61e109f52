"""codec="auto": the codec of each field, by a sample of the rows as they will be written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from memload.codecs.by_field import Codecs, check_known
from memload.codecs.choice import choose_codec
from memload.codecs.codec import Codec
from memload.progress import note
from memload.shards.rows import Rows
from memload.sources.arrays import borrow_array

AUTO = "auto"
_SAMPLE_BYTES = 2**24
_RUNS = 16  # places from which it is taken


def is_sampled(codec: Codecs) -> bool:
    """Whether a sample decides the codec of all fields, or of some."""
    return AUTO in codec.values() if isinstance(codec, Mapping) else codec == AUTO


def sampled_codecs(
    codec: Codecs,
    sample: Callable[[NDArray[np.int64]], Mapping[str, Rows]],
    rows: int,
    row_bytes: int,
    progress: bool | None,
    items: Collection[str] = (),
) -> dict[str, Codec | str]:
    """Return the codec of each field that is worth one, or is given one, and say on standard error what was found.

    Args:
        codec: "auto", or a dict in which it stands for some fields.
        sample: returns rows by their numbers, as they will be written.
        rows: how many there are.
        row_bytes: about how many bytes one has.
        progress: False says nothing.
        items: fields of whose rows the sample has the items, in blocks: how many make a block is not for it to say.
    """
    length = max(1, min(rows // _RUNS, _SAMPLE_BYTES // _RUNS // max(1, row_bytes)))
    starts = np.linspace(0, rows - length, min(_RUNS, rows)).astype(np.int64)
    numbers = np.unique(starts[:, None] + np.arange(length))
    fields = {name: borrow_array(name, _tensor(some)) for name, some in sample(numbers).items()}
    check_known(codec, fields)
    asked = codec if isinstance(codec, Mapping) else dict.fromkeys(fields, AUTO)
    given = {name: one for name, one in asked.items() if one != AUTO}
    choices = choose_codec({name: field for name, field in fields.items() if asked.get(name) == AUTO})
    choices |= {name: choice.without_rows() for name, choice in choices.items() if name in items}
    for name, choice in choices.items():
        note(f"{name}: {choice}", progress)
    return {**given, **{name: choice.codec for name, choice in choices.items() if choice.codec is not None}}


def _tensor(rows: Rows) -> torch.Tensor:
    flat = torch.from_numpy(rows.data.copy().reshape(-1)).view(rows.dtype)
    return flat.reshape(len(rows), *rows.shape)

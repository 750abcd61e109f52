"""`codec="auto"`: a sample of the rows decides how fields are compressed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from memload.formats.arrays import borrow_array
from memload.formats.codecs.by_field import Codecs, check_known
from memload.formats.codecs.choice import choose_codec
from memload.formats.codecs.codec import Codec
from memload.formats.shards.rows import Rows
from memload.progress import note
from memload.writing.conversion import Conversion
from memload.writing.copying import converted_row_bytes
from memload.writing.ragged_row_source import RaggedRowSource
from memload.writing.row_sources import RowSource

AUTO = "auto"
_SAMPLE_BYTES = 2**24
_RUNS = 16  # places in the source from which the sample is taken


def codecs_by_sample(
    codec: Codecs, row_source: RowSource | RaggedRowSource, chosen: Mapping[str, Conversion], progress: bool | None
) -> dict[str, Codec | str]:
    """Return the codec of each field that gets one, by a sample of the rows, which are converted first."""
    ragged = row_source.ragged if isinstance(row_source, RaggedRowSource) else ()
    row_bytes = (
        row_source.nbytes // row_source.rows
        if isinstance(row_source, RaggedRowSource)
        else converted_row_bytes(row_source, chosen)
    )
    sample = partial(row_source.sample, chosen)
    return sampled_codecs(codec, sample, row_source.rows, row_bytes, progress, ragged)


def is_sampled(codec: Codecs) -> bool:
    """Return whether a sample decides the codec of all fields, or of some."""
    return AUTO in codec.values() if isinstance(codec, Mapping) else codec == AUTO


def sampled_codecs(
    codec: Codecs,
    sample: Callable[[NDArray[np.int64]], Mapping[str, Rows]],
    rows: int,
    row_bytes: int,
    progress: bool | None,
    items: Collection[str] = (),
) -> dict[str, Codec | str]:
    """Return the codec of each field that gets one, and report the choices on standard error.

    Args:
        codec: "auto", or a dict in which some fields have "auto".
        sample: returns rows by their numbers, as they will be written.
        rows: the number of rows.
        row_bytes: the approximate bytes of a row.
        progress: False reports nothing.
        items: ragged fields, whose sample has items in place of rows; it does not decide the rows of a block.
    """
    length = max(1, min(rows // _RUNS, _SAMPLE_BYTES // _RUNS // max(1, row_bytes)))
    starts = np.linspace(0, rows - length, min(_RUNS, rows)).astype(np.int64)
    numbers = np.unique(starts[:, None] + np.arange(length))
    fields = {name: borrow_array(name, _tensor(values)) for name, values in sample(numbers).items()}
    check_known(codec, fields)
    asked = codec if isinstance(codec, Mapping) else dict.fromkeys(fields, AUTO)
    given = {name: choice for name, choice in asked.items() if choice != AUTO}
    choices = choose_codec({name: field for name, field in fields.items() if asked.get(name) == AUTO})
    choices |= {name: choice.without_rows() for name, choice in choices.items() if name in items}
    for name, choice in choices.items():
        note(f"{name}: {choice}", progress)
    return {**given, **{name: choice.codec for name, choice in choices.items() if choice.codec is not None}}


def _tensor(rows: Rows) -> torch.Tensor:
    flat = torch.from_numpy(rows.data.copy().reshape(-1)).view(rows.dtype)
    return flat.reshape(len(rows), *rows.shape)

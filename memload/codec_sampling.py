"""codec="auto": the codec of each field, by a sample of the rows as they will be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from memload.codec import Codec
from memload.codec_choice import choose_codec
from memload.progress import note
from memload.rows import Rows
from memload.sources.arrays import borrow_array

AUTO = "auto"
_SAMPLE_BYTES = 2**24
_RUNS = 16  # places from which it is taken


def sampled_codecs(
    sample: Callable[[NDArray[np.int64]], Mapping[str, Rows]], rows: int, row_bytes: int, progress: bool | None
) -> dict[str, Codec]:
    """Return the codec of each field that is worth one, and say on standard error what was found.

    Args:
        sample: returns rows by their numbers, as they will be written.
        rows: how many there are.
        row_bytes: about how many bytes one has.
        progress: False says nothing.
    """
    length = max(1, min(rows // _RUNS, _SAMPLE_BYTES // _RUNS // max(1, row_bytes)))
    starts = np.linspace(0, rows - length, min(_RUNS, rows)).astype(np.int64)
    numbers = np.unique(starts[:, None] + np.arange(length))
    fields = {name: borrow_array(name, _tensor(some)) for name, some in sample(numbers).items()}
    choices = choose_codec(fields)
    for name, choice in choices.items():
        note(f"{name}: {choice}", progress)
    return {name: choice.codec for name, choice in choices.items() if choice.codec is not None}


def _tensor(rows: Rows) -> torch.Tensor:
    flat = torch.from_numpy(rows.data.copy().reshape(-1)).view(rows.dtype)
    return flat.reshape(len(rows), *rows.shape)

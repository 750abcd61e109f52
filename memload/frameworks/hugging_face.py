"""Datasets of Hugging Face: as memload datasets, and as what the native engine reads of them."""

from __future__ import annotations

from typing import Any

from memload.batches.layout import flat
from memload.dataset import Dataset
from memload.engine.source import Conversion, Key, NotNative, Source
from memload.engine.watches import PartsWatch
from memload.errors import FormatError
from memload.fields import Field
from memload.sources.hugging_face import fields_of, is_hugging_face, parts_of, torch_format
from memload.sources.members import Key as Picked


def from_hf(dataset: Any, key: Picked = None) -> Dataset:
    """Return the columns of a Hugging Face dataset as a memload dataset that reads their Arrow buffers in place.

    Values keep the dtypes that are stored: pixels stay uint8, where `with_format("torch")` makes int64 of them.

    Args:
        dataset: a `datasets.Dataset`, from memory or files; what `select`, `shuffle` and `train_test_split` chose stays
            chosen, and its format does not count.
        key: the columns wanted, one or several; all if not given.

    Raises:
        FormatError: rows of a column are not runs of bytes, such as texts, pictures, bools and lists of different
            lengths; the message names all such columns.
        KeyError: there is no such column.
        TypeError: it is no `datasets.Dataset`.

    Example:
        >>> import datasets, memload
        >>> hf = datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]], "text": ["a", "b"]})
        >>> memload.from_hf(hf.select([1, 0]), key="x")[0]["x"]
        tensor([3., 4.], dtype=torch.float64)
    """
    if not is_hugging_face(dataset):
        raise TypeError(
            f"expected a datasets.Dataset, such as one split of a DatasetDict; got {type(dataset).__name__}"
        )
    return Dataset(fields_of(dataset, key))


def source_of(dataset: Any) -> Source:
    """Return how the engine reads a `datasets.Dataset` whose format is torch.

    Raises:
        NotNative: its format is another one, or a column is none that can be read in place.
    """
    if "__getitems__" in vars(dataset):
        raise NotNative("The __getitems__ of the datasets.Dataset was replaced: leave it as it is.")
    try:
        wanted = torch_format(dataset)
        fields = fields_of(dataset, wanted.columns)
    except (FormatError, ValueError) as error:
        raise NotNative(f"The datasets.Dataset is not read natively, since {_reason(error)}.") from error
    casts: dict[Key, Conversion] = {}
    for name, field in fields.items():
        made = wanted.dtype_of(field.dtype)
        if made is None or 0 in field.shape:
            raise NotNative(f"The column {name!r} of the datasets.Dataset has {_odd(field)}: leave it out.")
        if made != field.dtype:
            casts[name] = Conversion(made)
    watch = PartsWatch.of(lambda: parts_of(dataset))
    return Source(dict(fields.items()), flat("dict", list(fields)), casts, watches=(watch,))


def _reason(error: Exception) -> str:
    return str(error).removeprefix("the dataset: ")


def _odd(field: Field) -> str:
    return "rows without elements" if 0 in field.shape else f"the dtype {field.dtype}, which torch takes only in part"

"""Which codec each field of a set gets, of what a caller asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from memload.codec import Codec
from memload.coded_fields import check_names
from memload.fields import row_nbytes
from memload.shard_index import FieldSpec

SMALLEST_ROW = 256  # bytes of the rows that a codec for all fields compresses

Codecs = Codec | str | Mapping[str, Codec | str] | None
"""One for all fields whose rows have at least 256 bytes, or by field; None: none is compressed."""


def parse_codecs(codecs: Codecs) -> Codec | dict[str, Codec] | None:
    """Return what is asked for with each text as the codec that it states.

    Raises:
        ValueError: a text states none.
        TypeError: it is neither a codec, a text nor a dict of these.
    """
    if isinstance(codecs, Mapping):
        return {name: _parse(codec) for name, codec in codecs.items()}
    return None if codecs is None else _parse(codecs)


def _parse(codec: object) -> Codec:
    if isinstance(codec, str):
        return Codec.parse(codec)
    if not isinstance(codec, Codec):
        raise TypeError(f"codec= takes a memload.Codec, its text, or a dict of these by field, not {codec!r:.80}")
    return codec


def words_of(codecs: Codecs) -> str:
    """Return what is asked for as one text; equal texts mean the same."""
    if isinstance(codecs, Mapping):
        return " ".join(f"{name}={codec}" for name, codec in sorted(codecs.items()))
    return str(codecs or "")


def coded_specs(
    forms: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], codecs: Codec | Mapping[str, Codec] | None
) -> dict[str, FieldSpec]:
    """Return what the index says of fields of these dtypes and shapes of a row.

    Raises:
        ValueError: a codec names a field that is not there, or has blocks that are too large, or a field has the name
            that another one's offsets need.
    """
    check_known(codecs, forms)
    fields = {name: FieldSpec.of_rows(*form, _codec_of(name, form, codecs)) for name, form in forms.items()}
    check_names(fields)
    return fields


def check_known(codecs: Codecs, names: Iterable[str]) -> None:
    """Raise ValueError if a codec is meant for a field that is not among `names`."""
    known = list(names)
    unknown = sorted(codecs.keys() - set(known)) if isinstance(codecs, Mapping) else []
    if unknown:
        raise ValueError(f"codec= names the field {unknown[0]!r}; the rows have {', '.join(map(repr, known))}")


def check_same(fields: Mapping[str, FieldSpec], codecs: Codec | Mapping[str, Codec] | None) -> None:
    """Raise ValueError if codecs are asked for that a set does not have; None asks for those that it has."""
    if codecs is None:
        return
    asked = coded_specs({name: (field.dtype, field.shape) for name, field in fields.items()}, codecs)
    for name, field in fields.items():
        if asked[name].codec != field.codec:
            raise ValueError(
                f"field {name!r} of the set has {field.codec or 'no codec'}, and codec= asks for "
                f"{asked[name].codec or 'none'}: a set keeps its codecs; leave codec= out, or write another set"
            )


def _codec_of(
    name: str, form: tuple[torch.dtype, tuple[int, ...]], codecs: Codec | Mapping[str, Codec] | None
) -> Codec | None:
    if isinstance(codecs, Mapping):
        return codecs.get(name)
    return codecs if row_nbytes(*form) >= SMALLEST_ROW else None

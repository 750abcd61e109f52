"""Choose the codec of each field of a set from the user's `codec=`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from memload.formats.codecs.codec import Codec
from memload.formats.shards.index import AnySpec, check_names
from memload.formats.shards.ragged_spec import RaggedSpec

SMALLEST_ROW = 256  # bytes of the rows that a codec for all fields compresses

Codecs = Codec | str | Mapping[str, Codec | str] | None
"""One codec for all fields whose rows have at least 256 bytes or differ in length; or codecs by field; None: none."""


def parse_codecs(codecs: Codecs) -> Codec | dict[str, Codec] | None:
    """Return the user's value with each text parsed to its codec.

    Raises:
        ValueError: a text is no valid codec.
        TypeError: the value is neither a codec, a text nor a dict of these.
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
    """Return the user's value as one text; equal texts mean equal codecs."""
    if isinstance(codecs, Mapping):
        return " ".join(f"{name}={codec}" for name, codec in sorted(codecs.items()))
    return str(codecs or "")


def coded_specs(fields: Mapping[str, AnySpec], codecs: Codec | Mapping[str, Codec] | None) -> dict[str, AnySpec]:
    """Return the fields as the index describes them, with their codecs.

    Raises:
        ValueError: `codec=` names a field that does not exist, or its blocks are too large, or a field has the name
            that the offsets of another one need.
    """
    check_known(codecs, fields)
    coded: dict[str, AnySpec] = {name: field.coded(_codec_of(name, field, codecs)) for name, field in fields.items()}
    check_names(coded)
    return coded


def check_known(codecs: Codecs, names: Iterable[str]) -> None:
    """Raise ValueError if `codec=` names a field that is not among `names`."""
    known = list(names)
    unknown = sorted(codecs.keys() - set(known)) if isinstance(codecs, Mapping) else []
    if unknown:
        raise ValueError(f"codec= names the field {unknown[0]!r}; the rows have {', '.join(map(repr, known))}")


def check_same(fields: Mapping[str, AnySpec], codecs: Codec | Mapping[str, Codec] | None) -> None:
    """Raise ValueError if `codec=` differs from the codecs of a set; None means those of the set."""
    if codecs is None:
        return
    asked = coded_specs(fields, codecs)
    for name, field in fields.items():
        if asked[name].codec != field.codec:
            raise ValueError(
                f"field {name!r} of the set has {field.codec or 'no codec'}, and codec= asks for "
                f"{asked[name].codec or 'none'}: a set keeps its codecs; leave codec= out, or write another set"
            )


def _codec_of(name: str, field: AnySpec, codecs: Codec | Mapping[str, Codec] | None) -> Codec | None:
    if codecs is None or isinstance(codecs, Mapping):
        return None if codecs is None else codecs.get(name)
    if isinstance(field, RaggedSpec):
        return replace(codecs, rows=None)  # which would be items
    return codecs if field.row_bytes >= SMALLEST_ROW else None

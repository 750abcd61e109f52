"""Which codec each field of a set gets, of what a caller asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from memload.formats.codecs.codec import Codec
from memload.formats.shards.index import AnySpec, check_names
from memload.formats.shards.ragged_spec import RaggedSpec

SMALLEST_ROW = 256  # bytes of the rows that a codec for all fields compresses

Codecs = Codec | str | Mapping[str, Codec | str] | None
"""One for all fields whose rows have at least 256 bytes, or differ in length; or by field; None: none is compressed."""


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


def coded_specs(fields: Mapping[str, AnySpec], codecs: Codec | Mapping[str, Codec] | None) -> dict[str, AnySpec]:
    """Return what the index says of these fields, compressed as is asked for.

    Raises:
        ValueError: a codec names a field that is not there, or has blocks that are too large, or a field has the name
            that another one's offsets need.
    """
    check_known(codecs, fields)
    coded: dict[str, AnySpec] = {name: field.coded(_codec_of(name, field, codecs)) for name, field in fields.items()}
    check_names(coded)
    return coded


def check_known(codecs: Codecs, names: Iterable[str]) -> None:
    """Raise ValueError if a codec is meant for a field that is not among `names`."""
    known = list(names)
    unknown = sorted(codecs.keys() - set(known)) if isinstance(codecs, Mapping) else []
    if unknown:
        raise ValueError(f"codec= names the field {unknown[0]!r}; the rows have {', '.join(map(repr, known))}")


def check_same(fields: Mapping[str, AnySpec], codecs: Codec | Mapping[str, Codec] | None) -> None:
    """Raise ValueError if codecs are asked for that a set does not have; None asks for those that it has."""
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

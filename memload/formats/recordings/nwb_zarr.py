"""NWB in folders of Zarr, as hdmf-zarr writes them: groups and datasets with the faces that those of h5py have.

Zarr has no links, no references and, before version 3, no numbers without an axis. hdmf-zarr has these in attributes:

    Zarr 2 (hdmf-zarr before 0.14)                  Zarr 3
    .zattrs "zarr_link"                             attribute "_LINKS"          list of {name, source, path}
    .zattrs "zarr_dtype": "scalar", shape (1,)      shape ()
    .zattrs "zarr_dtype": "object", pickles         "_DTYPE": "object_reference", paths as texts

Texts are chunks of vlen-utf8. The convention: https://hdmf-zarr.readthedocs.io/en/stable/storage.html.
"""

from __future__ import annotations

import functools
import json
import math
import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memload.columns.fields import Field
from memload.errors import FormatError
from memload.formats.packages import package
from memload.formats.zarr_store import open_zarr, zarr_package

_REFERENCE = np.dtype(object, metadata={"ref": True})
_TEXT = np.dtype(object, metadata={"vlen": str})


def is_nwb_zarr(path: Path) -> bool:
    """Return whether a path is that of a folder of Zarr with the attributes of an NWB file."""
    return path.is_dir() and "nwb_version" in _metadata(path)[1]


class ZarrGroup:
    """A group of a folder: a mapping from the names of its members, of which some are links, to groups and datasets.

    Attributes:
        root: the folder.
        name: the place in it, such as "/acquisition/movie".
        attrs: its attributes.
    """

    def __init__(self, root: Path, name: str = "/") -> None:
        self.root, self.name = root, name
        self.attrs: Mapping[str, Any] = _metadata(self._folder)[1]

    @property
    def _folder(self) -> Path:
        return self.root / self.name.lstrip("/")

    @property
    def file(self) -> ZarrGroup:
        """The group of the whole folder."""
        return ZarrGroup(self.root)

    @functools.cached_property
    def _links(self) -> dict[str, Mapping[str, Any]]:
        return {one["name"]: one for one in self.attrs.get("_LINKS", self.attrs.get("zarr_link", ()))}

    def own(self) -> Iterator[str]:
        """Yield the names of the members that are no links."""
        for one in sorted(self._folder.iterdir()):
            if one.is_dir() and _metadata(one)[0]:
                yield one.name

    def __iter__(self) -> Iterator[str]:
        yield from self.own()
        yield from self._links

    def keys(self) -> list[str]:
        """Return the names of all members."""
        return list(self)

    def __contains__(self, place: str) -> bool:
        first, _, rest = place.partition("/")
        if first not in self._links and not _metadata(self._folder / first)[0]:
            return False
        return not rest or rest in self[first]

    def __getitem__(self, place: str) -> Any:
        """Return a member of the group; of a place that begins with "/", of the folder.

        Raises:
            KeyError: there is none.
            FormatError: a link leads to nothing.
        """
        if place.startswith("/"):
            place = place.lstrip("/")
            return self.file[place] if place else self.file
        first, _, rest = place.partition("/")
        member = self._linked(self._links[first]) if first in self._links else self._member(first)
        return member[rest] if rest else member

    def _member(self, name: str) -> Any:
        place = posixpath.join(self.name, name)
        kind, _, stated = _metadata(self._folder / name)
        if kind == "group":
            return ZarrGroup(self.root, place)
        if kind == "array":
            try:
                return ZarrDataset(self.root, place, stated)
            except (KeyError, TypeError) as error:
                raise FormatError(f"{self.root}: the metadata of {place!r} are damaged: {error!r}") from None
        raise KeyError(f"{self.root}: no {place!r}")

    def _linked(self, link: Mapping[str, Any]) -> Any:
        source, place = link.get("source") or ".", link.get("path") or "/"
        root = Path(posixpath.normpath(self.root / source))
        if not _metadata(root)[0]:
            raise FormatError(f"its {link['name']!r} is a link to {place} of {root}, where there is no folder of Zarr")
        try:
            return ZarrGroup(root)[place]
        except KeyError:
            raise FormatError(f"its {link['name']!r} is a link to {place} of {root}, where there is nothing") from None
        except RecursionError:
            raise FormatError(f"its {link['name']!r} is a link to {place} of {root}, which leads back to it") from None


class ZarrDataset:
    """An array of a folder. Numbers are read in place; texts and references are decoded when they are asked for.

    Attributes:
        root, name, attrs: as those of a group.
        shape: () for a scalar.
        dtype: that of numpy; object with "ref" or "vlen" in its metadata for references and texts, as h5py has it.
    """

    def __init__(self, root: Path, name: str, stated: Mapping[str, Any]) -> None:
        self.root, self.name, self._stated = root, name, stated
        self.attrs: Mapping[str, Any] = _metadata(self._folder)[1]
        scalar = self.attrs.get("zarr_dtype") == "scalar"
        self.shape: tuple[int, ...] = () if scalar else tuple(stated["shape"])
        self.dtype = _dtype(self.attrs, stated)

    @property
    def _folder(self) -> Path:
        return self.root / self.name.lstrip("/")

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """Return the part of the array that an index of numpy chooses; () is all of it. Raises FormatError."""
        found = self._texts() if self.dtype.kind == "O" else self._numbers()
        return found.reshape(self.shape)[index]

    def field(self) -> Field:
        """Return the rows as a field that is read in place. Raises FormatError."""
        return open_zarr(self._folder, None, "data")["data"]

    def _numbers(self) -> np.ndarray[Any, Any]:
        if not self._stated["shape"]:
            zarr = zarr_package(str(self._folder))
            return np.asarray(zarr.open_array(self._folder, mode="r")[()])
        field = self.field()
        found: np.ndarray[Any, Any] = field.gather(np.arange(field.rows)).numpy()
        return found

    def _texts(self) -> np.ndarray[Any, Any]:
        codecs = _text_codecs(self._stated, self.name)
        numcodecs = package("numcodecs", "zarr", str(self._folder))
        decoders = [numcodecs.get_codec({"id": one}) for one in reversed(codecs)]
        (count,) = self._stated["shape"] or (1,)
        (step,) = _chunk_shape(self._stated) or (1,)
        found = np.full(count, "", dtype=object)
        for number in range(-(-count // max(1, step))):
            place = self._folder / self._key(number)
            if place.exists():
                values: Any = place.read_bytes()
                for decoder in decoders:
                    values = decoder.decode(values)
                part = found[number * step : (number + 1) * step]
                part[:] = np.asarray(values, dtype=object)[: len(part)]
        return found

    def _key(self, number: int) -> str:
        if "chunk_key_encoding" not in self._stated:
            return str(number)
        if self._stated["chunk_key_encoding"]["name"] != "default":
            return str(number)
        return f"c/{number}" if self._stated["shape"] else "c"


def _metadata(folder: Path) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
    """The kind of node in a folder, "group" or "array" or "", its attributes, and what its metadata state.

    Raises:
        FormatError: metadata are no JSON.
    """
    if (stated := _json(folder / "zarr.json")) is not None:
        return str(stated.get("node_type", "")), stated.get("attributes", {}), stated
    for kind, name in (("group", ".zgroup"), ("array", ".zarray")):
        if (stated := _json(folder / name)) is not None:
            return kind, _json(folder / ".zattrs") or {}, stated
    return "", {}, {}


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise FormatError(f"{path}: it should be JSON: {error}") from None
    if not isinstance(found, dict):
        raise FormatError(f"{path}: it should be an object of JSON, and is {type(found).__name__}")
    return found


def _dtype(attrs: Mapping[str, Any], stated: Mapping[str, Any]) -> np.dtype[Any]:
    if attrs.get("_DTYPE") == "object_reference" or attrs.get("zarr_dtype") == "object":
        return _REFERENCE
    name = stated.get("dtype", stated.get("data_type"))
    if name in ("|O", "string"):
        return _TEXT
    try:
        found: np.dtype[Any] = np.dtype(name)
    except TypeError:  # records
        return np.dtype("V1")
    return found


def _chunk_shape(stated: Mapping[str, Any]) -> list[int]:
    found: list[int] = stated["chunks"] if "chunks" in stated else stated["chunk_grid"]["configuration"]["chunk_shape"]
    return found


def _text_codecs(stated: Mapping[str, Any], place: str) -> list[str]:
    """The codecs of an array of texts, in the order in which they were applied."""
    if "codecs" in stated:
        names = [str(one["name"]).removeprefix("numcodecs.") for one in stated["codecs"]]
    else:
        names = [one["id"] for one in (*(stated["filters"] or ()), *filter(None, [stated["compressor"]]))]
    if names[:1] != ["vlen-utf8"] or len(stated["shape"]) > 1 or math.prod(_chunk_shape(stated)) < 1:
        raise FormatError(f"{place}: its values are stored by {names}, which memload does not read; texts: vlen-utf8")
    return names

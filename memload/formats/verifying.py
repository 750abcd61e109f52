"""Compare every byte of a set of shards with its checksums, in a folder or in a store.

folder: index -> each shard, in place                          -> Verification -> damages
store:  index -> each shard, fetched whole into a scratch file -> Verification -> damages
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memload.errors import ChecksumError, Damage, ShardFormatError, ShardReadError
from memload.formats.paths import is_remote
from memload.formats.remote.addresses import Address
from memload.formats.remote.objects import Objects
from memload.formats.remote.remote_shards import why_no_set
from memload.formats.shards.index import INDEX_NAME, RECORDING_NAME, ROWS_FOLDER, ShardRecord, parse_index, read_index
from memload.formats.shards.verification import Verification, check_times
from memload.progress import Bar, byte_bar
from memload.sizes import counted

_MOST_TOLD = 20  # places of damage in a message
_PIECE, _AT_ONCE = 8 << 20, 8  # bytes of a request for a shard of a store, and requests under way


def verify(path: Any, *, progress: bool | None = None) -> int:
    """Read every byte of a set of shards, compare it with the checksums, and return how many bytes were read.

    Of a set in a store, one shard at a time is fetched into the folder for temporary files (TMPDIR), past any cache.

    Args:
        path: the directory that memload.write made, of a recording as well; or the address of a set in a store, or a
            store object of obstore with the set at its root.
        progress: whether to show a bar; None shows it on a terminal.

    Raises:
        ChecksumError: bytes differ; `damages` has the shard, field and rows of each place, the message the first 20
            places of each folder.
        FileNotFoundError: there is no set at this address.
        PermissionError: a shard may not be read.
        ShardFormatError: there is no index, or a malformed one.
        ShardReadError: the store failed again and again, or a shard was replaced meanwhile.
        ValueError: the address is malformed, or that of a recording.

    Example:
        >>> import memload, tempfile, torch
        >>> path = tempfile.mkdtemp() + "/shards"
        >>> _ = memload.write(path, {"x": torch.zeros(1000, 3)})
        >>> memload.verify(path)
        12000
    """
    address = Address(path) if is_remote(path) else None
    if address is not None and address.local is None:
        where, checks = address.url, _verified_in_store(address, progress)
    else:
        directory = Path(path if address is None else address.local or "")
        where, checks = str(directory), _verified_in_folder(directory, progress)
    nbytes = sum(check.nbytes for check in checks.values())
    damaged = {folder: check.damages for folder, check in checks.items() if check.damages}
    if damaged:
        text = "\n".join(_told(f"{where}/{folder}".rstrip("/"), found) for folder, found in damaged.items())
        places = [replace(one, shard=f"{folder}{one.shard}") for folder, found in damaged.items() for one in found]
        raise ChecksumError(text, places, nbytes=nbytes)
    return nbytes


def _verified_in_folder(directory: Path, progress: bool | None) -> dict[str, Verification]:
    """Return what was found in each folder of shards, by its path below the directory, with a slash at its end."""
    folders = [""]
    if (directory / RECORDING_NAME).exists():
        check_times(directory)
        folders = [f"{index.parent.name}/" for index in sorted(directory.glob(f"*/{INDEX_NAME}"))]
    elif (directory / ROWS_FOLDER / INDEX_NAME).exists():
        folders.append(f"{ROWS_FOLDER}/")
    indices = {folder: read_index(directory / folder) for folder in folders}
    total = sum(shard.nbytes for index in indices.values() for shard in index.shards)
    with byte_bar("verify", total, progress) as bar:
        return {folder: Verification(directory / folder, index, bar).run() for folder, index in indices.items()}


def _verified_in_store(address: Address, progress: bool | None) -> dict[str, Verification]:
    """Return what was found in each folder of shards at an address, as `_verified_in_folder` does."""
    objects = address.objects()
    recording, *contents = objects.read_whole([RECORDING_NAME, INDEX_NAME, f"{ROWS_FOLDER}/{INDEX_NAME}"])
    if recording is not None:
        raise ValueError(f"{address.url}: a recording in a store: copy it to a folder, and verify that")
    if contents[0] is None:
        raise FileNotFoundError(f"{address.url}: {why_no_set(objects)}")
    indices = {}
    for folder, content in zip(("", f"{ROWS_FOLDER}/"), contents, strict=True):
        if content is None:
            continue
        try:
            indices[folder] = parse_index(content)
        except ShardFormatError as error:
            raise ShardFormatError(f"{address.url}/{folder}{INDEX_NAME}: {error}") from None
    if indices[""].inner is False:
        indices.pop(f"{ROWS_FOLDER}/", None)
    checks, total = {}, sum(shard.nbytes for index in indices.values() for shard in index.shards)
    with (
        tempfile.TemporaryDirectory(prefix="memload-verify-") as scratch,
        byte_bar("verify", total, progress) as bar,
        byte_bar("", None, show=False) as quiet,
    ):
        for folder, index in indices.items():
            check = checks[folder] = Verification(Path(scratch), index, quiet)
            for shard in index.shards:
                _verify_shard(check, address.objects(folder), shard, Path(scratch), bar)
    return checks


def _verify_shard(check: Verification, objects: Objects, shard: ShardRecord, scratch: Path, bar: Bar) -> None:
    """Fetch a shard, verify it, and remove it."""
    url, file = objects.url_of(shard.file), scratch / shard.file
    try:
        found = _fetch(objects, shard, file, bar)
    except FileNotFoundError as error:
        check.missing(shard, str(error))
        return
    if found != shard.nbytes:
        check.missing(shard, f"{url}: the index says {shard.nbytes} bytes, but the object has {found}")
        return
    try:
        before = len(check.damages)
        check.shard(shard)
        check.damages[before:] = [
            replace(one, reason=one.reason.replace(str(file), url)) for one in check.damages[before:]
        ]
    finally:
        file.unlink()


def _fetch(objects: Objects, shard: ShardRecord, file: Path, bar: Bar) -> int:
    """Write a shard to a file if it has the bytes that the index says; return the bytes of its object."""
    (first,) = objects.parts([(shard.file, 0, 1)])
    if first is None or first.size != shard.nbytes:
        return 0 if first is None else first.size
    with file.open("wb") as written:
        pieces = [(begin, min(begin + _PIECE, shard.nbytes)) for begin in range(0, shard.nbytes, _PIECE)]
        for number in range(0, len(pieces), _AT_ONCE):
            for part in objects.parts([(shard.file, *piece) for piece in pieces[number : number + _AT_ONCE]]):
                assert part is not None  # no piece is empty
                if part.etag != first.etag:
                    url = objects.url_of(shard.file)
                    raise ShardReadError(f"{url}: the object was replaced while it was verified: try again", file=url)
                written.write(part.data)
                bar.update(len(part.data))
    return first.size


def _told(folder: str, damages: Sequence[Damage]) -> str:
    listed = "".join(f"\n  {damage}" for damage in damages[:_MOST_TOLD])
    more = len(damages) - _MOST_TOLD
    rest = f"\n  and {counted(more, 'more place')}" if more > 0 else ""
    return f"{folder}: bytes differ from those that were written:{listed}{rest}"

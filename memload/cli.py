"""The command line: one function adds one command, and COMMANDS lists them in the order of the help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from memload.errors import ChecksumError, MemloadError

if TYPE_CHECKING:
    from memload.dataset import Dataset

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

# Each command imports what it needs when it runs, so that `memload --help` does not wait for torch.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `memload ARGUMENTS` and return its exit status: 0 done, 1 checksums differ, 2 it could not be done."""
    parser = argparse.ArgumentParser(prog="memload", description="Array data for training, at the speed of memory.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        return 130
    except ChecksumError as error:
        print(f"memload: {error}", file=sys.stderr)
        return 1
    except (MemloadError, OSError, ValueError, TypeError) as error:
        print(f"memload: {error}", file=sys.stderr)
        return 2


def _add_info(commands: Commands) -> None:
    parser = commands.add_parser("info", help="say what a set of shards, a .npy or a .safetensors file holds")
    parser.add_argument("path")
    parser.set_defaults(run=_info)


def _info(options: argparse.Namespace) -> int:
    import memload

    dataset = memload.open(options.path)
    files = {storage.name for field in dataset.fields.values() for storage in field.column.storages}
    print(dataset)
    print(f"  files: {len(files)}; rows are read in place, from the mapped files")
    return 0


def _add_verify(commands: Commands) -> None:
    parser = commands.add_parser("verify", help="read every byte of a set of shards and compare it with the checksums")
    parser.add_argument("path")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    parser.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> int:
    import memload
    from memload.sizes import format_size

    nbytes = memload.verify(options.path, progress=False if options.quiet else None)
    print(f"{options.path}: {format_size(nbytes)} read, all checksums agree")
    return 0


def _add_write(commands: Commands) -> None:
    parser = commands.add_parser(
        "write",
        help="write files as a set of shards",
        description="Write the fields of files, side by side, as a set of shards. NAME=PATH names the field of a file.",
    )
    parser.add_argument("target", help="the directory to make")
    parser.add_argument("sources", nargs="+", metavar="[NAME=]PATH", help="what `memload info` can open")
    parser.add_argument("--shard-bytes", default="512MB", help="how large a shard may grow (default: %(default)s)")
    parser.add_argument("--append", action="store_true", help="add shards to the set if it exists")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    parser.set_defaults(run=_write)


def _write(options: argparse.Namespace) -> int:
    import memload

    dataset = memload.zip(**_open_sources(options.sources))
    progress = False if options.quiet else None
    written = memload.write(
        options.target, dataset, shard_bytes=options.shard_bytes, append=options.append, progress=progress
    )
    print(written)
    return 0


def _open_sources(sources: Sequence[str]) -> dict[str, Dataset]:
    import memload

    members: dict[str, Dataset] = {}
    for source in sources:
        name, equals, path = source.partition("=")
        dataset = memload.open(path if equals else source)
        label = name if equals else next(iter(dataset.fields))
        if label in members:
            raise ValueError(f"two sources are named {label!r}; give them names by NAME=PATH")
        members[label] = dataset
    return members


COMMANDS: tuple[Callable[[Commands], None], ...] = (_add_info, _add_verify, _add_write)

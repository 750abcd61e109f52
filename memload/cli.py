"""The command line. A command is two functions, its options and what it does, and one line of COMMANDS."""

from __future__ import annotations

import argparse
import io
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from memload._core import version
from memload.commands import bench, cache, demo, doctor, info, monitor, plan, write
from memload.errors import ChecksumError, MemloadError
from memload.shards.reading import verify
from memload.sizes import format_size

_ABOUT = "Array data for training, at the speed of memory."
_FURTHER = "`memload COMMAND --help` says what each takes. Where to begin: `memload doctor`, then `memload info PATH`."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `memload ARGUMENTS` and return its exit status: 0 done, 1 checksums differ, 2 it could not be done.

    141, as of programs that end by SIGPIPE: whoever was to read the output, such as `head`, has gone.
    """
    parser = argparse.ArgumentParser(prog="memload", description=_ABOUT, epilog=_FURTHER)
    parser.add_argument("--version", action="version", version=f"memload {version}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.help, description=f"{command.help}.")
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, further = parser.parse_known_args(write.attached(given) if given[:1] == ["write"] else given)
    if further and (not hasattr(options, "paths") or any(text.startswith("-") for text in further)):
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    if further:  # paths behind an option that stands between paths
        options.paths += further
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except BrokenPipeError as error:
        return _unread(error)
    except KeyboardInterrupt:
        return 130
    except ChecksumError as error:
        print(f"memload: {error}", file=sys.stderr)
        return 1
    except KeyError as error:
        print(f"memload: {error.args[0]}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"memload: {_said_by_the_system(error)}", file=sys.stderr)
        return 2
    except (MemloadError, ValueError, TypeError, IndexError, ImportError) as error:
        print(f"memload: {error}", file=sys.stderr)
        return 2


def _said_by_the_system(error: OSError) -> str:
    """What went wrong with which file; ours are whole sentences already."""
    return f"{error.filename}: {error.strerror}" if error.filename is not None and error.strerror else str(error)


def _unread(error: BrokenPipeError) -> int:
    """Return the exit code of a broken pipe; quietly, also at the interpreter's end, if it was the output's reader."""
    output = _output()
    if output is not None and _has_no_reader(output):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        return 141
    print(f"memload: {error}", file=sys.stderr)
    return 2


def _output() -> int | None:
    """The descriptor of the output; None where that was replaced by what has none, as in a notebook."""
    try:
        return sys.stdout.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return None


def _has_no_reader(output: int) -> bool:
    poll = select.poll()
    poll.register(output, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


class Command(NamedTuple):
    """What `memload --help` says of a command, and the two functions behind it."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="a directory that memload write, or memload.write, made")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def _verify(options: argparse.Namespace) -> int:
    nbytes = verify(options.path, progress=False if options.quiet else None)
    print(f"{options.path}: {format_size(nbytes)} read, all checksums agree")
    return 0


COMMANDS = {
    "demo": Command("Feed real pictures through both loaders and compare them", demo.add_arguments, demo.run),
    "doctor": Command("Report what this machine has and what that means for loading", doctor.add_arguments, doctor.run),
    "bench": Command("Measure a loader beside the ceiling of this machine", bench.add_arguments, bench.run),
    "write": Command(write.HELP, write.add_arguments, write.run),
    "info": Command(info.HELP, info.add_arguments, info.run),
    "plan": Command(plan.HELP, plan.add_arguments, plan.run),
    "monitor": Command(monitor.HELP, monitor.add_arguments, monitor.run),
    "cache": Command(cache.HELP, cache.add_arguments, cache.run),
    "verify": Command(
        "Read every byte of a set of shards and compare it with the checksums", _verify_arguments, _verify
    ),
}

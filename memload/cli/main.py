"""The command line. A command has a line in COMMANDS, its arguments in cli/options.py, and a module with `run`.

The module is imported when its command runs, so `--help` answers without torch.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from memload._core import version
from memload.cli import options
from memload.errors import ChecksumError, MemloadError

_ABOUT = "Array data for training, at the speed of memory."
_FURTHER = "`memload COMMAND --help` lists its arguments. Begin with `memload doctor`, then `memload info PATH`."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `memload ARGUMENTS` and return its exit status: 0 done, 1 a negative result, 2 an error, 130 interrupted.

    A negative result is a wrong checksum, or a plan that does not fit. 141 means that the reader of the output, such as
    `head`, has ended, as for programs that end by SIGPIPE.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    root = parser()
    chosen, further = root.parse_known_args(options.attached(given) if given[:1] == ["write"] else given)
    if further and (not hasattr(chosen, "paths") or any(text.startswith("-") for text in further)):
        root.error(f"unrecognized arguments: {' '.join(further)}")
    if further:  # paths after an option between paths
        chosen.paths += further
    try:
        status = int(importlib.import_module(f"memload.cli.{chosen.command}").run(chosen))
        sys.stdout.flush()
        return status
    except BrokenPipeError as error:
        return _broken_pipe(error)
    except KeyboardInterrupt:
        return 130
    except ChecksumError as error:
        print(f"memload: {error}", file=sys.stderr)
        return 1
    except KeyError as error:
        print(f"memload: {error.args[0]}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"memload: {_system_error(error)}", file=sys.stderr)
        return 2
    except (MemloadError, ValueError, TypeError, IndexError, ImportError) as error:
        print(f"memload: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """Return the parser of `memload`, with a parser for each command."""
    root = argparse.ArgumentParser(prog="memload", description=_ABOUT, epilog=_FURTHER)
    root.add_argument("--version", action="version", version=f"memload {version}")
    commands = root.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.help, description=f"{command.help}.")
        command.add_arguments(subparser)
        subparser.set_defaults(command=name)
    return root


def _system_error(error: OSError) -> str:
    """Return the file and the reason; errors of memload are whole sentences already."""
    return f"{error.filename}: {error.strerror}" if error.filename is not None and error.strerror else str(error)


def _broken_pipe(error: BrokenPipeError) -> int:
    """Return the exit code of a broken pipe; print nothing, also at exit, if the reader of the output has ended."""
    output = _output_descriptor()
    if output is not None and _has_no_reader(output):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        return 141
    print(f"memload: {error}", file=sys.stderr)
    return 2


def _output_descriptor() -> int | None:
    """Return the descriptor of the output; None if the output has none, as in a notebook."""
    try:
        return sys.stdout.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return None


def _has_no_reader(output: int) -> bool:
    poll = select.poll()
    poll.register(output, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


class Command(NamedTuple):
    """The help text of a command, and the function that declares its arguments."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]


COMMANDS = {
    "demo": Command("Feed real images through both loaders and compare them", options.demo),
    "doctor": Command("Report what this machine has and what that means for loading", options.doctor),
    "bench": Command("Measure a loader beside the ceiling of this machine", options.bench),
    "write": Command("Convert files into a set of shards", options.write),
    "seal": Command("Make one set of shards of the parts that `memload write --part` wrote", options.seal),
    "info": Command("Show what a set of shards or a file contains, and what reading a row costs", options.info),
    "plan": Command("Predict how much RAM, GPU memory and disk space loading a dataset takes", options.plan),
    "monitor": Command("Show the memory of a running process, or plot the log of a monitor", options.monitor),
    "cache": Command("List what ds.map(fn).cache(PATH) has stored, or remove some of it", options.cache),
    "verify": Command("Read every byte of a set of shards and compare it with the checksums", options.verify),
}

"""The command line. A command has a line in COMMANDS, its arguments in cli/options.py, and a module with `run`.

The module is imported when its command runs, so `--help` answers without torch.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import io
import os
import re
import select
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from memload._core import version
from memload.cli import options
from memload.cli.output import check_folder_of
from memload.cli.words import in_options
from memload.errors import ChecksumError, MemloadError

_ABOUT = "Array data for training, at the speed of memory."
_FURTHER = (
    "`memload COMMAND --help` lists its arguments. Begin with `memload doctor`, then `memload info PATH`, or with "
    "`memload init train.py` for a script that you have."
)
_NUMBERS = {"int": "a whole number", "float": "a number"}
_STEPS = {
    errno.ENOENT: "give a path that exists",
    errno.EACCES: "give a path that you may read and write, or ask its owner (`ls -ld` shows who that is)",
    errno.EPERM: "give a path that you may change",
    errno.ENOSPC: "free some space, or name a folder on another disk",
    errno.EDQUOT: "free some of your quota, or name a folder on another disk",
    errno.EROFS: "name a folder on a disk that can be written to",
    errno.EISDIR: "give a file in it",
    errno.ENOTDIR: "give a directory",
    errno.EEXIST: "give another name",
    errno.EIO: "its bytes cannot be read or written: copy it, or ask whether its disk fails",
    errno.EINVAL: "give a file whose bytes can be read",
    errno.EMFILE: "raise the limit on open files: `ulimit -n 65536`",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `memload ARGUMENTS` and return its exit status: 0 done, 1 a negative result, 2 an error, 130 interrupted.

    A negative result is a wrong checksum, or a plan that does not fit. 141 means that the reader of the output, such as
    `head`, has ended, as for programs that end by SIGPIPE.
    """
    given = sys.argv[1:] if arguments is None else arguments
    chosen = _chosen(options.attached(given))
    try:
        check_folder_of(chosen.json, "--json")
        status = int(importlib.import_module(f"memload.cli.{chosen.command}").run(chosen))
        print(end="", flush=True)  # also if the output was closed before
        return status
    except BrokenPipeError as error:
        return _broken_pipe(error)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if chosen.traceback:
            raise
        said = in_options(_one_line(error, chosen.command), _options_in(chosen.usage()), given)
        print(f"memload: {said}", file=sys.stderr)
        return 1 if isinstance(error, ChecksumError) else 2


def _chosen(given: Sequence[str]) -> argparse.Namespace:
    """Return the command and its arguments."""
    chosen, further = parser().parse_known_args(given)
    if further and (not hasattr(chosen, "paths") or any(text.startswith("-") for text in further)):
        chosen.fail(f"unrecognized arguments: {' '.join(further)}")
    if "" in (getattr(chosen, name, None) for name in ("path", "root")):
        chosen.fail("the path is empty; the current folder is '.'")
    if further:  # paths after an option between paths
        chosen.paths += further
    return chosen


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the option that was perhaps meant."""

    def error(self, message: str) -> NoReturn:
        """End the program; argparse would print the usage, too, which has up to 20 lines."""
        known = _options_in(self.format_help())
        choices = re.findall(r"\w[\w-]*", message.partition("(choose from ")[2])
        wrong = re.findall(r"--[\w-]+", message) or re.findall(r"invalid choice: '([^']*)'", message)
        message = re.sub(r"invalid (int|float) value: ", lambda found: f"expected {_NUMBERS[found[1]]}, got ", message)
        close = [match for word in wrong for match in difflib.get_close_matches(word, choices or known, 1)]
        meant = [word for word in close if word not in wrong]
        hint = f"; did you mean {' or '.join(meant)}?" if meant else "."
        self.exit(2, f"{self.prog}: {message}{hint} `{self.prog} --help` lists what it takes.\n")


def _options_in(text: str) -> list[str]:
    return re.findall(r"(?<![\w-])--[a-z-]+", text)


def parser() -> argparse.ArgumentParser:
    """Return the parser of `memload`, with a parser for each command."""
    root = _Parser(prog="memload", description=_ABOUT, epilog=_FURTHER)
    root.add_argument("--version", action="version", version=f"memload {version}")
    root.add_argument("--traceback", action="store_true", help="show where an error was raised, not its one line")
    commands = root.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.help, description=f"{command.help}.")
        command.add_arguments(subparser)
        subparser.set_defaults(command=name, fail=subparser.error, usage=subparser.format_help)
    return root


def _one_line(error: Exception, command: str) -> str:
    """Return what an error says as one line, with the next step; errors of memload's own say it themselves."""
    if isinstance(error, OSError):
        text = _system_error(error, command)
    elif isinstance(error, KeyError) and error.args:
        text = str(error.args[0])
    elif isinstance(error, (MemloadError, ValueError, TypeError, IndexError, ImportError)):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}; `memload --traceback {command} ...` shows where"
    return " ".join(text.split())


def _system_error(error: OSError, command: str) -> str:
    """Return the file, the reason and the next step; errors of memload are whole sentences already."""
    if not error.strerror:
        return str(error)
    step = _STEPS.get(error.errno or 0, "")
    if error.filename is None:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)  # as of the standard output, which has no name
        return f"{error.strerror}; {step if full else f'`memload --traceback {command} ...` shows where'}"
    return f"{error.filename}: {error.strerror}{step and f'; {step}'}"


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
    "init": Command("Read a script that has a DataLoader, and say what to change, line by line", options.init),
    "doctor": Command("Report what this machine has and what that means for loading", options.doctor),
    "bench": Command("Measure a loader beside the ceiling of this machine", options.bench),
    "write": Command("Convert files into a set of shards", options.write),
    "seal": Command("Make one set of shards of the parts that `memload write --part` wrote", options.seal),
    "info": Command("Show what a set of shards or a file contains, and what reading a row costs", options.info),
    "plan": Command("Predict how much RAM, GPU memory and disk space loading a dataset takes", options.plan),
    "monitor": Command("Show the memory of a running process, or plot the log of a monitor", options.monitor),
    "cache": Command("List what ds.map(fn).cache(PATH) has stored, or remove some of it", options.cache),
    "verify": Command("Read every byte of a set of shards and compare it with the checksums", options.verify),
    "completion": Command("Print the script by which a shell completes the words of this command", options.completion),
}

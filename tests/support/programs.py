"""Python programs, each in a process of its own, that begin with their large modules imported.

Importing torch takes seconds, each time. So a nursery is kept: a process that has imported it and done nothing else.
Every program is forked from it, and from there on is a process like any: it runs as the main module, and ends as one.
Only that the garbage collector leaves alone what the nursery imported; `gc.unfreeze()` in a program undoes this.

    a test --- programs, files for input and output ---> nursery --- forks ---> keeper --- forks ---> programs
       <-------------------- their pids, then how they ended -----------------------'
"""

import contextlib
import functools
import gc
import importlib
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

from waiting import MOST_SECONDS

HERE = str(Path(__file__).parent)
MOST_FILES = 250  # that the kernel sends at once


@dataclass(frozen=True)
class Nursery:
    """What programs begin with: modules, options of the interpreter, and what the environment has beside the usual."""

    imports: tuple = ("torch", "memload")
    options: tuple = ("-W", "error")
    environment: tuple = ()


@dataclass(frozen=True)
class Program:
    """A source, its words on the command line, and what it finds in the environment beside what the test has there.

    `file` is where the source is from, if it is a script.
    """

    code: str
    arguments: tuple = ()
    environment: dict = field(default_factory=dict)
    file: str = ""


@dataclass(frozen=True)
class Ended:
    """What a program left."""

    status: int | None  # None: it had to be killed
    out: list[str]
    err: str


@dataclass(frozen=True)
class Running:
    """A program that runs, and the other ends of its standard input and output."""

    pid: int
    stdin: TextIO
    stdout: TextIO
    wait: Callable[[], int | None]  # until it has ended: its status


def script(path, *arguments, environment=None):
    """A file, as `python path arguments` would run it."""
    return Program(Path(path).read_text(), arguments, environment or {}, str(path))


def run_all(programs, within=MOST_SECONDS, nursery=Nursery()):
    """Run programs, given by name, at once; those that do not end within so many seconds are killed."""
    return begin_all(programs, within, nursery)()


def begin_all(programs, within=MOST_SECONDS, nursery=Nursery(), *, in_turn=False):
    """Begin programs, given by name, at once; calling the result waits for them, and tells what each left.

    Args:
        within: so many seconds after they began they are killed.
        in_turn: they begin only when all have ended that were begun in turn before them.
    """
    programs = {name: one if isinstance(one, Program) else Program(one) for name, one in programs.items()}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        said = {name: [Path(folder, f"{k}.{kind}") for kind in ("out", "err")] for k, name in enumerate(programs)}
        with contextlib.ExitStack() as given:
            files = [given.enter_context(file.open("w")) for both in said.values() for file in both]
            nothing = given.enter_context(Path(os.devnull).open())
            threes = [file for k in range(0, len(files), 2) for file in (nothing, *files[k : k + 2])]
            told = stack.enter_context(_begun(programs, threes, within, nursery, in_turn))
        return Begun(told, said, stack.pop_all())


class Begun:
    """Programs that were begun; `close` kills those that run."""

    def __init__(self, told, said, stack):
        self._told, self._said = told, said
        self.close = stack.close

    def __call__(self):
        """Wait; return what each left, by name."""
        with contextlib.closing(self):
            _pids, statuses = self._told(), self._told()
            texts = {name: [file.read_text() for file in both] for name, both in self._said.items()}
        return {name: Ended(statuses[name], out.splitlines(), err) for name, (out, err) in texts.items()}


class Ahead:
    """Programs that run in turn beside the tests before those that ask for what they left.

    A name of a test's module: the run begins it if it has any test of that module (conftest.py).

    Args:
        begin: given an empty folder, begins them, in turn.
        read: given the folder and what each left, returns what is found; None: what each left.
    """

    def __init__(self, begin, read=None):
        self._begin, self._read = begin, read or (lambda _folder, ended: ended)
        self._begun = self._folder = None

    def begin(self, folder):
        """Begin them."""
        self._begun, self._folder = self._begin(folder), folder

    @functools.cached_property
    def found(self):
        """What is found, once they have ended."""
        return self._read(self._folder, self._begun())

    def close(self):
        """Kill those that nobody has asked for."""
        if self._begun is not None:
            self._begun.close()


def run(program, *arguments, within=MOST_SECONDS):
    """Run one program, or the source of one; return what it left."""
    program = program if isinstance(program, Program) else Program(program, arguments)
    return run_all({"it": program}, within)["it"]


@contextlib.contextmanager
def started(code, *arguments, within=MOST_SECONDS):
    """A program that is written to and read while it runs."""
    (its_input, stdin), (stdout, its_output) = os.pipe(), os.pipe()
    with os.fdopen(stdin, "w") as stdin, os.fdopen(stdout) as stdout, contextlib.ExitStack() as stack:
        with os.fdopen(its_input) as its_input, os.fdopen(its_output, "w") as its_output:
            files = [its_input, its_output, sys.__stderr__]
            told = stack.enter_context(_begun({"it": Program(code, arguments)}, files, within, Nursery()))
            pids = told()
        yield Running(pids["it"], stdin, stdout, lambda: told()["it"])


@contextlib.contextmanager
def _begun(programs, files, within, nursery, in_turn=False):
    """What waits until something is told of programs: first their pids, then how each ended. At last they are killed.

    Args:
        files: standard input, output and errors of the first, then of the next.
        in_turn: see `begin_all`.
    """
    line, wrong = _line_to(nursery)
    ours, theirs = os.pipe()
    with os.fdopen(ours) as answers:
        with contextlib.ExitStack() as given:
            turn = [given.enter_context(file) for file in _next_turn()] if in_turn else []
            files = [given.enter_context(os.fdopen(theirs, "w")), *turn, *files]
            assert len(files) <= MOST_FILES
            order = {
                "programs": {name: asdict(one) for name, one in programs.items()},
                "within": within,
                "folder": str(Path.cwd()),
                "environment": _environment(nursery),
                "in_turn": in_turn,
            }
            body = json.dumps(order, default=str).encode()
            with contextlib.suppress(BrokenPipeError):  # it has ended, which is told below
                socket.send_fds(line, [len(body).to_bytes(4, "big")], [file.fileno() for file in files])
                line.sendall(body)

        def told():
            text = answers.readline()
            assert not wrong(), wrong()
            return json.loads(text)

        yield told


def _next_turn():
    """A file that ends when the programs have ended that have the turn before, and one to keep open until ours have."""
    ended, until_then = os.pipe()
    before, _last_turn[:] = [*_last_turn], [os.fdopen(ended)]
    return *(before or [Path(os.devnull).open()]), os.fdopen(until_then, "w")


_last_turn = []  # what ends with the programs that were begun in turn last


def _environment(nursery):
    path = os.pathsep.join([HERE, os.environ["PYTHONPATH"]])
    return {**os.environ, "PYTHONPATH": path, **dict(nursery.environment)}


@functools.cache
def _line_to(nursery):
    """A line to a nursery, which ends when the other end of the line is closed, and what says why it did not begin."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, *nursery.options, __file__, str(theirs.fileno()), *nursery.imports]
    said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as it begins
    silent = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
    with theirs:
        begins = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=_environment(nursery), **silent)

    @functools.cache
    def wrong():
        with said:
            status = begins.wait()
            said.seek(0)
            return said.read() or f"status {status}" if status else ""

    return ours, wrong


# In the nursery -------------------------------------------------------------------------------------------------------


def _main(line, *imports):
    """Import; go on as a process that is nobody's child; return, in each that is forked from it, what it is to run."""
    line = socket.socket(fileno=int(line))
    for name in imports:
        module = importlib.import_module(name)
        if name == "memload":
            inspect.getmembers(module)  # all that is imported when it is asked for
    if _fork():
        os._exit(0)
    gc.freeze()  # what is imported: programs that collect do not go through it, nor copy it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    while True:
        head, files, *_ = socket.recv_fds(line, 4, MOST_FILES)
        if not head:
            os._exit(0)
        order = json.loads(_received(line, int.from_bytes(head, "big")))
        if _fork() == 0:
            line.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _keep(order, files)
        for file in files:
            os.close(file)


def _fork():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on: numpy has begun threads
        return os.fork()


def _received(line, count):
    parts = []
    while count:
        parts.append(line.recv(count))
        count -= len(parts[-1])
    return b"".join(parts)


def _keep(order, files):
    """Fork the programs, wait for them and tell; return, in each of them, the program and its name."""
    answer, *files = files
    own = [answer]
    if order["in_turn"]:
        before, until_then, *files = files
        os.read(before, 1)  # nothing, when they have ended
        os.close(before)
        own.append(until_then)
    children = {}
    for k, (name, program) in enumerate(order["programs"].items()):
        child = _fork()
        if child == 0:
            for file in own:
                os.close(file)
            _become(program, order, files[3 * k : 3 * k + 3], files)
            return program, name
        children[name] = child
    for file in files:
        os.close(file)
    _tell(answer, children)
    _tell(answer, _wait(children, order["within"], answer))
    os._exit(0)


def _tell(answer, what):
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
        os.write(answer, f"{json.dumps(what)}\n".encode())


def _become(program, order, own, files):
    os.setsid()  # with what it starts, should it have to be killed
    for number, file in enumerate(own):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"] | program["environment"])
    sys.argv = [program["file"] or "-c", *program["arguments"]]
    if program["file"]:
        sys.path.insert(0, str(Path(program["file"]).parent))


def _wait(children, within, answer):
    """The status of each child; those that do not end within so many seconds, or that nobody waits for, are killed."""
    statuses, end = {}, time.monotonic() + within
    listener = select.poll()
    listener.register(answer, 0)
    while len(statuses) < len(children):
        for name, child in children.items():
            if name in statuses:
                continue
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                statuses[name] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end or listener.poll(0):
                with contextlib.suppress(ProcessLookupError):  # it has no group of its own yet
                    os.killpg(child, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                statuses[name] = None
        time.sleep(0.005)
    return statuses


def _run_as_main(program, name):
    """Run it in the main module, which is what keeps its names until the interpreter finalises."""
    sys.modules["__main__"] = main = types.ModuleType("__main__")  # the nursery's is not for the garbage collector
    if program["file"]:
        main.__file__ = program["file"]
    exec(compile(program["code"], program["file"] or name, "exec"), vars(main))


if __name__ == "__main__":
    _run_as_main(*_main(*sys.argv[1:]))

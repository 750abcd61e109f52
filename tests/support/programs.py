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

from waiting import MOST_SECONDS, until

HERE = str(Path(__file__).parent)
MOST_FILES = 250  # that the kernel sends at once
STATUSES = "statuses.json"


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


def begin_all(programs, within=MOST_SECONDS, nursery=Nursery(), *, ahead=None):
    """Begin programs, given by name, at once; calling the result waits for them, and tells what each left.

    Args:
        within: so many seconds after they began they are killed.
        ahead: a folder where `left_in` finds what they left, in any process of the run. They begin only when all have
            ended that were begun ahead before them, and go on until the run ends.
    """
    programs = {name: one if isinstance(one, Program) else Program(one) for name, one in programs.items()}
    with contextlib.ExitStack() as stack:
        folder = ahead / "left" if ahead else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        with contextlib.ExitStack() as given:
            said = [file for k in range(len(programs)) for file in _said(folder, k)]
            files = [given.enter_context(file.open("w")) for file in said]
            nothing = given.enter_context(Path(os.devnull).open())
            threes = [file for k in range(0, len(files), 2) for file in (nothing, *files[k : k + 2])]
            told = stack.enter_context(_begun(programs, threes, within, nursery, folder if ahead else None))
        return Begun(told, folder, stack.pop_all())


class Begun:
    """Programs that were begun; `close` kills those that run, unless they were begun ahead."""

    def __init__(self, told, folder, stack):
        self._told, self._folder = told, folder
        self.close = stack.close

    def __call__(self):
        """Wait; return what each left, by name."""
        with contextlib.closing(self):
            _pids, statuses = self._told(), self._told()
            return _left(self._folder, statuses)


def left_in(ahead):
    """Wait for programs that were begun ahead, with this folder; return what each left, by name."""
    statuses = ahead / "left" / STATUSES
    until(statuses.exists, within=3 * MOST_SECONDS)  # others have their turn before
    return _left(statuses.parent, json.loads(statuses.read_text()))


def _left(folder, statuses):
    texts = [[file.read_text() for file in _said(folder, k)] for k in range(len(statuses))]
    return {
        name: Ended(status, out.splitlines(), err)
        for (name, status), (out, err) in zip(statuses.items(), texts, strict=True)
    }


def _said(folder, number):
    return [folder / f"{number}.{kind}" for kind in ("out", "err")]


class Ahead:
    """Programs that run in turn beside the tests before those that ask for what they left.

    A name of a test's module: the run begins it if it has any test of that module, one of its processes for all
    (conftest.py).

    Args:
        begin: given an empty folder, begins them ahead, with it.
        read: given the folder and what each left, returns what is found; None: what each left.
    """

    def __init__(self, begin, read=None):
        self._begin, self._read = begin, read or (lambda _folder, ended: ended)
        self._folder = None

    def begin(self, folder, *, first):
        """Begin them, if this process is the first of the run to do so; all of them give the same folder."""
        self._folder = folder
        if first:
            folder.mkdir()
            self._begin(folder).close()  # nothing of them but the folder is looked at

    @functools.cached_property
    def found(self):
        """What is found, once they have ended."""
        return self._read(self._folder, left_in(self._folder))


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
def _begun(programs, files, within, nursery, ahead=None):
    """What waits until something is told of programs: first their pids, then how each ended. At last they are killed.

    Args:
        files: standard input, output and errors of the first, then of the next.
        ahead: the folder for how each ended, if they are begun ahead.
    """
    line, wrong = _line_to(nursery)
    ours, theirs = os.pipe()
    with os.fdopen(ours) as answers:
        with contextlib.ExitStack() as given:
            turn = [given.enter_context(file) for file in _next_turn()] if ahead else []
            files = [given.enter_context(os.fdopen(theirs, "w")), *turn, *files]
            assert len(files) <= MOST_FILES
            order = {
                "programs": {name: asdict(one) for name, one in programs.items()},
                "within": within,
                "folder": str(Path.cwd()),
                "environment": _environment(nursery),
                "ahead": str(ahead) if ahead else None,
                "run": the_run(),
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


def the_run():
    """The process as long as which this run of the tests lasts: that of pytest, whose workers are its children."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


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
    if order["ahead"]:
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
    statuses = _wait(children, order["within"], order["run"] if order["ahead"] else None, answer)
    if order["ahead"]:
        written = Path(order["ahead"], f"{STATUSES}.part")
        written.write_text(json.dumps(statuses))
        written.rename(written.with_suffix(""))
    _tell(answer, statuses)
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


def _wait(children, within, run, answer):
    """The status of each child; those that do not end within so many seconds, or that nobody waits for, are killed."""
    statuses, end, nobody_waits = {}, time.monotonic() + within, _nobody_waits(run, answer)
    while len(statuses) < len(children):
        for name, child in children.items():
            if name in statuses:
                continue
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                statuses[name] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end or nobody_waits():
                with contextlib.suppress(ProcessLookupError):  # it has no group of its own yet
                    os.killpg(child, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                statuses[name] = None
        time.sleep(0.005)
    return {name: statuses[name] for name in children}


def _nobody_waits(run, answer):
    """What says whether a run of the tests has ended or, without one, nobody reads the answer."""
    listener = select.poll()
    if run is None:
        listener.register(answer, 0)
    else:
        try:
            listener.register(os.pidfd_open(run), select.POLLIN)
        except ProcessLookupError:
            return lambda: True
    return lambda: bool(listener.poll(0))


def _run_as_main(program, name):
    """Run it in the main module, which is what keeps its names until the interpreter finalises."""
    sys.modules["__main__"] = main = types.ModuleType("__main__")  # the nursery's is not for the garbage collector
    if program["file"]:
        main.__file__ = program["file"]
    exec(compile(program["code"], program["file"] or name, "exec"), vars(main))


if __name__ == "__main__":
    _run_as_main(*_main(*sys.argv[1:]))

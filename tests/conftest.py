"""What holds for the whole run: which memload is tested, what is imported once, what is left out without a GPU."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings
from programs import Ahead
from waiting import MOST_SECONDS

import memload

if TYPE_CHECKING:
    from cloud_stores import CloudServer
    from stores import Proxy, Server, Store

# Examples that write files wait for the disk: a busy machine must not fail them, so there is no deadline. Whoever runs
# the suite gets the same few examples each time, so that it never fails by chance. In CI each run draws others, and
# prints what draws them again: the seed of the run, and the blob of an example that fails.
settings.register_profile("fixed", deadline=None, derandomize=True, database=None, max_examples=25)
settings.register_profile("fresh", deadline=None, derandomize=False, database=None, print_blob=True)
settings.load_profile("fresh" if os.environ.get("CI", "").lower() not in ("", "0", "false") else "fixed")

UNDER_TEST = Path(memload.__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds how long the attacks of tests/faults/test_soak.py go on, and with which random numbers they begin."""
    group = parser.getgroup("soak", "attacks of tests/faults/test_soak.py, which `-m slow` runs")
    group.addoption("--soak-seed", type=int, help="of the first round; the next has the next (default: drawn)")
    group.addoption("--soak-minutes", type=float, default=0.25, help="that each attack goes on (default: %(default)s)")


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads it
def pytest_configure(config: pytest.Config) -> None:
    """Draws the seed of fresh examples, so that it can be told."""
    if _draws_fresh_examples(config) and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


def pytest_report_header(config: pytest.Config) -> str:
    """Says which examples property tests draw, and how to draw them again."""
    if not _draws_fresh_examples(config):
        return "examples of property tests: the same each time"
    seed = config.getoption("--hypothesis-seed")
    return f"examples of property tests: fresh; again: pytest --hypothesis-profile=fresh --hypothesis-seed={seed}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says so at the end, too, where `pytest -q` has no head."""
    if _draws_fresh_examples(config):
        terminalreporter.write_line(pytest_report_header(config))


def _draws_fresh_examples(config: pytest.Config) -> bool:
    return (config.getoption("--hypothesis-profile") or settings.get_current_profile_name()) == "fresh"


@pytest.fixture(scope="session", autouse=True)
def _elsewhere(tmp_path_factory, request):
    """Lets every process that a test starts import the memload under test, and begins what runs beside the tests.

    From the root of the checkout, `python -c` would find the folder memload/ there, built or not.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        patch.setenv("PYTHONPATH", str(UNDER_TEST))
        multiprocessing.set_forkserver_preload(["torch", "memload"])  # imported once for all that start afresh
        folder, first = folder_of_the_run(tmp_path_factory)
        with contextlib.ExitStack() as beside:
            if first and "extension" in sys.modules:  # some test wants the simulated device
                beside.callback(sys.modules["extension"].begin_compiling().close)
            for number, programs in enumerate(programs_ahead(request.session.items)):
                programs.begin(folder / str(number), first=first)
            yield


def folder_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """Return a folder of this run, which its workers share, and whether this process is the first to ask for it."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "ahead"
    try:
        folder.mkdir()
    except FileExistsError:
        return folder, False
    return folder, True


@pytest.fixture(autouse=True)
def _no_process_stays():
    """Fails a test that leaves worker processes behind: whichever test collects what holds them waits 5 s for each.

    An error that is kept holds the frames that it went through, and these hold the iterator that owns the workers.
    """
    before = multiprocessing.active_children()
    yield
    left = [process for process in multiprocessing.active_children() if process not in before]
    for process in left:  # one may be at its end
        process.join(10)
    left = [process for process in left if process.is_alive()]
    assert left == [], "processes that outlive the test; where an error keeps them, keep its text alone"


@pytest.fixture
def freed_memory_goes_back(monkeypatch):
    """The environment of a run whose C library gives freed tensors back: plans count what is alive, and no more."""
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "262144")


@pytest.fixture
def passes_end_patiently(monkeypatch):
    """Let the end of a pass wait for functions that are under way, however long a busy machine takes for them."""
    monkeypatch.setattr("memload.engine.transforms.threads._PATIENCE", MOST_SECONDS)


@pytest.fixture
def collector_is_off() -> Generator[None, None, None]:
    """Python's collector of garbage collects only what a test tells it to."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def ctrl_c_counts() -> Generator[None, None, None]:
    """Ctrl-C raises, although workers of pytest, and what runs in the background, may have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def one_thread():
    """One thread of torch: small steps take longer where two wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def programs_ahead(items: list[pytest.Item]) -> list[Ahead]:
    """Return what the modules of these tests have to be begun ahead, in the order of the tests."""
    modules = dict.fromkeys(item.module for item in items if isinstance(item, pytest.Function))
    values = [value for module in modules for value in vars(module).values()]
    each = [one for value in values for one in (value.values() if isinstance(value, dict) else [value])]
    return [one for one in each if isinstance(one, Ahead)]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector from what is imported meanwhile, which it would go through whenever a test collects.

    While assertions are rewritten it would do so all the time: collecting takes a quarter less without it.
    """
    gc.disable()
    result = yield
    leave_alone_what_is_there()
    gc.enable()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Does so after each module, too: thousands of tests leave reports and imports, and hundreds of them collect."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        leave_alone_what_is_there()


def leave_alone_what_is_there() -> None:
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts tests that ask for programs ahead behind the others, beside which these run; leaves out what needs a GPU.

    Tests that need a GPU where there is none are deselected and counted, not skipped for ever.
    """
    items.sort(key=lambda item: bool(programs_ahead([item])))
    if torch.cuda.is_available():
        return
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing:
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@pytest.fixture(scope="session")
def store_server() -> Generator[Server, None, None]:
    """A server of object stores on loopback, which ends with the session."""
    from stores import Server

    server = Server()
    yield server
    server.close()


@pytest.fixture
def proxy(store_server: Server, monkeypatch: pytest.MonkeyPatch) -> Generator[Proxy, None, None]:
    """A proxy before the server, to which the environment leads addresses that begin with s3://."""
    from stores import Proxy

    proxy = Proxy(store_server.port)
    for name, value in store_server.environment(proxy.port).items():
        monkeypatch.setenv(name, value)
    yield proxy
    proxy.close()


@pytest.fixture(scope="session")
def servers(store_server: Server) -> Generator[dict[str, Server | CloudServer], None, None]:
    """Servers of all kinds of stores on loopback, by the schemes of their addresses."""
    from cloud_stores import AzureServer, GoogleServer

    others = {"gs": GoogleServer(), "az": AzureServer()}
    yield {"s3": store_server, **others}
    for server in others.values():
        server.close()


@pytest.fixture(params=["s3", "gs", "az"])
def store(
    request: pytest.FixtureRequest, servers: dict[str, Server | CloudServer], monkeypatch: pytest.MonkeyPatch
) -> Generator[Store, None, None]:
    """A store of each kind, with a proxy before its server."""
    from stores import Proxy, Store

    server = servers[request.param]
    proxy = Proxy(server.port)
    for name, value in server.environment(proxy.port).items():
        monkeypatch.setenv(name, value)
    yield Store(request.param, server, proxy)
    proxy.close()


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path, None, None]:
    """The folder of shards that wait to be uploaded to a store; the test has to leave it empty."""
    folder = tmp_path / "uploads"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert list(folder.glob("memload-upload-*")) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path, None, None]:
    """A file system of 2 MiB, where this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.getuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=False).returncode
    ):
        pytest.skip("may not mount a small file system here")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)

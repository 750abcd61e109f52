"""What holds for the whole run: which memload is tested, what is imported once, what is left out without a GPU."""

import gc
import multiprocessing
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import memload

# Examples that write files wait for the disk: a machine that is busy with other things must not fail them.
settings.register_profile("memload", deadline=None)
settings.load_profile("memload")

UNDER_TEST = Path(memload.__file__).parent.parent


@pytest.fixture(scope="session", autouse=True)
def _elsewhere(tmp_path_factory):
    """Lets every process that a test starts import the memload under test.

    From the root of the checkout, `python -c` would find the folder memload/ there, built or not.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        patch.setenv("PYTHONPATH", str(UNDER_TEST))
        multiprocessing.set_forkserver_preload(["torch", "memload"])  # imported once for all that start afresh
        yield


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from what has been imported, which it would go through whenever a test collects."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the tests that need a GPU out of a run that has none: deselected and counted, not skipped for ever."""
    if torch.cuda.is_available():
        return
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing:
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]

"""What holds for the whole run: which memload is tested, and what a machine without a GPU leaves out."""

from pathlib import Path

import pytest
import torch

import memload

UNDER_TEST = Path(memload.__file__).parent.parent


@pytest.fixture(scope="session", autouse=True)
def _elsewhere(tmp_path_factory):
    """Lets every process that a test starts import the memload under test.

    From the root of the checkout, `python -c` would find the folder memload/ there, built or not.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        patch.setenv("PYTHONPATH", str(UNDER_TEST))
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the tests that need a GPU out of a run that has none: deselected and counted, not skipped for ever."""
    if torch.cuda.is_available():
        return
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing:
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]

"""Ray Train with two workers. A stage of its own: ray is large, and takes half a minute to start and stop."""

import pytest
from framework_runs import run

ROWS = 103

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run("ray_runs.py", tmp_path_factory.mktemp("reports"), ranks=2, launcher="itself", seconds=300)


@pytest.mark.parametrize(
    "scenario", ["prepare_data_loader", "prepare_data_loader, in order", "a stock loader", "FastLoader"]
)
def test_the_workers_of_ray_train_share_the_rows_out_natively(ranks, scenario):
    for found in ranks:
        ours, stock = found[scenario]["ours"], found[scenario]["stock"]
        assert ours["epochs"] == stock["epochs"]
        assert ours["native_rows"] == sum(len(batch) for epoch in ours["epochs"] for batch in epoch)
        assert ours["fresh"] == stock["native_rows"] == 0
    for epoch in zip(*(found[scenario]["ours"]["epochs"] for found in ranks), strict=True):
        rows = [row for rank in epoch for batch in rank for row in batch]
        assert set(rows) == set(range(ROWS))
        assert len(rows) == ROWS + 1  # two ranks, an odd number of rows


def test_the_program_of_the_page_runs(tmp_path):
    assert run("page.py", tmp_path, "Ray Train", seconds=300) == [{"Ray Train": {"programs": 1}}]

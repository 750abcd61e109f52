"""Lightning's Trainer on one device and two: FastLoader comes through it as a FastLoader, with the stock batches."""

import pytest
from framework_runs import ahead

ROWS = 103


ALONE = ahead("lightning_runs.py")
RANKS = ahead("lightning_runs.py", "ddp", ranks=2, launcher="itself")


@pytest.fixture(scope="module")
def alone():
    return ALONE.found[0]


@pytest.fixture(scope="module")
def ranks():
    return [rank["ddp"] for rank in RANKS.found]


def rows_of(seen):
    return [row for epochs in seen.values() for epoch in epochs for batch in epoch for row in batch]


def assert_as_stock(found, scenario, *, engine="native", same_values=True):
    """Every stage saw the stock loader's batches, each gathered natively, and the model learnt the same."""
    ours, stock = found[scenario]["ours"], found[scenario]["stock"]
    assert ours["seen"] == stock["seen"]
    assert ours["engines"] == [engine]
    assert ours["native_rows"] == len(rows_of(ours["seen"])) > 0
    assert ours["fresh"] == stock["native_rows"] == 0
    assert ours["samplers"] == stock["samplers"]
    assert not same_values or ours["weight"] == stock["weight"]


@pytest.mark.parametrize(
    "scenario",
    ["fit", "limits", "overfit_batches", "fast_dev_run", "validate", "test", "predict", "workers", "a hook"],
)
def test_the_trainer_runs_on_the_native_engine(alone, scenario):
    assert_as_stock(alone, scenario)
    assert alone[scenario]["ours"]["loaders"] == ["FastLoader"]


def test_every_epoch_sees_each_sample_once(alone):
    seen = alone["fit"]["ours"]["seen"]
    assert len(seen["train"]) == len(seen["validate"]) == 2
    for epoch in seen["train"] + seen["validate"]:
        assert sorted(row for batch in epoch for row in batch) == list(range(ROWS))


def test_a_stock_loader_over_a_memload_dataset_gets_native_batches(alone):
    assert_as_stock(alone, "the batch fetcher", engine="stock")


def test_a_loader_that_is_made_anew_keeps_what_only_fast_loader_has(alone):
    assert_as_stock(alone, "a cast", same_values=False)
    assert alone["a cast"]["ours"]["dtypes"] == ["torch.float32"]
    assert set(alone["a cast"]["ours"]["depths"]) == {3}


def test_a_run_that_was_stopped_in_an_epoch_goes_on_where_it_was(alone):
    found = alone["resume"]
    assert found["before"] == [found["whole"][0][:5]]
    assert found["after"] == [found["whole"][0][5:], found["whole"][1]]


def test_fabric_keeps_the_loader_and_its_place_in_an_epoch(alone):
    whole, before, after = (alone["fabric"][name] for name in ("whole", "before", "after"))
    assert sorted(row for batch in whole["rows"] for row in batch) == list(range(ROWS))
    assert before["rows"] + after["rows"] == whole["rows"]
    assert (whole["native_rows"], whole["fresh"]) == (ROWS, 0)


def test_a_monitor_is_a_callback_of_the_trainer(alone):
    found = alone["monitor"]
    assert found["last"] == [found["steps"] - 1, 1]
    assert found["logged"] > 0
    assert found["ended"]
    assert found["pickled"] == "MonitorCallback"


def test_a_monitor_stops_the_trainer_before_a_step_and_ends_with_it(alone):
    found = alone["monitor"]
    assert "stop_at=1 MB" in found["stopped"]
    assert found["steps_before_the_stop"] == 0
    assert found["ended_then"]


def test_a_trainer_leaves_a_monitor_running_that_ran_before(alone):
    assert alone["monitor"]["left_running"]


@pytest.mark.parametrize("scenario", ["fit", "overfit_batches"])
def test_two_devices_run_on_the_native_engine(ranks, scenario):
    for found in ranks:
        assert_as_stock(found, scenario)
        assert found[scenario]["ours"]["loaders"] == ["FastLoader"]
        assert set(found[scenario]["ours"]["samplers"]) <= {"DistributedSampler", "DistributedSamplerWrapper"}


def test_two_devices_share_the_rows_out_and_shuffle_anew_each_epoch(ranks):
    epochs = zip(*(found["fit"]["ours"]["seen"]["train"] for found in ranks), strict=True)
    seen = [[row for rank in epoch for batch in rank for row in batch] for epoch in epochs]
    assert len(seen) == 2
    assert seen[0] != seen[1]
    for rows in seen:
        assert set(rows) == set(range(ROWS))
        assert len(rows) == ROWS + 1  # two ranks, an odd number of rows: one comes twice, as with the stock sampler


@pytest.mark.parametrize("kind", ["weighted", "mixed", "blocks"])
def test_two_devices_leave_a_sampler_that_shares_its_rows_out_as_it_is(ranks, kind):
    samplers = {"weighted": "WeightedSampler", "mixed": "MixingSampler", "blocks": "BlockShuffle"}
    shares = []
    for found in ranks:
        assert found[kind]["samplers"] == [samplers[kind]]
        assert found[kind]["engines"] == ["native"]
        shares.append([[row for batch in epoch for row in batch] for epoch in found[kind]["seen"]["train"]])
    for order, *epoch in zip(ranks[0][kind]["common"], *shares, strict=True):
        dealt = [row for turn in zip(*epoch, strict=True) for row in turn]
        assert dealt[:ROWS] == order
        assert len(dealt) == ROWS + 1


def test_two_devices_get_native_batches_of_a_stock_loader(ranks):
    for found in ranks:
        assert_as_stock(found, "the batch fetcher", engine="stock")


def test_two_devices_keep_what_only_fast_loader_has(ranks):
    for found in ranks:
        assert_as_stock(found, "a cast", same_values=False)
        assert found["a cast"]["ours"]["dtypes"] == ["torch.float32"]
        assert set(found["a cast"]["ours"]["depths"]) == {3}

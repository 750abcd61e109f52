"""Training loops of other libraries, the real ones, on one rank and two: samples as with the stock loader, natively.

Each scenario of a script runs twice: for FastLoader or the batch fetcher, and for the stock loader over plain samples.
Its results are compared batch by batch, and counters prove that the native gather made every batch.
"""

import pytest
from framework_runs import ahead, run

ROWS, BATCH = 103, 8


OF_ANY_RANKS = ("accelerate_runs.py", "transformers_runs.py")
RUNS = {  # by script and number of ranks
    ("torchrun_ddp.py", 2): ahead("torchrun_ddp.py", ranks=2, launcher="torchrun"),
    **{(name, ranks): ahead(name, ranks=ranks) for name in OF_ANY_RANKS for ranks in (1, 2)},
    ("geometric_runs.py", 1): ahead("geometric_runs.py"),
}


@pytest.fixture(scope="module")
def reports():
    """The reports of all ranks of a script, by script and number of ranks."""
    return lambda script, ranks=1: RUNS[script, ranks].found


def rows_of(epochs):
    return [[row for batch in epoch for row in batch] for epoch in epochs]


def assert_as_stock(found, scenario):
    """On every rank the batches are the stock loader's, and the native gather made each row of them."""
    for rank in found:
        ours, stock = rank[scenario]["ours"], rank[scenario]["stock"]
        assert ours["epochs"] == stock["epochs"]
        assert ours["native_rows"] == sum(map(len, rows_of(ours["epochs"])))
        assert ours["fresh"] == 0
    assert stock["native_rows"] == 0  # counts nothing but what memload gathers


def assert_each_row_once(found, scenario, *, repeated=0):
    """In every epoch the ranks together see each row once, and so many more to make their numbers even."""
    for epoch in zip(*(rows_of(rank[scenario]["ours"]["epochs"]) for rank in found), strict=True):
        rows = [row for rank in epoch for row in rank]
        assert set(rows) == set(range(ROWS))
        assert len(rows) == ROWS + repeated


@pytest.mark.parametrize("scenario", ["FastLoader", "FastLoader, in order", "the batch fetcher"])
def test_torchrun_ranks_share_the_rows_out_as_distributed_sampler_does(reports, scenario):
    found = reports("torchrun_ddp.py", ranks=2)
    assert_as_stock(found, scenario)
    assert_each_row_once(found, scenario, repeated=1)
    assert found[0][scenario]["ours"]["weight"] == found[0][scenario]["stock"]["weight"]
    epochs = found[0][scenario]["ours"]["epochs"]
    assert (epochs[0] != epochs[1]) == ("in order" not in scenario)  # set_epoch shuffles anew


def test_torchrun_ranks_drop_the_same_rows_as_distributed_sampler_does(reports):
    found = reports("torchrun_ddp.py", ranks=2)
    assert_as_stock(found, "FastLoader, drop_last")
    assert {len(rows) for rank in found for rows in rows_of(rank["FastLoader, drop_last"]["ours"]["epochs"])} == {51}


def test_torchrun_ranks_get_equally_many_batches_of_a_budget(reports):
    found = reports("torchrun_ddp.py", ranks=2)
    assert_as_stock(found, "FastLoader, by budget")
    assert_each_row_once(found, "FastLoader, by budget")
    first, second = (rank["FastLoader, by budget"]["ours"]["epochs"] for rank in found)
    assert list(map(len, first)) == list(map(len, second))
    assert first[0] != first[1]


@pytest.mark.parametrize("kind", ["weighted", "mixed"])
def test_torchrun_ranks_share_out_what_samplers_of_memload_draw(reports, kind):
    """The global generators of the ranks differ, and nothing was said of ranks."""
    found = reports("torchrun_ddp.py", ranks=2)
    assert_as_stock(found, kind)
    assert_dealt(found[0][kind]["common"], [rows_of(rank[kind]["ours"]["epochs"]) for rank in found])
    if kind == "weighted":  # without replacement
        assert_each_row_once(found, kind, repeated=1)


def assert_dealt(common, shares):
    """In every epoch the ranks take turns in the common order, and the last turn is full."""
    for order, *epoch in zip(common, *shares, strict=True):
        dealt = [row for turn in zip(*epoch, strict=True) for row in turn]
        assert dealt[:ROWS] == order
        assert len(dealt) == ROWS + 1


def test_torchrun_ranks_that_set_the_same_weights_at_each_step_have_equally_many_rows(reports):
    first, second = (rank["changed weights"] for rank in reports("torchrun_ddp.py", ranks=2))
    assert first["weights"] == second["weights"]
    assert len(first["rows"]) == len(second["rows"]) == 200
    assert first["rows"] != second["rows"]


ACCELERATE = ["", ", in order", ", drop_last", ", split_batches", ", uneven batches", ", seedable sampler"]


def assert_like_stock_in_all_that_accelerate_says(found, scenario):
    for rank in found:
        ours, stock = rank[scenario]["ours"], rank[scenario]["stock"]
        for name in ("metrics", "ends", "length", "total"):
            assert ours[name] == stock[name], name


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("way", ["accelerator.prepare", "memload.prepare"])
@pytest.mark.parametrize("what", [*ACCELERATE, ", skip_first_batches", ", dispatch_batches"])
def test_accelerate_gets_what_it_gets_of_the_stock_loader(reports, way, what, ranks):
    found, scenario = reports("accelerate_runs.py", ranks=ranks), way + what
    assert_like_stock_in_all_that_accelerate_says(found, scenario)
    if "dispatch" not in what:
        assert_as_stock(found, scenario)
    if ranks == 1 and what in ("", ", in order", ", split_batches", ", seedable sampler"):
        assert_each_row_once(found, scenario)
    assert {rank[scenario]["ours"]["engine"] for rank in found} == {"native" if "memload" in way else "stock"}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("way", ["memload.prepare, weighted", "memload.prepare, mixed", "accelerator.prepare, alone"])
@pytest.mark.parametrize("what", ["", ", seedable sampler", ", dispatch_batches", ", split_batches"])
def test_accelerate_deals_out_what_samplers_of_memload_draw_for_all_ranks(reports, way, what, ranks):
    for rank in reports("accelerate_runs.py", ranks=ranks):
        epochs = rank[way + what]["metrics"]
        assert [len(rows) for rows in epochs] == [ROWS] * 2
        assert epochs[0] != epochs[1]
        if "mixed" not in way:  # without replacement
            assert [sorted(rows) for rows in epochs] == [list(range(ROWS))] * 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_itself_makes_a_sampler_of_memload_draw_for_all_ranks(reports, ranks):
    for rank in reports("accelerate_runs.py", ranks=ranks):
        epochs = rank["accelerator.prepare, weighted"]["metrics"]
        assert [sorted(rows) for rows in epochs] == [list(range(ROWS))] * 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_deals_out_the_batches_of_a_budget_once(reports, ranks):
    found = [rank["memload.prepare, a budget"]["batches"] for rank in reports("accelerate_runs.py", ranks=ranks)]
    batches = [tuple(batch) for rank in found for batch in rank]
    assert len(set(map(len, found))) == 1
    assert len(batches) - len(set(batches)) < ranks  # whole batches come again to make their numbers equal
    assert sorted(row for batch in set(batches) for row in batch) == list(range(ROWS))


def test_rows_that_a_sampler_shares_out_are_not_shared_out_again_by_accelerate(reports):
    for rank in reports("accelerate_runs.py", ranks=2):
        assert "num_replicas=2 ranks, and accelerate would share" in rank["memload.prepare, shared out already"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("way", ["accelerator.prepare", "memload.prepare"])
@pytest.mark.parametrize("what", ["", ", split_batches", ", seedable sampler", ", dispatch_batches"])
def test_gather_for_metrics_sees_each_sample_once(reports, way, what, ranks):
    for rank in reports("accelerate_runs.py", ranks=ranks):
        assert [sorted(rows) for rows in rank[way + what]["ours"]["metrics"]] == [list(range(ROWS))] * 2


@pytest.mark.parametrize("way", ["accelerator.prepare", "memload.prepare"])
def test_accelerate_dispatches_batches_that_the_first_rank_alone_gathers(reports, way):
    first, second = (rank[way + ", dispatch_batches"] for rank in reports("accelerate_runs.py", ranks=2))
    assert (first["ours"]["native_rows"], second["ours"]["native_rows"]) == (2 * ROWS, 0)
    for rank in (first, second):
        assert rank["ours"]["epochs"] == rank["stock"]["epochs"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("way", ["accelerator.prepare", "memload.prepare"])
def test_a_cast_survives_that_accelerate_builds_other_loaders(reports, way, ranks):
    for rank in reports("accelerate_runs.py", ranks=ranks):
        found = rank[way + ", cast"]
        assert found["values"]
        assert found["native_rows"] == found["rows"]
        assert found["seen"][1] == found["seen"][0][2:]


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_saves_and_loads_the_state_of_a_prepared_loader(reports, ranks):
    for rank in reports("accelerate_runs.py", ranks=ranks):
        found = rank["memload.prepare, save_state"]
        assert found["ours"] == found["stock"]
        assert ranks > 1 or found["ours"]["first"] == found["ours"]["again"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_takes_a_prepared_loader_up_in_the_middle_of_an_epoch(reports, ranks):
    for rank in reports("accelerate_runs.py", ranks=ranks):
        found = rank["memload.prepare, stateful"]
        assert found["rest"] == found["whole"][3:]
        assert len(found["next"]) == len(found["whole"])
        assert len(set(found["draws"])) == 1


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("how", ["dispatch_batches", "split_batches"])
def test_accelerate_takes_batches_up_that_the_first_rank_deals_out_by_the_state_of_that_rank(reports, how, ranks):
    for rank in reports("accelerate_runs.py", ranks=ranks):
        found = rank[f"memload.prepare, stateful, {how}"]
        # accelerate completes the last batch by rows of the first that it saw, which is another one here.
        *rest, last = found["rest"]
        *expected, expected_last = found["whole"][3:]
        assert rest == expected
        assert last[:-1] == expected_last[:-1]
        assert len(last) == len(expected_last)
        assert len(found["next"]) == len(found["whole"])
        assert len(set(found["draws"])) == 1


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("scenario", ["as it is", "default_collate", "FastLoader"])
def test_the_trainer_of_transformers_trains_and_predicts_natively(reports, scenario, ranks):
    found = reports("transformers_runs.py", ranks=ranks)
    for rank in found:
        ours, stock = rank[scenario]["ours"], rank[scenario]["stock"]
        for name in ("train", "eval", "predicted", "weight"):
            assert ours[name] == stock[name], name
        assert ours["train_rows"] == len(rows_of([ours["train"]])[0])
        fast = ours["train_rows"] if scenario == "FastLoader" else 0  # which counts for itself
        assert ours["native_rows"] + fast == ours["train_rows"] + len(rows_of([ours["eval"]])[0])
        assert ours["fresh"] == stock["native_rows"] == 0
        assert ours["predicted"] == list(range(ROWS))
    seen = sorted(row for rank in found for row in rows_of([rank[scenario]["ours"]["train"]])[0])
    assert set(seen) == set(range(ROWS))
    assert ranks > 1 or seen == sorted([*range(ROWS)] * 2)


def test_the_trainer_of_transformers_goes_on_from_a_checkpoint(reports):
    found = reports("transformers_runs.py")[0]["resume"]
    assert found["ours"]["train"] == found["stock"]["train"]
    assert len(found["ours"]["train"]) == 2 * 13 - 5
    assert found["ours"]["train_rows"] == 2 * ROWS - 5 * BATCH


def test_the_trainer_of_transformers_may_use_worker_processes(reports):
    found = reports("transformers_runs.py")[0]["workers"]
    assert found["ours"]["train"] == found["stock"]["train"]


@pytest.mark.parametrize("scenario", ["dict", "tuple", "view"])
def test_the_loader_of_pytorch_geometric_gets_native_rows(reports, scenario):
    found = reports("geometric_runs.py")
    assert_as_stock(found, scenario)
    assert_each_row_once(found, scenario)


def test_the_programs_of_the_page_run(tmp_path):
    headings = "Lightning", "accelerate", "transformers", "PyTorch Geometric"
    (found,) = run("page.py", tmp_path, *headings)
    assert {heading: one["programs"] for heading, one in found.items()} == dict(
        zip(headings, (1, 1, 2, 1), strict=True)
    )


def test_the_program_of_the_page_for_torchrun_runs_on_two_ranks(reports):
    found = reports("torchrun_ddp.py", ranks=2)
    assert [rank["the page"] for rank in found] == [{"programs": 1}] * 2

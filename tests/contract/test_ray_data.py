"""Ray Data writes sets of shards through memload.ShardSink, on a real Ray of this machine. Part of the stage of ray."""

import pytest
from framework_runs import run

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run("ray_data_runs.py", tmp_path_factory.mktemp("reports"), launcher="itself", seconds=300)[0]


def test_rows_of_every_kind_come_out_as_they_went_in(found):
    kinds = found["kinds"]
    assert kinds["rows"] == 100
    assert kinds["order"] == list(range(100))
    assert kinds["text"] == [f"row {k}" * (k % 3) for k in range(100)]
    assert kinds["lengths"] == [k % 4 for k in range(100)]
    assert kinds["image_sums"] == [k * 12.0 for k in range(100)]
    assert kinds["parts"] > 1
    assert kinds["names"] == ["index.json"]


def test_a_task_whose_worker_was_killed_writes_its_part_again(found):
    assert found["killed"] == {"rows": 100, "order": list(range(100)), "names": ["index.json"], "died": True}


def test_a_job_that_fails_leaves_nothing(found):
    assert "a broken row" in found["failed"]["raised"]
    assert found["failed"]["exists"] is False


def test_a_directory_that_exists_is_refused_and_left_alone(found):
    assert "this set is complete" in found["refused"]["raised"]
    assert found["refused"]["rows"] == 100


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_a_task_that_outlives_its_job_is_in_no_set_of_the_next_one(found, kind):
    late = found["late"][kind]
    assert "the job that this writer belongs to has ended" in late["late"]
    assert late["order"] == list(range(1000, 1100))
    assert late["files"] == sorted(["index.json", *late["listed"]])


def test_the_program_of_the_page_runs(found):
    assert found["page"] == {"rows": 1000}

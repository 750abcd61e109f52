"""Rows that processes of a machine share: each lies once, batches are those from files, and no order of ends hurts."""

import functools
import json
import signal

import pytest
import sharing_cases
import torch
from programs import run_all
from sharing_cases import SimulatedNodeMemory, recording

import memload
from memload.device.node_memory import SharedFile
from memload.device.node_sharing import NodeShare
from memload.device.pinned_memory import Reads

CASES = ("same_batches", "placed_once", "dropped_in_any_order", "refused", "failed_while_loading", "forked")
PAIRS = (CASES, ("reader_killed",), ("owner_leaves_first",))


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What each process left, by the cases of its pair; all pairs run at once."""
    pairs = {
        names: tmp_path_factory.mktemp("meeting") for names in (CASES, ("reader_killed",), ("owner_leaves_first",))
    }
    programs = {
        (names, rank): program
        for names, folder in pairs.items()
        for rank, program in sharing_cases.programs(folder, *names).items()
    }
    left = run_all({f"{names[0]} {rank}": program for (names, rank), program in programs.items()})
    return {names[0]: [left[f"{names[0]} {rank}"] for rank in range(2)] for names in pairs}


@pytest.fixture(scope="module")
def ran(ended):
    both = ended[CASES[0]]
    assert [one.status for one in both] == [0, 0], [one.err for one in both]
    return {name: [json.loads(one.out[k]) for one in both] for k, name in enumerate(CASES)}


def test_batches_are_those_from_files_in_each_process_and_shuffling_is_global(ran):
    first, second = ran["same_batches"]
    assert first["same"]
    assert second["same"]
    assert set(first["rows"]) | set(second["rows"]) == set(range(97))
    assert "on devices of 2 processes" in first["says"]


def test_each_row_lies_once_and_ram_is_one_file(ran):
    first, second = ran["placed_once"]
    assert first["rows"] == second["rows"]
    on_devices, in_ram = first["rows"]
    assert sum(on_devices) + in_ram == 97
    assert min(on_devices) > 0
    assert in_ram > 0
    assert first["files"] == second["files"]
    assert len(first["files"]) == 3  # the RAM, and the memory of each process


def test_the_owner_may_drop_its_rows_first_and_last(ran):
    first, second = ran["dropped_in_any_order"]
    assert first == [[1, 0], [0, 1], True, [0, 2]]
    assert second == [True, [0, 1], [1, 1], [0, 2]]


def test_an_error_of_one_process_is_one_of_all_and_leaves_nothing(ran):
    first, second = ran["refused"]
    for seen in (first, second):
        rows, sizes, _, small = seen["said"]
        assert "load different rows" in rows
        assert "nbytes: 20000 and 20001" in sizes
        assert "less than one row" in small
        assert seen["kept"] == 0
    assert first["said"][2].endswith("process 1 of the group: DeviceError: there is no memory left")
    assert second["said"][2] == "there is no memory left"
    assert [first["freed"], second["freed"]] == [1, 0]


def test_other_rows_other_content_and_other_weights_are_refused_in_all_processes(ran):
    for seen in ran["refused"]:
        rows, content, weights, _ = seen["other"]
        assert all("load different rows" in said for said in (rows, content, weights))
        assert "weights:" in weights
    assert "process 1 of the group: DeviceError" in ran["refused"][0]["other"][3]
    assert "cuda:99" in ran["refused"][1]["other"][3]


def test_a_load_that_fails_leaves_no_memory_while_its_error_is_held(ran):
    assert ran["failed_while_loading"] == [[0, True]] * 2


@pytest.mark.parametrize(("said", "done"), [("cudaErrorLaunchFailure", True), ("cudaErrorCapturedEvent", False)])
def test_all_streams_are_waited_for_when_one_of_them_fails(said, done):
    """After a failed kernel nothing runs any more."""
    waited = []

    def wait_for(number):
        waited.append(number)
        if number == 0:
            raise RuntimeError(said)

    reads = Reads()
    reads._last = {(0, number): functools.partial(wait_for, number) for number in range(3)}
    assert reads.wait() == done
    assert waited == [0, 1, 2]


def test_a_forked_process_is_refused(ran):
    assert ran["forked"] == [[99, True]] * 2


def test_a_reader_that_was_killed_is_no_reader(ended):
    owner, killed = ended["reader_killed"]
    assert killed.status == -signal.SIGKILL
    assert (owner.status, json.loads(owner.out[0])) == (0, [0, 1])


def test_an_owner_that_leaves_waits_for_readers(ended):
    assert [(one.status, one.out, one.err) for one in ended["owner_leaves_first"]] == [(0, ["true"], "")] * 2


def test_reads_are_waited_for_before_memory_is_closed_and_closed_before_it_is_freed():
    order = []
    memory = SimulatedNodeMemory()
    share = NodeShare(memory.export(10), memory.device)
    other = SharedFile.create(1)
    share.reads.wait = lambda: order.append("wait") or True
    opened = memory.open(SharedFile.create(10).path, 10)
    share.add(type(opened)(opened.memory, lambda: order.append("close")), other.path)
    share.close()
    assert order == ["wait", "close"]
    assert memory.freed == 1


def test_one_process_shares_with_itself_and_without_a_group_nothing(tmp_path):
    with pytest.raises(TypeError, match="call init_process_group first"):
        memload.to_device(recording(), "cpu", group="WORLD")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        with pytest.raises(TypeError, match=r"group\.WORLD; got 'WORLD'"):
            memload.to_device(recording(), "cpu", group="WORLD")
        with pytest.raises(TypeError, match="names the one device"):
            memload.to_device(recording(), ["cpu", "cpu"], group=torch.distributed.group.WORLD)
        alone = memload.to_device(recording(), "cpu", bytes=30_000, group=torch.distributed.group.WORLD)
        assert alone.tier is memload.Tier.SPLIT
        assert alone[96]["number"] == 96
        column, noted = alone.fields["number"].column, []
        column.share.reads.note = noted.append
        column.was_read()
        assert noted == [torch.device("cpu")]
        column.share.close()
        with pytest.raises(memload.DeviceError, match="given back already"):
            alone[96]
    finally:
        torch.distributed.destroy_process_group()

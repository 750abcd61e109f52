"""The NUMA node of a GPU, read from a tree of files in the form of sysfs, and what is placed there."""

import contextlib
import os
import re
from pathlib import Path

import pytest
import torch
from simulated import SimulatedInterface
from torch.utils.dlpack import from_dlpack

import memload
from memload import _core
from memload.cli import doctor
from memload.device.numa import NumaNode, node_near, node_of_pci, numa_nodes

GPU = "0000:3b:00.0"


def machine(root, nodes, node_of_gpu):
    for number, cpus in nodes.items():
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    pci = root / "sys/bus/pci/devices" / GPU
    pci.mkdir(parents=True)
    (pci / "numa_node").write_text(f"{node_of_gpu}\n")
    return root


def test_doctor_shows_the_node_of_a_gpu_on_a_machine_with_several(tmp_path):
    root = machine(tmp_path, {0: "0-7,16-23", 1: "8-15", 10: ""}, 1)
    assert numa_nodes(root) == {0: "0-7,16-23", 1: "8-15", 10: ""}
    assert node_of_pci(GPU, root) == 1
    (fact,) = doctor.node_facts(3, GPU, root)
    assert "GPU 3" in str(fact)
    assert "NUMA node 1 (CPUs 8-15)" in str(fact)
    assert "numactl --cpunodebind=1 " in str(fact)


def test_machines_with_one_node_or_without_the_files_say_nothing(tmp_path):
    one, silent = tmp_path / "one", tmp_path / "silent"
    for root in (machine(one, {0: "0-3"}, 0), machine(silent, {0: "0-3", 1: "4-7"}, -1), tmp_path / "none"):
        assert node_of_pci(GPU, root) is None
        assert not [*doctor.node_facts(0, GPU, root)]
    assert not [*doctor.node_facts(0, "", silent)]


def test_the_cpus_of_a_node_are_read_as_sysfs_writes_them(tmp_path):
    root = machine(tmp_path, {0: "0-7,16-23", 1: "8-10,12", 2: ""}, 1)
    assert node_near(GPU, root) == NumaNode(1, (8, 9, 10, 12))
    assert node_near(GPU, machine(tmp_path / "memory", {0: "0-3", 2: ""}, 2)) == NumaNode(2, ())
    assert node_near(GPU, machine(tmp_path / "one", {0: "0-3"}, 0)) is None


def cpus_of_gathering_threads():
    """On which CPUs each native thread of this process may run."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # of a thread that ends meanwhile
            if re.match(r"memload-\d", (task / "comm").read_text()):
                found.append(os.sched_getaffinity(int(task.name)))
    return found


def affinities_in_a_pass(device, **options):
    ds = memload.from_arrays(x=torch.arange(4000, dtype=torch.uint8).view(1000, 4))
    batches = iter(memload.FastLoader(ds, 10, device=device, options=memload.EngineOptions(**options)))
    next(batches)
    return cpus_of_gathering_threads()


def test_a_pass_to_a_device_has_its_threads_on_the_devices_node():
    allowed = os.sched_getaffinity(0)
    device = SimulatedInterface()
    assert all(cpus == allowed for cpus in affinities_in_a_pass(device, threads=1))
    device.near = NumaNode(0, (min(allowed), 10_000))
    placed = affinities_in_a_pass(device, threads=1)
    assert placed
    assert all(cpus == {min(allowed)} for cpus in placed)
    assert all(cpus == allowed for cpus in affinities_in_a_pass(device, threads=2))  # they would share a CPU
    device.near = NumaNode(0, ())
    assert all(cpus == allowed for cpus in affinities_in_a_pass(device, threads=1))


def test_an_affinity_that_the_program_has_is_never_left():
    allowed, device = os.sched_getaffinity(0), SimulatedInterface()
    if len(allowed) < 2:
        pytest.skip("one CPU cannot be restricted further")
    device.near = NumaNode(0, (max(allowed),))
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert all(cpus == {min(allowed)} for cpus in affinities_in_a_pass(device, threads=1))
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_slots_of_a_pass_and_rows_in_pinned_ram_lie_on_the_devices_node():
    policies = Path("/proc/self/numa_maps")
    if not policies.exists():
        pytest.skip("this kernel knows of no nodes")
    device = SimulatedInterface()
    device.near = NumaNode(0, tuple(os.sched_getaffinity(0)))
    before = policies.read_text().count(" prefer")
    ds = memload.from_arrays(x=torch.zeros(1000, 4, dtype=torch.uint8))
    batches = iter(memload.FastLoader(ds, 10, device=device))
    next(batches)
    assert policies.read_text().count(" prefer") > before
    memory = from_dlpack(_core.withheld(1 << 21, 0))
    (line,) = [line for line in policies.read_text().splitlines() if line.startswith(f"{memory.data_ptr():x} ")]
    assert " prefer" in line

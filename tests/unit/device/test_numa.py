"""The NUMA node of a GPU, read from a tree of files in the form of sysfs."""

from memload.cli import doctor
from memload.device.numa import node_of_pci, numa_nodes

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

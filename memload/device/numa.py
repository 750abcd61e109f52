"""Finds the NUMA node of a GPU, on machines with several: memory of another node reaches the GPU through both.

Slots lie on that node, and native threads stay on its CPUs, where each has one of its own that the process may use.

Source: the kernel's documentation of sysfs, "Documentation/ABI/testing/sysfs-bus-pci" (numa_node) and
"Documentation/ABI/stable/sysfs-devices-node".
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_ROOT = Path("/")


@dataclass(frozen=True)
class NumaNode:
    """The NUMA node of a device, on a machine with several.

    Attributes:
        number: the number of the node.
        cpus: its CPUs; none: a node of memory alone.
    """

    number: int
    cpus: tuple[int, ...]


@functools.cache
def node_of_gpu(index: int) -> NumaNode | None:
    """Return the node of GPU number `index`; None if the machine has one node or none is known."""
    address = pci_address(torch.cuda.get_device_properties(index))
    return node_near(address) if address else None


def node_near(address: str, root: Path = _ROOT) -> NumaNode | None:
    """Return the node of a PCI device, such as "0000:3b:00.0", with its CPUs; None as of `node_of_pci`."""
    number = node_of_pci(address, root)
    return None if number is None else NumaNode(number, cpus_of(numa_nodes(root).get(number, "")))


def cpus_of(text: str) -> tuple[int, ...]:
    """Return the CPUs of a list in the form of sysfs.

    Example:
        >>> cpus_of("0-2,8")
        (0, 1, 2, 8)
        >>> cpus_of("")
        ()
    """
    ends = [part.partition("-") for part in text.split(",") if part]
    return tuple(cpu for first, _, last in ends for cpu in range(int(first), int(last or first) + 1))


def numa_nodes(root: Path = _ROOT) -> dict[int, str]:
    """Return the CPUs of each NUMA node, such as {0: "0-15", 1: "16-31"}; empty if the kernel does not tell."""
    folders = (root / "sys/devices/system/node").glob("node[0-9]*")
    found = {int(folder.name[len("node") :]): _text(folder / "cpulist") for folder in folders}
    return dict(sorted(found.items()))


def node_of_pci(address: str, root: Path = _ROOT) -> int | None:
    """Return the NUMA node of a PCI device, such as "0000:3b:00.0"; None if the machine has one node or none is known.

    Example:
        >>> node_of_pci("ffff:ff:1f.7") is None
        True
    """
    node = _text(root / "sys/bus/pci/devices" / address / "numa_node")
    known = node.isdigit() and len(numa_nodes(root)) > 1  # -1: the firmware does not say
    return int(node) if known else None


def pci_address(properties: Any) -> str:
    """Return the PCI address in a GPU's properties as torch gives them; "" if this torch does not tell it.

    Example:
        >>> from types import SimpleNamespace
        >>> pci_address(SimpleNamespace(pci_domain_id=0, pci_bus_id=59, pci_device_id=0))
        '0000:3b:00.0'
    """
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    numbers = [part for part in parts if part is not None]
    return "{:04x}:{:02x}:{:02x}.0".format(*numbers) if len(numbers) == len(parts) else ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

"""`memload doctor`: the facts of this machine that matter for loading, one per line, and what they mean."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from memload import _core
from memload.cli.measure import cpu_model, memcpy_gb_per_second
from memload.cli.output import is_json, keep
from memload.device.cuda_module import CudaState, cuda_state, driver_version, too_old
from memload.device.destination_buffers import pinned_copy_rate
from memload.device.memory import gpu_memories
from memload.device.numa import node_of_pci, numa_nodes, pci_address
from memload.device.torch_interface import torch_interface
from memload.memory import budget
from memload.sizes import counted

_NAME, _VALUE = 16, 34  # characters of the columns, a space at the end included
_NBYTES = "loader.nbytes says beforehand what a loader takes of it"


@dataclass(frozen=True)
class Fact:
    """One line: the name of a fact, its value, and its meaning for loading."""

    name: str
    value: str
    meaning: str

    def __str__(self) -> str:
        return f"{self.name:<{_NAME - 1}} {self.value:<{_VALUE - 1}} {self.meaning}"


def run(args: argparse.Namespace) -> int:
    """Run `memload doctor`."""
    if not args.folder.is_dir():
        raise FileNotFoundError(f"--folder {args.folder}: no such folder; name one that is there")
    found = []
    for fact in facts(args.folder):
        found.append(fact)
        if not is_json(args):
            print(fact, flush=True)
    if args.json:
        keep(args, {"facts": found})
    return 0


def facts(folder: Path) -> Iterator[Fact]:
    """Yield all facts, in the order in which they are printed."""
    yield Fact("memload", _core.version, f"with torch {torch.__version__}")
    yield Fact("machine", os.uname().machine, cpu_model())
    yield cpu_fact(budget.cpus())
    yield isa_fact(list(_core.isas()))
    yield memcpy_fact(budget.default_threads())
    yield cache_fact(budget.last_level_cache())
    yield huge_page_fact(budget.huge_pages())
    yield memory_fact(budget.memory())
    yield lock_fact(budget.memlock_limit(), root=os.geteuid() == 0)
    yield disk_fact(folder, budget.disk_free(folder))
    yield from gpu_facts()


def cpu_fact(cpus: budget.Cpus) -> Fact:
    """Return the number of threads that gather, and the limits that set it."""
    quota = "no quota" if cpus.quota is None else f"a quota of {cpus.quota:g}"
    value = f"{cpus.usable} (affinity {cpus.affinity}, {quota})"
    return Fact("CPUs", value, f"a loader gathers with {counted(cpus.usable, 'thread')} unless threads= says otherwise")


def isa_fact(isas: list[str]) -> Fact:
    """Return the instruction set of the cast kernels."""
    return Fact("instructions", ", ".join(isas), f"casts run with {isas[-1]}; all give the same bits")


def memcpy_fact(threads: int) -> Fact:
    """Return the rate of memcpy."""
    rate = memcpy_gb_per_second(threads)
    low = "; slow: a noisy neighbour or a small virtual machine" if rate < 4 else ""
    meaning = "about the highest rate of uncast rows in memory beyond the cache"
    return Fact("memcpy", f"{rate:.1f} GB/s with {counted(threads, 'thread')}", f"{meaning}{low}")


def cache_fact(nbytes: int | None) -> Fact:
    """Return the conditions under which stores bypass the cache."""
    if nbytes is None:
        return Fact("cache", "unknown size", "32 MB is assumed when stores are chosen")
    return Fact("cache", f"{nbytes >> 20} MB", f"rings of more than {nbytes * 3 // 2 >> 20} MB are written past it")


def huge_page_fact(pages: budget.HugePages) -> Fact:
    """Return whether slots are on huge pages."""
    if pages.usable:
        return Fact("huge pages", pages.mode, f"slots lie on pages of {pages.nbytes >> 20} MB")
    advice = "slots lie on small pages, which costs speed: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    return Fact("huge pages", pages.mode, advice)


def memory_fact(memory: budget.Memory) -> Fact:
    """Return the memory for a loader's ring."""
    limit = memory.tightest
    limited = "no limit" if limit is None else f"limited to {limit.nbytes / 1e9:.1f} GB"
    by = "" if limit is None else f" by {limit.name}, which leaves {limit.left / 1e9:.1f} GB"
    value = f"{memory.free / 1e9:.1f} of {memory.total / 1e9:.1f} GB free, {limited}"
    return Fact("memory", value, f"{by.strip()}; {_NBYTES}" if by else _NBYTES)


def lock_fact(limit: int | None, *, root: bool) -> Fact:
    """Return whether pages may be pinned."""
    if limit is None or root:
        return Fact(
            "pinned memory", "no limit" if limit is None else "no limit for root", "pages can be locked at will"
        )
    return Fact(
        "pinned memory", f"{limit / 1e6:.1f} MB", "mlock stops there (ulimit -l); CUDA's pinned memory does not"
    )


def disk_fact(folder: Path, free: int) -> Fact:
    """Return the free disk space for shards and the demo."""
    return Fact("disk", f"{free / 1e9:.1f} GB free", f"at {folder}; the demo writes 1 GB")


def gpu_facts() -> Iterator[Fact]:
    """Yield the GPUs that torch sees, the driver, and whether the kernels work with both; without a GPU, why."""
    gpus, driver, state = gpu_memories(), driver_version(), cuda_state()
    if not gpus:
        yield no_gpu_fact(torch.version.cuda, state, driver)
        return
    for gpu in gpus:
        major, minor = torch.cuda.get_device_capability(gpu.index)
        yield Fact(f"GPU {gpu.index}", f"{gpu.name} (sm_{major}{minor})", str(gpu))
        yield from node_facts(gpu.index, pci_address(torch.cuda.get_device_properties(gpu.index)))
    yield _copies()
    yield driver_fact(driver, {"torch": torch.version.cuda, "memload._cuda": state.toolkit})
    yield cuda_fact(state)


def node_facts(gpu: int, address: str, root: Path = Path("/")) -> Iterator[Fact]:
    """Yield the NUMA node of a GPU at a PCI address, on a machine with several nodes."""
    node = node_of_pci(address, root) if address else None
    if node is None:
        return
    cpus = numa_nodes(root).get(node, "")
    meaning = "memory of other nodes reaches this GPU more slowly: memload's slots and threads for it keep to this node"
    whole = f"numactl --cpunodebind={node} keeps the whole program there"
    yield Fact(f"GPU {gpu} is at", f"NUMA node {node} (CPUs {cpus})", f"{meaning}, {whole}")


def no_gpu_fact(cuda_of_torch: str | None, kernels: CudaState, driver: str | None) -> Fact:
    """Return why there is no GPU for torch: what was built with CUDA, the driver, and what to do, all in one fact."""
    torch_has = f"torch is built with CUDA {cuda_of_torch}" if cuda_of_torch else "torch is built without CUDA"
    memload_has = f"memload {'with' if kernels.architectures else 'without'} its CUDA kernels"
    loaded = f"driver {driver} is loaded" if driver else "no NVIDIA driver is loaded"
    found = f"{torch_has}, {memload_has}, and {loaded}: batches stay on the CPU"
    return Fact("GPU", "none that torch can use", f"{found}. {_step_to_a_gpu(cuda_of_torch, driver)}")


def _step_to_a_gpu(cuda_of_torch: str | None, driver: str | None) -> str:
    if driver is None:
        install = "" if cuda_of_torch else ", and install a torch that is built with CUDA"
        return f"To use a GPU, load its driver (in a container, docker run --gpus all brings it){install}"
    if cuda_of_torch is None:
        return "To use the GPU, install a torch that is built with CUDA"
    if old := too_old(driver, cuda_of_torch):
        return f"To use the GPU, install a newer driver: {old}"
    return "To use a GPU, see if nvidia-smi lists it, and if CUDA_VISIBLE_DEVICES in the environment hides it"


def driver_fact(driver: str | None, built_with: Mapping[str, str | None]) -> Fact:
    """Return whether the driver of a GPU is new enough for these modules, given the CUDA toolkit of each."""
    if driver is None:
        return Fact(
            "driver", "of an unknown version", "torch reaches the GPU, but /proc/driver/nvidia is not to be seen"
        )
    wanted = {who: toolkit for who, toolkit in built_with.items() if toolkit}
    problems = [f"{who}: {too_old(driver, toolkit)}" for who, toolkit in wanted.items() if too_old(driver, toolkit)]
    served = ", ".join(f"{who} (CUDA {toolkit})" for who, toolkit in wanted.items())
    return Fact("driver", driver, "; ".join(problems) or f"new enough for {served or 'this installation'}")


def copies_fact(rate: float | None, why_not: str) -> Fact:
    """Return the rate of copies from pinned slots, in bytes per second; None: not tried, because of `why_not`."""
    if rate is None:
        return Fact("pinned copies", "not tried", f"batches are copied whole, by torch: {why_not}")
    if not rate:
        return Fact("pinned copies", "refused", "the driver pins nothing here: copies go several times slower")
    meaning = "huge pages registered with the driver; no loader copies faster to the GPU"
    return Fact("pinned copies", f"{rate / 1e9:.1f} GB/s", meaning)


def _copies() -> Fact:
    interface = torch_interface(torch.cuda.current_device())
    native = interface.native is not None
    return copies_fact(pinned_copy_rate(interface) if native else None, interface.why_not_native)


def cuda_fact(state: CudaState) -> Fact:
    """Return whether the module of CUDA kernels runs on the GPU."""
    if state.usable:
        return Fact("memload._cuda", "in use", f"machine code for sm_{', sm_'.join(map(str, state.architectures))}")
    built = "built, not in use" if state.architectures else "not built"
    return Fact("memload._cuda", built, f"on a GPU, torch operations do its work: {state.reason}")

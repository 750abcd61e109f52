"""NVIDIA GPUs by name: how much memory they have, and whether they compute in bfloat16."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memload.sizes import parse_size

if TYPE_CHECKING:
    import torch

_KEPT_BY_DRIVER = 0.03
"""The share of a GPU's memory that the driver keeps. Out-of-memory errors of torch that people published state
capacities of 0.971 (T4: 14.56 of 15 GiB) to 0.993 (H100: 79.11 of 79.65 GiB) of the memory that nvidia-smi states; the
least counts."""

_ECC = 1 / 16
"""The share of GDDR6 memory that error correction takes, where it is stored beside the data: nvidia-smi states 15 of
16 GiB for a T4, 22.5 of 24 GiB for an A10 or L4, and 45 of 48 GiB for an L40S."""


@dataclass(frozen=True)
class GpuModel:
    """A model of GPU.

    Attributes:
        name: its name, with the size if it is sold in several.
        gib: memory in GiB, as its data sheet states it (in "GB").
        capability: CUDA's compute capability, from https://developer.nvidia.com/cuda-gpus (and cuda-legacy-gpus).
        ecc_in_memory: whether error correction takes a part of the memory. Where it can be turned off, it is assumed.

    Example:
        >>> t4 = GpuModel("T4", 16, (7, 5), ecc_in_memory=True)
        >>> t4.nbytes, t4.has_bf16
        (15622943539, False)
    """

    name: str
    gib: int
    capability: tuple[int, int]
    ecc_in_memory: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes that programs can allocate, the CUDA context among them."""
        return int(self.gib * 2**30 * (1 - _ECC * self.ecc_in_memory) * (1 - _KEPT_BY_DRIVER))

    @property
    def has_bf16(self) -> bool:
        """Whether it computes in bfloat16; a GPU of compute capability below 8 emulates it, which is slow."""
        return has_bf16(self.capability)


_TURING, _AMPERE, _ADA, _BLACKWELL = (7, 5), (8, 6), (8, 9), (12, 0)
GPUS = (
    GpuModel("P100-12GB", 12, (6, 0)),
    GpuModel("P100-16GB", 16, (6, 0)),
    GpuModel("V100-16GB", 16, (7, 0)),
    GpuModel("V100-32GB", 32, (7, 0)),
    GpuModel("T4", 16, _TURING, ecc_in_memory=True),
    GpuModel("A2", 16, _AMPERE, ecc_in_memory=True),
    GpuModel("A10", 24, _AMPERE, ecc_in_memory=True),
    GpuModel("A10G", 24, _AMPERE, ecc_in_memory=True),
    GpuModel("A30", 24, (8, 0)),
    GpuModel("A40", 48, _AMPERE, ecc_in_memory=True),
    GpuModel("A100-40GB", 40, (8, 0)),
    GpuModel("A100-80GB", 80, (8, 0)),
    GpuModel("L4", 24, _ADA, ecc_in_memory=True),
    GpuModel("L40", 48, _ADA, ecc_in_memory=True),
    GpuModel("L40S", 48, _ADA, ecc_in_memory=True),
    GpuModel("H100", 80, (9, 0)),
    GpuModel("H100-NVL", 94, (9, 0)),
    GpuModel("H200", 141, (9, 0)),
    GpuModel("B200", 180, (10, 0)),
    GpuModel("RTX 2080 Ti", 11, _TURING),
    GpuModel("RTX 3080-10GB", 10, _AMPERE),
    GpuModel("RTX 3080-12GB", 12, _AMPERE),
    GpuModel("RTX 3090", 24, _AMPERE),
    GpuModel("RTX 3090 Ti", 24, _AMPERE),
    GpuModel("RTX A4000", 16, _AMPERE, ecc_in_memory=True),
    GpuModel("RTX A5000", 24, _AMPERE, ecc_in_memory=True),
    GpuModel("RTX A6000", 48, _AMPERE, ecc_in_memory=True),
    GpuModel("RTX 4070", 12, _ADA),
    GpuModel("RTX 4070 Ti", 12, _ADA),
    GpuModel("RTX 4070 Ti SUPER", 16, _ADA),
    GpuModel("RTX 4080", 16, _ADA),
    GpuModel("RTX 4080 SUPER", 16, _ADA),
    GpuModel("RTX 4090", 24, _ADA),
    GpuModel("RTX 6000 Ada", 48, _ADA, ecc_in_memory=True),
    GpuModel("RTX 5070", 12, _BLACKWELL),
    GpuModel("RTX 5070 Ti", 16, _BLACKWELL),
    GpuModel("RTX 5080", 16, _BLACKWELL),
    GpuModel("RTX 5090", 32, _BLACKWELL),
    GpuModel("RTX PRO 6000", 96, _BLACKWELL),
)
"""The GPUs that plans know by name."""

_NOT_TELLING = re.compile(
    r"NVIDIA|GEFORCE|TESLA|RTX|PCIE|SXM\d?|HBM\d?E?|GENERATION|BLACKWELL|(WORKSTATION|SERVER|MAX-?Q)?EDITION|GPU"
    r"|WORKSTATION|SERVER"
)
_SIZE = re.compile(r"(\d+)GI?B")


def parse_gpu(given: int | str) -> tuple[int, GpuModel | None]:
    """Return the bytes of a GPU that is given by its size or name, and its model if it was given by name.

    Args:
        given: bytes; a size such as "24GB"; or a name such as "T4", "A100-40GB" or "RTX 4090", also in the form in
            which drivers state it ("NVIDIA A100-SXM4-40GB").

    Raises:
        ValueError: it is neither a size nor the name of a GPU in the table, or it leaves open which of several sizes.
        TypeError: it is neither a number nor a text.

    Example:
        >>> parse_gpu("24GB")
        (24000000000, None)
        >>> parse_gpu("NVIDIA GeForce RTX 4090")[1].name
        'RTX 4090'
    """
    if isinstance(given, str):
        model = _named(given)
        if model is not None:
            return model.nbytes, model
    try:
        return parse_size(given), None
    except ValueError as error:
        if not isinstance(given, str):
            raise
        names = [model.name for model in GPUS]
        alike = difflib.get_close_matches(given, names)
        meant = f"; did you mean {' or '.join(alike)}?" if alike else "."
        raise ValueError(
            f'a GPU is a size such as "24GB" or a name such as "H100", got {given!r}{meant} '
            "`memload plan --help` lists all names"
        ) from error


def has_bf16(capability: tuple[int, int]) -> bool:
    """Return whether GPUs of this compute capability compute in bfloat16 (from 8.0 on, as torch has it)."""
    return capability >= (8, 0)


def capability_here(device: torch.device | None = None) -> tuple[int, int] | None:
    """Return the compute capability of a GPU of this machine; None if there is none."""
    import torch  # here, since `memload plan --help` lists the names and answers without torch

    return torch.cuda.get_device_capability(device) if torch.cuda.is_available() else None


def gpu_here_has_bf16(device: torch.device | None = None) -> bool:
    """Return whether a GPU of this machine computes in bfloat16; True if there is none."""
    capability = capability_here(device)
    return capability is None or has_bf16(capability)


def _named(given: str) -> GpuModel | None:
    """Return the GPU of that name; None if no GPU is called so."""
    name, size = _key(given)
    found = [model for model in GPUS if _key(model.name)[0] == name and size in (None, model.gib)]
    sold = " or ".join(repr(model.name) for model in GPUS if _key(model.name)[0] == name)
    if len(found) > 1:
        raise ValueError(f"{given!r} exists with several sizes of memory: give {sold}")
    if sold and not found:
        raise ValueError(f"there is no {given!r}: give {sold}")
    return found[0] if found else None


def _key(name: str) -> tuple[str, int | None]:
    """Return what tells models apart, such as "4070TI", and the size in GiB if the name states it."""
    words = re.sub(r"RTX(?=\d)", "RTX ", name.upper())
    told = [word for word in re.split(r"[\s_-]+", words) if word and not _NOT_TELLING.fullmatch(word)]
    sizes = [int(match[1]) for word in told if (match := _SIZE.fullmatch(word))]
    return "".join(word for word in told if not _SIZE.fullmatch(word)), sizes[0] if sizes else None

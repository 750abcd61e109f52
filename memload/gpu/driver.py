"""The driver of the GPUs, and what the CUDA toolkits ask of it.

Sources: "CUDA Compatibility, Minor Version Compatibility", docs.nvidia.com/deploy/cuda-compatibility, for the oldest
driver of each toolkit; `/proc/driver/nvidia/version` for the driver that is there.
"""

from __future__ import annotations

import re
from pathlib import Path

OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver for programs built with a CUDA toolkit of each major version."""

_ROOT = Path("/")


def driver_version(root: Path = _ROOT) -> str | None:
    """Return the version of the NVIDIA driver that is loaded, such as "580.65.06"; None: there is none."""
    try:
        return parse_version((root / "proc/driver/nvidia/version").read_text())
    except OSError:
        return None


def parse_version(text: str) -> str | None:
    """Return the version in a `/proc/driver/nvidia/version`.

    Example:
        >>> parse_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:13:49 UTC 2025")
        '580.65.06'
    """
    found = re.search(r"\s(\d{3,}(?:\.\d+)+)\s", text)
    return found[1] if found else None


def too_old(driver: str, toolkit: str) -> str:
    """Return why a driver does not serve what a CUDA toolkit built; "" if it does.

    Example:
        >>> too_old("535.129.03", "13.0")
        'driver 535.129.03 is older than 580, the oldest for CUDA 13'
        >>> too_old("580.65.06", "12.4")
        ''
    """
    major = int(toolkit.partition(".")[0])
    oldest = OLDEST_DRIVERS.get(major, 0)
    if int(driver.partition(".")[0]) >= oldest:
        return ""
    return f"driver {driver} is older than {oldest}, the oldest for CUDA {major}"

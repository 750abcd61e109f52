"""Does one PTX give the machine code that each architecture's own gives? Kernel by kernel, byte by byte.

    python tools/shared_ptx.py                    # 80 for 86, 89 and 90; 100 for 103, 110, 120 and 121
    python tools/shared_ptx.py 80:90 80:100       # these pairs

`csrc/cuda/CMakeLists.txt` has PTX made once for all architectures that share it here: it is what compiling the kernels
costs most. Run this after a change of the kernels that asks for `__CUDA_ARCH__`, and with a new nvcc. Needs `nvcc`;
takes 20 to 40 s for each pair. Fails if any kernel differs.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAIRS = ("80:86", "80:89", "80:90", "100:103", "100:110", "100:120", "100:121")
KERNELS = ("rows.cu", "images.cu")
_NOBITS = 8  # type of an ELF section without bytes in the file


def main(pairs: list[str]) -> int:
    """Compare the kernels of each pair "ptx:architecture", print how many are equal, and return 1 if any differs."""
    different = 0
    for pair in pairs:
        ptx, architecture = pair.split(":")
        for source in KERNELS:
            shared, own = (_kernels(source, virtual, architecture) for virtual in (ptx, architecture))
            equal = sum(shared.get(name) == code for name, code in own.items())
            different += len(own) - equal
            print(f"{source}: sm_{architecture} from PTX of {ptx}: {equal} of {len(own)} kernels equal", flush=True)
    return 1 if different else 0


def _kernels(source: str, ptx: str, architecture: str) -> dict[str, bytes]:
    """Return the machine code of each kernel of a file by its symbol."""
    with tempfile.TemporaryDirectory() as scratch:
        cubin = Path(scratch) / "kernels.cubin"
        target = f"--generate-code=arch=compute_{ptx},code=sm_{architecture}"
        options = ["-O3", "-DNDEBUG", "-std=c++17", f"-I{ROOT / 'csrc'}", target]
        subprocess.run(["nvcc", *options, "-cubin", ROOT / "csrc/cuda" / source, "-o", cubin], check=True)
        return {name: code for name, code in _sections(cubin.read_bytes()) if name.startswith(".text.")}


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each section of a 64-bit ELF file ("System V ABI", chapter 4)."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    first_name = headers[names][4]
    for name, kind, _, _, offset, nbytes in headers:
        begin = first_name + name
        text = elf[begin : elf.index(b"\0", begin)].decode()
        yield text, b"" if kind == _NOBITS else elf[offset : offset + nbytes]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(PAIRS)))

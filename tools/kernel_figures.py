"""Prints what the compiler made of each CUDA kernel: registers, spills, and instructions for each 16 bytes of results.

    PATH=$PATH:/usr/local/cuda/bin python tools/kernel_figures.py memload/_cuda*.so sm_80 sm_90 sm_100

The first argument is the built module, or a .cubin. It needs `cuobjdump` and `nvdisasm`, which come with the CUDA
toolkit and as the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm, and `c++filt` of the binutils.

"instructions" are those on the shortest way round the smallest loop that stores 16 bytes at once, divided by the
number of such stores on it: what a thread executes for 16 bytes of results at best, without what a tile costs once. The
figure in brackets is the longest such way, where the loop has no other loop inside: of results that are all NaN, in
rows that do not begin at a multiple of a packet. Calls are counted as one instruction; divisions call a function for
operands of rare magnitude.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_USAGE = re.compile(r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+)")
_BRANCH = re.compile(r"^(?:@(!?U?P\w+) )?(?:BRA|BRA\.\w+)\s+(?:!?U?P\d+, )?(?:`\()?(0x[0-9a-f]+)")
_STORE = re.compile(r"\bSTG\.E\.(?:\w+\.)*128\b")
_NAMES = {
    "unsigned char": "u8",
    "signed char": "i8",
    "unsigned short": "u16",
    "short": "i16",
    "float": "f32",
    "memload::F16": "f16",
    "memload::Bf16": "bf16",
}
_HOW = ("plain", "norm_removed", "scaled", "computed", "by_reciprocal", "fused")


@dataclass(frozen=True)
class Kernel:
    """A kernel for one architecture.

    Attributes:
        name: such as "rows u8 -> bf16 norm_removed".
        registers: of a thread.
        stack: bytes of a thread's memory, for spilled registers.
        total: instructions in all.
        least, most: instructions for 16 bytes of results, at best and at worst; 0: unknown.
    """

    name: str
    registers: int
    stack: int
    total: int
    least: float
    most: float


def kernels_of(path: str, architecture: str) -> list[Kernel]:
    """Return the kernels of a module for an architecture such as "sm_90", in the order of their names."""
    usages = _USAGE.finditer(_dumped(path, architecture, "-res-usage"))
    usage = {found[1]: (int(found[2]), int(found[3])) for found in usages}
    code = dict(_functions(_dumped(path, architecture, "-sass")))
    names = _readable(list(code))
    made = [_kernel(names[symbol], usage[symbol], lines) for symbol, lines in code.items()]
    return sorted(made, key=lambda kernel: kernel.name)


def _dumped(path: str, architecture: str, wanted: str) -> str:
    chosen = [] if path.endswith(".cubin") else ["-arch", architecture]
    return subprocess.run(["cuobjdump", *chosen, wanted, path], capture_output=True, text=True, check=True).stdout


def _functions(dump: str) -> Iterator[tuple[str, dict[int, str]]]:
    """Yield each function's symbol, and its instructions by their address."""
    for part in dump.split("Function : ")[1:]:
        symbol = part.split(maxsplit=1)[0]
        yield symbol, {int(found[1], 16): found[2] for found in _INSTRUCTION.finditer(part)}


def _readable(symbols: list[str]) -> dict[str, str]:
    """Return short names of kernels by their symbols."""
    plain = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True).stdout
    return {symbol: _short(name) for symbol, name in zip(symbols, plain.splitlines(), strict=True)}


def _short(name: str) -> str:
    """Return a short name.

    Example:
        >>> _short("void a::rows_kernel<memload::cuda::CastOf<float, memload::F16, (memload::cuda::How)2> >(x)")
        'rows f32 -> f16 scaled'
    """
    found = re.search(r"(\w+)_kernel<memload::cuda::CastOf<(.+?), (.+?), \(memload::cuda::How\)(\d)>", name)
    if found is None:
        return name
    return f"{found[1]} {_NAMES[found[2]]} -> {_NAMES[found[3]]} {_HOW[int(found[4])]}"


def _kernel(name: str, usage: tuple[int, int], code: Mapping[int, str]) -> Kernel:
    return Kernel(name, *usage, len(code), *_figures(code))


def _figures(code: Mapping[int, str]) -> tuple[float, float]:
    """Return the least and the most instructions for 16 bytes, of the smallest loop that stores them."""
    loops = [(back, to) for back, to in _branches(code) if to <= back]
    around = [(back - to, to, back) for back, to in loops if any(_stores(code, to, back))]
    if not around:
        return 0.0, 0.0
    _, begin, end = min(around)
    inner = any(begin <= to and back < end for back, to in loops)
    ways = _ways(code, begin, end)
    return min(ways), 0.0 if inner else max(ways)


def _branches(code: Mapping[int, str]) -> list[tuple[int, int]]:
    return [(at, int(found[2], 16)) for at, text in code.items() if (found := _BRANCH.match(text))]


def _stores(code: Mapping[int, str], begin: int, end: int) -> list[int]:
    return [at for at, text in code.items() if begin <= at <= end and _STORE.search(text)]


def _ways(code: Mapping[int, str], begin: int, end: int) -> tuple[float, float]:
    """Return the shortest and the longest way from the loop's begin to its end that stores, for each store on it.

    Branches back are not followed, so that loops inside are passed once.
    """
    addresses = sorted(at for at in code if begin <= at <= end)
    after = dict(itertools.pairwise(addresses))
    found: dict[int, set[tuple[int, int]]] = {begin: {(0, 0)}}
    for at in addresses:
        ways = {(steps + 1, stores + bool(_STORE.search(code[at]))) for steps, stores in found.get(at, ())}
        for following in _following(code[at], at, after):
            best = found.setdefault(following, set())
            best |= ways
            found[following] = _extremes(best)
        found[at] = ways
    rounds = [steps / stores for steps, stores in found[end] if stores]
    return min(rounds), max(rounds)


def _extremes(ways: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the shortest and the longest of the ways with each number of stores."""
    kept = set()
    for stores in {stores for _, stores in ways}:
        steps = [taken for taken, number in ways if number == stores]
        kept |= {(min(steps), stores), (max(steps), stores)}
    return kept


def _following(text: str, at: int, after: Mapping[int, int]) -> list[int]:
    """Return the addresses to which an instruction may lead, forwards."""
    found = _BRANCH.match(text)
    straight = [after[at]] if at in after else []
    if found is None:
        return [] if text.startswith("EXIT") else straight
    target = [int(found[2], 16)] if int(found[2], 16) > at else []
    always = found[1] is None and ", " not in text.split("0x")[0]
    return target if always else straight + target


def main() -> None:
    """Print a line for each kernel."""
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("module", help="memload/_cuda*.so, or a .cubin")
    arguments.add_argument("architectures", nargs="*", default=["sm_80", "sm_90", "sm_100"], help="such as sm_90")
    given = arguments.parse_args()
    for architecture in given.architectures:
        print(f"\n{architecture:40} registers  stack  in all  instructions / 16 B")
        for kernel in kernels_of(given.module, architecture):
            most = f" ({kernel.most:.0f})" if kernel.most else ""
            figures = f"{kernel.registers:9}  {kernel.stack:5}  {kernel.total:6}  {kernel.least:5.0f}{most}"
            print(f"{kernel.name:40} {figures}")


if __name__ == "__main__":
    main()

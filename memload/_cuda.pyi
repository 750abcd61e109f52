"""
memload's CUDA kernels.
"""
from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
import typing_extensions
__all__: list[str] = ['RowKernel', 'allocate_shared', 'architectures', 'augment_images', 'cast_stim', 'close_shared', 'device', 'free_shared', 'launch_rows', 'mapped_address', 'open_shared', 'toolkit', 'unusable_reason', 'version']
class RowKernel:
    """
    Gathers rows out of some memories, and casts them.
    """
    def __init__(self, parts: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], length: typing.SupportsInt | typing.SupportsIndex, rule: tuple[str, str, str, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex] | None = None) -> None:
        """
        parts: (address, stored rows) of each memory, whose rows are numbered one part after the other; length: elements of a row, or without a rule its bytes; rule: (from, to, how, scale, offset, address of means, deviations and their reciprocals or of factors and shifts, channels, elements from one channel to the next).
        """
def allocate_shared(nbytes: typing.SupportsInt | typing.SupportsIndex, device: typing.SupportsInt | typing.SupportsIndex) -> tuple[int, bytes]:
    """
    Memory of a device that other processes can open: its address, and the handle to open it by.
    """
def augment_images(src_address: typing.SupportsInt | typing.SupportsIndex, dst_address: typing.SupportsInt | typing.SupportsIndex, images: typing.SupportsInt | typing.SupportsIndex, images_per_draw: typing.SupportsInt | typing.SupportsIndex, draws: typing.Annotated[numpy.typing.ArrayLike, numpy.int64], shape: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, bool, bool], rule: tuple[str, str, str, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], device: typing.SupportsInt | typing.SupportsIndex, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Cut, flip, lay out and cast images, asynchronously on the stream with this handle; as memload._core.augment_images.
    """
def cast_stim(src_address: typing.SupportsInt | typing.SupportsIndex, dst_address: typing.SupportsInt | typing.SupportsIndex, n: typing.SupportsInt | typing.SupportsIndex, to_code: str, norm_removed: bool, device: typing.SupportsInt | typing.SupportsIndex, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Cast n uint8 pixels on a device, asynchronously on the stream with this handle.
    """
def close_shared(address: typing.SupportsInt | typing.SupportsIndex, device: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Close it, once no kernel of this process reads it.
    """
def device(index: typing.SupportsInt | typing.SupportsIndex) -> typing_extensions.CapsuleType:
    """
    What memload._core.Device takes, for a device that exists. Raises RuntimeError.
    """
def free_shared(address: typing.SupportsInt | typing.SupportsIndex, device: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Free such memory, once no other process has it open.
    """
def launch_rows(launches: collections.abc.Sequence[tuple[RowKernel, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex], tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex] | None, bool]], device: typing.SupportsInt | typing.SupportsIndex, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Gather rows by each of some kernels, asynchronously on the stream with this handle. launches: (kernel, address of the result, its rows, choice, (address, rows) of memory that stands for the kernel's last one or None, whether the kernel leaves most of the device to others); choice: (address of the rows' numbers, address of the steps of windows, how many steps).
    """
def mapped_address(host_address: typing.SupportsInt | typing.SupportsIndex, device: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    The address by which a device reads this address of pinned memory.
    """
def open_shared(handle: bytes, device: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    The address by which kernels of a device read the memory of another process.
    """
def unusable_reason(device: typing.SupportsInt | typing.SupportsIndex) -> str:
    """
    Why the kernels do not run on this device with this driver; "" if they do.
    """
architectures: str = '75 80 86 89 90 100 110 120'
toolkit: str = '13.0'
version: str

"""
memload's CUDA kernels.
"""
from __future__ import annotations
import types
import typing
__all__: list[str] = ['architectures', 'cast_stim', 'device', 'unusable_reason', 'version']
def cast_stim(src_address: typing.SupportsInt | typing.SupportsIndex, dst_address: typing.SupportsInt | typing.SupportsIndex, n: typing.SupportsInt | typing.SupportsIndex, to_code: str, norm_removed: bool, device: typing.SupportsInt | typing.SupportsIndex, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Cast n uint8 pixels on a device, asynchronously on the stream with this handle.
    """
def device(index: typing.SupportsInt | typing.SupportsIndex) -> types.CapsuleType:
    """
    What memload._core.Device takes, for a device that exists. Raises RuntimeError.
    """
def unusable_reason(device: typing.SupportsInt | typing.SupportsIndex) -> str:
    """
    Why the kernels do not run on this device with this driver; "" if they do.
    """
architectures: str = '75 80 86 89 90 100 120'
toolkit: str = '13.0'
version: str

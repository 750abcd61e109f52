"""The bytes inside operations of oneDNN, which the tensors of a step do not tell: LSTM layers, and convolutions.

An LSTM layer on a CPU is one operation:

    forward   a scratchpad, freed at once | a workspace, kept for the backward pass and written in part
    backward  the rest of the workspace   | a scratchpad

The workspace has pages that are never written, and pages that only the backward pass writes. A page that is not
written takes no memory, so the figures are those of written pages. Sizes follow ``rnn_utils.hpp`` of oneDNN 3
(``set_workspace_sizes``); which parts are written was measured, see `LstmLayer`. GRU and RNN layers are computed by
operations of torch, whose tensors tell all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memload.planning.gpu_libraries import attention_scratch

_FORWARD = torch.ops.aten.mkldnn_rnn_layer.default
_BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default
RECURRENT = "aten.mkldnn_rnn_layer"
"""The beginning of the names of both operations."""
_CONVOLUTION, _CONVOLUTION_BACKWARD = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
_BLOCK = 8 if torch.backends.cpu.get_cpu_capability() == "AVX2" else 16  # channels that oneDNN lays side by side
_HAS_ONEDNN = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
_IN_HALF: dict[torch.dtype, Callable[[], bool]] = {
    torch.bfloat16: lambda: _HAS_ONEDNN and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    torch.float16: lambda: _HAS_ONEDNN and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported()),
}  # whether oneDNN computes in it on this CPU
_LSTM = 2  # the mode of both operations
_FLOAT = 4  # bytes of float32, in which gradients are summed up
_LINE, _ALIASED = 64, 256
_PAGE = 4096  # bytes: oneDNN's own unit, on machines with larger pages, too
_MERGED_BELOW = 128  # rows of a float32 batch for which the gates of all steps are computed at once


Blocks = tuple[tuple[int, int], ...]
"""Of each block the bytes that are written, and those that the C library is asked for."""


@dataclass(frozen=True)
class LibraryBytes:
    """Memory that an operation takes beside its results.

    Attributes:
        scratch: the blocks that it frees before it returns.
        workspace: the bytes of its last result, the workspace, that are written, and those that the C library is asked
            for; None: all of them are written. (The workspace of tensors without memory has no bytes.)
    """

    scratch: Blocks = ()
    workspace: tuple[int, int] | None = None


_NONE = LibraryBytes()


def library_bytes(operation: Any, args: Sequence[Any], out: Any, *, on_cpu: bool = False) -> LibraryBytes:
    """Return the bytes that an operation takes beside its results; none for operations that are not known here.

    Args:
        operation: an operation of torch.
        args: its positional arguments.
        out: its result.
        on_cpu: whether it will run on a CPU, as its tensors do.
    """
    if on_cpu and operation is _CONVOLUTION:
        unfolded = _unfolded(args[0], args[1], out, *args[3:7])
        return _convolution(args[0], out) if unfolded is None else LibraryBytes(_whole(unfolded))
    if on_cpu and operation is _CONVOLUTION_BACKWARD:
        unfolded = _unfolded(args[1], args[2], args[0], *args[4:8])
        backward = _convolution_backward(args[1], args[0], wants_input=args[10][0])
        return backward if unfolded is None else LibraryBytes(_whole(unfolded))
    if operation is not _FORWARD and operation is not _BACKWARD:
        return LibraryBytes(_whole(attention_scratch(operation, args)))
    if args[9 if operation is _FORWARD else 14] != _LSTM:
        return _NONE
    layer = LstmLayer.of(args[0], args[1], args[2])
    if operation is _FORWARD:
        return LibraryBytes(_whole(layer.forward_scratch), (layer.kept, layer.workspace))
    return LibraryBytes(layer.backward_blocks)


def _whole(*nbytes: int) -> Blocks:
    """Return blocks of which all bytes are written; none if they have none."""
    return tuple((each, each) for each in nbytes) if any(nbytes) else ()


def _unfolded(
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
) -> int | None:
    """Return the bytes of the unfolded input of a convolution that torch computes itself; None: oneDNN does.

    So are those in half precision where the CPU has no instructions for it: of the inputs of a batch torch makes a
    matrix with a column for each place of the result, but for kernels of one place (``compute_columns2d`` in
    aten/src/ATen/native/ConvolutionMM2d.cpp); dilated ones are computed row by row.
    """
    supported = _IN_HALF.get(x.dtype)
    if supported is None or supported() or transposed:
        return None
    if any(step > 1 for step in dilation):
        return 0
    kernel = weight.shape[2:]
    if all(side == 1 for side in (*kernel, *stride)) and not any(padding):
        return 0
    places = y.numel() // max(1, y.shape[1])
    return places * weight.shape[1:].numel() * x.element_size()


def _convolution(x: torch.Tensor, y: torch.Tensor) -> LibraryBytes:
    """Return the bytes of a forward pass: a blocked copy of the input or of the result, whichever is larger."""
    if not _is_copied(x):
        return _NONE
    return LibraryBytes(_whole(max(_blocked(y), _blocked(x) if x.shape[1] >= _BLOCK else 0)))


def _is_copied(x: torch.Tensor) -> bool:
    """Return whether oneDNN computes with a copy: channels that lie side by side already are used as they are."""
    side_by_side = x.ndim == 4 and x.stride(1) == 1 and x.shape[1] > 1
    return _HAS_ONEDNN and x.ndim > 2 and x.dtype in (torch.float32, torch.bfloat16) and not side_by_side


def _blocked(x: torch.Tensor) -> int:
    channels = x.shape[1]
    return x.numel() // max(1, channels) * -(-channels // _BLOCK) * _BLOCK * x.element_size()


def _convolution_backward(x: torch.Tensor, gradient: torch.Tensor, *, wants_input: bool) -> LibraryBytes:
    """Return the bytes of a backward pass: blocked copies of the gradient and of the input.

    Resident memory of 14 shapes (1 to 64 channels, kernels of 1 to 7, strides, groups, bfloat16) was within 25 % of it,
    for 11 of them within 5 %. An input of fewer channels than a block has is not copied, but its gradient is.
    """
    if not _is_copied(x):
        return _NONE
    blocked = _blocked(x) if x.shape[1] >= _BLOCK else x.numel() * x.element_size() * wants_input
    return LibraryBytes(_whole(_blocked(gradient), blocked))


@dataclass(frozen=True)
class LstmLayer:
    """One direction of one layer.

    The shares were measured as resident memory before and after each operation, and as its peak, for 10 shapes with 16
    to 400 steps, 32 to 512 rows and widths of 64 to 1,024, on a CPU with AVX-512 (torch 2.13, oneDNN 3.12): the figures
    of float32 are within 4 MB and 4 % of what was measured, those of bfloat16 within 7 MB and 10 %.

    Attributes:
        steps, rows: the length of the sequence, and the rows of a batch.
        inputs, width: features of an input, and of the state.
        size: the bytes of a number.
    """

    steps: int
    rows: int
    inputs: int
    width: int
    size: int

    @classmethod
    def of(cls, x: torch.Tensor, of_inputs: torch.Tensor, of_state: torch.Tensor) -> LstmLayer:
        """Return the layer of an input (steps, rows, inputs), weights (4 x width, inputs) and (4 x width, width)."""
        return cls(x.shape[0], x.shape[1], of_inputs.shape[1], of_state.shape[1], x.element_size())

    @property
    def workspace(self) -> int:
        """Bytes of the workspace, as oneDNN allocates it."""
        outputs = self.steps * self.rows * _padded(self.width, self.size) * self.size
        states = self._states(_padded(self._widest, self.size), self.size)
        parts = (self._gates, outputs, states, self._cells(self.size), self._gradients, self._gradients)
        return sum(map(_in_pages, (*parts, self._cells(_FLOAT))))

    @property
    def kept(self) -> int:
        """Bytes of the workspace that the forward pass writes: all gates, and the cells of the layer itself."""
        return self._gates + self._cells(self.size) // 2

    @property
    def forward_scratch(self) -> int:
        """Bytes that the forward pass takes in between: weights in another order, and gates before they are final."""
        return self._weights + (self._gates if self._merges else self._gates_of_step)

    @property
    def backward_blocks(self) -> Blocks:
        """What the backward pass takes: gradients of states, which are in the workspace, and a scratchpad.

        The scratchpad has gradients of gates, and of weights in another order. A layer of 302 rows, 64 steps and a
        width of 64 asks for a workspace of 76.2 MB and a scratchpad of 21.2 MB.
        """
        states = self._gradients + self._cells(_FLOAT)
        whole = self.size == _FLOAT
        scratchpad = self._gates + 2 * self._weights if whole else self._gates // 2 + 3 * self._weights
        return (states, self.workspace), (scratchpad, scratchpad)

    @property
    def _merges(self) -> bool:
        return self.size == _FLOAT and self.rows < _MERGED_BELOW

    @property
    def _widest(self) -> int:
        return max(self.inputs, self.width)

    @property
    def _gates(self) -> int:
        return self.steps * self.rows * _padded(4 * self.width, self.size) * self.size

    @property
    def _gates_of_step(self) -> int:
        return self.rows * _padded(4 * self.width, _FLOAT) * _FLOAT

    @property
    def _weights(self) -> int:
        return 4 * self.width * (self.inputs + self.width) * self.size

    @property
    def _gradients(self) -> int:
        """Bytes of the gradients of the states of a layer and of its input."""
        return self._states(_padded(self._widest, _FLOAT), _FLOAT)

    def _cells(self, size: int) -> int:
        return self._states(self.width, size)

    def _states(self, width: int, size: int) -> int:
        """Return the bytes of states of a layer and of its input, for all steps and the one before them."""
        return 2 * (self.steps + 1) * self.rows * width * size


def _padded(width: int, size: int) -> int:
    """Return the distance of rows of so many numbers: whole cache lines, and no multiple of 256 numbers."""
    line = _LINE // size
    whole = -(-width // line) * line
    return whole + line if whole % _ALIASED == 0 else whole


def _in_pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE

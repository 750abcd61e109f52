"""What the kernels that gather rows do, in Python, by the addresses that they get."""

import ctypes
from types import SimpleNamespace

import numpy as np
import torch

from memload.device import gathering, kernels


def kernels_in_python(monkeypatch):
    """Replace the kernels; return the memories, each an address and its rows, that each launch reads."""
    launched = []

    def native(parts, length, rule):
        return SimpleNamespace(parts=parts, length=length, rule=rule)

    def launch_rows(launches, device, stream):
        for kernel, dst, rows, (numbers, steps, count), last, beside in launches:
            assert kernel.rule is None
            parts, nbytes = kernel.parts if last is None else [*kernel.parts[:-1], last], kernel.length
            chosen = np.ctypeslib.as_array((ctypes.c_int64 * (rows // count)).from_address(numbers))
            along = np.zeros(1, np.int64)
            if steps:
                along = np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(steps))
            for row in range(rows):
                number = chosen[row // count] + along[row % count]
                for address, stored in parts:
                    if number < stored:
                        ctypes.memmove(dst + row * nbytes, address + int(number) * nbytes, nbytes)
                        break
                    number -= stored
            launched.append(parts)
            assert beside == (len(parts) > 1 and last is None)  # what crosses a bus leaves room for the loop's kernels

    monkeypatch.setattr(gathering, "kernels_serve", lambda device: True)
    monkeypatch.setattr(gathering, "_readable", lambda *tensors: True)
    monkeypatch.setattr(gathering, "_address", lambda tensor, device: tensor.data_ptr())
    monkeypatch.setattr(gathering, "_fused", lambda *_: False)
    monkeypatch.setattr(kernels, "cuda_module", lambda: SimpleNamespace(RowKernel=native, launch_rows=launch_rows))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    return launched

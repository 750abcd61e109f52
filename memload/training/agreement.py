"""What all ranks of torch.distributed agree on."""

from __future__ import annotations

import torch


def least_of_ranks(value: int) -> int:
    """Return the least value of all ranks; without torch.distributed, this one. Every rank must call it."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return value
    backend = str(distributed.get_backend())
    on_gpu = "nccl" in backend and "gloo" not in backend
    told = torch.tensor(value, dtype=torch.int64, device=torch.cuda.current_device() if on_gpu else "cpu")
    distributed.all_reduce(told, op=distributed.ReduceOp.MIN)
    return int(told)

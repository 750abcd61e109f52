"""By name: precisions that models are trained in, strategies that spread them over ranks, ways of their weights."""

from __future__ import annotations

PRECISIONS: dict[str, tuple[str | None, str | None]] = {
    "float32": (None, None),
    "bf16": ("bfloat16", None),
    "fp16": ("float16", None),
    "bf16-mixed": (None, "bfloat16"),
    "fp16-mixed": (None, "float16"),
}
"""By name: the dtype that trained models are converted to, and the one that autocast computes in; None: neither."""

STRATEGIES = ("ddp", "ddp-zero1", "fsdp2", "fsdp2-zero2", "zero1", "zero2", "zero3")
"""The strategies of `memload.plan`: torch's DDP, DDP with ZeroRedundancyOptimizer, fully_shard, fully_shard with
``reshard_after_forward=False``; stages of DeepSpeed."""

WEIGHTS: dict[str, int] = {"ram": 1, "state_dict": 2, "mmap": 0}
"""How weights reach a GPU, and how many times they are in RAM meanwhile. "ram": models are made there, and moved.
"state_dict": ``model.load_state_dict(torch.load(path))``, whose file is in RAM beside the model. "mmap": pages of the
file, which give way, through ``torch.load(path, mmap=True)`` and ``load_state_dict(..., assign=True)`` on a model on
"meta", safetensors, or ``device_map``."""


def checked_precision(precision: str) -> str:
    """Return the name of a precision.

    Raises:
        ValueError: there is no such precision.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision is one of {', '.join(PRECISIONS)}; got {precision!r}")
    return precision

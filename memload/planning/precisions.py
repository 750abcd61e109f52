"""By name: precisions that models are trained in, strategies that spread them over ranks, ways of their weights."""

from __future__ import annotations

PRECISIONS: dict[str, tuple[str | None, str | None]] = {
    "float32": (None, None),
    "bf16-mixed": (None, "bfloat16"),
    "fp16-mixed": (None, "float16"),
    "bf16-true": ("bfloat16", None),
    "fp16-true": ("float16", None),
}
"""By name: the dtype that trained models are converted to, and the one that autocast computes in; None: neither."""

_ALIASES = {
    "fp32": "float32",
    "32-true": "float32",
    "bf16": "bf16-mixed",
    "bfloat16": "bf16-mixed",
    "fp16": "fp16-mixed",
    "float16": "fp16-mixed",
    "16-mixed": "fp16-mixed",
    "16-true": "fp16-true",
}
"""Other names of precisions: those of accelerate and of Lightning, to which "bf16" alone is autocast, and dtypes."""

STRATEGIES = ("ddp", "ddp-zero1", "fsdp2", "fsdp2-zero2", "zero1", "zero2", "zero3")
"""The strategies of `memload.plan`: torch's DDP, DDP with ZeroRedundancyOptimizer, fully_shard, fully_shard with
``reshard_after_forward=False``; stages of DeepSpeed."""

WEIGHTS: dict[str, int] = {"ram": 1, "state_dict": 2, "mmap": 0}
"""How weights reach a GPU, and how many times they are in RAM meanwhile. "ram": models are made there, and moved.
"state_dict": ``model.load_state_dict(torch.load(path))``, whose file is in RAM beside the model. "mmap": pages of the
file, which give way, through ``torch.load(path, mmap=True)`` and ``load_state_dict(..., assign=True)`` on a model on
"meta", safetensors, or ``device_map``."""


def full_name(precision: object) -> str:
    """Return the name in `PRECISIONS` of a precision, or what was given if it has none."""
    given = str(precision).removeprefix("torch.")
    return _ALIASES.get(given, given)


def precision_named(precision: object, *, converts: bool = True) -> str:
    """Return the name in `PRECISIONS` of a precision that was given by a name or by a torch.dtype.

    Args:
        precision: the name, or the dtype in which autocast computes.
        converts: whether models may be converted ("bf16-true").

    Raises:
        ValueError: there is no such precision, or models would have to be converted.
    """
    name = full_name(precision)
    allowed = [one for one, (weights, _) in PRECISIONS.items() if converts or weights is None]
    if name in allowed:
        return name
    convert = ""
    if name in PRECISIONS:
        dtype = PRECISIONS[name][0]
        convert = f"; weights in {dtype} are those of a model that was converted: model.to(torch.{dtype}), without this"
    raise ValueError(f"precision is one of {', '.join(allowed)}; got {precision!r}{convert}")

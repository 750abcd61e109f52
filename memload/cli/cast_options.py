"""Parses the casts of command options: DTYPE, or DTYPE,norm_removed."""

from __future__ import annotations

from dataclasses import replace

from memload.casts.rule import Cast, as_cast


def cast_of(text: str, option: str) -> Cast:
    """Return the cast that the value of an option describes.

    Args:
        text: the value, such as "bfloat16" or "bfloat16,norm_removed".
        option: the option, such as "--cast", for messages.

    Raises:
        ValueError: it is no such value.

    Example:
        >>> cast_of("bf16,norm_removed", "--cast")
        Cast(dtype=torch.bfloat16, norm_removed=True)
    """
    dtype, comma, norm = text.partition(",")
    if comma and norm != "norm_removed":
        raise ValueError(f"{option}: expected DTYPE or DTYPE,norm_removed, got {text!r}")
    try:
        return replace(as_cast(dtype), norm_removed=bool(comma))
    except TypeError as error:
        raise ValueError(f"{option}: {error}") from None

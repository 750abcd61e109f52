"""The rules of torch's default_collate; only this module imports them.

`torch.utils.data.default_collate` documents the map as the way to extend it, but the module that has the map is not
public. A test fails when it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

__all__ = ["as_shipped", "collate", "default_collate_fn_map"]

_SAMPLES = (dict, tuple, list, torch.Tensor)


_judged: tuple[Mapping[Any, Any], bool] = ({}, False)  # the latest rules, and whether they are as shipped


def as_shipped(rules: Mapping[Any, Any] = default_collate_fn_map) -> bool:
    """Return whether these rules treat samples of tensors as unmodified torch does: users may add to its map."""
    global _judged
    known, answer = _judged
    if known != rules:
        answer = _treats_tensors_as_shipped(rules)
        _judged = dict(rules), answer
    return answer


def _treats_tensors_as_shipped(rules: Mapping[Any, Any]) -> bool:
    if rules.get(torch.Tensor) is not collate_tensor_fn:
        return False
    kinds = (kind for key in rules for kind in (key if isinstance(key, tuple) else (key,)))
    return not any(issubclass(sample, kind) for kind in kinds if kind is not torch.Tensor for sample in _SAMPLES)

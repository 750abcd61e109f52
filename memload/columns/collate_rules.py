"""The rules of torch's default_collate; only this module imports them.

`torch.utils.data.default_collate` documents the map as the way to extend it, but the module that has the map is not
public. A test fails when it changes.
"""

from __future__ import annotations

from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

__all__ = ["collate", "collate_tensor_fn", "default_collate_fn_map"]

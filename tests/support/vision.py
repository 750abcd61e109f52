"""torchvision's v2 transforms, which are Python: they work where its operators do not load, being for another torch."""

import torch

try:
    from torchvision.transforms import v2
except RuntimeError:  # its import describes two of the operators, which must be declared at least
    OPERATORS = torch.library.Library("torchvision", "DEF")  # as long as this lives
    for name in ("nms", "qnms"):
        OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision.transforms import v2

__all__ = ["v2"]

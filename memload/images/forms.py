"""The forms that images may take in a shard: their modes, as Pillow names them, and the ways to resize them."""

from __future__ import annotations

from typing import Literal

Mode = Literal["L", "RGB", "RGBA", "I;16"]
Fit = Literal["stretch", "crop", "pad"]
MODES = ("L", "RGB", "RGBA", "I;16")
FITS = ("stretch", "crop", "pad")
CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4, "I;16": 1}

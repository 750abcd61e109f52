"""What the API reference makes of docstrings: `Example:` is a section of examples, and names of pages are links."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Renames the sections `Example:`, of which griffe knows the plural alone, and links `docs/NAME.md`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was loaded."""
        if obj.docstring is not None:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"docs/([a-z-]+\.md)", r"[docs/\1](../\1)", text)

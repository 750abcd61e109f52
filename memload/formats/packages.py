"""Import the libraries of formats, which are extras of memload, when a file needs them."""

from __future__ import annotations

import importlib
from typing import Any


def package(name: str, extra: str, what: str) -> Any:
    """Return the package `name`.

    Args:
        name: the name of the package, as it is imported.
        extra: the extra of memload that installs it.
        what: the purpose, for the message.

    Raises:
        ImportError: the package is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise ImportError(f'{what}: needs {name}; install it by pip install "memload[{extra}]"') from None

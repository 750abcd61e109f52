"""Feeds a training loop with array data at the speed of memory: a drop-in for torch's DataLoader."""

try:
    import memload._core as _core
except ModuleNotFoundError as error:
    if error.name != "memload._core":
        raise
    raise ImportError(
        f"{__path__[0]} is memload's source, without its compiled module _core. To use an installed memload, start "
        "Python from another folder; to install it, run `pip install .` in the source folder; to build it in place, "
        "run `cmake --preset dev && cmake --build --preset dev`."
    ) from error

__version__ = _core.version
__all__ = ["__version__"]

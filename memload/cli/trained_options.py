"""Finds the models, losses and optimizers that options name as MODULE:NAME."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from pathlib import Path
from typing import Any

import torch

from memload.errors import first_line
from memload.planning.optimizer_bytes import optimizer_named


def trained(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options for training, as arguments of `memload.plan`.

    Raises:
        ValueError: a name is not found, or names no model, loss or optimizer.
    """
    given: dict[str, Any] = {"precision": options.precision, "accumulate": options.accumulate}
    given |= {"weights": options.weights, "strategy": options.strategy, "world_size": options.world_size}
    if options.model:
        given["model"] = _model(options.model)
    if options.loss:
        if not options.model:
            raise ValueError("--loss is called with a model and a batch: give --model as well")
        given["loss"] = functools.partial(_imported(options.loss, "--loss"), given["model"])
    if options.optimizer:
        given["optimizer"] = _optimizer(options.optimizer)
    return given


def _model(text: str) -> torch.nn.Module:
    make = _imported(text, "--model")
    try:
        with torch.device("meta"):
            model = make()
    except Exception as error:
        raise ValueError(
            f'--model: {text}() raised {type(error).__name__} under torch.device("meta"), where parameters take no '
            f"memory: {first_line(error)}"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"--model: {text}() returned {type(model).__name__}, expected a torch.nn.Module")
    return model


def _optimizer(name: str) -> Any:
    if ":" not in name:
        try:
            return optimizer_named(name)
        except ValueError as error:
            raise ValueError(f"--optimizer: {error}; give one of yours as MODULE:CLASS") from None
    found = _imported(name, "--optimizer")
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise ValueError(f"--optimizer: {name} is no class of optimizers")
    return found


def _imported(text: str, option: str) -> Any:
    """Return the object that MODULE:NAME names; the working directory's modules are included."""
    module, _, name = text.partition(":")
    if not (module and name):
        raise ValueError(f"{option}: expected MODULE:NAME, such as train:make_model, got {text!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ValueError(f"{option}: import {module} raised {type(error).__name__}: {first_line(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{option}: {module} has no {name!r}")
        found = getattr(found, part)
    return found

"""Models in their training precision whose parameters have no memory.

Such a model only shows how large its tensors are. It runs forward and backward in milliseconds at any size, on any
machine. It uses torch's fake tensors, as torch's compiler does.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

from memload.nested import leaves, mapped
from memload.planning.allocations import nbytes_of, tensors_in
from memload.planning.group_samples import tags_in
from memload.planning.optimizer_bytes import twin_over
from memload.planning.precisions import PRECISIONS
from memload.planning.variants import converted
from memload.sizes import format_size

_LOG = logging.getLogger(FakeTensorMode.__module__)


SMALL = 1 << 20
"""Bytes of tensors that a loss uses beside its batch and its models, such as weights of classes, which do not count."""


class UnknownTensorsError(ValueError):
    """A loss uses tensors whose bytes count, and that belong to no model that is known."""


class WeightlessMode(FakeTensorMode):
    """The mode in which operations of torch make tensors without memory, and use small ones that have some.

    Raises:
        UnknownTensorsError: those that have memory are more than `SMALL` bytes.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)  # type: ignore[no-untyped-call]
        self._used: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for one in tensors_in((args, kwargs or {})):
            if not isinstance(one, FakeTensor) and not one.is_meta:
                self._used[id(one)] = one
        nbytes = nbytes_of(self._used.values()) if self._used else 0
        if nbytes > SMALL:
            raise UnknownTensorsError(
                f"the loss uses tensors of {format_size(nbytes)} that belong to none of the models: give all models "
                "that it runs, frozen ones too, in a list or a dict as model=, or as teacher= where there is one; make "
                "other large tensors buffers of a model"
            )
        return super().__torch_dispatch__(func, types, args, kwargs)


class WithValues(torch.Tensor):
    """A small tensor with values among tensors without memory.

    Operations on such tensors alone give such tensors. In an operation with others it is a tensor without memory.
    """

    _mode: FakeTensorMode

    @classmethod
    def of(cls, tensor: torch.Tensor, mode: FakeTensorMode) -> WithValues:
        """Return the tensor as one with values."""
        made = tensor.detach().as_subclass(cls)
        made._mode = mode
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation of torch."""
        given = (args, kwargs or {})
        tensors = [one for one in leaves(given) if isinstance(one, torch.Tensor)]
        mode = next(one._mode for one in tensors if isinstance(one, cls))
        with torch._C.DisableTorchFunctionSubclass():
            if not all(isinstance(one, cls) for one in tensors):
                args, kwargs = mapped(given, lambda one: _without_values(one, mode))
                return func(*args, **kwargs)
            with unset_fake_temporarily():
                out = func(*args, **(kwargs or {}))
                return mapped(out, lambda one: cls.of(one, mode) if isinstance(one, torch.Tensor) else one)


def _without_values(one: Any, mode: FakeTensorMode) -> Any:
    return mode.from_tensor(one.as_subclass(torch.Tensor)) if isinstance(one, WithValues) else one


class Weightless:
    """Replaces parameters and buffers by tensors without memory inside ``with``, and restores them afterwards.

    Modules with a trained parameter get the given precision; frozen modules keep theirs.

    Args:
        modules: modules on any device, "meta" included.
        precision: one of `PRECISIONS`.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], precision: str) -> None:
        self._modules = modules
        self._dtype, self._autocast = map(_dtype, PRECISIONS[precision])
        self._mode = WeightlessMode()
        self._silence = lambda _: False  # one of its own: several may be in use at a time
        self._twins: dict[int, torch.Tensor] = {}
        self._trained: dict[int, torch.nn.Parameter] = {}
        self._before: list[tuple[torch.nn.Module, str, torch.Tensor]] = []

    def __enter__(self) -> Weightless:
        for module in self._modules:
            trained = any(p.requires_grad for p in module.parameters())
            dtype = self._dtype if trained else None
            for part in module.modules():
                for name, tensor in _own_tensors(part):
                    self._before.append((part, name, tensor))
                    setattr(part, name, self._twin(tensor, dtype))
        _LOG.addFilter(self._silence)  # why a step fails is said where the error is caught
        return self

    def __exit__(self, *_: object) -> None:
        _LOG.removeFilter(self._silence)
        while self._before:
            part, name, tensor = self._before.pop()
            setattr(part, name, tensor)

    def batch(self, sample: Any) -> Any:
        """Return a batch of the same form whose tensors have no memory; floating ones in the models' precision.

        The numbers of data sets in a batch of groups keep their values, by which models choose layers.
        """
        tags = {id(tag) for tag in tags_in(sample)}
        return converted(sample, lambda tensor: self._tag(tensor) if id(tensor) in tags else self._input(tensor))

    def _tag(self, tensor: torch.Tensor) -> torch.Tensor:
        with unset_fake_temporarily():
            return WithValues.of(tensor, self._mode)

    def _input(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._like(tensor, self._dtype if self._dtype and tensor.is_floating_point() else tensor.dtype)

    def _like(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of the same shape and of that dtype."""
        with self._mode:
            return torch.empty(tensor.shape, dtype=dtype)

    def running(self, loss: Callable[[Any], torch.Tensor], sample: Any) -> Callable[[], torch.Tensor]:
        """Return a function that runs the loss of a batch without memory, under autocast if the precision is mixed."""
        batch = self.batch(sample)

        def run() -> torch.Tensor:
            with self.autocast():
                return loss(batch)

        return run

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the autocast context of the precision; a null context without one."""
        return torch.autocast("cpu", self._autocast) if self._autocast else contextlib.nullcontext()

    def tensors(self) -> contextlib.AbstractContextManager[Any]:
        """Return the mode in which operations of torch make tensors without memory."""
        return self._mode

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return an optimizer of the same class and settings, without state, over parameters without memory."""
        twin: torch.optim.Optimizer = twin_over(optimizer, self._groups)
        return twin

    def _groups(self, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
        return [
            {**group, "params": [self._trained.get(id(p), p) for p in group["params"]]}
            for group in optimizer.param_groups
        ]

    def trained(self, modules: Iterable[torch.nn.Module]) -> list[torch.nn.Parameter]:
        """Return parameters on "meta" in place of the trained parameters of these modules."""
        parts = {id(part) for module in modules for part in module.modules()}
        tensors = {id(tensor): None for part, _, tensor in self._before if id(part) in parts}
        return [self._trained[key] for key in tensors if key in self._trained]

    def _twin(self, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        if id(tensor) not in self._twins:
            if torch.nn.parameter.is_lazy(tensor):
                raise ValueError("a model with lazy parameters has no sizes yet: give it one batch first")
            kept = dtype if dtype and tensor.is_floating_point() else tensor.dtype
            twin = self._like(tensor, kept)
            with self.tensors():
                if isinstance(tensor, torch.nn.Parameter):
                    twin = torch.nn.Parameter(twin, requires_grad=tensor.requires_grad)
            if tensor.requires_grad:
                self._trained[id(tensor)] = torch.nn.Parameter(torch.empty(tensor.shape, dtype=kept, device="meta"))
            self._twins[id(tensor)] = twin
        return self._twins[id(tensor)]


def _own_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def _dtype(name: str | None) -> torch.dtype | None:
    return None if name is None else getattr(torch, name)

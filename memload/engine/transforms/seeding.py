"""Random numbers of a pass: one stream for each row or batch, whichever thread comes to it, and whenever.

Torch's default generator belongs to the process. Threads that drew from it would race each other and the loop, and
would move the state that a script relies on. So while a transform runs, torch's random functions are handed a
generator of their own, wherever the transform gave them none: a ``TorchFunctionMode``, which acts on its thread alone.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
import xxhash
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from memload.sampling.torch_draws import drawn_seed


@dataclass(frozen=True)
class PassSeed:
    """What all randomness of one pass follows from.

    Attributes:
        base: the number that a stock iterator draws to seed its workers.
        epoch: passes since that number was drawn; more than 0 only with ``persistent_workers``, which are seeded once.
    """

    base: int
    epoch: int = 0

    @functools.cached_property
    def key(self) -> int:
        """64 bits, from which with a row all that is random about it follows."""
        return _hashed(np.array([self.base, self.epoch], dtype=np.int64).tobytes(), 0)

    def of_row(self, row: int) -> int:
        """Return the seed of a row, 64 bits: the same wherever in the pass, and in whichever batch, it comes."""
        found: int = xxhash.xxh3_64_intdigest(row.to_bytes(8, "little", signed=True), self.key)
        return found

    def of_batch(self, rows: NDArray[np.int64] | int) -> int:
        """Return the seed of a batch, 64 bits: of the rows in it, or of its number where its rows are not known."""
        if isinstance(rows, int):
            rows = np.array([rows], dtype=np.int64)
        return _hashed(b"batch" + rows.tobytes(), self.key)

    def of_samples(self, batch: NDArray[np.int64] | int, count: int) -> list[int]:
        """Return the seeds of the samples of a batch, of which its rows are given, or its number and their count."""
        if isinstance(batch, int):
            key = self.of_batch(batch)
            return [_hashed(position.to_bytes(8, "little"), key) for position in range(count)]
        return [self.of_row(row) for row in batch.tolist()]


def _hashed(what: bytes, key: int) -> int:
    return int(xxhash.xxh3_64_intdigest(what, seed=key))


class Randomness(TorchFunctionMode):
    """The random numbers of whatever a thread is at. Entered by ``with``; for one thread at a time.

    Nothing is seeded before the first number is asked for, so a transform without randomness pays only for the look at
    each torch function that it calls, about a microsecond.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seed: Callable[..., int] = int
        self._of: tuple[Any, ...] = ()
        self._generators: dict[torch.device, torch.Generator] = {}
        self._fresh: set[torch.device] = set()
        # One generator, set to where one with the key of the row would begin: a sixth of the cost of making it.
        self._rng = np.random.Generator(np.random.Philox(key=0))
        self._philox = self._rng.bit_generator
        self._philox_state: Any = self._philox.state
        self._philox_key: Any = self._philox_state["state"]["key"]
        self._rng_seeded = False
        self.drew = False
        """Whether a generator was asked for since somebody set this to False."""
        # A compiled function must not trace into it; to load the compiler takes seconds. The function is not bound: an
        # object that holds its own method is a reference cycle.
        self._generator_of = _untraced() if "torch._dynamo" in sys.modules else Randomness.generator

    @classmethod
    def on_the_spot(cls) -> Randomness:
        """Return generators seeded by one draw from torch's default generator."""
        random, seed = cls(), drawn_seed(None)
        random.begin(lambda: seed)
        return random

    @staticmethod
    def entered() -> Randomness | None:
        """Return those that this thread has entered."""
        return getattr(_ENTERED, "random", None)

    @staticmethod
    def here() -> Randomness:
        """Return those that this thread has entered; otherwise some that are seeded by torch's default generator."""
        return Randomness.entered() or Randomness.on_the_spot()

    def __enter__(self) -> Randomness:
        super().__enter__()  # type: ignore[no-untyped-call]
        _ENTERED.random = self
        return self

    def __exit__(self, *raised: Any) -> None:
        _ENTERED.random = None
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def begin(self, seed: Callable[..., int], *of: Any) -> None:
        """Turn to the next row or batch, whose seed ``seed(*of)`` is."""
        self._seed, self._of, self._rng_seeded = seed, of, False
        if self._fresh:
            self._fresh.clear()

    def generator(self, device: torch.device | None = None) -> torch.Generator:
        """Return the torch generator of this row or batch on a device, the CPU if not given."""
        device, self.drew = device or _CPU, True
        found = self._generators.get(device)
        if found is None:
            found = self._generators[device] = torch.Generator(device)
        if device not in self._fresh:
            self._fresh.add(device)
            found.manual_seed(self._seed(*self._of))
        return found

    def for_torch(self, device: torch.device) -> torch.Generator:
        """Return the torch generator of this row or batch, for a function that a compiler may be tracing."""
        return self._generator_of(self, device)

    def rng(self) -> np.random.Generator:
        """Return the numpy generator of this row or batch."""
        self.drew = True
        if not self._rng_seeded:
            self._rng_seeded = True
            self.rng_seeded(self._seed(*self._of))
        return self._rng

    def rng_seeded(self, seed: int) -> np.random.Generator:
        """Return the numpy generator as it begins for the row or batch of this seed, whatever that began before."""
        self._philox_key[0] = seed
        self._philox.state = self._philox_state
        return self._rng

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Give a generator to the random functions of torch."""
        how = _HANDLED.get(func)
        if how is not None:
            return how(self, func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)


@functools.cache
def _untraced() -> Callable[[Randomness, torch.device], torch.Generator]:
    found: Callable[[Randomness, torch.device], torch.Generator] = torch.compiler.disable(Randomness.generator)  # type: ignore[no-untyped-call]
    return found


_CPU = torch.device("cpu")
_ENTERED = threading.local()

_TAKES_GENERATOR = {
    *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli, torch.multinomial),
    *(torch.poisson, torch.binomial, torch._standard_gamma, torch._sample_dirichlet, torch.rrelu, torch.rrelu_),
    *(torch.Tensor.bernoulli, torch.Tensor.bernoulli_, torch.Tensor.cauchy_, torch.Tensor.exponential_),
    *(torch.Tensor.geometric_, torch.Tensor.log_normal_, torch.Tensor.multinomial, torch.Tensor.normal_),
    *(torch.Tensor.random_, torch.Tensor.uniform_, torch.nn.init.uniform_, torch.nn.init.normal_),
    *(torch.nn.init.kaiming_uniform_, torch.nn.init.kaiming_normal_),
}


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    return tensors[0].device if tensors else torch.get_default_device()


# Functions without a generator of their own, as the functions beneath that have one. Torch's definitions.


def _rand_like(random: Randomness, input: torch.Tensor, **like: Any) -> torch.Tensor:  # noqa: A002 - torch's name
    empty = torch.empty_like(input, **like)
    return empty.uniform_(generator=random.for_torch(empty.device))


def _randn_like(random: Randomness, input: torch.Tensor, **like: Any) -> torch.Tensor:  # noqa: A002
    empty = torch.empty_like(input, **like)
    return empty.normal_(generator=random.for_torch(empty.device))


def _randint_like(random: Randomness, input: torch.Tensor, *bounds: int, **like: Any) -> torch.Tensor:  # noqa: A002
    named = [like.pop(name) for name in ("low", "high") if name in like]
    low, high = (0, *bounds, *named)[-2:]
    empty = torch.empty_like(input, **like)
    return empty.random_(int(low), int(high), generator=random.for_torch(empty.device))


def _dropout(
    random: Randomness,
    input: torch.Tensor,  # noqa: A002
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    if not training or p == 0:
        return input
    kept = torch.empty_like(input).bernoulli_(1 - p, generator=random.for_torch(input.device))
    if p < 1:
        kept.div_(1 - p)
    return input.mul_(kept) if inplace else input * kept


_REWRITTEN: dict[Any, Callable[..., torch.Tensor]] = {
    torch.rand_like: _rand_like,
    torch.randn_like: _randn_like,
    torch.randint_like: _randint_like,
    F.dropout: _dropout,
}

_REFUSED = {
    *(F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, F.rrelu, F.gumbel_softmax),
    *(F.fractional_max_pool2d, F.fractional_max_pool3d, torch.dropout, torch.dropout_, torch.alpha_dropout),
    *(torch.alpha_dropout_, torch.feature_dropout, torch.feature_dropout_, torch.feature_alpha_dropout),
    *(torch.feature_alpha_dropout_, torch.native_dropout),
}


def _given_a_generator(random: Randomness, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("generator") is None:
        kwargs = {**kwargs, "generator": random.for_torch(_device_of(args, kwargs))}
    return func(*args, **kwargs)


def _rewritten(random: Randomness, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _REWRITTEN[func](random, *args, **kwargs)


def _refused(random: Randomness, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001
    if kwargs.get("training", True):
        raise RuntimeError(
            f"{func.__name__} draws from torch's process-wide generator and takes no other: a transform that runs "
            "ahead of the loop cannot use it; draw what it needs by torch.rand, or call it in the loop"
        )
    return func(*args, **kwargs)


_HANDLED: dict[Any, Callable[[Randomness, Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    **dict.fromkeys(_REFUSED, _refused),
    **dict.fromkeys(_REWRITTEN, _rewritten),
    **dict.fromkeys(_TAKES_GENERATOR, _given_a_generator),
}


RANDOM_NAMES = frozenset(function.__name__ for function in _HANDLED)
"""The names of torch's random functions that are handled here, as methods or in any module."""


@dataclass(frozen=True)
class Drawing:
    """A user's function, called with the generators that it asks for by the names of its parameters.

    Attributes:
        fn: takes a sample or a batch, and ``rng`` (a numpy Generator) or ``generator`` (a torch.Generator) if it has
            parameters of these names without a default, or with None as default.
    """

    fn: Callable[..., Any]
    wants: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "wants", tuple(_wanted(self.fn)))

    def __call__(self, value: Any) -> Any:
        """Call the function. On the spot, torch's functions draw from the generator that it asks for, as in a pass."""
        if "generator" not in self.wants or Randomness.entered() is not None:
            return self.bound_to(Randomness.here())(value) if self.wants else self.fn(value)
        with Randomness.on_the_spot() as random:
            return self.bound_to(random)(value)

    def bound_to(self, random: Randomness) -> Callable[[Any], Any]:
        """Return the function of a value alone, which draws from these generators."""
        fn = self.fn
        if not self.wants:
            return fn
        if self.wants == ("rng",):
            return lambda value: fn(value, rng=random.rng())
        return lambda value: fn(value, **{name: getattr(random, name)() for name in self.wants})


def _wanted(fn: Any) -> Iterable[str]:
    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        parameters = inspect.signature(called).parameters
    except (TypeError, ValueError):  # functions written in C need not have a signature
        return
    for name in ("rng", "generator"):
        if name in parameters and parameters[name].default in (inspect.Parameter.empty, None):
            yield name

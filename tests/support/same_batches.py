"""Whether FastLoader and the stock loader give the same batches from the same seed.

Both run the same loop from the same random state. What the loop sees is written down step by step: batches, errors,
warnings, lengths, and the state of every generator after each; the two accounts must be equal.
"""

import random
import re
import warnings

import numpy as np
import torch
from hypothesis import HealthCheck
from loader_cases import CHANGING, Own
from torch.utils.data import DataLoader

import memload
from memload.sampling import torch_draws

FEWEST = torch_draws.FEWEST
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]
MOST_ERRORS = 3
MOST_BATCHES = 60


def states(generators):
    _, keys, position, *_ = np.random.get_state()  # noqa: NPY002 - the state that all share
    return (
        torch.get_rng_state().numpy().tobytes(),
        *(generator.get_state().numpy().tobytes() for generator in generators),
        random.getstate(),
        (keys.tobytes(), position),
    )


def plain(value):
    """A batch as something that compares: types of containers, dtypes, shapes, bytes."""
    if isinstance(value, torch.Tensor):
        dense = value.detach().resolve_conj().contiguous().reshape(-1)
        steps = value.stride() if dense.numel() else None
        facts = (value.dtype, tuple(value.shape), steps, value.requires_grad, value.is_conj())
        return type(value), facts, dense.view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return dict, [(key, plain(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [plain(one) for one in value]
    return type(value), repr(value)


class Held:
    """A batch that the loop keeps: looked at only when everything is over."""

    def __init__(self, batch):
        self.batch = batch

    def __eq__(self, other):
        return plain(self.batch) == plain(other.batch)

    def __repr__(self):
        return repr(self.batch)


class Account:
    """What a loop sees of a loader, step by step."""

    def __init__(self, case, kind):
        self.case, self.kind = case, kind
        self.steps = []
        self.engine = "none"

    def note(self, what, do, *given, write=lambda value: None):
        """Write down what comes of a call, which warnings with it, and how all generators stand then."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                outcome, value = "gives", do(*given)
            except StopIteration:
                outcome, value = "ends", None
            except Exception as error:
                outcome, value = "fails", error.with_traceback(None)  # whose frames would keep iterators in cycles
        said = [one for one in caught if "(Triggered internally at" not in str(one.message)]  # by torch, once a process
        warned = [(one.category, without_addresses(one.message)) for one in said]
        told = write(value) if outcome == "gives" else value
        self.steps.append((what, outcome, told, warned, states(self.generators)))
        return value if outcome == "gives" else None, outcome

    def write(self):
        torch.default_generator.manual_seed(11)
        random.seed(12)
        np.random.seed(13)  # noqa: NPY002
        case = self.case
        own, others = self.generators = [torch.Generator().manual_seed(seed) for seed in (14, 15)]
        drawn_from = (own if case.same_generator else others) if case.own_generator else None
        order, outcome = self.note("order", case.order, drawn_from)
        if outcome == "gives":
            extra = case.fast_only if self.kind is memload.FastLoader else {}
            arguments = {**order, **case.arguments, "generator": own if case.own_generator else None, **extra}
            loader, outcome = self.note("loader", lambda: self.kind(case.dataset(), **arguments))
        if outcome == "gives":
            self.engine = getattr(loader, "engine", "stock")
            self.note("length", len, loader, write=int)
            for number, one in enumerate(case.passes):
                self.go_through(loader, one, f"pass {number}")
        return self

    def go_through(self, loader, one, where):
        made = [self.note(f"{where} iterator {k}", iter, loader) for k in range(1 + one.twins)]
        iterators = [iterator for iterator, outcome in made if outcome == "gives"]
        del made
        for iterator in iterators:
            self.note(f"{where} length", len, iterator, write=int)
        errors = taken = 0
        while iterators and taken != one.stop and taken < MOST_BATCHES and errors <= MOST_ERRORS:
            for iterator in list(iterators):
                _, outcome = self.note(f"{where} batch {taken}", next, iterator, write=Held if one.holds else plain)
                errors += outcome == "fails"
                if outcome == "ends":
                    self.note(f"{where} after the end", next, iterator)
                    iterators.remove(iterator)
            taken += 1
            self.goes_on(loader, one)
        iterators = iterator = None
        self.note(f"{where} is over", lambda: None)

    def goes_on(self, loader, one):
        """What the loop does between two batches."""
        if one.draws:
            torch.rand(3)
            torch.rand(1, generator=self.generators[0])
            random.random()
        if id(loader.dataset) in CHANGING and one.changes:
            CHANGING[id(loader.dataset)][1].add_(1)
        sampler = getattr(loader.sampler, "sampler", loader.sampler)
        if isinstance(sampler, Own):
            sampler.shift += 2


def without_addresses(error):
    return re.sub(r"0x[0-9a-f]+", "0x...", str(error))


def same_error(stock, fast):
    expected, got = without_addresses(stock), without_addresses(fast)
    # Natively there is no worker process to name, and torch collates differently inside one.
    return type(fast) is type(stock) and (expected == got or "in DataLoader worker process" in expected)


def assert_same(case):
    """Compare the accounts; returns that of FastLoader. Every other dataset is permuted as large ones."""
    CHANGING.clear()
    torch_draws.FEWEST = 2 if len(repr(case)) % 2 else FEWEST
    stock, fast = Account(case, DataLoader).write(), Account(case, memload.FastLoader).write()
    for expected, got in zip(stock.steps, fast.steps, strict=False):
        where = f"at {expected[0]!r} on the {fast.engine} engine"
        assert expected[:2] == got[:2], f"{where}: {expected[:3]} became {got[:3]}"
        if expected[1] == "fails":
            assert same_error(expected[2], got[2]), f"{where}: {expected[2]!r} became {got[2]!r}"
        else:
            assert expected[2] == got[2], f"{where}: {expected[2]} became {got[2]}"
        assert expected[3] == got[3], f"{where}: warnings {expected[3]} became {got[3]}"
        for name, a, b in zip(("global", "own", "other", "random", "numpy"), expected[4], got[4], strict=True):
            assert a == b, f"{where}: the {name} generator stands elsewhere"
    assert len(stock.steps) == len(fast.steps)
    return fast

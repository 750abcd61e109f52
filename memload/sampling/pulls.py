"""Pull the batches of a sampler that memload knows only by its iterator, so that the pass can be resumed.

If the sampler or its iterator has `state_dict` and `load_state_dict`, the stream saves that state after every pull.
Otherwise it saves the states that the generators had at the start of the pass. To resume, it restores them, iterates
the sampler again and skips the batches that the loop has seen.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler

from memload.sampling.checks import damaged
from memload.sampling.draws import Position, decode, encode

_MOST_SAMPLERS = 8
"""The most nested samplers that are looked at; this ends the search where each access makes a new sampler."""

Generators = Mapping[str, torch.Generator]


class BatchStream:
    """The batches that a sampler yields in one pass.

    Args:
        sampler: yields batches of row indices, or single row indices.
        given: the generators of the loader and its samplers, by name; torch's global generator is added.
        position: the position to resume from; None: the start of the pass.
        ended: the position of the sampler at the end of the previous pass, if only a state has it.

    Raises:
        ValueError: `position` counts planned rows.
    """

    def __init__(
        self, sampler: Any, given: Generators, position: Position | None = None, ended: Position | None = None
    ) -> None:
        if position is not None and "batches" not in position:
            raise ValueError(
                "the state counts planned rows, but this sampler must be iterated: load it into a loader with the "
                "dataset and collation of the loader that saved it"
            )
        self._generators = {**given, "global": torch.default_generator}
        self._sampler = sampler
        self._inner = _RecordingSampler(sampler.sampler if type(sampler) is BatchSampler else sampler)
        self._begin: int = position["batches"] if position else 0
        self._epoch: int | None = position["epoch"] if position else None
        self._pulled = 0
        self._over = False
        self._waiting: deque[Any] = deque()
        self._states: deque[_SavedStates] = deque()
        self._made: dict[str, str] = {}
        self._first: dict[str, str] = {}
        if position is not None and "states" not in position:
            self._replay(position)
        elif position is not None and self._begin:
            self._resume(position)
        else:
            before = ended if position is None else position  # nothing was pulled: the end of the previous pass counts
            if before is not None and "states" in before:
                self._end(before)
            self._pulled = 0
            self.start_again()
            self._keep_state()

    def start_again(self) -> None:
        """Make a new iterator of the sampler and drop the previous one."""
        self._made = self._generator_states()
        self._open()

    def next(self, seen: int) -> Any:
        """Pull the next batch; the loop has seen `seen` batches. Raises StopIteration after the last."""
        if self._waiting:
            return self._waiting.popleft()
        batch = self._pull()
        while len(self._states) > 1 and self._states[1].pulled <= self._begin + seen:
            self._states.popleft()
        return batch

    def position(self, seen: int) -> dict[str, Any]:
        """Return the position of the pass after the loop has seen `seen` batches."""
        batches = self._begin + seen
        place: dict[str, Any] = {"batches": batches, "epoch": self._epoch}
        known = [saved for saved in self._states if saved.pulled <= batches]
        if known:
            ended = {"ended": True} if known[-1].ended else {}
            return {**place, "states": copy.deepcopy(known[-1].states), **ended}
        if not self._pulled and not self._first:
            self._first = self._generator_states()  # `_pull_first` restores torch's global generator from this
        return {**place, "pulled": self._pulled, "over": self._over, "made": self._made, "first": self._first}

    def _open(self) -> None:
        inner, outer = self._inner, self._sampler
        if type(outer) is BatchSampler:  # it iterates its sampler only when the first batch is pulled
            self._batches = iter(BatchSampler(_UntilItsEnd(inner), outer.batch_size, outer.drop_last))
        else:
            self._batches = iter(inner)

    def _pull(self) -> Any:
        try:
            batch = next(self._batches) if self._pulled else self._pull_first()
        except StopIteration:
            self._over = True  # this pull may have drawn numbers
            raise
        self._pulled += 1
        self._keep_state()
        return batch

    def _pull_first(self) -> Any:
        """Pull the first batch with the global generator's state in a saved position, if there is one."""
        self._epoch = epoch_of(self._sampler)
        states = self._generator_states()
        first = self._first = self._first or states
        if first["global"] == states["global"]:
            return next(self._batches)
        self._set({"global": first["global"]})
        try:
            return next(self._batches)
        finally:
            self._set({"global": states["global"]})

    def _keep_state(self) -> None:
        owners = {"sampler": self._inner.sampler, "iterator": self._inner.iterator}
        states = {name: copy.deepcopy(owner.state_dict()) for name, owner in owners.items() if is_stateful(owner)}
        if states:
            self._states.append(_SavedStates(self._pulled, states, self._inner.ended))

    def _resume(self, position: Position) -> None:
        """Go on from the sampler's own state; where that is of its end, nothing is left of the pass."""
        ended = bool(position.get("ended"))
        if ended:
            self._end(position)
            self._batches = iter(())
        else:
            self._restore(position)
        # What was restored is kept: the sampler may not report it before a pull.
        self._states.append(_SavedStates(self._begin, position["states"], ended))

    def _restore(self, position: Position) -> None:
        """Restore the sampler's own state."""
        self._pulled = position["batches"]
        states = position["states"]
        if "sampler" in states:
            self._inner.sampler.load_state_dict(copy.deepcopy(states["sampler"]))
        if "iterator" in states:
            self._inner.ready = iter(self._inner.sampler)
            self._inner.ready.load_state_dict(copy.deepcopy(states["iterator"]))
        self._open()

    def _end(self, position: Position) -> None:
        """Restore the sampler's state at the end of a pass; the next pass begins from it."""
        with self._rewound({}):
            self._restore(position)
            if next(self._batches, None) is not None:
                self._restore(position)  # the state at the end already is the start of the next pass
        self._inner.ready = None

    def _replay(self, position: Position) -> None:
        """Repeat the pulls of a position with the generators' states of that time."""
        self._made, pulled = dict(position["made"]), position["pulled"]
        if self._epoch is not None:
            epoch_owner(self._sampler).set_epoch(self._epoch)
        with self._rewound(self._made):
            self._open()
            if position["first"]:
                self._set(position["first"])
            for number in range(pulled):
                try:
                    batch = self._pull()
                except StopIteration:
                    raise damaged('state["position"]["pulled"]', pulled, f"at most the sampler's {number}") from None
                if self._pulled > self._begin:
                    self._waiting.append(batch)
            if position["over"]:
                next(self._batches, None)
        self._first = dict(position["first"])

    def _generator_states(self) -> dict[str, str]:
        return {name: encode(generator.get_state()) for name, generator in self._generators.items()}

    def _set(self, states: Mapping[str, str]) -> None:
        for name, generator in self._generators.items():
            if name in states:
                generator.set_state(decode(states[name]))

    @contextlib.contextmanager
    def _rewound(self, states: Mapping[str, str]) -> Iterator[None]:
        now = self._generator_states()
        self._set(states)
        try:
            yield
        finally:
            self._set(now)


class _SavedStates(NamedTuple):
    """The states that a sampler and its iterator had after a number of pulls."""

    pulled: int
    states: dict[str, Any]
    ended: bool
    """Whether the sampler had come to its end: a batch that is not full is made when there are no more rows."""


class _RecordingSampler:
    """A sampler that records its iterator, or returns the iterator in `ready` if there is one."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.iterator: Any = None
        self.ready: Any = None
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        self.iterator = iter(self.sampler) if self.ready is None else self.ready
        self.ended = False
        return self.iterator  # type: ignore[no-any-return]


class _UntilItsEnd:
    """A sampler of single rows that notes when it has come to its end."""

    def __init__(self, inner: _RecordingSampler) -> None:
        self._inner = inner

    def __iter__(self) -> Iterator[Any]:
        yield from self._inner
        self._inner.ended = True


def is_stateful(owner: object) -> bool:
    """Return whether an object has `state_dict` and `load_state_dict`."""
    return callable(getattr(owner, "state_dict", None)) and callable(getattr(owner, "load_state_dict", None))


def samplers_in(sampler: Any) -> list[Any]:
    """Return a sampler and the samplers inside it, outermost first, by the attributes `batch_sampler` and `sampler`."""
    found = [sampler]
    for outer in found:
        inner = [getattr(outer, name, None) for name in ("batch_sampler", "sampler")]
        found += [new for new in inner if new is not None and all(new is not known for known in found)]
        if len(found) >= _MOST_SAMPLERS:
            break
    return found


def epoch_owner(sampler: Any) -> Any:
    """Return the outermost sampler with `set_epoch` and an integer `epoch`; None if there is none."""
    for owner in samplers_in(sampler):
        if callable(getattr(owner, "set_epoch", None)) and isinstance(getattr(owner, "epoch", None), int):
            return owner
    return None


def epoch_of(sampler: Any) -> int | None:
    """Return the epoch of a sampler or of a sampler inside it; None if none has an epoch."""
    owner = epoch_owner(sampler)
    return None if owner is None else int(owner.epoch)

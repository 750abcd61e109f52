"""The batches of a sampler that is only known by its iterator, pulled so that the pass can be taken up later.

A sampler that has `state_dict` and `load_state_dict`, or whose iterator has them, tells where it stands: it is asked
after every pull. Of any other one it is remembered how the generators stood when the pass began; to take the pass up,
the sampler is iterated again from there, and what the loop has seen is skipped.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler

from memload.sampling.checks import damaged
from memload.sampling.draws import Position, decode, encode

_MOST_NESTED = 8

Generators = Mapping[str, torch.Generator]


class BatchStream:
    """What an index sampler yields in one pass, one by one.

    Args:
        sampler: yields batches of row indices, or single ones.
        given: the generators that the loader and its samplers were given, by name; the global one is added.
        position: where to go on; None: at the beginning.
        ended: where the sampler stood at the end of the pass before, if this is only known from a state.

    Raises:
        ValueError: `position` is of a sampler that was planned.
    """

    def __init__(
        self, sampler: Any, given: Generators, position: Position | None = None, ended: Position | None = None
    ) -> None:
        if position is not None and "batches" not in position:
            raise ValueError(
                "the state tells of rows that were planned, but this sampler has to be iterated: load it into a loader "
                "with the dataset and collation of the one that saved it"
            )
        self._generators = {**given, "global": torch.default_generator}
        self._sampler = sampler
        self._inner = _Watched(sampler.sampler if type(sampler) is BatchSampler else sampler)
        self._begin: int = position["batches"] if position else 0
        self._epoch: int | None = position["epoch"] if position else None
        self._pulled = 0
        self._over = False
        self._waiting: deque[Any] = deque()
        self._states: deque[tuple[int, dict[str, Any]]] = deque()
        self._made: dict[str, str] = {}
        self._first: dict[str, str] = {}
        if position is not None and "states" not in position:
            self._replay(position)
        elif position is not None and self._begin:
            self._restore(position)
            self._states.append((self._begin, position["states"]))  # asked now, it might not know them yet
        else:
            before = ended if position is None else position  # nothing was pulled: as at the end of the pass before
            if before is not None and "states" in before:
                self._end(before)
            self._pulled = 0
            self.start_again()
            self._keep_state()

    def start_again(self) -> None:
        """Ask the sampler for an iterator, or for another one, and forget the first."""
        self._made = self._generator_states()
        self._open()

    def next(self, seen: int) -> Any:
        """Pull the next batch; the loop has seen so many. Raises StopIteration after the last."""
        if self._waiting:
            return self._waiting.popleft()
        batch = self._pull()
        while len(self._states) > 1 and self._states[1][0] <= self._begin + seen:
            self._states.popleft()
        return batch

    def position(self, seen: int) -> dict[str, Any]:
        """Return where the pass stands when the loop has seen so many batches."""
        batches = self._begin + seen
        place: dict[str, Any] = {"batches": batches, "epoch": self._epoch}
        known = [states for pulled, states in self._states if pulled <= batches]
        if known:
            return {**place, "states": copy.deepcopy(known[-1])}
        if not self._pulled and not self._first:
            self._first = self._generator_states()  # the first batch is pulled with torch's own generator as it is now
        return {**place, "pulled": self._pulled, "over": self._over, "made": self._made, "first": self._first}

    def _open(self) -> None:
        inner, outer = self._inner, self._sampler
        batched = type(outer) is BatchSampler  # which begins to iterate its sampler when it is asked for a batch
        self._batches = iter(BatchSampler(inner, outer.batch_size, outer.drop_last) if batched else inner)

    def _pull(self) -> Any:
        try:
            batch = next(self._batches) if self._pulled else self._pull_first()
        except StopIteration:
            self._over = True  # which may have cost draws
            raise
        self._pulled += 1
        self._keep_state()
        return batch

    def _pull_first(self) -> Any:
        """Pull the first batch as a state that was asked for before it tells, or as it comes."""
        self._epoch = epoch_of(self._sampler)
        states = self._generator_states()
        settled = self._first = self._first or states
        if settled["global"] == states["global"]:
            return next(self._batches)
        self._set({"global": settled["global"]})
        try:
            return next(self._batches)
        finally:
            self._set({"global": states["global"]})

    def _keep_state(self) -> None:
        tellers = {"sampler": self._inner.sampler, "iterator": self._inner.iterator}
        states = {name: copy.deepcopy(one.state_dict()) for name, one in tellers.items() if is_stateful(one)}
        if states:
            self._states.append((self._pulled, states))

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
        """Restore the state that the sampler had at the end of a pass, from which the next pass is iterated."""
        with self._rewound({}):
            self._restore(position)
            if next(self._batches, None) is not None:
                self._restore(position)  # what it told at the end is a beginning already
        self._inner.ready = None

    def _replay(self, position: Position) -> None:
        """Iterate once more what was pulled before, with the generators as they were then."""
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


class _Watched:
    """A sampler that keeps the iterator which it makes, or gives one that is ready."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.iterator: Any = None
        self.ready: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.iterator = iter(self.sampler) if self.ready is None else self.ready
        return self.iterator  # type: ignore[no-any-return]


def is_stateful(one: object) -> bool:
    """Whether this can tell its state and take one."""
    return callable(getattr(one, "state_dict", None)) and callable(getattr(one, "load_state_dict", None))


def samplers_in(sampler: Any) -> list[Any]:
    """Return a sampler and those that it is made of, from the outside in: its `batch_sampler`, its `sampler`."""
    found = [sampler]
    for one in found:
        inner = [getattr(one, name, None) for name in ("batch_sampler", "sampler")]
        found += [new for new in inner if new is not None and all(new is not known for known in found)]
        if len(found) >= _MOST_NESTED:  # whatever gives another one each time that it is asked
            break
    return found


def epoch_owner(sampler: Any) -> Any:
    """The outermost of a sampler and those in it that has an epoch which can be set; None if none has."""
    for one in samplers_in(sampler):
        if callable(getattr(one, "set_epoch", None)) and isinstance(getattr(one, "epoch", None), int):
            return one
    return None


def epoch_of(sampler: Any) -> int | None:
    """The epoch of a sampler or of one in it; None if none has any."""
    owner = epoch_owner(sampler)
    return None if owner is None else int(owner.epoch)

"""The bytes of a step as a function of the counts of its batch: the maximum over all moments of the step.

    bytes alive after each allocation, in steps with batches of several sizes -> a polynomial for each moment

A model makes the same allocations in the same order at each batch size. So each moment has a line of its own, and the
peak of a batch is the highest of them: at small sizes perhaps the line of a large gradient, at larger ones that of the
activations. Where the order differs, the curve is one line through the peaks, plus all gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memload.planning.allocations import Timeline
from memload.planning.variants import Floats, Kind

MAPPED = 32 << 20
"""Bytes from which on glibc gives freed memory back at once, whatever was freed before: M_MMAP_THRESHOLD's maximum.

Source: https://man7.org/linux/man-pages/man3/mallopt.3.html"""

FINE = 0.01
"""Of the bytes in the heap, the share below which a block is a fine one: steps of a GRU have them, those of a CNN, a
ViT, a U-Net, an MLP, a GAT and of an LSTM of oneDNN do not."""

_LEAST_SQUARE = 0.01  # bytes: a smaller coefficient of the squared rows is a rounding error


@dataclass(frozen=True)
class Each:
    """The allocations of a step, each as a function of the counts of its batch.

    Attributes:
        lines: float64 (allocations, terms), the polynomial of each.
        asked: float64 (allocations, terms), those of the blocks that the C library is asked for.
        timeline: the allocations of one batch.
        varies: whether batches of a loop differ in size, as those of graphs do.
    """

    lines: Floats
    asked: Floats
    timeline: Timeline
    varies: bool = False

    @classmethod
    def of_step(cls, step: Timeline, *, varies: bool = False) -> Each:
        """Return the allocations of one step, whose batch has no other size; their only term is 1."""
        lines, asked = (nbytes[:, None].astype(np.float64) for nbytes in (step.nbytes, step.asked))
        return cls(lines, asked, step, varies)

    def peak(self, terms: Floats, times: float, kept: float = 0) -> float:
        """Return the most bytes at one time, where what the C library's heap keeps counts so many times.

        The heap does not shrink between steps, so it has the bytes of its own highest moment when larger tensors have
        theirs. glibc maps a larger tensor only if none of the heap's free pieces holds it. A piece that holds one or
        more is used by more than half, floor(piece / tensor) tensors. So those tensors count as used by the heap that
        half of what is free has room for, if each step has tensors of the same sizes; where sizes differ from batch to
        batch, pieces are too small for the next. By mallinfo2, tensors of 46 MB used 195 of 369 MB that an MLP's
        smaller batch had left, and later 241 of 364; of some 50 MB, distances of 47 MB used none.

        Source: https://man7.org/linux/man-pages/man3/mallopt.3.html, M_MMAP_THRESHOLD: allocations "that can't be
        satisfied from the free list".

        Args:
            terms: those of the batch.
            times: how many times bytes in the heap count.
            kept: bytes that other batches left in the heap.
        """
        in_heap = self._in_heap(terms, times)
        rest = np.where(in_heap > 0, 0, self._nbytes(terms))
        apart = max(kept, self._highest(in_heap)) + self._highest(rest)
        if self.varies:
            return apart
        free = (apart - self._highest(in_heap + rest)) / 2
        for nbytes in self._alive_at_most(rest):
            if nbytes < free:
                free -= nbytes
                apart -= nbytes
        return apart

    def peak_below(self, terms: Floats, threshold: int) -> int:
        """Return the most bytes at one time, where the C library's heap keeps what is below a threshold that was set.

        As `Timeline.peak_in_heap`, by which plans of training count.
        """
        nbytes, asked = (one.round().astype(np.int64) for one in (self._nbytes(terms), self.asked @ terms))
        return replace(self.timeline, nbytes=nbytes, asked=asked).peak_in_heap(threshold)

    def kept(self, terms: Floats, times: float) -> float:
        """Return the bytes of the C library's heap after a step, where what it keeps counts so many times."""
        return self._highest(self._in_heap(terms, times))

    def is_fine(self, terms: Floats) -> bool:
        """Return whether most of what is alive in the heap at its highest moment are blocks of less than `FINE` of it.

        So it is of recurrent networks whose layers run operation by operation.
        """
        alive = self.alive_in_heap(terms)
        return bool(2 * alive[alive < FINE * alive.sum()].sum() > alive.sum())

    def alive_in_heap(self, terms: Floats) -> Floats:
        """Return the bytes of each block that is alive in the C library's heap when most bytes are."""
        return self._alive_at_most(self._in_heap(terms, 1.0))

    def made_in_heap(self, terms: Floats) -> float:
        """Return the sum of all blocks of a step in the C library's heap, without copies inside convolutions."""
        return float(self._in_heap(terms, 1.0)[~self._breaks].sum())

    @property
    def _breaks(self) -> NDArray[np.bool_]:
        """Whether each allocation is what a convolution takes inside itself."""
        return self.timeline.inside & ~self.timeline.of_recurrent_layers

    def _nbytes(self, terms: Floats) -> Floats:
        nbytes: Floats = np.maximum(self.lines @ terms, 0)
        return nbytes

    def _in_heap(self, terms: Floats, times: float) -> Floats:
        """Return what allocations take in the C library's heap; 0 for those that it does not keep.

        It keeps blocks below `MAPPED` bytes. What convolutions take inside themselves breaks it up, and has twice the
        surplus. Blocks of recurrent layers are few, and have that of other tensors.
        """
        surplus = (times - 1) * np.where(self._breaks, 2, 1)
        taken: Floats = (1 + surplus) * np.where(self.asked @ terms < MAPPED, self._nbytes(terms), 0)
        return taken

    def _alive_at_most(self, nbytes: Floats) -> Floats:
        """Return the bytes of each allocation that is alive when most bytes are, if they were of these bytes."""
        live = replace(self.timeline, nbytes=nbytes.round().astype(np.int64)).live()
        at = int(live.argmax()) if len(live) else 0
        alive: Floats = nbytes[: at + 1][self.timeline.freed[: at + 1] > at]
        return alive[alive > 0]

    def _highest(self, nbytes: Floats) -> float:
        return self.timeline.highest(nbytes.round().astype(np.int64))


@dataclass(frozen=True)
class Curve:
    """Bytes as a function of the counts of a batch.

    Attributes:
        lines: float64 (moments, terms), the polynomial of each moment.
        terms: returns the terms that the coefficients multiply.
        exact: whether each moment has a line of its own, rather than one for the peak.
        each: the allocations behind the moments; None if the order of allocations differs between batches.
    """

    lines: Floats
    terms: Callable[[Sequence[Any]], Floats]
    exact: bool = True
    each: Each | None = None

    def at(self, *counts: float) -> int:
        """Return the most bytes at one time of a batch with these counts."""
        return math.ceil(float((self.lines @ self.terms(counts)).max(initial=0.0)))

    def in_heap(self, times: float, *counts: float, threshold: int = 0, kept: float = 0) -> int:
        """Return the most bytes at one time, where what the C library's heap keeps counts so many times.

        Without an order that batches of all sizes have in common, everything counts so often.

        Args:
            times: how many times tensors below `MAPPED` bytes count.
            counts: the counts of the batch.
            threshold: with `times` of 1, the bytes below which the heap keeps tensors nevertheless; 0: it keeps none.
            kept: bytes that other batches left in the heap, which tensors of this one may use.
        """
        if times == 1 and threshold and self.each is not None:
            return self.each.peak_below(self.terms(counts), threshold)
        if times == 1 or self.each is None:
            return math.ceil(times * self.at(*counts))
        return math.ceil(self.each.peak(self.terms(counts), times, kept))

    def kept_in_heap(self, times: float, *counts: float) -> int:
        """Return the bytes that the C library's heap has after such steps; 0 if allocations are in no common order."""
        return 0 if self.each is None else math.ceil(self.each.kept(self.terms(counts), times))

    def is_fine(self, *counts: float) -> bool:
        """Return whether the heap has mostly small blocks in steps of a batch with these counts: `Each.is_fine`."""
        return self.each is not None and self.each.is_fine(self.terms(counts))

    def plus(self, *coefficients: float) -> Curve:
        """Return the curve plus a constant, bytes for each row, ... at each moment."""
        more = np.zeros(self.lines.shape[1])
        more[: len(coefficients)] = coefficients
        return replace(self, lines=self.lines + more, each=self.each and _with_first(self.each, more))

    def upper(self) -> Floats:
        """Return the lines that no other line exceeds in every term."""
        kept: list[Floats] = []
        for line in self.lines[np.argsort(-self.lines.sum(axis=1))]:
            if not any((other >= line).all() for other in kept):
                kept.append(line)
        return np.stack(kept) if kept else np.zeros((1, self.lines.shape[1]))


def curve_of(kind: Kind, counts: Sequence[tuple[int, ...]], steps: Sequence[Timeline], *, gradients: bool) -> Curve:
    """Return the curve through the bytes of steps.

    Args:
        kind: the kind of the batches.
        counts: the counts of each batch, as `kind.variants` yields them.
        steps: the allocations of each step.
        gradients: whether the gradients of parameters count.
    """
    aligned = all(step.operations == steps[0].operations for step in steps) and len(steps[0].operations) > 0
    if aligned:
        live = np.stack([step.live(gradients=gradients) for step in steps]).astype(np.float64)
    else:
        peaks = [step.live(gradients=False).max(initial=0) for step in steps]
        last = [step.nbytes[step.gradient].sum() if gradients else 0 for step in steps]
        live = np.array([[peak + whole] for peak, whole in zip(peaks, last, strict=True)], dtype=np.float64)
    found = through(kind, counts, live, exact=aligned)
    if not aligned:
        return found
    timeline = steps[-1] if gradients else replace(steps[-1], nbytes=np.where(steps[-1].gradient, 0, steps[-1].nbytes))
    nbytes = np.stack([np.where(timeline.gradient & (not gradients), 0, step.nbytes) for step in steps])
    asked = np.stack([step.asked for step in steps])
    lines, of_blocks = (_lines(kind, counts, one.astype(np.float64)) for one in (nbytes, asked))
    each = Each(lines, of_blocks, timeline, varies=kind.varies)
    return replace(found, each=each)


def _with_first(each: Each, line: Floats) -> Each:
    """Return the allocations after another one that stays, such as a batch."""
    before = each.timeline
    timeline = Timeline(
        ("", *before.operations),
        np.concatenate([[0], before.nbytes]),
        np.concatenate([[len(before.nbytes) + 2], before.freed + 1]),
        np.concatenate([[False], before.gradient]),
        np.concatenate([[0], before.asked]),
    )
    lines, asked = (np.concatenate([line[None], of_blocks]) for of_blocks in (each.lines, each.asked))
    return Each(lines, asked, timeline, each.varies)


def through(kind: Kind, counts: Sequence[tuple[int, ...]], live: Floats, *, exact: bool) -> Curve:
    """Return the curve through bytes alive, float64 (batches, moments), for batches of these counts."""
    return Curve(np.unique(_lines(kind, counts, live), axis=0), kind.terms, exact)


def _lines(kind: Kind, counts: Sequence[tuple[int, ...]], nbytes: Floats) -> Floats:
    """Return the polynomial of each column of bytes, float64 (batches, columns), over batches of these counts."""
    design = np.stack([kind.terms(of_batch) for of_batch in counts])
    return _solved(design, nbytes) if kind.varies else _through_rows(design, nbytes)


def _through_rows(design: Floats, live: Floats) -> Floats:
    """Return a parabola where four equidistant sizes lie on one, else the line through the first and the last."""
    rows = design[:, 1]
    line = np.zeros((live.shape[1], 3))
    line[:, 1] = (live[-1] - live[0]) / (rows[-1] - rows[0])
    line[:, 0] = live[0] - line[:, 1] * rows[0]
    parabola = _solved(design, live)
    is_one = (np.abs(np.diff(live, n=3, axis=0)[0]) < 0.5) & (parabola[:, 2] > _LEAST_SQUARE)
    fitted = np.where(is_one[:, None], parabola, line)
    # No prediction falls with the size: a moment that fell at small sizes counts as its observed maximum.
    falls = fitted[:, 1] + fitted[:, 2] * rows[0] < 0
    flat = np.stack([live.max(axis=0), *np.zeros((2, live.shape[1]))], axis=1)
    lines: Floats = np.where(falls[:, None], flat, fitted)
    return lines


def _solved(design: Floats, live: Floats) -> Floats:
    """Return the coefficients of each moment, (moments, terms); counts are relative to the first for precision."""
    scale = np.where(design[0] == 0, 1.0, design[0])
    solution = np.linalg.lstsq(design / scale, live, rcond=None)[0]
    coefficients: Floats = np.round(solution.T / scale, 6)
    return coefficients

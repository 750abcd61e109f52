"""The bytes of a step as a function of the counts of its batch: the maximum over all moments of the step.

    bytes alive after each allocation, in steps with batches of several sizes -> a polynomial for each moment

A model makes the same allocations in the same order at each batch size. So each moment has a line of its own, and the
peak of a batch is the highest of them: at small sizes perhaps the line of a large gradient, at larger ones that of the
activations. Where the order differs, the curve is one line through the peaks, plus all gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memload.planning.allocations import Timeline
from memload.planning.variants import Floats, Kind

_LEAST_SQUARE = 0.01  # bytes: a smaller coefficient of the squared rows is a rounding error


@dataclass(frozen=True)
class Curve:
    """Bytes as a function of the counts of a batch.

    Attributes:
        lines: float64 (moments, terms), the polynomial of each moment.
        terms: returns the terms that the coefficients multiply.
        exact: whether each moment has a line of its own, rather than one for the peak.
    """

    lines: Floats
    terms: Callable[[Sequence[Any]], Floats]
    exact: bool = True

    def at(self, *counts: float) -> int:
        """Return the most bytes at one time of a batch with these counts."""
        return math.ceil(float((self.lines @ self.terms(counts)).max(initial=0.0)))

    def plus(self, *coefficients: float) -> Curve:
        """Return the curve plus a constant, bytes for each row, ... at each moment."""
        more = np.zeros(self.lines.shape[1])
        more[: len(coefficients)] = coefficients
        return Curve(self.lines + more, self.terms, self.exact)

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
    return through(kind, counts, live, exact=aligned)


def through(kind: Kind, counts: Sequence[tuple[int, ...]], live: Floats, *, exact: bool) -> Curve:
    """Return the curve through bytes alive, float64 (batches, moments), for batches of these counts."""
    design = np.stack([kind.terms(of_batch) for of_batch in counts])
    lines = _through_rows(design, live) if len(kind.units) == 1 else _solved(design, live)
    return Curve(np.unique(lines, axis=0), kind.terms, exact)


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

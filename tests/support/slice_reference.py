"""Slices of time as they are defined, in whole numbers of Python and one element at a time."""

import itertools
import math
from fractions import Fraction

import numpy as np
import xxhash

SLACK, SECOND = 1000, 10**9


def ns(seconds):
    return round(Fraction(float(seconds)) * SECOND)


def periods(rate, k):
    """Nanoseconds of k periods, rounded half up."""
    return math.floor(Fraction(k * SECOND) / rate + Fraction(1, 2))


class Times:
    """The times of rows, and where they have gaps."""

    def __init__(self, times, period, longest):
        self.times, self.period, self.longest = times, period, longest

    @classmethod
    def regular(cls, rate, start, rows):
        period = periods(rate, 1)
        return cls([ns(start) + periods(rate, j) for j in range(rows)], period, 2 * period)

    def last_at(self, time):
        return max((j for j, one in enumerate(self.times) if one <= time), default=-1)

    def joined(self, j):
        return j + 1 < len(self.times) and self.times[j + 1] - self.times[j] <= self.longest

    def holds(self, j, time):
        return j >= 0 and (self.joined(j) or time - self.times[j] < self.period)


def sample_times(start, samples, rate, offset):
    return [start + ns(offset) + periods(rate, k) for k in range(samples + 1)]


ALWAYS = (-math.inf, math.inf)


def sampled(values, clock, edges, sampling, inside=ALWAYS):
    """The samples at edges[:-1] of a slice of the interval `inside`, and which of them are covered."""
    found, mask = [], []
    for time, after in itertools.pairwise(edges):
        row = clock.last_at(time + SLACK)
        covered = inside[0] <= time + SLACK < inside[1] and clock.holds(row, time + SLACK)
        mask.append(covered)
        found.append(_sample(values, clock, time, after, row, sampling, inside) if covered else _zero(values, sampling))
    return np.stack(found), np.array(mask)


def _wide(values):
    return np.float64 if values.dtype in (np.float64, np.int32, np.int64) else np.float32


def _zero(values, sampling):
    return np.zeros_like(values[0], dtype=_wide(values) if sampling in ("linear", "mean") else values.dtype)


def _read(clock, row, inside):
    """Which of two rows, this one and the next, belong to the interval; this one where neither does."""
    within = [inside[0] <= clock.times[j] + SLACK < inside[1] for j in (row, row + 1) if j < len(clock.times)]
    if not clock.joined(row) or not any(within[1:]):
        return (row,)
    return (row, row + 1) if within[0] else (row + 1,)


def between(first, second, weight):
    """What lies between two rows; of a difference that is not finite, the sum of two products."""
    with np.errstate(over="ignore", invalid="ignore"):
        difference = second - first
        apart = first * (1 - weight) + second * weight
        return np.where(np.isfinite(difference), first + difference * weight, apart)


def _sample(values, clock, time, after, row, sampling, inside):
    times = clock.times
    if sampling == "previous":
        return values[row]
    near = _read(clock, row, inside)
    if sampling == "nearest":
        return values[near[-1] if times[near[-1]] - (time + SLACK) <= (time + SLACK) - times[near[0]] else near[0]]
    wide = _wide(values)
    if sampling == "linear":
        first = values[near[0]].astype(wide)
        if len(near) < 2 or times[row] >= time:
            return first
        weight = np.float32(float(time - times[row]) / float(times[row + 1] - times[row]))
        return between(first, values[row + 1].astype(wide), wide(weight))
    begin, end = max(time, inside[0]), min(after, inside[1])
    rows = [j for j, one in enumerate(times) if begin <= one + SLACK < end]
    if rows and rows[0] > row and not clock.joined(row):
        rows = []
    kept = rows[:1]
    for j in rows[1:]:
        if not clock.joined(j - 1):
            break
        kept.append(j)
    if not kept:
        return values[near[0]].astype(wide)
    total = np.zeros(values.shape[1:], dtype=np.float64)
    for j in kept:
        total = total + values[j].astype(wide).astype(np.float64)
    return (total / len(kept)).astype(wide)


def counted(spikes, edges, inside=ALWAYS):
    """Counts of the spikes of each unit, lists of nanoseconds, in the bins between edges: (bins, units)."""
    out = np.zeros((len(edges) - 1, len(spikes)), dtype=np.int16)
    for unit, times in enumerate(spikes):
        for time in times:
            for k in range(len(edges) - 1):
                if edges[k] <= time + SLACK < edges[k + 1] and inside[0] <= time + SLACK < inside[1]:
                    out[k, unit] += 1
    return out


def listed(spikes, begin, duration, inside=ALWAYS):
    """The seconds from `begin` and the units of the spikes of a slice, in the order of their times."""
    every = sorted((time, unit) for unit, times in enumerate(spikes) for time in times)
    kept = [
        (max(time - begin, 0) / SECOND, unit)
        for time, unit in every
        if begin <= time + SLACK < begin + duration and inside[0] <= time + SLACK < inside[1]
    ]
    return np.array([time for time, _ in kept]), np.array([unit for _, unit in kept], dtype=np.int64)


def drawn(span, key, row):
    """By how much later a slice starts in the pass with this key."""
    seed = xxhash.xxh3_64_intdigest(int(row).to_bytes(8, "little"), key)
    first = xxhash.xxh3_128_intdigest(b"slice" + bytes(10), seed) & (2**64 - 1)
    return first * (span + 1) >> 64

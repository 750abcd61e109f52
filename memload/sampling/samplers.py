"""Samplers whose draws are arrays: rows of several datasets mixed by weight, and rows with a weight each.

A pass over either draws one number from the user's generator (or torch's own), when its first row is requested. That
number determines everything else, so the state of generators does not depend on how far ahead rows are planned. With
several ranks the number is ``seed + epoch``, the same on all of them, and each rank has its share of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DistributedSampler

from memload.columns.numbers import is_whole
from memload.sampling.draws import Indices, Position, RowStream
from memload.sampling.ranks import CommonRows, RankRows, Ranks, count
from memload.sampling.weighted_draws import (
    MIXED_CHUNK,
    WEIGHTED_CHUNK,
    MixedRows,
    RankedRows,
    WeightedRows,
    Weights,
    check_enough,
)


class RankedSampler(Ranks, DistributedSampler[int]):  # type: ignore[override]  # ranks are looked up
    """The common part of samplers with weights: the number of a pass, and the share of each rank.

    It is a subclass of torch's DistributedSampler, because Lightning, Ray Train and others check for that class to
    find out whether a sampler shares its rows out by itself.
    """

    num_samples: int  # of all ranks
    replacement: bool
    _generator: torch.Generator | None

    def _set_draws(
        self, generator: torch.Generator | None, seed: Any, drop_last: Any, num_replicas: Any, rank: Any
    ) -> None:
        self._generator, self._generator_given = generator, generator is not None
        self.seed = None if seed is None else count("seed", seed, least=0)  # type: ignore[assignment]
        self.drop_last, self.epoch = _checked_bool("drop_last", drop_last), 0
        if seed is not None and generator is not None:
            raise ValueError("give a generator or a seed, not both: a seed decides the order of every epoch by itself")
        self.set_ranks(num_replicas, rank)
        self._check_generator()

    @property
    def generator(self) -> torch.Generator | None:
        """The generator that draws the number of each pass, for one process; None: torch's own, or ``seed``."""
        return self._generator

    @generator.setter
    def generator(self, generator: torch.Generator | None) -> None:
        # accelerate sets it: it keeps the generator's state equal on all ranks and deals out the batches itself.
        self._generator = generator
        if generator is not None and self.shares_by_itself:
            self.set_ranks(1, 0)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, from 0; it has no effect where a generator draws."""
        self.epoch = count("epoch", epoch, least=0)

    def __len__(self) -> int:
        ranks, _ = self.ranks
        return self.num_samples // ranks if self.drop_last else -(-self.num_samples // ranks)

    def __iter__(self) -> Iterator[int]:
        return iterated(self.stream())

    def stream(self, position: Position | None = None) -> RowStream:
        """Return the rows of a pass, or those after a position, as arrays, which FastLoader reads."""
        self._check_generator()
        ranks, rank = self.ranks
        rows = self._common_rows(position)
        return rows if ranks == 1 else RankRows(rows, ranks, rank, self.drop_last)

    def number(self) -> int:
        """Return the number of a pass that begins: from the epoch, or drawn from the generator."""
        if self._by_epoch:
            return ((self.seed or 0) + self.epoch) % (1 << 63)
        generator = self._generator
        device = "cpu" if generator is None else generator.device  # the default device does not matter
        return int(torch.empty((), dtype=torch.int64, device=device).random_(generator=generator).item())

    def foreseen_number(self) -> int | None:
        """Return what torch's own generator would draw now; None if another generator or the epoch gives the number."""
        if self._by_epoch or self._generator is not None:
            return None
        copied = torch.default_generator.clone_state()
        return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=copied).item())

    def _common_rows(self, position: Position | None) -> CommonRows:
        """Return the rows of all ranks in a pass, or those after a position."""
        raise NotImplementedError

    @property
    def _by_epoch(self) -> bool:
        return self.seed is not None or (self._generator is None and self.num_replicas > 1)

    def _check_generator(self) -> None:
        if self._generator_given and self.num_replicas > 1:
            raise ValueError(
                f"a generator draws for one process, but {self.num_replicas} ranks share the rows: give seed= instead, "
                "which gives all ranks the same order; or num_replicas=1 and rank=0 if another library deals the "
                "batches out"
            )


class MixingSampler(RankedSampler):
    """Draws rows from several joined datasets in proportion to a weight for each.

    For each row, first a dataset is drawn at random by the weights; then the next row of that dataset's own shuffled
    order is taken. In that order every row comes once before any is repeated. A pass begins with newly shuffled orders.
    FastLoader plans the rows as arrays, tens of millions a second.

    With several ranks each gets its share of one common order, and equally many rows. As with torch's
    DistributedSampler, the order follows from ``seed + epoch``: call ``set_epoch`` before each epoch.

    Args:
        dataset: the result of ``memload.concat({"name": dataset, ...})``, or of its ``select`` or ``split``; or
            torch's ConcatDataset, whose parts have no names.
        weights: for each dataset, by name or in order; they need not add up to one, and 0 leaves a dataset out.
        num_samples: rows in one pass (epoch), of all ranks together; default: as many as ``dataset`` has.
        replacement: whether rows are drawn from their dataset independently of each other instead.
        generator: draws one number a pass, for one process; default: torch's own.
        seed: of the orders, the same on all ranks, in place of a generator; default with several ranks: 0.
        drop_last: whether to leave out the last rows if the ranks cannot have equally many; otherwise further rows are
            drawn.
        num_replicas: ranks that share the epoch; None: those of torch.distributed, if it is initialised when a pass
            begins, otherwise 1.
        rank: of this process, from 0; None: that of torch.distributed.

    Raises:
        ValueError: a weight is negative, not finite or missing, all are 0, a dataset of positive weight has no rows,
            ``num_samples`` is no positive integer, ``seed`` or a rank is out of range, or a generator is given and
            there are several ranks.
        TypeError: ``dataset`` is of another type, or ``replacement`` no bool.

    Example:
        >>> import memload, torch
        >>> few, many = memload.from_arrays(x=torch.zeros(30)), memload.from_arrays(x=torch.ones(9000))
        >>> both = memload.concat({"few": few, "many": many})
        >>> sampler = memload.MixingSampler(both, {"few": 1, "many": 1}, num_samples=1000)
        >>> 400 < sum(both[row]["dataset_idx"] for row in sampler) < 600
        True
    """

    def __init__(
        self,
        dataset: Any,
        weights: Mapping[str, float] | Sequence[float],
        num_samples: int | None = None,
        replacement: bool = False,
        generator: torch.Generator | None = None,
        *,
        seed: int | None = None,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        rows = _rows_by_name(dataset)
        self.weights = _checked_weights(_in_order(weights, list(rows)))
        self.num_samples = _checked_count(len(dataset) if num_samples is None else num_samples)
        self.replacement = _checked_bool("replacement", replacement)
        self._set_draws(generator, seed, drop_last, num_replicas, rank)
        for (name, own), weight in zip(rows.items(), self.weights.tolist(), strict=True):
            if weight > 0 and not len(own):
                raise ValueError(f"dataset {name!r} has a weight of {weight:g} and no rows: give it the weight 0")
        self._rows = list(rows.values())

    @property
    def sizes(self) -> list[int]:
        """Rows of each dataset."""
        return list(map(len, self._rows))

    @property
    def nbytes(self) -> int:
        """Bytes of the orders of a pass and of the rows drawn at once."""
        drawn = [len(own) for own, weight in zip(self._rows, self.weights, strict=True) if weight > 0]
        return 8 * ((0 if self.replacement else sum(drawn)) + 2 * min(MIXED_CHUNK, self.num_samples))

    def _common_rows(self, position: Position | None) -> CommonRows:
        return MixedRows(self._rows, self.weights, self.num_samples, self.replacement, self, position)


class WeightedSampler(RankedSampler):
    """Draws rows with probabilities proportional to their weights, which may be changed at any time.

    It takes the arguments of torch's WeightedRandomSampler, which is limited to 2**24 rows and reads its weights once a
    pass. Draws are in float64: a row whose weight is less than 1e-16 of the sum may never come.

    New weights apply from the next draw on. Rows are drawn 256 at a time, as the loader asks for them: a stock loader
    asks for the next batch (with workers, for ``num_workers * prefetch_factor`` batches), FastLoader for ``depth``
    batches ahead. So new weights take effect after at most that many batches and 256 rows.

    Cost with replacement: a running sum over all rows whenever weights have changed (milliseconds for 1e6 rows, a
    second or so for 1e8), a search in it for each row drawn (one to a few microseconds), and 8 bytes of memory a row
    beside the weights. Without replacement: all rows are sorted once in each pass and after each change within it.
    A sort takes 40 bytes a row while it runs, and 0.1 to 0.2 microseconds a row.

    With several ranks each gets its share of one common order, and equally many rows. As with torch's
    DistributedSampler, the order follows from ``seed + epoch``: call ``set_epoch`` before each epoch. The weights must
    be the same on all ranks: set them to the same values on each, at the same step. Otherwise each rank draws by its
    own weights, and some rows may come on several ranks and others on none.

    Args:
        weights: one for each row, in any sequence, array or tensor; they need not add up to one. Copied.
        num_samples: rows of one pass, of all ranks together; default: one for each weight.
        replacement: whether a row may come several times in a pass.
        generator: draws one number a pass, for one process; default: torch's own.
        seed: of the orders, the same on all ranks, in place of a generator; default with several ranks: 0.
        drop_last: whether to leave out the last rows if the ranks cannot have equally many; otherwise further rows are
            drawn, with replacement.
        num_replicas: ranks that share the epoch; None: those of torch.distributed, if it is initialised when a pass
            begins, otherwise 1.
        rank: of this process, from 0; None: that of torch.distributed.

    Raises:
        ValueError: a weight is negative or not finite, all are 0, ``weights`` are not flat, ``num_samples`` is no
            positive integer, or without replacement more than there are rows of positive weight, ``seed`` or a rank is
            out of range, or a generator is given and there are several ranks.
        TypeError: ``replacement`` is no bool, or ``weights`` are no numbers.

    Example:
        >>> sampler = WeightedSampler([0.0, 1.0, 0.0], num_samples=4)
        >>> list(sampler)
        [1, 1, 1, 1]
        >>> sampler.weights[:] = torch.tensor([0.0, 0.0, 2.0])
        >>> list(sampler)
        [2, 2, 2, 2]
    """

    def __init__(
        self,
        weights: Any,
        num_samples: int | None = None,
        replacement: bool = True,
        generator: torch.Generator | None = None,
        *,
        seed: int | None = None,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        self._weights = _own_tensor(weights)
        self._summed: tuple[int, Weights] | None = None
        self.num_samples = _checked_count(len(self._weights) if num_samples is None else num_samples)
        self.replacement = _checked_bool("replacement", replacement)
        self._set_draws(generator, seed, drop_last, num_replicas, rank)
        if not self.replacement:
            check_enough(self.num_samples, int(np.count_nonzero(self._weights.numpy())))

    @property
    def weights(self) -> torch.Tensor:
        """The weights, float64 (n,): ``sampler.weights[rows] = w`` changes some, an assignment all of them."""
        return self._weights

    @weights.setter
    def weights(self, weights: Any) -> None:
        self.set_weights(weights)

    def set_weights(self, weights: Any) -> None:
        """Replace the weights of all rows by a copy of these.

        Raises:
            ValueError, TypeError: as for a new sampler; also if their number differs. The old weights stay.
        """
        new = _own_tensor(weights)
        if len(new) != len(self._weights):
            raise ValueError(f"expected {len(self._weights)} weights, one for each row, got {len(new)}")
        self._weights[:] = new

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_summed": None}  # the copy counts its own writes

    @property
    def nbytes(self) -> int:
        """Bytes of the rows drawn at once."""
        return 8 * min(WEIGHTED_CHUNK if self.replacement else self.num_samples, self.num_samples)

    @property
    def edits(self) -> int:
        """The number of writes to the weights, as autograd counts them."""
        return self._weights._version

    def checked(self) -> Weights:
        """Return the weights as an array.

        Raises:
            ValueError: a weight is negative or not finite, or all weights are 0.
        """
        return _checked_weights(self._weights.numpy())

    def cumulative(self) -> Weights:
        """Return the running sum of the weights. Raises ValueError as ``checked``."""
        edits = self.edits
        if self._summed is None or self._summed[0] != edits:
            self._summed = None  # free the old sum before the new one is made
            self._summed = edits, np.cumsum(self.checked())
        return self._summed[1]

    def _common_rows(self, position: Position | None) -> CommonRows:
        return WeightedRows(self, position) if self.replacement else RankedRows(self, position)


def iterated(stream: RowStream) -> Iterator[int]:
    """Yield the rows of a stream one by one; each array is drawn when its first row is requested."""
    seen = 0
    while (rows := stream.next(seen)) is not None:
        yield from rows.tolist()
        seen += len(rows)


def _own_tensor(weights: Any) -> torch.Tensor:
    with torch.inference_mode(False):  # autograd does not count writes to tensors made in inference mode
        try:
            own = torch.as_tensor(weights, dtype=torch.float64, device="cpu").detach().to("cpu", copy=True)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"weights must be numbers, one for each row: {error}") from error
    _checked_weights(own.numpy())
    return own


def _checked_weights(weights: Any) -> Weights:
    array = np.asarray(weights, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"weights must be a flat sequence of at least one number, got shape {array.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        least, total = array.min(), array.sum()
    if least >= 0 and 0 < total < np.inf:
        return array
    bad = ~((array >= 0) & (array < np.inf))
    if bad.any():
        position = int(bad.argmax())
        raise ValueError(f"weight {position} is {array[position]}; weights must be finite, and 0 or more")
    raise ValueError(f"the weights add up to {total}; at least one must be positive, and their sum finite")


def _checked_count(num_samples: Any) -> int:
    if not is_whole(num_samples) or num_samples <= 0:
        raise ValueError(f"num_samples must be a positive integer, got {num_samples!r}")
    return int(num_samples)


def _checked_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False; got {value!r}")
    return value


def _rows_by_name(dataset: Any) -> dict[str, range | Indices]:
    if isinstance(dataset, ConcatDataset):
        ends = dataset.cumulative_sizes
        return {str(k): range(begin, end) for k, (begin, end) in enumerate(zip([0, *ends], ends, strict=False))}
    if not getattr(dataset, "names", ()):
        raise TypeError(
            f"{type(dataset).__name__} has no names for its datasets: give memload.concat("
            '{"name": dataset, ...}), or its select(...) or split(...)'
        )
    rows: dict[str, range | Indices] = dataset.rows_by_name()
    return rows


def _in_order(weights: Any, names: list[str]) -> list[Any]:
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise ValueError(f"expected a weight for each of {', '.join(names)}; got {', '.join(map(str, weights))}")
        return [weights[name] for name in names]
    if isinstance(weights, torch.Tensor):
        weights = weights.tolist()
    if len(weights) != len(names):
        raise ValueError(f"expected {len(names)} weights, one for each of {', '.join(names)}; got {len(weights)}")
    return list(weights)

"""What users do to samples and batches: the transform_pipeline, and its use behind the stock machinery."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from memload.casts.rule import Cast
from memload.columns.ragged_samples import Forms
from memload.engine.cast_batches import Casting, cast_batch
from memload.engine.collating import CutBatch, FieldSlots, collate_as_made
from memload.engine.gather_spec import GatherSpec
from memload.engine.gatherer import BatchResult
from memload.engine.iterators import AroundBatches
from memload.engine.transforms.captured import seeds_shared_numbers, warn_of_seeding
from memload.engine.transforms.seeding import Drawing, PassSeed, Randomness
from memload.kept_errors import NotingPlace, name_of
from memload.sampling.draws import Indices
from memload.stats import LoaderStats

if TYPE_CHECKING:
    from memload.engine.transforms.cast_advice import CastAdvice


def checked_transform(transform: Any) -> Callable[..., Any] | None:
    """Return the ``batch_transform=`` of a loader. Raises TypeError if it cannot be called."""
    if transform is not None and not callable(transform):
        raise TypeError(f"batch_transform= takes a function of one batch, got {type(transform).__name__}")
    if transform is not None:
        warn_of_seeding(transform, "batch_transform=")
    found: Callable[..., Any] | None = transform
    return found


@dataclass(frozen=True)
class TransformPipeline:
    """What becomes of a gathered batch.

    Attributes:
        maps: functions of one sample, applied one after the other; none: the batch stays whole.
        casts: casts of a batch made of mapped samples, and of images whose pixels the gather does not move; others are
            done while gathering.
        transform: a function of the batch that comes last.
        names: of the fields of a batch that was gathered, in order.
        forms: of those of its fields, by key, whose rows differ in length.
        advice: finds out whether a cast does what the functions do; None: it knows, or does not ask.
    """

    maps: tuple[Drawing, ...]
    casts: Mapping[Any, Cast]
    transform: Drawing | None
    names: tuple[Any, ...] = ()
    forms: Forms = field(default_factory=dict)
    advice: CastAdvice | None = None

    @classmethod
    def of(cls, source: GatherSpec, transform: Callable[..., Any] | None) -> TransformPipeline:
        """Return what is to be done to the batches of a source."""
        last = None if transform is None else Drawing(transform)
        names = () if source.maps else tuple(source.fields)
        return cls(tuple(map(Drawing, source.maps)), source.late_casts or {}, last, names, source.forms)

    def apply(
        self,
        batch: Any,
        rows: Indices,
        seed: PassSeed,
        random: Randomness,
        slots: FieldSlots,
        unwanted: Callable[[], bool] = lambda: False,
    ) -> Any:
        """Return what the loop gets for a gathered batch.

        Args:
            batch: as it was gathered.
            rows: of the batch.
            seed: what the randomness of the pass follows from.
            random: of the thread that calls this.
            slots: lend memory for what is collated.
            unwanted: asked before each sample whether nobody wants the batch any more; then `UnwantedError` is raised.
        """
        observing = None if self.advice is None else self.advice.observing(random)
        with contextlib.nullcontext() if observing is None else observing as seen:
            if self.maps:
                cut = CutBatch(batch, self.forms)
                taken = _Taken(cut.samples, unwanted)
                cut.samples = iter(taken)
                if seen is not None:
                    cut.samples = seen.samples(cut.samples, len(rows))
                make = self._maker(cut, rows, seed, random)
                with self._noting_samples(taken, rows):
                    make = taken.making(make if seen is None else seen.maker(make))
                    batch = collate_as_made(make, len(rows), slots, cut)
            if self.casts:
                # Fields of mapped samples have the numbers from 0 on.
                memory = lambda number, nbytes: slots.take(-1 - number, nbytes)  # noqa: E731
                casting = Casting(seed, rows, memory, batched=True)
                batch = cast_batch(batch, self.casts, self.names, casting=casting)
            if self.transform is None:
                return batch
            random.begin(seed.of_batch, rows)
            if seen is not None:
                seen.before(batch)
            with noting_batch(self.transform.fn, rows), random:
                result = self.transform(batch)
            if seen is not None:
                seen.after(result)
            return result

    def _maker(self, cut: CutBatch, rows: Indices, seed: PassSeed, random: Randomness) -> Callable[[int], list[Any]]:
        """Return the function that makes the next so many samples."""
        numbers, fns = iter(rows.tolist()), [fn.bound_to(random) for fn in self.maps]
        plain = self.is_plain and not _may_be_large(cut)  # what is large is made in memory that is used again
        if plain and not any(fn.wants for fn in self.maps):
            (fn,) = fns if len(fns) == 1 else (_one_after_the_other(fns),)
            return lambda count: [fn(sample) for sample in itertools.islice(cut.samples, count)]
        if plain and [fn.wants for fn in self.maps] == [("rng",)]:  # nothing else can draw, nor need it be told
            draw, rng, seed_of = self.maps[0].fn, random.rng_seeded, seed.of_row
            return lambda count: [
                draw(sample, rng=rng(seed_of(row)))
                for row, sample in zip(itertools.islice(numbers, count), cut.samples, strict=False)
            ]

        def make(count: int) -> list[Any]:
            made = []
            with contextlib.nullcontext() if plain else random:  # and not while samples are collated
                for row, sample in zip(itertools.islice(numbers, count), cut.samples, strict=False):
                    random.begin(seed.of_row, row)
                    for fn in fns:
                        sample = fn(sample)
                    made.append(sample)
            return made

        return make

    def _noting_samples(self, taken: _Taken, rows: Indices) -> NotingPlace:
        """Note in an error which row's sample was made, or which samples were collated."""

        def place() -> str:
            users = (fn.fn for fn in self.maps if not str(getattr(fn.fn, "__module__", "")).startswith("memload."))
            names = ", ".join(map(name_of, users))
            if not taken.is_making:
                found = f"the results of map({names}) do not join{_because_of(self.forms)}"
                return f"in the batch of {_listed(rows)}: {found}"
            return f"at {_listed(rows[taken.count - 1 : taken.count])}, in map({names})" if taken.count else ""

        return NotingPlace(place)

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether nobody need look at the torch functions that are called for samples, a microsecond each."""
        from memload.engine.transforms.random_free import cannot_draw

        return all(cannot_draw(fn.fn) for fn in self.maps)

    @property
    def seeds_shared_numbers(self) -> bool:
        """Whether a function seeds Python's or numpy's generator of the process, which one thread at a time may do."""
        drawing = self.maps if self.transform is None else (*self.maps, self.transform)
        return any(seeds_shared_numbers(fn.fn) for fn in drawing)


class UnwantedError(Exception):
    """A batch was given up, amid its samples, since its pass was closed."""


class _Taken:
    """The samples of a batch, counted as functions take them, until nobody wants the batch any more."""

    def __init__(self, samples: Iterable[Any], unwanted: Callable[[], bool]) -> None:
        self._samples, self._unwanted, self.count, self.is_making = samples, unwanted, 0, False

    def __iter__(self) -> Iterator[Any]:
        for sample in self._samples:
            if self._unwanted():
                raise UnwantedError
            self.count += 1
            yield sample

    def making(self, make: Callable[[int], list[Any]]) -> Callable[[int], list[Any]]:
        """Return the function of `collate_as_made`; while functions of samples run, `is_making` is true."""

        def made(count: int) -> list[Any]:
            self.is_making = True
            samples = make(count)
            self.is_making = False
            return samples

        return made


def _because_of(forms: Forms) -> str:
    """Return what to do where fields differ in length, which only a sample that was changed in place still tells."""
    names = ", ".join(repr(name) for name, (form, *_) in forms.items() if form is not None)
    if not names:
        return ""
    return (
        f"; rows of {names} differ in length: change the sample that the function is given and return it, not a copy "
        "such as {**sample}, or give tensors of one length"
    )


def noting_batch(fn: Callable[..., Any], rows: Indices | int) -> NotingPlace:
    """Note in an error of a function of a batch which rows the batch has, or its number where these are not known."""

    def place() -> str:
        which = f"batch {rows}, counted from 0" if isinstance(rows, int) else f"the batch of {_listed(rows)}"
        return f"in {which}, in batch_transform={name_of(fn)}"

    return NotingPlace(place)


def _listed(rows: Indices, most: int = 8) -> str:
    listed = ", ".join(map(str, rows[:most].tolist())) + (f" and {len(rows) - most} more" if len(rows) > most else "")
    return f"row{'s' if len(rows) > 1 else ''} {listed} of the loader's dataset"


def _may_be_large(cut: CutBatch) -> bool:
    """Whether what is made of a sample may be."""
    widest = torch.float64.itemsize
    from memload.engine.transforms.buffer_reuse import LEAST_REUSED

    return any(field.numel() * widest >= LEAST_REUSED * len(field) > 0 for field in cut.fields.values())


def _one_after_the_other(fns: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def all_of_them(sample: Any) -> Any:
        for fn in fns:
            sample = fn(sample)
        return sample

    return all_of_them


def samples_here(dataset: Any, indices: Any, seed: PassSeed, batch: Indices | int) -> Any:
    """Return what a dataset gives for the indices of a batch, with randomness as in the pass that they belong to.

    Args:
        dataset: is asked as a stock loader would ask it.
        indices: of the batch.
        seed: what the randomness of the pass follows from.
        batch: its rows, or where they are not known its number.
    """
    random = Randomness()
    with random:
        if getattr(dataset, "__getitems__", None):
            random.begin(seed.of_batch, batch)
            return dataset.__getitems__(indices)
        return [_sample_here(dataset, index, seed, random) for index in indices]


def _sample_here(dataset: Any, index: Any, seed: PassSeed, random: Randomness) -> Any:
    random.begin(lambda: seed.of_row(int(index) % len(dataset)))
    return dataset[index]


def transformed_here(transform: Callable[..., Any], batch: Any, seed: PassSeed, rows: Indices | int) -> Any:
    """Return a transformed batch, made by the thread that asks; its randomness follows from its rows, or its number."""
    random = Randomness()
    random.begin(seed.of_batch, rows)
    try:
        with noting_batch(transform, rows), torch.no_grad(), random:
            return Drawing(transform)(batch)
    except StopIteration as error:
        return BatchResult(error=error).result()


def with_calls_here(stats: LoaderStats, seconds: float) -> LoaderStats:
    """Return the counters of a pass with the time that `next()` took to call functions: the loop waited for them, too.

    Without functions on threads, what the loop waited for before is the batch that it gave to the function.
    """
    return replace(
        stats,
        consumer_wait_seconds=stats.consumer_wait_seconds + seconds,
        transform_seconds=stats.transform_seconds + seconds,
        transform_wait_seconds=stats.transform_wait_seconds or (stats.consumer_wait_seconds if seconds else 0.0),
    )


class TransformedBatches(AroundBatches):
    """The batches of the stock machinery, each transformed when the loop asks for it.

    Args:
        batches: an iterator with a length.
        transform: the function of a batch.
        seed: what the randomness of the pass follows from, and with it the number of the batch.
        number: of the first of these batches, counted from the beginning of the pass.
        finish: what is done to what the function returned, such as to pin it; None: nothing.
    """

    def __init__(
        self,
        batches: Any,
        transform: Callable[..., Any],
        seed: PassSeed,
        number: int,
        *,
        finish: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(batches)
        self._transform, self._seed, self._number, self._finish = transform, seed, number, finish

    def __next__(self) -> Any:
        batch = next(self._batches)
        number, self._number = self._number, self._number + 1
        done = transformed_here(self._transform, batch, self._seed, number)
        return done if self._finish is None else self._finish(done)

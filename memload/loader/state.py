"""The state of a loader: the contents of `state_dict`, and how a pass resumes from it.

A state is plain data that json can store: numbers, strings, lists and dicts; a generator's state is the base64 of its
bytes. Only the states that the user's samplers and datasets return are stored unchanged.

    {"memload": 1,                                     the format's version
     "dataset": {"rows", "fields", "checksums"},       the dataset, compared when the state is loaded
     "batches": {"size", "drop_last", "sampler"},
     "sampler": {"kind", ...},
     "passes", "delivered", "finished", "base_seed",   the progress of the loop
     "position": {...},                                the position of the sampler after the delivered batches
     "generators": {...},                              the states of the given generators when the state was saved
     "epoch": 0,                                       the epoch of the sampler at that time; None if it has none
     "group": {"batches", "handed"},                   only within a group that `memload.accumulate` took ahead: its
                                                       size, and how many batches of it the loop has received; all
                                                       other entries describe the position before the group
     "dataset_state": {...}}                           only if a dataset in the main process has a state; the states
                                                       of workers are part of "position"
"""

from __future__ import annotations

import copy
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from memload.dtypes import dtype_name
from memload.engine.gather_spec import GatherSpec
from memload.engine.iterators import AroundBatches
from memload.engine.observers import observed
from memload.engine.request import PassRequest
from memload.engine.transforms.seeding import PassSeed
from memload.kept_errors import let_go_by_torch, say_row
from memload.sampling.block_shuffle import BlockShuffle
from memload.sampling.budget_batches import BudgetBatchSampler
from memload.sampling.checks import damaged, entries
from memload.sampling.draws import decode, encode
from memload.sampling.pulls import epoch_of, epoch_owner, is_stateful, samplers_in
from memload.sampling.row_plan import HeldGroup, Progress
from memload.sampling.samplers import MixingSampler, RankedSampler, WeightedSampler
from memload.sampling.torch_draws import drawn_seed

if TYPE_CHECKING:
    from memload.dataset.grouped_spec import GroupedSpec

VERSION = 1

_PROGRESS = ("passes", "delivered", "finished", "base_seed", "position", "generators", "epoch")
_KEYS = ("dataset", "batches", "sampler", *_PROGRESS)
_PARTS = {part: entries({}) for part in ("dataset", "batches", "sampler")}


def _shared(sampler: RankedSampler) -> dict[str, Any]:
    """Return the parameters of a memload sampler whose rows are divided over ranks."""
    facts = {"rows": sampler.num_samples, "replacement": sampler.replacement}
    chosen = {"seed": sampler.seed, "drop_last": sampler.drop_last or None}
    given = {name: value for name, value in chosen.items() if value is not None}
    return {**facts, "generator": sampler.generator is not None, **given}


# The parameters of known samplers that determine the rows; the epoch and the number of ranks belong to the position.
_FACTS: dict[type, Callable[[Any], dict[str, Any]]] = {
    SequentialSampler: lambda s: {"rows": len(s)},
    RandomSampler: lambda s: {"rows": len(s), "replacement": s.replacement, "generator": s.generator is not None},
    SubsetRandomSampler: lambda s: {"rows": len(s), "generator": s.generator is not None},
    WeightedRandomSampler: lambda s: {
        "rows": len(s),
        "weights": len(s.weights),
        "replacement": s.replacement,
        "generator": s.generator is not None,
    },
    MixingSampler: lambda s: {**_shared(s), "weights": s.weights.tolist()},
    WeightedSampler: lambda s: {**_shared(s), "weights": len(s.weights)},
    BlockShuffle: lambda s: {**_shared(s), "blocks": s.blocks.digest, "window": s.window},
    BudgetBatchSampler: BudgetBatchSampler.facts,
    DistributedSampler: lambda s: {"shuffle": s.shuffle, "seed": s.seed, "drop_last": s.drop_last},
}


Resolves: TypeAlias = "Callable[[], GatherSpec | GroupedSpec | str]"
"""Returns the gather specification of a loader's dataset; or why the engine cannot read it, as a sentence."""


class LoaderState:
    """The progress of a loader's latest pass, and the position at which the next one begins."""

    def __init__(self) -> None:
        self._passes = 0  # begun so far
        self.base_seed: int | None = None  # of the latest pass; several threads may begin passes at a time
        self._progress: Progress | None = None
        self._loaded: dict[str, Any] | None = None  # the next pass resumes from it
        self._dataset: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None}  # a pass stays in its process

    def state_dict(self, request: PassRequest, resolves: Resolves) -> dict[str, Any]:
        """Return the loader's state as plain data."""
        if self._loaded is not None:
            return copy.deepcopy(self._loaded)
        progress = self._progress
        held = progress.held if progress else None
        if held is not None and held.handed < held.batches:
            return held.state()
        return {
            "memload": VERSION,
            **self._identity(request, resolves),
            "passes": self._passes,
            "delivered": progress.delivered if progress else 0,
            "finished": progress.finished and held is None if progress else False,
            "base_seed": self.base_seed,
            "position": progress.position() if progress else None,
            "generators": get_states(given_generators(request)),
            "epoch": epoch_of(request.batches),
            **_dataset_state(request),
        }

    def load(self, request: PassRequest, resolves: Resolves, state: Mapping[str, Any]) -> None:
        """Let the next pass resume from this state."""
        checked, self._dataset = _checked(state), None
        if not checked:
            self._progress = self._loaded = None
            return  # nothing to resume: the next pass starts from its first batch
        _compare(checked, self._identity(request, resolves))
        sampler, given = request.batches, given_generators(request)
        from memload.loader.state_checks import check_generators, check_state

        check_state(checked, sampler, given, iterable=isinstance(request.dataset, IterableDataset))
        check_generators(checked, _drawing(sampler, given))
        if "overtaken" in (checked["position"] or {}) and not isinstance(resolves(), str):
            raise ValueError(
                "the state was saved on stock machinery with in_order=False, when some batches had overtaken others, "
                "and this loader is native: load it on stock machinery, and save another at the epoch's end"
            )
        _set_epoch(epoch_owner(sampler), checked["epoch"])
        self._progress, self._loaded = None, copy.deepcopy(checked)

    def begin(self, request: PassRequest) -> Progress:
        """Begin a pass, or resume one if a state from the middle of a pass was loaded.

        The state stays loaded until `begun` confirms that the pass was set up completely. If the setup fails, the
        caller can remove the cause and resume from the same state.
        """
        loaded, self._dataset = self._loaded, None
        if loaded is not None:
            self._passes, self.base_seed = loaded["passes"], loaded["base_seed"]
            set_states(given_generators(request), loaded["generators"])
            if "dataset_state" in loaded and _dataset_tells(request):
                request.dataset.load_state_dict(loaded["dataset_state"])
        if loaded is None or loaded["finished"] or loaded["position"] is None:
            seed = self.base_seed if request.persistent_workers else None  # persistent workers get their seed once
            ended = loaded["position"] if loaded else None
            progress = Progress(number=self._passes, base_seed=seed, ended=ended)
            self._passes += 1
        else:
            progress = Progress(
                number=self._passes - 1,
                base_seed=self.base_seed,
                delivered=loaded["delivered"],
                resumed=loaded["position"],
                behind=loaded.get("group", {}).get("handed", 0),
            )
        self._progress = progress
        return progress

    def take_ahead(
        self, request: PassRequest, resolves: Resolves, batches: Iterator[Any], count: int
    ) -> tuple[list[Any], HeldGroup]:
        """Take at most `count` next batches of the latest pass, for a loop that receives them one by one.

        Until the loop has received all of them, the loader's state describes the position of the loop.
        """
        progress = self._progress or Progress()
        progress.held = None
        held, group = HeldGroup(_remembered(self, request, resolves), 1), []
        try:
            group = list(itertools.islice(batches, count))
            held.batches = len(group)
        finally:
            progress.held = held if held.batches else None
        return group, held

    def begun(self) -> None:
        """Record that the pass begun last has been set up completely."""
        self._loaded = None

    def drawn_seed(self, request: PassRequest, progress: Progress) -> PassSeed:
        """Return the seed of all random numbers of a pass; draw it, unless persistent workers have theirs already.

        It is drawn as a stock iterator draws the seed of its workers.
        """
        if progress.base_seed is None:
            progress.base_seed = self.base_seed = drawn_seed(request.generator)
        return PassSeed(progress.base_seed, progress.number if request.persistent_workers else 0)

    def seed(self, request: PassRequest, progress: Progress, drawn: int | None = None) -> PassSeed:
        """Return the seed from which all random numbers of a pass follow.

        Args:
            request: the request of the pass.
            progress: the progress of the pass.
            drawn: the base seed, where the progress has none.
        """
        if progress.base_seed is None:
            progress.base_seed = self.base_seed = drawn
        return PassSeed(progress.base_seed or 0, progress.number if request.persistent_workers else 0)

    def tells_of(self, progress: Progress) -> bool:
        """Return whether this state describes that pass, which is so for the latest one only."""
        return self._progress is progress

    @property
    def delivered(self) -> int:
        """The number of batches of the latest pass that the loop received, including those before a resume."""
        return self._progress.delivered if self._progress else 0

    def _identity(self, request: PassRequest, resolves: Resolves) -> dict[str, Any]:
        if self._dataset is None:
            self._dataset = _dataset(request, resolves)
        return {"dataset": self._dataset, **_batching(request)}


def _remembered(state: LoaderState, request: PassRequest, resolves: Resolves) -> Callable[[], dict[str, Any]]:
    """Return a function that returns the present state, or raises the error that computing it raised."""
    try:
        now = state.state_dict(request, resolves)
    except Exception as error:  # raised only if the state is asked for
        return functools.partial(_raise, error.with_traceback(None))
    return functools.partial(copy.deepcopy, now)


def _raise(error: Exception) -> dict[str, Any]:
    raise copy.copy(error)  # a raised error refers to the frames of the caller


def caught_up(batches: Iterator[Any], progress: Progress) -> None:
    """Skip the batches of a group taken ahead that the loop had received before the state was saved."""
    behind, progress.behind = progress.behind, 0
    for _ in itertools.islice(batches, behind):
        pass


class CountedBatches(AroundBatches):
    """The batches of a stock iterator, counted as they are handed out."""

    def __init__(self, batches: Any, progress: Progress) -> None:
        super().__init__(batches)
        self.progress = progress

    def __next__(self) -> Any:
        return observed(self._counted)

    def _counted(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self.progress.finished = True
            raise
        except Exception as error:
            self.progress.delivered += 1  # an error of the dataset counts as a batch: the next follows
            let_go_by_torch(error)
            say_row(error)
            raise
        self.progress.delivered += 1
        return batch


def checked_snapshots(steps: Any) -> int | None:
    """Return ``snapshot_every_n_steps`` for torchdata's loader: a number of steps; 0 and None mean never.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is negative.
    """
    if steps is None:
        return None
    try:
        number = operator.index(steps)
    except TypeError:
        raise TypeError(f"snapshot_every_n_steps is a number of steps or None, got {steps!r}") from None
    if number < 0:
        raise ValueError(f"snapshot_every_n_steps is a number of steps, 0 or more, or None; got {number}")
    return number


def batches_of(loader: DataLoader[Any]) -> Any:
    """Return the sampler that determines the rows of each batch: without automatic batching, the plain sampler."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def given_generators(request: PassRequest) -> dict[str, torch.Generator]:
    """Return the generators that were given to a loader and its samplers, each once, by the name of their owner."""
    samplers = {f"sampler {depth}": one for depth, one in enumerate(samplers_in(request.batches))}
    found: dict[str, torch.Generator] = {}
    for name, owner in {"loader": request, **samplers}.items():
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not other for other in found.values()):
            found[name] = generator
    return found


def _set_epoch(owner: Any, epoch: int | None) -> None:
    if owner is None or epoch is None:
        return
    try:
        owner.set_epoch(epoch)
    except Exception as error:
        raise damaged('state["epoch"]', epoch, f"an epoch of the {type(owner).__name__} ({error})") from error


def _drawing(sampler: Any, given: Mapping[str, torch.Generator]) -> dict[str, torch.Generator]:
    """Return those of the given generators that belong to samplers."""
    theirs = [getattr(one, "generator", None) for one in samplers_in(sampler)]
    return {name: one for name, one in given.items() if any(one is other for other in theirs)}


def get_states(generators: Mapping[str, torch.Generator]) -> dict[str, str]:
    """Return the states of generators as text, by name."""
    return {name: encode(generator.get_state()) for name, generator in generators.items()}


def set_states(generators: Mapping[str, torch.Generator], states: Mapping[str, str]) -> None:
    """Set the states of those generators for which there is one."""
    for name, generator in generators.items():
        if name in states:
            generator.set_state(decode(states[name]))


def _dataset(request: PassRequest, resolves: Resolves) -> dict[str, Any]:
    """Return the description of a dataset that is available without reading its rows."""
    source = resolves()
    if isinstance(source, str):
        try:
            return {"rows": len(request.dataset)}
        except (TypeError, NotImplementedError):  # iterable datasets may have no length
            return {}
    fields = {str(key): [dtype_name(field.dtype), *field.shape] for key, field in source.fields.items()}
    checksums = {str(key): field.digest for key, field in source.fields.items() if field.digest}
    return {"rows": source.rows, "fields": fields, **({"checksums": checksums} if checksums else {})}


def _dataset_tells(request: PassRequest) -> bool:
    """Return whether the dataset has a state that belongs to the loop, not to its copies in worker processes."""
    return request.num_workers == 0 and is_stateful(request.dataset)


def _dataset_state(request: PassRequest) -> dict[str, Any]:
    if not _dataset_tells(request):
        return {}
    return {"dataset_state": copy.deepcopy(request.dataset.state_dict())}


def _batching(request: PassRequest) -> dict[str, Any]:
    outer = request.batches
    size = getattr(outer, "batch_size", None)
    batches = {"size": size if isinstance(size, int) else None, "drop_last": bool(getattr(outer, "drop_last", False))}
    return {"batches": batches, "sampler": _sampler(outer.sampler if type(outer) is BatchSampler else outer)}


def _sampler(sampler: Any) -> dict[str, Any]:
    facts = _FACTS.get(type(sampler), lambda _: {})
    return {"kind": type(sampler).__name__, **facts(sampler)}


def _checked(state: Any) -> dict[str, Any]:
    if not isinstance(state, Mapping):
        raise TypeError(f"a state is a dict, as FastLoader.state_dict() returns it; got {type(state).__name__}")
    if not state:
        return {}
    version = state.get("memload")
    if version is None:
        raise ValueError(
            "not the state of a FastLoader, which has its format version under the key 'memload'; got a dict with the "
            f"keys {list(state)!r:.200}"
        )
    if type(version) is not int or version != VERSION:  # True == 1
        raise ValueError(
            f"the state has the format version {version!r}, expected {VERSION}: load it with the version of memload "
            "that saved it, or begin the epoch anew"
        )
    if missing := [key for key in _KEYS if key not in state]:
        raise ValueError(f"the state is incomplete: {', '.join(missing)} missing")
    entries(_PARTS)(state, "state")
    return dict(state)


def _compare(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise ValueError with all differences between a saved state and the loader that loads it."""
    theirs, mine = dict(state["dataset"]), dict(own["dataset"])
    for part in ("fields", "checksums"):  # compared if both know them: torch's machinery knows only rows
        if part not in theirs or part not in mine:
            theirs.pop(part, None), mine.pop(part, None)
    pairs = {"dataset": (theirs, mine)} | {part: (state[part], own[part]) for part in ("batches", "sampler")}
    found = [
        f"{path}: expected {one!r}, got {other!r}"
        for part, (saved, here) in pairs.items()
        for path, one, other in _differences(saved, here, part)
    ]
    if found:
        raise ValueError(
            "the state is of another loader. Expected is what it was saved with, got is what this loader has:\n  "
            + "\n  ".join(found)
        )


def _differences(theirs: Any, mine: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(theirs, Mapping) and isinstance(mine, Mapping):
        for key in dict.fromkeys([*theirs, *mine]):
            yield from _differences(theirs.get(key), mine.get(key), f"{path}, {key}")
    elif theirs != mine:
        yield path, theirs, mine

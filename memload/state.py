"""Where a loader stands: what `state_dict` returns, and how a pass begins where another one stopped.

A state is plain data that json can keep: numbers, strings, lists and dicts; a generator's state is the base64 of its
bytes. Only what samplers and datasets of the user's tell of themselves is taken as it comes.

    {"memload": 1,                                     the format's version
     "dataset": {"rows", "fields", "checksums"},       what it is a state of, compared when it is loaded
     "batches": {"size", "drop_last", "sampler"},
     "sampler": {"kind", ...},
     "passes", "delivered", "finished", "base_seed",   how far the loop is
     "position": {...},                                where the sampler stood for the batches that were delivered
     "generators": {...},                              those that were given, as they stood when the state was told
     "epoch": 0,                                       of the sampler, as it was then; None where it has no epoch
     "dataset_state": {...}}                           only of a dataset that tells one, in the main process; what
                                                       workers tell is part of "position"
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from memload.batches.iterators import AroundBatches
from memload.dtypes import dtype_name
from memload.monitoring.loops import between_batches
from memload.sampling.budget_batches import BudgetBatchSampler
from memload.sampling.draws import Progress, decode, encode
from memload.sampling.pulls import epoch_of, epoch_owner, is_stateful, samplers_in
from memload.sampling.samplers import MixingSampler, WeightedSampler
from memload.transforms.seeding import PassSeed, drawn_seed

if TYPE_CHECKING:
    from memload.loader import FastLoader

VERSION = 1

_PROGRESS = ("passes", "delivered", "finished", "base_seed", "position", "generators", "epoch")
_KEYS = ("dataset", "batches", "sampler", *_PROGRESS)
_KINDS: dict[str, tuple[type, ...]] = {
    "dataset": (dict,),
    "passes": (int,),
    "delivered": (int,),
    "finished": (bool,),
    "base_seed": (int, type(None)),
    "position": (dict, type(None)),
    "generators": (dict,),
}

# What of a known sampler decides which rows come; the epoch and the number of ranks belong to the position.
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
    MixingSampler: lambda s: {
        "rows": len(s),
        "weights": s.weights.tolist(),
        "replacement": s.replacement,
        "generator": s.generator is not None,
    },
    WeightedSampler: lambda s: {
        "rows": len(s),
        "weights": len(s.weights),
        "replacement": s.replacement,
        "generator": s.generator is not None,
    },
    BudgetBatchSampler: BudgetBatchSampler.facts,
    DistributedSampler: lambda s: {"shuffle": s.shuffle, "seed": s.seed, "drop_last": s.drop_last},
}


class LoaderState:
    """What a loader remembers of its passes, and what the next one begins from."""

    def __init__(self) -> None:
        self._passes = 0  # begun so far
        self.base_seed: int | None = None  # drawn for the latest of them; several threads may begin passes at a time
        self._progress: Progress | None = None
        self._loaded: dict[str, Any] | None = None  # to be taken up by the next pass
        self._dataset: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None}  # a pass stays in its process

    def state_dict(self, loader: FastLoader[Any]) -> dict[str, Any]:
        """Return the loader's state."""
        if self._loaded is not None:
            return copy.deepcopy(self._loaded)
        progress = self._progress
        return {
            "memload": VERSION,
            **self._identity(loader),
            "passes": self._passes,
            "delivered": progress.delivered if progress else 0,
            "finished": progress.finished if progress else False,
            "base_seed": self.base_seed,
            "position": progress.position() if progress else None,
            "generators": standing(given_generators(loader)),
            "epoch": epoch_of(batches_of(loader)),
            **_dataset_state(loader),
        }

    def load(self, loader: FastLoader[Any], state: Mapping[str, Any]) -> None:
        """Begin the next pass where this state was told."""
        checked = _checked(state)
        self._progress = self._loaded = self._dataset = None
        if not checked:
            return  # nothing to take up: the next pass begins at its beginning
        _compare(checked, self._identity(loader))
        if "overtaken" in (checked["position"] or {}) and loader.engine == "native":
            raise ValueError(
                "the state was saved on stock machinery with in_order=False, when some batches had overtaken others, "
                "and this loader is native: load it on stock machinery, and save another at the epoch's end"
            )
        self._loaded = copy.deepcopy(checked)
        owner = epoch_owner(batches_of(loader))
        if owner is not None and checked["epoch"] is not None:
            owner.set_epoch(checked["epoch"])

    def begin(self, loader: FastLoader[Any]) -> Progress:
        """Begin a pass, or take one up if a state was loaded that was told in the middle of it.

        The state stays loaded until the pass stands, which `begun` is to say: who mends what kept it from standing
        finds the state still there.
        """
        loaded, self._dataset = self._loaded, None
        if loaded is not None:
            self._passes, self.base_seed = loaded["passes"], loaded["base_seed"]
            put_back(given_generators(loader), loaded["generators"])
            if "dataset_state" in loaded and _dataset_tells(loader):
                loader.dataset.load_state_dict(loaded["dataset_state"])  # type: ignore[attr-defined]
        if loaded is None or loaded["finished"] or loaded["position"] is None:
            seed = self.base_seed if loader.persistent_workers else None  # persistent workers are seeded once
            ended = loaded["position"] if loaded else None
            progress = Progress(number=self._passes, base_seed=seed, ended=ended)
            self._passes += 1
        else:
            progress = Progress(
                number=self._passes - 1,
                base_seed=self.base_seed,
                delivered=loaded["delivered"],
                resumed=loaded["position"],
            )
        self._progress = progress
        return progress

    def begun(self) -> None:
        """Record that the pass begun last has been set up completely."""
        self._loaded = None

    def draw_base_seed(self, loader: FastLoader[Any], progress: Progress) -> bool:
        """Draw the number with which a stock iterator seeds its workers; False where it has workers that are seeded."""
        if progress.base_seed is not None:
            return False
        progress.base_seed = self.base_seed = drawn_seed(loader.generator)
        return True

    def seed(self, loader: FastLoader[Any], progress: Progress, otherwise: int | None = None) -> PassSeed:
        """Return what the randomness of a pass follows from.

        Args:
            loader: whose state this is.
            progress: of the pass.
            otherwise: the base seed where none was drawn, as over an iterable dataset on the stock machinery.
        """
        if progress.base_seed is None:
            progress.base_seed = self.base_seed = otherwise
        return PassSeed(progress.base_seed or 0, progress.number if loader.persistent_workers else 0)

    @property
    def delivered(self) -> int:
        """Batches of the latest pass that the loop got, those of a pass that it takes up included."""
        return self._progress.delivered if self._progress else 0

    def _identity(self, loader: FastLoader[Any]) -> dict[str, Any]:
        if self._dataset is None:
            self._dataset = _dataset(loader)
        return {"dataset": self._dataset, **_batching(loader)}


class CountedBatches(AroundBatches):
    """The batches of a stock iterator, counted as they are handed out."""

    def __init__(self, batches: Any, progress: Progress) -> None:
        super().__init__(batches)
        self.progress = progress

    def __next__(self) -> Any:
        between_batches()
        try:
            batch = next(self._batches)
        except StopIteration:
            self.progress.finished = True
            raise
        except Exception:
            self.progress.delivered += 1  # what the dataset raises for a batch stands in its place: the next follows
            raise
        self.progress.delivered += 1
        return batch


def batches_of(loader: FastLoader[Any]) -> Any:
    """Return what gives the rows of each batch: without automatic batching that is the sampler."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def given_generators(loader: FastLoader[Any]) -> dict[str, torch.Generator]:
    """The generators that a loader and its samplers were given, by who has them, each once."""
    samplers = {f"sampler {depth}": one for depth, one in enumerate(samplers_in(batches_of(loader)))}
    found: dict[str, torch.Generator] = {}
    for name, owner in {"loader": loader, **samplers}.items():
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not other for other in found.values()):
            found[name] = generator
    return found


def standing(generators: Mapping[str, torch.Generator]) -> dict[str, str]:
    """Return the states of generators as text, by name."""
    return {name: encode(generator.get_state()) for name, generator in generators.items()}


def put_back(generators: Mapping[str, torch.Generator], states: Mapping[str, str]) -> None:
    """Set those of the generators for which there is a state."""
    for name, generator in generators.items():
        if name in states:
            generator.set_state(decode(states[name]))


def _dataset(loader: FastLoader[Any]) -> dict[str, Any]:
    """What can be said of a dataset without reading it."""
    source = loader._resolved()
    if isinstance(source, str):
        try:
            return {"rows": len(loader.dataset)}  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):  # iterable datasets need not have a length
            return {}
    fields = {str(key): [dtype_name(field.dtype), *field.shape] for key, field in source.fields.items()}
    checksums = {str(key): field.digest for key, field in source.fields.items() if field.digest}
    return {"rows": source.rows, "fields": fields, **({"checksums": checksums} if checksums else {})}


def _dataset_tells(loader: FastLoader[Any]) -> bool:
    """Whether the dataset tells its state, and does so for the loop, not for a copy of it in each worker process."""
    return loader.num_workers == 0 and is_stateful(loader.dataset)


def _dataset_state(loader: FastLoader[Any]) -> dict[str, Any]:
    if not _dataset_tells(loader):
        return {}
    return {"dataset_state": copy.deepcopy(loader.dataset.state_dict())}  # type: ignore[attr-defined]


def _batching(loader: FastLoader[Any]) -> dict[str, Any]:
    outer: Any = batches_of(loader)
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
    if version != VERSION:
        raise ValueError(
            f"the state has the format version {version!r}, expected {VERSION}: load it with the version of memload "
            "that saved it, or begin the epoch anew"
        )
    if missing := [key for key in _KEYS if key not in state]:
        raise ValueError(f"the state is incomplete: {', '.join(missing)} missing")
    for key, kinds in _KINDS.items():
        if not isinstance(state[key], kinds) or (isinstance(state[key], bool) and bool not in kinds):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"the state is damaged: {key} is {state[key]!r:.80}, expected {expected}")
    if state["position"] == {}:
        raise ValueError("the state is damaged: its position in the sampler is empty")
    return dict(state)


def _compare(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise ValueError with all differences between what a state was saved of and what it is loaded into."""
    theirs, mine = dict(state["dataset"]), dict(own["dataset"])
    for part in ("fields", "checksums"):  # compared where both know them: the stock machinery knows only rows
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

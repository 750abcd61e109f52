"""Runs of a loader that are stopped and resumed, and the traces that tell whether anybody could notice."""

import json

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import memload
from memload.loader.state import given_generators


class GlobalShuffle(Sampler):
    """Of no kind that memload knows: draws from the global generator when it is first asked."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        yield from torch.randperm(self.n).tolist()

    def __len__(self):
        return self.n


class ReadyBatches:
    """A batch sampler that draws when its iterator is made, from a generator that it was given."""

    def __init__(self, n, generator):
        self.n, self.generator = n, generator

    def __iter__(self):
        order = torch.randperm(self.n, generator=self.generator).tolist()
        return iter([order[begin : begin + 3] for begin in range(0, self.n, 3)])

    def __len__(self):
        return -(-self.n // 3)


class Epochs(Sampler):
    """Of no kind that memload knows: each pass has a seed of its own, and leaves that of the next behind."""

    def __init__(self, n):
        self.n, self.epoch = n, 0

    def __iter__(self):
        order = torch.randperm(self.n, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        yield from order
        self.epoch += 1

    def __len__(self):
        return self.n

    def set_epoch(self, epoch):
        self.epoch = epoch


class Sharded:
    """Batches of a batch sampler that is wrapped once more, as some frameworks do."""

    def __init__(self, batch_sampler):
        self.batch_sampler = batch_sampler
        self.batch_size, self.drop_last = batch_sampler.batch_size, False

    def __iter__(self):
        return (batch for number, batch in enumerate(self.batch_sampler) if number % 2)

    def __len__(self):
        return len(self.batch_sampler) // 2


class Telling(Sampler):
    """Tells its state, which runs ahead of the loop as far as it is pulled ahead; each pass has another order."""

    def __init__(self, n):
        self.n, self.at, self.passes, self.begin = n, 0, 0, None

    def __iter__(self):
        if self.begin is None:
            self.at, self.passes = 0, self.passes + 1
        else:
            self.at, self.begin = self.begin, None
        while self.at < self.n:
            self.at += 1
            yield self.at * (self.passes + 3) % self.n

    def __len__(self):
        return self.n

    def state_dict(self):
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state):
        self.begin, self.passes = state["at"] or None, state["passes"]


class Resetting(Telling):
    """Sets its state back when it has no more rows: what it tells then is the state of its next pass."""

    def __iter__(self):
        yield from super().__iter__()
        self.at = 0


def both(n):
    """Two datasets with n rows in all."""
    parts = {"a": n // 2, "b": n - n // 2}
    return memload.concat({name: memload.from_arrays(x=torch.zeros(rows)) for name, rows in parts.items()})


def by_budget(n):
    """Batches of two or three buckets, for one of two ranks."""
    how = {"seed": 5, "buckets": 2, "num_replicas": 2, "rank": 1}
    return memload.BudgetBatchSampler(torch.arange(1, n + 1) % 7, 12, **how)


KNOWN = {
    "sequential": lambda ds, n, g: SequentialSampler(ds),
    "shuffled": lambda ds, n, g: RandomSampler(ds),
    "shuffled by a generator": lambda ds, n, g: RandomSampler(ds, generator=g),
    "several permutations": lambda ds, n, g: RandomSampler(ds, num_samples=3 * n + 1),
    "several permutations by a generator": lambda ds, n, g: RandomSampler(ds, num_samples=3 * n + 1, generator=g),
    "two permutations by a generator": lambda ds, n, g: RandomSampler(ds, num_samples=2 * n, generator=g),
    "with replacement": lambda ds, n, g: RandomSampler(ds, True, 2 * n + 5),
    "with replacement by a generator": lambda ds, n, g: RandomSampler(ds, True, 2 * n + 45, generator=g),
    "subset": lambda ds, n, g: SubsetRandomSampler(range(n // 2, n)),
    "subset by a generator": lambda ds, n, g: SubsetRandomSampler(range(n // 2, n), generator=g),
    "weighted": lambda ds, n, g: WeightedRandomSampler(torch.arange(1.0, n + 1), n + 3),
    "weighted by a generator": lambda ds, n, g: WeightedRandomSampler(torch.arange(1.0, n + 1), n + 3, generator=g),
    "mixed": lambda ds, n, g: memload.MixingSampler(both(n), {"a": 1, "b": 2}, generator=g),
    "weighted as it goes": lambda ds, n, g: memload.WeightedSampler(torch.arange(1.0, n + 1), n + 3),
    "weighted as it goes by a generator": lambda ds, n, g: memload.WeightedSampler(torch.ones(n), 300, generator=g),
    "distributed": lambda ds, n, g: DistributedSampler(ds, 3, 1, seed=5),
    "by budget": lambda ds, n, g: by_budget(n),
}
UNKNOWN = {
    "draws from the global generator": lambda ds, n, g: GlobalShuffle(n),
    "an epoch of its own": lambda ds, n, g: Epochs(n),
    "sharded": lambda ds, n, g: Sharded(BatchSampler(RandomSampler(ds, generator=g), 2, False)),
    "ready batches": lambda ds, n, g: ReadyBatches(n, g),
    "tells its state": lambda ds, n, g: Telling(n),
    "sets its state back": lambda ds, n, g: Resetting(n),
}
SAMPLERS = {**KNOWN, **UNKNOWN}


def make(kind, n, *, native=True, seed=0, batch_size=4, drop_last=False, **settings):
    """A loader over the numbers below n, with a generator of that seed where the sampler takes one."""
    dataset = memload.from_arrays(x=torch.arange(n)).only("x") if native else list(range(n))
    generator = torch.Generator().manual_seed(seed)
    sampler = SAMPLERS[kind](dataset, n, generator)
    if not isinstance(sampler, ReadyBatches | Sharded | memload.BudgetBatchSampler):
        sampler = BatchSampler(sampler, batch_size, drop_last)
    loader = memload.FastLoader(dataset, batch_sampler=sampler, generator=generator, **settings)
    assert loader.engine == ("native" if native else "torch")
    return loader


def events(loader, limits, skip=0, *, draws=False):
    """What somebody sees who iterates: batches and generators; `limits` are the batches after which passes break off.

    With `skip`, of the first pass so many batches are behind the loop already. With `draws`, the loop uses the
    generators itself, between batches.
    """
    generators = given_generators(loader.__memload_loader__().asks())
    for limit in limits:
        iterator = iter(loader)
        taken = skip
        while limit is None or taken < limit:
            batch = next(iterator, None)
            taken += 1
            if draws:
                torch.rand(1)
                for generator in generators.values():
                    torch.rand(1, generator=generator)
            yield None if batch is None else batch.tolist(), _generator_states(generators)
            if batch is None:
                break
        skip = 0


def _generator_states(generators):
    states = {"global": torch.default_generator, **generators}
    return {name: generator.get_state().numpy().tobytes() for name, generator in states.items()}


def stopped_and_taken_up(make_loader, limits, stops, **how):
    """The events of a run that is stopped after each of so many events, each time in what might be another process."""
    loader, seen, done, begun = make_loader(0), [], 0, 0
    limits = list(limits)
    run = events(loader, limits, **how)
    for number, stop in enumerate([*stops, None], 1):
        while stop is None or len(seen) < stop:
            try:
                seen.append(next(run))
            except StopIteration:
                return seen
        state = json.loads(json.dumps(loader.state_dict()))
        standing = torch.get_rng_state()
        run.close()
        torch.default_generator.manual_seed(1000 + number)
        loader = make_loader(number)
        loader.load_state_dict(state)
        torch.set_rng_state(standing)  # as a checkpoint restores it
        # Passes are over when the loop was told so, or broke off and began another.
        done, begun = _behind(seen, limits)
        run = events(loader, limits[done:], begun, **how)
    return seen


def _behind(seen, limits):
    """How many passes are over after these events, and how many batches of the next are."""
    done = taken = 0
    for batch, _ in seen:
        if limits[done] is not None and taken == limits[done]:
            done, taken = done + 1, 0
        done, taken = (done + 1, 0) if batch is None else (done, taken + 1)
    return done, taken

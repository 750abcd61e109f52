"""What torchdata's StatefulDataLoader does in the same script, FastLoader does."""

import re
import warnings

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler
from waiting import MOST_SECONDS

import memload

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own, with newer torch

SCRIPT = st.lists(
    st.sampled_from(["iter", "next", "next", "next", "rest", "save", "save", "new", "load"]), min_size=4, max_size=25
)


def played(script, make):
    """What a script sees: the batches, and how passes end. States are loaded from the latest saved."""
    loader, iterator, state, seen = make(), None, None, []
    for step in script:
        if step == "new":
            loader, iterator = make(), None
        elif step == "save":
            state = loader.state_dict()
        elif step == "load" and state is not None:
            loader.load_state_dict(state)
            iterator = None
        elif step == "iter":
            iterator = iter(loader)
        elif step == "next" and iterator is not None:
            batch = next(iterator, None)
            seen.append(None if batch is None else batch.tolist())
        elif step == "rest" and iterator is not None:
            seen.append([batch.tolist() for batch in iterator])
    return seen


def of_numbers(cls, native=False, **settings):
    dataset = memload.from_arrays(x=torch.arange(7)).only("x") if native else list(range(7))
    return cls(dataset, batch_size=2, **settings)


@given(SCRIPT, st.booleans())
@settings(deadline=None, max_examples=200)
def test_scripts_see_the_same_of_a_map_style_dataset(script, native):
    peer = played(script, lambda: of_numbers(StatefulDataLoader))
    assert played(script, lambda: of_numbers(memload.FastLoader, native)) == peer


def with_distributed(cls, native=False):
    dataset = memload.from_arrays(x=torch.arange(11)).only("x") if native else list(range(11))
    return cls(dataset, batch_size=2, sampler=StatefulDistributedSampler(dataset, 2, 1, seed=4))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_sampler_of_torchdata_is_taken_up_by_its_own_state(native, taken):
    def rest(cls, **how):
        loader = with_distributed(cls, **how)
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        state = loader.state_dict()
        again = with_distributed(cls, **how)
        again.load_state_dict(state)
        return [[batch.tolist() for batch in again] for _ in range(2)]

    assert rest(memload.FastLoader, native=native) == rest(StatefulDataLoader)


class Counting(IterableDataset):
    """Tells its state itself; every worker has its share."""

    def __init__(self, n):
        self.n, self.at, self.begin = n, 0, 0

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        step, first = (1, 0) if worker is None else (worker.num_workers, worker.id)
        self.at, self.begin = self.begin, 0
        while self.at * step + first < self.n:
            self.at += 1
            yield (self.at - 1) * step + first

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = self.begin = state["at"]  # told at once: torchdata asks before the pass begins


class CountingIterator:
    """Tells its state in place of the dataset."""

    def __init__(self, n):
        self.n, self.at = n, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.n:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class DrawingIterator(CountingIterator):
    """Draws from the global generator, and keeps its state as well."""

    def __next__(self):
        return super().__next__() + 100 * int(torch.randint(1000, ()))

    def state_dict(self):
        return {**super().state_dict(), "global": torch.get_rng_state()}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        torch.set_rng_state(state["global"])


class Drawing(IterableDataset):
    def __iter__(self):
        return DrawingIterator(7)


class ByIterator(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return CountingIterator(self.n)


class Silent(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


def of_stream(cls, **settings):
    return cls(Counting(7), batch_size=2, **settings)


@given(SCRIPT, st.sampled_from([None, 0, 1, 2, 5]), st.sampled_from([of_numbers, of_stream]))
@settings(deadline=None, max_examples=60)
def test_scripts_that_say_how_often_to_snapshot_see_the_same(script, every, make_loader):
    def peer_or_own(cls):
        return played(script, lambda: make_loader(cls, snapshot_every_n_steps=every))

    assert peer_or_own(memload.FastLoader) == peer_or_own(StatefulDataLoader)


@pytest.mark.parametrize("every", [0, 3, 7])
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("kind", [Counting, ByIterator, Silent])
def test_states_in_workers_are_exact_at_every_step_however_rare_snapshots_are(kind, persistent, every):
    how = {"num_workers": 2, "persistent_workers": persistent, "snapshot_every_n_steps": every}
    loader = memload.FastLoader(kind(13), batch_size=2, **how)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    again = memload.FastLoader(kind(13), batch_size=2, **how)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == rest


@pytest.mark.parametrize("steps", [1, 0, None, 5])
def test_the_number_of_steps_between_snapshots_is_kept_as_it_was_given(steps):
    assert of_numbers(memload.FastLoader, snapshot_every_n_steps=steps).snapshot_every_n_steps == steps


@pytest.mark.parametrize(("steps", "error"), [(-1, ValueError), (1.5, TypeError), ("1", TypeError)])
def test_a_number_of_steps_that_makes_no_sense_is_refused(steps, error):
    with pytest.raises(error, match=f"snapshot_every_n_steps is a number of steps.*{steps}"):
        of_numbers(memload.FastLoader, snapshot_every_n_steps=steps)


def saves_again_what_was_loaded(script):
    """Whether a state is loaded that was saved where another one had been loaded."""
    return re.search("save.*load.*save.*load", " ".join(script)) is not None


@pytest.mark.parametrize("kind", [Counting, ByIterator, Silent])
@given(script=SCRIPT)
@settings(deadline=None, max_examples=150)
def test_scripts_see_the_same_of_an_iterable_dataset(kind, script):
    # torchdata counts the batches twice that it reads again to come to where a dataset without a state was.
    assume(kind is not Silent or not saves_again_what_was_loaded(script))
    peer = played(script, lambda: StatefulDataLoader(kind(7), batch_size=2))
    assert played(script, lambda: memload.FastLoader(kind(7), batch_size=2)) == peer


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_state_may_be_saved_and_loaded_again_and_again(times):
    script = ["iter", "next", *["save", "load", "iter"] * times, "rest"]
    assert played(script, lambda: memload.FastLoader(Silent(7), batch_size=2)) == [[0, 1], [[2, 3], [4, 5], [6]]]


@pytest.mark.parametrize("cls", [StatefulDataLoader, memload.FastLoader])
def test_an_iterator_that_keeps_the_global_generator_draws_what_it_would_have_drawn(cls):
    loader = cls(Drawing(), batch_size=2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    again = cls(Drawing(), batch_size=2)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == rest


@pytest.mark.parametrize("kind", [Counting, ByIterator, Silent])
@pytest.mark.parametrize("script", [["iter", "next", "next", "save", "new", "load", "iter", "rest", "iter", "rest"]])
def test_workers_of_an_iterable_dataset_are_taken_up_like_its(kind, script):
    peer = played(script, lambda: StatefulDataLoader(kind(13), batch_size=2, num_workers=2))
    assert played(script, lambda: memload.FastLoader(kind(13), batch_size=2, num_workers=2)) == peer


def test_the_state_in_workers_needs_torchdata(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    loader = memload.FastLoader(Counting(8), batch_size=2, num_workers=1)
    assert next(iter(loader)).tolist() == [0, 1]
    with pytest.raises(RuntimeError, match=r"Counting has a state in each worker process.*install torchdata"):
        loader.state_dict()


class Map:
    """A map-style dataset that tells how often it was read."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 6

    def __getitem__(self, index):
        self.reads += 1
        return 10 * self.reads + index

    def state_dict(self):
        return {"reads": self.reads}

    def load_state_dict(self, state):
        self.reads = state["reads"]


@given(SCRIPT)
@settings(deadline=None, max_examples=150)
def test_the_state_of_a_map_style_dataset_is_kept_as_well(script):
    peer = played(script, lambda: StatefulDataLoader(Map(), batch_size=2))
    assert played(script, lambda: memload.FastLoader(Map(), batch_size=2)) == peer


END = ["iter", "rest", "save", "new", "load", "iter", "next", "save", "new", "load", "iter", "rest", "iter", "rest"]


@pytest.mark.parametrize("persistent", [True, False])
def test_every_worker_keeps_its_state_of_a_map_style_dataset_as_torchdatas_does(persistent):
    how = {"batch_size": 2, "num_workers": 2, "persistent_workers": persistent}
    peer = played(END, lambda: StatefulDataLoader(Map(), **how))
    assert played(END, lambda: memload.FastLoader(Map(), **how)) == peer


class Noisy(Map):
    """Draws while it is read, and keeps the state of what it draws from."""

    def __getitem__(self, index):
        return 1000 * int(torch.randint(1000, ())) + index

    def state_dict(self):
        return {"global": torch.get_rng_state()}

    def load_state_dict(self, state):
        torch.set_rng_state(state["global"])


def shuffled(cls, dataset, **how):
    return cls(dataset, 2, True, num_workers=2, generator=torch.Generator().manual_seed(3), **how)


@pytest.mark.parametrize("persistent", [True, False])
def test_seeds_batches_and_draws_stay_a_stock_loaders_where_workers_are_asked(persistent):
    def epochs(cls):
        torch.manual_seed(1)
        loader, told = shuffled(cls, Noisy(), persistent_workers=persistent), []
        for _ in range(2):
            for batch in loader:
                told.append((batch.tolist(), loader.generator.get_state().tolist(), torch.get_rng_state().tolist()))
        return told

    assert epochs(memload.FastLoader) == epochs(DataLoader)


@pytest.mark.parametrize(("persistent", "taken"), [(True, 1), (True, 3), (False, 2), (False, 3)])
def test_a_shuffled_pass_with_states_in_workers_goes_on_as_if_never_stopped(persistent, taken):
    loader = shuffled(memload.FastLoader, Noisy(), persistent_workers=persistent)
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    if taken == 3:
        assert next(batches, None) is None  # the epoch is over
    state = loader.state_dict()
    expected = [batch.tolist() for batch in batches] + [batch.tolist() for batch in loader]
    again = shuffled(memload.FastLoader, Noisy(), persistent_workers=persistent)
    again.load_state_dict(state)
    found = [batch.tolist() for _ in range(1 if taken == 3 else 2) for batch in again]
    assert found == expected


def test_a_pass_that_breaks_off_ends_its_workers_and_still_tells_their_state():
    loader = memload.FastLoader(Map(), batch_size=2, num_workers=1)
    batches = iter(loader)
    next(batches)
    (worker,) = batches._workers
    del batches
    worker.join(MOST_SECONDS)
    assert not worker.is_alive()
    again = memload.FastLoader(Map(), batch_size=2, num_workers=1)
    again.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in again] == [[32, 43], [54, 65]]


def test_states_in_workers_need_as_many_workers_again():
    loader = memload.FastLoader(Map(), batch_size=2, num_workers=1)
    next(iter(loader))
    for workers in (0, 2):
        other = memload.FastLoader(Map(), batch_size=2, num_workers=workers)
        other.load_state_dict(loader.state_dict())
        with pytest.raises(ValueError, match=r"saved from 1 worker process .* asks (none|2)") as caught:
            iter(other)
        assert isinstance(caught.value, AssertionError)  # as who has used torchdata's loader may catch it


def test_the_state_of_a_map_style_dataset_in_workers_needs_torchdata(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    loader = memload.FastLoader(Map(), batch_size=2, num_workers=1)
    assert next(iter(loader)).tolist() == [10, 21]
    with pytest.raises(RuntimeError, match=r"Map has a state in each worker process.*install torchdata"):
        loader.state_dict()


class SaysTooFew(IterableDataset):
    def __iter__(self):
        return iter(range(4))

    def __len__(self):
        return 2


@pytest.mark.parametrize("asked", [True, False])
def test_workers_of_a_dataset_that_says_too_few_samples_give_torchs_warning(asked):
    def warned(cls):
        loader = cls(SaysTooFew(), batch_size=None, num_workers=1)
        if asked:
            len(loader)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert list(loader) == [0, 1, 2, 3]
        return [re.sub("0x[0-9a-f]+", "", str(one.message)) for one in caught if "Length of" in str(one.message)]

    assert warned(memload.FastLoader) == warned(DataLoader)
    assert len(warned(memload.FastLoader)) == 2 * asked

"""Calls that re-seed a process act on the row that a transform is at, and leave the process alone."""

import random
import threading

import numpy as np
import pytest
import torch
from torch import manual_seed as seeded_by_name

import memload
from memload.transforms.reseeding import Watch

PLACES = [(torch.random, "default_generator"), (torch.cuda, "manual_seed_all"), (np.random, "seed"), (random, "seed")]


def standing():
    return [getattr(module, name) for module, name in PLACES]


def rows(fn, threads=2, **arguments):
    """What a function makes of each row, in the order of rows; the process's generators stay where they are."""
    ds = memload.from_arrays(row=torch.arange(12)).only("row").map(lambda row: (row, fn(row)))
    torch.manual_seed(5)
    before, places = torch.get_rng_state(), standing()
    loader = memload.FastLoader(ds, 3, generator=torch.Generator().manual_seed(1), threads=threads, **arguments)
    made = dict(zip(*(torch.cat(part).tolist() for part in zip(*loader, strict=True)), strict=True))
    assert torch.equal(torch.get_rng_state(), before)
    assert standing() == places
    return [made[row] for row in range(12)]


def draw():
    return torch.rand(()).item()


def after(seed):
    return torch.rand((), generator=torch.Generator().manual_seed(seed)).item()


@pytest.mark.parametrize("seed_by", [torch.manual_seed, torch.random.manual_seed, seeded_by_name])
def test_manual_seed_seeds_the_row(seed_by):
    def fn(row):
        seed_by(int(row) % 2)
        return draw()

    assert rows(fn) == rows(fn, threads=1, shuffle=True) == pytest.approx([after(0), after(1)] * 6)


def test_a_row_that_seeds_nothing_draws_what_is_its_own_whatever_others_seed():
    own = rows(lambda row: draw())

    def now_and_then(row):
        if row % 2:
            torch.manual_seed(7)
        return draw()

    assert rows(now_and_then)[::2] == own[::2]
    assert rows(now_and_then)[1::2] == pytest.approx([after(7)] * 6)


def test_the_same_numbers_can_be_drawn_twice():
    def by_state(row):
        state = torch.get_rng_state()
        first = draw()
        torch.set_rng_state(state)
        return first - draw()

    def by_fork(row):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            first = draw()
            inner = draw()
        with torch.random.fork_rng(devices=[]):
            second = draw()
        return (second - draw()) + (first == inner)

    assert rows(by_state) == rows(by_fork) == [0.0] * 12


def test_the_seed_that_a_row_has_can_be_asked_for():
    seeds = rows(lambda row: torch.initial_seed() % 2**40)
    assert len(set(seeds)) == 12
    assert seeds == rows(lambda row: torch.initial_seed() % 2**40, shuffle=True)


def test_a_seed_from_nowhere_is_another_each_time():
    def fn(row):
        torch.seed()
        return draw()

    assert rows(fn) != rows(fn)


def test_a_batch_transform_seeds_its_batch():
    def fn(batch):
        torch.manual_seed(2)
        return draw()

    own, state = torch.Generator(), torch.get_rng_state()
    ds = memload.from_arrays(x=torch.arange(6))
    assert list(memload.FastLoader(ds, 2, batch_transform=fn, generator=own)) == [pytest.approx(after(2))] * 3
    stock = memload.FastLoader(list(range(6)), 2, batch_transform=fn, generator=own)
    assert list(stock) == [pytest.approx(after(2))] * 3
    assert stock.engine == "torch"
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("seeds", "named"),
    [
        (lambda: np.random.seed(1), r"numpy\.random\.seed"),  # noqa: NPY002
        (lambda: random.seed(1), r"random\.seed"),
    ],
)
def test_seeding_numpy_and_python_for_the_whole_process_is_refused(seeds, named):
    loader = memload.FastLoader(memload.from_arrays(x=torch.arange(4)).map(lambda sample: seeds()), 2)
    batches, before = iter(loader), (np.random.get_state()[2], random.getstate())  # noqa: NPY002
    with pytest.raises(RuntimeError, match=f"^{named} seeds the generator of the whole process.*parameter named rng"):
        next(batches)
    assert (np.random.get_state()[2], random.getstate()) == before  # noqa: NPY002
    seeds()  # in the loop it does what it does
    torch.manual_seed(9)
    assert draw() == pytest.approx(after(9))
    assert torch.initial_seed() == 9


def test_passes_beside_each_other_leave_everything_in_its_place():
    places = standing()
    ds = memload.from_arrays(x=torch.arange(40)).map(lambda sample: sample)
    one, two = iter(memload.FastLoader(ds, 2)), iter(memload.FastLoader(ds, 2))
    next(one), next(two)
    assert standing() != places
    one.close()
    assert standing() != places
    del two
    assert standing() == places


def test_what_others_put_there_stays(monkeypatch):
    places = standing()
    with Watch():
        monkeypatch.setattr(random, "seed", print)
    assert random.seed is print
    monkeypatch.undo()
    with Watch():
        pass
    random.seed = places[3]
    assert standing() == places


def test_only_the_thread_of_the_transform_is_looked_at():
    entered, may_end = threading.Event(), threading.Event()

    def fn(sample):
        entered.set()
        may_end.wait(60)
        return sample

    batches = iter(memload.FastLoader(memload.from_arrays(x=torch.arange(2)).map(fn), 2, num_workers=1))
    assert entered.wait(60)  # on a thread, as there is a worker
    torch.manual_seed(3)
    random.seed(4)
    np.random.seed(5)  # noqa: NPY002
    assert draw() == pytest.approx(after(3))
    assert random.random() == random.Random(4).random()
    may_end.set()
    next(batches)


def test_on_the_spot_a_function_seeds_the_process_as_any_datasets_does():
    ds = memload.from_arrays(x=torch.arange(2)).map(lambda sample: torch.manual_seed(int(sample["x"])) and draw())
    assert ds[1] == pytest.approx(after(1))
    assert torch.initial_seed() == 1


def test_a_compiled_transform_seeds_its_batch_too():
    def fn(batch):
        torch.manual_seed(4)
        return torch.rand(2) + batch["x"].float().mean() * 0

    ds = memload.from_arrays(x=torch.arange(4))
    torch.compiler.reset()
    made = list(memload.FastLoader(ds, 2, batch_transform=torch.compile(fn, backend="eager"), threads=2))
    assert [one.tolist() for one in made] == [torch.rand(2, generator=torch.Generator().manual_seed(4)).tolist()] * 2

"""Permutations that are drawn natively are those of torch, and so is the generator afterwards."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memload
from memload.sampling import torch_draws
from memload.sampling.torch_draws import FEWEST, is_native, permutation, skip_permutation


@pytest.fixture
def all_native(monkeypatch):
    """Permutations of any number of rows are drawn natively."""
    monkeypatch.setattr(torch_draws, "FEWEST", 0)


def generators(seed: int, drawn: int) -> tuple[torch.Generator, torch.Generator]:
    """Two alike, that were used before."""
    made = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    for one in made:
        torch.randint(2**31, (drawn,), generator=one)
        torch.randn(1, generator=one)
    return made


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.one_of(st.integers(0, 2000), st.integers(FEWEST - 1, FEWEST + 700), st.just(300_000)),
    seed=st.integers(0, 2**63 - 1),
    drawn=st.integers(0, 1300),
)
@pytest.mark.usefixtures("all_native")
def test_the_same_rows_and_the_same_generator_as_torch(rows, seed, drawn):
    stock, ours = generators(seed, drawn)
    assert torch.equal(torch.from_numpy(permutation(rows, ours)), torch.randperm(rows, generator=stock))
    assert torch.equal(ours.get_state(), stock.get_state())
    skip_permutation(rows, ours)
    torch.randperm(rows, generator=stock)
    assert torch.equal(ours.get_state(), stock.get_state())
    assert torch.equal(torch.randn(3, generator=ours), torch.randn(3, generator=stock))


def test_many_rows_are_drawn_natively():
    assert is_native(FEWEST, torch.Generator())


def test_from_where_torch_draws_64_bits_for_a_row_torch_draws():
    assert is_native(2**32 // 20 - 1, torch.Generator())
    assert not is_native(2**32 // 20, torch.Generator())


@pytest.mark.usefixtures("all_native")
@pytest.mark.parametrize("rows", [1, 2, 7, 100])
@pytest.mark.parametrize("given", [False, True])
def test_a_loader_that_draws_natively_gives_the_batches_of_torch(rows, given):
    found = []
    for kind in (torch.utils.data.DataLoader, memload.FastLoader):
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(9) if given else None
        loader = kind(torch.arange(rows), batch_size=3, shuffle=True, generator=generator)
        batches = [[batch.tolist() for batch in loader] for _ in range(2)]
        found.append((batches, torch.get_rng_state().tolist(), generator and generator.get_state().tolist()))
    assert found[0] == found[1]


def test_what_others_may_use_meanwhile_is_left_to_torch():
    assert not is_native(FEWEST, torch.default_generator)
    assert not is_native(FEWEST - 1, torch.Generator())
    torch.manual_seed(3)
    wanted = torch.randperm(FEWEST)
    torch.manual_seed(3)
    assert torch.equal(torch.from_numpy(permutation(FEWEST, torch.default_generator)), wanted)


def test_bytes_that_are_no_state_are_refused():
    with pytest.raises(ValueError, match="5056 bytes, and not 7"):
        memload._core.permutation(torch.zeros(7, dtype=torch.uint8).numpy(), 5)
    with pytest.raises(ValueError, match="not the state of a generator"):
        memload._core.skip_permutation(torch.zeros(5056, dtype=torch.uint8).numpy(), 5)

"""Validates a whole state of a loader when it is loaded: types, ranges, and the agreement of its entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memload.sampling.checks import (
    LARGEST,
    SEEDS,
    anything,
    by_name,
    damaged,
    entries,
    exactly,
    flag,
    generator_state,
    optional,
    whole,
)
from memload.sampling.position_checks import check_position, check_stream
from memload.sampling.pulls import Generators

_GROUP = entries({"batches": whole(2, 1 << 20), "handed": whole(1, 1 << 20)})


def check_state(state: Mapping[str, Any], batch_sampler: Any, given: Generators, *, iterable: bool) -> None:
    """Raise ValueError, with the name of the entry, if a state is not valid.

    Args:
        state: a state of this version, saved by a loader like the one that loads it.
        batch_sampler: the sampler that determines the rows of each batch.
        given: the generators that were given to the loader and its samplers, by name.
        iterable: whether the dataset is iterable.
    """
    numbers = {"passes": whole(0), "delivered": whole(0, LARGEST), "finished": flag}
    seeds = {"base_seed": optional(whole(0, SEEDS - 1)), "epoch": optional(whole(-SEEDS, SEEDS - 1))}
    generators = by_name(lambda name: generator_state(given.get(name)))
    others = {"dataset_state": anything, "group": _GROUP}
    parts = {"position": optional(entries({})), "generators": generators}
    entries({**numbers, **seeds, **parts}, others)(state, "state")
    position, delivered = state["position"], state["delivered"]
    if position is None:
        exactly(0, 'without a state["position"]')(delivered, 'state["delivered"]')
    elif not position:
        raise damaged('state["position"]', position, "the entries of a position in the sampler")
    elif iterable:
        check_stream(position, 'state["position"]', batch_sampler, delivered)
    else:
        check_position(position, 'state["position"]', batch_sampler, delivered, given)
    _check_agreement(state)


def check_generators(state: Mapping[str, Any], needed: Mapping[str, Any]) -> None:
    """Raise ValueError if the state of a generator that draws rows is missing."""
    for name in needed:
        if name not in state["generators"]:
            raise ValueError(f'the state is damaged: state["generators"] has no entry "{name}"')


def _check_agreement(state: Mapping[str, Any]) -> None:
    position, group = state["position"], state.get("group")
    if position is not None and not state["passes"]:
        raise damaged('state["passes"]', 0, 'at least 1 with a state["position"]')
    if "made" in (position or {}):
        for name in state["generators"]:
            if name not in position["made"]:
                raise ValueError(f'the state is damaged: state["position"]["made"] has no entry "{name}"')
    if group is not None:
        whole(1, group["batches"] - 1)(group["handed"], 'state["group"]["handed"]')
        if state["finished"] or position is None:
            raise damaged('state["group"]', group, 'no such entry with this state["finished"] and state["position"]')

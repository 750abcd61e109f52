"""Check the states of worker processes in a position, which torchdata's loader saved.

Torchdata checks little: it skips as many samples as the state says, however many these are. The format of the entries
belongs to torchdata, so only the entries of the supported release are checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memload.sampling.checks import (
    LARGEST,
    SEEDS,
    Check,
    anything,
    by_name,
    damaged,
    entries,
    exactly,
    flag,
    optional,
    whole,
)

MOST_WORKERS = 1 << 16
_MOST_LOST = 1 << 16
"""The most batches that were requested but never delivered, because the worker's share had ended."""

_LENGTH = optional(whole(0, LARGEST))
_SEED = whole(-SEEDS, SEEDS - 1)
_FETCHER = entries({"fetcher_ended": flag, "dataset_iter_state": anything})


def check_workers(position: Mapping[str, Any], path: str, seen: int, batch_size: int, *, iterable: bool) -> None:
    """Raise ValueError if the states of worker processes in a position are impossible; a position may have none.

    Args:
        position: the position of a sampler, or of an iterable dataset.
        path: the path of the position in the state, for messages.
        seen: the number of batches that the loop has received.
        batch_size: samples of a full batch.
        iterable: whether the dataset is iterated.
    """
    if not position.keys() & {"workers", "torchdata"}:
        return
    entries({"workers": whole(1, MOST_WORKERS)})(position, path)
    entries({"torchdata": _torchdata_state(position["workers"], seen, batch_size, iterable)})(position, path)


def _torchdata_state(workers: int, seen: int, batch_size: int, iterable: bool) -> Check:
    most = seen + _MOST_LOST
    counted = {"_sampler_iter_yielded": whole(0, most)}
    yielded = optional(entries({"samples_yielded": whole(0, most * batch_size)} if iterable else {}))
    states = {
        "_shared_seed": anything,
        "_sampler_iter_state": yielded,
        "_index_sampler_state": anything,
        "_IterableDataset_len_called": _LENGTH,
    }
    main = entries({**counted, **states, "_num_workers": exactly(workers, "workers"), "_base_seed": _SEED})
    snapshot = {
        "_snapshot_step": whole(0, seen),
        "_last_yielded_worker_id": whole(0, workers - 1),
        "_main_snapshot": main,
        "_worker_snapshots": _worker_states(workers, iterable),
    }
    rest = {"_steps_since_snapshot": whole(0, seen), "_iterator_finished": flag}
    return entries({"_snapshot": entries(snapshot), **rest})


def _worker_states(workers: int, iterable: bool) -> Check:
    fetcher = _FETCHER if iterable else optional(_FETCHER)

    def check(states: Any, path: str) -> None:
        by_name(lambda _: anything)(states, path)
        for number in range(workers):
            state = {"worker_id": exactly(number, "by its name"), "dataset_state": anything, "fetcher_state": fetcher}
            entries({f"worker_{number}": entries(state)})(states, path)
        if len(states) > workers:
            raise damaged(path, list(states), f"the states of {workers} workers")

    return check

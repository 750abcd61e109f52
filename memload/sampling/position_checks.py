"""Check the position in a state for each kind of sampler.

The checks compare what arithmetic connects: the rows seen with the draws made, the draws with the data that repeats
them, and both with the batches delivered to the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler

from memload.sampling import weighted_draws
from memload.sampling.batch_streams import batches_known
from memload.sampling.block_shuffle import BlockShuffle
from memload.sampling.budget_batches import BudgetBatchSampler
from memload.sampling.budget_filling import evened
from memload.sampling.checks import (
    SEEDS,
    Check,
    anything,
    bits,
    by_name,
    damaged,
    entries,
    exactly,
    flag,
    generator_state,
    listed,
    optional,
    rising,
    text,
    true,
    whole,
)
from memload.sampling.draws import Draws
from memload.sampling.pulls import Generators, epoch_owner, is_stateful
from memload.sampling.ranks import MOST_RANKS
from memload.sampling.row_plan import known, planned
from memload.sampling.samplers import MixingSampler, WeightedSampler
from memload.sampling.torch_draws import draws_of
from memload.sampling.worker_checks import check_workers

_MOST_AHEAD = 1 << 20
"""The most batches that are pulled ahead of the loop."""

_EPOCHS = whole(-SEEDS, SEEDS - 1)

_DELIVERED = 'by state["delivered"]'

Place = Mapping[str, Any]


def check_stream(position: Place, path: str, batch_sampler: Any, seen: int) -> None:
    """Raise ValueError if a position is impossible for a pass over an iterable dataset.

    Args:
        position: the entry to check.
        path: the path of the position in the state, for messages.
        batch_sampler: the sampler of the loader.
        seen: the number of batches that the loop has received.
    """
    others = {"ended": flag, "iterator": anything}
    entries({"batches": exactly(seen, _DELIVERED)}, others)(position, path)
    check_workers(position, path, seen, _batch_size(batch_sampler), iterable=True)


def check_position(position: Place, path: str, batch_sampler: Any, seen: int, given: Generators) -> None:
    """Raise ValueError if a position is impossible for a pass over a sampler.

    Args:
        position: the entry to check.
        path: the path of the position in the state, for messages.
        batch_sampler: the batch sampler of the loader, or its sampler without automatic batching.
        seen: the number of batches of this epoch that the loop has received.
        given: the generators of the loader and its samplers, by name.
    """
    delivered = seen
    if "overtaken" in position:
        seen = _check_overtaken(position["overtaken"], f'{path}["overtaken"]', seen)
    batched = type(batch_sampler) is BatchSampler
    sampler = batch_sampler.sampler if batched else batch_sampler
    if not planned(position):
        _check_pulled(position, path, sampler, seen, given)
    elif batches_known(batch_sampler):
        _check_budget(position, path, batch_sampler, seen)
    elif known(sampler):
        _check_rows(position, path, sampler, seen, batch_sampler.batch_size if batched else 1)
    else:
        raise ValueError(
            f"{path} counts planned rows, but this sampler must be iterated: load the state into a loader with the "
            "dataset and collation of the loader that saved it"
        )
    check_workers(position, path, delivered, _batch_size(batch_sampler), iterable=False)


def _batch_size(batch_sampler: Any) -> int:
    size = getattr(batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else 1


def _check_overtaken(overtaken: Any, path: str, seen: int) -> int:
    """Return the number of batches before the first one that the loop does not have."""
    entries({"pulled": whole(1, _MOST_AHEAD)})(overtaken, path)
    pulled: int = overtaken["pulled"]
    entries({"late": listed(whole(0, pulled - 1), 1, pulled)})(overtaken, path)
    late = overtaken["late"]
    rising(late, f'{path}["late"]')
    if seen < pulled - len(late):
        raise damaged(f'{path}["pulled"]', pulled, f"at most {seen + len(late)} {_DELIVERED}")
    return seen - pulled + len(late)


def _check_delivered(batches: int, rows: int) -> None:
    """Check the batches of one rank against the rows of all ranks: each batch has at least one row."""
    if batches > rows or (rows and not batches):
        raise damaged('state["delivered"]', batches, f"1 to {rows}, by the position" if rows else "0, by the position")


def _check_rows(position: Place, path: str, sampler: Any, batches: int, batch_size: int) -> None:
    """Check the position of a sampler whose rows are planned; the loop has received `batches` batches."""
    if type(sampler) in _CHECKS_OF_RANKED:
        _CHECKS_OF_RANKED[type(sampler)](position, path, sampler)
        _check_delivered(batches, position["gone" if "gone" in position else "row"])
    else:
        _check_draws(position, path, draws_of(sampler), batches * batch_size)


def _check_draws(position: Place, path: str, draws: Draws, rows: int) -> None:
    row = min(rows, draws.total)
    entries({"row": exactly(row, _DELIVERED), "drawn": whole(0, draws.count)}, {"foreseen": true})(position, path)
    drawn, needed = position["drawn"], row // draws.step
    if position.get("foreseen"):
        _check_foreseen(path, row == drawn == 0 and draws.foreseen is not None)
        count, first, last = 1, 0, 0
    elif row == draws.total:
        whole(-(-row // draws.step), draws.count)(drawn, f'{path}["drawn"]')
        count, first, last = 0, 0, 0
    elif draws.shared:
        whole(min(needed, draws.count), draws.count)(drawn, f'{path}["drawn"]')
        count, first, last = drawn - needed, needed, needed
    elif draws.foreseen is None:
        whole(0, needed)(drawn, f'{path}["drawn"]')
        count, first, last = 0, 0, 0
    else:
        count, first, last = int(row > 0 or drawn > 0), 0, min(needed, drawn)
    may_have_rows = draws.shared and not position.get("foreseen")
    entries({"memories": listed(_memory(draws, may_have_rows), count, count)})(position, path)
    for number, memory in enumerate(position["memories"]):
        whole(first + number, last + number)(memory["draw"], f'{path}["memories"][{number}]["draw"]')


def _memory(draws: Draws, may_have_rows: bool) -> Check:
    """Return the check of the data that repeats a draw: the generator's state before it, or its rows."""
    values, generator = draws.values, draws.generator() if draws.shared else None

    def check(memory: Any, path: str) -> None:
        entries({"draw": whole(0, draws.count - 1)})(memory, path)
        if "rows" in memory and may_have_rows:
            size = max(0, min(draws.step, draws.total - memory["draw"] * draws.step))
            row = whole(values[0], values[-1]) if values else whole(0, 0)
            entries({"rows": listed(row, size, size)})(memory, path)
        else:
            entries({"generator": generator_state(generator)})(memory, path)
            if "rows" in memory:
                raise damaged(f'{path}["rows"]', memory["rows"], "no such entry beside the state of a generator")

    return check


def _check_foreseen(path: str, possible: bool) -> None:
    if not possible:
        raise damaged(f'{path}["foreseen"]', True, "no such entry: the first draw was made, or comes from a generator")


def _check_distributed(position: Place, path: str, sampler: DistributedSampler[Any]) -> None:
    rows, seed = len(sampler.dataset), sampler.seed  # type: ignore[arg-type]
    epoch = whole(-SEEDS - seed, 2 * SEEDS - 1 - seed)
    entries({"epoch": optional(epoch), "gone": whole(0, rows)})(position, path)
    if position["epoch"] is None:
        whole(0, 0)(position["gone"], f'{path}["gone"]')


def _check_mixed(position: Place, path: str, sampler: MixingSampler) -> None:
    sizes, chunk = sampler.sizes, weighted_draws.MIXED_CHUNK
    numbers = {"row": whole(0, sampler.num_samples), "seed": optional(whole(0, SEEDS - 1))}
    taken = listed(whole(0, sampler.num_samples), len(sizes), len(sizes))
    entries({**numbers, "taken": taken}, {"foreseen": true})(position, path)
    _check_begun(position, path, "seed")
    before = position["row"] // chunk * chunk
    if sum(position["taken"]) != before:
        raise damaged(f'{path}["taken"]', position["taken"], f"numbers with the sum {before}, by the row")
    for number, (weight, gone) in enumerate(zip(sampler.weights.tolist(), position["taken"], strict=True)):
        if gone and not weight:
            raise damaged(f'{path}["taken"][{number}]', gone, "0 for a dataset with weight 0")


def _check_blocks(position: Place, path: str, sampler: BlockShuffle) -> None:
    numbers = {"row": whole(0, sampler.num_samples), "seed": optional(whole(0, SEEDS - 1))}
    entries(numbers, {"foreseen": true})(position, path)
    _check_begun(position, path, "seed")


def _check_weighted(position: Place, path: str, sampler: WeightedSampler) -> None:
    row_number, row = whole(0, len(sampler.weights) - 1), whole(0, sampler.num_samples)
    entries({"row": row}, {"seed": optional(whole(0, SEEDS - 1)), "foreseen": true})(position, path)
    left = sampler.num_samples - position["row"]
    ahead = {"pending": listed(row_number, 0, left), "generator": optional(generator_state())}
    entries(ahead)(position, path)
    _check_begun(position, path, "generator")
    if position["generator"] is None:
        listed(row_number, 0, 0)(position["pending"], f'{path}["pending"]')
    if not sampler.replacement:
        ranking = optional(_ranking(position, f'{path}["pending"]', sampler)) if "ranking" in position else None
        entries({"ranking": ranking} if ranking else {})(position, path)
        if position.get("ranking") is None and not position.get("foreseen"):
            whole(0, 0)(position["row"], f'{path}["row"]')


def _ranking(position: Place, pending_path: str, sampler: WeightedSampler) -> Check:
    """Return the check of a ranking: the row at which the remaining rows were ordered, and the data to repeat it."""
    row, pending = position["row"], position["pending"]

    def check(ranking: Any, path: str) -> None:
        entries({"row": whole(0, sampler.num_samples)})(ranking, path)
        first, rows = ranking["row"], len(sampler.weights)
        taken = {"taken": bits(rows, first), "generator": generator_state(), "weights": optional(text(16))}
        entries(taken)(ranking, path)
        listed(anything, max(0, first - row), max(0, first - row))(pending, pending_path)
        if len(set(pending)) < len(pending):
            raise damaged(pending_path, pending, "distinct rows")

    return check


def _check_begun(position: Place, path: str, name: str) -> None:
    """Check that a pass is at its start if the entry that seeds all of its draws is None."""
    if position[name] is None:
        whole(0, 0)(position["row"], f'{path}["row"]')
    if position.get("foreseen"):
        _check_foreseen(path, position["row"] == 0 and position[name] is not None)


def _check_budget(position: Place, path: str, sampler: BudgetBatchSampler, seen: int) -> None:
    pair = listed(whole(1), 2, 2)
    entries({"epoch": optional(whole(0, SEEDS - 1)), "taken": listed(pair)})(position, path)
    epoch, path = position["epoch"], f'{path}["taken"]'
    if epoch is None:
        listed(pair, 0, 0)(position["taken"], path)
        return _check_delivered(seen, 0)
    bounds = sampler.batches(epoch).bounds
    for number, (ranks, taken) in enumerate(position["taken"]):
        whole(1, MOST_RANKS)(ranks, f"{path}[{number}][0]")
        bounds = evened(bounds, ranks, drop_last=sampler.drop_last)
        if taken > len(bounds) or taken % ranks:
            raise damaged(f"{path}[{number}][1]", taken, f"a multiple of {ranks} up to {len(bounds)}")
        bounds = bounds[taken:]
    return _check_delivered(seen, sum(taken for _, taken in position["taken"]))


def _check_pulled(position: Place, path: str, sampler: Any, seen: int, given: Generators) -> None:
    """Check the position of a sampler that must be iterated."""
    entries({"batches": exactly(seen, _DELIVERED), "epoch": optional(_EPOCHS)})(position, path)
    if position["epoch"] is not None and epoch_owner(sampler) is None:
        raise damaged(f'{path}["epoch"]', position["epoch"], "None for a sampler without a set_epoch")
    if "states" in position:
        entries({}, {"ended": true})(position, path)
        return _check_states(position["states"], f'{path}["states"]', sampler)
    states = by_name(lambda name: generator_state(given.get(name)))
    pulled = {"pulled": whole(seen, seen + _MOST_AHEAD), "over": flag}
    entries({**pulled, "made": states, "first": states})(position, path)
    for name, least in (("made", True), ("first", seen > 0)):
        if "global" not in position[name] and (least or position[name]):
            raise ValueError(f'the state is damaged: {path}["{name}"] has no entry "global"')
    return None


def _check_states(states: Any, path: str, sampler: Any) -> None:
    entries({})(states, path)
    if not states.keys() & {"sampler", "iterator"}:
        raise damaged(path, states, 'a dict with an entry "sampler" or "iterator"')
    if "sampler" in states and not is_stateful(sampler):
        raise damaged(f'{path}["sampler"]', states["sampler"], "no such entry: the sampler does not load states")


_CHECKS_OF_RANKED: dict[type, Callable[[Place, str, Any], None]] = {
    DistributedSampler: _check_distributed,
    MixingSampler: _check_mixed,
    WeightedSampler: _check_weighted,
    BlockShuffle: _check_blocks,
}

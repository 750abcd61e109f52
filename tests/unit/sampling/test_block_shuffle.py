"""BlockShuffle: every row once, windows of shuffled blocks, the mixing that it states, chunks decoded once a pass."""

import itertools
import math
import pickle

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import memload
from memload.sampling.block_shuffle import BlockShuffle

DATA = memload.from_arrays(x=torch.arange(997))


def chunked(tmp_path, rows=240, chunk=10, **options):
    """An HDF5 file of two fields with chunks of many rows."""
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        x = np.arange(rows * 12).reshape(rows, 3, 4) % 251
        file.create_dataset("x", data=x.astype(np.uint8), chunks=(chunk, 2, 4), compression="gzip")
        file.create_dataset("y", data=np.arange(rows), chunks=(2 * chunk,), compression="lzf", **options)
    return memload.open(path, key=["x", "y"])


CHUNKS = 24 * 2 + 12  # of that file: two side by side in x


# The order


@given(
    rows=st.integers(1, 120),
    block=st.integers(1, 40),
    window=st.integers(1, 12),
    epoch=st.integers(0, 3),
)
def test_every_row_comes_once_and_windows_have_whole_blocks(rows, block, window, epoch):
    sampler = BlockShuffle(rows, block, window, seed=5)
    sampler.set_epoch(epoch)
    order = list(sampler)
    assert sorted(order) == list(range(rows))
    at, sizes = 0, []
    while at < rows:  # the blocks of a window are those that its first rows tell, in any order
        blocks = -(-rows // block)
        left = min(sampler.window, blocks - len(sizes))
        ends = [end for end in range(at + 1, rows + 1) if len({row // block for row in order[at:end]}) == left]
        here = {row // block for row in order[at : ends[-1]]}
        whole = sum(min(block, rows - number * block) for number in here)
        assert {row // block for row in order[at : at + whole]} == here
        assert not any(row // block in here for row in order[at + whole :])
        sizes += here
        at += whole


def test_the_orders_of_epochs_and_seeds_differ_and_come_again():
    def order(seed, epoch, **options):
        sampler = BlockShuffle(DATA, 10, 4, seed=seed, **options)
        sampler.set_epoch(epoch)
        return list(sampler)

    orders = [order(seed, epoch) for seed, epoch in ((0, 0), (0, 1), (7, 0), (7, 9))]
    assert all(a != b for a, b in itertools.combinations(orders, 2))
    assert order(0, 0) == orders[0]


def test_a_generator_draws_one_number_a_pass():
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    sampler = BlockShuffle(DATA, 10, 4, generator=generators[0])
    orders = [list(sampler), list(sampler)]
    assert orders[0] != orders[1]
    for _ in range(2):
        torch.empty((), dtype=torch.int64).random_(generator=generators[1])
    assert torch.equal(generators[0].get_state(), generators[1].get_state())


@given(ranks=st.integers(1, 7), drop_last=st.booleans(), rows=st.integers(1, 60))
def test_ranks_take_turns_in_the_order_that_one_process_has(ranks, drop_last, rows):
    alone = list(BlockShuffle(rows, 4, 3, seed=2, num_replicas=1, rank=0))
    shares = [
        list(BlockShuffle(rows, 4, 3, seed=2, num_replicas=ranks, rank=rank, drop_last=drop_last))
        for rank in range(ranks)
    ]
    turns = [row for turn in zip(*shares, strict=True) for row in turn]
    expected = alone[: rows // ranks * ranks] if drop_last else (alone * ranks)[: math.ceil(rows / ranks) * ranks]
    assert turns == expected
    assert all(len(share) == len(turns) // ranks for share in shares)


# Its mixing


def pairs_in_windows(order, sizes, window):
    """Pairs of rows in the same window of blocks."""
    windows = [sum(sizes[k] for k in order[at : at + window]) for at in range(0, len(order), window)]
    return sum(math.comb(rows, 2) for rows in windows)


@pytest.mark.parametrize(
    ("rows", "block", "window"), [(12, 3, 2), (11, 3, 2), (10, 2, 2), (13, 3, 3), (5, 1, 2), (7, 7, 1)]
)
def test_the_mixing_is_the_share_of_pairs_that_windows_hold_over_all_orders_of_blocks(rows, block, window):
    sampler = BlockShuffle(rows, block, window)
    sizes = sampler.blocks.sizes.tolist()
    orders = list(itertools.permutations(range(len(sizes))))
    counted = sum(pairs_in_windows(order, sizes, window) for order in orders)
    assert sampler.mixing == pytest.approx(counted / len(orders) / math.comb(rows, 2))


def test_the_mixing_is_what_batches_of_whole_windows_show():
    """Counted over the batches of a loader: whether rows met, for each of all pairs, in each of 400 epochs."""
    sampler = BlockShuffle(memload.from_arrays(x=torch.arange(24)), 3, 2, seed=0)
    loader = memload.FastLoader(memload.from_arrays(x=torch.arange(24)), batch_size=6, sampler=sampler)
    met = np.zeros((24, 24))
    for epoch in range(400):
        sampler.set_epoch(epoch)
        for batch in loader:
            rows = batch["x"].numpy()
            met[np.ix_(rows, rows)] += 1
    share = (met.sum() - np.trace(met)) / 400 / (24 * 23)
    assert share == pytest.approx(sampler.mixing)  # windows of equal size hold as many pairs in every epoch
    assert sampler.mixing == pytest.approx((2 * 3 - 1) / (24 - 1))
    between = met[np.arange(24)[:, None] // 3 != np.arange(24) // 3] / 400
    assert between.min() > 0.05  # any two blocks may meet: 1 in 7 expected
    assert between.max() < 0.25


def test_full_windows_mix_all_and_it_says_so():
    assert BlockShuffle(DATA, 10, 1000).mixing == 1
    assert BlockShuffle(1, 1, 1).mixing == 1
    assert repr(BlockShuffle(DATA, 10, 10)) == (
        "BlockShuffle(997 rows in 100 blocks, windows of 10 blocks (about 100 rows): 9.91 % of pairs of rows can meet)"
    )


# What is refused


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: BlockShuffle(DATA), ValueError, "no field of this dataset is stored in chunks.*give block="),
        (lambda: BlockShuffle(DATA, 0), ValueError, "block must be an integer from 1 on, got 0"),
        (lambda: BlockShuffle(DATA, 2.5), TypeError, "block must be an integer"),
        (lambda: BlockShuffle(DATA, 2, 0), ValueError, "window must be an integer from 1 on"),
        (lambda: BlockShuffle(0, 2), ValueError, "no rows to shuffle"),
        (lambda: BlockShuffle(None, 2), TypeError, "expected a dataset or its number of rows, got a NoneType"),
        (lambda: BlockShuffle(DATA, 2, seed=1, generator=torch.Generator()), ValueError, "not both"),
        (lambda: BlockShuffle(DATA, 2, num_replicas=2), ValueError, "needs rank="),
    ],
)
def test_what_does_not_fit_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


# Resuming


@settings(max_examples=60)
@given(
    rows=st.integers(2, 50),
    worlds=st.lists(st.integers(1, 4), min_size=2, max_size=2),
    share=st.floats(0, 1),
    batch_size=st.integers(1, 5),
    seeded=st.booleans(),
)
def test_a_state_resumes_on_any_number_of_ranks(rows, worlds, share, batch_size, seeded):
    ds = memload.from_arrays(x=torch.arange(rows)).only("x")

    def loaders(ranks):
        options = {"seed": 3} if seeded or max(worlds) > 1 else {"generator": torch.Generator().manual_seed(8)}
        samplers = [BlockShuffle(ds, 4, 3, num_replicas=ranks, rank=rank, **options) for rank in range(ranks)]
        return [memload.FastLoader(ds, batch_size, sampler=sampler) for sampler in samplers]

    first = loaders(worlds[0])
    steps = math.floor(share * len(first[0]))
    turns = [[] for _ in range(steps)]
    for loader in first:
        iterator = iter(loader)
        for turn in turns:
            turn.append(next(iterator).tolist())
    state = first[0].state_dict()
    seen = [row for turn in turns for rows_ in itertools.zip_longest(*turn) for row in rows_ if row is not None]
    rest = []
    for loader in loaders(worlds[1]):
        loader.load_state_dict(pickle.loads(pickle.dumps(state)))
        rest.append([row for batch in loader for row in batch.tolist()])
    left = rows - min(rows, len(seen))
    after = [row for turn in zip(*rest, strict=True) for row in turn]
    assert sorted({*seen, *after}) == list(range(rows))
    assert len(after) == math.ceil(left / worlds[1]) * worlds[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row": 998}, 'row"\\] is 998'),
        ({"seed": -1}, 'seed"\\] is -1'),
        ({"seed": None}, "row"),
    ],
)
def test_a_damaged_state_is_refused(change, message):
    def loader():
        return memload.FastLoader(DATA, 10, sampler=BlockShuffle(DATA, 10, 4, seed=0))

    saved = loader()
    iterator = iter(saved)
    next(iterator)
    state = saved.state_dict()
    state["position"].update(change)
    with pytest.raises(ValueError, match=message):
        loader().load_state_dict(state)


def test_a_state_of_other_blocks_is_refused():
    saved = memload.FastLoader(DATA, 10, sampler=BlockShuffle(DATA, 10, 4, seed=0))
    next(iter(saved))
    for other in (BlockShuffle(DATA, 20, 4, seed=0), BlockShuffle(DATA, 10, 5, seed=0)):
        with pytest.raises(ValueError, match=r"blocks|window"):
            memload.FastLoader(DATA, 10, sampler=other).load_state_dict(saved.state_dict())


def test_it_is_planned_natively_also_in_a_batch_sampler():
    sampler = BlockShuffle(DATA, 10, 4, seed=0)
    batches = torch.utils.data.BatchSampler(sampler, 32, drop_last=False)
    loader = memload.FastLoader(DATA, batch_sampler=batches)
    rows = [row for batch in loader for row in batch["x"].tolist()]
    assert loader.engine == "native"
    assert rows == list(sampler)


# Chunks of files


def test_blocks_are_the_chunks_in_which_all_fields_begin_anew(tmp_path):
    assert BlockShuffle(chunked(tmp_path)).blocks.sizes.tolist() == [20] * 12
    assert BlockShuffle(chunked(tmp_path).only("x")).blocks.sizes.tolist() == [10] * 24


def test_rows_of_one_chunk_stay_a_block_in_a_selection(tmp_path):
    rows = np.random.default_rng(0).permutation(240)[:100]
    sampler = BlockShuffle(chunked(tmp_path).select(rows), window=1, seed=0)
    order = rows[list(sampler)] // 20
    assert sorted(set(order)) == sorted(set(rows // 20))
    assert (np.diff(order) != 0).sum() == len(set(order)) - 1  # one block after the other


def test_zarr_chunks_are_blocks(tmp_path):
    from zarr3 import zarr

    zarr.create_array(tmp_path / "x.zarr", data=np.arange(96).reshape(48, 2), chunks=(6, 2))
    assert BlockShuffle(memload.open(tmp_path / "x.zarr")).blocks.sizes.tolist() == [6] * 8


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 7, 32, 100])
@pytest.mark.parametrize("window", [1, 3, 12])
def test_each_chunk_is_decoded_once_in_a_pass(tmp_path, window, batch_size, threads):
    ds = chunked(tmp_path)
    x, y = (ds.fields[name].gather(np.arange(240)) for name in ("x", "y"))
    sampler = BlockShuffle(ds, window=window, seed=1)
    loader = memload.FastLoader(ds, batch_size, sampler=sampler, threads=threads)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        rows = list(sampler)
        batches = list(loader)
        assert torch.equal(torch.cat([batch["x"] for batch in batches]), x[rows])
        assert torch.equal(torch.cat([batch["y"] for batch in batches]), y[rows])
        assert loader.stats().decoded_chunks == (epoch + 1) * CHUNKS
    stored = sum(part.stored_bytes for field in ds.fields.values() for part in field.column.parts)
    assert loader.stats().bytes_in - loader.stats().reused_bytes == 3 * stored


def test_full_shuffling_decodes_chunks_again(tmp_path):
    loader = memload.FastLoader(chunked(tmp_path), 32, shuffle=True)
    for _ in loader:
        pass
    assert loader.stats().decoded_chunks > 3 * CHUNKS
    assert loader.stats().reused_bytes == 0


def test_zarr_and_compressed_shards_are_decoded_once(tmp_path):
    from zarr3 import zarr

    values = np.arange(4800, dtype=np.int32).reshape(480, 10)
    zarr.create_array(tmp_path / "x.zarr", data=values, chunks=(12, 10))
    memload.write(tmp_path / "shards", {"x": torch.from_numpy(values)}, codec={"x": "zstd:rows=12"}, shard_bytes=9600)
    for path in ("x.zarr", "shards"):
        ds = memload.open(tmp_path / path)
        loader = memload.FastLoader(ds, 16, sampler=BlockShuffle(ds, window=5, seed=0))
        rows = torch.cat([next(iter(batch.values())) for batch in loader])
        assert sorted(rows[:, 0].tolist()) == values[:, 0].tolist()
        assert loader.stats().decoded_chunks == 40


def test_a_cast_and_a_selection_read_the_same_kept_chunks(tmp_path):
    ds = chunked(tmp_path).select(np.random.default_rng(1).permutation(240)).only("x")
    expected = ds.fields["x"].gather(np.arange(240)).float()
    sampler = BlockShuffle(ds, window=4, seed=2)
    loader = memload.FastLoader(ds, 16, sampler=sampler, cast={"x": torch.float32})
    assert torch.equal(torch.cat(list(loader)), expected[list(sampler)])
    assert loader.stats().decoded_chunks == 48


def joined(tmp_path, rows=200, chunk=20, shapes=((3, 4), (2, 9))):
    """Two datasets by name of 10 gzip chunks each, of rows that differ in shape, and one without chunks."""
    members = {}
    for name, shape in zip("ab", shapes, strict=True):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            data = np.arange(rows * math.prod(shape)).reshape(rows, *shape) % 251
            file.create_dataset("x", data=data.astype(np.uint8), chunks=(chunk, *shape), compression="gzip")
        members[name] = memload.open(tmp_path / f"{name}.h5", key="x")
    return memload.concat({**members, "plain": memload.from_arrays(x=np.arange(50))})


@pytest.mark.parametrize("block", [None, 20, 50])
@pytest.mark.parametrize("window", [1, 4, 30])
@pytest.mark.parametrize("threads", [1, 3])
def test_each_chunk_of_datasets_joined_by_name_is_decoded_once_in_a_pass(tmp_path, threads, window, block):
    ds = joined(tmp_path)
    sampler = BlockShuffle(ds, block, window, seed=1)
    loader = memload.FastLoader(ds, 32, sampler=sampler, collate_fn=memload.group_collate, threads=threads)
    assert loader.engine == "native"
    for epoch in range(2):
        sampler.set_epoch(epoch)
        stock = torch.utils.data.DataLoader(ds, 32, sampler=list(sampler), collate_fn=memload.group_collate)
        for groups, expected in zip(loader, stock, strict=True):
            for group, wanted in zip(groups, expected, strict=True):
                assert torch.equal(group["x"], wanted["x"])
                assert torch.equal(group["dataset_idx"], wanted["dataset_idx"])
        assert loader.stats().decoded_chunks == (epoch + 1) * 20


def test_blocks_of_datasets_joined_by_name_are_the_chunks_of_each_also_in_a_selection(tmp_path):
    ds = joined(tmp_path)
    assert BlockShuffle(ds).blocks.sizes.tolist() == [20] * 22 + [10]
    rows = np.random.default_rng(0).permutation(450)[:150]
    sampler = BlockShuffle(ds.select(rows), window=1, seed=0)
    blocks = rows[list(sampler)] // 20  # 200 rows are 10 blocks, so that blocks count through
    assert (np.diff(blocks) != 0).sum() == len(set(blocks)) - 1
    loader = memload.FastLoader(ds.select(rows), 16, sampler=sampler, collate_fn=memload.group_collate)
    assert sum(len(group["x"]) for groups in loader for group in groups) == 150
    assert loader.stats().decoded_chunks == len({block for block in blocks if block < 20})
    with pytest.raises(ValueError, match="give block="):
        BlockShuffle(memload.concat({name: memload.from_arrays(x=np.zeros((3, k))) for k, name in enumerate("ab", 1)}))


@pytest.mark.filterwarnings("ignore::memload.LayoutWarning")
def test_datasets_joined_by_name_share_the_bytes_of_kept_chunks(tmp_path):
    ds = joined(tmp_path, shapes=((200, 300), (300, 200)))
    sampler = BlockShuffle(ds, window=1, seed=0)
    orders = ({"sampler": sampler}, {"shuffle": True})
    mixed, plain = (memload.FastLoader(ds, 1, collate_fn=memload.group_collate, depth=2, **order) for order in orders)
    assert sampler.blocks_in_use(4) < 10
    kept = sampler.blocks_in_use(4) * 20 * 60_000  # of the one or of the other
    assert kept <= mixed.nbytes - plain.nbytes <= kept + 8 * (1 << 17)


def test_the_bytes_of_kept_chunks_are_stated(tmp_path):
    ds = chunked(tmp_path)
    loaders = [memload.FastLoader(ds, 16, sampler=BlockShuffle(ds, window=window, seed=0)) for window in (1, 3)]
    plain = memload.FastLoader(ds, 16, shuffle=True)
    block = 2 * 2 * 10 * 8 + 20 * 8  # two chunks of x on two, of (10, 2, 4) bytes, and one of y
    for loader, blocks in zip(loaders, (5, 12), strict=True):
        more = loader.nbytes - plain.nbytes
        assert blocks * block <= more <= blocks * block + 8 * (1 << 17)


def test_a_damaged_chunk_is_told_and_a_pass_over_the_others_goes_on(tmp_path):
    ds = chunked(tmp_path).only("x")
    table = ds.fields["x"].column.parts[0].table
    with (tmp_path / "data.h5").open("r+b") as file:
        file.seek(int(table[20][1]) + 4)
        file.write(b"\xff" * 8)
    sampler = BlockShuffle(ds, window=3, seed=0)
    loader = memload.FastLoader(ds, 8, sampler=sampler, threads=3)
    with pytest.raises(memload.ShardReadError, match="cannot be decoded"):
        for _ in loader:
            pass
    others = ds.select([row for row in range(240) if row // 10 != 10])
    rest = memload.FastLoader(others, 8, sampler=BlockShuffle(others, window=3, seed=0))
    assert sum(len(batch) for batch in rest) == 230

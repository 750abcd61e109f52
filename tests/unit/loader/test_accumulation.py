"""memload.accumulate: gradients of groups of micro-batches are those of one large batch."""

import textwrap
from types import SimpleNamespace

import pytest
import torch
from distributed_net import ROWS, dataset, gradients, net, rows_and_targets
from programs import run_all
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

import memload


def gradients_of_groups(steps, loss=torch.nn.functional.mse_loss):
    """The gradients before each step, and the weights."""
    model, found, weights = net(), [], []
    for (x, y), micro in steps:
        weights.append(micro.weight)
        (loss(model(x), y) * micro.weight).backward()
        if micro.step:
            found.append(gradients(model))
            model.zero_grad()
    return found, weights


def gradients_of_large_batches(bounds):
    x, y = rows_and_targets()
    found = []
    for begin, end in bounds:
        model = net()
        torch.nn.functional.mse_loss(model(x[begin:end]), y[begin:end]).backward()
        found.append(gradients(model))
    return found


def assert_equal_to_rounding(found, expected):
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


# 22 rows in batches of 4 are 5 whole ones and one of 2; groups of 4 batches are rows 0 to 16, and 16 to 22
GROUPS = [(0, 16), (16, 22)]


class WithoutLength(IterableDataset):
    def __iter__(self):
        return iter(zip(*rows_and_targets(), strict=True))


@pytest.mark.parametrize(
    "made",
    [
        lambda: memload.FastLoader(dataset(), batch_size=4),
        lambda: memload.FastLoader(list(zip(*rows_and_targets(), strict=True)), batch_size=4),
        lambda: DataLoader(dataset(), batch_size=4),
        lambda: DataLoader(WithoutLength(), batch_size=4),
        lambda: list(DataLoader(dataset(), batch_size=4)),
        lambda: memload.FastLoader(dataset(), batch_sampler=[[*range(k, min(k + 4, ROWS))] for k in range(0, ROWS, 4)]),
    ],
    ids=["native", "torch", "stock", "iterable", "list", "batch sampler"],
)
def test_gradients_of_a_group_are_those_of_the_large_batch_also_where_both_ends_are_short(made):
    found, weights = gradients_of_groups(memload.accumulate(made(), 4))
    assert_equal_to_rounding(found, gradients_of_large_batches(GROUPS))
    assert weights == [0.25] * 4 + [4 / 6, 2 / 6]


def test_dropped_rows_leave_whole_batches():
    loader = memload.FastLoader(dataset(), batch_size=4, drop_last=True)
    steps = memload.accumulate(loader, 4)
    found, weights = gradients_of_groups(steps)
    assert_equal_to_rounding(found, gradients_of_large_batches([(0, 16), (16, 20)]))
    assert (len(steps), steps.steps, weights[-1]) == (5, 2, 1.0)


def test_what_a_loss_is_a_mean_over_can_be_counted():
    counts = torch.tensor([3.0, 1.0, 2.0, 2.0])
    pieces = [(torch.ones(4, 5) * k, count) for k, count in enumerate(counts)]
    micros = [micro for _, micro in memload.accumulate(pieces, 3, rows=lambda batch: batch[1])]
    assert [micro.weight for micro in micros] == [3 / 6, 1 / 6, 2 / 6, 1.0]
    assert [(micro.index, micro.count, micro.rows) for micro in micros][2:] == [(2, 3, 2.0), (0, 1, 2.0)]


def test_batches_come_one_by_one_where_their_sizes_are_known_and_by_the_group_otherwise():
    taken = []

    class Counting(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            taken.append(index)
            return index

    for loader, seen in [
        (DataLoader(Counting(), batch_size=1), [1, 2, 3, 4, 5, 6, 7, 8]),
        (iter(DataLoader(Counting(), batch_size=1)), [4, 4, 4, 4, 8, 8, 8, 8]),
    ]:
        taken.clear()
        assert [len(taken) for _ in memload.accumulate(loader, 4)] == seen


@pytest.mark.parametrize("data", [dataset(), list(zip(*rows_and_targets(), strict=True))], ids=["native", "torch"])
@pytest.mark.parametrize("stop", [4, 5, 6])
def test_a_pass_that_is_taken_up_keeps_its_groups(data, stop):
    def fresh():
        return memload.FastLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))

    whole = [(x, micro) for (x, _), micro in memload.accumulate(fresh(), 4)]
    first, second = fresh(), fresh()
    for number, _ in enumerate(memload.accumulate(first, 4), start=1):
        if number == stop:
            break
    second.load_state_dict(first.state_dict())
    rest = [(x, micro) for (x, _), micro in memload.accumulate(second, 4)]
    assert [micro for _, micro in rest] == [micro for _, micro in whole[stop:]]  # their weights, too
    assert all(torch.equal(mine, theirs) for (mine, _), (theirs, _) in zip(rest, whole[stop:], strict=True))


@pytest.mark.parametrize(("stop", "warns"), [(4, False), (5, True)])
def test_a_pass_that_is_taken_up_in_a_group_of_unknown_sizes_says_whose_weights_there_are(stop, warns, recwarn):
    def fresh():
        return memload.FastLoader(dataset(), batch_size=4)

    first, second = fresh(), fresh()
    for number, _ in enumerate(memload.accumulate(first, 4, rows=lambda batch: len(batch[0])), start=1):
        if number == stop:
            break
    second.load_state_dict(first.state_dict())
    rest = [micro for _, micro in memload.accumulate(second, 4, rows=lambda batch: len(batch[0]))]
    assert sum(micro.weight for micro in rest) == pytest.approx(1.0)
    said = [str(one.message) for one in recwarn if "resumes after 1 of the 4 batches of a group" in str(one.message)]
    assert len(said) == warns


@pytest.mark.parametrize("data", [dataset(), list(zip(*rows_and_targets(), strict=True))], ids=["native", "torch"])
@pytest.mark.parametrize("stop", [3, 4, 6])
@pytest.mark.filterwarnings("ignore:the pass resumes after . of the 4 batches")
def test_a_state_within_a_group_of_an_iterator_is_that_of_the_loop(data, stop):
    def fresh():
        return memload.FastLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))

    whole = [(x, micro.step) for (x, _), micro in memload.accumulate(iter(fresh()), 4)]
    first, second = fresh(), fresh()
    for number, _ in enumerate(memload.accumulate(iter(first), 4), start=1):
        if number == stop:
            second.load_state_dict(first.state_dict())
            break
    rest = [(x, micro.step) for (x, _), micro in memload.accumulate(iter(second), 4)]
    assert [step for _, step in rest] == [step for _, step in whole[stop:]]
    assert all(torch.equal(mine, theirs) for (mine, _), (theirs, _) in zip(rest, whole[stop:], strict=True))


def test_an_iterator_of_an_earlier_pass_changes_no_state():
    loader = memload.FastLoader(dataset(), batch_size=4)
    earlier, latest = iter(loader), iter(loader)
    next(latest)
    next(iter(memload.accumulate(earlier, 4)))
    assert loader.state_dict()["delivered"] == 1


def test_graphs_and_rows_of_different_length_are_counted():
    tokens = memload.from_arrays(tokens=memload.ragged([torch.arange(n) for n in (3, 5, 2)]))
    two, one = ([0, 3, 8], [0, 2])
    for batches in (
        memload.FastLoader(tokens, batch_sampler=[[0, 1], [2]]),
        [memload.GraphBatch(None, None, torch.zeros(ptr[-1]), torch.tensor(ptr)) for ptr in (two, one)],
        [SimpleNamespace(num_graphs=len(ptr) - 1) for ptr in (two, one)],  # as PyTorch Geometric's
    ):
        assert [micro.weight for _, micro in memload.accumulate(batches, 2)] == [2 / 3, 1 / 3]


def test_autocast_and_a_gradient_scaler_give_the_large_batch_s_gradients():
    x, y = rows_and_targets(torch.float32)
    loader = memload.FastLoader(memload.from_arrays(x=x, y=y).as_tuple("x", "y"), batch_size=4)
    model, stepped = net(torch.float32), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for (inputs, targets), micro in memload.accumulate(loader, 6):
        with micro.no_sync(model), torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(model(inputs), targets.bfloat16())
        scaler.scale(loss * micro.weight).backward()
        if micro.step:
            scaler.unscale_(optimizer)
            stepped.append(gradients(model))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    large = net(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.nn.functional.mse_loss(large(x), y.bfloat16()).backward()
    torch.testing.assert_close(stepped, [gradients(large)], rtol=0.1, atol=0.02)


RANK = """
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DistributedSampler
    import memload
    from distributed_net import dataset, gradients, net

    rank = {rank}
    dist.init_process_group("gloo", init_method="file://{store}", rank=rank, world_size=2)
    exchanged = []

    def counting(state, bucket):
        exchanged.append(1)
        return allreduce_hook(state, bucket)

    model = DistributedDataParallel(net())
    model.register_comm_hook(dist.group.WORLD, counting)
    ds = dataset()
    loader = memload.FastLoader(ds, batch_size=2, sampler=DistributedSampler(ds, shuffle=False))
    for (x, y), micro in memload.accumulate(loader, 4):  # 11 rows a rank: groups of 8 and of 2 + 1
        with micro.no_sync(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            (loss * micro.weight).backward()
        if micro.step:
            print(*gradients(model).tolist(), sep=",")
            model.zero_grad()
    print(len(exchanged))
    dist.destroy_process_group()
"""


def test_two_processes_exchange_gradients_once_a_group_and_get_those_of_the_large_batch(tmp_path):
    store = tmp_path / "store"
    programs = {f"rank{rank}": textwrap.dedent(RANK).format(rank=rank, store=store) for rank in range(2)}
    ended = run_all(programs)
    assert [one.status for one in ended.values()] == [0, 0], ended["rank0"].err
    expected = gradients_of_large_batches([(0, 16), (16, 22)])
    for one in ended.values():
        *groups, exchanges = one.out
        found = [torch.tensor([*map(float, group.split(","))], dtype=torch.float64) for group in groups]
        assert_equal_to_rounding(found, expected)
        assert exchanges == "2"  # of the one bucket that the net is


@pytest.mark.parametrize(("k", "error"), [(0, ValueError), (2.5, TypeError), (True, TypeError), ("4", TypeError)])
def test_what_is_no_number_of_batches_is_refused(k, error):
    with pytest.raises(error, match="k is "):
        memload.accumulate([], k)


def test_a_batch_that_does_not_say_how_many_rows_it_has_is_an_error_that_says_what_to_give():
    for batch in (["a"], {}, [{"x": torch.zeros(3)}, {"x": torch.zeros(2)}], object()):
        with pytest.raises(TypeError, match="rows=lambda batch"):
            next(iter(memload.accumulate([batch], 2)))


def test_batches_at_fixed_addresses_are_not_overwritten_before_they_are_handed_on():
    def loader(buffers):
        return memload.FastLoader(dataset(), batch_size=2, static_buffers=buffers)

    count = lambda batch: len(batch[0])  # noqa: E731
    expected = [x.clone() for x, _ in loader(4)]
    got = [x.clone() for (x, _), _ in memload.accumulate(loader(4), 4, rows=count)]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, expected, strict=True))
    assert len(list(memload.accumulate(loader(1), 4))) == len(expected)
    with pytest.raises(ValueError, match=r"static_buffers=3 is too few here: .* give static_buffers=4"):
        list(memload.accumulate(loader(3), 4, rows=count))


def test_a_group_without_rows_and_a_loader_that_is_not_as_long_as_it_says_are_errors():
    with pytest.raises(ValueError, match="no mean over"):
        list(memload.accumulate([torch.zeros(0, 3)], 2))

    class Sampler(torch.utils.data.Sampler):
        def __init__(self, says):
            self.says = says

        def __len__(self):
            return self.says

        def __iter__(self):
            return iter(range(8))

    for says, message in [(12, "ended before the 6 batches"), (4, "goes on after the 2 batches")]:
        with pytest.raises(RuntimeError, match=message):
            list(memload.accumulate(DataLoader(range(8), batch_size=2, sampler=Sampler(says)), 3))


@pytest.mark.filterwarnings("ignore:the pass resumes after . of the . batches")
@pytest.mark.parametrize(
    ("rows", "k", "stop", "ranks", "ranks_now"), [(96, 3, 3, 2, 4), (96, 3, 3, 2, 3), (90, 2, 4, 3, 1)]
)
def test_a_pass_that_other_ranks_take_up_ends_where_they_have_all_rows(rows, k, stop, ranks, ranks_now):
    data = memload.from_arrays(x=torch.arange(rows))

    def of_rank(rank, world):
        sampler = DistributedSampler(data, num_replicas=world, rank=rank, seed=3)
        return memload.FastLoader(data, batch_size=4, sampler=sampler)

    seen, states = [], []
    for rank in range(ranks):
        loader = of_rank(rank, ranks)
        for number, (batch, _) in enumerate(memload.accumulate(loader, k), start=1):
            seen += batch["x"].tolist()
            if number == stop:
                break
        states.append(loader.state_dict())
    for rank in range(ranks_now):
        loader = of_rank(rank, ranks_now)
        loader.load_state_dict(states[0])
        weights = []
        for batch, micro in memload.accumulate(loader, k):
            seen += batch["x"].tolist()
            weights.append(micro.weight)
            assert micro.rows == len(batch["x"])
            if micro.step:
                assert sum(weights) == pytest.approx(1.0)
                weights = []
        assert weights == []
    assert set(seen) == set(range(rows))

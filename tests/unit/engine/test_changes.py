"""Data that is changed between passes, and between the batches of one: the stock loader without workers judges."""

import gc
import weakref

import pytest
import tensordict
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
)

import memload

N = 23


def table():
    return torch.arange(N * 3.0).reshape(N, 3)


def write(x):
    x += 100


def replace_tensor(dataset):
    dataset.tensors = (dataset.tensors[0] * 2, *dataset.tensors[1:])


def swap_in_list(dataset):
    dataset.tensors[0] = dataset.tensors[0] * 2


def set_entry(td):
    td["a"] = td["a"] * 2


def move(x):
    x.data = x * 3


def mapped(tmp_path):
    x = torch.from_file(str(tmp_path / "x.bin"), shared=True, size=N * 3).reshape(N, 3)
    x.copy_(table())
    return x


# What is loaded, and what the loop does to it after some batches.
CHANGES = {
    "written": lambda tmp: (d := TensorDataset(table(), torch.arange(N)), lambda: write(d.tensors[0])),
    "written through a view": lambda tmp: (d := TensorDataset(table()), lambda: d.tensors[0][:, 1].fill_(-1)),
    "written to what it is a view of": lambda tmp: (TensorDataset((x := table())[2:]), lambda: write(x)),
    "moved": lambda tmp: (TensorDataset(x := table()), lambda: move(x)),
    "other tensors": lambda tmp: (d := TensorDataset(table()), lambda: replace_tensor(d)),
    "another tensor in a list": lambda tmp: (
        setattr(d := TensorDataset(table()), "tensors", list(d.tensors)) or d,
        lambda: swap_in_list(d),
    ),
    "memload dataset": lambda tmp: (memload.from_arrays(x=(x := table())), lambda: write(x)),
    "memload dataset of a mapped tensor": lambda tmp: (memload.from_arrays(x=(x := mapped(tmp))), lambda: write(x)),
    "tensor of a mapped file": lambda tmp: (TensorDataset(x := mapped(tmp)), lambda: write(x)),
    "subset": lambda tmp: (Subset(TensorDataset(x := table()), range(5, N)), lambda: write(x)),
    "other indices": lambda tmp: (
        d := Subset(TensorDataset(table()), [*range(N)]),
        lambda: setattr(d, "indices", d.indices[::-1]),
    ),
    "written indices": lambda tmp: (d := Subset(TensorDataset(table()), torch.arange(N)), lambda: d.indices.fill_(3)),
    "another base": lambda tmp: (
        d := Subset(TensorDataset(table()), [*range(N)]),
        lambda: setattr(d, "dataset", TensorDataset(-table())),
    ),
    "part of a concat": lambda tmp: (ConcatDataset([d := TensorDataset(table()), d]), lambda: replace_tensor(d)),
    "another part": lambda tmp: (
        d := ConcatDataset([TensorDataset(table()), TensorDataset(table())]),
        lambda: d.datasets.reverse() or d.datasets.__setitem__(0, TensorDataset(-table())),
    ),
    "member of a stack": lambda tmp: (StackDataset(x=TensorDataset(x := table())), lambda: write(x)),
    "another member": lambda tmp: (
        d := StackDataset(x=TensorDataset(table())),
        lambda: d.datasets.update(x=TensorDataset(-table())),
    ),
    "view": lambda tmp: (memload.Float32View(memload.from_arrays(stim=(x := table())), False), lambda: write(x)),
    "tensordict": lambda tmp: (td := tensordict.TensorDict({"a": table()}, [N]), lambda: write(td["a"])),
    "other entry": lambda tmp: (td := tensordict.TensorDict({"a": table()}, [N]), lambda: set_entry(td)),
    "inner entry": lambda tmp: (td := tensordict.TensorDict({"b": {"a": table()}}, [N]), lambda: set_entry(td["b"])),
}  # fmt: skip

ORDERS = {
    "in order": lambda d: {"batch_size": 4},
    "shuffled, drop last": lambda d: {"batch_size": 5, "shuffle": True, "drop_last": True},
    "a list": lambda d: {"batch_size": 3, "sampler": [*range(len(d))][::-1]},
    "with own batches": lambda d: {"batch_sampler": [[0, 1], [2], [3, 4, 5], [0], [1, 2], [3]]},
}


def leaves(batch):
    if isinstance(batch, torch.Tensor):
        return [batch.clone()]
    values = batch if isinstance(batch, list) else [batch[key] for key in list(batch.keys())]
    return [leaf for value in values for leaf in leaves(value)]


def changed_in_the_loop(kind, make, order, at, **arguments):
    torch.manual_seed(0)
    dataset, change = make
    loader, seen = kind(dataset, **order(dataset), **arguments), []
    for _ in range(2):
        for step, batch in enumerate(loader):
            seen += leaves(batch)
            if step in at:
                change()
    return seen, loader


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("what", CHANGES)
def test_what_the_loop_changes_shows_in_the_next_batch(what, order, tmp_path):
    for at in ([0], [2, 3]):
        expected, _ = changed_in_the_loop(DataLoader, CHANGES[what](tmp_path), ORDERS[order], at)
        got, loader = changed_in_the_loop(memload.FastLoader, CHANGES[what](tmp_path), ORDERS[order], at, depth=4)
        assert loader.engine == "native"
        assert len(got) == len(expected)
        assert all(map(torch.equal, got, expected))


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_changed_between_passes_shows_in_the_next_pass(what, tmp_path):
    seen = []
    for kind in (DataLoader, memload.FastLoader):
        dataset, change = CHANGES[what](tmp_path)
        loader = kind(dataset, batch_size=4)
        first = [leaf for batch in loader for leaf in leaves(batch)]
        change()
        if what == "moved" and isinstance(dataset, memload.Dataset):
            continue
        seen.append((first, [leaf for batch in loader for leaf in leaves(batch)]))
    for expected, got in zip(*seen, strict=True):
        assert all(map(torch.equal, expected, got))


def test_indices_written_in_place_show_in_the_next_pass():
    dataset = Subset(TensorDataset(torch.arange(4)), [0, 1, 2, 3])
    loader = memload.FastLoader(dataset, batch_size=4)
    assert next(iter(loader))[0].tolist() == [0, 1, 2, 3]
    dataset.indices[:2] = [3, 3]
    assert next(iter(loader))[0].tolist() == [3, 3, 2, 3]
    dataset.indices.append(0)
    assert [batch[0].tolist() for batch in loader] == [[3, 3, 2, 3], [0]]


def test_casts_are_done_to_batches_that_the_dataset_answers():
    x = torch.arange(6, dtype=torch.uint8)
    cast = memload.Cast(torch.float32, norm_removed=True)
    for dataset, key in (
        (memload.from_arrays(x=x), "x"),
        (StackDataset(a=memload.from_arrays(x=x)), ("a", "x")),
        (StackDataset(TensorDataset(x)), (0, 0)),
    ):
        iterator = iter(memload.FastLoader(dataset, batch_size=2, cast={key: cast}))
        before = leaves(next(iterator))[0]
        assert torch.equal(before, memload.cast_stim(x[:2], norm_removed=True, dtype=torch.float32))
        x += 1
        assert torch.equal(leaves(next(iterator))[0], memload.cast_stim(x[2:4], norm_removed=True, dtype=torch.float32))


def test_a_pass_over_changed_data_is_native_again_next_time_and_keeps_its_slots():
    x = torch.arange(40.0)
    loader = memload.FastLoader(TensorDataset(x), batch_size=4, num_workers=1, persistent_workers=True)
    for step, _ in enumerate(loader):
        if step == 2:
            x += 1
    assert loader.stats().batches == 3
    assert sum(1 for _ in loader) == 10
    assert loader.stats().batches == 13
    assert loader.stats().fresh_batches == 0


def test_rows_that_the_loop_has_cut_away_are_an_error_each_time_and_the_next_batch_follows():
    def outcomes(kind):
        x = torch.arange(8)
        batches = iter(kind(TensorDataset(x), sampler=[0, 1, 6, 7, 2], batch_size=2))
        yield next(batches)[0].tolist()
        x.resize_(3)
        for _ in range(2):
            try:
                yield next(batches)[0].tolist()
            except IndexError as error:
                yield str(error)
        yield list(batches)

    expected = list(outcomes(DataLoader))
    assert [expected[0], expected[2]] == [[0, 1], [2]]
    assert list(outcomes(memload.FastLoader)) == expected


def test_lists_of_indices_as_samples_show_what_was_written():
    x = torch.arange(10.0)
    iterator = iter(
        memload.FastLoader(TensorDataset(x), batch_size=None, sampler=BatchSampler(SequentialSampler(x), 5, False))
    )
    next(iterator)
    x += 1
    assert next(iterator)[0].tolist() == [6, 7, 8, 9, 10]


def test_a_loader_that_watches_data_dies_with_its_last_name():
    loader = memload.FastLoader(TensorDataset(torch.arange(40)), batch_size=4, num_workers=1, persistent_workers=True)
    next(iter(loader))
    gone = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert gone() is None
    finally:
        gc.enable()


def test_torch_still_counts_what_is_written_to_a_tensor():
    # `Tensor._version` is torch's own; all of this module rests on it.
    x = torch.arange(4)
    before = x._version
    x[1:].add_(1)
    assert x._version > before


def noisy(batch):
    return batch[0] + torch.rand(len(batch[0]))


def test_random_numbers_of_batches_that_the_dataset_answers_are_those_of_a_run_that_was_never_stopped():
    def loader(x):
        return memload.FastLoader(TensorDataset(x), 4, shuffle=True, batch_transform=noisy)

    x = torch.zeros(24)
    torch.manual_seed(1)
    stopped = loader(x)
    iterator = iter(stopped)
    for _ in range(2):
        next(iterator)
    state = stopped.state_dict()
    x += 1
    rest = [batch.tolist() for batch in iterator]
    for kept_native in (True, False):
        torch.manual_seed(2)
        taken_up = loader(x)
        taken_up.load_state_dict(state)
        iterator = iter(taken_up)
        if not kept_native:
            x += 0
        assert [batch.tolist() for batch in iterator] == rest


def test_random_numbers_of_a_changed_pass_are_its_own_though_another_pass_has_begun():
    x = torch.zeros(12)
    torch.manual_seed(1)
    loader = memload.FastLoader(TensorDataset(x), 4, batch_transform=noisy)
    whole = [batch.tolist() for batch in loader]
    torch.manual_seed(1)
    loader = memload.FastLoader(TensorDataset(x), 4, batch_transform=noisy)
    first = iter(loader)
    iter(loader)
    x += 0
    assert [batch.tolist() for batch in first] == whole

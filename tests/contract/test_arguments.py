"""The table of arguments is complete, and what it says of the native engine holds."""

import copy
import functools
import gc
import inspect
import pickle
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from repository import DOCS
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

import memload
from memload.loader.accelerate import _on_the_engine

TABLE = DOCS / "dataloader-arguments.md"


def rows():
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_table_has_a_row_for_every_argument_in_their_order():
    parameters = list(inspect.signature(memload.FastLoader).parameters)
    assert [row[0].strip("` ") for row in rows()] == parameters


def test_every_row_says_what_both_engines_do():
    assert [row[0] for row in rows() if len(row) != 3 or not all(row)] == []


def native(n=8):
    return memload.from_arrays(x=torch.arange(n))


def of_tensors(n=8):
    return TensorDataset(torch.arange(n))


def shows_itself(worker_id):
    raise LookupError(f"worker {worker_id} was asked")


def test_a_worker_init_fn_keeps_memloads_datasets_native_and_is_called_for_all_others():
    arguments = {"batch_size": 4, "num_workers": 1, "worker_init_fn": shows_itself}
    for dataset in (native(), Subset(native(), [0, 1]), ConcatDataset([native(), native()])):
        loader = memload.FastLoader(dataset, **arguments)
        assert loader.engine == "native"
        assert loader.why.endswith("without worker processes to call worker_init_fn in.")
    assert "worker" not in memload.FastLoader(native(), num_workers=1).why
    loader = memload.FastLoader(of_tensors(), **arguments)
    assert loader.engine == "torch"
    assert "worker_init_fn" in loader.why
    with pytest.raises(LookupError, match="worker 0 was asked"):
        next(iter(loader))
    assert memload.FastLoader(of_tensors(), worker_init_fn=shows_itself).engine == "native"  # no workers, no call


def notes_its_worker(worker_id):
    get_worker_info().dataset.fn.keywords["opened"].append(worker_id + 10)


def worker_of(sample, opened):
    info = get_worker_info()
    return -1 if info is None else info.id, *opened


def test_a_mapped_function_finds_its_worker_where_a_worker_init_fn_asks_for_one_and_none_natively():
    mapped = native(4).map(functools.partial(worker_of, opened=[]))
    loader = memload.FastLoader(mapped, 2, num_workers=2, worker_init_fn=notes_its_worker)
    assert loader.engine == "torch"
    assert "leave it out to have the function called in threads" in loader.why
    assert [[x.tolist() for x in batch] for batch in loader] == [[[0, 0], [10, 10]], [[1, 1], [11, 11]]]
    loader = memload.FastLoader(mapped, 2, num_workers=2)
    assert loader.engine == "native"
    assert [[x.tolist() for x in batch] for batch in loader] == [[[-1, -1]]] * 2


def test_a_prefetch_factor_is_the_depth_and_depth_overrides_it():
    ring = lambda **arguments: memload.FastLoader(native(), batch_size=2, **arguments).nbytes  # noqa: E731
    for depth in (1, 2, 5):
        assert ring(num_workers=1, prefetch_factor=depth) == ring(depth=depth)
        assert ring(num_workers=1, prefetch_factor=3, depth=depth) == ring(depth=depth)
    assert ring(num_workers=1) == ring()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's iterator, half made
def test_a_prefetch_factor_of_zero_is_refused_as_by_stock_workers():
    errors = []
    for kind in (DataLoader, memload.FastLoader):
        with pytest.raises(AssertionError) as raised:
            iter(kind(of_tensors(), num_workers=1, prefetch_factor=0))
        errors.append(str(raised.value))
        del raised
        gc.collect()
    assert errors[0] == errors[1]


def test_a_sampler_of_ones_own_is_pulled_when_the_stock_loader_pulls_it():
    class Counting:
        def __init__(self):
            self.pulled = 0

        def __iter__(self):
            for row in range(8):
                self.pulled += 1
                yield row

        def __len__(self):
            return 8

    pulled = {}
    for kind in (DataLoader, memload.FastLoader):
        for workers in (0, 1):
            sampler = Counting()
            iterator = iter(kind(of_tensors(), 2, sampler=sampler, num_workers=workers))
            pulled[kind, workers] = [sampler.pulled, *(sampler.pulled for _ in iterator)]
    for workers in (0, 1):
        assert pulled[DataLoader, workers] == pulled[memload.FastLoader, workers]
    sampler = Counting()
    next(iter(memload.FastLoader(of_tensors(), 2, sampler=sampler, depth=2)))
    assert sampler.pulled == 6  # depth= allows it


def test_a_row_that_is_not_there_is_the_datasets_own_error_and_the_next_batch_follows():
    for kind in (DataLoader, memload.FastLoader):
        iterator = iter(kind(of_tensors(), 2, sampler=[0, 1, 2, 8, 4, 5]))
        assert next(iterator)[0].tolist() == [0, 1]
        with pytest.raises(IndexError, match="index 8 is out of bounds for dimension 0 with size 8") as raised:
            next(iterator)
        assert "dataset.py" in [frame.path.name for frame in raised.traceback]  # where torch's TensorDataset raised it
        assert next(iterator)[0].tolist() == [4, 5]


def test_a_default_collation_that_was_changed_is_respected(monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, lambda batch, *, collate_fn_map=None: len(batch))
    loader = memload.FastLoader(of_tensors(), 3)
    assert loader.engine == "torch"
    assert "default_collate" in loader.why
    assert list(loader) == list(DataLoader(of_tensors(), 3)) == [[3], [3], [2]]


def test_what_cannot_be_set_after_construction_is_refused_and_the_rest_takes_effect():
    for kind in (DataLoader, memload.FastLoader):
        loader = kind(of_tensors(), 3)
        for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
            with pytest.raises(ValueError, match=f"{name} attribute should not be set after {kind.__name__} is init"):
                setattr(loader, name, None)
        loader.collate_fn = len
        assert list(loader) == [3, 3, 2]


def test_every_argument_of_the_stock_loader_is_an_attribute_with_the_stock_value():
    arguments = {"batch_size": 3, "num_workers": 1, "multiprocessing_context": "fork", "pin_memory_device": "cuda"}
    stock, fast = DataLoader(of_tensors(), **arguments), memload.FastLoader(of_tensors(), **arguments)
    for name in inspect.signature(DataLoader).parameters:
        if name not in ("dataset", "sampler", "batch_sampler", "shuffle"):  # the last is no attribute of either
            assert getattr(fast, name) == getattr(stock, name), name
    assert type(fast.sampler) is type(stock.sampler)
    assert type(fast.batch_sampler) is type(stock.batch_sampler)


def test_a_subclass_and_a_subscript_work_as_with_the_stock_loader():
    class Mine(memload.FastLoader[int]):
        def __init__(self, dataset, **arguments):
            self.early = True
            super().__init__(dataset, **arguments)

    def annotated() -> memload.FastLoader[int]:
        return Mine(native(), batch_size=4)

    assert [batch["x"].tolist() for batch in annotated()] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert next(annotated()._get_iterator())["x"].tolist() == [0, 1, 2, 3]
    assert annotated().engine == "native"


def test_a_subclass_may_have_properties_of_names_that_only_fast_loader_takes_as_arguments():
    class Mine(memload.FastLoader):
        device = property(lambda self: "cpu")
        options = cast = device

    loader = Mine(native(), 4)
    assert [batch["x"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (loader.engine, loader.device, loader.depth) == ("native", "cpu", None)


def test_a_subclass_may_have_attributes_of_its_own_of_these_names_before_and_after_construction():
    class Mine(memload.FastLoader):
        def __init__(self, *arguments, **more):
            self.device = "of its own"
            super().__init__(*arguments, **more)
            self.options = "of its own, too"
            self.options = "once more"

    loader = copy.copy(Mine(native(), 4))
    assert [batch["x"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (loader.engine, loader.device, loader.options, loader.depth) == ("native", "of its own", "once more", None)
    with pytest.raises(ValueError, match="threads attribute should not be set after Mine is initialized"):
        Mine(native(), 4, threads=2).threads = 3


def test_an_iterator_has_the_length_of_its_sampler_and_cannot_be_pickled():
    class Unsized:
        def __iter__(self):
            return iter([[0]])

    for kind in (DataLoader, memload.FastLoader):
        assert len(iter(kind(of_tensors(), 3))) == 3
        with pytest.raises(TypeError, match=r"has no len\(\)"):
            len(iter(kind(of_tensors(), batch_sampler=Unsized())))
        with pytest.raises(NotImplementedError, match="cannot be pickled"):
            pickle.dumps(iter(kind(of_tensors(), 3)))


def test_more_threads_than_cpus_warn_as_workers_do():
    for kind in (DataLoader, memload.FastLoader):
        with pytest.warns(UserWarning, match="excessive worker creation might get DataLoader running slow"):
            kind(native(), num_workers=1000)


class AsksWhoReads(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        info = get_worker_info()
        return -1 if info is None else 10 * info.id + info.num_workers


def test_datasets_of_ones_own_see_stock_workers():
    assert [batch.tolist() for batch in memload.FastLoader(AsksWhoReads(), 2)] == [[-1, -1], [-1, -1]]
    assert [batch.tolist() for batch in memload.FastLoader(AsksWhoReads(), 2, num_workers=2)] == [[2, 2], [12, 12]]


def test_an_error_in_a_worker_keeps_its_type_and_tells_the_original_traceback():
    class Bad(AsksWhoReads):
        def __getitem__(self, index):
            raise FloatingPointError("of this row")

    with pytest.raises(
        FloatingPointError, match=r"(?s)in DataLoader worker process 0.*Original Traceback.*of this row"
    ):
        next(iter(memload.FastLoader(Bad(), 2, num_workers=1)))
    with pytest.raises(FloatingPointError, match="of this row"):
        next(iter(memload.FastLoader(Bad(), 2)))


def test_a_prefetch_factor_that_nobody_gave_sets_no_depth_when_a_stock_loader_is_put_back_on_the_engine():
    dataset = memload.from_arrays(x=torch.arange(40))
    for given, own in (({}, False), ({"prefetch_factor": 2}, True), ({"prefetch_factor": 3}, True)):
        loader = memload.FastLoader(dataset, batch_size=4, num_workers=1, **given)
        stock = DataLoader(dataset, batch_size=4, num_workers=1, prefetch_factor=loader.prefetch_factor)
        again = _on_the_engine(stock, loader)
        assert (again.__memload_loader__().asks().depth_given, again.nbytes) == (own, loader.nbytes)


@pytest.mark.parametrize("name", ["threads", "depth", "cast", "options"])
def test_what_was_worked_out_at_construction_cannot_be_set_afterwards(name):
    loader = memload.FastLoader(memload.from_arrays(x=torch.zeros(4)), batch_size=2)
    with pytest.raises(ValueError, match=f"{name} attribute should not be set after FastLoader is initialized"):
        setattr(loader, name, None)
    loader.batch_transform = torch.nn.Identity()  # others take effect with the next pass
    assert len(list(loader)) == 2


def test_a_number_of_workers_or_batches_ahead_that_is_no_integer_is_refused_as_by_torch():
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        list(memload.FastLoader(TensorDataset(torch.ones(4)), 2, num_workers=1.0))
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        list(memload.FastLoader(TensorDataset(torch.ones(4)), 2, num_workers=1, prefetch_factor=1.5))


HUGE = [10**30, 1 << 63, (1 << 63) - 1, 1 << 60]


def ends_in(kind, **arguments):
    """What comes of a loader: its batches, or the type of the error that ends it, and what it says."""
    try:
        return [batch.tolist() for (batch,) in kind(of_tensors(), **arguments)]
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("more", [{}, {"drop_last": True}, {"num_workers": 1}, {"collate_fn": list}])
def test_a_batch_size_beyond_all_lists_ends_as_in_the_stock_loader(more):
    for size in HUGE[: 1 if "num_workers" in more else None]:
        assert ends_in(memload.FastLoader, batch_size=size, **more) == ends_in(DataLoader, batch_size=size, **more)
    assert memload.FastLoader(native(), HUGE[0]).nbytes == memload.FastLoader(native(), 8).nbytes


def test_numbers_of_workers_and_batches_ahead_may_be_of_any_size_and_integer_type():
    whole = [list(range(4)), list(range(4, 8))]
    for number in (np.uint8(200), np.int64(1), True):
        assert ends_in(memload.FastLoader, batch_size=4, num_workers=1, prefetch_factor=number) == whole
        assert ends_in(memload.FastLoader, batch_size=4, num_workers=min(number, 2)) == whole
    assert ends_in(memload.FastLoader, batch_size=4, num_workers=1, prefetch_factor=10**30) == whole
    assert ends_in(memload.FastLoader, batch_size=4, num_workers=1, persistent_workers="yes") == whole
    with pytest.warns(UserWarning, match="excessive worker creation"):
        assert memload.FastLoader(native(), 4, num_workers=10**30).nbytes == memload.FastLoader(native(), 4).nbytes


def test_a_timeout_that_no_clock_can_measure_is_refused_by_the_stock_loaders_error():
    for timeout, error in ((10**30, OverflowError), (float("inf"), OverflowError), (Decimal(3), TypeError)):
        for kind in (DataLoader, memload.FastLoader):
            assert ends_in(kind, num_workers=1, timeout=timeout)[0] is error
    assert ends_in(memload.FastLoader, batch_size=8, timeout=float("nan")) == [[*range(8)]]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="torch pins without a warning where it has an accelerator")
def test_the_warning_of_pinning_names_the_users_own_line():
    """Also of a file beside the package whose name begins as the package's does."""
    script = str(Path(memload.__file__).parent) + "_train.py"
    names = {"loader": memload.FastLoader(memload.from_arrays(x=torch.zeros(4, 2)), pin_memory=True)}
    with pytest.warns(UserWarning, match="no accelerator is found") as caught:
        exec(compile("\n\nnext(iter(loader))", script, "exec"), names)
    assert [(warning.filename, warning.lineno) for warning in caught] == [(script, 3)]

"""FastLoader beside the stock loader: same batches, same draws, same errors."""

import copy
import inspect
import pickle
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import memload


def tensors(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randint(0, 256, (n, 5, 7), dtype=torch.uint8, generator=g),
        torch.randn(n, 3, generator=g),
        torch.randint(-(2**40), 2**40, (n,), generator=g),
    )


def native_dict(n, seed=0):
    stim, robs, ident = tensors(n, seed)
    return memload.from_arrays(stim=stim, robs=robs, ident=ident)


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))


def assert_same_passes(make_loader, passes=2):
    """Run stock and native loaders from the same state; compare batches and generators after every step."""
    results = []
    for kind in (DataLoader, memload.FastLoader):
        torch.default_generator.manual_seed(1)
        loader, generators = make_loader(kind)
        seen = []
        for _ in range(passes):
            iterator = iter(loader)
            seen.append([g.get_state() for g in (torch.default_generator, *generators)])
            while True:
                try:
                    seen.append(copy.deepcopy(next(iterator)))
                except StopIteration:
                    break
                finally:
                    seen.append([g.get_state() for g in (torch.default_generator, *generators)])
        results.append(seen)
    if kind is memload.FastLoader:
        assert loader.engine == "native", loader.why
    assert len(results[0]) == len(results[1])
    for stock, fast in zip(*results, strict=True):
        assert equal(stock, fast)


@st.composite
def datasets(draw, depth=2):
    n = draw(st.integers(1, 40))
    kind = draw(
        st.sampled_from(["dict", "tuple", "only", "tensors", "subset", "concat"] if depth else ["dict", "tensors"])
    )
    if kind == "dict":
        return native_dict(n)
    if kind == "tuple":
        return native_dict(n).as_tuple("robs", "stim")
    if kind == "only":
        return native_dict(n).only("ident")
    if kind == "tensors":
        return TensorDataset(*tensors(n))
    base = draw(datasets(depth - 1))
    if kind == "subset":
        return Subset(base, draw(st.lists(st.integers(0, len(base) - 1), min_size=1, max_size=50)))
    return ConcatDataset([base, Subset(base, range(len(base)))])


SAMPLERS = [
    lambda n, g: None,
    lambda n, g: RandomSampler(range(n), generator=g),
    lambda n, g: RandomSampler(range(n), replacement=True, num_samples=n + 37, generator=g),
    lambda n, g: RandomSampler(range(n), num_samples=2 * n + 1, generator=g),
    lambda n, g: RandomSampler(range(n), num_samples=2 * n, generator=g),
    lambda n, g: SubsetRandomSampler(list(range(0, n, 2)), generator=g),
    lambda n, g: WeightedRandomSampler([1.0] * (n - 1) + [3.0], n + 5, generator=g),
    lambda n, g: DistributedSampler(range(n), num_replicas=2, rank=1, seed=3),
    lambda n, g: SequentialSampler(range(n)),
    lambda n, g: list(range(n - 1, -1, -1)),
    lambda n, g: [-1, 0, -n],
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_same_seed_gives_the_same_batches_and_the_same_draws_at_every_step(data):
    dataset = data.draw(datasets())
    n = len(dataset)
    own = data.draw(st.booleans())
    sampler_of = data.draw(st.sampled_from(SAMPLERS))
    arguments = {"batch_size": data.draw(st.integers(1, 50)), "drop_last": data.draw(st.booleans())}
    fast_only = {"depth": data.draw(st.integers(1, 4)), "threads": data.draw(st.integers(1, 3))}
    shuffle = data.draw(st.booleans())

    def make(kind):
        generator = torch.Generator().manual_seed(5) if own else None
        extra = fast_only if kind is memload.FastLoader else {}
        sampler = sampler_of(n, generator)
        order = {"shuffle": shuffle} if sampler is None else {"sampler": sampler}
        return kind(dataset, **order, generator=generator, **arguments, **extra), [generator] if own else []

    assert_same_passes(make)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("n", [10, 12])
def test_stock_workers_draw_ahead_and_so_does_the_native_engine(own, n):
    def make(kind):
        generator = torch.Generator().manual_seed(5) if own else None
        loader = kind(native_dict(n), 4, shuffle=True, num_workers=1, prefetch_factor=2, generator=generator)
        return loader, [generator] if own else []

    assert_same_passes(make, passes=1)


def test_persistent_workers_are_seeded_once():
    def make(kind):
        return kind(native_dict(9), 4, shuffle=True, num_workers=1, persistent_workers=True), []

    assert_same_passes(make)


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_sampler_of_ones_own_is_followed(drop_last):
    def make(kind):
        return kind(native_dict(11), batch_sampler=BatchSampler(RandomSampler(range(11)), 3, drop_last)), []

    assert_same_passes(make)
    ragged = [[0], [1, 2, 3, 4, 5], [6, 6], list(range(11))]
    assert_same_passes(lambda kind: (kind(native_dict(11), batch_sampler=ragged), []))


def test_a_sampler_that_fails_fails_after_the_batches_before_it():
    class Failing:
        def __iter__(self):
            yield from range(5)
            raise LookupError("no more of this")

        def __len__(self):
            return 9

    loader = memload.FastLoader(native_dict(9), batch_size=2, sampler=Failing())
    iterator = iter(loader)
    assert [len(next(iterator)["ident"]) for _ in range(2)] == [2, 2]
    with pytest.raises(LookupError, match="no more of this"):
        next(iterator)


@pytest.mark.parametrize("bad", [9, -10, 2**40])
def test_an_index_out_of_range_is_an_index_error_in_its_turn(bad):
    iterator = iter(memload.FastLoader(native_dict(9), batch_size=2, sampler=[0, 1, bad, 2]))
    assert next(iterator)["ident"].shape == (2,)
    with pytest.raises(IndexError, match=r"not one of the 9 rows"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_indices_that_are_no_integers_are_a_type_error():
    with pytest.raises(TypeError, match="by an integer, got a float"):
        next(iter(memload.FastLoader(native_dict(9), batch_size=2, sampler=[0.5, 1.5])))


def test_a_batch_larger_than_the_dataset_is_what_there_is():
    batches = list(memload.FastLoader(native_dict(3), batch_size=100))
    assert [len(b["ident"]) for b in batches] == [3]
    assert list(memload.FastLoader(native_dict(3), batch_size=100, drop_last=True)) == []
    for huge in (2**61 - 4, sys.maxsize):
        loader = memload.FastLoader(native_dict(3), batch_size=huge, shuffle=True)
        assert [len(b["ident"]) for b in loader] == [3]
        assert loader.nbytes < 1 << 20
        for kind in (DataLoader, memload.FastLoader):  # torch makes a list of that size, which cannot be
            with pytest.raises(MemoryError):
                list(kind(native_dict(3), batch_size=huge, drop_last=True))
    assert list(memload.FastLoader(native_dict(3), batch_size=2**59, drop_last=True)) == []


def test_zero_rows_give_zero_batches():
    empty = native_dict(3).select([])
    assert memload.FastLoader(empty).engine == "native"
    assert list(memload.FastLoader(empty, batch_size=2)) == []
    with pytest.raises(ValueError, match="num_samples"):
        memload.FastLoader(empty, shuffle=True)


def test_a_batch_without_rows_is_an_index_error_as_it_is_in_the_stock_loader():
    for kind in (DataLoader, memload.FastLoader):
        iterator = iter(kind(native_dict(3), batch_sampler=[[0], []]))
        next(iterator)
        with pytest.raises(IndexError):
            next(iterator)


def test_samplers_without_a_length_and_batch_samplers_of_odd_kinds_work():
    class Odd:
        batch_size = "auto"

        def __iter__(self):
            return iter([[0, 1], [2]])

        def __len__(self):
            raise NotImplementedError

    loader = memload.FastLoader(native_dict(3), batch_sampler=Odd())
    assert [len(b["ident"]) for b in loader] == [2, 1]


def test_a_path_or_something_else_than_a_cast_is_refused_at_once(capsys):
    with pytest.raises(TypeError, match=r"memload\.open\('shards'\)"):
        memload.FastLoader("shards")
    for bad in (torch.int32, "flaot32", None):
        with pytest.raises(TypeError, match="cast= of the field 'stim': a cast is to one of"):
            memload.FastLoader(native_dict(3), cast={"stim": bad})
    with pytest.raises(TypeError, match="maps fields to casts or dtypes"):
        memload.FastLoader(native_dict(3), cast=memload.Cast(torch.float32))
    assert capsys.readouterr().err == ""


def test_a_world_size_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "")
    with pytest.raises(ValueError, match="LOCAL_WORLD_SIZE=''"):
        iter(memload.FastLoader(native_dict(3)))
    assert len(list(memload.FastLoader(native_dict(3), threads=1))) == 3


class ImageFolder(list):
    root = "photos"


ImageFolder.__module__ = "torchvision.datasets.folder"


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (list(range(10)), "list is not a dataset that memload reads natively"),
        (ImageFolder(range(4)), "`memload write --images photos --labels folders DST` makes a set of its images"),
        (TensorDataset(torch.ones(4, requires_grad=True)), "requires grad"),
        (TensorDataset(torch.ones(4, 6)[:, ::2]), "one contiguous run of bytes"),
        (ConcatDataset([TensorDataset(torch.ones(4)), TensorDataset(torch.ones(4).double())]), "differ in"),
        (Subset(TensorDataset(torch.ones(4)), ["a"]), "not row indices"),
    ],
)
def test_what_cannot_be_read_natively_says_why_and_runs_on_stock_machinery(dataset, reason):
    loader = memload.FastLoader(dataset, batch_size=2)
    assert loader.engine == "torch"
    assert reason in loader.why
    if "row indices" not in reason:
        stock = list(DataLoader(dataset, batch_size=2)) if "differ" not in reason else None
        assert stock is None or equal(stock, list(loader))


def test_a_subclass_that_answers_differently_is_not_native():
    class Doubled(TensorDataset):
        def __getitem__(self, index):
            return tuple(2 * x for x in super().__getitem__(index))

    loader = memload.FastLoader(Doubled(torch.arange(6)), batch_size=3)
    assert loader.engine == "torch"
    assert equal(list(loader), [[torch.tensor([0, 2, 4])], [torch.tensor([6, 8, 10])]])


def test_a_collate_fn_of_ones_own_is_called_with_samples():
    loader = memload.FastLoader(TensorDataset(torch.arange(4)), batch_size=2, collate_fn=len)
    assert loader.engine == "torch"
    assert "collate_fn" in loader.why
    assert list(loader) == [2, 2]


def test_stock_arguments_keep_stock_validation():
    for arguments in ({"num_workers": -1}, {"prefetch_factor": 2}, {"shuffle": True, "sampler": [0]}, {"timeout": -1}):
        with pytest.raises(ValueError) as stock:  # noqa: PT011 - the message is compared
            DataLoader(native_dict(3), **arguments)
        with pytest.raises(ValueError) as fast:  # noqa: PT011
            memload.FastLoader(native_dict(3), **arguments)
        assert str(fast.value) == str(stock.value)
    loader = memload.FastLoader(native_dict(3), batch_size=2)
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 3


def test_options_are_engine_options_and_exclude_threads_and_depth():
    with pytest.raises(TypeError, match=r"options= takes memload\.EngineOptions\(.*; got a dict"):
        memload.FastLoader([1], options={"threads": 2})
    with pytest.raises(ValueError, match="inside options=EngineOptions"):
        memload.FastLoader([1], threads=2, options=memload.EngineOptions())


@pytest.mark.parametrize("value", [0, -1, 1.5, True, 2**31])
@pytest.mark.parametrize("name", ["threads", "depth"])
def test_threads_and_depth_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be an int from 1 to 1024"):
        memload.FastLoader(native_dict(3), **{name: value})


def test_it_is_a_dataloader_and_survives_pickling():
    loader = memload.FastLoader(native_dict(6), batch_size=4)
    assert isinstance(loader, DataLoader)
    assert len(loader) == 2
    assert len(iter(loader)) == 2
    assert equal(list(pickle.loads(pickle.dumps(loader))), list(loader))


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn,
    torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (2, 1, 5)], ids=str)
def test_every_dtype_and_shape_of_row_comes_out_as_it_went_in(dtype, shape):
    n = 7
    raw = torch.randint(0, 2, (n, *shape), dtype=torch.uint8)
    x = raw.to(dtype) if dtype == torch.bool else raw.repeat_interleave(dtype.itemsize, -1) if shape else raw
    x = x.contiguous().view(dtype) if shape and x.numel() else torch.zeros(n, *shape).to(dtype)
    (batch,) = memload.FastLoader(memload.from_arrays(x=x), batch_size=n)
    assert batch["x"].dtype == dtype
    assert batch["x"].shape == x.shape
    as_bytes = lambda t: t.contiguous().view(torch.uint8) if t.dim() else t  # noqa: E731
    assert torch.equal(as_bytes(batch["x"]), as_bytes(x))


def test_columns_of_several_files_and_selections_are_followed(tmp_path):
    parts = []
    for k in range(3):
        np.save(tmp_path / f"{k}.npy", np.arange(k * 10, k * 10 + 10, dtype=np.int32))
        parts.append(memload.open(tmp_path / f"{k}.npy"))
    ds = memload.concat(parts).select([29, 0, 10, 10, 5])
    (batch,) = memload.FastLoader(ds, batch_size=5)
    assert next(iter(batch.values())).tolist() == [29, 0, 10, 10, 5]


def test_zipped_datasets_look_rows_up():
    images = memload.from_arrays(image=torch.arange(3, dtype=torch.int16).repeat_interleave(4).reshape(3, 4))
    betas = memload.from_arrays(betas=torch.arange(5))
    loader = memload.FastLoader(memload.zip(betas=betas, stim=images.select([2, 2, 0, 1, 0])), batch_size=5)
    (batch,) = loader
    assert batch["stim"][:, 0].tolist() == [2, 2, 0, 1, 0]
    assert batch["betas"].tolist() == [0, 1, 2, 3, 4]


def test_the_signature_is_the_stock_loaders_and_keyword_only_extras():
    stock = inspect.signature(DataLoader.__init__).parameters
    fast = inspect.signature(memload.FastLoader.__init__).parameters
    assert list(fast)[: len(stock)] == list(stock)
    assert [p.default for p in fast.values()][2 : len(stock)] == [p.default for p in stock.values()][2:]
    extras = list(fast.values())[len(stock) :]
    assert [p.name for p in extras] == [
        "snapshot_every_n_steps",
        "threads",
        "depth",
        "cast",
        "batch_transform",
        "ragged",
        "device",
        "static_buffers",
        "options",
    ]
    assert all(p.kind is p.KEYWORD_ONLY for p in extras)


def test_a_tensor_that_moved_since_the_dataset_was_made_is_refused():
    x = torch.arange(100)
    ds = memload.from_arrays(x=x)
    x.share_memory_()
    with pytest.raises(RuntimeError, match="share_memory_"):
        iter(memload.FastLoader(ds))


def test_a_plain_pass_executes_nothing_for_groups_or_devices(tmp_path):
    memload.write(tmp_path / "set", memload.from_arrays(x=torch.arange(64, dtype=torch.uint8)), progress=False)
    dataset, files = memload.open(tmp_path / "set"), set()
    home, before = str(Path(memload.__file__).parent), (sys.gettrace(), threading.gettrace())

    def entered(frame, *_):
        files.add(frame.f_code.co_filename.removeprefix(home).strip("/").split("/")[0])

    threading.settrace(entered)
    sys.settrace(entered)
    try:
        batches = list(memload.FastLoader(dataset, 16, shuffle=True, cast={"x": memload.Cast(torch.float32)}))
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])
    assert len(batches) == 4
    assert "engine" in files
    assert files & {"gpu", "groups", "graphs", "monitoring", "planning"} == set()


def test_batches_with_an_empty_field_can_be_saved(tmp_path):
    ds = memload.from_arrays(a=torch.zeros(10, 0, dtype=torch.int16), b=torch.arange(30.0).reshape(10, 3))
    batches = list(memload.FastLoader(ds, 4))
    torch.save(batches, tmp_path / "batches.pt")
    for saved, batch in zip(torch.load(tmp_path / "batches.pt"), batches, strict=True):
        assert saved["a"].shape == batch["a"].shape
        assert torch.equal(saved["b"], batch["b"])

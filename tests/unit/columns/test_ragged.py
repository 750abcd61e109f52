"""Fields whose rows differ in length: datasets, batches in each form, and every way to the loop."""

import copy
import gc
import math
import multiprocessing
import pickle
import re

import numpy as np
import pytest
import torch
from children import all_samples
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_cases import forms, graphs, lengths, row_lists, same, same_rows, same_tensor, sentences
from same_rows import OneByOne
from strategies import random_tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset, default_collate
from waiting import MOST_SECONDS

import memload
from memload import _core
from memload.columns.ragged_fields import RaggedField
from memload.columns.ragged_forms import with_values


def offsets_of(rows, axis=0):
    return torch.tensor([0, *np.cumsum([row.shape[axis] for row in rows])])


@given(row_lists(), st.data())
@settings(max_examples=60)
def test_batches_are_the_rows_in_the_order_of_the_sampler(rows, data):
    ds = memload.from_arrays(x=memload.ragged(rows))
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=30))
    batch = next(iter(memload.FastLoader(ds, batch_sampler=[order])))["x"]
    wanted = [rows[row] for row in order]
    assert same_tensor(batch.values, torch.cat(wanted))
    assert torch.equal(batch.offsets, offsets_of(wanted))
    assert same_rows(batch.rows(), wanted)
    assert all(same_tensor(ds[k]["x"], row) for k, row in enumerate(rows))


@given(row_lists(axis=1), st.data())
@settings(max_examples=40)
def test_rows_of_a_second_axis_are_joined_along_it(rows, data):
    ds = memload.from_arrays(x=memload.ragged(rows, axis=1))
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=30))
    batch = next(iter(memload.FastLoader(ds.select(order), batch_size=len(order))))["x"]
    wanted = [rows[row] for row in order]
    assert same_tensor(batch.values, torch.cat(wanted, dim=1))
    assert batch.values.is_contiguous()
    assert torch.equal(batch.offsets, offsets_of(wanted, axis=1))
    assert all(same_tensor(ds[k]["x"], row) for k, row in enumerate(rows))


@given(lengths, forms, st.integers(1, 12), st.sampled_from([None, torch.bfloat16, torch.float32]))
@settings(max_examples=40)
def test_forms_and_casts_are_those_of_torch(counts, form, batch_size, cast):
    rows = [torch.arange(n, dtype=torch.uint8) + k for k, n in enumerate(counts)]
    casts = {} if cast is None else {"x": memload.Cast(cast, norm_removed=True)}
    ds = memload.from_arrays(x=memload.ragged(rows))
    for number, batch in enumerate(memload.FastLoader(ds, batch_size, ragged=form, cast=casts)):
        wanted = rows[number * batch_size : (number + 1) * batch_size]
        if cast is not None:
            wanted = [casts["x"].apply(row) for row in wanted]
        x = batch["x"]
        if form == "padded":
            assert same_tensor(x.values, pad_sequence(wanted, batch_first=True))
            assert x.lengths.tolist() == [len(row) for row in wanted]
            assert x.mask.sum(1).tolist() == x.lengths.tolist()
        elif form == "jagged":
            assert x.layout == torch.jagged
            assert same_rows(x.unbind(), list(torch.nested.nested_tensor(wanted, layout=torch.jagged).unbind()))
        else:
            assert same_rows(x.rows(), wanted)


PADS = [
    (torch.int64, -100),
    (torch.int64, 2**62 + 1),
    (torch.int32, -1),
    (torch.int16, 300),
    (torch.uint8, 255),
    (torch.bool, True),
    (torch.bfloat16, 0.1),
    (torch.float32, float("nan")),
    (torch.float64, -1e300),
    (torch.complex64, 1 - 2j),
]


@given(lengths, st.sampled_from(PADS), st.sampled_from([(), (3,)]), st.integers(1, 9), st.booleans())
@settings(max_examples=60)
def test_padded_batches_hold_the_value_that_was_asked_for(counts, pad, item, batch_size, casts):
    dtype, value = pad
    rows = [random_tensor(dtype, (n, *item), k) for k, n in enumerate(counts)]
    ds = memload.from_arrays(x=memload.ragged(rows)).with_ragged("padded", pad_value=value)
    casts = casts and not dtype.is_complex
    cast = {"x": memload.Cast(torch.float64)} if casts else {}
    batches = [list(memload.FastLoader(one, batch_size, cast=cast)) for one in (ds, OneByOne(ds))]
    assert same(*batches)
    for number, batch in enumerate(batches[0]):
        wanted = rows[number * batch_size : (number + 1) * batch_size]
        full = torch.full((len(wanted), max(map(len, wanted)), *item), value, dtype=dtype)
        for row, place in zip(wanted, full, strict=True):
            place[: len(row)] = row
        if value != 2**62 + 1 and not dtype.is_complex:  # which torch's own takes as a double, or not at all
            assert same_tensor(full, pad_sequence(wanted, batch_first=True, padding_value=value))
        assert same_tensor(batch["x"].values, full.double() if casts else full)


def test_a_cast_with_constants_of_rows_that_differ_is_that_of_torch():
    ds = memload.from_arrays(x=memload.ragged([torch.arange(n, dtype=torch.int16) for n in (3, 0, 2)]))
    cast = memload.Cast(torch.float32, scale=2.0, offset=-1.0)
    assert next(iter(memload.FastLoader(ds, 3, cast={"x": cast})))["x"].values.tolist() == [-1, 1, 3, -1, 1]


def test_what_pads_rows_goes_with_the_dataset_and_its_casts():
    rows = [torch.full((n,), 200, dtype=torch.uint8) for n in (1, 3, 2, 2)]
    base = memload.from_arrays(x=memload.ragged(rows), y=memload.ragged([row.short() for row in rows]))
    ds = base.with_ragged(x=("padded", 7), y="padded", pad_value={"y": -100})
    assert same(
        list(memload.FastLoader(base, 2, ragged={"x": ("padded", 7), "y": ("padded", -100)})), list(DataLoader(ds, 2))
    )
    assert next(iter(memload.FastLoader(base, 2, ragged=("padded", 9))))["x"].values[0].tolist() == [200, 9, 9]
    for one in (ds.select([0, 1]), pickle.loads(pickle.dumps(ds)), ds.concat(ds), ds.map(lambda sample: sample)):
        batch = next(iter(memload.FastLoader(one, 2)))
        assert batch["x"].values.tolist() == [[200, 7, 7], [200] * 3]
        assert batch["y"].values[0].tolist() == [200, -100, -100]
    assert torch.equal(ds[0]["y"], torch.tensor([200], dtype=torch.int16))
    normed = memload.Cast(torch.float32, norm_removed=True)
    for cast in ({"x": normed}, {"y": normed}):
        native, stock = (next(iter(memload.FastLoader(one, 2, cast=cast))) for one in (ds, OneByOne(ds)))
        (name,) = cast
        assert same(native, stock)
        assert native[name].values[0, 1:].tolist() == [{"x": 7, "y": -100}[name]] * 2
    named = memload.concat({"a": ds, "b": ds})
    (group, _) = next(iter(memload.FastLoader(named.select([0, 5, 1]), 3, collate_fn=memload.group_collate)))
    assert group["x"].values.tolist() == [[200, 7, 7], [200] * 3]
    assert len(ds.concat(base.with_ragged("padded", pad_value={"x": np.int64(7), "y": -100.0}))) == 8
    with pytest.raises(ValueError, match=r'as "padded" in dataset 1, but .* as "padded" with 7'):
        ds.concat(base.with_ragged("padded", pad_value={"y": -100}))


def _shortened(sample):
    sample["x"] = sample["x"][: 1 + int(sample["number"]) % 3]
    return sample


def _shortened_first(pair):
    return type(pair).of((pair[0][: 1 + int(pair[1]) % 3], pair[1]), pair.forms)


def _shortened_inside(sample):
    return {"a": _shortened(sample["a"])}


def test_rows_of_one_length_are_padded_as_their_field_says_once_they_are_joined_otherwise():
    rows = [torch.full((n,), 5) for n in (3, 3, 3, 3, 5)]
    ds = memload.from_arrays(x=memload.ragged(rows), number=torch.arange(5)).with_ragged("padded", pad_value=-100)
    for mapped in (ds.map(_shortened), memload.MappedDataset(StackDataset(a=ds), _shortened_inside)):
        native = memload.FastLoader(mapped, 2)
        assert native.engine == "native"
        batches = list(native)
        assert same(batches, list(DataLoader(mapped, 2)))
        assert batches[0].get("a", batches[0])["x"].values.tolist() == [[5, -100], [5, 5]]
    pairs = ds.as_tuple()
    assert next(iter(memload.FastLoader(pairs.map(_shortened_first), 2)))[0].values.tolist() == [[5, -100], [5, 5]]
    for one in (ds, memload.concat({"a": ds, "b": ds})):
        joined = [*one.__getitems__([0, 1]), *one.__getitems__([4])]
        assert default_collate(joined)["x"].values[0].tolist() == [5, 5, 5, -100, -100]
    assert memload.group_collate(joined)[0]["x"].values[0].tolist() == [5, 5, 5, -100, -100]
    assert default_collate([*pairs.__getitems__([1]), pairs[4]])[0].values[0].tolist() == [5, 5, 5, -100, -100]


def test_items_made_anew_may_have_another_shape():
    batch = memload.Padded(torch.tensor([[1, 7, 7], [2, 3, 7]]), torch.tensor([1, 2]))
    made = with_values(batch, lambda items: torch.stack([items, -items], dim=-1).float())
    assert made.values.tolist() == [[[1, -1], [7, 7], [7, 7]], [[2, -2], [3, -3], [7, 7]]]
    nothing = memload.Padded(torch.zeros(2, 0), torch.tensor([0, 0]))
    assert with_values(nothing, torch.Tensor.double).values.dtype == torch.float64


def test_a_jagged_tensor_lies_in_the_slot_and_takes_part_in_torch():
    ds = memload.from_arrays(x=memload.ragged([torch.ones(3, 4), torch.ones(1, 4)])).only("x").with_ragged("jagged")
    (x,) = memload.FastLoader(ds, batch_size=2)
    lying = memload.FastLoader(ds.with_ragged("offsets"), batch_size=2)
    assert x.values().untyped_storage().nbytes() == next(iter(lying)).values.untyped_storage().nbytes()
    assert torch.equal((x * 2).values(), torch.full((4, 4), 2.0))


@pytest.mark.parametrize("form", ["offsets", "padded", "jagged"])
@pytest.mark.parametrize("layout", ["dict", "tuple", "only"])
def test_native_and_stock_loaders_give_the_same(form, layout):
    ds = sentences().with_ragged(form)
    ds = {"dict": ds, "tuple": ds.as_tuple("text", "tokens"), "only": ds.only("tokens")}[layout]
    native = memload.FastLoader(ds, 8, shuffle=True, generator=torch.Generator().manual_seed(1))
    stock = DataLoader(ds, 8, shuffle=True, generator=torch.Generator().manual_seed(1))
    assert native.engine == "native"
    pairs = list(zip(native, stock, strict=True))
    assert len(pairs) == 8
    assert all(same(one, other) for one, other in pairs)


@pytest.mark.parametrize("form", ["offsets", "padded", "jagged"])
@pytest.mark.parametrize("layout", ["dict", "tuple"])
def test_samples_are_collated_as_they_are_gathered(form, layout):
    ds = sentences().with_ragged(form)
    ds = ds if layout == "dict" else ds.as_tuple("text", "tokens")
    assert same(list(DataLoader(OneByOne(ds), 8)), list(memload.FastLoader(ds, 8)))
    assert isinstance(ds[0], dict if layout == "dict" else tuple)
    again = pickle.loads(pickle.dumps([ds[0], ds[1]]))
    assert same(default_collate(again), default_collate([ds[0], ds[1]]))


def test_whoever_looks_at_a_gathered_list_finds_samples():
    ds = sentences()
    for one in (ds, ds.as_tuple(), ds.only("tokens"), ds.only("text")):
        samples = one.__getitems__([4, 1, 9])
        assert len(samples) == 3
        for sample, row in zip(samples, (4, 1, 9), strict=True):
            parts = [sample, one[row]]
            if isinstance(sample, dict):
                parts = [list(part.values()) for part in parts]
            parts = [part if isinstance(part, list | tuple) else [part] for part in parts]
            assert all(x == y if isinstance(x, str) else torch.equal(x, y) for x, y in zip(*parts, strict=True))
    changed = ds.__getitems__([4, 1])
    changed[0]["tokens"] = changed[0]["tokens"][:1]
    assert default_collate(changed)["tokens"].lengths.tolist() == [1, len(ds[1]["tokens"])]


def test_wrapped_datasets_are_read_natively_and_agree_with_stock_loaders():
    ds = sentences()
    plain = memload.from_arrays(z=torch.arange(60))
    for wrapped in (Subset(ds, [5, 3, 3, 8]), ConcatDataset([ds, ds]), StackDataset(a=ds, b=plain)):
        native = memload.FastLoader(wrapped, 7)
        assert native.engine == "native"
        assert same(list(native), list(DataLoader(wrapped, 7)))


def test_a_torch_concat_of_tensors_is_left_to_torch_with_a_reason():
    ds = sentences().only("tokens")
    loader = memload.FastLoader(ConcatDataset([ds, ds]), 4)
    assert loader.engine == "torch"
    assert "memload.concat" in loader.why


@pytest.mark.parametrize("workers", [0, 2])
def test_stock_workers_hand_over_ragged_batches(workers):
    ds = sentences(24)
    for form in ("offsets", "padded"):
        loader = DataLoader(ds.with_ragged(form), 8, num_workers=workers)
        assert same(list(loader), list(memload.FastLoader(ds, 8, ragged=form)))


def test_a_dataset_travels_to_a_process_that_starts_afresh(tmp_path):
    ds = sentences(12)
    stored = memload.write(tmp_path / "set", ds)
    for one in (ds, stored, ds.select([5, 1, 5]), stored.select([5, 1, 5]).with_ragged(tokens="padded")):
        with multiprocessing.get_context("forkserver").Pool(1) as pool:
            found = pool.apply_async(all_samples, (one,)).get(timeout=MOST_SECONDS)
        assert found == all_samples(one)
        assert same(list(memload.FastLoader(pickle.loads(pickle.dumps(one)), 4)), list(memload.FastLoader(one, 4)))
        break  # one process shows it; the others are pickled here
    for one in (stored, ds.select([5, 1, 5]), stored.select([5, 1, 5]).with_ragged(tokens="padded"), ds.select([])):
        again = pickle.loads(pickle.dumps(one))
        assert all_samples(again) == all_samples(one)
        assert {name: f.signature for name, f in again.fields.items()} == {
            n: f.signature for n, f in one.fields.items()
        }


def test_a_pickled_selection_takes_only_its_rows_along():
    tokens = memload.ragged([torch.zeros(100_000, dtype=torch.int64), torch.arange(3)])
    ds = memload.from_arrays(tokens=tokens)
    assert len(pickle.dumps(ds.select([1, 1]))) < 5_000


def test_datasets_are_joined_cut_and_zipped():
    ds = sentences()
    joined = ds.select(range(5)).concat(ds.select([9, 2]))
    assert [row["text"] for row in joined.__getitems__(range(7))] == [ds[k]["text"] for k in (0, 1, 2, 3, 4, 9, 2)]
    train, valid = ds.split(0.8, seed=1)
    assert len(train) + len(valid) == 60
    assert train.nbytes + valid.nbytes == ds.nbytes
    zipped = memload.zip(words=ds.only("tokens"), y=ds.only("label"))
    assert same(zipped[7]["words"], ds[7]["tokens"])
    assert copy.copy(ds) is ds
    named = memload.concat({"a": ds, "b": ds})
    batch = next(iter(memload.FastLoader(named, 64)))
    assert batch["dataset_idx"].tolist() == [0] * 60 + [1] * 4
    assert same(next(iter(DataLoader(named, 64))), batch)


def test_groups_of_datasets_that_differ_have_ragged_fields():
    tokens = sentences(20).as_tuple("tokens", "text")
    a = memload.Dataset({"tokens": tokens.fields["tokens"], "text": tokens.fields["text"]})
    both = memload.concat({"a": a, "b": memload.from_arrays(y=torch.arange(10))})
    alike = memload.concat({"a": a, "b": a})
    for ds, form in [(both, "offsets"), (alike, "offsets"), (alike, "padded"), (alike, "jagged")]:
        if ds is alike:
            ds = memload.concat({"a": a.with_ragged(form), "b": a.with_ragged(form)})
        draw = {"shuffle": True, "collate_fn": memload.group_collate}
        native = memload.FastLoader(ds, 6, generator=torch.Generator().manual_seed(1), **draw)
        assert native.engine == "native"
        batches = list(native)
        for wrapped in (ds, OneByOne(ds)):
            stock = list(DataLoader(wrapped, 6, generator=torch.Generator().manual_seed(1), **draw))
            assert same(batches, stock)


def test_columns_of_other_forms_or_kinds_are_not_joined():
    ds, text = sentences(4).only("tokens"), sentences(4).only("text")
    raw = memload.from_arrays(text=memload.ragged([torch.zeros(1, dtype=torch.uint8)] * 4))
    with pytest.raises(ValueError, match=r'int64 \(None,\) as "padded" in dataset 1, but int64 \(None,\) in the first'):
        ds.concat(ds.with_ragged("padded"))
    with pytest.raises(ValueError, match=r"uint8 \(None,\) in dataset 1, but text \(None,\) in the first"):
        text.concat(raw.only("text"))


def test_mapped_samples_are_collated_as_the_base_is():
    ds = sentences()

    def shorter(sample):
        sample["tokens"] = sample["tokens"][:5] * 2
        return sample

    for base in (ds, ds.with_ragged("padded"), ds.as_tuple("tokens", "text")):
        fn = shorter if base.layout == "dict" else (lambda sample: sample)
        native = memload.FastLoader(base.map(fn), 8)
        assert native.engine == "native"
        assert same(list(native), list(DataLoader(base.map(fn), 8)))


def test_a_float32_view_converts_ragged_fields_on_either_engine():
    rows = [torch.arange(n, dtype=torch.uint8) for n in (3, 0, 5)]
    ds = memload.from_arrays(stim=memload.ragged(rows), name=["a", "b", "c"])
    for form in ("offsets", "padded"):
        view = memload.Float32View(ds.with_ragged(form), norm_removed=True)
        native = list(memload.FastLoader(view, 2))
        assert same(native, list(DataLoader(view, 2)))
        assert same(native, list(DataLoader(OneByOne(view), 2)))


def test_a_cast_behind_stock_machinery_leaves_padding_zero():
    rows = [torch.full((n,), 200, dtype=torch.uint8) for n in (1, 3)]
    casts = {"x": memload.Cast(torch.float32, norm_removed=True)}
    ds = memload.from_arrays(x=memload.ragged(rows), t=["a", "b"])
    for form in ("offsets", "padded", "jagged"):
        native = memload.FastLoader(ds, 2, cast=casts, ragged=form)
        stock = memload.FastLoader(OneByOne(ds.with_ragged(form)), 2, cast=casts)
        assert (native.engine, stock.engine) == ("native", "torch")
        assert same(list(native), list(stock))
    with pytest.raises(ValueError, match="'t' is text, which cannot be cast"):
        memload.FastLoader(ds, 2, cast={"t": memload.Cast(torch.float32)})


def test_texts_are_str_in_samples_and_lists_of_str_in_batches():
    texts = ["", "naïve", "日本語", "emoji 🙂", "a\0b"]
    ds = memload.from_arrays(text=texts)
    assert [ds[k]["text"] for k in range(5)] == texts
    assert next(iter(memload.FastLoader(ds, 5))) == {"text": texts}
    assert next(iter(memload.FastLoader(ds.only("text"), 5))) == texts
    assert next(iter(DataLoader(ds.only("text"), 5))) == texts
    assert next(iter(memload.FastLoader(ds.as_tuple(), 5))) == [texts]
    assert "text" in repr(ds)
    with pytest.raises(ValueError, match=r"field 'text': .* cannot be written as UTF-8"):
        memload.from_arrays(text=["\ud800"])


def test_bytes_that_are_no_text_raise_and_say_so():
    values = memload.from_arrays(x=memload.ragged([torch.tensor([0xFF, 0xFE], dtype=torch.uint8)])).fields["x"]
    ds = memload.Dataset({"x": RaggedField(values.dtype, values.shape, values.column, text=True)})
    with pytest.raises(memload.FormatError, match="a text is not UTF-8"):
        _ = ds[0]
    with pytest.raises(memload.FormatError, match="a text is not UTF-8"):
        next(iter(memload.FastLoader(ds, 1)))


@given(st.lists(st.integers(-3, 12), min_size=1, max_size=8))
@settings(max_examples=100)
def test_offsets_are_checked_whatever_they_are(offsets):
    values = torch.arange(8)
    sound = offsets[0] >= 0 and offsets[-1] <= 8 and sorted(offsets) == offsets
    if not sound:
        with pytest.raises(ValueError, match=r"field 'x': .*offset \d+ is -?\d+, which"):
            memload.from_arrays(x=memload.ragged(values, torch.tensor(offsets)))
    elif len(offsets) > 1:
        ds = memload.from_arrays(x=memload.ragged(values, torch.tensor(offsets)))
        for k in range(len(ds)):
            assert torch.equal(ds[k]["x"], values[offsets[k] : offsets[k + 1]])


def _flags():
    return memload.from_arrays(x=memload.ragged([torch.tensor([True])]))


def _cast_along(ds, channels):
    cast = memload.Cast(torch.float32, mean=[0.0] * 3, std=[1.0] * 3, channels=channels)
    return memload.FastLoader(ds, 2, cast={"s": cast})


def _spectrograms():
    return memload.from_arrays(s=memload.ragged([torch.rand(3, 2), torch.rand(3, 4)], axis=1))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: memload.ragged([]), ValueError, "a list of no rows has no dtype"),
        (lambda: memload.ragged(None), TypeError, "expected a list of rows, or values and offsets, got NoneType"),
        (
            lambda: memload.from_arrays(x=[b"ab", b"c"]),
            TypeError,
            "a list of bytes; give memload.ragged([numpy.frombuffer(",
        ),
        (lambda: memload.ragged([torch.zeros(2), torch.zeros(2, 3)]), ValueError, "row 1 is torch.float32 (2, 3)"),
        (lambda: memload.ragged([torch.zeros(2), torch.arange(2)]), TypeError, "row 1 is torch.int64 (2,)"),
        (lambda: memload.ragged([torch.tensor(1)]), ValueError, "no axis 0"),
        (lambda: memload.ragged([torch.zeros(2)], axis=2), ValueError, "axis 0 or 1"),
        (lambda: _from(torch.zeros(4), torch.tensor([0.0, 4.0])), TypeError, "offsets must be integers"),
        (lambda: _from(torch.zeros(4), torch.tensor([[0, 4]])), ValueError, "offsets must be int64 (rows + 1,)"),
        (lambda: _from(torch.zeros(4), torch.zeros(0, dtype=torch.int64)), ValueError, "with at least one entry"),
        (lambda: _from(torch.zeros(8)[::2], torch.tensor([0, 4])), ValueError, "gaps between their items"),
        (lambda: _from(torch.zeros(4), torch.tensor([0, 4]), axis=1), ValueError, "a second axis"),
        (lambda: _from(torch.zeros(4, 0), torch.tensor([0, 4])), ValueError, "items that have bytes"),
        (lambda: sentences().with_ragged(), ValueError, "takes one form"),
        (lambda: sentences().with_ragged("square"), ValueError, "got 'square'"),
        (lambda: sentences().with_ragged(label="padded"), ValueError, "all rows are int64 ()"),
        (lambda: sentences().with_ragged(text="padded"), ValueError, "a list of str"),
        (lambda: _spectrograms().with_ragged(s="padded"), ValueError, "(3, None), joined along their second axis"),
        (lambda: _spectrograms().with_ragged(s="padded"), ValueError, "ragged([x.T for x in rows]), whose rows are (N"),
        (lambda: _spectrograms().with_ragged("padded"), ValueError, "memload.ragged([x.T for x in rows])"),
        (lambda: _cast_along(_spectrograms(), -2), ValueError, "single items of the rows (3, None), behind the axis N"),
        (lambda: _cast_along(_spectrograms(), -2), ValueError, "whose rows are (None, 3), and give channels=-1"),
        (lambda: sentences().with_ragged("padded", pad_value=0.5), ValueError, "'tokens': pad_value 0.5 is no int64"),
        (lambda: sentences().with_ragged("padded", pad_value=2**63), ValueError, "is no int64: give one that rows"),
        (lambda: sentences().with_ragged("padded", pad_value=math.nan), ValueError, "pad_value nan is no int64: give"),
        (lambda: _flags().with_ragged("padded", pad_value=math.nan), ValueError, "'x': pad_value nan is no bool: give"),
        (lambda: sentences().with_ragged("padded", pad_value="x"), TypeError, "pad_value is a number, got a str"),
        (lambda: sentences().with_ragged("offsets", pad_value=1), ValueError, 'for fields whose form is "padded"'),
        (lambda: sentences().with_ragged(tokens="padded", pad_value={"label": 1}), ValueError, "'label' is not among"),
        (lambda: sentences().with_ragged(tokens=("jagged", 1)), TypeError, "got ('jagged', 1)"),
        (lambda: sentences().with_ragged(nothing="padded"), KeyError, "no field 'nothing'"),
        (lambda: sentences().only("label").with_ragged("padded"), ValueError, "there is no field whose rows differ"),
        (lambda: memload.FastLoader(Subset(sentences(), [1]), ragged="padded"), TypeError, "ds.with_ragged('padded')"),
        (lambda: memload.FastLoader(sentences(), ragged=3), TypeError, "one of ('offsets', 'padded', 'jagged')"),
        (lambda: RaggedField(torch.int32, (None,), sentences().fields["tokens"].column), ValueError, "of 4 bytes"),
        (lambda: RaggedField(torch.int64, (3,), sentences().fields["tokens"].column), ValueError, "(n, None, ...)"),
    ],
)
def test_what_cannot_be_is_refused_in_words(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


def _from(values, offsets, axis=0):
    return memload.from_arrays(x=memload.ragged(values, offsets, axis=axis))


def test_values_and_offsets_are_read_in_place():
    values, offsets = torch.arange(6), torch.tensor([0, 2, 6])
    ds = memload.from_arrays(x=memload.ragged(values, offsets))
    values[0] = 9
    assert ds[0]["x"].tolist() == [9, 1]
    offsets[1] = 7
    with pytest.raises(memload.ShardReadError, match="somebody has written to it"):
        _ = ds[0]
    offsets[1] = 3
    assert ds[0]["x"].tolist() == [9, 1, 2]


def test_a_batch_makes_a_dataset_again():
    batch = next(iter(memload.FastLoader(sentences(), 10)))
    ds = memload.from_arrays(tokens=batch["tokens"], text=batch["text"])
    assert all_samples(ds) == all_samples(sentences().select(range(10)))


def test_numpy_arrays_memmaps_and_small_integers_hold_ragged_rows(tmp_path):
    np.save(tmp_path / "values.npy", np.arange(12, dtype=np.float32).reshape(6, 2))
    np.save(tmp_path / "offsets.npy", np.array([0, 4, 4, 6]))
    values, offsets = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("values", "offsets"))
    ds = memload.from_arrays(x=memload.ragged(values, offsets))
    assert "values.npy" in repr(ds) or "in 2 files" in repr(ds)
    assert ds[2]["x"].tolist() == [[8, 9], [10, 11]]
    assert memload.from_arrays(x=memload.ragged(np.arange(3), np.array([0, 3], dtype=np.uint8)))[0]["x"].shape == (3,)


def test_values_in_a_file_and_offsets_in_memory_travel_as_what_they_are(tmp_path):
    np.save(tmp_path / "values.npy", np.arange(100_000))
    values = np.load(tmp_path / "values.npy", mmap_mode="r")
    ds = memload.from_arrays(x=memload.ragged(values, [0, 5, 99_990, 100_000]))
    packed = pickle.dumps(ds.select([2, 0, 2]))
    assert len(packed) < 5_000
    assert [row["x"].tolist() for row in map(pickle.loads(packed).__getitem__, range(2))] == [
        [*range(99_990, 100_000)],
        [0, 1, 2, 3, 4],
    ]


def test_slots_are_counted_and_grow_with_rows_that_repeat():
    ds = sentences(200).only("tokens")
    loader = memload.FastLoader(ds, 16, depth=2)
    lengths = sorted((len(ds[k]) for k in range(200)), reverse=True)
    most = sum(lengths[:16]) * 8 + 17 * 8
    assert most <= loader.nbytes / 3 <= most + 4096 + 64 + 16 * 8
    longest = max(range(200), key=lambda k: len(ds[k]))
    batches = list(memload.FastLoader(ds, batch_sampler=[[longest] * 500, [0, 1], [longest] * 500]))
    assert [len(batch.rows()) for batch in batches] == [500, 2, 500]
    assert all(torch.equal(row, ds[longest]) for row in batches[0].rows())


def test_batches_keep_their_memory_while_they_live():
    ds = sentences(400).only("tokens")
    kept = list(memload.FastLoader(ds, 8, shuffle=True, generator=torch.Generator().manual_seed(3)))
    gc.collect()
    stock = DataLoader(ds, 8, shuffle=True, generator=torch.Generator().manual_seed(3))
    assert all(same(one, other) for one, other in zip(kept, stock, strict=True))


def test_a_pass_is_taken_up_where_it_stopped():
    ds = sentences()
    whole = list(memload.FastLoader(ds, 8, shuffle=True, generator=torch.Generator().manual_seed(2)))
    loader = memload.FastLoader(ds, 8, shuffle=True, generator=torch.Generator().manual_seed(2))
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    loader = memload.FastLoader(ds, 8, shuffle=True, generator=torch.Generator().manual_seed(2))
    loader.load_state_dict(state)
    assert same(list(loader), whole[3:])


def test_batches_move_and_are_pinned_as_torch_does_it():
    from torch.utils.data._utils.pin_memory import pin_memory

    batch = next(iter(memload.FastLoader(sentences(), 4, ragged="padded")))
    assert same(batch["tokens"].to(torch.float32).to(torch.int64), batch["tokens"])
    assert type(batch["tokens"].to("meta")) is memload.Padded
    if torch.accelerator.is_available():
        assert pin_memory(batch)["tokens"].values.is_pinned()
    ragged = next(iter(memload.FastLoader(sentences(), 4)))["tokens"]
    assert ragged.to(torch.float64).values.dtype == torch.float64
    assert ragged.to(torch.float64).offsets.dtype == torch.int64
    _, edges = graphs()
    joined = next(iter(memload.FastLoader(memload.from_arrays(e=memload.ragged(edges, axis=1)), 4)))["e"]
    assert joined.to(torch.int32).axis == 1
    edged = memload.from_arrays(e=memload.ragged(edges, axis=1))
    assert edged.with_ragged("offsets").fields["e"].signature == edged.fields["e"].signature
    assert isinstance(joined, memload.Ragged)


def test_items_are_increased_by_the_rows_before_as_graphs_need_it():
    x, edges = graphs()
    ds = memload.from_arrays(x=memload.ragged(x), e=memload.ragged(edges, axis=1))
    column = ds.fields["e"].column.counted_by(ds.fields["x"].column)
    counted = RaggedField(torch.int64, (2, None), column).select(np.array([4, 2, 9, 2]))
    found = counted.gather(np.array([3, 0, 1])).values
    nodes = [len(x[row]) for row in (2, 4, 2)]
    wanted = torch.cat([edges[2], edges[4] + nodes[0], edges[2] + nodes[0] + nodes[1]], dim=1)
    assert torch.equal(found, wanted)


def test_a_column_says_what_it_is():
    column = sentences(10).fields["tokens"].column
    assert column.rows == 10
    assert column.items == int(column.lengths(np.arange(10)).sum())
    assert column.longest(1) == int(column.lengths(np.arange(10)).max())
    with pytest.raises(IndexError, match="row 10 is not one of the 10 rows"):
        column.lengths([10])
    with pytest.raises(ValueError, match="do not fill 3 bytes"):
        column.gather([0], torch.empty(3, dtype=torch.uint8).data_ptr(), 3)
    with pytest.raises(ValueError, match="make no windows"):
        _core.Windows(column, [0], [(0, 3, 1)])


def _summed(sample):
    sample["tokens"] = sample["tokens"].sum()
    return sample


def test_a_function_that_makes_one_number_of_a_row_gives_a_tensor_of_them():
    ds = memload.from_arrays(tokens=memload.ragged([torch.arange(3), torch.arange(2)])).map(_summed)
    for loader in (memload.FastLoader(ds, batch_size=2), torch.utils.data.DataLoader(ds, batch_size=2)):
        (batch,) = loader
        assert batch["tokens"].tolist() == [3, 1]


@pytest.mark.parametrize("stored", [False, True])
def test_lengths_are_those_of_the_rows_selected_and_fill_batches_of_a_budget(stored, tmp_path):
    counts = [3, 0, 7, 1, 5, 2]
    ds = memload.from_arrays(
        x=memload.ragged([torch.ones(n, 2) for n in counts]),
        edges=memload.ragged([torch.ones(2, n) for n in counts], axis=1),
        text=["ü", "", "abc", "d", "e", "f"],
        label=torch.arange(6),
    )
    if stored:
        ds = memload.write(tmp_path / "set", ds, progress=False, codec="zstd")
    for name in ("x", "edges"):
        assert ds.lengths(name).dtype == torch.int64
        assert ds.lengths(name).tolist() == counts
    assert ds.lengths("text").tolist() == [2, 0, 3, 1, 1, 1]
    part = memload.concat([ds.select([4, 2, 2]), ds.select([1])])
    assert part.lengths("x").tolist() == [5, 7, 7, 0]
    sampler = memload.BudgetBatchSampler(part.lengths("x"), budget=14, padded=True)
    batches = list(memload.FastLoader(part, batch_sampler=sampler, ragged={"x": "padded"}))
    assert sum(len(batch["label"]) for batch in batches) == 4
    assert max(batch["x"].values[..., 0].numel() for batch in batches) <= 14


def test_lengths_of_rows_of_one_shape_are_refused():
    ds = memload.from_arrays(x=torch.zeros(4, 3))
    with pytest.raises(
        ValueError, match=re.escape("all rows of the field 'x' have the shape (3,): they do not differ")
    ):
        ds.lengths("x")
    with pytest.raises(KeyError, match="no field 'y'"):
        ds.lengths("y")

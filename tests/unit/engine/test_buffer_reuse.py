"""Large results of torch's casts and arithmetic in a transform: the same as ever, in memory that is used again."""

import itertools
import warnings

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from hypothesis import given, settings
from hypothesis import strategies as st

import memload
from memload.engine.collating import FieldSlots
from memload.engine.transforms.buffer_reuse import BufferReuse
from memload.engine.transforms.seeding import Drawing, PassSeed
from memload.engine.transforms.transform_pipeline import TransformPipeline

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
CASTS = [
    torch.Tensor.float,
    torch.Tensor.half,
    torch.Tensor.bfloat16,
    torch.Tensor.double,
    *(lambda x, dtype=dtype: x.to(dtype) for dtype in DTYPES),
    lambda x: x.to(dtype=torch.float32),
    lambda x: x.to(torch.float32, copy=True),
    lambda x: x.to(torch.float32, memory_format=torch.contiguous_format),
    lambda x: x.to("cpu", torch.float64),
]
ARITHMETIC = [
    *(torch.add, torch.sub, torch.mul, torch.div, torch.Tensor.true_divide),
    *(lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y, lambda x, y: y * x),
    *(lambda x, y: torch.add(x, y, alpha=2), lambda x, y: torch.div(x, y, rounding_mode="floor")),
    *(lambda x, y: torch.sub(x, other=y), lambda x, y: torch.add(input=x, other=y)),
]


@st.composite
def tensors(draw, dims=4):
    """Tensors of any order of dimensions, some of which are parts of larger ones."""
    shape = draw(st.lists(st.integers(0, 4), max_size=dims))
    x = torch.arange(int(torch.Size(shape).numel())).view(shape).to(draw(st.sampled_from(DTYPES)))
    x = x.permute(draw(st.permutations(range(len(shape)))))
    part = draw(st.integers(0, 3))
    return x[..., :part] if x.dim() and draw(st.booleans()) else x


@st.composite
def others(draw, x):
    """What may stand beside it: numbers, and tensors, most of which are broadcast to it."""
    kind = draw(st.sampled_from(["number", "like", "any"]))
    if kind == "number":
        return draw(st.sampled_from([2, 0.5, True, 1j]))
    if kind == "any":
        return draw(tensors())
    sides = [draw(st.sampled_from([1, side])) for side in x.shape][draw(st.integers(0, x.dim())) :]
    return torch.ones(sides, dtype=draw(st.sampled_from(DTYPES)))


def outcome(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            y = make()
        except (RuntimeError, TypeError) as error:
            return type(error), str(error)
    return y.dtype, y.shape, y.stride(), y.is_contiguous(), y.requires_grad, y._base is None, repr(y.tolist())


def in_a_transform(make):
    with torch.no_grad(), BufferReuse(FieldSlots(4), least=1):
        return make()


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_results_are_those_of_torch_in_value_dtype_and_strides(data):
    x = data.draw(tensors())
    if data.draw(st.booleans()):
        cast = data.draw(st.sampled_from(CASTS))
        make = lambda: cast(x)  # noqa: E731
    else:
        y, function = data.draw(others(x)), data.draw(st.sampled_from(ARITHMETIC))
        make = lambda: function(x, y)  # noqa: E731
    before = x.clone()
    assert outcome(lambda: in_a_transform(make)) == outcome(make)
    assert torch.equal(x, before)


def test_calls_with_more_arguments_are_torchs_own():
    x = torch.arange(6).view(2, 3)
    for cast in (lambda: x.to("cpu", torch.float64), lambda: x.to(torch.float32, False, True), lambda: x.to(x)):
        assert outcome(lambda cast=cast: in_a_transform(cast)) == outcome(cast)


def test_memory_is_used_again_when_nobody_sees_it_and_never_before():
    x = torch.zeros(1 << 18, dtype=torch.uint8)
    with BufferReuse(FieldSlots(2)):
        first = x.float()
        place = first.data_ptr()
        view = first[5:]
        del first
        second = x.float().data_ptr()
        assert second != place
        del view
        assert {x.float().data_ptr() for _ in range(9)} <= {place, second}
        assert (x.float() - 1).data_ptr() in {place, second}


def test_small_tensors_and_those_that_are_watched_are_torchs_own():
    class Lends:
        def take(self, field, nbytes):
            raise AssertionError("memory was asked for")

    big, small = torch.zeros(1 << 18), torch.zeros(8)
    with BufferReuse(Lends()):
        assert (small + 1).sum() == 8
        assert (big.requires_grad_() * 2).requires_grad
        big.requires_grad_(False)
        assert torch.vmap(lambda row: row * 2)(big.view(2, -1)).shape == (2, 1 << 17)
        assert torch.func.grad(lambda x: (x * 2).sum())(big).sum() == 2 * len(big)
        assert torch.vmap(lambda y: big - y)(small).shape == (8, len(big))
        with forward_ad.dual_level():
            assert forward_ad.unpack_dual(forward_ad.make_dual(big, big) * 2).tangent is not None
        with pytest.raises(AssertionError, match="asked for"):
            big.double()


def test_batches_of_a_loader_lie_in_memory_used_again_from_pass_to_pass():
    ds = memload.from_arrays(x=torch.arange(12, dtype=torch.uint8).view(12, 1).expand(12, 1 << 18).contiguous())
    loader = memload.FastLoader(
        ds, 2, batch_transform=lambda batch: batch["x"].float() / 2, persistent_workers=True, num_workers=1
    )
    places = set()
    for _, (k, batch) in itertools.product(range(3), enumerate(loader)):
        assert batch[:, -1].tolist() == [k, k + 0.5]
        places.add(batch.data_ptr())
    assert len(places) <= 7
    kept = list(loader)
    assert [batch[0, 0].item() for batch in kept] == [0, 1, 2, 3, 4, 5]
    assert len({batch.data_ptr() for batch in kept}) == 6


def test_large_samples_of_functions_that_draw_nothing_lie_in_memory_that_is_used_again():
    taken = []

    class Noted(FieldSlots):
        def take(self, field, nbytes):
            taken.append(nbytes)
            return super().take(field, nbytes)

    def cast(side):
        taken.clear()
        slots, rows = Noted(4), torch.arange(2 * side, dtype=torch.uint8).view(2, side)
        transform_pipeline = TransformPipeline((Drawing(lambda row: row.float()),), {}, None)
        assert transform_pipeline.apply(rows, np.arange(2), PassSeed(0), BufferReuse(slots), slots).equal(rows.float())
        return sorted(taken)

    assert cast(1 << 18) == [1 << 20, 1 << 20, 1 << 21], "two samples, and the batch"
    assert cast(1 << 10) == [1 << 13], "what is small is not looked at"

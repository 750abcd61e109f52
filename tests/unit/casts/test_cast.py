"""The cast: all inputs, all instruction sets, all layouts, against torch's own operations."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import run
from torch.utils.data import ChainDataset, Dataset

from memload import _core
from memload.casts.rule import Cast
from memload.dataset.float32_view import Float32View
from memload.device import cuda_module
from memload.device.cast_stim import cast_stim
from memload.dtypes import code_of

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
PIXELS = torch.arange(256, dtype=torch.uint8)
ISAS = _core.isas()


def bits(x: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, so that -0.0 differs from 0.0 and a NaN equals itself."""
    return x.contiguous().view(-1).view(torch.uint8)


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal in dtype, shape, strides and every bit."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.stride() == expected.stride()
    assert torch.equal(bits(got), bits(expected))


def forced(x: torch.Tensor, to: torch.dtype, norm_removed: bool, isa: str, streaming: bool) -> torch.Tensor:
    """The cast through one instruction set."""
    out = torch.empty(x.numel(), dtype=to)
    codes = code_of(x.dtype), code_of(to)
    _core.cast(x.data_ptr(), out.data_ptr(), x.numel(), *codes, norm_removed, isa, streaming)
    return out


def reference(x: torch.Tensor, norm_removed: bool, dtype: torch.dtype) -> torch.Tensor:
    """The rule as its users write it."""
    y = x.to(dtype)
    return (y - 127) / 255.0 if norm_removed and x.dtype == torch.uint8 else y


def same_but_for_nan_bits(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(got.isnan(), expected.isnan()) and torch.equal(
        bits(got.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)),
        bits(expected.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)),
    )


every_path = pytest.mark.parametrize(
    ("isa", "streaming"), [(isa, streaming) for isa in ISAS for streaming in (False, True)]
)
every_rule = pytest.mark.parametrize(
    ("dtype", "norm_removed"), [(dtype, norm) for dtype in DTYPES for norm in (False, True)]
)


@every_path
@every_rule
def test_all_256_pixels_have_the_bits_of_the_reference(
    isa: str, streaming: bool, dtype: torch.dtype, norm_removed: bool
) -> None:
    pixels = PIXELS.repeat(3)
    assert_same(forced(pixels, dtype, norm_removed, isa, streaming), reference(pixels, norm_removed, dtype))


@every_path
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16, torch.int16])
def test_all_65536_inputs_of_two_bytes_convert_as_torch_converts_them(
    isa: str, streaming: bool, dtype: torch.dtype, source: torch.dtype
) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(source)
    assert same_but_for_nan_bits(forced(x, dtype, False, isa, streaming), x.to(dtype))


def float_patterns() -> torch.Tensor:
    """Every sign, exponent and leading digits, followed by what makes and breaks ties of f16 and bf16."""
    top = torch.arange(0, 2**16, 3, dtype=torch.int64) << 16
    low = torch.tensor([0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    return (top[:, None] | low).flatten().to(torch.uint32).view(torch.float32)


@every_path
@pytest.mark.parametrize("dtype", DTYPES)
def test_floats_round_as_torch_rounds_them(isa: str, streaming: bool, dtype: torch.dtype) -> None:
    x = float_patterns()
    assert same_but_for_nan_bits(forced(x, dtype, False, isa, streaming), x.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("source", [torch.int8, torch.int32, torch.int64, torch.float64])
def test_wider_inputs_round_as_torch_rounds_them(dtype: torch.dtype, source: torch.dtype) -> None:
    powers = 2 ** torch.arange(0, 62, dtype=torch.int64)
    integers = torch.cat([powers, powers + 1, powers - 1, 3 * powers // 2 + 1, -powers, 65519 + torch.arange(3)])
    x = (integers.to(source) / 3e9 if source.is_floating_point else integers.to(source)).contiguous()
    assert same_but_for_nan_bits(forced(x, dtype, False, ISAS[-1], False), x.to(dtype))


@pytest.mark.parametrize("isa", ISAS)
def test_a_nan_as_bfloat16_is_7fc0_on_every_instruction_set(isa: str) -> None:
    x = torch.tensor([torch.nan, -torch.nan] * 50)
    assert set(forced(x, torch.bfloat16, False, isa, False).view(torch.int16).tolist()) == {0x7FC0}


@every_rule
def test_apply_is_the_reference(dtype: torch.dtype, norm_removed: bool) -> None:
    assert_same(Cast(dtype, norm_removed).apply(PIXELS), reference(PIXELS, norm_removed, dtype))


LAYOUTS = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(3, 1, 0, 2),
    "every second": lambda x: x[..., ::2],
    "every second, permuted": lambda x: x[..., ::2].permute(2, 0, 3, 1),
    "channels_last, cropped": lambda x: x.contiguous(memory_format=torch.channels_last)[:, :, 1:, 1:],
    "misaligned": lambda x: x.flatten()[1:],
    "expanded": lambda x: x[:, :1].expand(-1, 4, -1, -1),
    "size one with odd strides": lambda x: x[:1].as_strided((1, 3, 5), (77, 5, 1)),
    "0-dim": lambda x: x[0, 0, 0, 0],
    "empty": lambda x: x[:0],
    "empty and strided": lambda x: x[:, :, :0, ::2],
}


@pytest.mark.parametrize("norm_removed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_values_and_strides_of_to(layout: str, dtype: torch.dtype, norm_removed: bool) -> None:
    x = LAYOUTS[layout](torch.randint(0, 256, (4, 3, 10, 7), dtype=torch.uint8))
    got = cast_stim(x, norm_removed, dtype)
    assert got.stride() == x.to(dtype).stride()
    assert torch.equal(got, reference(x, norm_removed, dtype))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_strided_view_is_cast_as_its_copy(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), max_size=4), label="shape")
    order = data.draw(st.permutations(range(len(shape))), label="order")
    step = data.draw(st.integers(1, 3), label="step")
    x = torch.randint(0, 256, shape, dtype=torch.uint8).permute(order)
    x = x[..., ::step] if shape else x
    got = cast_stim(x, True, torch.bfloat16)
    assert got.stride() == x.to(torch.bfloat16).stride()
    assert torch.equal(got, reference(x, True, torch.bfloat16))


def test_a_cast_large_enough_for_threads_and_streaming_stores_is_exact() -> None:
    x = torch.randint(0, 256, (70_000_001,), dtype=torch.uint8)
    got = cast_stim(x, True, torch.bfloat16)
    table = reference(PIXELS, True, torch.bfloat16)
    for part, pixels in zip(got.split(10_000_000), x.split(10_000_000), strict=True):
        assert torch.equal(part, table[pixels.int()])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_out_is_filled_and_returned_whatever_its_strides(layout: str) -> None:
    x = torch.randint(0, 256, (4, 3, 10, 7), dtype=torch.uint8)
    for source, out_like in itertools.product((x, x.flip(0)), ("contiguous", layout)):
        source = LAYOUTS[layout](source)
        out = torch.full((*source.shape, 2), torch.nan, dtype=torch.float16)[..., 0]  # not dense
        if out_like == layout:
            out = torch.full(source.shape, torch.nan, dtype=torch.float16).as_strided(source.shape, _row_major(source))
        assert cast_stim(source, True, torch.float16, out=out) is out
        assert torch.equal(out, reference(source, True, torch.float16))


def _row_major(x: torch.Tensor) -> tuple[int, ...]:
    return torch.empty(x.shape).stride()


def test_out_of_a_floating_input_is_only_converted() -> None:
    x = torch.tensor([1.0, 300.5])
    out = torch.empty(2, dtype=torch.bfloat16)
    assert cast_stim(x, True, torch.bfloat16, out=out) is out
    assert torch.equal(out, x.bfloat16())


@pytest.mark.parametrize(
    ("out", "complaint"),
    [
        (torch.empty(3), r"its shape is \(3,\), the result's is \(2,\)"),
        (torch.empty(2, dtype=torch.float64), r"its dtype is torch.float64, the result's is torch.float32"),
        (torch.empty(2, device="meta"), r"its device is meta, the result's is cpu"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out: torch.Tensor, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        cast_stim(PIXELS[:2], False, out=out)


def test_an_out_that_shares_memory_with_the_pixels_is_refused() -> None:
    memory = torch.zeros(16)
    with pytest.raises(ValueError, match="shares memory"):
        cast_stim(memory.view(torch.uint8)[:16], False, out=memory)
    array = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match="shares memory"):  # two storages that begin at two places
        cast_stim(torch.from_numpy(array[4:8]), False, out=torch.from_numpy(array.view(np.float32)))


def test_an_out_may_be_another_part_of_one_buffer() -> None:
    memory = torch.arange(20, dtype=torch.uint8)
    assert cast_stim(memory[:4], False, out=memory[4:].view(torch.float32)).tolist() == [0, 1, 2, 3]


def test_an_out_that_requires_a_gradient_is_written_to_as_by_copy() -> None:
    leaf = torch.full((2,), 5.0, requires_grad=True)
    for out in (leaf, leaf[:2]):
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            cast_stim(PIXELS[:2], False, out=out)
    assert leaf.tolist() == [5, 5]
    with torch.no_grad():
        assert cast_stim(PIXELS[:2], False, out=leaf) is leaf
    assert leaf.tolist() == PIXELS[:2].tolist()
    made = leaf * 3
    (cast_stim(PIXELS[:2], False, out=made) * made).sum().backward()
    assert leaf.grad.tolist() == [0, 0]  # what was written over it does not come from the leaf


@pytest.mark.parametrize("x", [np.zeros(3, np.uint8), [1], None])
def test_what_is_no_tensor_is_refused_by_its_kind(x: Any) -> None:
    with pytest.raises(TypeError, match=f"takes a tensor, got {type(x).__name__}"):
        cast_stim(x, True)
    if x is not None:
        with pytest.raises(TypeError, match=f"takes out= as a tensor, got {type(x).__name__}"):
            cast_stim(PIXELS, True, out=x)


def test_a_view_of_an_iterable_dataset_is_refused_at_birth() -> None:
    with pytest.raises(TypeError, match="read by index; ChainDataset is iterable"):
        Float32View(ChainDataset([]), True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64, torch.float8_e5m2, "flaot32", None])
def test_a_target_that_is_no_cast_is_refused_with_the_choice(dtype: Any) -> None:
    for attempt in (lambda: Cast(dtype), lambda: cast_stim(PIXELS, True, dtype)):
        with pytest.raises(TypeError, match=r"dtypes torch\.bfloat16, torch\.float16, torch\.float32, torch\.float64"):
            attempt()


def test_a_norm_that_is_no_bool_is_refused() -> None:
    with pytest.raises(TypeError, match="norm_removed is True or False; got 1"):
        Cast(torch.float32, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.int16, torch.bool, torch.complex64])
def test_pixels_that_are_neither_uint8_nor_floating_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"uint8 or floating tensors, got {dtype}"):
        cast_stim(torch.zeros(2, dtype=dtype), False)


def test_sparse_pixels_are_refused() -> None:
    with pytest.raises(ValueError, match="to_dense"):
        cast_stim(torch.zeros(2, 2, dtype=torch.uint8).to_sparse(), False)


def test_a_complex_field_is_refused_by_apply() -> None:
    with pytest.raises(TypeError, match=r"x\.real"):
        Cast(torch.float32).apply(torch.zeros(1, dtype=torch.complex64))


def test_the_core_refuses_a_misaligned_destination_and_an_unknown_instruction_set() -> None:
    out = torch.empty(8)
    with pytest.raises(ValueError, match="not aligned"):
        _core.cast(PIXELS.data_ptr(), out.data_ptr() + 1, 4, "U8", "F32")
    with pytest.raises(ValueError, match="sse9"):
        _core.cast(PIXELS.data_ptr(), out.data_ptr(), 4, "U8", "F32", isa="sse9")
    with pytest.raises(ValueError, match="I16"):
        _core.cast(PIXELS.data_ptr(), out.data_ptr(), 4, "U8", "I16")


@every_path
def test_copy_moves_bytes_as_they_are(isa: str, streaming: bool) -> None:
    x = torch.randint(0, 256, (10_001,), dtype=torch.uint8)
    out = torch.zeros_like(x)
    _core.copy(x.data_ptr() + 1, out.data_ptr() + 1, 10_000, isa, streaming)
    assert torch.equal(out[1:], x[1:])
    assert out[0] == 0


def test_a_floating_input_is_converted_never_normalised_and_passes_its_gradient() -> None:
    x = torch.tensor([0.25, 130.0], requires_grad=True)
    y = cast_stim(x, True, torch.float64)
    assert torch.equal(y, x.double())
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones(2))
    assert cast_stim(x, True, torch.float32) is x


def test_pixels_need_no_gradient() -> None:
    assert not cast_stim(PIXELS, True).requires_grad


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "every second, permuted", "empty", "0-dim"])
def test_the_operations_pass_opcheck(layout: str) -> None:
    x = LAYOUTS[layout](torch.randint(0, 256, (4, 3, 10, 7), dtype=torch.uint8))
    torch.library.opcheck(torch.ops.memload.cast_stim.default, (x, True, torch.bfloat16))
    torch.library.opcheck(torch.ops.memload.cast_stim_out.default, (x, True, torch.empty(x.shape)))


@pytest.mark.filterwarnings("ignore")  # the compiler's own deprecations
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_torch_compile_takes_it_without_a_graph_break(backend: str) -> None:
    def step(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        cast_stim(x, True, torch.bfloat16, out=out)
        return cast_stim(x * 1, True, torch.bfloat16) + out

    x = torch.randint(0, 256, (3, 5), dtype=torch.uint8)
    got = torch.compile(step, fullgraph=True, backend=backend)(x, torch.empty(3, 5, dtype=torch.bfloat16))
    assert torch.equal(got, 2 * reference(x, True, torch.bfloat16))


def test_a_meta_tensor_gives_shape_dtype_and_strides() -> None:
    x = torch.empty(2, 3, 4, 5, dtype=torch.uint8, device="meta").contiguous(memory_format=torch.channels_last)
    got = cast_stim(x, True, torch.float16)
    assert (got.device.type, got.dtype, got.stride()) == ("meta", torch.float16, x.stride())


def test_without_a_device_the_state_says_so_or_names_the_missing_module() -> None:
    state = cuda_module.cuda_state()
    if torch.cuda.is_available():
        assert state.usable or state.reason
        return
    assert not state.usable
    assert "no CUDA device" in state.reason or "built when nvcc is found" in state.reason


def test_the_module_is_asked_about_a_device_that_torch_has_made_current(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    @contextlib.contextmanager
    def current(device: int) -> Iterator[None]:
        done.append(f"{device} is current")
        yield
        done.append("the one before is")

    def asked(device: int) -> str:
        done.append(f"asked about {device}")
        return ""

    monkeypatch.setattr(torch.cuda, "device", current)  # there is no GPU to ask
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(cuda_module, "cuda_module", lambda: SimpleNamespace(unusable_reason=asked))
    assert cuda_module._unusable_reason.__wrapped__(1) == ""
    assert done == ["1 is current", "asked about 1", "the one before is"]


def test_the_fallback_warns_once_for_each_reason() -> None:
    cuda_module.warn_of_fallback.cache_clear()
    with pytest.warns(RuntimeWarning, match="torch operations.*the driver is old"):
        cuda_module.warn_of_fallback("the driver is old")
    cuda_module.warn_of_fallback("the driver is old")
    with pytest.warns(RuntimeWarning, match="no module"):
        cuda_module.warn_of_fallback("no module")


def a_sample(stim: torch.dtype = torch.uint8, **extra: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"stim": PIXELS.reshape(4, 64).to(stim), "robs": torch.tensor([1, 2], dtype=torch.int16), **extra}


@pytest.mark.parametrize("norm_removed", [False, True])
@pytest.mark.parametrize(("float16", "target"), [(False, torch.float32), (True, torch.bfloat16)])
def test_the_view_casts_stim_and_converts_robs_and_behavior(
    norm_removed: bool, float16: bool, target: torch.dtype
) -> None:
    base = [a_sample(), a_sample(behavior=torch.tensor([0.1], dtype=torch.float64), trial=torch.tensor(7))]
    view = Float32View(base, norm_removed, float16)
    assert len(view) == 2
    assert set(view[0]) == {"stim", "robs"}
    assert_same(view[1]["stim"], reference(base[1]["stim"], norm_removed, target))
    assert_same(view[1]["robs"], base[1]["robs"].to(target))
    assert_same(view[1]["behavior"], base[1]["behavior"].to(target))
    assert view[1]["trial"] is base[1]["trial"]


def test_the_view_only_converts_a_floating_stim() -> None:
    view = Float32View([a_sample(torch.float64)], norm_removed=True)
    assert torch.equal(view[0]["stim"], PIXELS.reshape(4, 64).float())


def test_the_view_leaves_the_samples_of_its_base_alone() -> None:
    base = [a_sample()]
    Float32View(base, norm_removed=True)[0]
    assert base[0]["stim"].dtype == torch.uint8
    assert base[0]["robs"].dtype == torch.int16


class Movie(Dataset[dict[str, Any]]):
    """A plain map-style dataset that yields numpy arrays."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"stim": PIXELS[index : index + 2].numpy(), "robs": float(index)}


def test_the_view_works_under_the_stock_loader() -> None:
    batch = next(iter(torch.utils.data.DataLoader(Float32View(Movie(), norm_removed=True), batch_size=3)))
    expected = reference(torch.tensor([[0, 1], [1, 2], [2, 3]], dtype=torch.uint8), True, torch.float32)
    assert torch.equal(batch["stim"], expected)
    assert torch.equal(batch["robs"], torch.tensor([0.0, 1.0, 2.0]))


@given(
    norm_removed=st.booleans(),
    float16=st.booleans(),
    stim=st.sampled_from([torch.uint8, torch.float16, torch.float32, torch.float64]),
    behavior=st.booleans(),
)
@settings(deadline=None)
def test_the_rules_of_the_view_are_what_it_does(
    norm_removed: bool, float16: bool, stim: torch.dtype, behavior: bool
) -> None:
    sample = a_sample(stim, **({"behavior": torch.tensor([3], dtype=torch.uint8)} if behavior else {}))
    view = Float32View([sample], norm_removed, float16)
    rules = view.rules(sample)
    assert set(rules) == set(sample)
    for name, rule in rules.items():
        assert_same(view[0][name], rule.apply(sample[name]))


def test_the_view_says_what_is_wrong_with_a_sample() -> None:
    with pytest.raises(KeyError, match=r"a field .{1,2}stim.*the fields there are: .{1,2}robs.*field=.stim"):
        Float32View([{"robs": torch.zeros(1)}], norm_removed=True)[0]
    with pytest.raises(TypeError, match="sample 0 is a tuple"):
        Float32View([(torch.zeros(1),)], norm_removed=True)[0]
    with pytest.raises(TypeError, match="uint8 or floating 'stim', got int16"):
        Float32View([a_sample(torch.int16)], norm_removed=True)[0]
    with pytest.raises(TypeError, match="float16 is True or False"):
        Float32View([], norm_removed=True, float16=1)  # type: ignore[arg-type]


SAMPLE_OF_A_VIEW = """
import sys, torch, memload
view = memload.Float32View([{"stim": torch.full((2, 3), 254, dtype=torch.uint8)}], norm_removed=True)
print(view[0]["stim"].dtype, "torch._dynamo" in sys.modules)
"""


def test_a_sample_of_the_view_does_not_import_the_compiler_of_torch() -> None:
    # It would take each worker process seconds.
    done = run(SAMPLE_OF_A_VIEW)
    assert done.out == ["torch.float32 False"], done.err

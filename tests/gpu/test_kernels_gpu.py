"""The kernels for casts, rows, windows and images on a CUDA device.

One H200 has run them, before the loads of rows ended at lines of 128 bytes.

The naive reference of each is `Cast.apply` of what torch's own indexing gives, on the CPU.
"""

import itertools

import pytest
import torch

from memload import Augment, Cast
from memload.device.casting import cast_on_device
from memload.device.cuda_module import cuda_state
from memload.device.gathering import expand_windows, gather_rows

pytestmark = pytest.mark.gpu

INPUTS = [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.float16, torch.float32]
TARGETS = [torch.bfloat16, torch.float16, torch.float32]
COLOURS = {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
ELEMENTWISE = [{}, {"norm_removed": True}, {"scale": 1 / 300, "offset": 0.25}, {"channels": -1, **COLOURS}]
PLACED = [
    {"channels": -1, "layout": "NCHW"},
    {"channels": -1, "layout": "NCHW", "augment": Augment((17, 14), 0.5), **COLOURS},
    {"channels": -1, "layout": "channels_last", "augment": Augment((17, 14), 0.5), **COLOURS},
    {"channels": -1, "augment": Augment(None, 1.0)},
]


def values(dtype, shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) * 50).to(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max + 1, shape, generator=generator).to(dtype)


def plain(x):
    """The same bits in a dtype with which every torch does all there is to do."""
    return x.view(torch.int16) if x.dtype == torch.uint16 else x


def indexed(stored, numbers):
    found = plain(stored)[numbers.reshape(-1)].view(stored.dtype)
    return found.view(*numbers.shape, *stored.shape[1:])


def strides(x):
    """The strides of the axes that have more than one place; those of the others say nothing."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def same(got, expected):
    assert got.is_cuda
    assert (got.dtype, got.shape, strides(got)) == (expected.dtype, expected.shape, strides(expected))
    return torch.equal(plain(got.cpu()), plain(expected))


def test_the_kernels_serve_this_device():
    assert cuda_state().usable, cuda_state().reason


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", INPUTS, ids=str)
def test_every_cast_has_the_bits_of_the_cpu(dtype, target):
    for settings, shape in itertools.product(ELEMENTWISE, [(5, 19, 21, 3), (3, 3), (2, 1000, 3), (1, 3)]):
        rule, x = Cast(target, **settings), values(dtype, shape)
        assert same(cast_on_device(x.cuda(), rule), rule.apply(x)), (settings, shape)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float16], ids=str)
def test_all_values_of_the_narrow_types_have_the_bits_of_the_cpu(dtype):
    bits = torch.arange(2 ** (8 * dtype.itemsize), dtype=torch.int32)
    x = bits.to(torch.uint8) if dtype == torch.uint8 else bits.to(torch.uint16).view(dtype)
    for target in TARGETS:
        rule = Cast(target, scale=0.1, offset=-3.7, mean=1e-3, std=0.3)
        got, expected = cast_on_device(x.cuda(), rule).cpu(), rule.apply(x)
        assert torch.equal(got.isnan(), expected.isnan())  # the bits of a NaN are the processor's own
        assert torch.equal(got.nan_to_num(7.0), expected.nan_to_num(7.0))


def every_float(count=2**26):
    """All float32, in parts: each number beside the one with the inverse bits, so that pairs mix NaNs and others."""
    for begin in range(0, 2**31, count):
        bits = torch.arange(begin, begin + count).to(torch.int32)
        yield torch.stack([bits, ~bits], dim=1).view(torch.float32)


@pytest.mark.parametrize("target", [torch.bfloat16, torch.float16], ids=str)
def test_the_hardware_rounds_each_float32_as_the_definition_does(target):
    rule = Cast(target)
    for x in every_float():
        got, expected = cast_on_device(x.cuda(), rule).cpu(), rule.apply(x)
        differs = got.view(torch.int16) != expected.view(torch.int16)
        wrong = (differs & ~(got.isnan() & expected.isnan())).nonzero()  # the bits of a NaN are the processor's own
        at = tuple(wrong[:5].T)
        assert not len(wrong), f"{len(wrong)}, such as {x[at].view(torch.int32)}: {got[at]} instead of {expected[at]}"


@pytest.mark.parametrize("layout", [None, "NCHW", "channels_last"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_each_byte_in_each_channel_of_an_image_has_the_bits_of_the_cpu(channels, layout):
    mean, std = (0.485, 0.456, 0.406, 0.5, 0.1)[:channels], (0.229, 0.224, 0.225, 0.5, 2.0)[:channels]
    for dtype, target in itertools.product((torch.uint8, torch.int8, torch.int16), TARGETS):
        every = torch.arange(16 * 17 * 2).to(dtype).view(2, 16, 17, 1).expand(-1, -1, -1, channels).contiguous()
        rule = Cast(
            target, scale=1 / 255, mean=mean, std=std, channels=-1, layout=layout, augment=Augment((15, 16), 0.5)
        )
        assert same(cast_on_device(every.cuda(), rule, seeds=[0, 1]), rule.apply(every, [0, 1]))


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("dtype", INPUTS, ids=str)
def test_every_image_has_the_bits_of_the_cpu(dtype, target):
    for settings, seeds in itertools.product(PLACED, [range(5), range(300)]):
        rule, x = Cast(target, **settings), values(dtype, (len(seeds), 19, 21, 3))
        drawn = list(seeds) if rule.augment else None
        assert same(cast_on_device(x.cuda(), rule, seeds=drawn), rule.apply(x, drawn)), settings


@pytest.mark.parametrize("elements", [1, 3, 15, 16, 17, 511, 512, 513, 1031, 425 * 3])
def test_rows_of_every_length_and_place_are_gathered_and_cast(elements):
    numbers = torch.tensor([8, 0, 3, 3, 7, 1])
    for dtype, target in itertools.product(INPUTS, TARGETS):
        memory = values(dtype, (9 * elements + 5,))
        for skip in (0, 1, 5):
            stored = memory.cuda()[skip : skip + 9 * elements].view(9, elements)
            rule = Cast(target, scale=0.5, std=3.0)
            expected = rule.apply(indexed(stored.cpu(), numbers))
            assert same(gather_rows(stored, numbers.cuda(), rule), expected)
            assert same(gather_rows(stored, numbers.cuda()), indexed(stored.cpu(), numbers))


def test_results_are_written_to_their_place_and_nowhere_else():
    stored, numbers, rule = values(torch.uint8, (9, 333)).cuda(), torch.tensor([2, 5]), Cast(torch.bfloat16, scale=0.5)
    for skip in range(9):
        memory = torch.full((2 * 333 + 64,), -7.0, dtype=torch.bfloat16, device="cuda")
        out = memory[skip : skip + 666].view(2, 333)
        gather_rows(stored, numbers.cuda(), rule, out)
        assert torch.equal(out.cpu(), rule.apply(stored.cpu()[numbers]))
        assert (memory[:skip] == -7).all()
        assert (memory[skip + 666 :] == -7).all()


@pytest.mark.parametrize("pinned", [False, True])
def test_rows_in_pinned_memory_and_numbers_there_are_read_across_the_bus(pinned):
    stored, numbers = values(torch.uint8, (100, 4097)).pin_memory(), torch.randint(0, 100, (33,))
    rule = Cast(torch.float32, norm_removed=True)
    there = numbers.pin_memory() if pinned else numbers.cuda()
    got = gather_rows(stored, there, rule, device=torch.device("cuda", 0))
    torch.cuda.synchronize()
    assert same(got, rule.apply(stored[numbers]))


@pytest.mark.parametrize(
    "rule", [None, Cast(torch.bfloat16, norm_removed=True), Cast(torch.float32, channels=-1, **COLOURS)]
)
def test_windows_are_built_of_frames_on_the_device(rule):
    frames = values(torch.uint8, (50, 9, 11, 3))
    begins, steps = torch.randint(31, 50, (20,)), -torch.arange(32)
    windows = indexed(frames, begins[:, None] + steps)
    got = expand_windows(frames.cuda(), begins.cuda(), steps.cuda(), rule)
    assert same(got, windows if rule is None else rule.apply(windows))


def test_casts_run_on_the_current_stream_and_can_be_captured():
    x, rule = values(torch.int16, (64, 1000)).cuda(), Cast(torch.bfloat16, scale=1 / 300, mean=1.0, std=2.0)
    out = torch.empty(x.shape, dtype=torch.bfloat16, device="cuda")
    cast_on_device(x, rule, out)  # brings the constants to the device before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cast_on_device(x, rule, out)
    out.zero_()
    x.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out.cpu(), rule.apply(x.cpu()))

"""Casts of bytes by one multiplication and addition: only where each result is that of the definition."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memload import Cast
from memload.device.fused_constants import fused_constants, multiply_add

floats = st.floats(width=32, min_value=-(2.0**60), max_value=2.0**60, allow_subnormal=False)
nonzero = st.floats(width=32, min_value=2.0**-10, max_value=1000)


def nearest(exact: Fraction) -> np.float32:
    """The float32 next to a number, by comparison; of two at one distance the even one."""
    guess = np.float32(float(exact))
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(near, key=lambda one: (abs(Fraction(float(one)) - exact), int(one.view(np.int32)) % 2))


@given(floats, floats, floats)
def test_a_fused_operation_rounds_once(x, factor, shift):
    got = multiply_add(np.float32(x), np.float32(factor), np.float32(shift))
    exact = Fraction(x) * Fraction(factor) + Fraction(shift)
    if 2.0**-120 < abs(exact) < 2.0**120:
        assert got == nearest(exact)


@given(st.sampled_from([torch.uint8, torch.int8]), st.sampled_from([torch.bfloat16, torch.float16]), nonzero)
@pytest.mark.parametrize("mean", [(0.485, 0.456, 0.406), (0.0, -3.0), (127.0,)])
def test_constants_that_are_found_give_the_bits_of_the_definition(mean, dtype, target, std):
    rule = Cast(target, scale=1 / 255, mean=mean, std=std, channels=-1)
    found = fused_constants(dtype, target, 1 / 255, -0.0, mean, [std] * len(mean))
    if found is None:
        return
    info = torch.iinfo(dtype)
    x = torch.arange(info.min, info.max + 1).to(dtype)
    expected = rule.apply(x[:, None].expand(-1, len(mean)).contiguous())
    for channel, (factor, shift) in enumerate(zip(*found, strict=True)):
        got = torch.from_numpy(multiply_add(x.numpy().astype(np.float32), factor, shift)).to(target)
        assert torch.equal(got.view(torch.int16), expected[:, channel].contiguous().view(torch.int16))


def test_the_usual_constants_of_images_are_among_them():
    for mean, std in (((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), ((0.5,) * 3, (0.5,) * 3), ((127.5,), (127.5,))):
        for target in (torch.bfloat16, torch.float16):
            assert fused_constants(torch.uint8, target, 1 / 255, -0.0, mean, std) is not None


def test_other_types_many_channels_and_constants_without_such_a_line_are_left_to_other_kernels():
    usual = (1 / 255, -0.0, [0.485], [0.229])
    assert fused_constants(torch.int16, torch.bfloat16, *usual) is None
    assert fused_constants(torch.uint8, torch.float32, *usual) is None
    assert fused_constants(torch.uint8, torch.bfloat16, 1 / 255, -0.0, [0.5] * 65, [0.25] * 65) is None
    steps = (1.0, 2.0**24, [2.0**24], [1.0])  # the sum loses the last digit of x, which no line does
    assert fused_constants(torch.uint8, torch.bfloat16, *steps) is None
    assert fused_constants(torch.uint8, torch.bfloat16, 1.0, -0.0, [0.0, 3.4e38], [1.0, 1e-38]) is None

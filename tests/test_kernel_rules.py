"""Rules of casts as kernels take them: worked out once for a pass, whatever they hold."""

import gc

import torch

import memload
from memload.gpu import kernels
from memload.gpu.remembered import Remembered


class Mean(tuple):
    """Constants that count how often they are hashed."""

    hashed = 0

    def __hash__(self):
        type(self).hashed += 1
        return super().__hash__()


def test_constants_of_many_channels_are_looked_up_once():
    means = tuple(map(float, range(5000)))
    rule = memload.Cast(torch.float32, mean=means, std=2.0, channels=-1)
    object.__setattr__(rule, "mean", Mean(means))
    shape, cpu = (5000,), torch.device("cpu")
    first = kernels.kernel_rule(rule, torch.uint8, shape, cpu)
    hashed = Mean.hashed
    assert all(kernels.kernel_rule(rule, torch.uint8, shape, cpu) is first for _ in range(3))
    assert Mean.hashed == hashed
    assert kernels.kernel_rule(rule, torch.int16, shape, cpu)[0] == "I16"
    assert first[2:5] == ("computed", 1.0, -0.0)
    assert first[6:] == (5000, 1)
    assert kernels.kernel_rule(memload.Cast(torch.float16), torch.uint8, shape, cpu)[2] == "plain"
    assert kernels.kernel_rule(memload.Cast(torch.float16, scale=2.0), torch.uint8, shape, cpu)[2:4] == ("scaled", 2.0)


def test_what_was_worked_out_of_an_object_ends_with_it():
    class Rule:
        def __eq__(self, other):
            return True

        __hash__ = None

    results, made = Remembered(), []

    def make():
        made.append(Rule())
        return made[-1]

    one, other = Rule(), Rule()
    assert results.of(one, 1, make) is results.of(one, 1, make)
    assert results.of(other, 1, make) is not results.of(one, 2, make)
    assert len(made) == 3
    del one, other
    gc.collect()
    assert results._found == {}

"""Rules of casts as kernels take them: worked out once for a pass, whatever they hold."""

import gc
from types import SimpleNamespace

import pytest
import torch

import memload
from memload.casts.native import ImageJob
from memload.casts.rule import native_arithmetic
from memload.device import kernels
from memload.device.kernels import OwnerCache


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
    assert first[2:5] == ("by_reciprocal", 1.0, -0.0)
    assert first[6:] == (5000, 1)
    colours = memload.Cast(torch.bfloat16, scale=1 / 255, mean=(0.485, 0.456, 0.406), std=0.2, channels=-1)
    assert kernels.kernel_rule(colours, torch.uint8, (3,), cpu)[2] == "fused"
    assert kernels.kernel_rule(colours, torch.int16, (3,), cpu)[2] == "by_reciprocal"
    assert kernels.kernel_rule(memload.Cast(torch.float16), torch.uint8, shape, cpu)[2] == "plain"
    assert kernels.kernel_rule(memload.Cast(torch.float16, scale=2.0), torch.uint8, shape, cpu)[2:4] == ("scaled", 2.0)


def test_divisions_become_products_only_where_no_step_can_leave_the_normal_numbers():
    usual = (torch.uint8, 1 / 255, [-0.0, 0.485], [0.229])
    assert kernels.multiplies(*usual)
    assert kernels.multiplies(torch.int16, 2.0**-60, [2.0**60, -(2.0**-60), 0.0], [2.0**30, -(2.0**-30)])
    for wrong in (
        (torch.float16, *usual[1:]),
        (torch.uint8, -1 / 255, *usual[2:]),  # 0 becomes -0.0, which products lose
        (torch.uint8, 2.0**-61, *usual[2:]),
        (torch.uint8, 2.0**61, *usual[2:]),
        (*usual[:2], [2.0**-61], [0.229]),
        (*usual[:2], [-(2.0**61)], [0.229]),
        (*usual[:2], [float("inf")], [0.229]),
        (*usual[:2], [float("nan")], [0.229]),
        (*usual[:3], [0.0]),
        (*usual[:3], [0.229, 2.0**-31]),
        (*usual[:3], [2.0**31]),
    ):
        assert not kernels.multiplies(*wrong), wrong


def test_images_have_one_rule_however_many_a_batch_has(monkeypatch):
    given = []
    launch = SimpleNamespace(augment_images=lambda *arguments: given.append(arguments[6]))
    monkeypatch.setattr(kernels, "cuda_module", lambda: launch)  # what is launched needs a GPU, the rule does not
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    crop = memload.Augment(crop=(2, 2))
    colours = {"mean": (1.0, 2.0, 3.0), "std": 2.0}
    for rule, image in [
        (memload.Cast(torch.float32, channels=-1, layout="NCHW", **colours), (4, 5, 3)),
        (memload.Cast(torch.float32, channels=-3, augment=crop, **colours), (3, 4, 5)),
        (memload.Cast(torch.float32, augment=crop, mean=1.0), (4, 5)),
    ]:
        given.clear()
        for count in (1, 2, 7):
            x = torch.zeros(count, *image, dtype=torch.uint8)
            job = ImageJob.of(rule, x.shape, x.dtype, range(count))
            kernels.augment_images(x, torch.empty(count, *job.out_shape), rule, job)
        assert given[1] is given[0]
        assert given[2] is given[0]
        assert native_arithmetic(rule, torch.uint8, image) == native_arithmetic(rule, torch.uint8, (7, *image))


def test_rows_that_are_not_chosen_are_cast_as_one_row(monkeypatch):
    given = []
    launch = SimpleNamespace(
        RowKernel=lambda *kernel: kernel,
        launch_rows=lambda launches, *_: given.extend(
            (parts[0][1], rows, length, rule[6:]) for (parts, length, rule), _, rows, *_ in launches
        ),
    )
    monkeypatch.setattr(kernels, "cuda_module", lambda: launch)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    rule = memload.Cast(torch.float32, channels=-2, mean=(1.0, 2.0, 3.0))
    for count in (7, 9):
        x = torch.zeros(count, 5, 3, 2)
        kernels.cast_all(x, torch.empty_like(x), rule, (5, 3, 2))
    x = torch.zeros(7, 5, 3, 2)
    chosen = kernels.RowKernel.of(x, rule, (5, 3, 2), [x.data_ptr()], x.device)
    chosen.launch(torch.empty_like(x), 7, (8, 0, 1))
    assert given == [(1, 1, 210, (3, 2)), (1, 1, 270, (3, 2)), (7, 7, 30, (3, 2))]


@pytest.mark.parametrize(("most", "joined"), [(90, 2), (91, 3), (30 * 300, 256), (25, 1)])
def test_more_rows_than_one_may_have_elements_are_cast_in_pieces_that_are_as_well_aligned(monkeypatch, most, joined):
    given = []
    launch = SimpleNamespace(
        RowKernel=lambda *kernel: kernel,
        launch_rows=lambda launches, *_: given.extend(
            (address, length, out, rows) for (((address, _),), length, _), out, rows, *_ in launches
        ),
    )
    monkeypatch.setattr(kernels, "cuda_module", lambda: launch)
    monkeypatch.setattr(kernels, "_MOST_ELEMENTS", most)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    x = torch.zeros(700, 30, dtype=torch.uint8)
    out = torch.empty_like(x, dtype=torch.float32)
    kernels.cast_all(x, out, memload.Cast(torch.float32, channels=-1, mean=(1.0, 2.0) * 15), (30,))
    assert given == [
        (x[row:].data_ptr(), len(x[row : row + joined]) * 30, out[row:].data_ptr(), 1) for row in range(0, 700, joined)
    ]


def test_results_that_are_cached_for_an_object_end_with_it():
    class Rule:
        def __eq__(self, other):
            return True

        __hash__ = None

    results, made = OwnerCache(), []

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

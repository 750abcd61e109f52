"""What models and their steps take, counted beforehand, against what is really allocated."""

import gc
import json

import pytest
import torch
from torch import nn

from memload.planning.allocations import Allocations, nbytes_of
from memload.planning.model_bytes import activation_bytes, model_bytes
from memload.planning.optimizer_bytes import optimizer_bytes

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": torch.optim.Adam,
    "amsgrad, all at once": lambda p: torch.optim.AdamW(p, amsgrad=True, foreach=True),
    "adagrad": torch.optim.Adagrad,
    "adafactor": torch.optim.Adafactor,
    "asgd": torch.optim.ASGD,
    "nadam": torch.optim.NAdam,
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
}


def net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_will_keep_is_what_it_keeps_after_a_step(name):
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    before = optimizer_bytes(optimizer, device_type="cpu")
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    gc.collect()
    with Allocations() as seen:
        optimizer.step()
    kept = nbytes_of(v for own in optimizer.state.values() for v in own.values() if torch.is_tensor(v))
    assert before.state == kept
    if name not in ("adafactor", "asgd"):  # of which tiny parameters tell only about how much
        assert before.temporary == pytest.approx(seen.peak - (kept if name != "adagrad" else 0), abs=50)


def test_asking_what_an_optimizer_keeps_changes_nothing_of_it():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # it lays itself around step()
    before = [p.clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer_bytes(optimizer)
    assert not optimizer.state
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    optimizer.step()
    scheduler.step()


def test_an_optimizer_that_needs_a_closure_says_what_to_do():
    with pytest.raises(ValueError, match="let it make one step, then call this again"):
        optimizer_bytes(torch.optim.LBFGS(net().parameters()))


def test_frozen_tied_and_sparse_parameters_are_counted_for_what_they_are():
    table, head = nn.Embedding(1000, 16, sparse=True), nn.Linear(16, 1000, bias=False)
    frozen = nn.Linear(16, 16).requires_grad_(False)
    counted = model_bytes([table, head, frozen])
    assert (counted.embeddings, counted.params, counted.gradients) == (64_000, 64_000 + 16 * 17 * 4, 64_000)
    head.weight = table.weight
    tied = model_bytes({"table": table, "head": head})
    assert (tied.embeddings, tied.params) == (64_000, 0)


def test_models_without_memory_are_counted_like_those_with_it():
    with torch.device("meta"):
        shapes = net()
    real = net()
    assert model_bytes(shapes, torch.optim.Adam(shapes.parameters())) == model_bytes(
        real, torch.optim.Adam(real.parameters())
    )


def test_something_else_than_a_module_is_named():
    with pytest.raises(
        TypeError, match=r"model must be a torch\.nn\.Module, or a list or dict of such, got one of str"
    ):
        model_bytes(["resnet"])


def test_a_storage_is_counted_once_and_until_its_last_view_is_freed():
    with Allocations() as seen:
        x = torch.zeros(1000)
        view = x.view(10, 100)[3:].t()
        del x
        assert seen.live == 4000
        del view
        assert seen.live == 0
    timeline = seen.timeline()
    assert (timeline.peak, timeline.kept, len(timeline.nbytes)) == (4000, 0, 1)


def test_what_was_there_before_does_not_count_whatever_is_done_with_it():
    x = torch.zeros(1000)
    with Allocations() as seen:
        x.add_(1).view(10, 100).t()
    assert seen.peak == 0


def test_a_limit_is_an_out_of_memory_error_that_leaves_nothing_behind():
    with Allocations(limit=10_000) as seen:
        with pytest.raises(torch.OutOfMemoryError, match="out of the 10 kB that were allowed"):
            torch.zeros(1000) + torch.zeros(1000) + torch.zeros(1000)
        gc.collect()
        assert seen.live == 0


def test_what_is_saved_is_inputs_and_parameters_apart_and_counts_views_once():
    layer, x = nn.Linear(100, 100), torch.rand(50, 100)

    def loss():
        hidden = layer(x).relu()  # saved by relu, and by both factors of the product
        return (hidden * hidden.view(100, 50).t()).sum()

    assert activation_bytes(loss, layer, inputs=[x]).saved == 50 * 100 * 4


def test_a_peak_is_that_of_torchs_own_profiler(tmp_path):
    model, x = nn.Sequential(nn.Linear(200, 400), nn.Tanh(), nn.Linear(400, 50)), torch.rand(300, 200)
    found = activation_bytes(lambda: model(x).square().mean(), model, inputs=[x])
    with torch.profiler.profile(profile_memory=True) as profile:
        model(x).square().mean().backward()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    told = [event for event in events if event["name"] == "[memory]"]
    told.sort(key=lambda event: event["ts"])
    live = torch.tensor([event["args"]["Bytes"] for event in told]).cumsum(0)
    assert found.peak_with_gradients == pytest.approx(int(live.max()), rel=0.01)


def test_gradients_are_what_they_were_and_accumulating_needs_room_for_a_second_of_each():
    model, x = nn.Linear(300, 300), torch.rand(4, 300)
    model.weight.grad = mine = torch.ones(300, 300)
    once = activation_bytes(lambda: model(x).sum(), model, inputs=[x])
    again = activation_bytes(lambda: model(x).sum(), model, inputs=[x], accumulating=True)
    assert once.gradients == 300 * 301 * 4
    assert again.peak >= 300 * 300 * 4 > once.peak
    assert model.weight.grad is mine
    assert mine.eq(1).all()
    assert model.bias.grad is None


def test_a_loss_that_cannot_be_used_is_told():
    model, x = nn.Linear(3, 3), torch.rand(2, 3)
    with pytest.raises(ValueError, match=r"one number, got a tensor of shape \(2, 3\)"):
        activation_bytes(lambda: model(x), model)
    with pytest.raises(ValueError, match="depends on no parameter that is trained"):
        activation_bytes(lambda: model(x).sum().detach(), model)

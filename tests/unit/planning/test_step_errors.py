"""Why a step cannot be run is said with what to do, and once."""

import functools
import threading

import pytest
import torch
from torch import nn

import memload
from memload.planning.weightless import _LOG

DS = memload.from_arrays(x=torch.rand(1000, 32), y=torch.randint(0, 10, (1000,)))
NET = nn.Linear(32, 10)
ALONE = r"loss= is called with a batch of the loader alone, and {}\({}\).* takes other arguments: give a function"


def two(net, batch):
    return net(batch["x"]).mean()


@pytest.mark.parametrize(
    ("loss", "error", "said"),
    [
        (
            lambda batch: NET(batch["image"]).mean(),
            ValueError,
            "asks the batch for 'image'; its fields are 'x', 'y'",
        ),
        (lambda batch: NET(batch["x"]).mean() * UNKNOWN, ValueError, "the loss raises NameError: name 'UNKNOWN'"),  # noqa: F821
        (lambda batch: NET(batch["x"]).mean().item(), ValueError, r"asks for one, as x\.item\(\)"),
        (lambda batch: NET(batch["x"][:, :3]).mean(), ValueError, "cannot be run on tensors without numbers"),
        (two, TypeError, ALONE.format("two", "net, batch")),
        (nn.CrossEntropyLoss(), TypeError, ALONE.format("CrossEntropyLoss", "input.*target.*")),
        ([two], TypeError, ALONE.format("two", "net, batch")),
        (3, TypeError, "must be a function of a batch, or a list of such, got int"),
        ([3], TypeError, "must be a function of a batch, or a list of such, got int"),
    ],
)
def test_a_loss_that_cannot_be_run_says_why(loss, error, said, capfd):
    with pytest.raises(error, match=said):
        memload.plan(DS, 32, model=NET, loss=loss, device="cpu")
    assert capfd.readouterr().err == ""


WEIGHTS = torch.rand(10)
SAMPLE = {"x": torch.rand(4, 32), "y": torch.zeros(4, dtype=torch.int64)}


@pytest.mark.parametrize(
    "loss",
    [
        lambda batch: nn.functional.cross_entropy(NET(batch["x"]), batch["y"], weight=WEIGHTS),
        lambda batch: (NET(batch["x"]).log_softmax(-1) * WEIGHTS / WEIGHTS.sum()).mean(),
        lambda batch: (NET(batch["x"] - WEIGHTS.mean()).exp() * WEIGHTS[batch["y"]].unsqueeze(1)).mean(),
    ],
)
@pytest.mark.parametrize("on", [{"device": "cpu"}, {"device": "cuda", "gpu": "T4"}])
def test_a_loss_may_use_small_tensors_beside_its_batch_such_as_weights_of_classes(loss, on):
    assert "unknown" not in str(memload.plan(DS, 32, model=NET, loss=loss, **on))
    assert memload.compute_batch_size(NET, SAMPLE, loss=loss, limit="1GB", mode="static").batch_size > 1


def test_a_loss_with_a_model_that_is_not_given_is_told_to_give_it():
    teacher = nn.Linear(32, 10_000).requires_grad_(False)  # 1.3 MB

    def loss(batch):
        with torch.no_grad():
            wanted = teacher(batch["x"]).mean(1)
        return (NET(batch["x"]).mean(1) - wanted).square().mean()

    says = r"the loss uses tensors of 1\.28 MB that belong to none of the models: give all models"
    for on in ({"device": "cpu"}, {"device": "cuda", "gpu": "T4"}):
        with pytest.raises(ValueError, match=says):
            memload.plan(DS, 32, model=NET, loss=loss, **on)
        assert "unknown" not in str(memload.plan(DS, 32, model=[NET, teacher], loss=loss, **on))
    settings = {"loss": loss, "limit": "1GB", "mode": "static"}
    with pytest.raises(ValueError, match=says):
        memload.compute_batch_size(NET, SAMPLE, **settings)
    assert memload.compute_batch_size(NET, SAMPLE, teacher=teacher, **settings).static.teacher > 1_300_000


def test_a_loss_that_trains_a_model_that_is_not_given_is_told_to_give_it():
    body, head = nn.Linear(32, 100), nn.Linear(100, 10)

    def loss(batch):
        return head(body(batch["x"])).mean()

    with pytest.raises(
        ValueError, match=r"trains parameters of 13\.2 kB that .* the largest of shape \(100, 32\): give all"
    ):
        memload.compute_batch_size(head, SAMPLE, loss=loss, limit="1GB")
    assert all(p.grad is None for p in (*body.parameters(), *head.parameters()))
    both = memload.compute_batch_size([body, head], SAMPLE, loss=loss, limit="1GB", optimizer=torch.optim.AdamW)
    parameters = [*body.parameters(), *head.parameters()]
    given = memload.compute_batch_size(head, SAMPLE, loss=loss, limit="1GB", optimizer=torch.optim.AdamW(parameters))
    assert given.static == both.static
    assert all(p.grad is None for p in parameters)
    assert memload.compute_batch_size(head, SAMPLE, loss=loss, limit="1GB", teacher=body).static.teacher == 13_200


@pytest.mark.parametrize("loss", [two, nn.CrossEntropyLoss()])
def test_batch_sizes_say_so_as_well(loss):
    with pytest.raises(TypeError, match="with a batch of the loader alone"):
        memload.compute_batch_size(NET, torch.rand(4, 32), loss=loss, limit="1GB")


def with_the_net(fn):
    @functools.wraps(fn)
    def inner(batch):
        return fn(NET, batch)

    return inner


def test_a_decorated_loss_is_called_as_it_is_now():
    assert "unknown" not in str(memload.plan(DS, 32, model=NET, loss=with_the_net(two), device="cpu"))
    found = memload.compute_batch_size(NET, {"x": torch.rand(4, 32)}, loss=(with_the_net(two),), limit="1GB")
    assert found.batch_size > 1


def test_plans_in_threads_leave_the_log_as_it_was():
    before = (_LOG.level, list(_LOG.filters))
    threads = [
        threading.Thread(target=memload.plan, args=(DS, 32), kwargs={"model": nn.Linear(32, 10), "loss": None})
        for _ in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert (_LOG.level, list(_LOG.filters)) == before


def test_losses_without_a_signature_and_with_defaults_are_called():
    plan = memload.plan(DS, 32, model=NET, loss=lambda batch, weight=2.0: weight * NET(batch["x"]).sum(), device="cpu")
    assert "unknown" not in str(plan)
    assert memload.compute_batch_size(NET, torch.rand(4, 32), loss=lambda x: NET(x).sum(), limit="1GB").batch_size > 1


def test_a_model_that_does_not_fit_its_data_is_told_in_the_plan_and_not_in_a_log(capfd):
    assert "a and b must have same reduction dim" in str(memload.plan(DS, 32, model=nn.Linear(31, 10), device="cpu"))
    assert capfd.readouterr().err == ""


def test_a_batch_has_at_most_the_rows_of_an_epoch():
    loader = memload.FastLoader(DS, 64)
    sample = torch.rand(4, 32)
    assert memload.compute_batch_size(NET, sample, loader=loader, limit="1GB").batch_size == 1000
    assert memload.compute_batch_size(NET, sample, loader=loader, limit="1GB", max_batch_size=3000).batch_size == 3000
    found = memload.compute_batch_size(NET, sample, loader=loader, limit="1GB", min_batch_size=2000)
    assert found.batch_size == 2000

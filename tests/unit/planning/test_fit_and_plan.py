"""`memload.fit` and `memload.plan` state the same bytes and the same verdict."""

import contextlib

import pytest
import torch
from memory_models import Transformer, convolutional
from torch import nn

import memload
from memload.planning.fit_bytes import largest_within
from memload.planning.recomputing import checkpointed
from memload.planning.relative_times import relative_times


class Llama(nn.Module):
    """A decoder of the size of a Llama 7B, without positions, and what is trained on its features."""

    def __init__(self, width=4096, hidden=11_008, layers=32, words=32_000):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaLayer(width, hidden) for _ in range(layers))
        self.to(torch.bfloat16).requires_grad_(False)
        self.head = nn.Linear(width, 1000)

    def forward(self, tokens):
        with torch.no_grad():
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x)
        return self.head(x.float().mean(1))


class LlamaLayer(nn.Module):
    """Attention of 32 heads and a gated feed-forward network."""

    def __init__(self, width, hidden):
        super().__init__()
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        rows, tokens, width = x.shape
        parts = self.qkv(self.before(x)).view(rows, tokens, 3, 32, width // 32)
        seen = nn.functional.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, tokens, width))
        y = self.between(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def _mlp():
    return nn.Sequential(nn.Linear(300, 800), nn.ReLU(), nn.Linear(800, 10))


def _half_frozen():
    return nn.Sequential(nn.Sequential(*(nn.Linear(300, 300) for _ in range(8))).requires_grad_(False), _mlp())


SETTINGS = {  # model, field, optimizer, sizes of devices, effective batch
    "MLP": (_mlp, ("float32", (300,)), torch.optim.AdamW, ["769MB", "614MB", "100MB"], 1024),
    "CNN": (convolutional, ("float32", (3, 16, 16)), torch.optim.SGD, ["4GB", "669MB", "614MB", "606MB"], 512),
    "transformer": (Transformer, ("int64", (64,)), torch.optim.Adam, ["2GB", "629MB", "614MB", "606.2MB"], 256),
    "half frozen": (_half_frozen, ("float32", (300,)), torch.optim.AdamW, ["669MB", "620MB", "617MB", "607MB"], 128),
    "7B frozen": (Llama, ("int64", (512,)), torch.optim.AdamW, ["80GB", "24GB", "16GB", "14GB", "8GB"], 16),
}
LONG = {"7B frozen": pytest.mark.slow}


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG.get(name, ())) for name in SETTINGS])
def test_both_say_the_same_bytes_and_the_same_verdict(name):
    make, (dtype, shape), kind, devices, effective = SETTINGS[name]
    with torch.device("meta"):
        model, sample = make(), {"x": torch.zeros((2, *shape), dtype=getattr(torch, dtype))}
    loss = lambda batch: model(batch["x"]).float().square().mean()  # noqa: E731
    optimizer = kind([p for p in model.parameters() if p.requires_grad], lr=0.1)
    advice = memload.fit(
        model, sample, devices, effective_batch=effective, loss=loss, optimizer=optimizer, precisions=["bf16", "fp32"]
    )
    data = memload.DatasetShape(10_000, {"x": (dtype, shape)})
    assert {option.fits for option in advice.options} == {True, False}
    for option in advice.options:
        with checkpointed([model]) if option.checkpointing else contextlib.nullcontext():
            plan = memload.plan(
                data,
                option.batch_size or 1,
                model=model,
                loss=loss,
                optimizer=optimizer,
                precision=option.precision,
                accumulate=1 if option.accumulation == 1 else 2,
                offload=option.offload,
                gpu=option.memory,
                ram="1TB",
                disk="1TB",
            )
        assert option.nbytes == plan.gpu.predicted, option
        assert option.fits == plan.gpu.fits, option


@pytest.mark.parametrize(("rows", "buffers"), [(256, 8), (4096, 2)])  # of small batches more are on their way
def test_both_count_rows_that_arrive_out_of_pinned_ram(rows, buffers):
    model, batch = _mlp(), rows * 300 * 4
    loss = lambda batch: model(batch["x"]).square().mean()  # noqa: E731
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sample = {"x": torch.zeros(2, 300)}
    options = {"loss": loss, "optimizer": optimizer}
    fitted = memload.fit(
        model, sample, "8GB", effective_batch=rows, precisions="fp32", device_bytes="6GB", **options
    ).for_memory("8GB")
    data = memload.DatasetShape(10**7, {"x": ("float32", (300,))})
    machine = {"gpu": "8GB", "ram": "1TB", "disk": "1TB"}
    plan = memload.plan(data, rows, tier="split", device_bytes="6GB", model=model, **options, **machine)
    assert (fitted.batch_size, fitted.fits) == (rows, plan.gpu.fits)
    assert plan.gpu.of("arriving rows") == buffers * batch
    assert fitted.nbytes == plan.gpu.predicted


def test_the_largest_size_is_found_with_few_looks():
    looks = []

    def nbytes(rows):
        looks.append(rows)
        return max(1000 + 7 * rows, 10 * rows)

    assert largest_within(nbytes, 9_999, 1, 100_000) == 999
    assert len(set(looks)) < 8
    assert largest_within(nbytes, 1006, 1, 10) == 0
    assert largest_within(nbytes, 10**9, 1, 10) == 10


def test_times_are_ratios_within_rounds_and_noise_is_told():
    pace, order = iter([5.0, 1.0, 10.0, 100.0]), []

    def step(name, seconds):
        def run():
            if name == "plain":
                order.append(next(pace))
            return order[-1] * seconds()

        return run

    twice = iter([1.0, 2.0, 2.0, 2.0])
    wild = iter([1.0, 1.0, 1.0, 3.0])
    steps = [step("plain", lambda: 1.0), step("twice", lambda: next(twice)), step("wild", lambda: next(wild))]
    plain, steady, noise = relative_times(steps, lambda: None, clock=iter([0.0, 99.0]).__next__)
    assert (plain.median, steady.median, steady.is_noise) == (1.0, 2.0, False), "the pace of a round is that of all"
    assert (noise.low, noise.high, noise.is_noise) == (1.0, 3.0, True)

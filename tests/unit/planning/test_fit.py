"""Advice on how to train on a device of some size, and what one step says of itself."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from memory_models import GraphNet, Transformer, convolutional, graph_batch
from torch import nn

import memload
from memload.planning.allocations import Allocations
from memload.planning.recomputing import blocks_of, checkpointed

pytestmark = pytest.mark.usefixtures("one_thread", "freed_memory_goes_back")


def test_less_memory_means_accumulation_then_checkpointing_then_nothing():
    model, sample = Transformer(), torch.randint(100, (2, 64))
    advice = memload.fit(
        model, sample, ["100MB", "10MB", "1.9MB", "200kB"], effective_batch=64, min_batch_size=4, device="cpu"
    )
    roomy, less, little, none = advice.best
    assert (roomy.batch_size, roomy.accumulation, roomy.checkpointing, roomy.precision) == (64, 1, False, "bf16-mixed")
    assert less.batch_size < 64 <= less.batch_size * less.accumulation < 64 + less.accumulation
    assert little.checkpointing
    assert little.fits
    assert not none.fits
    assert all(one.nbytes <= one.memory for one in advice.options if one.fits)
    assert all(one.nbytes > one.memory for one in advice.options if not one.fits)
    timed = [one for one in advice.options if one.relative_time is not None]
    assert all(one.relative_spread[0] <= one.relative_time <= one.relative_spread[1] for one in timed)
    assert advice.timed_on == "cpu"
    assert advice.for_memory("10MB") == less
    assert repr(advice).splitlines()[4].strip().startswith("200 kB  does not fit: ")


def test_what_is_advised_runs_in_the_predicted_bytes():
    model, sample = Transformer(), torch.randint(100, (2, 64))
    optimizer = torch.optim.Adam(model.parameters())
    advice = memload.fit(model, sample, "4MB", effective_batch=48, optimizer=optimizer, device="cpu")
    for option in advice.options:
        tokens = torch.randint(100, (option.batch_size, 64))
        model.zero_grad()
        with Allocations() as seen:
            for _ in range(option.accumulation):
                dtype = torch.bfloat16 if option.precision == "bf16-mixed" else None
                with torch.autocast("cpu", dtype, enabled=dtype is not None):
                    if option.checkpointing:
                        with checkpointed([model]):
                            model(tokens).mean().backward()
                    else:
                        out = model(tokens)
                        out.mean().backward()
                        del out
        weights = sum(p.nbytes for p in model.parameters())
        batches = 2 * tokens.nbytes
        assert seen.peak + 3 * weights + batches == pytest.approx(option.nbytes, rel=0.1)


def test_what_is_frozen_can_be_offloaded():
    frozen = nn.Sequential(*(nn.Linear(300, 300) for _ in range(8))).requires_grad_(False)
    model = nn.Sequential(frozen, nn.Linear(300, 4))
    advice = memload.fit(model, torch.rand(2, 300), ["100MB", "2MB"], effective_batch=32, device="cpu")
    plenty, little = advice.best
    assert not plenty.offload
    assert little.offload
    assert little.fits
    assert plenty.nbytes - little.nbytes >= 6 * 300 * 300 * 4


def test_blocks_are_members_of_lists_that_have_parts_of_their_own():
    assert len(blocks_of([Transformer()])) == 2
    assert blocks_of([convolutional()]) == []
    model = Transformer()
    with checkpointed([model]) as count:
        assert count == 2
        assert "forward" in vars(model.layers[0])
    assert "forward" not in vars(model.layers[0])


def test_graphs_are_not_worth_compiling():
    advice = memload.fit(GraphNet(), graph_batch([5, 9], [20, 31]), "1GB", effective_batch=32, device="cpu")
    assert not advice.compile
    assert advice.best[0].batch_size == 32


def test_a_compiled_step_is_timed_where_that_is_asked_for_and_fits_the_time():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    common = {"effective_batch": 8, "device": "cpu", "precisions": "fp32"}
    unasked = memload.fit(model, torch.rand(4, 8), "1GB", **common)
    assert (unasked.compile, unasked.compiled_time) == (True, None)
    assert "not measured (compile_within=60 measures it)" in repr(unasked)
    late = memload.fit(model, torch.rand(4, 8), "1GB", compile_within=0.05, **common)
    assert (late.compile, late.compiled_time) == (False, None)
    assert "torch.compile: not measured, since it took more than 0.05 s" in repr(late)
    assert "forward" not in vars(model)


@pytest.mark.parametrize(("seconds", "worth"), [(0.001, True), (0.4, False)])
def test_compiling_is_advised_where_it_gains(monkeypatch, seconds, worth):
    now = [0.0]  # by a clock that goes on where a model says so: the machine may be as busy as it likes

    def compiled(forward):
        def run(*arguments):
            now[0] += seconds
            return forward(*arguments)

        return run

    class Slow(nn.Linear):
        def forward(self, x):
            now[0] += 0.1 if self.forward.__name__ == "forward" else 0
            return super().forward(x)

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr("memload.planning.fitting.time", SimpleNamespace(perf_counter=lambda: now[0]))
    advice = memload.fit(
        Slow(4, 4), torch.rand(2, 4), "1GB", effective_batch=8, device="cpu", precisions="fp32", compile_within=600
    )
    assert advice.compile is worth
    assert advice.compiled_time == pytest.approx(seconds / 0.1)
    assert f"torch.compile: {'yes' if worth else 'no'}: a step takes {advice.compiled_time:.2f} of the time" in repr(
        advice
    )


def test_a_compiler_that_does_not_work_here_is_told_with_its_reason(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda forward: lambda *_: [][1])
    advice = memload.fit(
        nn.Linear(4, 4), torch.rand(2, 4), "1GB", effective_batch=8, device="cpu", precisions="fp32", compile_within=60
    )
    assert "not measured, since it failed here (IndexError: list index out of range)" in repr(advice)
    assert not advice.compile


def test_advice_that_was_not_asked_for_is_an_error():
    advice = memload.fit(nn.Linear(4, 4), torch.rand(2, 4), "1GB", effective_batch=32, mode="static")
    with pytest.raises(KeyError, match="2 GB was not asked for; there is advice for 1 GB"):
        advice.for_memory("2GB")
    with pytest.raises(ValueError, match="effective_batch is 3: at least min_batch_size, 4"):
        memload.fit(nn.Linear(4, 4), torch.rand(2, 4), effective_batch=3, min_batch_size=4)


def test_a_probe_gives_the_peak_and_the_kept_bytes():
    model, x = nn.Linear(1000, 1000), torch.rand(500, 1000)
    report = memload.probe(lambda batch: model(batch).sum().backward(), x)
    assert (report.peak, report.kept) == (1001 * 1000 * 4 + 8, 1001 * 1000 * 4)
    assert report.fits
    assert report.largest_from.startswith("aten.")


@pytest.mark.parametrize("order", ["zero, forward", "forward, zero", "step, zero"])
@pytest.mark.parametrize("keeps", [False, True])
def test_kept_results_are_told_from_gradients_in_whatever_order_a_step_calls(order, keeps):
    net = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer, kept = torch.optim.Adam(net.parameters()), []

    def step(x):
        if order == "zero, forward":
            optimizer.zero_grad()
        loss = net(x).mean()
        if order == "forward, zero":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if order == "step, zero":
            optimizer.zero_grad()
        if keeps:
            kept.append(loss)

    reports = [memload.probe(step, torch.rand(32, 64)) for _ in range(3)]
    assert [report.kept for report in reports[1:]] == [4 * keeps] * 2, "gradients take the place of those before"
    assert [report.results for report in reports] == [int(keeps)] * 3
    assert all(("with their graph" in str(report)) == keeps for report in reports)


def _steps():
    """Ordinary steps, by name: each a model, an optimizer, and what is done besides."""
    adam, sgd = torch.optim.Adam, torch.optim.SGD
    linear = lambda: nn.Linear(64, 128)  # noqa: E731
    old_norm = lambda: nn.utils.spectral_norm(linear())  # noqa: E731
    return {
        "sgd": (linear, sgd, ""),
        "momentum": (linear, lambda p: sgd(p, lr=0.1, momentum=0.9), ""),
        "adam": (linear, adam, ""),
        "accumulation": (linear, adam, "accumulates"),
        "amp": (linear, adam, "amp"),
        "ema": (linear, adam, "ema"),
        "schedule and clipping": (linear, adam, "schedule, clip"),
        "a hook that keeps the last output": (linear, adam, "hook"),
        "the last loss in a variable": (linear, adam, "last"),
        "weights that are computed anew": (old_norm, adam, ""),
    }


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", list(_steps()))
def test_ordinary_steps_keep_no_results(name):
    make, optimize, besides = _steps()[name]
    net, last, count = make(), {}, itertools.count(1)
    optimizer = optimize(net.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=besides == "amp")
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    average = torch.optim.swa_utils.AveragedModel(nn.Linear(64, 128)) if besides == "ema" else None
    if besides == "hook":
        net.register_forward_hook(lambda module, args, out: last.update(out=out.detach()))

    def step(x):
        with torch.autocast("cpu", torch.bfloat16, enabled=besides == "amp"):
            loss = net(x).float().pow(2).mean()
        scaler.scale(loss).backward()
        if besides != "accumulates" or next(count) % 2 == 0:
            if "clip" in besides:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if "schedule" in besides:
            schedule.step()
        if average is not None:
            average.update_parameters(net)
        if besides == "last":
            last["loss"] = loss

    reports = [memload.probe(step, torch.rand(8, 64)) for _ in range(4)]
    assert not any("with their graph" in str(report) for report in reports[1:]), reports
    assert all(report.chained == 0 and report.results in (0, report.replaced) for report in reports[1:]), reports
    if besides != "accumulates":
        assert [report.kept for report in reports[1:]] == [0] * 3, "what is replaced is not kept beside it"
    assert not any("One tensor" in str(report) for report in reports), "gradients are as large as their weights"


@pytest.mark.parametrize("how", ["added", "in place", "in place, from 0", "replaced"])
def test_a_total_whose_graph_grows_is_told_from_a_loss_that_is_replaced(how):
    net, seen, total = (
        nn.Linear(64, 1),
        {"loss": 0 if how == "in place, from 0" else torch.zeros(())},
        how != "replaced",
    )

    def step(x):
        loss = net(x).mean()
        loss.backward()
        if how.startswith("in place"):
            seen["loss"] += loss
        else:
            seen["loss"] = seen["loss"] + loss if total else loss
        net.zero_grad()

    reports = [memload.probe(step, torch.rand(32, 64)) for _ in range(3)]
    assert [report.results for report in reports] == [1] * 3
    assert [report.chained for report in reports] == [0, total, total]
    assert ["steps before" in str(report) for report in reports] == [False, total, total]


def test_a_probe_catches_that_memory_ran_out_and_gives_back_what_was_taken():
    with Allocations() as seen:
        report = memload.probe(lambda: [torch.zeros(1000) for _ in range(100)], limit="100kB")
        assert seen.live == 0
    assert not report.fits
    assert report.out_of_memory.startswith("out of the 100 kB that were allowed: ")
    assert "memload.compute_batch_size" in report.advice[0]
    assert repr(report).startswith("ProbeReport: the step ran out of memory; peak ")

    def too_much():
        raise MemoryError

    assert memload.probe(too_much).out_of_memory == "MemoryError"
    assert not memload.probe(lambda: torch.empty(1 << 60, dtype=torch.uint8)).fits  # the allocator's own RuntimeError


def test_a_probe_names_one_large_tensor_and_lets_other_errors_through():
    scores = memload.probe(lambda x: (x @ x.t()).softmax(-1).sum(), torch.rand(400, 4))
    assert any(sentence.startswith("One tensor is ") for sentence in scores.advice)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        memload.probe(lambda x: x @ x, torch.rand(400, 4))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"memory": []}, 'the size of a device, such as "24GB"'),
        ({"precisions": []}, "precisions are those to compute in"),
    ],
)
def test_advice_for_nothing_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words + ".*; got none"):
        memload.fit(nn.Linear(4, 4), torch.rand(2, 4), effective_batch=8, **arguments)


def test_times_are_measured_only_on_a_device_of_the_planned_kind():
    sized = lambda **how: memload.fit(nn.Linear(4, 4), torch.rand(2, 4), "8GB", effective_batch=8, **how)  # noqa: E731
    assert sized(device="cpu").timed_on == "cpu"
    assert sized().timed_on == "", "a model on the CPU tells nothing of a GPU's times"
    assert "where the model is on cuda" in repr(sized())
    assert sized(device="cpu", mode="static").timed_on == ""


def test_progress_is_shown_on_standard_error(capsys):
    memload.fit(nn.Linear(4, 4), torch.rand(2, 4), "8GB", effective_batch=8, progress=True)
    memload.fit(nn.Linear(4, 4), torch.rand(2, 4), "8GB", effective_batch=8)
    assert capsys.readouterr().out == ""


def test_a_step_that_reads_values_is_run_for_real_unless_shapes_are_asked_for():
    model = nn.Linear(64, 64)

    def loss(batch):
        out = model(batch)
        return out.mean() if float(out.detach().abs().max()) >= 0 else out.sum()

    advice = memload.fit(model, torch.rand(2, 64), "1GB", effective_batch=64, loss=loss)
    assert advice.best[0].batch_size == 64
    with pytest.raises(ValueError, match="without numbers"):
        memload.fit(model, torch.rand(2, 64), "1GB", effective_batch=64, loss=loss, mode="static")

"""Batch sizes on a real GPU, held against what its allocator says."""

import pytest
import torch
from memory_models import Transformer, convolutional

import memload
from memload.planning.variants import kind_of

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mode", ["static", "measured", "trial"])
@pytest.mark.parametrize(
    ("make", "sample"), [(convolutional, torch.rand(2, 3, 16, 16)), (Transformer, torch.randint(100, (2, 24)))]
)
def test_the_chosen_batch_runs_and_takes_what_was_predicted(make, sample, mode):
    model, sample = make().cuda(), sample.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    found = memload.compute_batch_size(model, sample, optimizer=optimizer, mode=mode, limit="2GB", max_batch_size=8192)
    for rows in (2, found.batch_size):
        torch.cuda.reset_peak_memory_stats()
        batch = kind_of(sample).resized(rows)
        out = model(batch)
        out.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        peak = torch.cuda.max_memory_allocated()
        del batch, out
    assert peak == pytest.approx(found.used - found.static.context, rel=0.1)


def test_a_probe_catches_that_a_gpu_ran_out_and_what_it_held_is_free_again():
    before = torch.cuda.memory_allocated()
    report = memload.probe(lambda: [torch.empty(1 << 34, device="cuda") for _ in range(1000)])
    assert not report.fits
    assert torch.cuda.memory_allocated() == before
    small = memload.probe(lambda: torch.zeros(1 << 20, device="cuda").sum())
    assert small.fits
    assert small.peak >= 4 << 20

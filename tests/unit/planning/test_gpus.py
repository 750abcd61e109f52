"""GPUs by name: the bytes that they have for programs, and the precision that they compute in."""

from pathlib import Path

import pytest
import torch
from torch import nn

import memload
from memload.planning.gpus import GPUS, parse_gpu

GIB = 2**30
DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("T4", "T4"),
        ("Tesla T4", "T4"),
        ("a100-40gb", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("H100 NVL", "H100-NVL"),
        ("rtx4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 4070 Ti SUPER"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
    ],
)
def test_a_gpu_is_found_by_its_name_and_by_what_its_driver_calls_it(given, name):
    nbytes, model = parse_gpu(given)
    assert (model.name, nbytes) == (name, model.nbytes)


def test_every_name_of_the_table_means_its_own_line():
    assert [parse_gpu(model.name)[1] for model in GPUS] == list(GPUS)


@pytest.mark.parametrize(
    ("name", "gib"),
    # Capacities in torch's out-of-memory errors, as people published them; the least that was found for each.
    [
        ("T4", 14.56),
        ("V100-16GB", 15.75),
        ("V100-32GB", 31.74),
        ("A30", 23.53),
        ("A100-40GB", 39.50),
        ("L40", 44.40),
        ("H100", 79.11),
        ("RTX 2080 Ti", 10.73),
        ("RTX 3090", 23.70),
        ("RTX 4090", 23.61),
        ("RTX 5090", 31.37),
    ],
)
def test_no_more_is_planned_than_torch_reports_and_little_less(name, gib):
    share = parse_gpu(name)[0] / (gib * GIB)
    assert 0.97 < share <= 1


def test_sizes_stay_sizes():
    assert parse_gpu("24GB") == (24 * 10**9, None)
    assert parse_gpu("80 GiB") == (80 * GIB, None)
    assert parse_gpu(4090) == (4090, None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("A100", "'A100' exists with several sizes of memory: give 'A100-40GB' or 'A100-80GB'"),
        ("A100-20GB", "there is no 'A100-20GB': give 'A100-40GB' or 'A100-80GB'"),
        ("T4 80GB", "there is no 'T4 80GB': give 'T4'"),
        ("Voodoo", r"or a name such as \"H100\", got 'Voodoo'\. `memload plan --help` lists all names$"),
        ("RTX 4900", r"got 'RTX 4900'; did you mean RTX 4090\b.*\? `memload plan --help` lists all"),
        ("", "a GPU is a size such as"),
        (0, "at least one byte"),
    ],
)
def test_what_is_no_gpu_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        parse_gpu(given)


def test_a_plan_for_a_gpu_by_name_has_its_bytes_and_says_its_name_where_they_do_not_suffice():
    shape = memload.DatasetShape(1_000, {"x": ("float32", (1_000_000,))})
    plan = memload.plan(shape, 32, tier="device", gpu="A10", ram="64GB", disk="1TB")
    assert plan.gpu.free == parse_gpu("A10")[0]
    assert plan.fits
    refused = memload.plan(shape, 3_200, tier="device", gpu="A10", ram="64GB", disk="1TB")
    assert "too much for the A10" in repr(refused)


def _wide_plan(gpu, precision="float32"):
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(10_000, 10_000) for _ in range(8)))
    shape = memload.DatasetShape(100_000, {"x": ("float32", (10_000,))})
    return memload.plan(
        shape,
        45_057,
        device="cuda",
        model=model,
        loss=lambda batch: model(batch["x"]).mean(),
        precision=precision,
        gpu=gpu,
        ram="512GB",
        disk="1TB",
    )


def test_half_precision_is_offered_in_the_form_that_the_gpu_computes_in():
    emulated, native = (_wide_plan(gpu) for gpu in ("V100-32GB", "RTX 5090"))
    assert emulated.ways_out[0].startswith('precision="fp16-mixed" with torch.amp.GradScaler: RAM')
    assert native.ways_out[0].startswith('precision="bf16-mixed": RAM')
    assert not any("bf16" in way for way in emulated.ways_out)


def test_a_plan_in_bfloat16_says_where_it_is_emulated():
    assert "The V100-32GB emulates bfloat16" in repr(_wide_plan("V100-32GB", "bf16-mixed"))
    assert not _wide_plan("RTX 5090", "bf16-mixed").notes
    assert not _wide_plan("V100-32GB", "fp16-mixed").notes


def test_advice_for_gpus_by_name_uses_the_precisions_that_each_has():
    model = nn.Linear(1_000, 1_000, device="meta")
    sample = torch.zeros(1, 1_000, device="meta")
    advice = memload.fit(model, sample, ["T4", "A10", "L4", "16GB"], effective_batch=64, mode="static")
    assert [option.gpu for option in advice.best] == ["T4", "A10", "L4", ""]
    assert [option.precision for option in advice.best] == ["fp16-mixed", *["bf16-mixed"] * 3]
    assert {option.precision for option in advice.options if option.gpu == "T4"} <= {"fp16-mixed", "float32"}
    assert advice.for_memory("Tesla T4") == advice.best[0]
    assert "T4  64 x 1 in fp16-mixed with torch.amp.GradScaler" in repr(advice)
    with pytest.raises(KeyError, match="H100 was not asked for; there is advice for T4, A10, L4, 16 GB"):
        advice.for_memory("H100")


def test_a_batch_size_for_a_gpu_by_name_names_the_precision_that_would_help():
    model = nn.Linear(50_000, 100_000, device="meta")
    sample = torch.zeros(1, 50_000, device="meta")
    with pytest.raises(MemoryError, match='precision="fp16-mixed"'):
        memload.compute_batch_size(model, sample, "cuda", limit="T4", mode="static")
    with pytest.raises(MemoryError, match='precision="bf16-mixed"'):
        memload.compute_batch_size(model, sample, "cuda", limit="L4", mode="static")


def test_the_documented_names_are_those_of_the_table():
    text = (DOCS / "batch-size.md").read_text()
    listed = text[text.index("These names are known:") :].split("\n\n")[1]
    assert [name.strip(" `\n") for name in listed.rstrip(".").split(",")] == [model.name for model in GPUS]

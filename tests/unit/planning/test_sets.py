"""memload.plan of several data sets: lines of each, tiers under one limit, and what fresh processes take."""

import json

import numpy as np
import pytest
import torch
from programs import Ahead, Program, begin_all
from torch.utils.data import Subset

import memload
from memload.cli.main import main
from memload.cli.prediction import Prediction
from memload.planning.sets_alternatives import largest_that_fit

MOUSE = memload.DatasetShape(1000, {"stim": ("uint8", (40_000,)), "robs": ("float32", (100,))})
MONKEY = memload.DatasetShape(300, {"stim": ("uint8", (1_000_000,))})
BOTH = {"mouse": MOUSE, "monkey": MONKEY}
MACHINE = {"ram": "4GB", "disk": "1TB"}
MIXED = {"collate_fn": memload.group_collate}

MEASURES = """
import itertools, json, sys
from dataclasses import asdict
import torch, memload
from memload.cli.prediction import measured

def opened(names):
    return {name: memload.open(f"{sys.argv[1]}/{name}.npy") for name in names}

def placed(plan, names):
    return {name: ds.with_tier(**plan.by_set[name].options, progress=False) for name, ds in opened(names).items()}

def together(loaders):
    return zip(*loaders)

common = {"shuffle": "in order" not in sys.argv[2],
          "options": memload.EngineOptions(direct=False, threads=2, depth=2)}
names = ["few", "many"]
case = sys.argv[2]
if case.startswith("mixed"):
    if "cast" in case:
        common["cast"] = {"data": memload.Cast(torch.float32, norm_removed=True)}
    tier = {"few": "ram", "many": "mmap"} if "tiers" in case else None
    common["collate_fn"] = memload.group_collate
    plan = memload.plan(opened(names), 32, tier=tier, **common)
    loader = lambda: memload.FastLoader(memload.concat(placed(plan, names)), 32, **common)
    twice = lambda: itertools.chain.from_iterable([loader()] * 2)  # not in each pass does each slot get a large batch
    found = measured(plan, twice, 80)
else:
    sizes = {"few": 16, "many": 64}
    settings = {"tier": {"few": "ram", "many": "hybrid"}, "cache_bytes": {"many": "60MB"},
                "ram_dtype": {"few": {"data": "float16"}}}
    if case == "automatic":
        settings = {"tier": "auto"}
    plan = memload.plan(opened(names), sizes, **settings, **common)
    found = measured(plan, lambda: together(
        [memload.FastLoader(ds, sizes[name], **common) for name, ds in placed(plan, names).items()]))
print(json.dumps(asdict(found)))
"""
FRESH = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', *sys.argv[1:]]).returncode)"
CASES = ["mixed", "mixed, cast", "mixed, in order", "mixed, tiers", "apart", "automatic"]


def begin(folder):
    for name, rows, row_bytes in (("few", 200, 900_000), ("many", 1000, 250_000)):
        data = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, (rows, row_bytes))
        data[:] = 1
    return begin_all({case: Program(FRESH, (MEASURES, str(folder), case)) for case in CASES}, ahead=folder)


PASSES = Ahead(begin)


@pytest.mark.parametrize("case", CASES)
def test_the_peak_of_loaders_over_several_data_sets_is_predicted_to_a_tenth(case):
    ended = PASSES.found[case]
    assert ended.status == 0, ended.err
    found = Prediction(**json.loads(ended.out[-1]))
    assert found.measured - found.start > 40_000_000, "the passes take enough to tell"
    assert abs(found.error) < 0.1, found


def test_each_data_set_has_lines_of_its_own_and_the_process_is_there_once():
    plan = memload.plan(BOTH, {"mouse": 64, "monkey": 8}, tier={"mouse": "ram", "monkey": "mmap"}, **MACHINE)
    assert plan.ram.of("rows in RAM", "mouse") == plan.ram.of("rows in RAM") == MOUSE.nbytes
    assert plan.ram.of("page cache", "monkey") == MONKEY.nbytes
    assert [line.name for line in plan.ram.lines if not line.of] == ["process"]
    alone = {
        "mouse": memload.plan(MOUSE, 64, tier="ram", **MACHINE),
        "monkey": memload.plan(MONKEY, 8, tier="mmap", **MACHINE),
    }
    process = plan.ram.of("process")
    assert plan.ram.predicted == sum(one.ram.predicted - process for one in alone.values()) + process
    assert plan.stock.predicted == sum(one.stock.predicted - process for one in alone.values()) + process
    assert plan.disk.predicted == MOUSE.nbytes + MONKEY.nbytes
    assert plan.by_set["monkey"].loader == alone["monkey"].data
    assert (plan.tier, plan.by_set["mouse"].tier) == (None, memload.Tier.RAM)
    assert "mouse: rows in RAM" in repr(plan)
    assert repr(plan).startswith('mouse: 1,000 rows of 40.4 kB, 40.4 MB in all, tier "ram"; batches of 64 rows')


def test_a_name_alone_gives_the_arguments_of_one_data_set():
    options = {"tier": {"mouse": "ram", "monkey": "hybrid"}, "cache_bytes": {"monkey": "50MB"}}
    plan = memload.plan(BOTH, 8, ram_dtype={"mouse": {"stim": torch.bfloat16}}, **options, **MACHINE)
    assert plan.ram.of("rows in RAM", "mouse") == 2 * 40_000_000 + 400_000
    assert plan.ram.of("cache of rows", "monkey") == 50_000_000
    assert plan.by_set["monkey"].options == {"tier": "hybrid", "cache_bytes": 50_000_000}
    assert list(plan.by_set["mouse"].options["ram_dtype"]) == ["stim"]
    for_all = memload.plan(BOTH, 8, tier="ram", ram_dtype={"robs": "float16"}, **MACHINE)
    assert for_all.ram.of("rows in RAM") == 40_000_000 + 200_000 + MONKEY.nbytes
    cast = memload.plan(BOTH, 8, cast={"monkey": {"stim": torch.float32}}, **MACHINE)
    assert cast.by_set["monkey"].loader.batch_bytes == 32_000_000
    assert cast.by_set["mouse"].loader.batch_bytes == 8 * 40_400


def test_tiers_of_all_are_chosen_under_one_limit():
    sizes = {"a": 10, "b": 20, "c": 60}
    sets = {name: memload.DatasetShape(n * 1000, {"x": ("uint8", (1_000_000,))}) for name, n in sizes.items()}
    tiers = lambda plan: {name: str(one.tier) for name, one in plan.by_set.items()}  # noqa: E731
    common = {"tier": "auto", "disk": "1TB"}
    assert tiers(memload.plan(sets, 8, ram="130GB", **common)) == dict.fromkeys(sets, "mmap")
    short = memload.plan(sets, 8, ram="64GB", **common)
    assert tiers(short) == {"a": "mmap", "b": "mmap", "c": "hybrid"}
    left = 64e9 - 30e9 / 0.75  # which the page cache keeps
    assert short.by_set["c"].cache_bytes == pytest.approx(left / 2, rel=0.02)
    assert short.tier_reason.startswith("a mmap: 10 GB in files")
    assert short.fits
    for name, one in sets.items():
        assert str(memload.plan(one, 8, ram="64GB", **common).tier) == ("hybrid" if name == "c" else "mmap")
    cast = memload.plan(
        sets, 8, ram="64GB", ram_dtype={"b": {"x": "float16"}}, tier={"b": "ram", "c": "auto"}, disk="1TB"
    )
    assert tiers(cast) == {"a": "mmap", "b": "ram", "c": "hybrid"}
    assert cast.by_set["c"].cache_bytes == pytest.approx((64e9 - 40e9 - 10e9 / 0.75) / 2, rel=0.05)


@pytest.mark.parametrize("names", [("large", "small"), ("small", "large")])
def test_the_smaller_set_goes_to_the_page_cache_first_in_whichever_order_they_are_given(names):
    rows = {"large": 40_000, "small": 20_000}
    sets = {name: memload.DatasetShape(rows[name], {"x": ("uint8", (1_000_000,))}) for name in names}
    plan = memload.plan(sets, 8, tier="auto", ram="64GB", disk="1TB")
    assert {name: str(one.tier) for name, one in plan.by_set.items()} == {"small": "mmap", "large": "hybrid"}


def test_caches_without_a_size_divide_what_is_left_by_the_sizes_of_their_sets():
    plan = memload.plan(BOTH, 8, tier="hybrid", ram="400MB", disk="1TB")
    caches = {name: one.cache_bytes for name, one in plan.by_set.items()}
    assert caches["monkey"] / caches["mouse"] == pytest.approx(MONKEY.nbytes / MOUSE.nbytes, rel=0.01)
    assert plan.fits


def test_what_is_joined_is_planned_with_one_loader():
    shapes = memload.concat(BOTH)
    assert (shapes.names, len(shapes), shapes.nbytes) == (("mouse", "monkey"), 1300, MOUSE.nbytes + MONKEY.nbytes)
    joined = memload.plan(shapes, 32, **MIXED, shuffle=True, **MACHINE)
    assert joined.ram.predicted == memload.plan(BOTH, 32, **MIXED, shuffle=True, **MACHINE).ram.predicted
    assert joined.by_set["mouse"].loader is None
    assert joined.data.batch_bytes == round((1000 * (40_400 + 8) + 300 * (1_000_000 + 8)) / 1300 * 32)
    in_order = memload.plan(shapes, 32, **MIXED, **MACHINE)
    assert in_order.ram.of("loader") > 2 * joined.ram.of("loader"), "batches are wholly of one data set"
    with pytest.raises(ValueError, match="batch_size is one number"):
        memload.plan(shapes, {"mouse": 1, "monkey": 2}, **MIXED, **MACHINE)
    with pytest.raises(TypeError, match=r"give collate_fn=memload\.group_collate"):
        memload.plan(shapes, 32, **MACHINE)


def test_rows_that_a_sampler_draws_by_weight_fill_slots_by_weight():
    sets = {n: memload.from_arrays(x=np.zeros((400, size), np.uint8)) for n, size in (("a", 100_000), ("b", 1000))}
    both = memload.concat(sets)
    loader = [
        memload.plan(both, 32, **MIXED, sampler=memload.MixingSampler(both, [p, 1 - p]), ram="1GB").ram.of("loader")
        for p in (0.1, 0.5, 1.0)
    ]
    assert loader[0] < loader[1] / 2 < loader[2] / 2


def test_views_and_selections_of_joined_data_sets_are_planned():
    a, b = (memload.from_arrays(stim=np.zeros((100, n), np.uint8)) for n in (50_000, 90_000))
    both = memload.concat({"a": a, "b": b})
    rows = [*range(50), *range(100, 110)]
    for part in (both.select(rows), Subset(both, rows)):
        plan = memload.plan(part, 8, **MIXED, tier="mmap", ram="1GB")
        assert {name: one.rows for name, one in plan.by_set.items()} == {"a": 50, "b": 10}
    view = memload.plan(memload.Float32View(both, norm_removed=True), 8, **MIXED, ram="1GB")
    assert view.data.batch_bytes == 4 * 8 * 90_000 + 8 * 8


def test_a_shape_on_a_tier_is_planned_on_it_unless_another_is_given():
    placed = MONKEY.with_tier("ram", ram_dtype={"stim": "float16"})
    assert memload.plan(placed, 8, **MACHINE).ram.of("rows in RAM") == 2 * MONKEY.nbytes
    assert memload.plan(placed, 8, tier="mmap", **MACHINE).tier is memload.Tier.MMAP
    both = memload.plan(memload.concat({"mouse": MOUSE, "monkey": placed}), 8, **MIXED, **MACHINE)
    assert both.ram.of("rows in RAM", "monkey") == 2 * MONKEY.nbytes
    assert both.by_set["mouse"].tier is memload.Tier.MMAP
    joined = memload.concat(BOTH).with_tier({"monkey": "ram"}, ram_dtype={"monkey": {"stim": "float16"}})
    assert memload.plan(joined, 8, **MIXED, **MACHINE).ram.of("rows in RAM", "monkey") == 2 * MONKEY.nbytes
    chosen = memload.plan(memload.concat(BOTH).with_tier("auto"), 8, **MIXED, ram="400MB", disk="1TB")
    assert {name: str(one.tier) for name, one in chosen.by_set.items()} == {"mouse": "mmap", "monkey": "hybrid"}
    with pytest.raises(KeyError, match="tier= names the data set 'cat'"):
        memload.concat(BOTH).with_tier({"cat": "ram"})
    assert memload.concat(MOUSE, MOUSE) == memload.DatasetShape(2000, MOUSE.fields)
    with pytest.raises(ValueError, match="without names, concat joins shapes with the same fields"):
        memload.concat(MOUSE, MONKEY)


def test_what_does_not_fit_says_which_data_set_goes_where():
    plan = memload.plan(BOTH, 8, tier="ram", ram="300MB", disk="1TB")
    assert not plan.fits
    hybrid, mapped, *more = plan.ways_out
    assert hybrid.startswith('tier={"mouse": "ram", "monkey": "hybrid"}, cache_bytes={"monkey": "')
    assert mapped.startswith('tier={"mouse": "ram", "monkey": "mmap"}: RAM ')
    assert more == []
    casts = {"ram_dtype": {"monkey": {"stim": "float16"}}, "tier": {"mouse": "mmap", "monkey": "ram"}}
    cast = memload.plan(BOTH, 8, **casts, ram="500MB", disk="1TB")
    assert cast.ways_out[-1].startswith('tier={"mouse": "mmap", "monkey": "mmap"}, monkey cast while gathering: RAM ')
    hopeless = memload.plan(BOTH, 7, ram="100MB", disk="1TB")
    assert hopeless.ways_out[0].startswith("nothing that can be changed here does: this needs RAM of ")
    smaller = memload.plan(BOTH, 64, ram="250MB", disk="1TB")
    assert [way.partition(":")[0] for way in smaller.ways_out] == ["batch_size=16, 4 of them accumulated"]


def test_ways_out_of_data_sets_with_a_model_are_those_of_a_single_one_as_well():
    with torch.device("meta"):
        layers = [torch.nn.Linear(50_000, 4_250, bias=False) for _ in range(8)]
        frozen = torch.nn.Sequential(*layers).requires_grad_(False)  # 6.8 GB
        trains = torch.nn.Linear(50_000, 8_000, bias=False)
    coming = memload.plan(BOTH, 8, model=frozen, gpu="16GB", ram="4GB", disk="1TB")
    assert any("torch.load(path, mmap=True)" in way for way in coming.ways_out)
    rows = memload.DatasetShape(1000, {"x": ("float32", (50_000,))})
    given = {"model": [trains, frozen], "loss": lambda batch: trains(batch["x"]).mean(), "ram": "64GB"}
    ways = memload.plan({"a": rows, "b": rows}, 9, gpu="10GB", disk="1TB", **given).ways_out
    assert any(way.startswith("frozen models in pinned RAM") for way in ways), ways


def test_values_by_data_set_are_refused_where_there_is_one():
    for given in ({"tier": {"mouse": "ram"}}, {"batch_size": {"mouse": 3}}, {"cache_bytes": {"mouse": "1GB"}}):
        with pytest.raises(ValueError, match=r"is given by data set, .*there is one only: leave names out"):
            memload.plan(MOUSE, **{"batch_size": 8, **given}, **MACHINE)


def test_a_figure_names_the_sets_of_each_tier():
    tiers = {"mouse": "ram", "monkey": "hybrid"}
    plan = memload.plan(BOTH, 8, tier=tiers, cache_bytes={"monkey": "20MB"}, **MACHINE)
    labels = [text.get_text() for text in plan.plot().axes[0].get_yticklabels()]
    assert labels == ["mouse: ram\nmonkey: hybrid", "stock loader"]
    many = dict.fromkeys("abcd", MONKEY)
    more = memload.plan(many, 8, tier={**dict.fromkeys("abc", "mmap"), "d": "ram"}, **MACHINE)
    assert more.plot().axes[0].get_yticklabels()[0].get_text() == "3 sets: mmap\nd: ram"


def test_the_sets_that_fill_the_room_best_stay():
    assert largest_that_fit({"a": 6, "b": 5, "c": 4}, 9) == ("b", "c")
    assert largest_that_fit({"a": 6}, 5) == ()
    many = {str(n): n for n in range(1, 20)}
    assert largest_that_fit(many, 40) == ("19", "18", "3")


def test_rows_on_a_gpu_and_a_model_are_counted_once_each():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(4))
    model(torch.zeros(1, 40_000))
    a = memload.DatasetShape(100, {"x": ("float32", (40_000,))})
    trained = {"model": model, "loss": lambda batch: model(batch["x"]).mean(), "gpu": "8GB", **MACHINE}
    plan = memload.plan({"a": a, "b": a}, 8, tier={"a": "device"}, **trained)
    assert plan.gpu.of("rows on the GPU", "a") == plan.gpu.of("rows on the GPU") == 16_000_000
    assert plan.gpu.of("parameters") == (40_000 + 1) * 4 * 4
    assert len([line for line in plan.gpu.lines if line.name == "CUDA context"]) == 1
    assert plan.gpu.of("batches", "a") > 0 < plan.gpu.of("batches", "b")
    little = memload.plan({"a": a, "b": MONKEY}, 8, tier="device", gpu="700MB", **MACHINE)
    assert little.ways_out[0].startswith('tier={"a": "device", "b": "mmap"}: RAM ')


class Heads(torch.nn.Module):
    """A convolution, and a head for each data set, which its number and its name choose."""

    def __init__(self):
        super().__init__()
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(1, 8, 3, padding=1) for _ in range(2))
        self.heads = torch.nn.ModuleDict({"a": torch.nn.Linear(8 * 24 * 30, 12), "b": torch.nn.Linear(8 * 50 * 50, 7)})
        self.shift = torch.nn.Embedding(2, 8)

    def forward(self, groups):
        total = 0
        for group in groups:
            name, number = ["a", "b"][group["dataset_idx"][0]], int(group["dataset_idx"].unique())
            x = self.convs[number](group["stim"][:, None].float() / 255).relu()
            x = x + self.shift(group["dataset_idx"])[:, :, None, None]
            total = total + (self.heads[name](x.flatten(1)) - group["robs"]).square().mean()
        return total


def peak_of(model, batch):
    found = memload.probe(lambda: model(batch).backward()).peak
    model.zero_grad()
    return found


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.usefixtures("freed_memory_goes_back")
def test_joined_training_is_planned_from_the_batches_that_mix_the_sets(shuffle):
    generator = torch.Generator().manual_seed(0)
    sets = {
        name: memload.from_arrays(
            stim=torch.randint(0, 256, (rows, *shape), dtype=torch.uint8), robs=torch.zeros(rows, width)
        )
        for name, rows, shape, width in (("a", 700, (24, 30), 12), ("b", 300, (50, 50), 7))
    }
    both, model, peaks = memload.concat(sets), Heads(), {}
    loader = memload.FastLoader(both, 64, shuffle=shuffle, generator=generator, **MIXED)

    def peak(batch):
        parts = tuple(tuple(group["stim"].shape) for group in batch)  # how many rows of which set are all that counts
        if parts not in peaks:
            peaks[parts] = peak_of(model, batch)
        return peaks[parts]

    runs = 6 if shuffle else 1  # the fullest batch of a run is a matter of chance
    largest = sum(max(peak(batch) for _ in range(4) for batch in loader) for _ in range(runs)) / runs
    shapes = {
        name: memload.DatasetShape(len(one), {"stim": ("uint8", one[0]["stim"].shape), "robs": ("float32", (width,))})
        for (name, one), width in zip(sets.items(), (12, 7), strict=True)
    }
    for data in (both, memload.concat(shapes)):
        plan = memload.plan(data, 64, **MIXED, shuffle=shuffle, model=model, loss=model, device="cpu", **MACHINE)
        assert plan.ram.of("activations") + plan.ram.of("gradients") == pytest.approx(largest, rel=0.1)
    with pytest.raises(ValueError, match="functions decide the form of a batch: give a batch as sample="):
        memload.plan(both, 64, **MIXED, model=model, loss=model, batch_transform=list, device="cpu", **MACHINE)


@pytest.mark.usefixtures("freed_memory_goes_back")
def test_a_batch_of_groups_as_sample_keeps_the_numbers_of_its_sets():
    model = Heads()
    sample = [
        {"stim": torch.zeros(n, *shape), "robs": torch.zeros(n, width), "dataset_idx": torch.full((n,), k)}
        for k, n, shape, width in ((1, 9, (50, 50), 7), (0, 23, (24, 30), 12))
    ]
    both = memload.concat({n: memload.from_arrays(x=np.zeros((40, k), np.uint8)) for n, k in (("a", 1), ("b", 2))})
    plan = memload.plan(both, 32, **MIXED, model=model, loss=model, sample=sample, device="cpu", **MACHINE)
    assert plan.ram.of("activations") + plan.ram.of("gradients") == peak_of(model, sample)


@pytest.mark.parametrize(
    ("data", "arguments", "error", "words"),
    [
        ({}, {}, ValueError, "at least one data set"),
        ({"a": [1, 2]}, {}, TypeError, "data set 'a': only datasets that the native engine reads"),
        ({"a": BOTH}, {}, TypeError, "data set 'a' has several data sets itself"),
        (BOTH, {"tier": {"cat": "ram"}}, KeyError, "tier= names the data set 'cat'; there are 'mouse', 'monkey'"),
        (BOTH, {"tier": "attic"}, ValueError, "attic"),
        (BOTH, {"tier": {"mouse": "attic"}}, ValueError, "data set 'mouse': .*attic"),
        (BOTH, {"batch_size": {"mouse": 0}}, ValueError, "data set 'mouse': batch_size is a whole number"),
        (BOTH, {"ram_dtype": {"mouse": {"stim": "float16"}}}, ValueError, "data set 'mouse': .*loaded into RAM"),
        (BOTH, {"cast": {"voxels": torch.float32}}, KeyError, "cast= names the field 'voxels'; .*'stim', 'robs'"),
    ],
)
def test_settings_of_data_sets_that_cannot_be_are_refused_by_name(data, arguments, error, words):
    with pytest.raises(error, match=words):
        memload.plan(data, **{**MACHINE, **arguments})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("betas.npy", np.zeros((50, 1000), np.float32))
    np.save("image.npy", np.zeros((50, 8, 8, 3), np.uint8))
    np.save("short.npy", np.zeros((40, 10), np.float32))


def test_the_command_line_plans_paths_that_differ_as_data_sets(folder, capsys):
    arguments = ["plan", "betas.npy", "image.npy", "--batch-size", "betas=4", "--batch-size", "image=8"]
    assert main([*arguments, "--tier", "betas=ram", "--ram-dtype", "betas:data=float16", "--measure", "3"]) == 0
    said = capsys.readouterr().out
    assert 'betas: 50 rows of 4 kB, 200 kB in all, tier "ram"; batches of 4 rows, 8 kB;' in said
    assert 'image: 50 rows of 192 B, 9.6 kB in all, tier "mmap"; batches of 8 rows, 1.54 kB;' in said
    assert ["betas:", "rows", "in", "RAM", "100", "kB"] in [line.split() for line in said.splitlines()]
    assert "RAM over 3 batches: predicted " in said
    assert (
        main(["plan", "betas.npy", "image.npy", "--mixed", "--batch-size", "8", "--tier", "auto", "--measure", "2"])
        == 0
    )
    assert "One loader of all: batches of 8 rows" in capsys.readouterr().out


def test_the_command_line_puts_named_paths_side_by_side_and_casts_as_write_does(folder, capsys):
    arguments = ["plan", "betas=betas.npy", "image=image.npy", "--batch-size", "2"]
    assert main([*arguments, "--cast", "image=float32,norm_removed", "--cast", "betas=bfloat16"]) == 0
    assert "50 rows of 4.19 kB, 210 kB in all; batches of 2 rows, 5.54 kB;" in capsys.readouterr().out
    assert main([*arguments, "--cast", "bfloat16"]) == 0
    assert "batches of 2 rows, 4.38 kB;" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["betas.npy", "--mixed"], "--mixed is for several data sets"),
        (["a=betas.npy", "b=short.npy"], "b has 40 rows. Data sets of their own are given as paths without NAME="),
        (["image.npy", "--cast", "bfloat16"], "name it, as in --cast data=bfloat16; the fields are data"),
        (["betas.npy", "image.npy", "--tier", "ram", "--tier", "image=mmap"], "--tier is given once, or as SET=..."),
        (["betas.npy", "image.npy", "--cast", "cat:data=float16"], "--cast names the data set 'cat'"),
        (["betas.npy", "--batch-size", "many"], "--batch-size: expected a whole number, got 'many'"),
        (["betas.npy", "--cast", "betas:data=float16"], "names a data set, and there is one only"),
        (["betas.npy", "--tier", "attic"], "attic"),
    ],
)
def test_the_command_line_refuses_what_contradicts_itself(folder, capsys, arguments, words):
    assert main(["plan", *arguments]) == 2
    assert words in capsys.readouterr().err

"""The ceilings measure what they say, and the timing helpers count right."""

import io
import json
import os
import re
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from waiting import MOST_SECONDS

import memload
from memload import _core
from memload.cli import bench, measure, stock_loops
from memload.cli import main as cli
from memload.cli.main import main
from memload.cli.measure import Spread, held_in_memory, in_turn, peak_memory, ratio, run_epoch


@pytest.fixture
def dataset():
    rng = np.random.default_rng(1)
    return memload.from_arrays(
        stim=rng.integers(0, 256, (50, 7, 11, 3), np.uint8), robs=rng.standard_normal((50, 5), np.float32)
    )


def ceiling(dataset, rows, batch_size, threads, casts, isa=""):
    return bench.GatherCeiling(dataset, rows, batch_size, threads=threads, cast=casts, isa=isa)


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("isa", _core.isas())
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_the_ceiling_writes_what_a_loader_would(dataset, threads, streaming, isa, dtype):
    casts = bench.casts_of(dataset, dtype)
    rows = bench.shuffled(50, seed=4)
    measured = ceiling(dataset, rows, 8, threads, casts, isa)
    epoch = measured.run(streaming=streaming)
    assert (epoch.batches, epoch.samples, epoch.nbytes) == (6, 48, 6 * measured.batch_bytes)
    loader = memload.FastLoader(dataset.select(rows), 8, drop_last=True, cast=casts)
    for k, batch in list(enumerate(loader))[-4:]:
        for field, tensor in enumerate(batch.values()):
            assert measured.written(k, field) == tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("threads", [1, 3, 16])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_ceiling_reads_only_the_lines_of_crops(dataset, threads, dtype):
    rows, tops, lefts = bench.shuffled(50, seed=4), np.arange(50) % 3, np.arange(50) % 7
    crops = {"stim": (5 * 3, 11 * 3, 5, (tops * 11 + lefts) * 3)}
    casts = bench.casts_of(dataset, dtype)
    measured = bench.GatherCeiling(dataset, rows, 25, threads=threads, cast=casts, crops=crops)
    measured.run(streaming=False)
    stim = dataset.fields["stim"].gather(rows)
    cut = [image[top : top + 5, left : left + 5] for image, top, left in zip(stim, tops, lefts, strict=True)]
    expected = torch.stack([torch.as_tensor(one) for one in cut])
    expected = expected if dtype is None else casts["stim"].apply(expected)
    for batch in range(2):
        wanted = expected[25 * batch : 25 * batch + 25].contiguous().view(torch.uint8).numpy().tobytes()
        assert measured.written(batch, 0) == wanted
        assert measured.written(batch, 1) == dataset.fields["robs"].gather(rows[25 * batch :][:25]).numpy().tobytes()


@pytest.mark.parametrize(
    ("crop", "error"),
    [
        ((15, 33, 7, 19), IndexError),  # the last line ends behind the row
        ((15, 33, 7, -1), IndexError),
        ((1, 2**62, 3, 0), IndexError),
        ((2**63, 0, 1, 0), IndexError),
        ((15, 33, 0, 0), ValueError),
        ((0, 33, 7, 0), ValueError),
    ],
)
def test_a_crop_that_is_not_within_its_row_is_refused(dataset, crop, error):
    *runs, begin = crop
    crops = {"stim": (*runs, np.array([0, begin]))}
    with pytest.raises(error, match="crop"):
        bench.GatherCeiling(dataset, np.arange(2), 2, crops=crops)


@pytest.mark.parametrize("layout", [None, "NCHW"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("computed", [{}, {"norm_removed": True}, {"scale": 1 / 255, "mean": 0.4, "std": 0.2}])
@pytest.mark.parametrize("augment", [None, memload.Augment(crop=(5, 6), flip=0.5)])
def test_plain_loops_have_the_bits_of_the_cast(layout, dtype, channels, computed, augment):
    images = np.random.default_rng(1).integers(0, 256, (20, 9, 11, channels), np.uint8)
    if "mean" in computed:
        computed = {**computed, "mean": tuple(0.4 + 0.1 * c for c in range(channels))}
    cast = memload.Cast(dtype, channels=-1, layout=layout, augment=augment, **computed)
    rows = bench.shuffled(20, seed=4)
    draws = None if augment is None else augment.draws(rows, 9, 11)
    measured = bench.PlainImages(memload.from_arrays(stim=images), rows, 6, cast={"stim": cast}, draws=draws, threads=2)
    epoch = measured.run()
    assert (epoch.batches, epoch.samples, epoch.nbytes) == (3, 18, 3 * measured.batch_bytes)
    expected = cast.apply(torch.from_numpy(images[rows[6:12]]), rows[6:12] if augment else None)
    assert measured.written(1) == expected.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("draw", "error", "words"),
    [
        ([5, 0, 0], ValueError, "a draw that lies within it"),
        ([0, 6, 1], ValueError, "a draw that lies within it"),
        ([-1, 0, 0], ValueError, "a place within its image"),
        ([2**40, 0, 0], ValueError, "a place within its image"),
    ],
)
def test_plain_loops_refuse_draws_outside_of_images(draw, error, words):
    images = memload.from_arrays(stim=np.zeros((2, 9, 11, 3), np.uint8))
    cast = memload.Cast(torch.float32, channels=-1, augment=memload.Augment(crop=(5, 6)))
    with pytest.raises(error, match=words):
        bench.PlainImages(images, np.arange(2), 2, cast={"stim": cast}, draws=np.array([draw, draw]))


def test_plain_loops_refuse_what_they_cannot_do():
    images = memload.from_arrays(stim=np.zeros((2, 9, 11, 3), np.uint8), five=np.zeros((2, 9, 11, 5), np.uint8))
    plain = memload.Cast(torch.float32, channels=-1)
    for cast, words in [
        ({"stim": memload.Cast(torch.float32)}, "channels=-1"),
        ({"stim": memload.Cast(torch.float16, channels=-1)}, "f32 or bf16"),
        ({"five": plain}, "1, 3 or 4 channels"),
    ]:
        with pytest.raises(ValueError, match=words):
            bench.PlainImages(images, np.arange(2), 2, cast=cast)
    with pytest.raises(ValueError, match="each planned image has a draw"):
        bench.PlainImages(images, np.arange(2), 2, cast={"stim": plain}, draws=np.zeros((1, 3), np.int64))
    with pytest.raises(ValueError, match="a whole batch"):
        bench.PlainImages(images, np.arange(2), 3, cast={"stim": plain})
    with pytest.raises(IndexError, match="row 2 of the plan"):
        bench.PlainImages(images, np.array([2]), 1, cast={"stim": plain})


def test_the_ceiling_goes_over_its_plan_again(dataset):
    measured = ceiling(dataset, np.arange(20), 5, 2, {})
    epoch = measured.run(streaming=False, batches=9)
    assert (epoch.batches, epoch.samples) == (9, 45)
    first = dataset.fields["robs"].gather(np.arange(5)).numpy().tobytes()
    assert measured.written(8, 1) == first


def test_fresh_memory_is_gathered_into_once(dataset):
    epoch = ceiling(dataset, np.arange(50), 10, 2, {}).run_fresh()
    assert (epoch.batches, epoch.samples) == (1, 10)
    assert epoch.seconds > 0


@pytest.mark.parametrize(
    ("rows", "batch_size", "error", "words"),
    [
        ([0, 50], 2, IndexError, "row 50 of the plan is not one of the column's 50"),
        ([0, -1], 2, IndexError, "row -1"),
        ([0, 1], 3, ValueError, "fewer rows than one batch"),
        ([0, 1], 0, ValueError, "one row per batch"),
    ],
)
def test_a_plan_that_cannot_be_gathered_is_refused(dataset, rows, batch_size, error, words):
    with pytest.raises(error, match=words):
        ceiling(dataset, np.array(rows), batch_size, 1, {})


def test_an_instruction_set_that_is_not_there_is_refused(dataset):
    with pytest.raises(ValueError, match="sse1"):
        ceiling(dataset, np.arange(50), 10, 1, {}, isa="sse1")


def test_a_file_cut_short_ends_the_ceiling_with_an_error(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((100, 4096), np.uint8))
    measured = ceiling(memload.open(tmp_path / "x.npy"), np.arange(100), 10, 2, {})
    os.truncate(tmp_path / "x.npy", 4096)
    with pytest.raises(RuntimeError, match="cut short"):
        measured.run(streaming=False)


def test_memcpy_copies_for_as_long_as_it_was_told():
    run = _core.bench_memcpy(1 << 20, 2, 0.05)
    assert run["bytes"] >= 1 << 20
    assert run["seconds"] >= 0.05


@pytest.fixture
def file_of_rows(tmp_path):
    path = tmp_path / "rows.bin"
    path.write_bytes(os.urandom(1 << 20))
    return str(path)


@pytest.mark.parametrize(("method", "in_flight"), [("direct", 1), ("direct", 4), ("io_uring", 1), ("io_uring", 32)])
def test_every_row_is_read_past_the_cache(file_of_rows, method, in_flight):
    offsets = np.array([0, 4096, 777, (1 << 20) - 5000] * 50)
    try:
        run = _core.bench_disk(file_of_rows, offsets, 5000, in_flight, method)
    except OSError as refused:
        pytest.skip(f"{method} is not granted here: {refused}")
    assert (run["reads"], run["bytes"]) == (200, 200 * 5000)
    assert run["seconds"] > 0


@pytest.mark.parametrize(
    ("offset", "nbytes", "in_flight", "method", "words"),
    [
        (1 << 20, 1, 1, "direct", "does not lie inside its 1048576 bytes"),
        ((1 << 20) - 9, 10, 1, "direct", "does not lie inside"),
        (-1, 10, 1, "direct", "does not lie inside"),
        (0, 0, 1, "direct", "at least one byte"),
        (0, 1, 0, "direct", "in flight"),
        (0, 1, 1, "psync", "'direct' or 'io_uring'"),
    ],
)
def test_reads_that_make_no_sense_are_refused(file_of_rows, offset, nbytes, in_flight, method, words):
    with pytest.raises(ValueError, match=words):
        _core.bench_disk(file_of_rows, np.array([offset]), nbytes, in_flight, method)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.bin"):
        _core.bench_disk(str(tmp_path / "nothing.bin"), np.array([0]), 1, 1, "direct")


def test_an_epoch_counts_batches_rows_and_bytes():
    batches = [{"x": torch.zeros(4, 2), "y": torch.zeros(4, dtype=torch.uint8)}, {"x": torch.zeros(3, 2)}]
    epoch = run_epoch(batches)
    assert (epoch.batches, epoch.samples, epoch.nbytes) == (2, 7, 32 + 4 + 24)
    assert run_epoch(batches, limit=1).batches == 1
    assert run_epoch([]).batches == 0


def test_an_epoch_stops_when_its_time_is_over():
    def slow():
        for _ in range(1000):
            time.sleep(0.01)
            yield torch.zeros(1)

    assert 1 <= run_epoch(slow(), seconds=0.03).batches < 100


def test_contestants_take_turns_and_the_order_alternates():
    order = []
    in_turn({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_a_ratio_pairs_the_figures_of_each_round():
    assert ratio([2, 6, 20], [1, 2, 4]) == Spread(3, 2, 5, 3)


@pytest.mark.usefixtures("collector_is_off")  # what other tests left would give memory back meanwhile
def test_the_peak_is_seen_though_it_is_over(monkeypatch):
    looked = threading.Semaphore(0)  # once for each look that is over
    look = measure.private_bytes

    def counted():
        found = look()
        looked.release()
        return found

    monkeypatch.setattr(measure, "private_bytes", counted)
    with peak_memory() as peak:
        held = torch.ones(64 << 20, dtype=torch.uint8)
        while looked.acquire(blocking=False):
            pass
        for _ in range(3):  # the first may have begun before, and the last be under way
            assert looked.acquire(timeout=MOST_SECONDS)
        del held
        assert 60 << 20 < peak() < look()  # above the start, not all that the process has


def test_files_are_held_in_memory_or_the_sentence_says_that_they_are_not(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(10_000))
    with held_in_memory([path]) as how:
        assert "locked in memory" in how


@pytest.fixture
def shard(tmp_path, dataset):
    memload.write(tmp_path / "set", dataset, progress=False)
    (path,) = (tmp_path / "set").glob("*.safetensors")
    return path


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("style", stock_loops.STYLES)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # torch's workers, from Python 3.12 on
def test_every_way_to_use_the_stock_loader_gives_the_same_batches(shard, dataset, style, workers):
    cast = stock_loops.plain_cast(torch.float32)
    loop = stock_loops.StockLoop(shard, 8, stock_loops.StockSetting(style, workers), {"stim": cast}, seed=3)
    casts = bench.casts_of(dataset, torch.float32)
    generator = torch.Generator().manual_seed(3)
    expected = list(memload.FastLoader(dataset, 8, shuffle=True, drop_last=True, generator=generator, cast=casts))
    for _ in range(2):  # an epoch begins with the same seed every time
        found = list(loop)
        assert len(found) == 6
        for ours, theirs in zip(expected, found, strict=True):
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_style_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="items, getitems, batch_sampler"):
        stock_loops.StockSetting("magic", 0)


@pytest.fixture(autouse=True)
def _little_is_copied(monkeypatch):
    monkeypatch.setattr(measure, "_COPY_BYTES", 1 << 20)
    monkeypatch.setattr(measure, "_COPY_SECONDS", 0.01)


def test_the_bench_command_prints_shares_and_keeps_figures(tmp_path, capsys, dataset):
    memload.write(tmp_path / "set", dataset, progress=False)
    parser = cli.parser()
    kept = tmp_path / "figures.json"
    words = [str(tmp_path / "set"), "--batch-size", "8", "--rounds", "2", "--json", str(kept)]
    assert bench.run(parser.parse_args(["bench", *words])) == 0
    out = capsys.readouterr().out
    assert "memcpy" in out
    assert "FastLoader" in out
    figures = json.loads(kept.read_text())
    assert [line["variant"] for line in figures["lines"]] == ["raw", "f32", "bf16"]
    assert all(line["share"]["count"] == 2 for line in figures["lines"])
    assert bench.run(parser.parse_args(["bench", *words, "--ceiling"])) == 0
    assert json.loads(kept.read_text())["lines"][0]["share"] is None
    assert "FastLoader" not in capsys.readouterr().out


def kinds_of_sets():
    """What directories of shards may hold, and which fields have a ceiling."""
    ragged = memload.ragged([np.arange(k % 3 + 1, dtype=np.float32) for k in range(20)])
    pixels, numbers = np.zeros((20, 300), np.uint8), np.arange(20)
    graph = [Data(edge_index=torch.tensor([[0, 1], [1, 0]]), x=torch.ones(2, 3)) for _ in range(20)]
    return {
        "plain": ({"stim": pixels, "y": numbers}, {}, ["stim", "y"]),
        "text": ({"stim": pixels, "prompt": [f"row {k}" for k in range(20)]}, {}, ["stim"]),
        "texts": ({"prompt": [f"row {k}" for k in range(20)]}, {}, []),
        "ragged": ({"x": ragged, "y": numbers}, {}, ["y"]),
        "compressed": ({"stim": pixels, "y": numbers}, {"codec": {"stim": "zstd"}}, ["y"]),
        "compressed ragged": ({"x": ragged}, {"codec": "lz4"}, []),
        "empty": ({"x": np.zeros((20, 0)), "y": numbers}, {}, ["y"]),
        "graphs": (memload.from_graphs(graph), {}, []),
    }


@pytest.mark.parametrize("kind", kinds_of_sets())
def test_every_command_takes_every_kind_of_set(kind, tmp_path, capsys):
    data, options, bounded = kinds_of_sets()[kind]
    memload.write(tmp_path / "set", data, progress=False, **options)
    kept = tmp_path / "figures.json"
    for command in (["info"], ["verify", "--quiet"], ["plan", "--measure", "1"]):
        assert main([*command, str(tmp_path / "set")]) == 0
    words = [str(tmp_path / "set"), "--batch-size", "4", "--rounds", "1", "--json", str(kept)]
    assert main(["bench", *words]) == 0
    told, figures = capsys.readouterr().out, json.loads(kept.read_text())
    whole = set(bounded) == set(memload.open(tmp_path / "set").fields)
    assert [line["variant"] for line in figures["lines"]] == (["raw", "f32", "bf16"] if bounded else [])
    assert [line["variant"] for line in figures["all_fields"]] == ([] if whole else ["raw", "f32", "bf16"])
    assert ("Without a ceiling" in told) == (not whole)
    assert all(line["loader"]["median"] > 0 for line in figures["lines"] + figures["all_fields"])
    assert main(["bench", *words, "--ceiling"]) == (0 if bounded else 2)
    assert bounded or "no field here has such rows: leave --ceiling out" in capsys.readouterr().err


class Terminal(io.StringIO):
    """Text that is written to a terminal."""

    def isatty(self):
        return True


def test_one_bar_counts_the_runs_of_all_phases(tmp_path, monkeypatch):
    memload.write(tmp_path / "set", {"x": np.zeros((64, 8), np.uint8), "prompt": ["a"] * 64}, progress=False)
    monkeypatch.setattr(bench, "_BAR_AFTER", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert main(["bench", str(tmp_path / "set"), "--batch-size", "4", "--rounds", "2"]) == 0
    assert set(re.findall(r"/(\d+)[. ]", sys.stderr.getvalue())) == {"36"}  # 3 rounds, 3 variants, 3 runs + all fields
    assert "bench:" in sys.stderr.getvalue()


def test_a_set_that_is_too_small_to_measure_says_what_it_would_take(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "last_level_cache", lambda: 50_000_000)
    np.save(tmp_path / "x.npy", np.zeros((100, 1000), np.uint8))
    words = ["bench", str(tmp_path / "x.npy"), "--rounds", "1"]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Too small to measure: 3 batches, 100 kB in all, so that the start of a pass and the processor's cache count; "
        "give a set of 100 MB and 8 batches or more or a smaller --batch-size."
    )
    assert main([*words, "--json"]) == 0
    assert "3 batches" in json.loads(capsys.readouterr().out)["too_small"]


@pytest.mark.parametrize(
    ("rows", "row_bytes", "fits"), [(8, 8_000_000, True), (7, 10_000_000, False), (8, 7_900_000, False)]
)
def test_the_least_set_that_is_large_enough(rows, row_bytes, fits, monkeypatch):
    monkeypatch.setattr(bench, "last_level_cache", lambda: None)
    dataset = memload.from_arrays(x=np.empty((rows, row_bytes), np.uint8))
    assert (bench.too_small(dataset, 1) is None) == fits


def test_options_of_opening_are_those_of_other_commands(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", stim=np.zeros((50, 4)), other=np.zeros((7, 2)))
    words = ["bench", str(tmp_path / "x.npz"), "--rounds", "1", "--batch-size", "2"]
    assert main(words) == 2
    assert capsys.readouterr().err.endswith("got stim: 50, other: 7; pick those that belong together by --key\n")
    assert main([*words, "--key", "stim"]) == 0
    assert main(["bench", "--key", "stim"]) == 2
    assert "--key says how a path is opened, and none is given" in capsys.readouterr().err


def test_a_set_smaller_than_a_batch_is_refused_with_what_to_do(tmp_path, capsys):
    memload.write(tmp_path / "set", {"x": np.arange(3)}, progress=False)
    assert main(["bench", str(tmp_path / "set")]) == 2
    assert "the dataset has 3 rows, and a batch 32: give a smaller --batch-size" in capsys.readouterr().err


def test_rows_and_bytes_of_every_kind_of_batch_are_counted():
    text = {"prompt": ["ab", "☃"], "x": torch.zeros(2, 3)}
    ragged = memload.Ragged(torch.zeros(5), torch.tensor([0, 2, 5]))
    graphs = next(iter(memload.FastLoader(kinds_of_sets()["graphs"][0], 4, collate_fn=memload.graph_collate)))
    for batch, rows, nbytes in (
        (text, 2, 5 + 24),
        ({"x": ragged}, 2, 20 + 24),
        ((torch.zeros(2), ["a", "b"]), 2, 8 + 2),
        ([{"x": torch.zeros(2)}, {"x": torch.zeros(3)}], 5, 20),
        (graphs, 4, 4 * 2 * (12 + 16) + 8 * 8 + 5 * 8),
    ):
        epoch = run_epoch([batch])
        assert (epoch.samples, epoch.nbytes) == (rows, nbytes)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["bench", "--rounds", "0"], "--rounds is a whole number from 1, not 0"),
        (["bench", "--threads", "-1"], "--threads is a whole number from 1, not -1"),
        (["bench", "--threads", "1025"], "--threads is a whole number from 1 to 1024, not 1025"),
        (["bench", "--json", "nowhere/x.json"], "--json nowhere/x.json: there is no folder"),
        (["demo", "--json", "nowhere/x.json"], "--json nowhere/x.json: there is no folder"),
        (["demo", "--crops", "63"], "two batches of crops; got 3 rounds and 63 crops in batches of 32"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_measured(given, words, capsys):
    assert main(given) == 2
    assert words in capsys.readouterr().err


def test_the_command_line_prints_its_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"memload {memload.__version__}\n"

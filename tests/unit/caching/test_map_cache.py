"""ds.map(fn).cache(...): computed once, known by rows and code, resumed, listed and removed."""

import multiprocessing
import os
import pickle
import random
import shutil
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from programs import run_all
from torch.utils.data import TensorDataset
from waiting import MOST_SECONDS

import memload
from memload.caching import map_cache
from memload.caching.map_results import Results
from memload.cli.main import main
from memload.dataset.mapped import MappedDataset
from memload.engine.tiers.tier import Tier
from memload.formats.shards.staging import being_written


@pytest.fixture
def ds():
    return memload.from_arrays(x=torch.arange(600.0).reshape(200, 3), label=torch.arange(200))


def standardised(sample):
    x = sample["x"]
    return {"x": (x - x.mean()) / x.std(), "name": f"row {int(sample['label'])}", "half": 0.5, "k": np.int16(7)}


def entries(root):
    return sorted(path.name for path in Path(root).iterdir() if not path.name.startswith("."))


def assert_same(mine, theirs):
    assert type(mine) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
    elif isinstance(theirs, dict):
        assert list(mine) == list(theirs)
        assert_same([*mine.values()], [*theirs.values()])
    elif isinstance(theirs, list):
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other)
    else:
        assert mine == theirs


@pytest.mark.parametrize("where", ["stored", "ram", Tier.RAM])
@pytest.mark.parametrize("form", ["dict", "tuple", "only"])
def test_batches_are_those_of_the_mapped_dataset(ds, tmp_path, monkeypatch, where, form):
    monkeypatch.chdir(tmp_path)
    mapped = {
        "dict": ds.map(standardised),
        "tuple": ds.as_tuple().map(lambda pair: (pair[0] * 2, pair[1])),
        "only": ds.only("x").map(torch.neg).map(lambda x: x + 1),
    }[form]
    cached = mapped.cache(where)
    assert isinstance(cached, memload.Dataset)
    assert cached.layout == form
    assert_same(list(memload.FastLoader(cached, 64)), list(memload.FastLoader(mapped, 64)))
    loader = memload.FastLoader(cached.select([3, 1]), batch_size=2)
    assert loader.engine == "native"


def test_a_sample_is_computed_once(ds, tmp_path):
    calls = []

    def counted(sample):
        calls.append(int(sample["label"]))
        return sample["x"]

    mapped = ds.map(counted)
    mapped.cache(tmp_path, version="1")
    assert len(calls) == 204  # the first row twice more, and two others, to see what rows are and whether they stay so
    mapped.cache(tmp_path, version="1")
    assert len(calls) == 204
    mapped.cache(tmp_path, version="2")
    assert len(calls) == 408


def test_other_code_other_captured_values_and_other_rows_are_computed_anew_beside_the_old(ds, tmp_path):
    def scaled_by(factor):
        return lambda sample: sample["x"] * factor

    ones = torch.ones(3)
    ds.map(scaled_by(2)).cache(tmp_path)
    ds.map(scaled_by(2)).cache(tmp_path)
    assert len(entries(tmp_path)) == 1
    for mapped in (
        ds.map(scaled_by(3)),
        ds.map(scaled_by(ones)),
        ds.map(lambda sample: sample["x"] / 2),
        ds.select(range(100)).map(scaled_by(2)),
        ds.map(scaled_by(2)).map(torch.neg),
        memload.from_arrays(x=torch.zeros(200, 3), label=torch.arange(200)).map(scaled_by(2)),
    ):
        before = len(entries(tmp_path))
        cached = mapped.cache(tmp_path)
        assert len(entries(tmp_path)) == before + 1
        assert torch.equal(cached[7], mapped[7])
    ones += 1
    assert torch.equal(ds.map(scaled_by(ones)).cache(tmp_path)[7], ds[7]["x"] * 2)


def test_files_are_known_by_what_they_are_and_rows_in_other_datasets_by_their_bytes(tmp_path):
    memload.write(tmp_path / "set", {"x": torch.arange(5)})
    for _ in range(2):
        memload.open(tmp_path / "set").map(lambda sample: sample["x"] + 1).cache(tmp_path / "cache")
    assert len(entries(tmp_path / "cache")) == 1
    (tmp_path / "set" / "shard-00000.safetensors").touch()
    memload.open(tmp_path / "set").map(lambda sample: sample["x"] + 1).cache(tmp_path / "cache")
    assert len(entries(tmp_path / "cache")) == 2
    for tensor in (torch.arange(5), torch.arange(5), torch.arange(1, 6)):
        memload.MappedDataset(TensorDataset(tensor), lambda sample: sample[0]).cache(tmp_path / "others")
    assert len(entries(tmp_path / "others")) == 2


def draws_torch(sample):
    return sample["x"] + torch.rand(3)


def draws_rarely(sample):
    return sample["x"] if sample["label"] < 190 else torch.nn.functional.dropout(sample["x"])


def asks_for_rng(sample, rng):
    return sample["x"]


def draws_numpy(sample):
    return sample["x"] * (np.random.rand() < 2)  # noqa: NPY002


def draws_python(sample):
    random.random()
    return sample["x"]


def counts(sample, seen=[0]):  # noqa: B006
    seen[0] += 1
    return sample["x"] + seen[0]


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (draws_torch, "draws_torch draws random numbers"),
        (draws_rarely, "draws_rarely draws random numbers"),
        (asks_for_rng, "asks for a random generator"),
        (draws_numpy, "draws from the generators of numpy.random or random"),
        (draws_python, "draws from the generators of numpy.random or random"),
        (counts, "returns another result for the first row"),
    ],
)
@pytest.mark.parametrize("where", ["stored", "ram"])
def test_functions_that_draw_random_numbers_are_refused(ds, tmp_path, monkeypatch, fn, message, where):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"{message}.*cache\\(path\\)\\.map\\(after\\)"):
        ds.map(fn).cache(where)


def test_a_function_that_seeds_a_generator_of_its_own_draws_the_same_and_is_taken(ds):
    def seeded(sample):
        own = torch.Generator().manual_seed(int(sample["label"]))
        return sample["x"] + torch.rand(3, generator=own)

    before = torch.get_rng_state()
    cached = ds.map(seeded).cache("ram")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(cached[11], seeded(ds[11]))


def test_what_cannot_be_hashed_needs_a_version_and_the_error_says_so(ds, tmp_path):
    with (tmp_path / "table").open("w") as table:
        mapped = ds.map(lambda sample: table and sample["x"])
        with pytest.raises(ValueError, match=r"captured 'table': cannot pickle .*; give version="):
            mapped.cache(tmp_path / "cache")
        assert len(mapped.cache(tmp_path / "cache", version="2024-05")) == 200
    with pytest.raises(TypeError, match="version= must be a text"):
        mapped.cache(tmp_path / "cache", version=2)


@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (lambda sample: 1 / (150 - int(sample["label"])), RuntimeError, "^row 150: .*ZeroDivisionError"),
        (lambda sample: 1 / int(sample["label"]), RuntimeError, "row 0: .*ZeroDivisionError"),
        (lambda sample: sample["x"].view(3, *[1] * (int(sample["label"]) // 150)), ValueError, r"row 199: .*\(3, 1\)"),
        (lambda sample: {"a": sample}, TypeError, "'a': dict; a cache can store"),
        (lambda sample: None, TypeError, "row 0: .* 'data': NoneType"),
        (lambda sample: None if sample["label"] == 199 else 1, TypeError, "row 199: .* 'data': NoneType"),
    ],
)
def test_a_function_that_fails_is_named_with_its_rows(ds, tmp_path, fn, error, message):
    with pytest.raises(error, match=message):
        ds.map(fn).cache(tmp_path)


class OfMapped(torch.utils.data.Dataset):
    """A dataset of the user, whose rows are those of a mapped one in other places."""

    def __init__(self, mapped):
        self.mapped = mapped

    def __len__(self):
        return len(self.mapped)

    def __getitem__(self, index):
        return self.mapped[len(self) - 1 - index]


def fails_at_150(sample):
    if sample["label"] == 150:
        raise ValueError("corrupt trial")
    return sample


@pytest.mark.parametrize(
    ("made", "where"),
    [
        (lambda ds: ds.map(standardised).map(lambda row: fails_at_150({"label": 150, **row})), "row 0"),
        (lambda ds: ds.map(fails_at_150).map(standardised), "row 150"),
        (lambda ds: MappedDataset(OfMapped(ds.map(dict)), fails_at_150), "row 49"),
        (lambda ds: MappedDataset(OfMapped(ds.map(fails_at_150)), dict), "rows 0 to 199"),  # its note is of other rows
    ],
)
def test_the_row_at_which_a_function_fails_is_that_of_the_cached_dataset(ds, made, where):
    with pytest.raises(RuntimeError, match=f"^{where}: .* raised ValueError: corrupt trial$"):
        made(ds).cache("ram", version="1")


def test_tiers_that_keep_nothing_of_their_own_and_sets_of_shards_are_no_caches(ds, tmp_path):
    memload.write(tmp_path / "set", ds)
    with pytest.raises(FileExistsError, match="a set of shards; give a directory of its own"):
        ds.map(standardised).cache(tmp_path / "set")
    with pytest.raises(ValueError, match="no rows"):
        ds.select([]).map(standardised).cache(tmp_path)


def test_results_in_a_directory_are_read_on_the_tier_that_is_asked_for(ds, tmp_path):
    expected = list(memload.FastLoader(ds.map(standardised), 64))
    for tier, options in [("mmap", {}), ("direct", {}), ("hybrid", {"cache_bytes": "2MB"}), ("ram", {})]:
        cached = ds.map(standardised).cache(tmp_path, tier=tier, **options)
        assert cached.tier is Tier(tier)
        assert_same(list(memload.FastLoader(cached, 64)), expected)
    assert len(entries(tmp_path)) == 1


@pytest.mark.parametrize("form", ["dict", "only"])
def test_auto_keeps_results_where_they_fit_and_says_why(ds, tmp_path, monkeypatch, form):
    mapped = {"dict": ds.map(standardised), "only": ds.only("x").map(torch.neg)}[form]
    in_ram = mapped.cache("auto")
    assert in_ram.tier is Tier.RAM
    assert in_ram.tier_reason.startswith("ram: the transform makes ")
    again = pickle.loads(pickle.dumps(in_ram))
    monkeypatch.setattr(map_cache, "free_memory", lambda **_: (10**3, None))
    on_disk = mapped.cache(tmp_path, tier="auto")
    assert on_disk.tier is Tier.MMAP
    assert "written once, it fits on the disk, where " in on_disk.tier_reason
    assert "it is in files already" in mapped.cache(tmp_path, tier="auto").tier_reason
    monkeypatch.undo()
    loaded = mapped.cache(tmp_path, tier="auto")  # from what was written, without computing it again
    assert (loaded.tier, loaded.layout, len(entries(tmp_path))) == (Tier.RAM, form, 1)
    for cached in (in_ram, again, on_disk, loaded):
        assert_same(list(memload.FastLoader(cached, 64)), list(memload.FastLoader(mapped, 64)))


def test_windows_of_results_end_where_their_recordings_do(ds, tmp_path):
    recordings = ds.concat(ds.select(range(50)))
    for base in (recordings, recordings.as_tuple("x", "label")):
        mapped = base.map(lambda sample: sample)
        for where, options in [("ram", {}), ("auto", {}), (tmp_path, {}), (tmp_path, {}), (tmp_path, {"tier": "auto"})]:
            cached = mapped.cache(where, **options)
            field = next(iter(cached.fields))
            assert len(cached.with_lags({field: range(3)})) == 248 - 2
            windows, expected = cached.windows(field, window=4), base.windows("x", window=4)
            assert len(windows) == len(expected) == 250 - 3 - 3
            rows = np.arange(len(windows))
            assert torch.equal(windows.fields[field].gather(rows), expected.fields["x"].gather(rows))
    assert len(memload.FastLoader(cached, 50)) == 5
    whole = TensorDataset(torch.arange(250.0))  # which knows of no recordings
    cached = memload.MappedDataset(whole, lambda row: row[0]).cache("ram")
    assert len(cached.windows(window=4)) == 247


def test_files_that_another_process_renames_meanwhile_count_nothing(ds, tmp_path, monkeypatch):
    monkeypatch.setattr(map_cache, "disk_free", lambda _: 5000)
    stored = map_cache._StoredResults(Results(ds.map(standardised)), tmp_path, None, False)
    begun = being_written(stored._path)
    assert stored.room == 5000
    begun.mkdir(parents=True)
    (begun / "shard-2.safetensors").write_bytes(b"234")
    (begun / "shard-0.safetensors").symlink_to(begun / "renamed")  # listed, and gone when it is asked for
    assert stored.room == 5003
    there, away = begun / "shards", begun.with_name("away")
    done = threading.Event()

    def renames():
        while not done.is_set():
            there.mkdir()
            (there / "shard-1.safetensors").write_bytes(b"1")
            there.rename(away)
            shutil.rmtree(away)

    with ThreadPoolExecutor(1) as pool:
        renaming = pool.submit(renames)
        try:
            assert {stored.room for _ in range(1000)} <= {5000, 5003, 5004}
        finally:
            done.set()
        renaming.result()


def test_what_fits_ram_alone_is_written_nowhere(ds, tmp_path, monkeypatch):
    monkeypatch.setattr(map_cache, "disk_free", lambda _: 5000)
    cached = ds.map(standardised).cache(tmp_path, tier="auto")
    assert (cached.tier, entries(tmp_path)) == (Tier.RAM, [])


def test_what_an_interrupted_run_wrote_needs_no_room_again(tmp_path, monkeypatch):
    many, last = memload.from_arrays(x=torch.rand(2000, 3), row=torch.arange(2000)), 1500

    def ends(sample):
        if sample["row"] > last:
            raise KeyError("ends")
        return sample["x"].repeat(400)

    with pytest.raises(RuntimeError, match="ends"):
        many.map(ends).cache(tmp_path, version="1")
    last = 2000
    monkeypatch.setattr(map_cache, "free_memory", lambda **_: (10**3, None))
    monkeypatch.setattr(map_cache, "disk_free", lambda _: 8_000_000)  # 9.6 MB in all, and a fifth more
    assert many.map(ends).cache(tmp_path, tier="auto", version="1").tier is Tier.MMAP
    assert isinstance(many.map(ends).cache(tmp_path, tier="auto", version="2"), memload.MappedDataset)


@pytest.mark.parametrize("base", ["files", "memory", "another's"])
def test_what_auto_can_keep_nowhere_is_computed_for_every_batch(ds, tmp_path, capsys, base):
    memload.write(tmp_path / "set", ds, progress=False)
    rows = torch.zeros(10**6, dtype=torch.int64)
    many = {
        "files": memload.open(tmp_path / "set").select(rows),
        "memory": ds.select(rows),
        "another's": TensorDataset(torch.zeros(10**6)),
    }[base]
    huge = memload.MappedDataset(many, lambda sample: torch.zeros(10**6))
    found = huge.cache(tmp_path / "cache", tier="auto", version="1", progress=True)
    assert isinstance(found, memload.MappedDataset)
    assert (
        "the transform makes 4 TB, which fits neither RAM nor the disk, and runs for every batch" in found.tier_reason
    )
    assert found.tier_reason.startswith(
        {"files": "mmap: ", "memory": "ram: ", "another's": "the transform makes"}[base]
    )
    assert f"not cached: {found.tier_reason}" in capsys.readouterr().err
    assert found.tier_reason in repr(found)
    assert found.select([1]).tier_reason == found.tier_reason
    assert len(found[1]) == 10**6


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ([""], {}, ValueError, 'a directory such as "cache/", or "ram" or "auto", got an empty text'),
        (["hybrid"], {}, ValueError, r'the tier "hybrid" reads files: .* cache\("cache/", tier="hybrid"\)'),
        (["ram"], {"tier": "mmap"}, TypeError, 'tier: for results in a directory, .* not for "ram"'),
        (["ram"], {"share": True}, TypeError, "share: for results in a directory"),
        (["there"], {"tier": "attic"}, ValueError, "tier is one of 'mmap', 'direct'"),
        (["there"], {"tier": "auto", "cache_bytes": "1GB"}, TypeError, "cache_bytes: only with a tier of your choice"),
        (
            ["there"],
            {"tier": "mmap", "faster": 1},
            TypeError,
            "cache takes no faster=; options of tiers are ram_dtype,",
        ),
    ],
)
def test_a_place_that_is_none_is_refused_before_anything_is_computed(
    ds, monkeypatch, tmp_path, arguments, options, error, words
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        ds.map(standardised).cache(*arguments, **options)
    assert entries(tmp_path) == []


def test_rows_of_a_mapped_dataset_change_their_tier_and_functions_stay(ds, tmp_path):
    memload.write(tmp_path / "set", ds, progress=False)
    mapped = memload.open(tmp_path / "set").map(standardised)
    there = mapped.with_tier("hybrid", cache_bytes="2MB")
    assert (mapped.tier, there.tier) == (Tier.MMAP, Tier.HYBRID)
    assert_same(list(memload.FastLoader(there, 64)), list(memload.FastLoader(mapped, 64)))
    assert mapped.with_tier("auto").tier_reason.startswith("mmap: ")
    with pytest.raises(TypeError, match="rows of TensorDataset have no tiers of their own"):
        memload.MappedDataset(TensorDataset(torch.zeros(3)), torch.neg).with_tier("ram")
    with pytest.raises(TypeError, match="with_tier takes no faster="):
        mapped.with_tier("ram", faster=True)


@pytest.mark.parametrize(("where", "error"), [("ram", MemoryError), ("stored", memload.DiskSpaceError)])
def test_room_is_looked_for_before_most_is_computed(ds, tmp_path, monkeypatch, where, error):
    monkeypatch.chdir(tmp_path)
    calls = []

    def large(sample):
        calls.append(1)
        return torch.zeros(10**6)

    with pytest.raises(error, match=r"take 4 TB and need 4.8 TB free"):
        ds.select(torch.zeros(10**6, dtype=torch.int64)).map(large).cache(where, version="1")
    assert len(calls) < 100
    assert not any(tmp_path.rglob("*.safetensors"))


def fewer_from_150_on(sample):
    return {"x": sample["x"]} if sample["label"] >= 150 else {"x": sample["x"], "k": 1}


def other_at_7(sample):
    return (sample["x"],) if sample["label"] == 7 else {"x": sample["x"]}


@pytest.mark.parametrize("in_processes", [False, True])
def test_a_row_with_other_fields_deep_in_a_cache_is_named_with_its_fields(ds, tmp_path, in_processes):
    rows = memload.from_arrays(x=torch.zeros(2000, 3), label=torch.arange(2000) % 1999)  # the last is like the first
    fewer = rows.map(lambda s: {"x": s["x"]} if s["label"] == 1700 else s, in_processes=in_processes)
    said = r"^row 1,700 has the fields \['x'\] \(dict\), expected \['x', 'label'\] \(dict\) as in .*same fields"
    with pytest.raises(ValueError, match=said):
        fewer.cache(tmp_path)
    with pytest.raises(ValueError, match=r"^row 199 has the fields \['x'\] \(dict\), expected \['x', 'k'\] \(dict\)"):
        ds.map(fewer_from_150_on, in_processes=in_processes).cache(tmp_path)
    with pytest.raises(ValueError, match=r"^row 7 has the fields \['0'\] \(tuple\), expected \['x'\] \(dict\)"):
        ds.map(other_at_7, in_processes=in_processes).cache(tmp_path)


def lacks_at_130(sample):
    return {"x": sample["x"], "y": {}["missing"] if sample["label"] == 130 else 0}


def error_of(loader):
    """Return the text alone: an error holds frames, and these the workers, which torch ends in 10 s if collected."""
    try:
        list(loader)
    except KeyError as error:
        return str(error)
    return "no error"


def test_an_error_in_a_worker_process_is_told_as_the_functions_own(ds, tmp_path):
    mapped = ds.map(lacks_at_130, in_processes=True)
    with pytest.raises(RuntimeError, match=r"^row 130: lacks_at_130 raised KeyError: 'missing'$") as caught:
        mapped.cache(tmp_path)
    assert isinstance(caught.value.__cause__, KeyError)
    first, second, *rest = error_of(memload.FastLoader(mapped, batch_size=10, num_workers=2)).splitlines()
    assert first == "row 130: lacks_at_130 raised KeyError: 'missing'"
    assert "without in_processes=True, or give num_workers=0" in second
    assert any("in lacks_at_130" in line for line in rest)


def is_text_at_130(sample):
    return "text" if sample["label"] == 130 else 1


@pytest.mark.parametrize("call", ["stored", "in RAM", "scored"])
@pytest.mark.parametrize("fn", [lacks_at_130, is_text_at_130])
def test_worker_processes_end_with_the_call_though_its_error_is_kept(tmp_path, fn, call):
    many = memload.from_arrays(x=torch.zeros(2000, 3), label=torch.arange(2000) // 10).map(fn, in_processes=True)
    with pytest.raises((RuntimeError, ValueError, KeyError, AttributeError)) as caught:
        if call == "scored":
            memload.score(lambda batch: batch.float(), many, 10, num_workers=2)
        else:
            many.cache(tmp_path if call == "stored" else "ram")
    assert multiprocessing.active_children() == [], caught


def test_functions_for_worker_processes_run_in_these(ds, tmp_path):
    parent = os.getpid()

    def heavy(sample):
        return {"x": sample["x"], "here": int(os.getpid() == parent)}

    cached = ds.map(heavy, in_processes=True).cache(tmp_path, version="1")
    assert not any(batch["here"].any() for batch in memload.FastLoader(cached, 64))


PROGRAM = """
    import os
    import signal
    import time
    from pathlib import Path

    import torch
    import memload

    def slow(sample):
        if {dies} and int(sample["k"]) == 15_000:
            os.kill(os.getpid(), signal.SIGKILL)
        return sample["k"].expand(64) * 2

    while not {dies} and not list(Path({root!r}).glob(".*/unfinished.json")):
        time.sleep(0.001)
    cached = memload.from_arrays(k=torch.arange(20_000)).map(slow).cache({root!r}, version="1", progress=True)
    assert cached[19_999].tolist() == [39_998] * 64
    print(len(cached))
"""


def test_who_comes_while_it_is_computed_waits_for_it(ds, tmp_path, monkeypatch):
    began, released, calls = threading.Event(), threading.Event(), []

    def slow(sample):
        calls.append(1)
        if sample["label"] == 5:
            began.set()
            assert released.wait(MOST_SECONDS)
        return sample["x"]

    monkeypatch.setattr(map_cache, "note", lambda said, _: (said.count("waiting for that"), released.set()))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ds.map(slow).cache, tmp_path, version="1")
        assert began.wait(MOST_SECONDS)
        second = ds.map(lambda sample: sample["x"]).cache(tmp_path / "other")  # in nobody's way
        assert not released.is_set()
        waited = ds.map(slow).cache(tmp_path, version="1")
    assert released.is_set()
    assert torch.equal(waited[199], first.result()[199])
    assert len(second) == len(waited) == 200
    assert len(calls) == 208  # four of them to look at rows, twice


def test_of_several_processes_one_goes_on_where_another_was_killed(tmp_path):
    dying = {"killed": True, "rank0": False, "rank1": False}
    sources = {name: textwrap.dedent(PROGRAM).format(dies=dies, root=str(tmp_path)) for name, dies in dying.items()}
    ended = run_all(sources)
    assert ended["killed"].status == -9
    assert [ended[name].out for name in ("rank0", "rank1")] == [["20000"]] * 2, ended["rank0"].err
    said = ended["rank0"].err + ended["rank1"].err
    assert said.count("resumed where it was interrupted") == 1
    (entry,) = entries(tmp_path)
    assert memload.verify(tmp_path / entry) > 0


def test_the_command_lists_and_removes(ds, tmp_path, capsys):
    ds.map(standardised).cache(tmp_path)
    ds.only("x").map(torch.neg).cache(tmp_path)
    left = [0] * 15_000

    def ends(sample):
        left.pop()
        return sample["x"]

    with pytest.raises(RuntimeError):
        ds.select(torch.arange(20_000) % 200).map(ends).cache(tmp_path, version="1")
    capsys.readouterr()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine-0123456789abcdef").mkdir()
    assert main(["cache", "list", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count("200 rows") == 2
    assert "standardised" in out
    assert "unfinished" in out
    assert "mine" not in out
    assert "3 entries" in out
    assert main(["cache", "rm", str(tmp_path), "--unfinished"]) == 0
    assert main(["cache", "rm", str(tmp_path), "neg-"]) == 0
    assert capsys.readouterr().out.count("removed") == 2
    assert len([name for name in entries(tmp_path) if name.startswith("standardised-")]) == 1
    assert main(["cache", "rm", str(tmp_path), "nothing"]) == 2
    assert main(["cache", "rm", str(tmp_path)]) == 2
    assert "give --all or --unfinished" in capsys.readouterr().err
    assert main(["cache", "rm", str(tmp_path), "--all"]) == 0
    assert entries(tmp_path) == ["mine", "mine-0123456789abcdef"]
    assert main(["cache", "list", str(tmp_path / "missing")]) == 2


def test_rows_that_are_drawn_anew_in_each_pass_are_not_cached(tmp_path):
    session = memload.recording({"x": np.arange(600)}, clocks={"x": 60}, intervals=[(0, 5), (5, 10)])
    drawn = session.slices(1.0, within="trials", random=True)
    first = session.only("x").slices(1.0)
    for base in (drawn, torch.utils.data.Subset(drawn, [0]), memload.concat({"a": drawn, "b": first})):
        with pytest.raises(ValueError, match="field 'x': the starts of its slices are drawn anew in each pass"):
            MappedDataset(base, dict).cache(tmp_path)
    assert len(first.map(dict).cache("ram")) == len(first)

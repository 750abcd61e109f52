"""Tiers: wherever rows are kept while they are read, they are the same rows."""

import contextlib
import fcntl
import itertools
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from cgroups import limited, why_not
from disks import can_be_read_directly, evict
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Program, run_all
from torch.utils.data import DataLoader

import memload
from memload.engine.tiers.choosing import Needs, choose
from memload.engine.tiers.pressure import to_give_back
from memload.engine.tiers.tier import Tier
from memload.engine.transforms import room
from memload.errors import DeviceError, MemorySpaceError
from memload.memory import arenas, budget, guards
from memload.memory.budget import Memory
from memload.memory.limits import CONTROL_GROUP, DATA, MemoryLimit
from memload.planning.heap import heap_keeps_tensors

ROWS = 61
TIERS = {
    "mmap": {},
    "direct": {},
    "ram": {},
    "ram shared": {"share": True},
    "ram compressed": {"compressed": True},
    "hybrid": {"cache_bytes": "1MiB"},
    "auto": {},
}
SETS = ("plain", "coded", "ragged")


def arrays(n=ROWS):
    rng = np.random.default_rng(n)
    return {
        "stim": rng.integers(0, 256, (n, 40, 101), np.uint8),
        "robs": rng.normal(size=(n, 3)).astype(np.float32),
        "wide": rng.integers(-9, 9, (n, 33_001), np.int16),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiers")
    ds = memload.from_arrays(arrays())
    memload.write(folder / "plain", ds, shard_bytes="3MB", progress=False)
    memload.write(folder / "coded", ds, codec="lz4", progress=False)
    rows = [torch.arange(n) for n in np.random.default_rng(1).integers(0, 900, ROWS)]
    memload.write(folder / "ragged", {"tokens": memload.ragged(rows), "label": torch.arange(ROWS)}, progress=False)
    return folder


def on(folder, name, tier):
    return memload.open(folder / name, tier=tier.split()[0], **TIERS[tier])


def batches(ds, **arguments):
    loader = memload.FastLoader(ds, 7, shuffle=True, generator=torch.Generator().manual_seed(3), **arguments)
    assert loader.engine == "native"
    return list(loader)


def assert_same(got, expected):
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for name in expected:
            assert_same(got[name], expected[name])
    elif isinstance(expected, (list, tuple)) and not isinstance(expected, torch.Tensor):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, memload.Ragged):
        assert_same((got.values, got.offsets), (expected.values, expected.offsets))
    else:
        assert torch.equal(got, expected)


def views(ds):
    yield ds
    yield ds.select([5, 3, 5, 60, 0, 59]).concat(ds)
    yield ds.only(next(iter(ds.fields)))
    if "stim" in ds.fields:
        yield ds.with_lags(stim=range(4), wide=[0, 3]).select(range(10, 40))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("tier", TIERS)
def test_batches_samples_and_pickles_are_the_same_on_every_tier(folder, name, tier):
    plain = memload.open(folder / name)
    for mapped, other in zip(views(plain), views(on(folder, name, tier)), strict=True):
        assert_same(batches(other), batches(mapped))
        assert_same(other[len(other) - 1], mapped[len(mapped) - 1])
        travelled = pickle.loads(pickle.dumps(other))
        assert_same(travelled.__getitems__(range(len(other))), mapped.__getitems__(range(len(other))))


@pytest.mark.parametrize("tier", ["ram", "ram shared", "hybrid"])
def test_a_tier_given_to_a_view_loads_its_rows_and_gives_the_same(folder, tier):
    options = TIERS[tier]
    for view in views(memload.open(folder / "plain")):
        assert_same(batches(view.with_tier(tier.split()[0], **options)), batches(view))


@pytest.mark.parametrize("tier", ["direct", "ram", "hybrid"])
def test_a_state_of_one_tier_is_resumed_on_another(folder, tier):
    loaders = [
        memload.FastLoader(ds, 7, shuffle=True, generator=torch.Generator().manual_seed(3))
        for ds in (on(folder, "plain", tier), memload.open(folder / "plain"))
    ]
    passes = iter(loaders[0])
    begun = list(itertools.islice(passes, 4))
    state = loaders[0].state_dict()
    rest = list(passes)
    loaders[1].load_state_dict(state)
    assert_same(list(loaders[1]), rest)
    assert_same(begun + rest, batches(memload.open(folder / "plain")))


@given(
    st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=30), st.sampled_from(sorted(TIERS)), st.sampled_from(SETS)
)
@settings(max_examples=25, deadline=None)
def test_any_selection_is_the_same_on_every_tier(folder, rows, tier, name):
    view = memload.open(folder / name).select(rows)
    other = view.with_tier(tier.split()[0], **TIERS[tier])
    assert_same(other.__getitems__(range(len(rows))), view.__getitems__(range(len(rows))))


def test_rows_that_no_file_has_any_more_cannot_go_back_to_one(tmp_path):
    ds = memload.write(tmp_path / "s", {"x": torch.arange(40, dtype=torch.uint8).view(10, 4)})
    cast = ds.with_tier("ram", ram_dtype={"x": torch.float32}, progress=False)
    with pytest.raises(ValueError, match="choose a tier for the dataset as it was opened"):
        cast.with_tier("mmap")
    with pytest.raises(TypeError, match=r"ram_dtype= of the field .*got None"):
        ds.with_tier("ram", ram_dtype={"x": None}, progress=False)


def test_members_of_a_join_keep_their_tiers(folder):
    hot, cold = memload.open(folder / "plain", tier="ram"), memload.open(folder / "plain", tier="direct")
    both = hot.concat(cold)
    assert (hot.tier, cold.tier, both.tier) == (Tier.RAM, Tier.DIRECT, None)
    assert "tier ram and direct" in repr(both)
    plain = memload.open(folder / "plain")
    assert_same(batches(both), batches(plain.concat(plain)))
    named = memload.concat({"hot": hot, "cold": cold})
    assert_same(batches(named), batches(memload.concat({"hot": plain, "cold": plain})))
    zipped = memload.zip(a=hot.only("stim"), b=cold.only("robs"))
    assert_same(batches(zipped), batches(memload.zip(a=plain.only("stim"), b=plain.only("robs"))))


def test_a_forked_worker_reads_what_its_parent_has_in_a_cache(folder):
    ds = on(folder, "plain", "hybrid")
    batches(ds)
    loader = DataLoader(ds, 7, num_workers=1, multiprocessing_context="fork")
    assert_same(list(loader), list(DataLoader(memload.open(folder / "plain"), 7)))


def test_rows_are_cast_once_on_their_way_into_ram_and_other_fields_stay(folder):
    rule = memload.Cast(torch.bfloat16, norm_removed=True)
    plain = memload.open(folder / "plain")
    ds = plain.with_tier("ram", ram_dtype={"stim": rule, "wide": "float32"})
    assert [str(ds.fields[name].dtype) for name in ds.fields] == ["torch.bfloat16", "torch.float32", "torch.float32"]
    expected = plain[7]
    assert torch.equal(ds[7]["stim"], rule.apply(expected["stim"]))
    assert torch.equal(ds[7]["wide"], expected["wide"].float())
    assert torch.equal(ds[7]["robs"], expected["robs"])
    as_cast = batches(plain, cast={"stim": rule, "wide": memload.Cast(torch.float32)})
    assert_same(batches(ds), as_cast)
    colours = memload.Cast(torch.float32, scale=0.5, mean=list(range(101)), std=2.0, channels=-1)
    assert torch.equal(plain.with_tier("ram", ram_dtype={"stim": colours})[3]["stim"], colours.apply(plain[3]["stim"]))
    lagged = plain.with_lags(stim=[0, 2]).with_tier("ram", ram_dtype={"stim": rule})
    assert torch.equal(lagged[0]["stim"], rule.apply(plain.with_lags(stim=[0, 2])[0]["stim"]))
    memory = memload.from_arrays(x=torch.arange(6).reshape(3, 2)).with_tier("ram", ram_dtype={"x": torch.float16})
    assert torch.equal(memory[1]["x"], torch.tensor([2.0, 3.0], dtype=torch.float16))


def test_what_is_in_ram_does_not_need_its_file_any_more(tmp_path):
    data = np.random.default_rng(0).integers(0, 256, (50, 3000), np.uint8)
    np.save(tmp_path / "a.npy", data)
    ds = memload.open(tmp_path / "a.npy", tier="ram")
    os.truncate(tmp_path / "a.npy", 100)
    assert np.array_equal(torch.stack([ds[i]["data"] for i in range(50)]).numpy(), data)


def test_compressed_shards_stay_compressed_in_ram_if_asked(folder):
    decoded, compressed = on(folder, "coded", "ram"), on(folder, "coded", "ram compressed")
    assert "decoded" not in decoded.fields["robs"].stored.how
    assert "lz4" in compressed.fields["stim"].stored.how
    assert not any(storage.mapped for storage in compressed.fields["stim"].column.storages)


@pytest.fixture
def on_disk(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (1000, 4096), np.uint8))
    if not can_be_read_directly(path):
        pytest.skip(f"{path} is on a file system without O_DIRECT")
    evict(path)
    return path


def test_direct_reads_every_byte_past_the_page_cache_and_leaves_nothing_there(on_disk):
    ds = memload.open(on_disk, tier="direct")
    (storage,) = ds.fields["data"].column.storages
    for _ in range(2):  # and does so again
        loader = memload.FastLoader(ds, 50, shuffle=True)
        list(loader)
        assert loader.stats().direct_bytes == loader.stats().bytes_in == ds.nbytes
        assert loader.stats().major_faults == loader.stats().advised_rows == 0
    cold = memload.FastLoader(memload.open(on_disk), 50)
    list(cold)
    assert cold.stats().advised_rows > 0  # nothing of it was in the page cache
    assert storage.tier == "direct"


def test_a_cache_of_half_the_rows_halves_the_reads_of_every_later_epoch_and_evicts_nothing(on_disk):
    ds = memload.open(on_disk, tier="hybrid", cache_bytes=2_200_000)
    loader = memload.FastLoader(ds, 50, shuffle=True)
    read = []
    for _ in range(4):
        before = loader.stats().direct_bytes
        list(loader)
        read.append((loader.stats().direct_bytes - before) / ds.nbytes)
    assert read[0] == 1
    assert 0.45 < read[1] < 0.56
    assert max(read[1:]) - min(read[1:]) < 0.01
    (cache,) = {storage.cache for storage in ds.fields["data"].column.storages}
    assert cache.stats()["displaced"] == 0
    assert loader.stats().cached_bytes == (4 - sum(read)) * ds.nbytes


def test_a_cache_keeps_what_is_drawn_most(on_disk):
    ds = memload.open(on_disk, tier="hybrid", cache_bytes="1200KB")
    list(memload.FastLoader(ds, 50))  # the first rows come first
    weights = torch.ones(1000)
    weights[800:] = 16.0  # four fifths of the draws are of the last fifth of the rows
    sampler = memload.WeightedSampler(weights, 20_000, generator=torch.Generator().manual_seed(0))
    loader = memload.FastLoader(ds, 50, sampler=sampler)
    list(loader)
    first = loader.stats()
    list(loader)
    second = loader.stats()
    hits = (second.cached_bytes - first.cached_bytes) / (second.bytes_in - first.bytes_in)
    assert hits > 0.6  # what came first alone would give 0.06


def test_an_automatic_tier_gives_its_reason_and_a_given_one_none(folder):
    ds = memload.open(folder / "plain", tier="auto")
    assert ds.tier is Tier.MMAP
    assert ds.tier_reason.startswith("mmap: ")
    assert "which the page cache keeps" in ds.select([1, 2]).tier_reason
    coded = memload.open(folder / "coded", tier="auto")
    assert (coded.tier, coded.tier_reason.split(",")[0]) == (Tier.RAM, "ram: decoded once")
    cast = memload.open(folder / "plain", tier="auto", ram_dtype={"stim": torch.float32})
    assert cast.fields["stim"].dtype == torch.float32
    assert memload.open(folder / "plain", tier="direct").tier_reason == ""
    assert memload.from_arrays(x=torch.zeros(3)).tier is Tier.RAM


@pytest.mark.parametrize(
    ("tier", "options", "error", "words"),
    [
        ("fast", {}, ValueError, "tier is one of 'mmap', 'direct'"),
        ("device", {"share": True}, TypeError, 'share= is for tier="ram"; the tier here is "device"'),
        ("device", {"device": "cuda:99"}, (ValueError, DeviceError), "cuda:99"),
        ("ram", {"device": "cuda"}, TypeError, 'device= is for tier="device", "pinned" and "split", not "ram"'),
        ("direct", {"share": True}, TypeError, 'share= is for tier="ram"'),
        ("ram", {"cache_bytes": "1GB"}, TypeError, 'cache_bytes= is for tier="hybrid"'),
        ("mmap", {"share": True}, TypeError, "share: for another tier"),
        ("mmap", {"cache_bytes": "1GB"}, TypeError, 'as in tier="hybrid"'),
        ("hybrid", {"cache_bytes": 1000}, ValueError, "at least 1 MiB, got 1 kB"),
        ("hybrid", {"cache_bytes": "900TB"}, MemorySpaceError, 'the cache of tier="hybrid" takes 900 TB'),
        ("hybrid", {"on_pressure": "stop"}, ValueError, 'on_pressure is "shrink" or None'),
        ("ram", {"ram_dtype": torch.float32}, TypeError, "ram_dtype= maps fields to casts or dtypes"),
        ("ram", {"ram_dtype": {"x": torch.float32}}, KeyError, "names the field 'x'"),
        ("ram", {"ram_dtype": {"stim": torch.int8}}, TypeError, "a cast is to one of"),
        ("ram", {"ram_dtype": {"stim": memload.Cast(torch.float32, channels=-1, layout="NCHW")}}, ValueError, "loader"),
        (
            "ram",
            {"faster": True},
            TypeError,
            "memload.open takes no faster=; options of tiers are ram_dtype, compressed",
        ),
    ],
)
def test_a_wrong_option_says_what_is_allowed(folder, tier, options, error, words):
    with pytest.raises(error, match=words.replace("(", r"\(")):
        memload.open(folder / "plain", tier=tier, **options)
    with pytest.raises(ValueError, match="cannot be cast in RAM"):
        memload.open(folder / "ragged", tier="ram", ram_dtype={"tokens": torch.float32})


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64, np.bool_])
def test_a_dtype_that_is_not_cast_on_the_way_into_ram_is_named_and_the_loader_casts_it(dtype):
    ds = memload.from_arrays(x=np.arange(6).astype(dtype))
    said = rf"ram_dtype= of the field 'x': rows of {np.dtype(dtype)} .*FastLoader\(cast=\)"
    with pytest.raises(ValueError, match=said):
        ds.with_tier("ram", ram_dtype={"x": "float32"})
    (batch,) = memload.FastLoader(ds, 6, cast={"x": "float32"})
    assert torch.equal(batch["x"], torch.from_numpy(np.arange(6).astype(dtype).astype(np.float32)))


def test_what_cannot_fit_is_refused_with_figures(tmp_path):
    free = Memory(64 << 30, 40 << 30, (MemoryLimit(CONTROL_GROUP, 10**10, 8 * 10**9),))
    guards.check_memory(7 * 10**9, "a set", "do", free)
    with pytest.raises(MemorySpaceError, match=r"takes 7.9 GB; .* 8 GB \(.* 68.7 GB, .* allows 10 GB\): do") as refused:
        guards.check_memory(79 * 10**8, "a set", "do", free)
    assert (refused.value.need, refused.value.free) == (79 * 10**8, 8 * 10**9)
    sparse = tmp_path / "huge.npy"
    np.lib.format.open_memmap(sparse, "w+", np.uint8, (1 << 20, 1 << 18)).flush()
    with pytest.raises(MemorySpaceError, match=r'tier="ram" takes 275 GB; .* use tier="hybrid"'):
        memload.open(sparse, tier="ram")
    assert memload.open(sparse, tier="auto").tier in (Tier.HYBRID, Tier.DIRECT)


BATCHES_OF_HUGE_ROWS = """
import resource
import memload, numpy as np
resource.setrlimit(resource.RLIMIT_AS, (10**11, 10**11))  # should nobody refuse
np.lib.format.open_memmap("huge.npy", "w+", np.uint8, (3, 2 * 10**10)).flush()
np.lib.format.open_memmap("wide.npy", "w+", np.uint8, (3, 5 * 10**9, 2)).flush()
np.lib.format.open_memmap("tiny.npy", "w+", np.uint8, (9, 3)).flush()

def refused(*names, **settings):
    data = memload.concat({name: memload.open(f"{name}.npy") for name in names})
    try:
        next(iter(memload.FastLoader(data, collate_fn=memload.group_collate, **settings)))
        print("begun")
    except memload.MemorySpaceError as error:
        print(str(error).partition(";")[0], error.need // 10**8)

try:
    next(iter(memload.FastLoader(memload.open("huge.npy"), batch_size=1)))
except memload.MemorySpaceError as error:
    print(str(error).partition(";")[0], error.need)
refused("huge", "tiny", batch_size=2)
refused("huge", "tiny", batch_size=4, shuffle=True)
refused("huge", "wide", batch_size=1)
"""


def test_batches_that_memory_cannot_hold_are_refused_before_the_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_all({"huge": BATCHES_OF_HUGE_ROWS})["huge"]
    alone, in_order, mixed, twice = done.out or [done.err] * 4
    assert alone.startswith("the loop's batch with those gathered ahead, 3 of 20 GB, takes 60 GB 6000")
    assert in_order.endswith("3 of 20 GB, takes 60 GB 600"), "never more than there are rows"
    assert mixed.endswith("3 of 20 GB, takes 60 GB 600"), "a quarter of the rows are huge"
    assert twice.endswith("3 of 30 GB, takes 90 GB 900"), "each member has slots of its own"


def test_the_first_batch_that_functions_make_says_how_many_memory_holds(monkeypatch):
    def ahead(free_gb, depth=4):
        monkeypatch.setattr(budget, "memory", lambda: Memory(10**12, round(free_gb * 10**9)))
        found = room.Room(depth, threads=2)
        found.find(torch.empty(10**9, dtype=torch.uint8), {1: 10**8})
        return found

    assert [(one.ahead, bool(one.to_say)) for one in map(ahead, (7, 6, 5, 2, 0.9))] == [
        *((4, False), (3, True), (2, True), (1, True), (0, False))
    ]
    waits = ahead(0.9)
    with pytest.raises(MemorySpaceError, match=r"a second batch .* takes 1 GB; this process can still take 900 MB"):
        waits.check()
    assert ahead(2).is_scarce
    assert not ahead(7).is_scarce


MADE_LARGER = """
import os, sys, warnings
import memload, numpy as np

group, times, of_samples = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "samples"
row = 1 << 20
os.chdir(sys.argv[4])
np.lib.format.open_memmap("rows.npy", "w+", np.uint8, (120, row)).flush()
data, settings = memload.open("rows.npy"), {}
if of_samples:
    data = data.map(lambda sample: {"made": sample["data"].numpy().repeat(times)})
else:
    settings = {"batch_transform": lambda batch: {"made": batch["data"].repeat(1, times)}}
options = memload.EngineOptions(threads=2, depth=2, transform_threads=2, direct=False)
with open(group, "w") as processes:
    processes.write(str(os.getpid()))
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as said:
    got = 0
    try:
        for _ in range(2):
            for batch in memload.FastLoader(data, 20, options=options, **settings):
                got += 1
                assert batch["made"].shape == (20, times * row)
    except memload.MemorySpaceError as error:
        print("refused", error)
print(got, *(str(one.message) for one in said if one.category is memload.MemoryWarning))
"""


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("of", ["batches", "samples"])
def test_what_functions_make_of_batches_is_kept_to_what_memory_holds(tmp_path, of):
    programs = {}
    with contextlib.ExitStack() as groups:
        for megabytes, times in ((4000, 8), (700, 8), (600, 16)):
            group = groups.enter_context(limited(megabytes << 20, f"-{megabytes}"))
            folder = tmp_path / str(megabytes)
            folder.mkdir()
            programs[str(megabytes)] = Program(MADE_LARGER, (str(group), str(times), of, str(folder)))
        ample, scarce, short = run_all(programs).values()
    assert (ample.status, ample.out) == (0, ["12"]), ample.err
    assert scarce.status == short.status == 0, scarce.err + short.err
    assert scarce.out[0].startswith("12 memory has no room for 4 batches ahead of the loop: each takes 168 MB")
    assert short.out[0].startswith("refused a second batch of what your functions make, beside that of the loop, takes")
    assert short.out[1:] == ["1"]


def cache_budget(ds):
    """Bytes that the cache of its field "data" may take."""
    return ds.fields["data"].column.storages[0].cache.budget


def free_memory_stays(monkeypatch):
    """Let free memory be what it is now, whatever other processes take and give back."""
    found = budget.memory()
    monkeypatch.setattr(budget, "memory", lambda: found)


def test_processes_of_one_machine_share_what_can_be_shared_and_divide_the_rest(folder, tmp_path, monkeypatch):
    sparse = tmp_path / "huge.npy"
    np.lib.format.open_memmap(sparse, "w+", np.uint8, (1 << 20, 1 << 18)).flush()
    free_memory_stays(monkeypatch)
    alone = cache_budget(memload.open(sparse, tier="hybrid"))
    lent = lambda ds: any(storage.locator for storage in ds.fields["stim"].column.storages)  # noqa: E731
    assert not lent(memload.open(folder / "coded", tier="auto"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert cache_budget(memload.open(sparse, tier="hybrid")) == pytest.approx(alone / 4, rel=0.1)
    half = f"{alone / 1e9:.3g}GB"
    with pytest.raises(MemorySpaceError, match=r'"hybrid", in each of 4 processes \(LOCAL_WORLD_SIZE\) .*, takes .*'):
        memload.open(sparse, tier="hybrid", cache_bytes=half)
    shared = memload.open(folder / "coded", tier="auto")
    assert (shared.tier, lent(shared)) == (Tier.RAM, True)
    assert "in each of 4 processes" in memload.open(sparse, tier="auto").tier_reason
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000000")
    with pytest.raises(MemorySpaceError, match=r"in each of 1000000 processes .* in all, of .*: give share=True"):
        memload.open(folder / "plain", tier="ram")


def test_what_one_cache_will_take_is_not_promised_to_another(tmp_path, monkeypatch):
    sparse = tmp_path / "huge.npy"
    np.lib.format.open_memmap(sparse, "w+", np.uint8, (1 << 20, 1 << 18)).flush()
    free_memory_stays(monkeypatch)
    first = memload.open(sparse, tier="hybrid")
    second = memload.open(sparse, tier="hybrid")
    assert cache_budget(second) == pytest.approx(cache_budget(first) / 2, rel=0.1)
    with pytest.raises(MemorySpaceError, match="of it for caches that are not full yet"):
        memload.open(sparse, tier="hybrid", cache_bytes=cache_budget(first))
    del first
    assert memload.open(sparse, tier="hybrid", cache_bytes=cache_budget(second)).tier is Tier.HYBRID


@pytest.mark.parametrize(
    ("needs", "free", "processes", "tier", "cache"),
    [
        (Needs(rows=10, stored=10), 14, 8, Tier.MMAP, 0),  # one page cache
        (Needs(rows=10, stored=10, cast=20), 40, 8, Tier.RAM, 0),  # one copy
        (Needs(rows=100, stored=100), 80, 1, Tier.HYBRID, 40),
        (Needs(rows=100, stored=100), 80, 8, Tier.HYBRID, 5),
        (Needs(rows=100, stored=100), 80, 9, Tier.DIRECT, 0),
        (Needs(rows=10, stored=10, transformed=20), 80, 2, Tier.RAM, 0),
        (Needs(rows=10, stored=10, transformed=20, shared=False), 80, 2, Tier.RAM, 0),
        (Needs(rows=10, stored=10, transformed=20, shared=False), 80, 3, Tier.MMAP, 0),
    ],
)
def test_of_several_processes_what_each_has_for_itself_counts_for_each(needs, free, processes, tier, cache):
    choice = choose(needs, free, 0, processes)
    assert (choice.tier, choice.cache_bytes) == (tier, cache)


def test_a_cache_gives_back_what_is_short():
    def short(*limits):
        return to_give_back(Memory(1000, 900, tuple(MemoryLimit(*one) for one in limits)))

    assert short((CONTROL_GROUP, 400, 30)) == 60 - 30
    assert short((CONTROL_GROUP, 400, 40)) == 0
    assert short() == 0
    assert short((CONTROL_GROUP, 400, 300), (DATA, 5000, 400)) == 750 - 400, "a process that may have no more is short"


@pytest.fixture
def own_names(monkeypatch):
    """Names in /dev/shm that no other process of this machine has or removes."""
    monkeypatch.setattr(arenas, "_prefix", lambda: f"memload-test-{os.getpid()}-")


def test_files_that_killed_processes_left_are_removed(own_names):
    path = arenas._folder() / f"{arenas._prefix()}left"
    path.write_text("999999999 3 17\n")
    arenas.sweep()
    assert not path.exists()


@pytest.mark.parametrize("ends", [False, True])
def test_a_file_that_took_the_place_of_one_that_was_opened_stays(monkeypatch, own_names, ends):
    path = arenas._folder() / f"{arenas._prefix()}replaced"
    locator = f"{os.getpid()} 999 1"
    path.write_text(f"{locator}\n")
    flock, files = fcntl.flock, []

    def others_are_faster(file, operation):
        if not files and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            path.unlink()
            files.append(path.open("w"))
            flock(files[0], fcntl.LOCK_EX)  # of a process that loads rows
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", others_are_faster)
    if ends:
        arenas._leave(path, locator)
    else:
        arenas.sweep()
    with files[0]:
        assert path.exists()
    path.unlink()


PREFACE = """
import gc, os, signal, sys, time, memload, numpy as np, torch
from memload.memory import arenas
from pathlib import Path
folder = Path({folder!r})
def wait_for(*names):
    while not all((folder / name).exists() for name in names):
        time.sleep(0.01)
"""
SEEN = """
# What a process has mapped (Rss, Pss) tells nothing for sure: the kernel may unmap pages at any time. So the first rank
# clears the memory that it shares, through its descriptor, and each rank reads the rows once more.
if {name!r} == {first!r}:
    for descriptor in os.listdir("/proc/self/fd"):
        link = Path("/proc/self/fd", descriptor)
        if not link.is_symlink() or not os.readlink(link).startswith("/memfd:memload"):
            continue
        for at in range(0, os.fstat(int(descriptor)).st_size, 1 << 20):
            os.pwrite(int(descriptor), bytes(1 << 20), at)
    (folder / "{first}.cleared").touch()
wait_for("{first}.cleared")
print(total, any(batch["data"].any() for batch in memload.FastLoader(ds, 8)), flush=True)
"""
SHARED = """
wait_for("killed")
ds = memload.open(folder / "rows.npy", tier="ram", share=True, progress=False)
total = sum(int(batch["data"].sum()) for batch in memload.FastLoader(ds, 8))
(folder / {name!r}).touch()
wait_for("a", "b")
{seen}
(folder / {name!r}).with_suffix(".seen").touch()
wait_for("a.seen", "b.seen")
from memload.engine.tiers.loading import LoadPlan
print(LoadPlan.of(memload.open(folder / "rows.npy").fields, {{}}, compressed=False).key())
"""
KILLED = """
from memload.engine.tiers.loading import LoadPlan
plan = LoadPlan.of(memload.open(folder / "rows.npy").fields, {}, compressed=False)
def end(arena):
    (folder / "killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)
arenas.shared_arena(plan.key(), plan.span, end)
"""
LIMITED = """
gc.disable()  # it would touch, and so copy, all objects of the process that this one was forked from
from memload.engine.tiers.pressure import Pressure
watching, look = [], Pressure.look
def seen(pressure):
    watching[:] = [pressure]
    look(pressure)
Pressure.look = seen
Path({procs!r}).write_text(str(os.getpid()))
ds = memload.open(folder / "rows.npy", progress=False, {options})
loader = memload.FastLoader(ds, 8, shuffle=True)
ballast, total = [], 0
for epoch in range(3):
    for batch in loader:
        total += int(batch["data"][:, 0].sum())
        if epoch and len(ballast) < 100:
            ballast.append(np.ones(1 << 20, np.uint8))
            if watching and len(ballast) % 4 == 0:  # the reserve is 18 MB: until the next batch is to begin with a look
                time.sleep(max(0.0, watching[0].next_look - time.monotonic()))
cache = next(iter(ds.fields["data"].column.storages)).cache
print(total, cache.budget < 110_000_000, loader.stats().cached_bytes > 0, flush=True)
os._exit(0)  # nor does the end of the interpreter
"""
HOLES = """
from memload.engine.tiers.pressure import HEAP_WATCH
Path({procs!r}).write_text(str(os.getpid()))
torch.set_num_threads(1)
torch.ones(7 << 20)  # 28 MB that are freed: from here on the heap has tensors below that
between, taken = [], 0
for step, batch in enumerate(memload.FastLoader(memload.from_arrays(x=np.zeros((160, 8))), 8)):
    tensors = []
    for _ in range(16):  # of 1 MB: the holes that they leave are too small for those of the next step
        tensors.append(torch.ones((1 << 18) + step * 4096))
        between.append(torch.ones(1024))
    taken += sum(tensor.nbytes for tensor in tensors)
    tensors.clear()
    time.sleep(max(0.0, HEAP_WATCH.next_look - time.monotonic()))
print(step, taken > 350_000_000, flush=True)
os._exit(0)
"""
RANK = """
Path({procs!r}).write_text(str(os.getpid()))
ds = memload.open(folder / "rows.npy", tier="auto", ram_dtype={{"data": torch.bfloat16}}, progress=False)
total = sum(int(batch["data"][:, 0].double().sum()) for batch in memload.FastLoader(ds, 8))
(folder / {name!r}).touch()
wait_for("rank0", "rank1")
{seen}
(folder / {name!r}).with_suffix(".seen").touch()
wait_for("rank0.seen", "rank1.seen")
"""
GREEDY = """
Path({procs!r}).write_text(str(os.getpid()))
try:
    ds = memload.open(folder / "rows.npy", tier="ram", ram_dtype={{"data": torch.bfloat16}}, progress=False)
    print("loaded", flush=True)
except memload.MemorySpaceError as error:
    print(error, flush=True)
(folder / {name!r}).touch()
wait_for("greedy0", "greedy1")  # who has loaded keeps it until the other knows
os._exit(0)
"""
BESIDE = """
from memload.memory.guards import Filling
Path({procs!r}).write_text(str(os.getpid()))
filling = Filling(150 << 20, "it", "wait")
for _ in range(3):
    filling.begin(32 << 20)
ours, theirs = os.pipe()
if os.fork() == 0:
    taken = bytearray(b"1") * (200 << 20)
    os.write(theirs, b"1")
    time.sleep(600)
os.read(ours, 1)
try:
    filling.begin(32 << 20)
except memload.MemorySpaceError as error:
    print(error, flush=True)
os.killpg(0, signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What programs left that share memory, or have little of it; they run side by side."""
    folder = tmp_path_factory.mktemp("shared")
    data = np.random.default_rng(0).integers(0, 256, (512, 1 << 18), np.uint8)
    np.save(folder / "rows.npy", data)
    seen = {name: SEEN.format(name=name, first="a") for name in ("a", "b")}
    programs = {name: Program(SHARED.format(name=name, seen=seen[name])) for name in seen}
    programs["killed"] = Program(KILLED)
    with contextlib.ExitStack() as stack:
        if why_not() is None:
            programs |= limited_programs(lambda nbytes, name: str(stack.enter_context(limited(nbytes, name))))
        preface = PREFACE.format(folder=str(folder))
        left = run_all({name: replace(one, code=preface + one.code) for name, one in programs.items()})
    return left, data


def limited_programs(group):
    hybrid = 'tier="hybrid", cache_bytes=110_000_000'
    options = {"ram": 'tier="ram"', "hybrid": hybrid, "shrinks": f'{hybrid}, on_pressure="shrink"'}
    found = {
        name: Program(LIMITED.format(procs=group(184 << 20, name), options=given)) for name, given in options.items()
    }
    together = group(640 << 20, "ranks")  # of which 268 MB are less than half, until one has loaded them
    for name in ("rank0", "rank1"):
        code = RANK.format(procs=together, name=name, seen=SEEN.format(name=name, first="rank0"))
        found[name] = Program(code, environment={"LOCAL_WORLD_SIZE": "2"})
    greedy = group(400 << 20, "greedy")
    for name in ("greedy0", "greedy1"):
        found[name] = Program(GREEDY.format(procs=greedy, name=name))
    found["holes"] = Program(HOLES.format(procs=group(200 << 20, "holes")))
    found["beside"] = Program(BESIDE.format(procs=group(400 << 20, "beside")))
    return found


def test_ranks_of_a_machine_have_one_copy_even_after_the_first_was_killed_while_it_loaded(ended):
    left, data = ended
    assert left["killed"].status == -9
    for name in ("a", "b"):
        assert (left[name].status, left[name].err) == (0, "")
        assert left[name].out[:-1] == [f"{data.sum()} False"], "a rank has a copy of its own"
    arenas.sweep()  # of two that leave at once, one may leave its line
    assert arenas._folder() / f"{arenas._prefix()}{left['a'].out[1]}" not in list(arenas._folder().iterdir())


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_a_cache_that_shrinks_survives_where_the_ram_tier_is_killed(ended):
    left, data = ended
    for name in ("ram", "hybrid"):  # refused, where the group's page cache had already taken too much
        assert left[name].status == -9 or "MemorySpaceError" in left[name].err
    assert (left["shrinks"].status, left["shrinks"].err) == (0, "")
    assert left["shrinks"].out == [f"{3 * data[:, 0].astype(np.int64).sum()} True True"]


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.skipif(not heap_keeps_tensors(), reason="this C library's heap keeps no tensors")
def test_holes_that_a_loop_leaves_in_the_heap_are_given_back_before_its_process_is_killed(ended):
    left, _data = ended
    assert (left["holes"].status, left["holes"].err, left["holes"].out) == (0, "", ["19 True"])


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_two_ranks_with_an_automatic_tier_choose_the_same_and_have_one_copy(ended):
    left, data = ended
    for name in ("rank0", "rank1"):
        assert (left[name].status, left[name].err) == (0, "")
        assert left[name].out == [f"{data[:, 0].astype(np.int64).sum()} False"], "a rank has a copy of its own"


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_who_loads_more_than_is_left_by_others_that_load_is_refused_and_not_killed(ended):
    left, _ = ended
    both = [left[name] for name in ("greedy0", "greedy1")]
    assert [(one.status, one.err) for one in both] == [(0, "")] * 2
    refused = [one.out[0] for one in both if one.out != ["loaded"]]
    assert refused
    assert all('tier="ram" takes ' in said and "this process can still take " in said for said in refused)


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_who_loads_beside_others_leaves_them_what_their_threads_have_begun(ended):
    (said,) = ended[0]["beside"].out
    assert "what others may have begun and what is left to be loaded by it takes 2" in said


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Sets of images, the cast that makes planes of them, and what it makes of them, by field."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)  # rows below a page, above 64 KB, and above what one read gives
    stored = {f"x{side}": rng.integers(0, 256, (12, side, side + 1, 3), np.uint8) for side in (30, 170, 650)}
    arrays = memload.from_arrays({**stored, "row": np.arange(12)})
    memload.write(folder / "plain", arrays, progress=False)
    memload.write(folder / "coded", arrays, codec="lz4", progress=False)
    rule = memload.Cast(torch.bfloat16, channels=-1, layout="NCHW", mean=(1.0, 2.0, 3.0), std=(3.0, 5.0, 7.0))
    return folder, rule, {name: rule.apply(torch.from_numpy(one)) for name, one in stored.items()}


@pytest.mark.parametrize("tier", [tier for tier in TIERS if tier != "auto"])
def test_images_become_planes_wherever_their_rows_lie(images, tier):
    folder, rule, planes = images
    for name in ("plain", "coded"):
        loader = memload.FastLoader(on(folder, name, tier), 5, shuffle=True, cast=dict.fromkeys(planes, rule))
        for batch in (*loader, *loader):  # the second pass of a hybrid tier finds some rows in its cache
            for image, expected in planes.items():
                assert torch.equal(batch[image], expected[batch["row"]])

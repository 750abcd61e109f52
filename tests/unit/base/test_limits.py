"""Limits on memory and threads: each is seen beforehand where it can be, and named where it refuses."""

import json
import re
import threading

import numpy as np
import pytest
from programs import Ahead, Program, begin_all, run

from memload.cli.doctor import Fact
from memload.engine.tiers.choosing import Needs, choose
from memload.engine.tiers.tier import Tier
from memload.memory import budget, refusals
from memload.memory.limits import ADDRESSES, CONTROL_GROUP, DATA, SLURM, MemoryLimit, group_name, process_limits
from memload.memory.threads import ThreadPool
from memload.planning.account import Account, Line, rows_of

GB = 10**9
PREFACE = """
import json, os, resource, sys
import numpy as np, torch
import memload

def limit(kind, more):
    counted = {"AS": "VmSize:", "DATA": "VmData:"}[kind]
    lines = open("/proc/self/status").read().splitlines()
    now = next(int(line.split()[1]) * 1024 for line in lines if line.startswith(counted))
    number = getattr(resource, f"RLIMIT_{kind}")
    resource.setrlimit(number, (now + more, resource.getrlimit(number)[1]))

def rows(count):
    return memload.from_arrays(x=np.zeros((count, 1 << 16), np.uint8))

def tell(call):
    try:
        print(json.dumps(["ran", str(call())]))
    except BaseException as error:
        bases = [one.__name__ for one in type(error).__mro__]
        print(json.dumps([bases, str(error), getattr(error, "need", None)]))

"""
SCENES = {
    "ring": """
data = rows(600)
limit(KIND, 50_000_000)
tell(lambda: next(iter(memload.FastLoader(data, batch_size=500))))
""",
    "left": """
def held():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
loader = memload.FastLoader(rows(4000), batch_size=1000, depth=8)
next(iter(loader))
loader.close()  # no memory stays for the second pass
before = held()
iterator = iter(loader)
limit(KIND, 100_000_000)
tell(lambda: next(iterator))
del iterator
print(json.dumps(held() - before))
""",
    "kept": """
data = rows(3000)
limit(KIND, 100_000_000)
tell(lambda: [batch for batch in memload.FastLoader(data, batch_size=100)])
""",
    "made": """
data = rows(300)
limit(KIND, 64_000_000)
def large(batch):
    return {"x": batch["x"].double()}
tell(lambda: [0 for _ in memload.FastLoader(data, batch_size=100, batch_transform=large, threads=1)])
""",
    "map_cache": """
data = rows(1000).map(lambda row: {"x": row["x"].float()})
limit(KIND, 100_000_000)
tell(lambda: data.cache("ram"))
""",
    "ram": """
data = memload.open(FILE)
limit(KIND, 100_000_000)
tell(lambda: data.with_tier("ram", progress=False))
""",
    "shared": """
data = memload.open(FILE)
limit(KIND, 100_000_000)
tell(lambda: len(data.with_tier("ram", share=True, progress=False)))
""",
    "cache": """
data = memload.open(FILE)
limit(KIND, 300_000_000)
tell(lambda: data.with_tier("hybrid", cache_bytes="290MB"))
""",
    "cast": """
data = memload.open(FILE)
limit(KIND, 300_000_000)
tell(lambda: data.with_tier("auto", ram_dtype={"data": torch.float32}))
""",
    "map": """
limit(KIND, 100_000_000)
tell(lambda: memload.open(FILE))
""",
    "plan": """
limit(KIND, 100_000_000)
shape = memload.DatasetShape(10_000, {"x": ("uint8", (1 << 16,))})
tell(lambda: memload.plan(shape, batch_size=1000, tier="direct"))
""",
    "batch_size": """
net = torch.nn.Linear(1000, 10)
memload.compute_batch_size(net, torch.rand(2, 1000), max_batch_size=10)
limit(KIND, 20_000_000)
tell(lambda: memload.compute_batch_size(net, torch.rand(2, 1000), min_batch_size=5000))
""",
    "threads": """
limit(KIND, 6_000_000)
tell(lambda: next(iter(memload.FastLoader(rows(40), batch_size=2, threads=64)))["x"].sum().item())
""",
}
NO_PROCESSES = """
import memload.memory.refusals, memload.memory.threads  # nothing is to be imported as another user
path = FILE
data, mapped = memload.open(path), rows(40)
big = torch.zeros(1 << 25, dtype=torch.uint8)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)  # root is not limited
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
tell(lambda: next(iter(memload.FastLoader(mapped, batch_size=2))))
tell(lambda: next(iter(memload.FastLoader(mapped, batch_size=2, batch_transform=lambda b: b))))
tell(lambda: data.with_tier("ram", progress=False))
tell(lambda: memload.Monitor(show=False).start())
tell(lambda: memload.cast_stim(big, norm_removed=True, dtype=torch.bfloat16).sum().item())
"""


def begin(folder):
    """Each scene under each limit, side by side."""
    folder.chmod(0o755)
    np.lib.format.open_memmap(folder / "rows.npy", "w+", np.uint8, (3000, 1 << 16)).flush()
    words = {"FILE": repr(str(folder / "rows.npy"))}
    programs = {
        f"{name} {kind}": PREFACE + code.replace("KIND", repr(kind))
        for kind in ("AS", "DATA")
        for name, code in SCENES.items()
    }
    programs["processes"] = PREFACE + NO_PROCESSES
    programs = {name: Program(code.replace("FILE", words["FILE"])) for name, code in programs.items()}
    return begin_all(programs, ahead=folder)


SCENES_AHEAD = Ahead(begin)


@pytest.fixture(scope="module")
def told():
    """What each scene said under each limit."""
    return {name: [json.loads(line) for line in one.out] or [one.err] for name, one in SCENES_AHEAD.found.items()}


SAID = {"AS": "the limit RLIMIT_AS (ulimit -v) allows", "DATA": "the limit RLIMIT_DATA (ulimit -d) allows"}


@pytest.mark.parametrize("kind", ["AS", "DATA"])
@pytest.mark.parametrize("scene", ["ring", "kept", "made", "map_cache", "ram", "cache"])
def test_a_limit_of_the_process_refuses_with_its_name_and_figures(told, scene, kind):
    ((bases, text, need),) = told[f"{scene} {kind}"]
    assert bases[0] == "MemorySpaceError", text
    assert SAID[kind] in text
    assert need > 1_000_000
    assert "this process can still take" in text or "this process may take" in text


@pytest.mark.parametrize("kind", ["AS", "DATA"])
def test_a_pass_that_is_refused_memory_leaves_none_behind(told, kind):
    (bases, _, _), more = told[f"left {kind}"]
    assert bases[0] == "MemorySpaceError"
    assert more < 32_000_000  # a slot has 65 MB


def test_shared_rows_and_mapped_files_count_among_addresses_only(told):
    for scene in ("shared", "map"):
        assert told[f"{scene} DATA"][0][0] == "ran", told[f"{scene} DATA"]
        bases, text, need = told[f"{scene} AS"][0]
        assert (bases[0], need) == ("MemorySpaceError", pytest.approx(196_608_000, rel=0.02))
        assert SAID["AS"] in text
    assert "since mapped files count to it, or open fewer files" in told["map AS"][0][1]


@pytest.mark.parametrize(("kind", "name"), [("AS", "RLIMIT_AS (ulimit -v)"), ("DATA", "RLIMIT_DATA (ulimit -d)")])
def test_planners_stay_within_the_limit_and_name_it(told, kind, name):
    ran, plan = told[f"plan {kind}"][0]
    assert ran == "ran", plan
    assert re.search(rf"RAM .*does not fit: .* too much for the limit {re.escape(name)}", plan)
    bases, text, _ = told[f"batch_size {kind}"][0]
    assert "MemoryError" in bases
    assert f"the limit {name} allows" in text
    bases, text, _ = told[f"cast {kind}"][0]
    assert bases[0] == "ValueError"
    assert re.search(
        rf"cast, rows are 786 MB, too much for half of the .* MB that the limit {re.escape(name)} leaves", text
    )


@pytest.mark.parametrize("kind", ["AS", "DATA"])
def test_a_loader_gathers_with_as_many_threads_as_the_system_gives(told, kind):
    (said,) = told[f"threads {kind}"]
    assert said[0] == "ran" or said[0][0] in ("MemorySpaceError", "ThreadLimitError"), said


def test_without_any_thread_the_error_names_the_limit_on_processes(told):
    *refused, cast = told["processes"]
    assert len(refused) == 4
    for bases, text, _ in refused:
        assert bases[:3] == ["ThreadLimitError", "MemloadError", "RuntimeError"], text
        assert "may be 1 together (the limit RLIMIT_NPROC, ulimit -u)" in text
    assert cast[0] == "ran", "the calling thread casts alone"


@pytest.mark.parametrize("scout", ["finds too little", "ends before it can look"])
def test_no_thread_is_started_that_would_end_without_a_word(scout):
    told = run(PREFACE + NO_ROOM_FOR_FIRST_STEPS, scout)
    kinds, said, _ = json.loads(told.out[0])
    assert "ThreadLimitError" in kinds, said
    assert json.loads(told.out[1]) == ["ran", "1"]  # where nothing is limited, nobody looks


NO_ROOM_FOR_FIRST_STEPS = """
from memload.memory import threads

def one_call():
    with threads.ThreadPool(1) as pool:
        return pool.submit(abs, -1).result()

threads._FIRST_STEPS = 1 << 30
if sys.argv[1] == "ends before it can look":
    threads._take_first_steps = lambda: None  # is called with arguments
free = resource.getrlimit(resource.RLIMIT_DATA)
limit("DATA", 100_000_000)
tell(one_call)
resource.setrlimit(resource.RLIMIT_DATA, free)
tell(one_call)
"""


def test_a_pool_of_threads_calls_in_order_and_hands_errors_on():
    with ThreadPool(3) as pool:
        assert list(pool.map(lambda k: k * k, range(50))) == [k * k for k in range(50)]
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result()
    with pytest.raises(RuntimeError, match="was shut down"):
        pool.submit(abs, 1)


def test_a_pool_that_is_cancelled_ends_what_waits():
    pool, begun, go = ThreadPool(1), *(threading.Event() for _ in range(2))
    first = pool.submit(lambda: (begun.set(), go.wait()))
    begun.wait()
    waiting = pool.submit(abs, -1)
    go.set()
    pool.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled() or waiting.result() == 1
    pool.shutdown()
    assert first.done()


LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max data size             5000                 unlimited            bytes
Max address space         8000                 9000                 bytes
"""


def test_the_limits_of_a_process_leave_what_it_has_not_taken():
    found = list(process_limits(LIMITS, {"VmSize": 6000, "VmData": 5500}))
    assert found == [MemoryLimit(DATA, 5000, 0), MemoryLimit(ADDRESSES, 8000, 2000)]
    assert list(process_limits(LIMITS.replace("5000", "unlimited").replace("8000", "unlimited"), {})) == []


def test_each_process_has_such_a_limit_for_itself_and_groups_have_theirs_together():
    found = budget.Memory(100, 80, (MemoryLimit(CONTROL_GROUP, 60, 40), MemoryLimit(ADDRESSES, 50, 15)))
    assert [found.free_for(count) for count in (1, 2, 4)] == [15, 15, 10]
    assert (found.free, found.free_together, found.usable) == (15, 40, 60)
    assert found.tightest == found.own == MemoryLimit(ADDRESSES, 50, 15)
    assert found.together().tightest == MemoryLimit(CONTROL_GROUP, 60, 40)
    of_data = budget.Memory(100, 80, (MemoryLimit(DATA, 50, 15),))
    assert (of_data.free, of_data.to_share().free) == (15, 80)


@pytest.mark.parametrize(
    ("folder", "limit", "granted", "name"),
    [
        ("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0", 5, None, SLURM),
        ("/sys/fs/cgroup/memory/slurm/uid_1/job_7", 5, None, SLURM),
        ("/sys/fs/cgroup", 4 << 30, 4 << 30, SLURM),
        ("/sys/fs/cgroup/docker/0123", 5, None, CONTROL_GROUP),
        ("/sys/fs/cgroup/docker/0123", 5, 6, CONTROL_GROUP),
    ],
)
def test_a_group_that_slurm_made_is_called_its_allocation(folder, limit, granted, name):
    assert group_name(folder, limit, granted) == name


def test_messages_name_slurms_option_rather_than_a_control_group():
    found = budget.Memory(64 * GB, 40 * GB, (MemoryLimit(SLURM, 16 * GB, 8 * GB),))
    assert found.described == "the machine has 64 GB, and SLURM's allocation (--mem) allows 16 GB"
    wide = budget.Memory(64 * GB, 4 * GB, (MemoryLimit(SLURM, 16 * GB, 8 * GB),))
    assert wide.described == "the machine has 64 GB", "which is what there is too little of"
    account = Account("RAM", (Line("slots", 3 * GB),), 2 * GB, SLURM)
    assert next(iter(rows_of(account)))[-1] == "does not fit: 1 GB too much for SLURM's allocation (--mem)"


def test_a_tier_is_chosen_for_what_the_process_may_take_and_for_what_the_page_cache_keeps():
    rows, own = 40 * GB, MemoryLimit(DATA, 5 * GB, 4 * GB)
    assert choose(Needs(rows, rows), 60 * GB, own=own).tier is Tier.MMAP, "the page cache is nobody's own"
    decoded = choose(Needs(3 * GB, GB, decoded=True), 60 * GB, own=own)
    assert decoded.tier is Tier.MMAP, "3 GB are more than half of 4"
    fits = choose(Needs(2 * GB, GB, decoded=True), 60 * GB, own=own)
    assert fits.reason.endswith("which half of the 4 GB that the limit RLIMIT_DATA (ulimit -d) leaves can hold")
    behind = choose(Needs(rows, rows), 20 * GB, processes=2, own=own)
    assert (behind.tier, behind.cache_bytes) == (Tier.HYBRID, 2 * GB)
    assert "in the 4 GB that the limit RLIMIT_DATA (ulimit -d) leaves, holds 5%" in behind.reason
    mapped = choose(Needs(rows, rows), 20 * GB, own=MemoryLimit(ADDRESSES, 60 * GB, 46 * GB))
    assert mapped.cache_bytes == 3 * GB, "files that are mapped take addresses, too"
    made = choose(Needs(GB, GB, transformed=3 * GB), 60 * GB, 100 * GB, own=own)
    assert made.tier is Tier.MMAP
    assert "too much for half of the 4 GB that the limit RLIMIT_DATA (ulimit -d) leaves" in made.reason


def test_too_many_mappings_are_told_from_too_little_memory(tmp_path):
    for name, text in {"sys/vm/max_map_count": "3\n", "self/maps": "a\nb\nc\n", "meminfo": "MemTotal: 9 kB\n"}.items():
        path = tmp_path / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert "3 mappings, as many as vm.max_map_count allows" in str(refusals.no_memory("to map x", 10**6, tmp_path))
    (tmp_path / "proc/sys/vm/max_map_count").write_text("65530\n")
    text = str(refusals.no_memory("to map x", 10**6, tmp_path))
    assert text.startswith("to map x takes 1 MB, and the system refuses it: this process can still take 9.22 kB")


def test_a_facts_words_are_apart_however_long_they_are():
    assert str(Fact("n" * 20, "v" * 40, "meaning")) == f"{'n' * 20} {'v' * 40} meaning"

"""What a process may use: parsers on literal file contents, and whole trees as containers and schedulers make them."""

import os
from pathlib import Path

import pytest

from memload.memory import budget
from memload.memory.limits import CONTROL_GROUP, SLURM, MemoryLimit

MEMINFO = "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    8192 kB\nHugePages_Total:       3\n"
KB = 1024


def tree(root: Path, **files: str) -> Path:
    """A file system of small text files; `__` stands for `/` in their names and `_dot_` for a full stop."""
    for name, text in {"proc__meminfo": MEMINFO, **files}.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "cpus"), [("150000 100000\n", 1.5), ("max 100000\n", None), ("max\n", None), ("50000 25000\n", 2.0)]
)
def test_cpu_max_is_read_as_cpus(text, cpus):
    assert budget.parse_cpu_max(text) == cpus


@pytest.mark.parametrize(
    ("quota", "period", "cpus"), [("200000\n", "100000\n", 2.0), ("-1\n", "100000\n", None), (None, None, None)]
)
def test_version_1_quota_is_read_as_cpus(quota, period, cpus):
    assert budget.parse_cfs(quota, period) == cpus


def test_meminfo_is_read_in_bytes_and_lines_without_unit_are_left_out():
    assert budget.parse_meminfo(MEMINFO) == {
        "MemTotal": 16384 * KB,
        "MemFree": 1024 * KB,
        "MemAvailable": 8192 * KB,
    }


def test_groups_of_a_hybrid_system_are_found_by_controller():
    text = "4:memory:/slurm/job_7\n3:cpu,cpuacct:/slurm\n0::/user.slice/a:b\n"
    assert budget.parse_groups(text) == {
        "memory": "/slurm/job_7",
        "cpu": "/slurm",
        "cpuacct": "/slurm",
        "": "/user.slice/a:b",
    }


@pytest.mark.parametrize(("text", "limit"), [("max\n", None), ("4096\n", 4096), (None, None), ("", None)])
def test_a_limit_is_bytes_or_none(text, limit):
    assert budget.parse_limit(text) == limit


@pytest.mark.parametrize(("text", "nbytes"), [("32768K\n", 32 << 20), ("1M", 1 << 20), ("2G", 2 << 30), ("512", 512)])
def test_sizes_of_caches_are_read_in_bytes(text, nbytes):
    assert budget.parse_size(text) == nbytes


@pytest.mark.parametrize(
    ("job", "granted"),
    [
        ({"SLURM_MEM_PER_NODE": "16384"}, 16 << 30),
        ({"SLURM_MEM_PER_CPU": "2048", "SLURM_CPUS_ON_NODE": "6"}, 12 << 30),
        ({"SLURM_MEM_PER_NODE": "1024", "SLURM_MEM_PER_CPU": "2048", "SLURM_CPUS_ON_NODE": "6"}, 1 << 30),
        ({"SLURM_MEM_PER_NODE": "0"}, None),
        ({"SLURM_MEM_PER_CPU": "2048"}, None),
        ({"SLURM_MEM_PER_NODE": "all"}, None),
        ({}, None),
    ],
)
def test_what_slurm_granted_is_read_in_bytes(job, granted):
    assert budget.parse_slurm_memory(job) == granted


def test_a_slurm_job_may_use_what_it_was_granted_less_what_it_has(tmp_path):
    root = tree(tmp_path, proc__self__status="VmRSS:\t9000 kB\nRssAnon:\t1000 kB\nRssShmem:\t24 kB\n")
    memory = budget.memory(root, {"SLURM_MEM_PER_NODE": "4"})
    assert (memory.tightest, memory.free) == (MemoryLimit(SLURM, 4096 * KB, 3072 * KB), 3072 * KB)
    assert budget.memory(root, {"SLURM_MEM_PER_NODE": "64"}).tightest is None  # more than the machine has


def test_the_chosen_word_stands_in_brackets():
    assert budget.parse_choice("always [madvise] never\n") == "madvise"


def test_the_tightest_quota_above_the_process_counts(tmp_path):
    root = tree(
        tmp_path,
        proc__self__cgroup="0::/a/b\n",
        sys__fs__cgroup__cgroup_dot_controllers="cpu memory\n",
        sys__fs__cgroup__a__cpu_dot_max="300000 100000\n",
        sys__fs__cgroup__a__b__cpu_dot_max="max 100000\n",
    )
    assert budget.cpu_quota(root) == 3.0


def test_a_container_that_sees_only_its_mounts_root_is_limited_by_it(tmp_path):
    root = tree(
        tmp_path,
        proc__self__cgroup="2:cpu,cpuacct:/docker/0123\n4:memory:/docker/0123\n",
        sys__fs__cgroup__cpu__cpu_dot_cfs_quota_us="250000\n",
        sys__fs__cgroup__cpu__cpu_dot_cfs_period_us="100000\n",
        sys__fs__cgroup__memory__memory_dot_limit_in_bytes=f"{4096 * KB}\n",
        sys__fs__cgroup__memory__memory_dot_usage_in_bytes=f"{3072 * KB}\n",
        sys__fs__cgroup__memory__memory_dot_stat=f"total_inactive_file {1024 * KB}\ntotal_active_file {512 * KB}\n",
    )
    assert budget.cpu_quota(root) == 2.5
    assert budget.memory(root) == budget.Memory(
        16384 * KB, 8192 * KB, (MemoryLimit(CONTROL_GROUP, 4096 * KB, 2560 * KB),)
    )
    assert budget.memory(root).free == 2560 * KB


def test_version_2_memory_counts_cache_that_can_be_dropped_as_free(tmp_path):
    root = tree(
        tmp_path,
        proc__self__cgroup="0::/job\n",
        sys__fs__cgroup__cgroup_dot_controllers="cpu memory\n",
        sys__fs__cgroup__job__memory_dot_max=f"{2048 * KB}\n",
        sys__fs__cgroup__job__memory_dot_current=f"{2040 * KB}\n",
        sys__fs__cgroup__job__memory_dot_stat=f"anon 7\ninactive_file {1000 * KB}\nactive_file {40 * KB}\n",
    )
    assert budget.memory(root).free == (2048 - 1000) * KB


def test_memory_without_a_limit_is_the_hosts(tmp_path):
    root = tree(
        tmp_path,
        proc__self__cgroup="4:memory:/\n",
        sys__fs__cgroup__memory__memory_dot_limit_in_bytes="9223372036854771712\n",
    )
    assert budget.memory(root) == budget.Memory(16384 * KB, 8192 * KB)
    assert budget.memory(root).free == 8192 * KB


@pytest.mark.parametrize(
    ("affinity", "quota", "usable"), [(8, None, 8), (8, 2.5, 2), (2, 16.0, 2), (4, 0.5, 1), (1, None, 1)]
)
def test_usable_cpus_are_the_least_of_affinity_and_whole_quota(affinity, quota, usable):
    assert budget.Cpus(affinity, quota).usable == usable


def test_processes_of_one_machine_share_its_cpus():
    usable = budget.cpus().usable
    assert budget.default_threads() == usable
    assert budget.default_threads(2) == max(1, usable // 2)
    assert budget.default_threads(10_000) == 1


@pytest.mark.parametrize("world_size", [0, -1])
def test_a_world_of_no_process_is_refused(world_size):
    with pytest.raises(ValueError, match="at least 1, not"):
        budget.default_threads(world_size)


def test_affinity_limits_the_cpus_of_this_process():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert budget.cpus().affinity == 1
    finally:
        os.sched_setaffinity(0, before)


def test_huge_pages_are_usable_unless_switched_off(tmp_path):
    root = tree(tmp_path, sys__kernel__mm__transparent_hugepage__enabled="always madvise [never]\n")
    assert budget.huge_pages(root) == budget.HugePages("never", 2 << 20)
    assert not budget.huge_pages(root).usable
    assert budget.HugePages("madvise", 2 << 20).usable


def test_the_last_level_cache_is_the_one_of_the_highest_level(tmp_path):
    root = tree(
        tmp_path,
        sys__devices__system__cpu__cpu0__cache__index0__level="1\n",
        sys__devices__system__cpu__cpu0__cache__index0__size="48K\n",
        sys__devices__system__cpu__cpu0__cache__index3__level="3\n",
        sys__devices__system__cpu__cpu0__cache__index3__size="32768K\n",
    )
    assert budget.last_level_cache(root) == 32 << 20


def test_a_large_cache_of_a_lower_level_is_not_the_last(tmp_path):
    root = tree(
        tmp_path,
        sys__devices__system__cpu__cpu0__cache__index2__level="2\n",
        sys__devices__system__cpu__cpu0__cache__index2__size="2048K\n",
        sys__devices__system__cpu__cpu0__cache__index3__level="3\n",
        sys__devices__system__cpu__cpu0__cache__index3__size="1536K\n",
    )
    assert budget.last_level_cache(root) == 1536 << 10


def test_a_system_that_says_nothing_about_caches_gives_none(tmp_path):
    assert budget.last_level_cache(tmp_path) is None


def test_free_disk_of_a_folder_yet_to_be_made_is_that_of_its_file_system(tmp_path):
    stat = os.statvfs(tmp_path)
    free = budget.disk_free(tmp_path / "not" / "yet")
    assert abs(free - stat.f_bavail * stat.f_frsize) < 1 << 30


def test_this_machines_figures_hold_together():
    memory = budget.memory()
    assert 0 < memory.free <= memory.total
    limit = budget.memlock_limit()
    assert limit is None or limit >= 0

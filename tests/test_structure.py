"""The house in order: who imports whom, and what users may import."""

import ast
import doctest
import importlib
import inspect
import tempfile
from pathlib import Path

import pytest

import memload

PACKAGE = Path(memload.__file__).parent

# From the ground up. A module imports from lower floors only. `memload` itself, the face, stands on all of them.
FLOORS = [
    {"_core", "_cuda"},
    {"permutations", "default_device", "sizes"},
    {"draws", "row_numbers", "blocks", "borders", "memory.tiers", "captured", "gpu.nested", "gpu.pinning_rates"}
    | {"gpu.remembered", "dense"},
    {"gpu.interface"},
    {"pulls", "sampled_rows", "overtaking", "budget_filling", "ragged_rows", "unequal"},
    {"samplers", "budget_batches"},
    {"batch_streams"},
    {"errors", "dtypes", "progress", "stats", "row_plan", "collate_rules", "pinning", "seeding", "iterators"}
    | {"stored", "memory.budget", "memory.loops", "sources.memory_maps", "sources.packages", "sources.paths"},
    {"disk_space", "memory.allocations", "gpu.memory"},
    {"memory.optimizer_bytes"},
    {"memory.model_bytes"},
    {"memory.arenas", "memory.choosing", "memory.guards", "memory.pressure"},
    {"fields", "state", "mapped", "planned_rows", "ragged_samples"}
    | {"pace", "pipelined", "reseeding", "drawing_free", "surroundings"}
    | {"packed_storages", "packed_grids", "spool"},
    {"augment"},
    {"cast_rule"},
    {"cast_native"},
    {"gpu.frames", "gpu.devices", "gpu.driver", "gpu.memory", "gpu.static_buffers"},
    {"gpu.near", "gpu.ways"},
    {"gpu.pinned_memory"},
    {"collating", "safetensors_header", "rows", "windows", "ragged_transport", "sources.members"}
    | {"sources.hdf5_filters", "sources.tile_blocks", "sources.zarr_layout"}
    | {"memory.columns"},
    {"transport", "codec", "row_costs", "sources.hdf5_layout", "sources.hdf5_links"},
    {"codec_entry"},
    {"ragged_spec"},
    {"shard_index"},
    {"ragged_fields", "coded_blocks", "coded_fields"},
    {"codec_by_field"},
    {"codec_choice"},
    {"ragged_shards", "shard_file", "staging", "targets", "graph_layout"}
    | {"sources.arrays", "sources.npy", "sources.raw", "sources.safetensors_file"},
    {"shards", "pyg"} | {"sources.npz", "sources.torch_file", "sources.arrow", "sources.hdf5", "sources.ragged_arrays"},
    {"unfinished", "ragged_writing", "graph_lists"} | {"sources.arrow_file", "sources.pyg_file", "sources.zarr_store"},
    {"ragged_shard_file", "row_buffer", "row_fields", "open_files", "sources.hugging_face"},
    {"growing_set"},
    {"shard_stream"},
    {"shard_writer"},
    {"formats", "computed"},
    {"device", "gathered", "cache_files"},
    {"cast", "layout", "watches", "gpu.simulated", "gpu.torch_interface"},
    {"native", "cast_batches", "gpu.kernels", "gpu.target", "gpu.placing", "gpu.ring"}
    | {"memory.weights", "memory.loading"},
    {"gpu.casting", "memory.layerwise"},
    {"gpu.gathering", "memory.offload"},
    {"gpu.near_rows", "gpu.shared_frames"},
    {"conversion", "memory.placing"},
    {"carried", "batch_sizes", "slot_room", "memory.sample_dtypes"},
    {"door", "cold", "transforms", "used_again"},
    {"gpu.loading", "gpu.near_batches"},
    {"gpu.near_door", "gpu.bringing"},
    {"memory.tiered"},
    {"dataset", "unaltered", "transform_threads"},
    {"graphs"},
    {"groups", "hugging_face", "zipping"},
    {"gpu.to_device"},
    {"transposing", "same_source", "ragged_option", "codec_sampling"},
    {"supplies", "content"},
    {"ragged_supply", "fingerprints"},
    {"opening", "readers", "stock_only", "worker_states", "graph_collating"},
    {"picture_files", "derivation"},
    {"picture_labels", "picture_pixels"},
    {"pictures"},
    {"graph_files", "writing", "collation", "by_the_dataset", "grouped_source"},
    {"changes", "iterables", "gpu.landing"},
    {"gpu.device_batches"},
    {"engine", "stock_passes"},
    {"grouped_batches"},
    {"gpu.trials"},
    {"loader"},
    {"map_results"},
    {"memory.variants", "memory.steps", "memory.out_of_memory", "memory.agreement", "memory.memory_budget"}
    | {"memory.recomputing", "memory.account"},
    {"memory.curves", "memory.compiling", "memory.trials", "memory.probing", "memory.stock_bytes"},
    {"memory.loader_slots"},
    {"memory.measuring"},
    {"memory.batch_size"},
    {"memory.fitting"},
    {"accelerated", "memory.weightless", "memory.shape", "memory.machine", "memory.transform_bytes"},
    {"memory.loader_bytes"},
    {"memory.request"},
    {"memory.placement", "memory.gpu_account"},
    {"memory.accounts", "memory.plan_result"},
    {"memory.alternatives"},
    {"memory.planner"},
    {"accelerated", "accumulation"},
    {"scoring", "map_cache"},
    {"memory.pacing", "memory.processes", "memory.gpu_samples", "memory.row_caches", "memory.shrinking"},
    {"memory.samples", "memory.kept_graphs"},
    {"memory.diagnosis", "memory.live_view"},
    {"memory.marks", "memory.metric_logs", "memory.monitor_log", "memory.summary"},
    {"memory.lightning", "memory.plots", "memory.watching"},
    {"memory.monitor"},
]
# What runs from the command line stands on the face, like any user's program.
PROGRAMS = [
    {"measure"},
    {"stock", "bench", "source_options", "trained_options", "prediction"},
    {"demo", "doctor", "write_command", "info_command", "monitor_command", "cache_command", "plan_command"},
    {"cli"},
    {"__main__"},
]
HOUSE = [*FLOORS, {""}, *PROGRAMS]
# Methods that are another way to say a function of a higher floor, which they import when they are called.
ERRANDS = {"mapped": {"map_cache"}}


def module_name(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py")}
ROOMS = [name for name, path in MODULES.items() if path.name != "__init__.py"]


def floor_of(module):
    return next((level for level, modules in enumerate(HOUSE) if module in modules), None)


def imports_of(path):
    """The memload modules that a file imports, inside functions too; those for type checking alone do not count."""
    tree = ast.parse(path.read_text())
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "memload")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "memload":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                known = inner.removeprefix("memload.")
                yield inner if known in MODULES or known in ("_core", "_cuda") else node.module


def test_every_module_has_a_floor():
    assert [name for name in ROOMS if floor_of(name) is None] == []


@pytest.mark.parametrize("module", ROOMS)
def test_a_module_imports_from_lower_floors_only(module):
    for imported in imports_of(MODULES[module]):
        name = imported.removeprefix("memload").removeprefix(".")
        if name in MODULES and MODULES[name].name == "__init__.py" and name:
            continue  # a package without content
        assert floor_of(name) is not None, f"{module} imports {imported}, which has no floor"
        if name in ERRANDS.get(module, ()):
            continue
        assert floor_of(name) < floor_of(module), f"{module} may not import {imported}: it is not on a lower floor"


def test_nobody_imports_relatively():
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path


@pytest.mark.parametrize("name", memload.__all__)
def test_every_public_name_exists_and_is_documented(name):
    member = getattr(memload, name)
    if name == "__version__":
        return
    assert inspect.getdoc(member)
    assert member.__module__.startswith("memload")
    if inspect.isfunction(member):
        assert "Example:" in member.__doc__
        assert ">>> " in member.__doc__


def test_all_is_sorted_and_complete():
    assert sorted(memload.__all__) == memload.__all__ == dir(memload)
    public = {
        name
        for name, member in vars(memload).items()
        if not name.startswith("_") and not inspect.ismodule(member) and name != "annotations"
    }
    assert public <= set(memload.__all__)


def test_no_page_holds_the_marks_of_a_merge():
    root = Path(__file__).parents[1]
    pages = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("*.toml")]
    assert pages
    marks = ("<" * 7 + " ", ">" * 7 + " ")
    assert [str(page) for page in pages if any(line.startswith(marks) for line in page.read_text().splitlines())] == []


def test_files_stay_readable_in_length():
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: length for name, length in lengths.items() if length > 450} == {}


def test_sources_of_the_core_stay_readable_in_length():
    core = Path(__file__).parents[1] / "csrc"
    sources = [path for path in core.rglob("*.*") if path.suffix in {".h", ".cpp", ".cu"}]
    lengths = {str(path): len(path.read_text().splitlines()) for path in sources if path.parent.name != "tests"}
    assert lengths
    assert {path: length for path, length in lengths.items() if length > 450} == {}


def _functions():
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                yield f"{name}.{node.name}", node.end_lineno - first.lineno + 1


def test_functions_stay_short():
    assert [(name, lines) for name, lines in _functions() if lines > 60] == []


@pytest.mark.parametrize("module", ROOMS)
def test_the_examples_of_a_module_run(module, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    outcome = doctest.testmod(importlib.import_module(f"memload.{module}"))
    assert outcome.failed == 0

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
    {"sampling.permutations", "default_device", "sizes"},
    {
        "sampling.draws",
        "row_numbers",
        "blocks",
        "borders",
        "memory.tiers",
        "transforms.captured",
        "gpu.nested",
        "gpu.pinning_rates",
    }
    | {"gpu.remembered", "dense"},
    {"gpu.interface"},
    {
        "sampling.pulls",
        "sampling.sampled_rows",
        "sampling.overtaking",
        "sampling.budget_filling",
        "ragged_rows.forms",
        "unequal",
    },
    {"sampling.samplers", "sampling.budget_batches"},
    {"sampling.batch_streams"},
    {
        "errors",
        "dtypes",
        "progress",
        "stats",
        "sampling.row_plan",
        "batches.collate_rules",
        "pinning",
        "transforms.seeding",
        "batches.iterators",
    }
    | {"stored", "memory.budget", "memory.loops", "sources.memory_maps", "sources.packages", "sources.paths"},
    {"disk_space", "memory.allocations", "gpu.memory"},
    {"memory.optimizer_bytes"},
    {"memory.model_bytes"},
    {"memory.arenas", "memory.choosing", "memory.guards", "memory.pressure"},
    {"fields", "state", "transforms.mapped", "sampling.planned_rows", "ragged_rows.samples"}
    | {"pace", "pipelined", "transforms.reseeding", "transforms.drawing_free", "transforms.surroundings"}
    | {"transport.storages", "transport.grids", "shards.spool"},
    {"augment"},
    {"casts.rule"},
    {"casts.native"},
    {"gpu.frames", "gpu.devices", "gpu.driver", "gpu.memory", "gpu.static_buffers"},
    {"gpu.near", "gpu.ways"},
    {"gpu.pinned_memory"},
    {
        "batches.collating",
        "shards.safetensors_header",
        "shards.rows",
        "windows",
        "ragged_rows.transport",
        "sources.members",
    }
    | {"sources.hdf5_filters", "sources.tile_blocks", "sources.zarr_layout"}
    | {"memory.columns"},
    {"transport.columns", "codecs.codec", "row_costs", "sources.hdf5_layout", "sources.hdf5_links"},
    {"codecs.entry"},
    {"ragged_rows.spec"},
    {"shards.index"},
    {"ragged_rows.fields", "codecs.blocks", "codecs.fields"},
    {"codecs.by_field"},
    {"codecs.choice"},
    {"ragged_rows.shards", "shards.file", "shards.staging", "shards.targets", "graphs.layout"}
    | {"sources.arrays", "sources.npy", "sources.raw", "sources.safetensors_file"},
    {"shards.reading", "graphs.pyg"}
    | {"sources.npz", "sources.torch_file", "sources.arrow", "sources.hdf5", "sources.ragged_arrays"},
    {"shards.unfinished", "ragged_rows.writing", "graphs.lists"}
    | {"sources.arrow_file", "sources.pyg_file", "sources.zarr_store"},
    {"ragged_rows.shard_file", "shards.row_buffer", "shards.row_fields", "open_files", "sources.hugging_face"},
    {"shards.growing_set"},
    {"shards.stream"},
    {"shards.writer"},
    {"formats", "results.computed"},
    {"device", "batches.gathered", "results.cache_files"},
    {"casts.pixels", "batches.layout", "watches", "gpu.simulated", "gpu.torch_interface"},
    {"native", "casts.batches", "gpu.kernels", "gpu.target", "gpu.placing", "gpu.ring"}
    | {"memory.weights", "memory.loading"},
    {"gpu.casting", "memory.layerwise"},
    {"gpu.gathering", "memory.offload"},
    {"gpu.near_rows", "gpu.shared_frames"},
    {"shards.conversion", "memory.placing"},
    {"carried", "sampling.batch_sizes", "slot_room", "memory.sample_dtypes"},
    {"door", "cold", "transforms.recipe", "transforms.used_again"},
    {"gpu.loading", "gpu.near_batches"},
    {"gpu.near_door", "gpu.bringing"},
    {"memory.tiered"},
    {"dataset", "unaltered", "transforms.threads"},
    {"graphs.datasets"},
    {"groups.datasets", "hugging_face", "zipping"},
    {"gpu.to_device"},
    {"shards.transposing", "shards.same_source", "ragged_rows.option", "codecs.sampling"},
    {"shards.supplies", "results.content"},
    {"ragged_rows.supply", "results.fingerprints"},
    {"opening", "readers", "stock.arguments", "stock.worker_states", "graphs.collating"},
    {"pictures.files", "results.derivation"},
    {"pictures.labels", "pictures.pixels"},
    {"pictures.writing"},
    {"graphs.files", "shards.writing", "batches.collation", "batches.by_the_dataset", "groups.source"},
    {"changes", "stock.iterables", "gpu.landing"},
    {"gpu.device_batches"},
    {"engine", "stock.passes"},
    {"groups.batches"},
    {"gpu.trials"},
    {"loader"},
    {"results.map_results"},
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
    {"results.scoring", "results.map_cache"},
    {"memory.pacing", "memory.processes", "memory.gpu_samples", "memory.row_caches", "memory.shrinking"},
    {"memory.samples", "memory.kept_graphs"},
    {"memory.diagnosis", "memory.live_view"},
    {"memory.marks", "memory.metric_logs", "memory.monitor_log", "memory.summary"},
    {"memory.lightning", "memory.plots", "memory.watching"},
    {"memory.monitor"},
]
# What runs from the command line stands on the face, like any user's program.
PROGRAMS = [
    {"commands.measure"},
    {"commands.stock", "commands.bench", "commands.source_options", "commands.trained_options", "commands.prediction"},
    {
        "commands.demo",
        "commands.doctor",
        "commands.write",
        "commands.info",
        "commands.monitor",
        "commands.cache",
        "commands.plan",
    },
    {"cli"},
    {"__main__"},
]
HOUSE = [*FLOORS, {""}, *PROGRAMS]
# Methods that are another way to say a function of a higher floor, which they import when they are called.
ERRANDS = {"transforms.mapped": {"results.map_cache"}}


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

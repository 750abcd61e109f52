"""The house in order: who imports whom, and what users may import."""

import ast
import doctest
import importlib
import inspect
import re
import tempfile
from pathlib import Path

import pytest

import memload

PACKAGE = Path(memload.__file__).parent


def floors(table):
    """A set of modules for each floor: one line each, with the lines indented below it."""
    return [set(floor.split()) for floor in re.split(r"\n(?! )", table.strip())]


# From the ground up. A module imports from lower floors only. `memload` itself, the face, stands on all of them.
FLOORS = floors("""
_core _cuda
default_device sizes sampling.permutations
dense gpu.nested gpu.pinning_rates gpu.remembered rows.blocks rows.borders rows.numbers sampling.draws
    tiers.tier transforms.captured
gpu.interface ragged_rows.forms rows.unequal sampling.budget_filling sampling.overtaking sampling.pulls
    sampling.weighted_draws
sampling.budget_batches sampling.samplers
sampling.batch_streams
dtypes errors progress stats batches.collate_rules batches.iterators gpu.pinned_batches memory.budget
    monitoring.loops rows.stored sampling.row_plan sources.memory_maps sources.packages sources.paths
    transforms.seeding
gpu.memory memory.disk_space training.allocations
training.optimizer_bytes
memory.guards tiers.arenas tiers.choosing tiers.pressure training.model_bytes
fields state casts.augment engine.pipelined ragged_rows.samples sampling.planned_rows shards.spool
    transforms.drawing_free transforms.mapped transforms.pace transforms.reseeding transforms.surroundings
    transport.grids transport.storages
casts.rule
casts.native gpu.cuda_module gpu.devices gpu.driver gpu.frames gpu.static_buffers
gpu.near gpu.ways
windows batches.collating gpu.pinned_memory ragged_rows.transport shards.rows shards.safetensors_header
    sources.hdf5_filters sources.members sources.tile_blocks sources.zarr_layout tiers.storages
codecs.codec rows.costs sources.hdf5_layout sources.hdf5_links transport.columns
codecs.entry
ragged_rows.spec
shards.index
codecs.blocks codecs.by_field codecs.fields ragged_rows.fields
codecs.choice graphs.layout ragged_rows.shards shards.shard_file shards.staging shards.targets sources.arrays
    sources.npy sources.raw sources.safetensors_file
graphs.pyg shards.reading sources.arrow sources.hdf5 sources.npz sources.ragged_arrays sources.torch_file
graphs.lists ragged_rows.writing shards.unfinished sources.arrow_file sources.pyg_file sources.zarr_store
ragged_rows.shard_file shards.row_buffer shards.row_fields sources.hugging_face sources.open_files
shards.growing_set
shards.stream
shards.writer
results.computed sources.formats
batches.gathered results.cache_files
batches.layout casts.cast_stim engine.watches gpu.simulated gpu.torch_interface
casts.batches casts.float32_view engine.source gpu.kernels gpu.placing gpu.ring gpu.target offloading.weights
    tiers.loading
gpu.casting offloading.layerwise
gpu.gathering offloading.offload
engine.slot_room frameworks.carried gpu.near_rows gpu.shared_frames sampling.batch_sizes shards.conversion
    tiers.placing training.sample_dtypes transforms.room transforms.used_again
engine.cold engine.door transforms.recipe
gpu.loading gpu.near_batches
gpu.bringing gpu.near_door
tiers.tiered
dataset engine.unaltered transforms.threads
graphs.datasets
zipping codecs.auto frameworks.hugging_face gpu.to_device groups.datasets ragged_rows.option shards.same_source
    shards.transposing
results.content shards.supplies
opening engine.readers graphs.collating ragged_rows.supply results.fingerprints stock.arguments
    stock.worker_states
pictures.files results.derivation
pictures.labels pictures.pixels
engine.by_the_dataset engine.collate_function graphs.files groups.source pictures.writing shards.writing
engine.changes gpu.landing stock.iterables
gpu.device_batches
engine.passes stock.passes
groups.batches
gpu.trials
loader
planning.account results.map_results training.agreement training.memory_budget training.out_of_memory
    training.recomputing training.steps training.variants
planning.stock_bytes training.compiling training.curves training.probing training.trials
training.loader_slots training.measuring
training.batch_size
frameworks.accelerate planning.machine planning.shape planning.transform_bytes training.fitting
    training.weightless
planning.loader_bytes planning.request
planning.gpu_account planning.placement
planning.accounts planning.result
planning.alternatives
accumulation monitoring.gpu_samples monitoring.pacing monitoring.processes monitoring.row_caches
    monitoring.shrinking planning.planner results.map_cache results.scoring
monitoring.kept_graphs monitoring.samples
monitoring.diagnosis monitoring.live_view
monitoring.log monitoring.marks monitoring.metric_logs monitoring.summary
monitoring.lightning monitoring.plots monitoring.watching
monitoring.monitor
""")
# What runs from the command line stands on the face, like any user's program.
PROGRAMS = floors("""
commands.measure
commands.bench commands.prediction commands.source_options commands.stock_loops commands.trained_options
commands.cache commands.demo commands.doctor commands.info commands.monitor commands.plan commands.write
cli
__main__
""")
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


def test_every_module_has_one_floor_and_none_is_left_that_is_gone():
    assert sorted(name for floor in HOUSE for name in floor) == sorted([*ROOMS, "", "_core", "_cuda"])


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


def private_to_torch(path):
    """What a file uses of torch's private parts: names of modules that it imports from, and dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        name = ast.unparse(node) if isinstance(node, ast.Attribute) else None
        if isinstance(node, ast.ImportFrom):
            name = node.module
        if re.fullmatch(r"torch(\.\w+)*\._(?!_)\w+(\.\w+)*", name or ""):
            yield name


def test_what_is_private_to_torch_is_in_the_table_of_the_design():
    page = (Path(__file__).parents[1] / "docs" / "design.md").read_text()
    table = page.partition("## What is private to torch")[2].splitlines()
    files = {f"memload/{path.relative_to(PACKAGE)}": path for path in MODULES.values()}
    used = [(name, file) for file, path in files.items() for name in private_to_torch(path)]
    assert len(used) > 5
    assert [(name, file) for name, file in used if not any(name in line and file in line for line in table)] == []


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


def test_files_that_docstrings_name_are_there():
    """From the module's own folder, or from memload's; what a user calls train.py is not ours."""
    missing = []
    for module, path in MODULES.items():
        for name in re.findall(r"[\w/]+\.py\b", ast.get_docstring(ast.parse(path.read_text())) or ""):
            if name != "train.py" and not any((folder / name).exists() for folder in (path.parent, PACKAGE)):
                missing.append((module, name))
    assert missing == []


@pytest.mark.parametrize("package", sorted(PACKAGE.glob("*/__init__.py")), ids=lambda path: path.parent.name)
def test_a_package_says_what_lies_in_it_and_names_no_module_that_is_gone(package):
    said = ast.get_docstring(ast.parse(package.read_text()))
    rooms = {path.stem for path in package.parent.glob("*.py")}
    assert set(re.findall(r"`(\w+)`", said)) <= rooms | set(memload.__all__)


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

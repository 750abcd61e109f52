"""The sdist and the wheel, made as an installer makes them and used far from the checkout.

The wheel is built from the sdist alone, in build isolation, in an environment that has no torch. It is then installed
without its dependencies into a new virtual environment, whose path ends in this environment's site-packages: torch and
numpy come from there, memload comes from the wheel.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from repository import ROOT

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT, cwd=folder)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    source = folder / sdist.name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder / "dist", source, cwd=folder)
    (path,) = (folder / "dist").iterdir()
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The Python of a new environment that holds the wheel."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=home)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))", cwd=home).strip()
    Path(site, "borrowed.pth").write_text(sysconfig.get_path("platlib"))
    return python


def test_the_sdist_holds_what_a_build_and_the_tests_need_and_no_build_products(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {
        "CMakeLists.txt",
        "pyproject.toml",
        "LICENSE",
        "NOTICES.txt",
        "csrc/CMakeLists.txt",
        "tests/project/test_wheel.py",
    } <= names
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc")) or name.startswith(("build/", "dist/"))]


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        assert "Requires-Dist: torch" in archive.read(metadata).decode()
        licences = {name.rpartition("/")[2] for name in names if "/licenses/" in name}
        assert licences == {"LICENSE", "NOTICES.txt"}
    roots = {name.split("/")[0] for name in names}
    assert roots == {"memload", metadata.split("/")[0]}
    kinds = {Path(name).suffix for name in names if name.startswith("memload/") and not name.endswith("py.typed")}
    assert kinds == {".py", ".pyi", ".so"}
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)


def test_the_modules_are_stripped_and_name_no_folder_of_the_build(wheel, installed):
    modules = list(installed.parent.parent.glob("lib/python*/site-packages/memload/*.so"))
    assert modules
    for module in modules:
        assert run("nm", module, cwd=module.parent) == "", module
        assert str(wheel.parent.parent).encode() not in module.read_bytes(), module


def test_the_installed_wheel_is_used_from_elsewhere(installed, tmp_path):
    code = """
import memload, numpy, torch
images = numpy.arange(8 * 5 * 3, dtype=numpy.uint8).reshape(8, 5, 3)
batches = list(memload.FastLoader(memload.from_arrays(stim=images), batch_size=4))
assert torch.equal(torch.cat([batch["stim"] for batch in batches]), torch.from_numpy(images))
print(memload.__file__)
"""
    used = Path(run(installed, "-c", code, cwd=tmp_path).strip())
    assert used.is_relative_to(installed.parent.parent)


def test_the_installed_command_works_from_elsewhere(installed, tmp_path):
    assert "demo" in run(installed.parent / "memload", "--help", cwd=tmp_path)

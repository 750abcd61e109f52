"""The fuzz targets for ten minutes each: csrc/fuzz under the sanitizers, and the parsers of each format of sources."""

import os
import random
import re
import shutil
import subprocess
import sys

import pytest
from programs import run, script
from repository import ROOT, SUPPORT
from source_mutants import FORMATS, try_mutants
from waiting import MOST_SECONDS

TARGETS = re.findall(r"^memload_fuzz\((\w+)\)", (ROOT / "csrc" / "fuzz" / "CMakeLists.txt").read_text(), re.MULTILINE)
SECONDS = 600
MUTANTS = SUPPORT / "source_mutants.py"
OPTIONS = {
    "CMAKE_BUILD_TYPE": "RelWithDebInfo",
    "MEMLOAD_PYTHON": "OFF",
    "MEMLOAD_TESTS": "ON",
    "MEMLOAD_SANITIZE": "address,undefined",
    "Python_EXECUTABLE": sys.executable,
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    if shutil.which("cmake") is None:
        pytest.skip("no cmake: pip install --group dev")
    build = tmp_path_factory.mktemp("fuzz")
    chosen = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    subprocess.run(["cmake", "-S", ROOT, "-B", build, *chosen], check=True)
    subprocess.run(["cmake", "--build", build, "--parallel", str(os.cpu_count()), "--target", *TARGETS], check=True)
    return {target: next(build.rglob(target)) for target in TARGETS}


def test_every_fuzz_target_is_listed():
    assert {path.stem for path in (ROOT / "csrc" / "fuzz").glob("fuzz_*.cpp")} == set(TARGETS)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_ten_minutes_of_damage_raise_our_errors_and_nothing_else(programs, target):
    seed = str(os.getpid())
    done = subprocess.run([programs[target], str(SECONDS), seed], capture_output=True, text=True, timeout=2 * SECONDS)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"


@pytest.mark.parametrize("kind", FORMATS)
def test_some_damaged_files_are_read_or_refused(kind):
    try_mutants(kind, count=10)


# Numbers that the runs of ten minutes stopped at.
@pytest.mark.parametrize(("kind", "number"), [("torch", 387080970)])
def test_files_that_once_gave_other_errors_are_read_or_refused(kind, number):
    try_mutants(kind, first=number, count=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_files_for_ten_minutes(kind):
    first = random.randrange(10**9)
    done = run(script(MUTANTS, kind, str(SECONDS), str(first)), within=SECONDS + MOST_SECONDS)
    assert done.status == 0, f"mutant {(done.out or ['?'])[-1]}: {done.err[-2000:]}"

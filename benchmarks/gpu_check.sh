#!/usr/bin/env bash
# Builds memload with its CUDA kernels, runs the tests that need a GPU, and times cast_stim, without any network.
#
#     benchmarks/gpu_check.sh [FOLDER_OF_WHEELS]
#
# What the machine must have: a GPU with its driver, nvcc 12 or newer (older than 12.8, it makes no machine code for
# compute capability 10 and up, and the driver translates PTX), a C++20 compiler, and a Python (3.10 or newer; PYTHON=...
# names it) with torch for CUDA, numpy, cmake, ninja, pybind11 and scikit-build-core.
# What may have to travel as wheels, where that Python lacks it: blosc2 (to build with; nothing of what it needs), xxhash,
# tqdm, pytest (with its own needs: iniconfig, packaging, pluggy, pygments). Fetch them elsewhere by
# `pip download --no-deps`, and name their folder as the argument.
#
# Writes gpu_cast_<device>_<date>.json into ${OUT:-benchmarks/results}. Nothing is installed outside a temporary folder.
#
# Not yet run on a machine with a GPU: the kernels are compiled for every architecture, but no figure exists so far.
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
wheels=${1:+$(cd "$1" && pwd)}
python=${PYTHON:-python3}
out=${OUT:-$repo/benchmarks/results}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
out=$(cd "$out" && pwd)

# From here on, `import memload` must find the installed package, never the source tree.
cd "$work"
export PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH}

if [ -n "$wheels" ]; then
  "$python" -m pip install --quiet --no-index --no-deps --target "$work/site" "$wheels"/*.whl
fi

"$python" - <<'EOF'
import importlib.util
import shutil
import sys

needed = ["torch", "numpy", "tqdm", "xxhash", "pytest", "pybind11", "scikit_build_core", "blosc2"]
missing = [name for name in needed if importlib.util.find_spec(name) is None]
missing += [tool for tool in ("nvcc", "cmake", "ninja") if shutil.which(tool) is None]
if missing:
    sys.exit("gpu_check.sh: missing " + ", ".join(missing) + "; Python packages may come from a folder of wheels")
import torch

if not torch.cuda.is_available():
    sys.exit(f"gpu_check.sh: torch {torch.__version__} finds no CUDA device")
print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}")
EOF

echo "== build"
"$python" -m pip install --quiet --no-build-isolation --no-deps --no-index --target "$work/site" \
  --config-settings=cmake.define.MEMLOAD_CUDA=ON --config-settings=build-dir="$work/build" "$repo"

echo "== tests"
mapfile -t tests < <(grep -l 'mark\.gpu' "$repo"/tests/test_*.py)
"$python" -m pytest -c "$repo/pyproject.toml" --rootdir "$repo" -p no:cacheprovider -m gpu "${tests[@]}"

echo "== benchmark"
device=$("$python" -c 'import re, torch; print(re.sub(r"\W+", "-", torch.cuda.get_device_name()).strip("-").lower())')
"$python" "$repo/benchmarks/gpu_cast.py" --json "$out/gpu_cast_${device}_$(date -u +%Y-%m-%d).json"

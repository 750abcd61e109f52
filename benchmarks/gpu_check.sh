#!/usr/bin/env bash
# Builds memload with its CUDA kernels, runs the tests that need a GPU and the GPU benchmarks, without any network, and
# prints one table last: each figure beside what it should reach. In all it takes less than nine minutes: the limits below
# add up to 530 seconds, what matters most comes first, and a benchmark that runs longer than its share is ended; the
# figures that it has by then are kept.
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
# Writes <benchmark>_<device>_<date>.json and gpu_table_<device>_<date>.txt into ${OUT:-benchmarks/results}. Nothing is
# installed outside a temporary folder, where about 5 GB of data are made (TMPDIR=... names another place for it).
#
# Not yet run on a machine with a GPU: the kernels are compiled for every architecture, and the benchmarks
# have run on a CPU (--quick --device cpu), where what is for CUDA alone is left out; no figure exists so far.
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
wheels=${1:+$(cd "$1" && pwd)}
python=${PYTHON:-python3}
out=${OUT:-$repo/benchmarks/results}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=()
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
timeout 160 "$python" -m pip install --quiet --no-build-isolation --no-deps --no-index --target "$work/site" \
  --config-settings=cmake.define.MEMLOAD_CUDA=ON --config-settings=build-dir="$work/build" "$repo"

echo "== tests"
mapfile -t tests < <(grep -l 'mark\.gpu' "$repo"/tests/test_*.py)
gpu_tests=("$python" -m pytest -c "$repo/pyproject.toml" --rootdir "$repo" -p no:cacheprovider -q -m gpu)
timeout 75 "${gpu_tests[@]}" "${tests[@]}" || failed+=("tests")

device=$("$python" -c 'import re, torch; print(re.sub(r"\W+", "-", torch.cuda.get_device_name()).strip("-").lower())')
day=$(date -u +%Y-%m-%d)
results=()

# benchmark NAME SECONDS [ARGUMENTS...]
benchmark() {
  local name=$1 limit=$2 left=$((530 - SECONDS))
  shift 2
  echo "== $name"
  results+=("$out/${name}_${device}_${day}.json")
  if [ "$left" -lt 10 ]; then
    echo "left out: nine minutes are nearly over"
    return
  fi
  timeout -s INT -k 10 $((limit < left ? limit : left)) "$python" "$repo/benchmarks/$name.py" \
    --cache "$work" --out "${results[-1]}" "$@" || failed+=("$name")
}

benchmark gpu_loader 100
benchmark gpu_cast 45
benchmark gpu_copy 30
benchmark gpu_step 35
benchmark gpu_resident 30
benchmark gpu_offload 20

echo "== memory checker"
if ! command -v compute-sanitizer > /dev/null; then
  echo "compute-sanitizer is not installed: left out"
elif ! timeout 10 compute-sanitizer --tool memcheck "$python" -c 'import torch; torch.zeros(9, device="cuda")' \
  > "$work/tried" 2>&1; then
  echo "compute-sanitizer does not work on this machine, or is too slow: left out ($(tail -n 1 "$work/tried"))"
else
  timeout 25 compute-sanitizer --tool memcheck --error-exitcode 9 \
    "${gpu_tests[@]}" "$repo/tests/test_cast_gpu.py" -k "length or misalignment" || failed+=("memory checker")
fi

echo "== all figures"
[ ${#failed[@]} -eq 0 ] || echo "did not end well, see above: ${failed[*]}"
"$python" "$repo/benchmarks/gpu_table.py" "${results[@]}" | tee "$out/gpu_table_${device}_${day}.txt"
exit ${#failed[@]}

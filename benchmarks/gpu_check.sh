#!/usr/bin/env bash
# Takes a wheel of memload with its CUDA kernels, or builds it for the GPU at hand, runs the tests that need a GPU and the
# GPU benchmarks, without any network, and prints one table last: each figure beside what it should reach. In all it
# takes less than ten minutes: what matters most comes first, each part may take its share of the time that is left, and
# one that runs longer is ended. The figures that a benchmark has by then are kept.
#
#     benchmarks/gpu_check.sh [--rehearse] [FOLDER]
#
# FOLDER holds what had to travel, and is made elsewhere by benchmarks/gpu_bundle.sh: wheels of Python packages that this
# Python lacks or has older than is asked for below, a wheel of memload with memload._cuda, and COMMIT, a file that says
# which commit that is. Without a wheel of memload, or with one that this Python cannot import, memload is built here.
#
# What the machine must have: a GPU with its driver, and a Python (3.10 or newer; PYTHON=... names it) with torch for
# CUDA, numpy, tqdm, xxhash, pytest and hypothesis, or their wheels in FOLDER; sorted by what needs what: hypothesis
# takes sortedcontainers, pytest takes iniconfig, packaging, pluggy and pygments. To build, also nvcc 12 or newer (older
# than 12.8, it makes no machine code for compute capability 10 and up, and the driver translates PTX), a C++20 compiler,
# Python's headers, cmake, ninja, pybind11, scikit-build-core and blosc2 (nothing of what blosc2 needs).
#
# --rehearse runs every part on the CPU, on little data, with neither figures nor tests on a GPU: it shows that FOLDER
# has all that is needed.
#
# Writes gpu_<device>_<date>.json (all figures), .tests.txt and .table.txt into ${OUT:-benchmarks/results}, the JSON and
# the table anew after every benchmark. Nothing is installed outside a temporary folder, where about 5 GB of data are
# made (TMPDIR=... names another place for it).
#
# It has run on one NVIDIA H200: benchmarks/results/gpu_nvidia-h200_2026-11-26.*
set -euo pipefail
export PYTHONUNBUFFERED=1 # what a part says before it is ended is kept

total=570    # seconds; what has to be killed takes a few more
prepared=235 # of these for the build and the tests

rehearsal=
if [ "${1:-}" = --rehearse ]; then
  rehearsal=yes
  total=3600 # nothing of it is a figure, and it may run beside other work
  shift
fi
if [ $# -gt 1 ] || [ ! -d "${1:-.}" ]; then
  echo "usage: gpu_check.sh [--rehearse] [FOLDER]; FOLDER is one that gpu_bundle.sh made, got: $*" >&2
  exit 2
fi
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:+$(cd "$1" && pwd)}
python=${PYTHON:-python3}
out=${OUT:-$repo/benchmarks/results}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=()
mkdir -p "$out"
out=$(cd "$out" && pwd)
command -v nvcc > /dev/null || PATH=$PATH:/usr/local/cuda/bin # where the toolkit's own packages put it

# From here on, `import memload` must find the installed package, never the source tree.
cd "$work"
export PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH}

MEMLOAD_COMMIT=$(cat "${folder:-.}/COMMIT" 2> /dev/null || git -C "$repo" rev-parse HEAD 2> /dev/null || echo unknown)
export MEMLOAD_COMMIT

others=() # wheels of what is not memload
built=()
if [ -n "$folder" ]; then
  mapfile -t built < <(compgen -G "$folder/memload-*.whl")
  mapfile -t others < <(find "$folder" -maxdepth 1 -name '*.whl' ! -name 'memload-*')
fi
[ ${#others[@]} -eq 0 ] || "$python" -m pip install --quiet --no-index --no-deps --target "$work/site" "${others[@]}"
if [ ${#built[@]} -gt 0 ]; then
  if "$python" -m pip install --quiet --no-index --no-deps --target "$work/site" "${built[@]}" &&
    "$python" -c 'import torch, memload._core, memload._cuda'; then
    echo "== taken as it is: ${built[*]##*/}"
  else
    echo "gpu_check.sh: this Python cannot use ${built[*]##*/}, see above; memload is built instead" >&2
    rm -rf "$work"/site/memload "$work"/site/memload-*
    built=()
  fi
fi

found=$(
  "$python" - ${#built[@]} "$rehearsal" <<'EOF'
import importlib.metadata
import re
import shutil
import sys

needed = {"torch": "2.6", "numpy": "1.26", "tqdm": "4.66", "xxhash": "3.4", "pytest": "8.2", "hypothesis": "6.100"}
to_build = sys.argv[1] == "0"
if to_build:
    needed |= {"pybind11": "3.0", "blosc2": "4.0", "scikit-build-core": "0.11"}
lacking = [f"{tool} on the PATH" for tool in ("nvcc", "cmake", "ninja") if to_build and shutil.which(tool) is None]
for name, least in needed.items():
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        lacking.append(name)
        continue
    if [int(n) for n in re.findall(r"\d+", found)] < [int(n) for n in least.split(".")]:
        lacking.append(f"{name} {least} or newer ({found} is there)")
if lacking:
    sys.exit(f"gpu_check.sh: there is no {', no '.join(lacking)}; Python packages may come from a folder of wheels")
import torch

if sys.argv[2]:
    print("rehearsal none")
    sys.exit()
if not torch.cuda.is_available():
    sys.exit(
        f"gpu_check.sh: torch {torch.__version__} finds no CUDA device; --rehearse runs every part on the CPU instead"
    )
name = torch.cuda.get_device_name()
print(f"{name}, torch {torch.__version__}, Python {sys.version.split()[0]}", file=sys.stderr)
print(re.sub(r"\W+", "-", name).strip("-").lower(), "".join(map(str, torch.cuda.get_device_capability())))
EOF
)
read -r device architecture <<< "$found"
kept=$out/gpu_${device}_$(date -u +%Y-%m-%d)

if [ ${#built[@]} -eq 0 ]; then
  echo "== build ($SECONDS s)"
  only=() # where this nvcc knows the GPU at hand, code for others is left out
  if nvcc --list-gpu-arch | grep -x "compute_$architecture" > /dev/null; then
    only=(--config-settings=cmake.define.MEMLOAD_CUDA_ARCHITECTURES="$architecture")
  fi
  left=$((prepared - SECONDS))
  left=$((left < 120 ? 120 : left))
  timeout -k 10 $left "$python" -m pip install --quiet --no-build-isolation --no-deps --no-index \
    --target "$work/site" --config-settings=build-dir="$work/build" \
    --config-settings=cmake.define.MEMLOAD_CUDA=ON "${only[@]}" \
    --config-settings=cmake.define.pybind11_ROOT="$("$python" -m pybind11 --cmakedir)" "$repo" || {
    status=$?
    [ $status -ne 124 ] || echo "gpu_check.sh: the build took longer than $left s; are all cores of the machine free?" >&2
    echo "gpu_check.sh: memload could not be built, with status $status, so nothing was run" >&2
    exit 1
  }
fi

# A process for each file, side by side: an error that a kernel leaves behind ends what its process may do on the GPU, and
# spoils no other file. The one that fills the GPU's memory comes last, alone.
echo "== tests ($SECONDS s)"
mapfile -t tests < <(grep -rl --include='test_*.py' 'mark\.gpu' "$repo/tests" | sort)
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 # what else is installed there may warn, and warnings are errors
# Jobs in the background of a script ignore SIGINT, so that parts are ended by SIGTERM, of which pytest knows nothing.
interruptible='import signal, sys, pytest
signal.signal(signal.SIGTERM, signal.default_int_handler)
sys.exit(pytest.main(sys.argv[1:]))'
gpu_tests=("$python" -c "$interruptible" -c "$repo/pyproject.toml" --rootdir "$repo")
gpu_tests+=(-p _hypothesis_pytestplugin -p no:cacheprovider -q --tb=short -m gpu)
gpu_tests+=(-W default) # libraries of other versions may warn: that is shown, and fails no file
gpu_tests+=(-o faulthandler_timeout=45) # a test that hangs shows where, though it be killed
filling=$repo/tests/gpu/test_batch_size_gpu.py

# run_tests FILE
run_tests() {
  local left=$((prepared - SECONDS))
  local status=0
  timeout -k 10 $((left < 60 ? 60 : left)) "${gpu_tests[@]}" --durations=3 "$1" \
    > "$work/$(basename "$1" .py).log" 2>&1 || status=$?
  [ -z "$rehearsal" ] || [ $status -ne 5 ] || status=0 # without a GPU they are collected, and none is selected
  return $status
}

declare -A running=()
for file in "${tests[@]}"; do
  [ "$file" = "$filling" ] || { run_tests "$file" & running[$file]=$!; }
done
for file in "${!running[@]}"; do
  wait "${running[$file]}" || failed+=("$(basename "$file" .py)")
done
run_tests "$filling" || failed+=("$(basename "$filling" .py)")
for file in "${tests[@]}"; do
  echo "-- $(basename "$file" .py)"
  sed -E "s#(\.\./)*/?${repo#/}/##g" "$work/$(basename "$file" .py).log" # without the path of this checkout
done | tee "$kept.tests.txt"

# The parts after the tests, each with its share of the time that is left when it begins: what one does not use, those
# after it have. In all they never take more than `total`, whatever came before. No share is below 20 seconds while there
# are so many: where time is short, the first parts run and the last are left out.
parts=(gpu_bytes:90 gpu_loader:140 gpu_cast:75 gpu_copy:55 gpu_resident:40 gpu_split:60 scaling:75 gpu_step:50
  gpu_offload:25 gpu_memory:50 memory_checker:45)

# share_of PART: its seconds; those of the parts before it are used.
share_of() {
  local left=$((total - SECONDS)) rest=0 mine=0 part seconds
  for part in "${parts[@]}"; do
    [ "${part%:*}" != "$1" ] || mine=${part#*:}
    [ "$mine" -eq 0 ] || rest=$((rest + ${part#*:}))
  done
  seconds=$((left * mine / rest))
  [ "$seconds" -ge 20 ] || seconds=$((left < 20 ? left : 20))
  echo "$seconds"
}

results=()
ended=() # parts whose time was over before they were at their end
little=() # what a rehearsal tells each benchmark
[ -z "$rehearsal" ] || little=(--quick --device cpu)

# benchmark NAME
benchmark() {
  local name=$1 limit
  limit=$(share_of "$name")
  echo "== $name ($SECONDS s, at most $limit more)"
  results+=("$work/$name.json")
  if [ "$limit" -lt 10 ]; then
    echo "left out: the time is nearly over"
    return
  fi
  local status=0
  timeout -k 10 "$limit" "$python" "$repo/benchmarks/$name.py" \
    --cache "$work" --out "${results[-1]}" "${little[@]}" || status=$?
  case $status in
    0) ;;
    124 | 137) ended+=("$name") ;; # its time was over
    *) failed+=("$name") ;;
  esac
  "$python" "$repo/benchmarks/gpu_table.py" "$kept.json" "${results[@]}" > "$kept.table.txt"
}

for part in "${parts[@]}"; do
  [ "${part%:*}" = memory_checker ] || benchmark "${part%:*}"
done

# Status 99 is the checker's own, for an error that it found; any other tells that it, or a test, did not get so far.
echo "== memory checker ($SECONDS s)"
if ! command -v compute-sanitizer > /dev/null; then
  said="compute-sanitizer is not installed: left out"
elif [ -n "$rehearsal" ]; then
  said="left out: it checks what runs on a GPU"
elif [ "$(share_of memory_checker)" -lt 20 ]; then
  said="left out: the time is nearly over"
else
  status=0
  timeout -k 5 "$(share_of memory_checker)" compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 99 \
    "${gpu_tests[@]}" -k "length or misalignment or place" "$repo"/tests/gpu/test_{cast,kernels}_gpu.py \
    > "$work/memcheck" 2>&1 || status=$?
  case $status in
    0) said="nothing found: $(grep -E '^[0-9]+ passed' "$work/memcheck" || true)" ;;
    99) said=$(tail -n 40 "$work/memcheck") && failed+=("memory checker") ;;
    124 | 137) said="not at its end in time; found until then: $(grep -c 'Invalid _' "$work/memcheck" || true)" ;;
    *) said="did not get to its end, with status $status: $(tail -n 3 "$work/memcheck")" ;;
  esac
fi
echo "$said"
printf -- '-- memory checker\n%s\n' "$said" >> "$kept.tests.txt"

echo "== all figures ($SECONDS s)"
[ ${#ended[@]} -eq 0 ] || echo "ended before they were through, since their time was over: ${ended[*]}"
[ ${#failed[@]} -eq 0 ] || echo "did not end well, see above: ${failed[*]}"
cat "$kept.table.txt"
exit $((${#failed[@]} > 0))

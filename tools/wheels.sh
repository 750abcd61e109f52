#!/usr/bin/env bash
# wheels.sh FOLDER PYTHON...: a wheel of this checkout for each of these Pythons, into FOLDER, built with the C library of
# this machine; `cibuildwheel` makes those that are published. Each is looked at by auditwheel, which names the oldest C
# library that it runs with, and passes tools/try_wheel.sh in a new environment.
#
#     bash tools/wheels.sh dist python3.12 python3.13
set -euo pipefail
[[ $# -ge 2 ]] || {
  echo "usage: wheels.sh FOLDER PYTHON..." >&2
  exit 2
}
checkout=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for python in "$@"; do
  name=$("$python" -c 'import sys; print(f"cp{sys.version_info.major}{sys.version_info.minor}")')
  "$python" -m venv "$scratch/$name"
  PATH="$scratch/$name/bin:$PATH"
  hash -r
  python -m pip install --quiet "pip>=25.1" auditwheel
  rm -f "$folder"/memload-*-"$name"-*.whl
  python -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$checkout" -C cmake.define.MEMLOAD_CUDA_ARCHITECTURES=all
  wheel=$(echo "$folder"/memload-*-"$name"-*.whl)
  auditwheel show "$wheel"
  python -m pip install --quiet -c "$checkout/constraints.txt" "$wheel[test]"
  bash "$checkout/tools/try_wheel.sh" "$checkout"
  rm -rf "${scratch:?}/$name"  # gigabytes, with torch
done

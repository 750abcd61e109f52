#!/usr/bin/env bash
# Makes the folder that travels to a machine with a GPU and without a network, for benchmarks/gpu_check.sh.
#
#     benchmarks/gpu_bundle.sh FOLDER [REQUIREMENT ...]
#
# FOLDER then holds check.sh, which unpacks the project and runs its check with this folder, and takes --rehearse;
# memload.tar.gz, the project as it is committed; COMMIT, which says which commit that is; a wheel of memload with
# memload._cuda, which nvcc builds here; and a wheel of each REQUIREMENT, which is what the other machine's Python lacks
# (blosc2 alone if none is named, which is needed where the wheel of memload does not serve and memload is built there).
#
# PYTHON=... names a Python of the version that the other machine has (default: python3). WHEEL=... is a wheel of memload
# that is taken instead of building one. MEMLOAD_CUDA_ARCHITECTURES=... builds for some GPUs alone, such as 90 for an
# H100 and an H200, which takes a fraction of the time.
set -euo pipefail

if [ $# -eq 0 ]; then
  echo "usage: gpu_bundle.sh FOLDER [REQUIREMENT ...]" >&2
  exit 2
fi
python=$(command -v "${PYTHON:-python3}") || {
  echo "gpu_bundle.sh: there is no ${PYTHON:-python3} on the PATH" >&2
  exit 1
}
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
requirements=("${@:-blosc2}")
if [ -n "$(ls -A "$folder")" ]; then
  echo "gpu_bundle.sh: $folder is not empty: name a new folder, since wheels of an earlier run would travel, too" >&2
  exit 1
fi
[ -z "$(git -C "$repo" status --porcelain)" ] ||
  echo "gpu_bundle.sh: there are changes that are not committed; they do not travel" >&2

git -C "$repo" rev-parse HEAD > "$folder/COMMIT"
git -C "$repo" archive --format=tar.gz --prefix=memload/ -o "$folder/memload.tar.gz" HEAD -- ':!benchmarks/results'

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "${WHEEL:-}" ]; then
  cp "$WHEEL" "$folder/"
else
  command -v nvcc > /dev/null || {
    echo "gpu_bundle.sh: there is no nvcc on the PATH, which memload._cuda is built with" >&2
    exit 1
  }
  tar -xzf "$folder/memload.tar.gz" -C "$work"
  only=()
  [ -z "${MEMLOAD_CUDA_ARCHITECTURES:-}" ] ||
    only=(--config-settings=cmake.define.MEMLOAD_CUDA_ARCHITECTURES="$MEMLOAD_CUDA_ARCHITECTURES")
  "$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder" \
    --config-settings=cmake.define.MEMLOAD_CUDA=ON "${only[@]}" "$work/memload"
fi
"$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$folder" "${requirements[@]}"

cat > "$folder/check.sh" << 'END'
#!/usr/bin/env bash
# Runs memload's GPU check with what this folder holds. Results: ${OUT:-results beside this file}.
set -euo pipefail
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -xzf "$folder/memload.tar.gz" -C "$work"
OUT=${OUT:-$folder/results} "$work/memload/benchmarks/gpu_check.sh" "$@" "$folder"
END
chmod +x "$folder/check.sh"
du -sh "$folder"

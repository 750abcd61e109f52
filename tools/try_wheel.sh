#!/usr/bin/env bash
# try_wheel.sh CHECKOUT: the quick tests of the package that is installed here, far from the checkout's own memload/, and
# with no compiler on the PATH.
set -euo pipefail
[[ $# -eq 1 ]] || {
  echo "usage: try_wheel.sh CHECKOUT" >&2
  exit 2
}
checkout=$(cd "$1" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -r "$checkout"/{tests,tools,pyproject.toml} "$scratch"

# The same commands as on the PATH, the first of each name, but compilers.
link_commands() {
  local folder command name
  local -a folders
  IFS=: read -ra folders <<<"$PATH"
  mkdir "$1"
  for folder in "${folders[@]}"; do
    for command in "$folder"/*; do
      name=${command##*/}
      [[ $name =~ (^|-)(cc|c\+\+|c[0-9]+|gcc|g\+\+|clang|clang\+\+|cpp|nvcc|ld|as)(-[0-9.]+)?$ ]] || [[ -e $1/$name ]] ||
        ln -s "$command" "$1/$name"
    done
  done
}

python=$(command -v python)
link_commands "$scratch/commands"
export PATH=$scratch/commands
cd "$scratch"
unset PYTHONPATH CC CXX
for compiler in gcc g++ cc c++ clang clang++; do
  if command -v "$compiler"; then
    echo "try_wheel.sh: there is a compiler" >&2
    exit 1
  fi
done
"$python" -c "import memload, pathlib; assert pathlib.Path.cwd() not in pathlib.Path(memload.__file__).parents, memload.__file__"
# Without those whose simulated device is compiled.
mapfile -t quick < <(grep -rLE '^ *(from|import) (extension|late_reading|pass_kinds|simulated)\b' --include='test_*.py' \
  tests/unit/{columns,casts,formats,loader,sampling})
"$python" -m pytest -q -n 2 --dist loadfile "${quick[@]}"

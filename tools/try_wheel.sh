#!/usr/bin/env bash
# try_wheel.sh CHECKOUT: the quick tests of the package that is installed here, far from the checkout's own memload/.
set -euo pipefail
checkout=$(cd "$1" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -r "$checkout"/{tests,tools,pyproject.toml} "$scratch"
cd "$scratch"
unset PYTHONPATH
python -c "import memload, pathlib; assert pathlib.Path.cwd() not in pathlib.Path(memload.__file__).parents, memload.__file__"
python -m pytest -q tests/unit/columns tests/unit/casts tests/unit/formats tests/unit/loader tests/unit/sampling

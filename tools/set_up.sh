#!/usr/bin/env bash
# Everything for working on memload, into the environment that is active: tools, what tests need, modules in memload/.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -n "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ] || {
  echo "set_up.sh: no environment is active. Make one: python -m venv .venv && . .venv/bin/activate" >&2
  exit 1
}
python -m pip install --quiet --upgrade "pip>=25.1"
python -m pip install --quiet --group dev
python -m pip install --quiet -c constraints.txt "pre-commit>=4" ".[test]"
cmake --preset dev
cmake --build --preset dev

#!/usr/bin/env bash
# site.sh [FOLDER]: docs/ and the docstrings as a site, built strictly into FOLDER (build/site). The reference asks the
# modules, so they must be built: those of PYTHONPATH if it is set, those of this checkout otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."
python -m pip install --quiet --group docs
PYTHONPATH="${PYTHONPATH:-.}" NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet --site-dir "${1:-build/site}"

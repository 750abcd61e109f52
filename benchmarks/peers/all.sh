#!/usr/bin/env bash
# The comparison with other data loaders, from nothing to the tables of docs/peers.md: environments, data, checks, the
# best setting of each, rounds in turn. Needs a Python with torch and numpy, a package index, 6 GB, and an hour.
#
#     benchmarks/peers/all.sh [FOLDER [PEER ...]]
#
# FOLDER (default: build/peers) gets the environments, and the figures as peers.json. Environments and data that are there
# already are used. Peers are those of known.py; memload is always among them.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:-$here/../../build/peers}
peers=("${@:2}")
[ ${#peers[@]} -eq 0 ] || peers=(memload "${peers[@]}")

"${PYTHON:-python3}" "$here/environments.py" "$folder" "${peers[@]}"
"${PYTHON:-python3}" "$here/compare.py" "$folder" "${peers[@]}" --search
"${PYTHON:-python3}" "$here/compare.py" "$folder" "${peers[@]}" --json "$folder/peers.json"
"${PYTHON:-python3}" "$here/page.py" "$folder/peers.json"

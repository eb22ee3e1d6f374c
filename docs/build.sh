#!/usr/bin/env bash
# The site of the documentation, in runs/site: open runs/site/index.html.
#   bash docs/build.sh            a link that leads nowhere is an error
#   bash docs/build.sh serve      http://localhost:8000, built again whenever a page changes
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck disable=SC1091
source env.sh
export PYTHONPATH=$PWD NO_MKDOCS_2_WARNING=1
exec python -m mkdocs "${1:-build}" --strict "${@:2}"

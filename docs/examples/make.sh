#!/usr/bin/env bash
# Write again the example reports of this folder and two pictures of the pages, from the committed records.
# Called by `make examples`.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-.venv/bin/python}
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT

# An example stands alone: links to the files that lie beside a report are taken off.
keep_alone() {
    sed -E 's/ href="[^#":]*"//g' "$1"
}

"$python" -m analysis logs/evidence/demo --output "$reports/demo"
keep_alone "$reports/demo/report.html" >docs/examples/demo.html

"$python" -m analysis build/evidence/published_emulated --output "$reports/emulated"
cp "$reports/emulated/scaling.svg" docs/background/published_emulated.svg

"$python" -m analysis build/evidence/plan_nuclei --output "$reports/nuclei"
cp "$reports/nuclei/quality.svg" docs/background/plan_nuclei.svg

for other in intel mpich; do
    "$python" -m analysis compare logs/evidence/published_gap_openmpi "build/evidence/published_gap_$other" --output "$reports/$other"
    keep_alone "$reports/$other/compare.html" >"docs/examples/openmpi_against_$other.html"
done

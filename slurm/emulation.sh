#!/usr/bin/env bash
# Both frameworks from 1 to 14 workers on this machine: emulated workers on a virtual cluster of 7 hosts, slowed tenfold.
# Called by `make emulation`, as root: emulation.sh [options of submission.sh ...]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

if [ "$(id -u)" -ne 0 ]; then
    echo "error: a virtual cluster is made of network namespaces and control groups, which need root: sudo make emulation" >&2
    exit 2
fi

state=/run/virtual_cluster_of_emulation
study=emulated_scaling
.venv/bin/python -m unet_scaling.data make data/demo --count 160 --height 96 --width 96
trap 'slurm/virtual_cluster down --state-dir "$state"' EXIT
slurm/virtual_cluster up --install --hosts 7 --dilate 10 --link-rate 100gbit --state-dir "$state"
eval "$(slurm/virtual_cluster env --state-dir "$state")"
slurm/submission.sh "slurm/studies/$study.toml" --cluster slurm/clusters/virtual.toml --one-allocation --wait "$@"
report=logs/$study/report
mkdir -p "$report"
# The answer comes first in what the analysis prints; all of it is in the file.
.venv/bin/python -m analysis "logs/$study" >"$report/console.txt"
sed '/^report: /q' "$report/console.txt"

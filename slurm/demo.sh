#!/usr/bin/env bash
# The demo study on this machine: synthetic indents, or the folder of images given.
# Called by `make demo`: demo.sh [DATA_FOLDER] [options of submission.sh ...]; DEMO_LOGS: where its study is (logs);
# DEMO_FOREGROUND: which mask values count, where `data check` asks.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
data=${1:-}
shift || true
# The command that goes on with a demo that was stopped, with all that this one was given.
given=
[ $# -eq 0 ] || given=$(printf ' %q' "$@")
given=${given# }
export UNET_SCALING_GO_ON=${data:+DEMO_DATA=${data@Q} }${DEMO_FOREGROUND:+DEMO_FOREGROUND=${DEMO_FOREGROUND@Q} }
UNET_SCALING_GO_ON+=${DEMO_LOGS:+DEMO_LOGS=${DEMO_LOGS@Q} }${given:+DEMO_OPTIONS=${given@Q} }"make demo"
cd "$root"
logs=${DEMO_LOGS:-logs}
options=()
[ "$logs" = logs ] || options=(--logs "$logs")

dry=no
for option in "$@"; do
    case $option in
        --dry-run) dry=yes ;;
        --name | --name=* | --logs | --logs=*)
            echo "error: $option: the demo has its own folder; use unet-scaling run for a study of yours" >&2
            exit 2
            ;;
    esac
done

if [ -z "$data" ]; then
    study=demo
    .venv/bin/python -m unet_scaling.data make data/demo --count 160 --height 96 --width 96
else
    # A user's folder is only read: its manifest goes beside the runs. Many are called images: the sum of its
    # path tells them apart.
    data=$(realpath "$data")
    study=demo-$(basename "$data" | tr -c 'A-Za-z0-9._\n-' '_')-$(cksum <<<"$data" | cut -d ' ' -f 1)
    mkdir -p "$logs/$study"
    .venv/bin/python -m unet_scaling.data check "$data" --manifest "$logs/$study/manifest.json" \
        ${DEMO_FOREGROUND:+--foreground "$DEMO_FOREGROUND"} || {
        code=$?
        echo "make demo takes --foreground RULE as DEMO_FOREGROUND=RULE" >&2
        exit "$code"
    }
    [ -z "${DEMO_FOREGROUND:-}" ] || options+=(--set "data.foreground=$DEMO_FOREGROUND")
    options+=(--name "$study" --set "data.folder=$data"
        --set "data.manifest=$(realpath "$logs/$study/manifest.json")")
fi

# Each worker on GPUs has its own: on one GPU the frameworks are compared at 1 worker.
gpus=$(.venv/bin/python -m unet_scaling.group.gpus)
if [ "$gpus" = 1 ] && [[ " $*" != *" workers="* ]]; then options+=(--set 'workers=[1]'); fi
study_file=slurm/studies/demo.toml
if [ "$dry$gpus" = no0 ] && [ -z "$data" ] && [ $# -eq 0 ]; then
    echo "24 launches: about 6 minutes on a quiet machine with two cores; Ctrl-C leaves a report of the complete ones"
fi
code=0
slurm/submission.sh "$study_file" --local "${options[@]}" "$@" || code=$?
[ "$dry" = no ] || exit "$code"
# Ctrl-C (75), and launches that failed (1) or diverged (70), leave others complete: these are reported.
case $code in
    0 | 1 | 70 | 75) ;;
    *) exit "$code" ;;
esac
report=$logs/$study/report
mkdir -p "$report"
if [ "$code" = 0 ]; then
    .venv/bin/python -m analysis "$logs/$study" >"$report/console.txt"
elif ! .venv/bin/python -m analysis "$logs/$study" >"$report/console.txt" 2>&1; then
    printf '\nno report yet, as no launch is complete; %s goes on\n' "$UNET_SCALING_GO_ON"
    exit "$code"
fi
# The answer comes first in what the analysis prints; all of it is in the file.
printf '\n'
sed '/^report: /q' "$report/console.txt"
if [ "$code" != 0 ]; then
    printf '\nthis is the report of the launches that are complete; %s goes on\n' "$UNET_SCALING_GO_ON"
    exit "$code"
fi
cat <<TEXT

full output: $report/console.txt
next:
  DEMO_DATA=MY_IMAGES make demo   # your images: a folder with images/ and masks/, paired by file name
  .venv/bin/unet-scaling new MY_STUDY --data MY_IMAGES   # a study of them, with the reason of every value
TEXT

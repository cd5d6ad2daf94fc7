#!/usr/bin/env bash
# `unet-scaling` in the words of the published study:
#   slurm/submission.sh STUDY.toml --cluster CLUSTER.toml    unet-scaling submit; --help has the options
#   slurm/submission.sh STUDY.toml --local                   unet-scaling run
#   slurm/submission.sh status|cancel|doctor ...             the same
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
python=$root/.venv/bin/python
if [ ! -x "$python" ]; then
    echo "error: $python does not exist; make the environment first: environment/install.sh" >&2
    exit 2
fi
command=submit
words=()
for word; do
    case $word in
    --local) command=run ;;
    *) words+=("$word") ;;
    esac
done
case ${words[0]-} in
status | cancel | doctor)
    command=${words[0]}
    words=("${words[@]:1}")
    ;;
esac
exec "$python" -m unet_scaling "$command" "${words[@]}"

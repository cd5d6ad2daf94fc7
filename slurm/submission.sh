#!/usr/bin/env bash
# Submit a study: slurm/submission.sh STUDY.toml [--local]; see --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python
if [ ! -x "$python" ]; then
    echo "error: $python does not exist; make the environment first: environment/install.sh" >&2
    exit 2
fi
exec "$python" -m slurm "$@"

"""Verify the task of a run before it is launched, in two processes after each other, as two workers."""

import os
import subprocess
import sys
from collections.abc import Mapping

from unet_scaling.group.identity import LAUNCHERS
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.study.errors import UserError

WORKERS = 2


def verify_in_processes(config: RunConfig) -> None:
    """Raise UserError where the task breaks its contract, or is another one in another worker."""
    facts = ""
    for rank in range(WORKERS):
        facts = _facts(config, rank, facts)


def _facts(config: RunConfig, rank: int, first: str) -> str:
    """Return what a worker of this rank finds, and compares with what the `first` one found, both as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "unet_scaling.verify_task", first],
        cwd=PROJECT,
        env=os.environ | _rank_variables(rank),
        input=config.model_dump_json(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(done.stderr.strip().removeprefix("error: "), done.returncode)
    return done.stdout.splitlines()[-1]


def _rank_variables(rank: int) -> Mapping[str, str]:
    """Return the variables by which any launcher would tell a process its rank."""
    variables: dict[str, str] = {}
    for launcher in LAUNCHERS:
        variables |= dict.fromkeys((launcher.rank, *launcher.local_ranks), str(rank))
        variables[launcher.size] = str(WORKERS)
    return variables

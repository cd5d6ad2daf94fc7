"""Run a program that is no training as one job of Slurm, and wait for its end."""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from slurm.cluster import Cluster, geometry
from slurm.render import SCRIPT_NAME, Places, program_script, write_script
from slurm.scheduler import GONE, JobState, LimitError, RejectedError, UnreachableError, is_over
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import UserError
from unet_scaling.study.study_file import OUTPUT_NAME

JOB_LOOK_SECONDS = 2.0


def new_job_folder(base: Path) -> Path:
    """Make a folder for the script and the output of a job below `base`, named by the time."""
    base.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=base))


def run_as_job(
    cluster: Cluster,
    workers: int,
    program: Sequence[str],
    name: str,
    folder: Path,
    console: Console,
    look: Callable[[], None] = lambda: None,
) -> JobState:
    """Let so many workers of `python PROGRAM...` run as one job; return how it ended.

    `look` is called every two seconds. An interrupt cancels the job. Raises UserError where Slurm does not
    take it, or does not answer.
    """
    once = cluster.model_copy(update={"stop_seconds": 1, "requeue": False})
    shape = geometry(cluster, workers)
    token = f"{name}.{folder.name}"
    script = program_script(once, shape, program, folder, token, Places(PROJECT, Path(sys.executable)))
    try:
        job = cluster.slurm.submit(write_script(folder, script), token)
    except (RejectedError, LimitError, UnreachableError) as error:
        raise UserError(f"the job of {name}, {folder / SCRIPT_NAME}: {error}") from None
    console.print(f"{name}: job {job}, {workers} workers; output in {folder}/{OUTPUT_NAME}", markup=False)
    try:
        while True:
            state = cluster.slurm.look_up({token: job})[token]
            if is_over(state.state) or state.state == GONE:
                return state
            time.sleep(JOB_LOOK_SECONDS)
            look()
    except BaseException:
        with suppress(UnreachableError, UserError):
            cluster.slurm.cancel(token)
        raise

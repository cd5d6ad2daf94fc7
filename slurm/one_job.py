"""Run a program that is no training as one job of Slurm, and wait for its end."""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from slurm.cluster import Cluster, find_container
from slurm.render import render_program_script, write_script
from slurm.scheduler.protocol import GONE, JobState, LimitError, RejectedError, UnreachableError, is_over
from unet_scaling.base.errors import UserError
from unet_scaling.study.study_file import OUTPUT_NAME

# How often the state of the job is asked for, in the first minute and later.
JOB_LOOK_SECONDS = 2.0
LATER_LOOK_SECONDS = 10.0
SOON_SECONDS = 60.0


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

    `look` is called after each look at the job. An interrupt cancels the job. Raises UserError where Slurm
    does not take it, or does not answer.
    """
    find_container(cluster)
    once = cluster.model_copy(update={"stop_seconds": 1, "requeue": False})
    scheduler = cluster.get_scheduler()
    token = f"{name}.{folder.name}"
    path = write_script(folder, render_program_script(once, workers, program, folder, token))
    try:
        job = scheduler.submit(path, token)
        console.print(f"{name}: job {job}, {workers} workers; output in {folder}/{OUTPUT_NAME}")
        begin = time.monotonic()
        while True:
            state = scheduler.look_up({token: job})[token]
            if state.state == GONE:
                return scheduler.ended([job]).get(token, state)
            if is_over(state.state):
                return state
            time.sleep(JOB_LOOK_SECONDS if time.monotonic() < begin + SOON_SECONDS else LATER_LOOK_SECONDS)
            with suppress(OSError):  # a display that fails does not end the job
                look()
    except (RejectedError, LimitError, UnreachableError) as error:
        raise UserError(f"the job of {name}, {path}: {error}") from None
    except BaseException:
        with suppress(UnreachableError, UserError):
            scheduler.cancel(token)
        raise

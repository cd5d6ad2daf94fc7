"""The schedulers that a cluster file may name, each with its class."""

from collections.abc import Sequence

from slurm.scheduler.protocol import Scheduler
from slurm.scheduler.slurm import Slurm

DEFAULT_SCHEDULER = "slurm"
SCHEDULERS: dict[str, type[Scheduler]] = {"slurm": Slurm}


def get_scheduler(
    name: str = DEFAULT_SCHEDULER, cluster_name: str | None = None, keep_variables: Sequence[str] = ()
) -> Scheduler:
    """Return the scheduler of a cluster file, or of a submission, by the values of these keys."""
    return SCHEDULERS[name](cluster_name, tuple(keep_variables))

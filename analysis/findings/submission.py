"""The command that submits a study as its records show that it was submitted."""

from analysis.study import Study
from unet_scaling.study.command_line import launch_command

NO_CLUSTER_FILE = "YOUR_CLUSTER.toml"


def study_file_name(study: Study) -> str:
    """Return the name of the study's file, from which the study has its name."""
    return f"{_name(study)}.toml"


def submit_command(study: Study) -> str:
    """Return the command, from the project's folder, that submits the study file of the report."""
    cluster = NO_CLUSTER_FILE if is_of_slurm(study) else None
    return launch_command(f"logs/{_name(study)}/report/{study_file_name(study)}", cluster)


def is_of_slurm(study: Study) -> bool:
    """Return whether jobs of Slurm trained these runs."""
    return any("SLURM_JOB_ID" in header.job for header in study.headers.values())


def _name(study: Study) -> str:
    return next(header.config.study for header in study.headers.values())

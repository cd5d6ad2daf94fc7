"""The command that submits a study as its records show that it was submitted."""

from analysis.study import Study

NO_CLUSTER_FILE = "YOUR_CLUSTER.toml"


def study_file_name(study: Study) -> str:
    """Return the name of the study's file, from which the study has its name."""
    return f"{_name(study)}.toml"


def submit_command(study: Study) -> str:
    """Return the command, from the project's folder, that submits the study file of the report."""
    file = f"logs/{_name(study)}/report/{study_file_name(study)}"
    if is_of_slurm(study):
        return f".venv/bin/unet-scaling submit {file} --cluster {NO_CLUSTER_FILE}"
    return f".venv/bin/unet-scaling run {file}"


def is_of_slurm(study: Study) -> bool:
    """Return whether jobs of Slurm trained these runs."""
    return any("SLURM_JOB_ID" in header.job for header in study.headers.values())


def _name(study: Study) -> str:
    return next(header.config.study for header in study.headers.values())

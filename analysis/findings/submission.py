"""The command that submits a study as its records show that it was submitted."""

from analysis.study import Study

NO_CLUSTER_FILE = "YOUR_CLUSTER.toml"


def submit_command(study: Study) -> str:
    """Return the command, from the project's folder, that submits the study file of the report."""
    headers = study.headers.values()
    name = next(header.config.study for header in headers)
    by_slurm = any("SLURM_JOB_ID" in header.job for header in headers)
    where = f"--cluster {NO_CLUSTER_FILE}" if by_slurm else "--local"
    return f"slurm/submission.sh logs/{name}/report/{name}.toml {where}"

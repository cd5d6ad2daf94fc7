"""job.json: the newest submission of a run, written before Slurm is asked and again after it answered."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from unet_scaling.study.errors import UserError
from unet_scaling.study.files import read_json_with_checksum, write_json_with_checksum
from unet_scaling.study.study_file import JOB_NAME
from unet_scaling.study.validation import StrictModel, validated

# "asking": Slurm's answer is not known, so that the job may exist.
SubmissionStatus = Literal["asking", "queued", "rejected"]


class Submission(StrictModel):
    """The content of the file; `shared` is that of a job that runs several runs, one after the other."""

    token: str
    attempts: int
    status: SubmissionStatus
    job: str | None = None
    reason: str = ""
    shared: bool = False


def read_submission(folder: Path) -> Submission | None:
    """Return the newest submission of a run; None where it was never submitted. Raises UserError."""
    path = folder / JOB_NAME
    try:
        return validated(Submission, read_json_with_checksum(path), str(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}; remove it after checking squeue") from None


def write_submission(folder: Path, submission: Submission | None) -> None:
    """Write the newest submission of a run; None makes it one that was never submitted."""
    if submission is None:
        (folder / JOB_NAME).unlink(missing_ok=True)
    else:
        write_json_with_checksum(folder / JOB_NAME, submission.model_dump(mode="json"))


def job_ids(submissions: Iterable[Submission | None]) -> set[str]:
    """Return the jobs of these submissions."""
    return {submission.job for submission in submissions if submission and submission.job}


def read_submissions(folders: Iterable[Path]) -> dict[Path, Submission | None]:
    """Return the newest submission of each run folder."""
    return {folder: read_submission(folder) for folder in folders}

"""job.json: the newest submission of a run, written before Slurm is asked and again after it answered."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal
from uuid import uuid4

from pydantic import Field

from slurm.scheduler import Slurm
from unet_scaling.study.errors import UserError
from unet_scaling.study.files import read_json_with_checksum, write_json_with_checksum
from unet_scaling.study.study_file import JOB_NAME
from unet_scaling.study.texts import short_digest
from unet_scaling.study.validation import StrictModel, validated

# "asking": Slurm's answer is not known, so that the job may exist. "limited": Slurm had no room for it.
SubmissionStatus = Literal["asking", "queued", "rejected", "limited"]


class Submission(StrictModel):
    """The content of the file; `token` is the name of the job, `attempts` counts jobs that may have started.

    `earlier`: how many attempts of the folder belong to launches before, which a forced start left behind.
    `shared` is that of a job that runs several runs, one after the other.
    """

    token: str
    attempts: int
    status: SubmissionStatus
    job: str | None = None
    reason: str = ""
    shared: bool = False
    earlier: int = 0
    asked_at: float = 0.0
    cluster_name: str | None = None
    keep_variables: list[str] = Field([])

    @property
    def slurm(self) -> Slurm:
        """Return the Slurm that was asked."""
        return Slurm(self.cluster_name, tuple(self.keep_variables))


def new_token(label: str, folder: Path) -> str:
    """Return a job name that no other job ever has; those of a run differ in the last part."""
    return f"{label}.{short_digest(str(folder.resolve()))}.{uuid4().hex[:12]}"


def base_of(token: str) -> str:
    """Return what the names of all jobs of one run have in common."""
    return token.rpartition(".")[0]


def read_submission(folder: Path) -> Submission | None:
    """Return the newest submission of a run; None where it was never submitted. Raises UserError."""
    path = folder / JOB_NAME
    try:
        return validated(Submission, read_json_with_checksum(path), str(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}; rename it after checking squeue") from None


def write_submission(folder: Path, submission: Submission | None) -> None:
    """Write the newest submission of a run; None makes it one that was never submitted."""
    if submission is None:
        (folder / JOB_NAME).unlink(missing_ok=True)
    else:
        write_json_with_checksum(folder / JOB_NAME, submission.model_dump(mode="json"))


def study_submissions(study: Path) -> dict[Path, Submission | None]:
    """Return the newest submission of each run folder that has one, by name."""
    return read_submissions(path.parent for path in sorted(study.glob(f"*/{JOB_NAME}")))


def read_submissions(folders: Iterable[Path]) -> dict[Path, Submission | None]:
    """Return the newest submission of each run folder."""
    return {folder: read_submission(folder) for folder in folders}

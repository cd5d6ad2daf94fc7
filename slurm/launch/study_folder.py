"""Make the run folders of a study, order its runs, lock it for one launcher, and cancel its submissions.

The lock is an flock, which workers inherit with the open file: where a launcher is killed, its workers hold
it until they end. filelock does not offer that: it unlocks for all holders when it is left, and takes over
the claim of a process that has died.

A submission may work for hours. `cancel` tells it to stop by a new mark in the study folder, written before
any job is ended. The submission compares the mark with the one that it found as it began, before and after
each job that it queues. So either the submission sees the mark, or `cancel` sees the job.
"""

import fcntl
import os
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from uuid import uuid4

from rich.console import Console

from slurm.scheduler.protocol import Scheduler, UnreachableError
from slurm.states import find_states
from slurm.submissions import read_submission
from unet_scaling.base.errors import EXIT_RESUME, UserError, or_user_error
from unet_scaling.base.files import open_to_append, read_regular, write_atomically, write_json_with_checksum
from unet_scaling.base.texts import CALLED
from unet_scaling.base.validation import flat_values
from unet_scaling.format.record import RECORD_NAME, attempt_records, read_any_record
from unet_scaling.format.run_state import ACTIVE, RecordedRun, recorded_run
from unet_scaling.run.run_claim import holders
from unet_scaling.study import study_file
from unet_scaling.study.config import PROJECT, RunConfig, StudyConfig
from unet_scaling.study.repeats import HISTORY_KEY, read_history

# Below the folder of a study: run folders that were replaced before anything was trained in them.
REPLACED_NAME = ".replaced"
LOCK_NAME = ".lock"
CLAIM_NAME = ".claim"
MARK_NAME = ".cancelled"


@dataclass(frozen=True)
class StudyFolder:
    """`logs/<study>/` with one folder per run."""

    path: Path
    study: StudyConfig

    @cached_property
    def resolved(self) -> Path:
        """Return the whole path, for jobs that start elsewhere."""
        return self.path.resolve()

    def prepare(self, console: Console | None = None) -> list[RunConfig]:
        """Make the run folders that are missing; return all configurations in the order to launch them.

        A folder of another configuration with which nothing was trained is set aside, and the console told.
        Raises UserError, and changes no folder, where something was trained.
        """
        configs = self.require_same()
        for config in configs:
            folder = self.run_folder(config)
            if difference := self._difference(config):
                aside = self.path / REPLACED_NAME
                aside.mkdir(exist_ok=True)
                folder.rename(aside / f"{config.run}.{len(list(aside.glob(f'{config.run}.*'))) + 1}")
                key, was, now = difference
                text = f"{config.run}: {key} was {was!r}, with which nothing was trained; replaced by {now!r}"
                if console:
                    console.print(text)
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                folder.mkdir(mode=0o700, exist_ok=True)
                if not study_file.config_path(folder).exists():
                    write_json_with_checksum(study_file.config_path(folder), config.model_dump(mode="json"))
            except OSError as error:
                raise UserError(f"the run folder {folder} cannot be made: {error}") from None
        content = self.study.model_dump(mode="json")
        history = read_history(self.path)
        if history.totals:
            content[HISTORY_KEY] = history.model_dump(mode="json")
        write_json_with_checksum(self.path / study_file.STUDY_NAME, content)
        return configs

    def run_folder(self, config: RunConfig) -> Path:
        return self.path / config.run

    def read_run(self, config: RunConfig) -> RecordedRun:
        """Read the record of a run and the state that it shows."""
        return recorded_run(self.run_folder(config), config).require_known_format()

    def read_runs(self, configs: Sequence[RunConfig]) -> Iterator[RecordedRun]:
        """Yield these runs with their records, then all others of the folder, reading one at a time."""
        yield from map(self.read_run, configs)
        yield from self.read_others(configs)

    def read_others(self, configs: Sequence[RunConfig]) -> Iterator[RecordedRun]:
        """Yield all runs of the folder but these, reading one at a time."""
        names = {config.run for config in configs}
        for path in study_file.list_run_folders(self.path):
            if path.name not in names:
                yield recorded_run(path, study_file.read_config(study_file.config_path(path)))

    def require_same(self) -> list[RunConfig]:
        """Return all runs in the order to launch them.

        Raises UserError where a run that trained has another configuration than the study gives it.
        """
        configs = in_launch_order(self.study)
        for config in configs:
            folder = self.run_folder(config)
            difference = self._difference(config)
            if difference and not never_trained(folder):
                key, was, now = difference
                way_on = ""
                if tuple(key.split(".")) in study_file.PATH_KEYS:
                    way_on = (
                        f"to go on with these runs, let {was} lead to the same images (a link will do) "
                        f"and add --set {key}={was}; else "
                    )
                raise UserError(
                    f"{study_file.config_path(folder)} holds another configuration: {key} is {was!r} there, "
                    f"{now!r} in the study; {way_on}give this study another name (--name), or move "
                    f"{self.path} away"
                )
        return configs

    def _difference(self, config: RunConfig) -> tuple[str, object, object] | None:
        """Return the first key that differs, its value in the run folder, and its value in the study."""
        path = study_file.config_path(self.run_folder(config))
        recorded = study_file.read_config(path) if path.exists() else config
        if recorded == config:
            return None
        before = flat_values(recorded)
        after = flat_values(config)
        key = next(key for key in after if before.get(key) != after[key])
        return key, before.get(key), after[key]


def open_study_folder(path: Path, study: StudyConfig) -> StudyFolder:
    """Return the folder of a study. Where it was renamed, the study has the name of its recorded runs."""
    recorded = study_file.recorded_study(path)
    if recorded is not None and recorded.name != study.name:
        study = study.model_copy(update={"name": recorded.name})
    return StudyFolder(path, include_added_repeats(path, study))


def include_added_repeats(path: Path, study: StudyConfig) -> StudyConfig:
    """Return the study with the repeats that were added to it since its file was written."""
    repeats = max([study.repeats, *read_history(path).totals])
    return study.model_copy(update={"repeats": repeats})


def in_launch_order(study: StudyConfig) -> list[RunConfig]:
    """Return all runs repeat by repeat, shuffled within each, the same way every time, unless `listed`.

    So a slow drift of the machine affects all points alike.
    """
    configs = study.configs()
    if study.order == "listed":
        return configs
    ordered: list[RunConfig] = []
    for repeat, group in groupby(configs, key=lambda config: config.repeat):
        block = list(group)
        random.Random(f"{study.seed} {repeat}").shuffle(block)  # noqa: S311  (no secret depends on it)
        ordered += block
    return ordered


def never_trained(folder: Path) -> bool:
    """Return whether no attempt in this run folder trained an epoch or left a checkpoint, and no job may.

    A job may until it is known to be over.
    """
    records = [path for path in (*attempt_records(folder), folder / RECORD_NAME) if path.exists()]
    trained = any(each.epochs or each.results or each.damaged for each in map(read_any_record, records))
    if trained or any(folder.glob(study_file.CHECKPOINTS)):
        return False
    states = find_states({folder: read_submission(folder)})
    return not any(state.state in ACTIVE for _, state, _ in states)


def logs_folder() -> Path:
    return PROJECT / "logs"


@contextmanager
def locked(study: Path) -> Iterator[None]:
    """Hold the lock of a study folder. Raises UserError where another process holds it."""
    with or_user_error(f"the study folder {study} cannot be written", "give another --logs"):
        study.mkdir(parents=True, exist_ok=True)
        lock = open_to_append(study / LOCK_NAME)
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            working = holders(study / LOCK_NAME)
            found = f"another submission is working on {study}"
            if not working:
                raise UserError(f"{found}, perhaps on another machine; wait for it to end") from None
            named = ", ".join(f"{process} ({name})" for process, name in working.items())
            raise UserError(
                f"{found}, or workers of one that was killed: processes {named} on {socket.gethostname()}; "
                f"wait for their end, or: kill {next(iter(working))}"
            ) from None
        except OSError:  # a file system without locks
            with _claimed(study / CLAIM_NAME):
                yield
            return
        os.set_inheritable(lock.fileno(), True)
        yield


@contextmanager
def _claimed(claim: Path) -> Iterator[None]:
    """Hold a file that only one process can create; it stays where the process is killed."""
    try:
        with claim.open("x") as file:
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
    except FileExistsError:
        raise UserError(
            f"another submission, {claim.read_text()}, is working on {claim.parent}; "
            f"if it has died, remove {claim}"
        ) from None
    try:
        yield
    finally:
        claim.unlink()


def is_at_work(study: Path) -> bool:
    """Return whether a process of this machine holds the lock of this study."""
    return bool(holders(study / LOCK_NAME))


class CancelledError(UserError):
    """The study was cancelled during a submission. `left`: a sentence on what is left to do."""

    def __init__(self, study: Path, left: str = "") -> None:
        super().__init__(
            f"{left}{study.name} was cancelled meanwhile ({CALLED} cancel {study.name}): nothing more is "
            "submitted; the same command goes on",
            EXIT_RESUME,
        )


class Cancellation:
    """Tell whether a study was cancelled since a submission began, at which this object is made."""

    def __init__(self, study: Path) -> None:
        self.study = study
        self.found = _mark(study)

    def require_none(self) -> None:
        """Raise CancelledError where the study was cancelled since."""
        if _mark(self.study) != self.found:
            raise CancelledError(self.study)

    def take_back(self, scheduler: Scheduler, token: str, job: str) -> None:
        """Cancel a job just queued, and raise CancelledError, where the study was cancelled meanwhile.

        Where Slurm does not answer, the error names the job, which is still there.
        """
        try:
            self.require_none()
        except CancelledError:
            try:
                scheduler.cancel(token)
            except UnreachableError as error:
                raise CancelledError(
                    self.study,
                    f"job {job} was queued meanwhile and is still there, since Slurm does not answer now: "
                    f"{error}; cancel it again: {CALLED} cancel {self.study}\n",
                ) from None
            raise


def mark_cancelled(study: Path) -> None:
    """Let all submissions of this study that are at work stop. Raises OSError."""
    write_atomically(study / MARK_NAME, f"{uuid4().hex}\n")


def _mark(study: Path) -> bytes:
    with or_user_error(f"{study / MARK_NAME} cannot be read", "remove it"):
        try:
            return read_regular(study / MARK_NAME)
        except (FileNotFoundError, NotADirectoryError):
            return b""

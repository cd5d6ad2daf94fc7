"""Make the run folders of a study, and order its runs for the launch.

`python -m slurm.study_folder RUN_FOLDER` succeeds where the run in the folder is complete; for job scripts.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from rich.console import Console

from slurm.states import judged, read_submission
from unet_scaling.study.config import PROJECT, RunConfig, StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.files import write_json_with_checksum
from unet_scaling.study.record import RECORD_NAME, attempt_records, read_record
from unet_scaling.study.repeats import HISTORY_KEY, read_history
from unet_scaling.study.run_state import ACTIVE, RecordedRun, recorded_run, run_state
from unet_scaling.study.study_file import (
    CHECKPOINTS,
    PATH_KEYS,
    STUDY_NAME,
    config_path,
    list_run_folders,
    read_config,
    recorded_study,
)
from unet_scaling.study.validation import flat_values

# Below the folder of the study: run folders whose configuration was mended before anything was trained.
REPLACED_NAME = ".replaced"


@dataclass(frozen=True)
class StudyFolder:
    """`logs/<study>/` with one folder per run."""

    path: Path
    study: StudyConfig

    @cached_property
    def resolved(self) -> Path:
        """Return the folder as jobs find it, wherever they start."""
        return self.path.resolve()

    def prepare(self, console: Console | None = None) -> list[RunConfig]:
        """Make the run folders that are missing; return all configurations in the order to launch them.

        A folder of another configuration with which nothing was trained is set aside, and the console told.
        Raises UserError where something was, and changes no folder then.
        """
        configs = in_launch_order(self.study)
        self.require_same(configs)
        for config in configs:
            replaced = self._set_untrained_aside(config)
            if replaced and console:
                console.print(replaced, markup=False)
            folder = self.run_folder(config)
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                folder.mkdir(mode=0o700, exist_ok=True)
                if not config_path(folder).exists():
                    write_json_with_checksum(config_path(folder), config.model_dump(mode="json"))
            except OSError as error:
                raise UserError(f"the run folder {folder} cannot be made: {error}") from None
        content = self.study.model_dump(mode="json")
        history = read_history(self.path)
        if history.totals:
            content[HISTORY_KEY] = history.model_dump(mode="json")
        write_json_with_checksum(self.path / STUDY_NAME, content)
        return configs

    def run_folder(self, config: RunConfig) -> Path:
        return self.path / config.run

    def recorded(self, config: RunConfig) -> RecordedRun:
        """Read the record of a run and the state that it shows."""
        return recorded_run(self.run_folder(config), config)

    def all_recorded(self, configs: Sequence[RunConfig]) -> Iterator[RecordedRun]:
        """Yield these runs, each as it is read, then those in the folder that are not among them."""
        names = {config.run for config in configs}
        yield from map(self.recorded, configs)
        for path in list_run_folders(self.path):
            if path.name not in names:
                yield recorded_run(path, read_config(config_path(path)))

    def require_same(self, configs: Sequence[RunConfig]) -> None:
        """Raise UserError where a run that trained has another configuration than the study gives it."""
        for config in configs:
            folder = self.run_folder(config)
            recorded = _recorded_config(folder, config)
            if recorded != config and not never_trained(folder):
                key, was, now = _first_difference(recorded, config)
                way_on = ""
                if tuple(key.split(".")) in PATH_KEYS:
                    way_on = (
                        f"to go on with these runs, let {was} lead to the same images (a link will do) "
                        f"and add --set {key}={was}; else "
                    )
                raise UserError(
                    f"{config_path(folder)} holds another configuration: {key} is {was!r} there, {now!r} in "
                    f"the study; {way_on}give this study another name (--name), or move "
                    f"{self.path} away"
                )

    def _set_untrained_aside(self, config: RunConfig) -> str:
        """Move a run folder of another configuration below `.replaced`; return what was done, if anything."""
        folder = self.run_folder(config)
        recorded = _recorded_config(folder, config)
        if recorded == config:
            return ""
        aside = self.path / REPLACED_NAME
        aside.mkdir(exist_ok=True)
        kept = aside / f"{config.run}.{len(list(aside.glob(f'{config.run}.*'))) + 1}"
        folder.rename(kept)
        key, was, now = _first_difference(recorded, config)
        return f"{config.run}: {key} was {was!r}, with which nothing was trained; replaced by {now!r}"


def open_study_folder(path: Path, study: StudyConfig) -> StudyFolder:
    """Return the folder of a study; one that was renamed keeps the name that its runs were made with."""
    recorded = recorded_study(path)
    if recorded is not None and recorded.name != study.name:
        study = study.model_copy(update={"name": recorded.name})
    return StudyFolder(path, with_added_repeats(path, study))


def with_added_repeats(path: Path, study: StudyConfig) -> StudyConfig:
    """Return the study with the repeats that were added to it since its file was written."""
    repeats = max([study.repeats, *read_history(path).totals])
    return study.model_copy(update={"repeats": repeats})


def in_launch_order(study: StudyConfig) -> list[RunConfig]:
    """Return all runs repeat by repeat; within a repeat shuffled, the same way each time, unless `listed`.

    A slow drift of the machine then affects all points alike.
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


def _recorded_config(folder: Path, otherwise: RunConfig) -> RunConfig:
    path = config_path(folder)
    return read_config(path) if path.exists() else otherwise


def never_trained(folder: Path) -> bool:
    """Return whether no attempt in this run folder trained an epoch or left a checkpoint, and none may yet.

    A job of Slurm that is not known to be over may.
    """
    records = [path for path in (*attempt_records(folder), folder / RECORD_NAME) if path.exists()]
    trained = any(each.epochs or each.results or each.damaged for each in map(read_record, records))
    if trained or any(folder.glob(CHECKPOINTS)):
        return False
    submission = read_submission(folder)
    states = judged({folder: submission}, run_state) if submission else ()
    return not any(state.state in ACTIVE for _, state, _ in states)


def _first_difference(recorded: RunConfig, asked: RunConfig) -> tuple[str, object, object]:
    """Return the first key in which two configurations differ, with both values."""
    before = flat_values(recorded)
    after = flat_values(asked)
    key = next(key for key in after if before.get(key) != after[key])
    return key, before.get(key), after[key]


def logs_folder() -> Path:
    return PROJECT / "logs"


def main() -> int:
    state = run_state(Path(sys.argv[1]))
    print(state.state, state.reason)
    return 0 if state.is_complete else 1


if __name__ == "__main__":
    sys.exit(main())

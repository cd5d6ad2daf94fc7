"""What can be done next with a study, as commands that work where the user stands."""

import shlex
from pathlib import Path

from analysis.stats import RECOMMENDED_REPEATS
from analysis.study import Study
from unet_scaling.study.command_line import CALLED
from unet_scaling.study.config import PROJECT
from unet_scaling.study.disturbance import MOST_DISTURBED

NO_CLUSTER_FILE = "YOUR_CLUSTER.toml"
# Of what a training that diverged is tried with next, to the rate that it had.
LOWER_RATE = 0.1


def next_commands(study: Study, more: int = 1) -> dict[str, str]:
    """Return the ways on from the runs that a report has read; none of logs without headers.

    `undisturbed` names the runs that have had all launches that are made unasked; `grown` does without
    --more-repeats where runs diverged, as it asks for a complete study. `for_quality` is no command.
    """
    headers = study.subject.headers.values()
    if not headers:
        return {}
    runs, asked = study.subject.runs, study.asked
    command, again = _launch(study), _launch(study, is_new=True)
    disturbed = set(runs.loc[runs["disturbed"] != "", "run"])
    often = set() if asked is None else set(asked.loc[asked["replaced"] >= MOST_DISTURBED, "run"])
    forced = shlex.join(f"--force={run}" for run in sorted(disturbed & often))
    lost = "diverged" in set(study.all_left_out["state"])
    total = (runs if asked is None else asked)["repeat"].max() + more
    few = f" --set repeats={RECOMMENDED_REPEATS}" if runs["repeat"].max() < RECOMMENDED_REPEATS else ""
    trained = [header.config.training for header in headers]
    rate = LOWER_RATE * min(each.learning_rate for each in trained)
    tries = [] if len({each.rate_scaling for each in trained}) > 1 else ["training.rate_scaling"]
    tries += [] if any(each.warmup_epochs for each in trained) else ["training.warmup_epochs"]
    workers = ",".join(map(str, sorted({1, *runs["workers"]})))
    return {
        "command": command,
        "again": f"{again}{few}",
        "slower_rate": f"{again} --set training.learning_rate={rate:g}",
        "undisturbed": f"{command} --repeat-disturbed {forced}",
        "grown": f"{command} --set repeats={total}" if lost else f"{command} --more-repeats {more}",
        "for_quality": " or ".join(filter(None, (", ".join(tries), "more training.epochs"))),
        "with_one": f"{command} --set 'workers=[{workers}]'",
    }


def _launch(study: Study, *, is_new: bool = False) -> str:
    file = study_file_name(study)
    own = file.removesuffix(".toml")
    folder = (study.folder or PROJECT / "logs" / own).resolve()
    copy = _from_here((study.output or folder / "report") / file)
    words = [CALLED, "submit", copy, "--cluster", NO_CLUSTER_FILE]
    if not is_of_slurm(study):
        words = [CALLED, "run", copy]
    if folder.parent != PROJECT / "logs":
        words += ["--logs", _from_here(folder.parent)]
    if is_new or folder.name != own:
        words += ["--name", f"{folder.name}_again" if is_new else folder.name]
    return shlex.join(words)


def _from_here(path: Path) -> str:
    """Return a path that leads there from where the user stands."""
    path, here = path.resolve(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def study_file_name(study: Study) -> str:
    """Return the name of the study's file, from which the study has its name."""
    return f"{next(header.config.study for header in study.subject.headers.values())}.toml"


def is_of_slurm(study: Study) -> bool:
    """Return whether jobs of Slurm trained these runs."""
    return any("SLURM_JOB_ID" in header.job for header in study.subject.headers.values())

"""What a study asked for (study.json) against what is read of it, run by run."""

from collections.abc import Hashable, Iterator
from pathlib import Path

import pandas as pd

from analysis.facts import differing_attempts
from analysis.loading.options import identity, label, varying, with_common_places
from analysis.loading.runs import Loaded, why_unusable
from analysis.study import ABSENT, ASKED_COLUMNS, IS_READ, NOT_ASKED, Study
from unet_scaling.study.config import RunConfig, StudyConfig
from unet_scaling.study.disturbance import disturbance
from unet_scaling.study.record import attempt_records, disturbed_records, read_record
from unet_scaling.study.record_lines import Header
from unet_scaling.study.study_file import JOB_NAME

# No further submission changes these.
FINAL_FATES = (IS_READ, NOT_ASKED, "diverged", "refused", "no throughput")


def asked_table(folder: Path, recorded: StudyConfig, runs: Loaded, study: Study) -> pd.DataFrame:
    """Return ASKED_COLUMNS: a row per run that study.json asks for, and per further repeat of its points."""
    complete, left_out = runs
    states = study.all_left_out.set_index("run")["state"].to_dict()
    configs = [run.config for run in complete]
    asked = [*with_common_places(recorded.configs(), configs)]
    points = {_point(config): number for number, config in enumerate(asked)}
    found = {identity(left.config): left.left_out.run for left in left_out if left.config}
    found |= {identity(run.config): run.name for run in complete}
    found |= {identity(run.config): run.name for run in complete if run.name not in states}
    wanted = set(map(identity, asked))
    further = {identity(config): config for config in configs if _point(config) in points}
    further = {key: config for key, config in further.items() if key not in wanted}
    headers = {run.name: run.header for run in complete}
    started: dict[Hashable, set[str]] = {}
    for run in complete:
        started.setdefault(identity(run.config), set()).add(run.header.started_utc)
    axes = varying(asked)
    rows = []
    for config in (*asked, *further.values()):
        name = found.get(identity(config), config.run)
        fate = states.get(name, IS_READ if name in headers else ABSENT)
        if fate == "waiting" and not (folder / name / JOB_NAME).exists():
            fate = ABSENT  # neither trained nor submitted
        quiet = list(_replaced(folder / name, headers[name])) if fate == IS_READ else []
        # Of another launch of the repeat, in a folder of its own, it is not asked why it was made.
        quiet += [True] * (len(started.get(identity(config), ())) - 1)
        fate = NOT_ASKED if fate == IS_READ and identity(config) in further else fate
        place = (name, points[_point(config)], label(config, axes))
        of_config = (config.framework, config.workers, config.repeat)
        rows.append((*place, *of_config, fate, len(quiet), sum(quiet)))
    return pd.DataFrame(rows, columns=list(ASKED_COLUMNS))


def _point(config: RunConfig) -> Hashable:
    return identity(config.model_copy(update={"repeat": 1}))


def _replaced(folder: Path, header: Header) -> Iterator[bool]:
    """Yield for each complete launch that the run in this folder replaced whether it was quiet.

    One on another machine, of another code, or that could not be used, was no choice between results.
    """
    for path in (*disturbed_records(folder), *attempt_records(folder)):
        record = read_record(path)
        if not record.complete or record.header is None:
            continue
        both = header.model_copy(update={"earlier": [record.header]})
        if not any(differing_attempts(both)) and why_unusable(record) is None:
            yield not disturbance(record).reason


def is_early(asked: pd.DataFrame) -> bool:
    """Return whether repeats of a point that is read are to come, in a study that compares frameworks."""
    read = asked[asked["fate"] == IS_READ]
    to_come = ~asked["fate"].isin(FINAL_FATES) & asked["point"].isin(read["point"])
    return bool(to_come.any()) and read["framework"].nunique() > 1

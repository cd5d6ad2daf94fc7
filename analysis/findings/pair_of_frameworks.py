"""One framework beside native DDP: a study of two arms, in which it takes the place of Horovod.

What compares two arms knows native DDP and Horovod; the names in its sentences are those of the study.
"""

from dataclasses import replace

import pandas as pd

from analysis.study import COMPARED, NAMES, Study
from unet_scaling.study.config import Framework
from unet_scaling.study.record_lines import Header


def pair_study(study: Study, framework: Framework) -> Study:
    """Return the runs of native DDP and of this framework, as a study of native DDP and Horovod."""
    native, horovod = COMPARED
    runs = runs_of_pair(study.runs, framework)
    kept = set(runs["run"])
    headers = {run: header for run, header in study.headers.items() if run in kept}
    return replace(
        study,
        runs=runs,
        epochs=_of_runs(study.epochs, kept),
        evaluations=_of_runs(study.evaluations, kept),
        budgets=_of_runs(study.budgets, kept),
        headers={run: _in_horovods_place(header, framework) for run, header in headers.items()},
        unknown_attempts=tuple(run for run in study.unknown_attempts if run in kept),
        names={native: study.names[native], horovod: NAMES[framework]},
    )


def runs_of_pair(runs: pd.DataFrame, framework: Framework) -> pd.DataFrame:
    """Return the rows of native DDP and of this framework, which takes the place of Horovod."""
    native, horovod = COMPARED
    both = runs[runs["framework"].isin([native, framework])]
    return both.assign(framework=both["framework"].replace({framework: horovod}))


def _of_runs(table: pd.DataFrame, runs: set[str]) -> pd.DataFrame:
    return table[table["run"].isin(runs)]


def _in_horovods_place(header: Header, framework: Framework) -> Header:
    if header.config.framework != framework:
        return header
    config = header.config.model_copy(update={"framework": COMPARED[1]})
    return header.model_copy(update={"config": config})

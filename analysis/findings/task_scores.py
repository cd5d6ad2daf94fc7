"""Every score of a task that has more than one; the first alone is judged (quality.py)."""

import numpy as np
import pandas as pd

from analysis.stats import ANY, SHARE, launches_of
from analysis.study import POINT, Study

TASK_SCORE_COLUMNS = [*POINT, "score", "judged", "seeds", "value", "value_low", "value_high"]


def task_scores(study: Study) -> pd.DataFrame:
    """Return one row per point and score, of the last evaluation: TASK_SCORE_COLUMNS.

    `value` is the median over the runs, with its interval; NaN where a run has none. No row for a task of one
    score.
    """
    runs = _last_scores(study)
    if runs.empty:
        return pd.DataFrame(columns=TASK_SCORE_COLUMNS)
    launches = launches_of(runs, [*POINT, "score"])
    rows = runs.groupby(launches.point).first()
    values = runs["value"].to_numpy(dtype=np.float64)
    judged = (rows["score"] == study.score.name).to_numpy()
    of_any = launches.bounded(values, ANY)[1:]
    of_share = launches.bounded(values, SHARE)[1:]
    low, high = (np.where(judged, *bounds) for bounds in zip(of_share, of_any, strict=True))
    seeds = np.bincount(launches.point, minlength=launches.points)
    found = {"judged": judged, "seeds": seeds, "value": launches.medians(values)}
    return rows.assign(**found, value_low=low, value_high=high)[TASK_SCORE_COLUMNS].reset_index(drop=True)


def _last_scores(study: Study) -> pd.DataFrame:
    """Return the scores of each run's last evaluation, run by run, with the run's point and repeat."""
    scores = study.scores.assign(run=study.scores["run"].astype(str))
    last = scores[scores["epochs"] == scores.groupby("run")["epochs"].transform("max")]
    return study.runs[["run", "repeat", *POINT]].merge(last[["run", "score", "value"]], on="run")

"""Drop disturbed launches from what counts for speed, where enough others of their point remain."""

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.statistics.intervals import FEWEST_REPEATS
from analysis.study import POINT, Study


def timed(study: Study) -> Study:
    """Return the study with only the launches that count for speed.

    What a launch learned does not depend on its speed: of its IoU the whole study tells.
    """
    counted = counts_for_speed(study.runs, study.runs["disturbed"] != "", POINT)
    return study if counted.all() else replace(study, runs=study.runs[counted])


def counts_for_speed(
    launches: pd.DataFrame, disturbed: "pd.Series[bool]", columns: list[str]
) -> NDArray[np.bool_]:
    """Return which launches, or pairs of them, count: all of a group in which too few are undisturbed.

    A group is what agrees in `columns`. An interval needs 3 launches, so fewer are not preferred to more.
    """
    groups = [launches[name] for name in columns]
    quiet = (~disturbed).groupby(groups, sort=False, dropna=False).transform("sum")
    return np.asarray(~disturbed | (quiet < FEWEST_REPEATS), dtype=np.bool_)


def kept_though_disturbed(study: Study) -> pd.DataFrame:
    """Return the disturbed launches that count for speed all the same."""
    runs = timed(study).runs
    return runs[runs["disturbed"] != ""]

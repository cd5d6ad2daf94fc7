"""The reason why runs of one framework have no counterpart: which option differs, with both values."""

from collections.abc import Sequence

import pandas as pd

from analysis.loading.options import is_knob
from analysis.study import Study
from analysis.text import count, listed
from unet_scaling.study.config import Framework


def unmatched(study: Study, runs: pd.DataFrame, missing: Framework) -> str:
    """Return why these runs of equal options have no usable run of the other framework to compare with.

    Where that framework has runs of other options, the options in which those nearest to these differ are
    named with both values.
    """
    name = study.names[missing]
    others = study.runs[study.runs["framework"] == missing]
    axes = [axis for axis in study.axes if not is_knob(axis)]
    if others.empty or not axes:
        return f"no verdict: there is no usable run of {name}{_left_out(study, missing)}"
    here = runs.iloc[0]
    nearest, differing = _nearest(here, others[axes].drop_duplicates(), axes)
    values = [f"{axis} is {here[axis]} here, but {nearest[axis]} in runs of {name}" for axis in differing]
    return f"no verdict: no usable run of {name} has the same options: {listed(values)}"


def _left_out(study: Study, framework: Framework) -> str:
    left_out = study.left_out[study.left_out["framework"] == framework]
    if left_out.empty:
        return ""
    first = left_out.iloc[0]
    return f": {count(len(left_out), 'run')} left out, {first['run']} because {first['reason']}"


def _nearest(
    here: "pd.Series[str]", others: pd.DataFrame, axes: Sequence[str]
) -> tuple["pd.Series[str]", list[str]]:
    """Return the set of options with the fewest differences from these, and the options that differ."""
    differences = [
        (other, [axis for axis in axes if other[axis] != here[axis]]) for _, other in others.iterrows()
    ]
    return min(differences, key=lambda difference: len(difference[1]))

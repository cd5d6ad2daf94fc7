"""Notes on the predictions of a series: how far they were off, and what is expected beyond its counts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.prediction.series import Series
from analysis.stats import FEWEST_REPEATS
from analysis.text import bracketed

UNSEEN_LINK = "the link between nodes is not among the points fitted"

_Cells = Mapping[str, Any]


def prediction_notes(series: Series, unit: str, rows: Sequence[_Cells], fit: _Cells) -> Iterator[str]:
    """Yield sentences on the predictions of a series, the last of them beyond its counts, and its fit."""
    *checks, beyond = rows
    if checks:
        yield _errors(checks, 100 * fit["held_out_error"])
        yield _against_last_efficiency(100 * fit["held_out_error"], 100 * fit["last_efficiency_error"])
    yield _expected(beyond, unit)
    yield from one_node_only(series)
    yield from few_launches(series)


def _expected(beyond: _Cells, unit: str) -> str:
    interval = bracketed(beyond["predicted_low"], beyond["predicted_high"], ".3g")
    expected = f"{beyond['predicted']:.3g} {unit} {interval}"
    return f"fitted on {beyond['fitted_on']}, {beyond['workers']} workers are expected to reach {expected}"


def one_node_only(series: Series) -> Iterator[str]:
    """Yield that the points of a series, all within one node, do not tell of a link between nodes."""
    if (series.counts.nodes == 1).all():
        yield f"{UNSEEN_LINK}: what is expected holds within one node only"


def few_launches(series: Series) -> Iterator[str]:
    """Yield that a point has too few launches to tell how much launches vary."""
    if min(map(len, series.launches)) < FEWEST_REPEATS:
        few = f"a point has fewer than {FEWEST_REPEATS} launches"
        yield f"{few}: the intervals carry no launch-to-launch variation, only the misfit of the model"


def _errors(checks: Sequence[_Cells], typical: float) -> str:
    """Return the error at the largest count by the smallest fit, and the median of all, in %."""
    farthest = [row for row in checks if row["fitted_on"] == checks[0]["fitted_on"]][-1]
    fitted = f"fitted on {farthest['fitted_on']}, the error at {farthest['workers']}"
    one = f"{fitted} is {100 * farthest['error']:+.1f} %"
    return f"{one}; the median error of all {len(checks)} such checks is {typical:.1f} %"


def _against_last_efficiency(typical: float, without_model: float) -> str:
    """Return whether the model predicts better than the last efficiency, by their median errors in %."""
    kept = "keeping the efficiency of the largest count fitted, without a model, gives in the same checks"
    remark = "" if typical < without_model else ": here the model predicts no better"
    return f"{kept} a median error of {without_model:.1f} %{remark}"

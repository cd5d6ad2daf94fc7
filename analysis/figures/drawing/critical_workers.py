"""N_crit at the foot of a panel over the workers: where the gradient noise scale warns of a fall."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.drawing.inputs import DrawnSeries
from analysis.figures.drawing.titles import title_marks
from analysis.findings.noise import critical_workers
from analysis.text import Row, number, with_interval

N_CRIT_SENTENCE = (
    "At the foot N_crit with its interval: the workers at which the gradient noise scale warns that the "
    "IoU may fall; it is no law."
)
# Height above the lower end of the axis, as a share of the panel, and between two series.
FOOT_SHARE = 0.03
STEP_SHARE = 0.045
_LABEL_PX = 6


def resolved_critical_workers(noise: pd.DataFrame, series: DrawnSeries) -> Row | None:
    """Return the row of a series' N_crit, None where it is not resolved or not recorded."""
    rows = series.rows(critical_workers(noise))
    known = rows[rows["noise_scale_workers"].notna()].to_dict("records")
    return known[0] if known else None


def draw_critical_workers(axes: Axes, series: Sequence[DrawnSeries], noise: pd.DataFrame) -> None:
    """Draw N_crit of each series with its interval, one above the other, cut at the ends of the axis."""
    rows = [(each, resolved_critical_workers(noise, each)) for each in series]
    for place, (each, row) in enumerate((each, row) for each, row in rows if row is not None):
        _draw_one(axes, each, row, FOOT_SHARE + place * STEP_SHARE)


def _draw_one(axes: Axes, series: DrawnSeries, row: Row, height: float) -> None:
    first, last = axes.get_xlim()
    low, value, high = (
        min(max(row[f"noise_scale_workers{end}"], first), last) for end in ("_low", "", "_high")
    )
    colour = series.style.text_colour
    at_foot = axes.get_xaxis_transform()
    axes.plot([low, high], [height, height], color=colour, linewidth=1.4, transform=at_foot, zorder=2)
    mark = axes.plot([value], [height], color=colour, marker="|", markersize=9, transform=at_foot, zorder=2)
    exact = with_interval(row, "noise_scale_workers", "~2")
    title_marks(mark[0], [f"{series.name}: N_crit = {exact} workers, by the gradient noise scale"])
    right = high <= (first + last) / 2
    below = "← " if row["noise_scale_workers"] < first else ""
    beyond = " →" if row["noise_scale_workers"] > last else ""
    axes.annotate(
        f"{below}N_crit {number(row['noise_scale_workers'], '~2')}{beyond}",
        (high if right else low, height),
        xycoords=at_foot,
        xytext=(_LABEL_PX if right else -_LABEL_PX, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        color=colour,
    )

"""The gradient noise scale over training, in images, beside the batches of 2, 4, 8 ... workers."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.arrays import Array
from analysis.figures.drawing.artists import interval_bars, median_line
from analysis.figures.drawing.axes import logarithmic, whole_numbers_from_zero
from analysis.figures.drawing.captions import alternative_text, caption_text, facts_of_series
from analysis.figures.drawing.inputs import DrawnSeries, Inputs
from analysis.figures.drawing.labels import Label, end_labels, guide_line, say_unknown
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.titles import title_marks
from analysis.findings.noise import WHOLE_TRAINING, noise_scale_text
from analysis.score import Score
from analysis.study import SERIES
from analysis.text import Row, count

TITLE = "gradient noise scale over training"
SECTION = "loss"
NOISE_SENTENCE = (
    "Each mark: a stage of training, with its 95 % jackknife interval; none where it is not resolved. Of "
    "each series the fewest workers are drawn. Dashed: batches of so many workers. Batches above the noise "
    "scale need more epochs for the same loss; for Adam that is no law (arXiv 2505.23971, 1907.04164)."
)
COLUMN = "noise_scale_images"


def draw(inputs: Inputs) -> list[Panel]:
    """Return the noise scale over the epochs; a panel for each set of options."""
    drawn = _drawn(inputs.noise)
    panels = inputs.panels_in(drawn)
    return [_panel(inputs.study.score, options, series, drawn) for options, series in panels.items()]


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: nothing was sampled, too little, or nothing is resolved."""
    if inputs.noise.empty:
        return "no run on several workers, real or played, sampled its gradients"
    stages = inputs.noise[inputs.noise["stage"] != WHOLE_TRAINING]
    if stages.empty:
        return "too few steps were sampled to tell stages of training apart"
    return None if stages[COLUMN].notna().any() else "the noise scale is not resolved at any stage"


def caption(inputs: Inputs) -> str:
    """Return what marks, bars and dashed lines are."""
    return caption_text(inputs, NOISE_SENTENCE)


def alternative(inputs: Inputs) -> str:
    """Return the noise scale of every series over the whole training."""
    whole = inputs.noise[inputs.noise["stage"] == WHOLE_TRAINING].sort_values("played_workers", kind="stable")
    return alternative_text(
        "Gradient noise scale over the epochs, by stages. Over the whole training",
        facts_of_series(inputs, lambda series: _fact(series.rows(whole), inputs.study.score)),
    )


def _fact(whole: pd.DataFrame, score: Score) -> Iterator[str]:
    for row in whole.head(1).to_dict("records"):
        workers = count(int(row["played_workers"]), f"{row['kind']} worker")
        yield f"{noise_scale_text(row, score)}, measured on {workers}"


def _drawn(noise: pd.DataFrame) -> pd.DataFrame:
    """Return the resolved stages on the fewest workers of each series that has any, and where they lie.

    Of as many real and played workers the real ones.
    """
    stages = noise[(noise["stage"] != WHOLE_TRAINING) & noise[COLUMN].notna()]
    order = 2 * stages["played_workers"] + (stages["kind"] == "played")
    shown = stages[order == order.groupby([stages[name] for name in SERIES]).transform("min")]
    # The middle of the stage, in epochs done.
    return shown.assign(trained=(shown["first_epoch"] - 1 + shown["last_epoch"]) / 2)


def _panel(score: Score, options: str, panel: Sequence[DrawnSeries], drawn: pd.DataFrame) -> Panel:
    def draw_panel(axes: Axes) -> None:
        _draw_panel(axes, score, panel, drawn[drawn["options"] == options])

    return Panel(f"Gradient noise scale, {score.samples}", draw_panel, options, panel)


def _draw_panel(axes: Axes, score: Score, panel: Sequence[DrawnSeries], shown: pd.DataFrame) -> None:
    guides = _draw_batches(axes, shown)
    for series in panel:
        _draw_series(axes, score, series, series.rows(shown))
    end_labels(axes, guides)
    unknown = [series.name for series in panel if series.rows(shown).empty]
    say_unknown(axes, unknown, nothing=False)


def _draw_batches(axes: Axes, shown: pd.DataFrame) -> list[Label]:
    """Set up the axes, and draw the batches of several numbers of workers; return the labels of these."""
    axes.set_xlabel("epochs")
    last = float(shown["last_epoch"].max())
    whole_numbers_from_zero(axes, "x", np.array([last]))
    images = float((shown[COLUMN] / shown["noise_scale_workers"]).max())
    values = shown.filter(like=COLUMN).to_numpy(dtype=np.float64).ravel()
    batches = _batches(values, images)
    logarithmic(axes, "y", np.append(values, batches))
    return [_guide(axes, last, batch, batch / images) for batch in batches]


def _batches(values: Array, images: float) -> Array:
    """Return the batches of 2, 4, 8 ... workers from below the smallest value to above the largest."""
    first = max(1, int(np.floor(np.log2(values.min() / images))))
    last = max(first + 1, int(np.ceil(np.log2(values.max() / images))))
    return np.asarray(images * 2.0 ** np.arange(first, last + 1), dtype=np.float64)


def _guide(axes: Axes, last: float, batch: float, workers: float) -> Label:
    return guide_line(axes, [0.0, last], [batch, batch], count(round(workers), "worker"))


def _draw_series(axes: Axes, score: Score, series: DrawnSeries, rows: pd.DataFrame) -> None:
    line = median_line(series, rows["trained"], rows[COLUMN], label=series.name)
    axes.add_line(line)
    title_marks(line, [f"{series.name}, {_title(row, score)}" for row in rows.to_dict("records")])
    interval_bars(axes, series, rows, COLUMN, x="trained")


def _title(row: Row, score: Score) -> str:
    return f"epochs {row['first_epoch']} to {row['last_epoch']}: {noise_scale_text(row, score)}"

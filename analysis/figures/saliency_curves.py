"""Scores while pixels are deleted or inserted in the order of the maps, beside random order."""

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes

from analysis.arrays import Array
from analysis.figures.drawing.axes import from_zero, percent_axis
from analysis.figures.drawing.captions import alternative_text
from analysis.figures.drawing.inputs import MOST_OPTIONS, Inputs
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.style import DASHED, MUTED, NATIVE, ON_DARK, LineStyle, PartStyle
from analysis.figures.drawing.titles import title_marks
from analysis.text import capitalised, chart_number, count
from unet_scaling.study.texts import score_title

TITLE = "deletion and insertion curves"
SECTION = "saliency"
_CAPTION = (
    "Mean over {images}{trainings}. Pixels are deleted from the whole image, or inserted into the filled "
    "one: in the order of the map, the most salient first, or in random order. Bands: 95 % t intervals over "
    "the images."
)
# Of the pixels, at which a text gives the scores.
HALF = 0.5
# What the curves compare: column of the table -> its name in the legend and its look.
ORDERS: dict[str, tuple[PartStyle, LineStyle]] = {
    "own": (PartStyle("in the map's order", NATIVE, ON_DARK), "-"),
    "random": (PartStyle("in random order", MUTED, ON_DARK), DASHED),
}


def draw(inputs: Inputs) -> list[Panel]:
    """Return a panel for each score and each of deletion and insertion, under every set of options."""
    return [
        _panel(str(score), str(kind), str(options), rows) for (options, score, kind), rows in _drawn(inputs)
    ]


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no manifest has curves."""
    known = inputs.saliency is not None and len(inputs.saliency.curves)
    return None if known else "no run has deletion and insertion curves (saliency.curve_steps)"


def caption(inputs: Inputs) -> str:
    """Return what is drawn, and over how many images and trainings."""
    assert inputs.saliency is not None
    rows = inputs.saliency.curves
    trainings = int(rows["trainings"].max())
    return _CAPTION.format(
        images=count(int(rows["images"].max()), "image"),
        trainings=f", of each the mean of {trainings} trainings" if trainings > 1 else ", of one training",
    )


def alternative(inputs: Inputs) -> str:
    """Return the scores of all curves with half of the pixels deleted or inserted."""
    return alternative_text("Scores against the share of pixels. Nearest to one half", _facts(inputs))


def _drawn(inputs: Inputs) -> Iterator[tuple[tuple[str, str, str], pd.DataFrame]]:
    """Yield the curves of each panel with options, score and kind; equal curves of other options are one."""
    assert inputs.saliency is not None
    table = inputs.saliency.curves
    different = _different_options(table)
    for options in different[:MOST_OPTIONS]:
        rows = table[table["options"] == options]
        for (score, kind), of_panel in rows.groupby(["score", "kind"], sort=False):
            yield (options if len(different) > 1 else "", str(score), str(kind)), of_panel


def _different_options(table: pd.DataFrame) -> list[str]:
    """Return the sets of options without those whose curves are the same numbers as those of another."""
    curves = table.drop(columns="options").groupby(table["options"], sort=False)
    first = {rows.to_csv(index=False): str(options) for options, rows in reversed(list(curves))}
    return [options for options in dict.fromkeys(table["options"]) if options in first.values()]


def _facts(inputs: Inputs) -> Iterator[str]:
    for (options, score, kind), rows in _drawn(inputs):
        middle = rows.iloc[int((rows["pixel_share"] - HALF).abs().to_numpy().argmin())]
        of = f" ({options})" if options else ""
        numbers = [f"{chart_number(middle[order], '.2f')} {part.name}" for order, (part, _) in ORDERS.items()]
        yield f"{score_title(score)}, {kind}{of} {', '.join(numbers)}"


def _panel(score: str, kind: str, options: str, rows: pd.DataFrame) -> Panel:
    def draw_curves(axes: Axes) -> None:
        axes.set_xlabel(f"pixels {'deleted' if kind == 'deletion' else 'inserted'}")
        axes.set_xlim(0, 1)
        percent_axis(axes, "x")
        from_zero(axes, "y", _values(rows), least_top=1.0)
        for order in ORDERS:
            _draw_order(axes, rows, order)

    title = f"{capitalised(score_title(score))}, {kind}"
    return Panel(title, draw_curves, options, [part for part, _ in ORDERS.values()])


def _values(rows: pd.DataFrame) -> Array:
    columns = [f"{order}{end}" for order in ORDERS for end in ("", "_low", "_high")]
    return rows[columns].to_numpy(dtype=float).ravel()


def _draw_order(axes: Axes, rows: pd.DataFrame, order: str) -> None:
    """Draw one curve with its band."""
    part, line = ORDERS[order]
    x = rows["pixel_share"].to_numpy(dtype=float)
    low, high = (rows[f"{order}{end}"] for end in ("_low", "_high"))
    axes.fill_between(x, low, high, color=part.colour, alpha=0.15, linewidth=0)
    (drawn,) = axes.plot(x, rows[order], color=part.colour, linestyle=line, linewidth=2, zorder=3)
    title_marks(drawn, [part.name])

"""The texts beside the figures: captions for everyone, and alternatives for those who cannot see them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.figures.cost import cost_rows
from analysis.figures.courses import MOST_THIN, counts_drawn
from analysis.figures.looks import percent, plain, printable
from analysis.figures.loss_words import (
    OF_LOSSES,
    facts_of_differences,
    facts_of_losses,
    marks_of_losses,
)
from analysis.figures.prediction import beyond, held_out
from analysis.figures.quality import has_differences
from analysis.figures.series import MOST_RUNS, Inputs, Series
from analysis.statistics.intervals import FEWEST_REPEATS, coverage

WITH_BARS = {
    "scaling": ("throughput", "speedup", "iou"),
    "speedup": ("speedup",),
    "efficiency": ("efficiency",),
    "deviation": ("deviation",),
    "throughput": ("throughput",),
    "iou": ("iou",),
}
OPENINGS = {
    "scaling": "Three charts against workers: speed-up, throughput and IoU. Speed-up at the most workers",
    "speedup": "Speed-up over 1 worker against workers, with the ideal line. At the most workers",
    "efficiency": "Efficiency against workers. At the most workers",
    "deviation": "Deviation from the ideal speed-up against workers. At the most workers",
    "throughput": "Throughput against workers. At the most workers",
    "iou": "IoU against workers. At the most workers",
    "budget": "Stacked parts of 1 - efficiency against workers. Lost on the most workers",
    "waterfall": "From an efficiency of 100 % down, part by part. Lost on the most workers",
    "difference": "Stacked parts of what Horovod needs more time for than native DDP. At the most workers",
    "wire": "Wire of a step, and one message of all gradients. On the most workers",
    "loss_epochs": "Training loss against epochs. Last loss at the most workers",
    "loss_seconds": "Training loss against seconds of training. Last loss at the most workers",
    "time_to_iou": "IoU against seconds of training. Last IoU at the most workers",
    "cost": "Training time against worker-hours. Points that no other beats in both",
    "prediction": "Throughput measured and predicted. Expected beyond the data",
}


def caption(name: str, inputs: Inputs) -> str:
    """How many runs a figure shows, what its marks and bars are, and what it leaves out."""
    return " ".join(
        part for part in (_runs(inputs), *_marks(name, inputs), inputs.undrawn, _left_out(inputs)) if part
    )


def alternative_text(name: str, inputs: Inputs) -> str:
    """A sentence with a figure's key numbers, for screen readers."""
    if name == "difference":
        return f"{OPENINGS[name]}: {'; '.join(facts_of_differences(inputs))}."
    facts = [
        f"{_series_name(series, inputs)} {fact}"
        for options in inputs.options
        for series in inputs.series(options)
        for fact in _facts(name, inputs, series)
    ]
    return f"{OPENINGS[name]}: {'; '.join(facts) or 'nothing is known'}."


def _runs(inputs: Inputs) -> str:
    counts = inputs.study.runs["framework"].value_counts()
    runs = ", ".join(f"{counts[key]} {name}" for key, name in inputs.study.names.items() if key in counts)
    total = len(inputs.study.runs)
    return f"{total} run{'' if total == 1 else 's'} ({runs}), {_range(inputs.points['repeats'])} per point."


def _range(numbers: "pd.Series[int]") -> str:
    fewest, most = int(numbers.min()), int(numbers.max())
    return f"{most}" if fewest == most else f"{fewest} to {most}"


def _left_out(inputs: Inputs) -> str:
    number = len(inputs.study.left_out)
    return (
        f"{number} run{' was' if number == 1 else 's were'} left out; the report says why." if number else ""
    )


def _marks(name: str, inputs: Inputs) -> Iterator[str]:
    if name in WITH_BARS:
        yield from _marks_over_workers(name, inputs)
    elif name.startswith("loss") or name == "time_to_iou":
        yield from _marks_of_courses(name, inputs)
    elif name in OF_LOSSES:
        yield from marks_of_losses(name)
        yield _bars(inputs.points[inputs.points["repeats"] >= FEWEST_REPEATS], inputs)
    elif name == "cost":
        yield (
            "Numbers: workers. Filled marks, joined by the grey band: no other point is both faster and "
            "cheaper. Perfect scaling would be a vertical line. Time is training time only."
        )
        yield _bars(inputs.cost.loc[inputs.cost["training_seconds_low"].notna()], inputs)
    else:
        yield from _marks_of_predictions(inputs)


def _marks_over_workers(name: str, inputs: Inputs) -> Iterator[str]:
    most = int(inputs.points["repeats"].max())
    if most > MOST_RUNS:
        yield f"Small marks: single runs, the first {MOST_RUNS} of a point; large: the median of all."
    elif most > 1:
        yield "Small marks: single runs; large: their median."
    known = inputs.points[[f"{column}_low" for column in WITH_BARS[name]]].notna().any(axis=1)
    yield _bars(inputs.points[known], inputs)
    if _bridged(inputs, WITH_BARS[name]):
        yield "Dotted: a point in between is missing."
    if name in ("scaling", "speedup"):
        yield "Each framework is compared with its own run on 1 worker."
    if name == "throughput" and inputs.points["speedup_common"].notna().any():
        yield "Ideal: the faster framework on 1 worker, times the workers."
    if name == "iou" and has_differences(inputs):
        margin = plain(inputs.study.criteria.iou_margin)
        yield f"Difference: to the same seed on 1 worker; the grey band is the margin of {margin}."
    yield "All axes start at zero or are logarithmic."


def _marks_of_courses(name: str, inputs: Inputs) -> Iterator[str]:
    several = int(inputs.points["repeats"].max()) > 1
    thin = f"; thin: its runs, at most {MOST_THIN}" if several else ""
    yield f"Numbers: workers. Thick: the median over the runs of a point{thin}."
    if name != "loss_epochs":
        yield "Time is training time, the warm-up included."
    if any(
        len(counts_drawn(inputs, series.options, series.framework))
        < series.of(inputs.points)["workers"].nunique()
        for options in inputs.options
        for series in inputs.series(options)
    ):
        yield "Not every worker count is drawn."


def _marks_of_predictions(inputs: Inputs) -> Iterator[str]:
    yield "Filled: measured. Dashed, with its 95 % band: expected beyond the data."
    for options in inputs.options:
        for series in inputs.series(options):
            rows = held_out(inputs, series)
            if len(rows):
                error = percent(float(rows["error"].abs().median()))
                used = f"predicted from {rows['fitted_on'].iloc[0]} workers"
                yield f"Open, {_series_name(series, inputs)}: {used}, median error {error}."


def _bars(points: pd.DataFrame, inputs: Inputs) -> str:
    """What the bars are worth: for few repeats that is less than 95 %."""
    if points.empty:
        return "No intervals: they need 3 runs."
    repeats = inputs.points.loc[inputs.points["repeats"] >= 3, "repeats"]
    worth = coverage(int(repeats.min())) if len(repeats) else coverage(3)
    return f"Bars: {100 * worth:.0f} % bootstrap intervals over the runs."


def _bridged(inputs: Inputs, columns: Sequence[str]) -> bool:
    """Whether some line passes a worker count that another line has and it has not."""
    for options in inputs.options:
        counts = inputs.counts(options)
        for series in inputs.series(options):
            points = series.of(inputs.points)
            for column in columns:
                known = set(points.loc[points[column].notna(), "workers"])
                if known and any(min(known) < count < max(known) and count not in known for count in counts):
                    return True
    return False


def _series_name(series: Series, inputs: Inputs) -> str:
    several = len(inputs.options) > 1 and series.options
    return f"{series.name} ({printable(series.options)})" if several else series.name


def _facts(name: str, inputs: Inputs, series: Series) -> Iterator[str]:
    if name in WITH_BARS:
        yield from _fact_of_point(name, inputs, series)
    elif name.startswith("loss") or name == "time_to_iou":
        yield from _fact_of_course("iou" if name == "time_to_iou" else "loss", series.of(inputs.study.runs))
    elif name in OF_LOSSES:
        yield from facts_of_losses(name, inputs, series)
    elif name == "cost":
        rows = cost_rows(inputs, series.options)
        chosen = series.of(rows[rows["pareto"]])
        for row in chosen.to_dict("records"):
            cost = f"{plain(row['seconds'])} s, {plain(row['hours'])} worker-hours"
            yield f"{cost} {_on(row['workers'])}"
    else:
        for row in beyond(inputs, series).to_dict("records"):
            interval = _interval(row, "predicted", ".3g")
            yield f"{plain(row['predicted'])} {inputs.study.unit}{interval} {_on(row['workers'])}"


def _fact_of_point(name: str, inputs: Inputs, series: Series) -> Iterator[str]:
    column = WITH_BARS[name][1] if name == "scaling" else WITH_BARS[name][0]
    known = series.of(inputs.points)
    known = known[known[column].notna()].sort_values("workers")
    for row in known.tail(1).to_dict("records"):
        share = 100.0 if column in ("efficiency", "deviation") else 1.0
        form, unit = {"efficiency": (".1f", " %"), "deviation": (".1f", " %"), "iou": (".3f", "")}.get(
            column, (".3g", f" {inputs.study.unit}" if column == "throughput" else "")
        )
        ends = {end: share * row[f"{column}{end}"] for end in ("", "_low", "_high")}
        scaled = {f"{column}{end}": value for end, value in ends.items()}
        yield f"{plain(scaled[column], form)}{unit}{_interval(scaled, column, form)} {_on(row['workers'])}"


def _fact_of_course(column: str, runs: pd.DataFrame) -> Iterator[str]:
    """The median over the runs on the most workers, after training."""
    last = runs.loc[runs["workers"] == runs["workers"].max(), column].dropna()
    if len(last):
        yield f"{plain(float(last.median()), '.3g')} {_on(int(runs['workers'].max()))}"


def _on(workers: int) -> str:
    return f"on {workers} worker{'' if workers == 1 else 's'}"


def _interval(row: Mapping[Any, Any], column: str, form: str) -> str:
    low, high = row[f"{column}_low"], row[f"{column}_high"]
    return f" [{plain(low, form)}, {plain(high, form)}]" if low < high else ""

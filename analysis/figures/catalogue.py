"""All figures of a report in reading order: a further one is a further function with `@figure` above it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from analysis import text
from analysis.figures.frame import MOST_OPTIONS, Chart, Inputs, drawn_series
from analysis.figures.kinds import Forest, Line, ShareCurve, Stack, TrainingCurve
from analysis.figures.style import LINE_STYLES
from analysis.numbers.contrast import HOROVOD_FASTER, NATIVE_FASTER
from analysis.study import COMPARED, CONFIDENCE, ENDS, FEWEST_REPEATS, NAMES, POINT, Score, bounded
from unet_scaling.base.texts import score_title

# More rows are nobody's first look; all are in comparison.csv, or compare.csv.
MOST_FOREST_ROWS = 30
# Share of the workers' time to which an axis goes at least: less would make noise look like a finding.
LEAST_BUDGET_SHARE = 0.02
# Each has a row of panels, and a point of a curve is drawn for every so many epochs at most.
MOST_CURVE_OPTIONS = 2
MOST_CURVE_EPOCHS = 40
CURVE_AXES = {"seconds": "seconds of training", "steps": "optimizer steps"}
# Unfolded are the first four.
CURVES = (
    ("loss", "images"), ("iou", "images"), ("iou", "seconds"), ("learning_rate", "images"), ("loss", "steps"),
    ("iou", "steps"),
)  # fmt: skip
BUDGET_PARTS = {
    "data_wait": "data wait", "compute": "compute", "wire": "communication", "imbalance": "imbalance",
    "optimizer": "optimizer", "rest": "rest",
}  # fmt: skip
ORDERS = {"own": "in the map's order", "random": "in random order"}
ZERO_SENTENCE = "Axes start at zero or are logarithmic."


@dataclass(frozen=True)
class Figure:
    """One figure. Its caption and its alternative text follow from its charts.

    section  anchor of the report's section where it stands, unless it is on the first screen
    charts   what it shows of the inputs; charts have the same groups of series, side by side
    bars     whether the caption says that its bars are intervals over the runs
    says_undrawn  whether the caption tells of options that are not drawn
    """

    section: str
    charts: Callable[[Inputs], Sequence[Chart]]
    bars: bool = False
    says_undrawn: bool = True

    def known(self, inputs: Inputs) -> list[Chart]:
        """Return its charts that have anything to show; those of each group of series stand side by side."""
        return [chart for chart in self.charts(inputs) if chart.is_known]

    def caption(self, inputs: Inputs, charts: Sequence[Chart]) -> str:
        """Return what the marks are, and what is not drawn; first what restricts the runs."""
        sentences = [sentence for chart in charts for sentence in chart.sentences]
        sentences += [bars_sentence(inputs.points["repeats"], "runs")] * self.bars
        sentences += [inputs.undrawn] * self.says_undrawn
        caption = " ".join(filter(None, dict.fromkeys(sentences)))
        return text.with_restriction(inputs.study.kind, caption)


def bars_sentence(repeats: "pd.Series[int]", of: str) -> str:
    """Return what bars of points with so many repeats are."""
    enough = repeats[repeats >= FEWEST_REPEATS]
    if enough.empty:
        return f"No intervals: they need {FEWEST_REPEATS} {of}."
    return f"Bars: {100 * CONFIDENCE:.0f} % intervals over the {of}."


def _scaling(inputs: Inputs) -> list[Chart]:
    """Return the speed-up, or the throughput where none is known beyond 1 worker, and the score."""
    points, study = inputs.points, inputs.study
    line = partial(Line, rows=points, series=inputs.series, runs=inputs.runs, run_unit=study.unit)
    larger = points[points["workers"] > 1]
    known = [kind for kind in ("_common", "") if larger[f"speedup{kind}"].notna().any()]
    if known:
        kind = known[0]
        baseline = "1 worker of all frameworks that are not shown to be slower there"
        says = f"Speed-up: over {baseline if kind else 'its own 1 worker'}. {ZERO_SENTENCE}"
        speed = line(
            title="Speed-up over 1 worker (efficiency)", y=f"speedup{kind}", scale="as workers", ideal=True,
            says=says,
            label=lambda row: (
                f"{text.chart_number(row[f'speedup{kind}'], '.2f')} "
                f"({text.chart_percent(row[f'efficiency{kind}'])})"
            ),
        )  # fmt: skip
    else:
        speed = line(
            title=f"Throughput, {study.unit}", y="throughput", unit=f" {study.unit}", scale="as workers",
            says=ZERO_SENTENCE,
        )  # fmt: skip
    iou = line(
        title=study.score.heading, y="iou", form=".3f", least_top=1.04,
        says=f"{study.score.heading}: {study.iou_scope}.",
    )  # fmt: skip
    return [speed, iou]


def _ratio(inputs: Inputs) -> list[Chart]:
    """Return the ratio of throughputs of native DDP and Horovod."""
    study = inputs.study
    compared = text.resolved(inputs.report.comparisons)
    known = compared[compared["ratio"].notna()]
    rows = known.sort_values("workers", ascending=False, kind="stable", ignore_index=True).head(
        MOST_FOREST_ROWS
    )
    named = rows[["options", "native_knobs", "other_knobs"]].itertuples(index=False, name=None)
    rows = rows.assign(
        heading=[text.count(workers, "worker") for workers in rows["workers"]],
        name=[", ".join(filter(None, names)) for names in named],
        framework=rows["outcome"].map({NATIVE_FASTER: "pytorch_native", HOROVOD_FASTER: "horovod"}),
        claimed=rows["outcome"].isin([NATIVE_FASTER, HOROVOD_FASTER]),
    )
    native, horovod = study.compared_names
    cut = f" The first {MOST_FOREST_ROWS} of {len(known)} rows; all are in comparison.csv."
    ratios = Forest(
        title=f"Ratio of throughputs, {native} / {horovod}", rows=rows, y="ratio", form=".3f", equal=1.0,
        axis=" / ".join(study.short_names[name] for name in COMPARED),
        says=f"Right of 1 {native} is faster, left of it {horovod}. Marks in the colour of a framework: it "
        "is faster, since the interval, corrected for all comparisons, excludes 1; grey: nothing is claimed."
        f"{cut if len(known) > MOST_FOREST_ROWS else ''}",
    )  # fmt: skip

    def title(row: text.Row) -> str:
        name = f" ({row['name']})" if row["name"] else ""
        return f"{ratios.fact(row)}{name}: {row['outcome']}"

    return [titled(ratios, title)]


def titled(forest: Forest, title: Callable[[text.Row], str]) -> Forest:
    """Return a forest with what stands beside the pointer on its rows."""
    return replace(forest, rows=forest.rows.assign(title=list(map(title, forest.rows.to_dict("records")))))


def study_forests(points: pd.DataFrame, score: Score, first: str = "A", second: str = "B") -> list[Chart]:
    """Return the charts of two studies: B / A of throughputs, and B - A of the score where one is known.

    `points` has one row per point of both studies: framework, workers, options, knobs, and ratio and
    iou_difference with their intervals; claimed and iou_claimed say whether a difference is claimed.
    """
    rows = points.sort_values("workers", ascending=False, kind="stable").head(MOST_FOREST_ROWS)
    headings = [[text.count(row["workers"], "worker"), row["options"]] for row in rows.to_dict("records")]
    rows = rows.assign(
        heading=[", ".join(filter(None, parts)) for parts in headings],
        name=[text.series_name(row, NAMES) for row in rows.to_dict("records")],
    )
    forest = partial(Forest, arms={arm: name for arm, name in NAMES.items() if arm in set(rows["framework"])})
    charts = [
        forest(
            title=f"Ratio of throughputs, {second} / {first}", rows=rows, y="ratio", form=".3f", equal=1.0,
            axis=f"throughput of {second} / {first}",
        ),
        forest(
            title=f"Difference of {score.title}, {second} - {first}",
            rows=rows.assign(claimed=rows["iou_claimed"]), y="iou_difference", form="+.4f", equal=0.0,
            axis=f"{score.title} of {second} - {first}",
        ),
    ]  # fmt: skip

    def point(chart: Forest, row: text.Row) -> str:
        return f"{chart.value(row)} on {row['heading']} ({row['name']})"

    return [titled(chart, partial(point, chart)) for chart in charts if chart.is_known]


def _strategies(inputs: Inputs) -> list[Chart]:
    """Return speed and score of each strategy against gradients averaged at every step."""
    if inputs.report.strategies.empty:
        return []
    table = inputs.report.strategy_claims
    rows = table.assign(**{f"iou_{name}": table[name] for name in bounded("difference")})
    return study_forests(rows, inputs.study.score, "averaged gradients", "strategy")


def _budget(inputs: Inputs) -> list[Chart]:
    """Return the share of the workers' time that each part takes."""
    chart = Stack(
        title="lost efficiency", rows=inputs.report.budget, series=inputs.series, y="deviation",
        form=".1%", parts=BUDGET_PARTS, least_top=LEAST_BUDGET_SHARE,
        says="Each part: the share of the workers' time that is lost in it against 1 worker; below zero a "
        f"part takes less time per {inputs.study.score.sample}. Diamonds: the sum of parts.",
    )  # fmt: skip
    return [chart]


def _training(inputs: Inputs) -> list[Chart]:
    """Return loss, score and learning rate as trainings go on; the score where it is known more than once."""
    study = inputs.study
    if study.epochs.empty:
        return []
    rows = training_curves(study.evaluations, study.epochs, study.runs)
    names = {"loss": "Loss", "iou": study.score.heading, "learning_rate": "Learning rate"}
    axes = {**CURVE_AXES, "images": f"{study.score.samples} seen"}
    curve = partial(
        TrainingCurve, rows=rows, series=drawn_series(rows, study.names), tells="at the end",
        says="Medians over the runs; bands: from the lowest run to the highest. Where frameworks agree, the "
        f"thin line lies on the wide one. {ZERO_SENTENCE} At most {len(LINE_STYLES)} worker counts and "
        f"{MOST_CURVE_OPTIONS} sets of options are drawn.",
    )  # fmt: skip
    return [
        curve(title=f"{names[y]} over {axes[x]}", x=x, y=y, axis=axes[x], log=y == "loss")
        for y, x in CURVES
        if (rows[x].notna() & rows[y].notna()).any()
    ]


def training_curves(evaluations: pd.DataFrame, epochs: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per epoch of each series that is drawn, whose `knobs` are its workers as text.

    images, steps and seconds are those so far; with learning_rate, loss and iou they are medians over the
    runs, and the ends of loss and iou the lowest and the highest run.
    """
    so_far = epochs[["images", "steps", "seconds"]].groupby(epochs["run"]).cumsum()
    epochs = epochs.assign(**so_far, epochs=epochs["epoch"] + 1)
    scored = evaluations[["run", "epochs", "iou"]]
    scored = scored[scored.groupby("run")["iou"].transform("count") > 1]
    table = epochs.merge(scored, on=["run", "epochs"], how="left").merge(runs[["run", *POINT]], on="run")
    counts = np.unique(runs["workers"])
    shown = np.linspace(0, len(counts) - 1, min(len(LINE_STYLES), len(counts))).round().astype(int)
    every = -(-int(table["epochs"].max()) // MOST_CURVE_EPOCHS)
    keep = table["options"].isin(table["options"].unique()[:MOST_CURVE_OPTIONS])
    keep &= table["workers"].isin(counts[shown])
    keep &= (table["epochs"] % every == 0) | table["iou"].notna()
    keep &= table["knobs"] == table.groupby(["options", "framework"])["knobs"].transform("first")
    groups = table[keep].groupby(["options", "framework", "workers", "epochs"], sort=False)
    medians = groups[["images", "steps", "seconds", "learning_rate", "loss", "iou"]].median()
    ends = groups[["loss", "iou"]]
    found = medians.join(ends.min().add_suffix("_low")).join(ends.max().add_suffix("_high")).reset_index()
    return found.assign(knobs=[text.count(workers, "worker") for workers in found["workers"]])


def _quality(inputs: Inputs) -> list[Chart]:
    """Return the score over the workers of each set of options with played runs, the best ones first."""
    played, study, margin = inputs.report.played.points, inputs.study, inputs.study.criteria.iou_margin
    options = inputs.report.played.best_options
    if not options:
        return []
    place = played["options"].map({name: number for number, name in enumerate(options)})
    rows = played.assign(place=place)[place < MOST_OPTIONS].sort_values("place", kind="stable")
    rows = rows.assign(
        knobs=[", ".join(filter(None, pair)) for pair in zip(rows["knobs"], rows["kind"], strict=True)],
        note=np.where(rows["diverged"] > 0, "diverges", ""),
        is_last=rows["workers"] == rows.groupby("options")["workers"].transform("max"),
    )
    series = [replace(each, filled=each.knobs.endswith("real")) for each in drawn_series(rows, study.names)]
    seeds = played.groupby("kind")["seeds"].sum()
    runs = " and ".join(
        text.count(int(seeds[kind]), f"{kind} run") for kind in ("played", "real") if kind in seeds
    )
    more = len(options) - MOST_OPTIONS
    says = (
        f"{study.score.heading}: {study.iou_scope}.",
        f"{runs}. Open marks: played, one worker trained exactly as so many; filled: real workers.",
        f"The axis of the {study.score.title} does not start at zero.",
        bars_sentence(played["seeds"], "seeds"),
        f"Grey band: the margin of {text.chart_number(margin)} below 1 worker.",
        f"Not drawn, but in the table: {text.count(more, 'more set')} of options." * (more > 0),
    )
    chart = Line(
        title=study.score.heading, rows=rows, series=series, y="iou", form=".3f",
        margin=margin, label=lambda row: text.chart_number(row["iou"], ".3f") * row["is_last"],
        says=" ".join(filter(None, says)),
    )  # fmt: skip
    return [chart]


def _saliency_curves(inputs: Inputs) -> list[Chart]:
    """Return the curves of the first sets of options whose curves are not the numbers of another set."""
    table = inputs.report.saliency.curves
    if table.empty:
        return []
    by_options = table.drop(columns="options").groupby(table["options"], sort=False)
    first = {rows.to_csv(index=False): options for options, rows in reversed(list(by_options))}
    shown = [options for options in table["options"].unique() if options in first.values()][:MOST_OPTIONS]
    rows = table[table["options"].isin(shown)]
    panels = [
        [text.capitalised(score_title(row["score"])), row["kind"], row["options"] * (len(shown) > 1)]
        for row in rows.to_dict("records")
    ]
    rows = rows.assign(options=[", ".join(filter(None, parts)) for parts in panels], knobs="", workers=0)
    tables = [
        rows.assign(framework=order, **{f"score{end}": rows[f"{order}{end}"] for end in ENDS})
        for order in ORDERS
    ]
    both = pd.concat(tables, ignore_index=True)
    half = (both["pixel_share"] - 0.5).abs().groupby([both["options"], both["framework"]]).idxmin()
    trainings = int(rows["trainings"].max())
    of = f"of each the mean of {trainings} trainings" if trainings > 1 else "of one training"
    chart = ShareCurve(
        title="Score against the share of pixels", rows=both, y="score", form=".2f", told=both.loc[half],
        series=drawn_series(both, ORDERS, most_options=len(both)), tells="nearest to one half",
        says=f"Mean over {text.count(int(rows['images'].max()), 'image')}, {of}. Pixels are deleted from the "
        "whole image, or inserted into the filled one: in the order of the map, the most salient first, or "
        "in random order. Bands: 95 % t intervals over the images.",
    )  # fmt: skip
    return [chart]


# By the name of their files, in the order of the page.
FIGURES = {
    "scaling": Figure("points", _scaling, bars=True),
    "ratio": Figure("against", _ratio),
    "strategies": Figure("strategies", _strategies),
    "budget": Figure("budget", _budget, bars=True),
    "training": Figure("iou", _training, says_undrawn=False),
    "quality": Figure("played", _quality, says_undrawn=False),
    "saliency_curves": Figure("saliency", _saliency_curves, says_undrawn=False),
}

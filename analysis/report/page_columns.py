"""Columns of the page's tables, one function for each table; headings and units follow the study."""

from collections.abc import Callable

import pandas as pd

from analysis.budget.shares import PARTS
from analysis.budget.tables import MOST_REST
from analysis.loading.forecasts import AVERAGE
from analysis.report.assemble import Report
from analysis.report.view import (
    Cell,
    Column,
    badge_column,
    framework_column,
    integer_column,
    number_column,
    run_column,
    text_column,
)
from analysis.study import COMPARED, POINT
from analysis.text import Row, number, percent, unit_of

# Of every row that there is: where work is unequal, no part is known.
ALWAYS_ZERO = "unequal_work"
LOSSES = ("median", "smallest", "largest")
NETWORK_CAPTION = (
    "Wire of a step, and one message of all gradients over the probed network: its floor, unless backward "
    f"hides a part of it; a warning stands below where rest exceeds {percent(MOST_REST, 0)} of a step"
)


def point_keys(report: Report) -> list[Column]:
    return [framework_column(report.study.names), integer_column("workers", "workers")]


def pair_keys() -> list[Column]:
    """Return what a row compares: the settings of knobs, shown where they vary, and the workers."""
    return [
        text_column("native DDP with", "native_knobs"),
        text_column("Horovod with", "horovod_knobs"),
        integer_column("workers", "workers"),
    ]


def short_arms(report: Report, separator: str) -> str:
    """Return the short names of both frameworks."""
    return separator.join(report.study.short_names[framework] for framework in COMPARED)


def speed_columns(report: Report) -> list[Column]:
    """Return the columns of every table of points, in reports, papers and proposals."""
    return [
        *point_keys(report),
        integer_column("repeats", "repeats"),
        number_column(report.study.unit, "throughput", "~4", switched=True),
        number_column("speed-up", "speedup", ".2f", switched=True),
        number_column("efficiency", "efficiency", ".1%", switched=True),
        number_column("deviation", "deviation", "z.1%", switched=True),
    ]


def of_points(report: Report) -> list[Column]:
    heading = "efficiency against the best 1-worker point"
    common = number_column(heading, "efficiency_common", ".1%", switched=True)
    of_nodes = number_column("efficiency against 1 full node", "node_efficiency", ".1%", switched=True)
    return [*speed_columns(report), common, of_nodes]


def of_runs(report: Report) -> list[Column]:
    """Return the columns of every run, each with a link to its folder."""
    size, unit = unit_of(report.study.runs["training_seconds"])
    return [
        run_column("run", "run"),
        *point_keys(report),
        integer_column("repeat", "repeat"),
        number_column(report.study.unit, report.study.throughput, "~4", bounded=False),
        number_column("loss", "loss", "~4", bounded=False),
        number_column(report.study.score.title, "iou", ".4f", bounded=False),
        number_column(f"training, {unit}", "training_seconds", "~3", scale=size, bounded=False),
        text_column("started (UTC)", "started_utc"),
        text_column("disturbed", "disturbed"),
        text_column("stalls", "stalls"),
        text_column("scores", "scores"),
    ]


def of_pairs(report: Report) -> list[Column]:
    return [
        *pair_keys(),
        integer_column("pairs", "pairs"),
        number_column(f"throughput {short_arms(report, ' / ')}", "ratio", ".3f"),
        number_column("actual confidence level", "coverage", ".0%", bounded=False),
        text_column("outcome", "outcome"),
        Column("repeats needed (80 % power)", _repeats_needed),
    ]


def of_frameworks(report: Report) -> list[Column]:
    return [
        framework_column(report.study.names),
        text_column("native DDP with", "native_knobs"),
        integer_column("workers", "workers"),
        integer_column("pairs", "pairs"),
        number_column("throughput native DDP / framework", "ratio", ".3f"),
        number_column("step of native DDP, ms", "step_ms", ".1f", bounded=False),
        number_column("more per step, ms", "cost_ms", "+.2f"),
        text_column("costs", "costs"),
        text_column("outcome", "outcome"),
        text_column("same weights", "same_weights"),
        badge_column(f"{report.study.score.title} equal within margin", "equal_within_margin"),
    ]


def _repeats_needed(row: Row) -> Cell:
    undecided = not str(row["outcome"]).endswith("faster")
    return Cell(number(row["repeats_needed"], ",.0f") if undecided else "", kind="number")


def of_losses(report: Report) -> list[Column]:
    return [*point_keys(report), *(number_column(name, name, "~4", bounded=False) for name in LOSSES)]


def losses_of_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the LOSSES of each point over its runs."""
    losses = runs.groupby(POINT, sort=False)["loss"].agg(["median", "min", "max"])
    return losses.set_axis(list(LOSSES), axis="columns").reset_index()


def of_budget(report: Report) -> list[Column]:
    return [*point_keys(report), number_column("1 - efficiency", "deviation", "z.1%"), *_parts()]


def of_diagnoses(report: Report) -> list[Column]:
    """Return cause, point, share of the loss, evidence and what to try of every finding."""
    return [
        text_column("cause", "finding"),
        *point_keys(report),
        number_column("share of the workers' time", "at_stake", ".1%"),
        Column("1 - efficiency there", _lost_at(report)),
        text_column("evidence", "evidence"),
        text_column("what to try", "try_next"),
    ]


def _lost_at(report: Report) -> Callable[[Row], Cell]:
    """Return the cell of 1 - efficiency, with its interval, at the point of a row."""
    shown = number_column("", "deviation", "z.1%")
    rows = report.overhead.budget.to_dict("records")
    cells = {tuple(row[name] for name in POINT): shown.cell(row) for row in rows}
    return lambda row: cells.get(tuple(row[name] for name in POINT), Cell("", kind="number"))


def of_difference(_report: Report) -> list[Column]:
    difference = number_column("Horovod's time above DDP's", "difference", "+z.1%")
    return [*pair_keys(), difference, *_parts()]


def _parts() -> list[Column]:
    return [number_column(part.replace("_", " "), part, "+z.1%") for part in PARTS if part != ALWAYS_ZERO]


def of_network(report: Report) -> list[Column]:
    return [
        *point_keys(report),
        number_column("wire of a step, ms", "wire_seconds", "~3", scale=1e-3),
        number_column("one message, ms", "floor_seconds", "~3", scale=1e-3),
        number_column("of MPI between hosts, ms", "hosts_floor_seconds", "~3", scale=1e-3, bounded=False),
        number_column("latency, ms", "latency_seconds", "~3", scale=1e-3),
        number_column("bandwidth, MB/s", "bytes_per_second", "~3", scale=1e6),
        integer_column("bytes of gradients", "gradient_bytes"),
    ]


def of_ping_pongs(_report: Report) -> list[Column]:
    return [
        text_column("host", "host"),
        text_column("and", "other_host"),
        text_column("over", "medium"),
        number_column("latency, ms", "latency_seconds", "~3", scale=1e-3, bounded=False),
        number_column("bandwidth, MB/s", "bytes_per_second", "~3", scale=1e6, bounded=False),
        integer_column("times measured", "measurements"),
    ]


def of_cost(report: Report) -> list[Column]:
    """Return time and cost in the units in which this study's values read best."""
    size, unit = unit_of(report.cost["training_seconds"])
    size_to, unit_to = unit_of(report.cost["seconds_to_target"])
    share, hours = _hours(report.cost["worker_hours"])
    return [
        *point_keys(report),
        integer_column("nodes", "nodes"),
        number_column(f"training, {unit}", "training_seconds", "~3", scale=size),
        number_column(f"worker-{hours}", "worker_hours", "~3", scale=share),
        number_column(f"node-{hours}", "node_hours", "~3", scale=share, bounded=False),
        number_column(
            f"time to the {report.study.score.title}, {unit_to}", "seconds_to_target", "~3", scale=size_to
        ),
        number_column(f"worker-{hours} to it", "worker_hours_to_target", "~3", scale=share, bounded=False),
        integer_column("runs that reached it", "runs_to_target"),
        Column("in the Pareto set", _pareto, "text"),
    ]


def _hours(hours: "pd.Series[float]") -> tuple[float, str]:
    """Return the unit in which hours read best, as a part of an hour, and its name."""
    size, unit = unit_of(3600 * hours)
    return size / 3600, {"s": "seconds", "min": "minutes", "h": "hours"}[unit]


def _pareto(row: Row) -> Cell:
    return Cell("yes", kind="yes") if row["pareto"] else Cell("no")


def of_gpus(report: Report) -> list[Column]:
    return [
        *point_keys(report),
        number_column("GPU load", "utilization", ".0%", bounded=False),
        number_column("memory of the fullest, GB", "memory_bytes", "~3", scale=1e9, bounded=False),
        number_column("power of one, W", "power_watts", "~3", bounded=False),
        number_column(f"energy, J / {report.study.score.sample}", "joules_per_image", "~3", bounded=False),
    ]


def of_predictions(report: Report) -> list[Column]:
    return [
        *point_keys(report),
        text_column("fitted on workers", "fitted_on"),
        number_column(f"predicted, {report.study.unit}", "predicted", "~4"),
        number_column("measured", "measured", "~4", bounded=False),
        number_column("error", "error", "+.1%", bounded=False),
    ]


def unseen_by_the_fit(predictions: pd.DataFrame) -> pd.DataFrame:
    """Return held-out points and extrapolations; how well a fit meets its own points says little."""
    return predictions[predictions["held_out"] | predictions["measured"].isna()]


def of_request(report: Report) -> list[Column]:
    return [
        *point_keys(report),
        text_column("", "source"),
        number_column("step, s", "step_seconds", "~3"),
        number_column("efficiency", "efficiency", ".2f"),
        number_column("worker-hours", "worker_hours", "~3"),
        text_column("most is lost to", "largest_term"),
    ]


def of_task_scores(report: Report) -> list[Column]:
    return [
        *point_keys(report),
        text_column("score", "score"),
        integer_column("seeds", "seeds"),
        number_column("median", "value", "~4"),
    ]


def further_scores(table: pd.DataFrame) -> pd.DataFrame:
    """Return those that are not judged."""
    return table[~table["judged"].astype(bool)]


def of_scores(report: Report) -> list[Column]:
    return [
        *point_keys(report),
        text_column("written (UTC)", "written_utc"),
        number_column(f"predicted, {report.study.unit}", "predicted", "~4"),
        number_column("measured", "measured", "~4", bounded=False),
        number_column("error", "error", "+.1%", bounded=False),
        text_column("interval holds", "inside"),
        number_column("interval score", "interval_score", ".1%", bounded=False),
        number_column("of b/N", "linear_interval_score", ".1%", bounded=False),
        text_column("not scored because", "unscored"),
    ]


def averages_scored(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the averages: those of single models are in the file."""
    return scores[scores["model"] == AVERAGE]


def of_fairness(_report: Report) -> list[Column]:
    return [text_column("requirement", "check"), badge_column("met", "mark"), text_column("fact", "fact")]


def of_left_out(_report: Report) -> list[Column]:
    return [run_column("run", "run"), text_column("state", "state"), text_column("reason", "reason")]

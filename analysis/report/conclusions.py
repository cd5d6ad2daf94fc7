"""What each section of the page finds, in one sentence, from the tables that the section shows."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.contrast import COSTS_NOTHING, NATIVE_FASTER
from analysis.report.assemble import Report
from analysis.study import NAMES, SERIES
from analysis.text import (
    Row,
    count,
    first_of,
    interval_of,
    listed,
    number,
    percent,
    sentence,
    series_name,
    unit_of,
    with_interval,
)

# Of more series a sentence names the two ends only.
MOST_SERIES_NAMED = 2
IOU_WORDS = {"yes": "not inferior", "no": "inferior", "not shown": "undecided"}
MARK_WORDS = {"yes": "met", "no": "not met", "not known": "not known"}


def speed_conclusion(report: Report) -> str:
    """Return the speed-up at the largest worker count; the throughput where no speed-up is known."""
    known = report.points[(report.points["workers"] > 1) & report.points["speedup"].notna()]
    if known.empty:
        return _throughputs(report)
    most = int(known["workers"].max())
    fastest_first = known[known["workers"] == most].sort_values("speedup", ascending=False)
    speeds = [_speed(report, row) for row in fastest_first.to_dict("records")]
    return f"On {count(most, 'worker')} the speed-up is {_ends(speeds)}."


def _ends(parts: Sequence[str]) -> str:
    """Return the parts; of many the first and the last, and how many there are."""
    if len(parts) <= MOST_SERIES_NAMED:
        return listed(parts)
    return f"{parts[0]} and {parts[-1]}, of {len(parts)} series"


def _speed(report: Report, row: Row) -> str:
    shown = f"{row['speedup']:.2f} {interval_of(row, 'speedup', '.2f')}".rstrip()
    return f"{shown} with {_series(report, row)}"


def _series(report: Report, row: Mapping[Any, Any]) -> str:
    """Return the framework with its knobs, and the options of the study."""
    options = f" ({row['options']})" if row["options"] else ""
    return series_name(row, report.study.names) + options


def _throughputs(report: Report) -> str:
    rows = report.points.sort_values("throughput", ascending=False).to_dict("records")
    best = rows[0]
    workers = count(int(best["workers"]), "worker")
    speed = f"{number(best['throughput'], '~4')} {report.study.unit}"
    most = f"The largest median throughput is {speed}, of {_series(report, best)} on {workers}."
    return f"{most} No speed-up is known."


def comparison_conclusion(report: Report) -> str:
    """Return the outcome at every worker count; where options differ too, in how many comparisons each."""
    compared = report.comparisons
    if compared.empty:
        return "The frameworks have no worker count in common."
    by_outcome = compared.groupby("outcome", sort=False)["workers"]
    if by_outcome.nunique().sum() == compared["workers"].nunique():
        parts = [
            f"{outcome} on {listed(map(str, sorted(set(counts))))} worker{'s' if max(counts) > 1 else ''}"
            for outcome, counts in by_outcome
        ]
    else:
        of_all = f"of {len(compared)} comparisons"
        parts = [f"{outcome} in {points} {of_all}" for outcome, points in by_outcome.size().items()]
    return sentence(", ".join(parts))


def frameworks_conclusion(report: Report) -> str:
    """Return for each framework at how many points it costs nothing, and at how many native DDP is faster."""
    rows = report.wrappers
    parts = [
        f"{name}: {_costs(rows[rows['framework'] == framework])}"
        for framework, name in NAMES.items()
        if framework in set(rows["framework"])
    ]
    return sentence("; ".join(parts))


def _costs(rows: pd.DataFrame) -> str:
    free = int((rows["costs"] == COSTS_NOTHING).sum())
    slower = int((rows["outcome"] == NATIVE_FASTER).sum())
    return f"{COSTS_NOTHING} of a step at {free} of {count(len(rows), 'point')}, slower at {slower}"


def overhead_conclusion(report: Report) -> str:
    """Return the cause with most at stake, that none was found, or why there is no overhead budget."""
    if report.diagnoses:
        first = report.diagnoses[0]
        at_stake = with_interval(dict(vars(first).items()), "at_stake", ".1%")
        share = "" if pd.isna(first.at_stake) else f" ({at_stake} of the workers' time)"
        place = f"{_series(report, vars(first))} on {count(first.workers, 'worker')}"
        return sentence(f"Most at stake with {place}: {first.finding}{share}")
    if len(report.overhead.budget):
        return "No rule of the diagnosis found its evidence."
    return next(iter(map(sentence, report.budget_notes)), "No point has an overhead budget.")


def iou_conclusion(report: Report) -> str:
    """Return at which worker counts IoU is inferior to 1 worker; counts of points where series differ."""
    judged = report.iou[report.iou["workers"] > 1]
    if judged.empty:
        return f"Nothing can be said about {report.study.score.title} on more than 1 worker."
    findings = _iou_of_series(report, judged)
    if len(set(findings.values())) == 1:
        return sentence(next(iter(findings.values())))
    if len(findings) <= MOST_SERIES_NAMED:
        return sentence("; ".join(f"{name}: {finding}" for name, finding in findings.items()))
    return sentence(_iou_by_points(judged))


def _iou_of_series(report: Report, judged: pd.DataFrame) -> dict[str, str]:
    """Return the finding of each series, by its name."""
    series = [rows for _, rows in judged.groupby(SERIES, sort=False)]
    return {_series(report, rows.iloc[0].to_dict()): _iou_by_workers(rows) for rows in series}


def _iou_by_points(rows: pd.DataFrame) -> str:
    """Return "not inferior at 13 points, inferior at 1 point"."""
    counts = rows["non_inferior"].value_counts()
    return ", ".join(
        f"{word} at {count(int(counts[mark]), 'point')}" for mark, word in IOU_WORDS.items() if mark in counts
    )


def _iou_by_workers(rows: pd.DataFrame) -> str:
    """Return "not inferior on 2 and 4 workers, inferior on 8 workers"."""
    workers = {mark: rows.loc[rows["non_inferior"] == mark, "workers"].map(str) for mark in IOU_WORDS}
    return ", ".join(
        f"{IOU_WORDS[mark]} on {listed(counts)} workers" for mark, counts in workers.items() if len(counts)
    )


def loss_conclusion(report: Report) -> str:
    """Return the median loss at the end on the fewest and the most workers."""
    losses = report.study.runs.groupby("workers")["loss"].median().dropna()
    if losses.empty:
        return "The logs hold no loss."
    ends = [(int(losses.index[0]), losses.iloc[0]), (int(losses.index[-1]), losses.iloc[-1])]
    parts = [f"{number(loss, '~3')} on {count(workers, 'worker')}" for workers, loss in dict(ends).items()]
    return f"The median loss of the last epoch is {' and '.join(parts)}."


def cost_conclusion(report: Report) -> str:
    """Return the training of the least time and that of the least cost, "by the median" where not shown."""
    known = report.cost.dropna(subset=["training_seconds", "worker_hours"])
    if known.empty:
        return "The logs hold no training time."
    fastest = _least(report, known, "training_seconds", "fastest training")
    cheapest = _least(report, known, "worker_hours", "cheapest")
    return f"The {fastest}; the {cheapest}."


def _least(report: Report, known: pd.DataFrame, column: str, what: str) -> str:
    """Return the point with the least median, as the least only where its interval is below all others."""
    first, *others = known.sort_values(column).to_dict("records")
    shown = others and all(first[f"{column}_high"] < other[f"{column}_low"] for other in others)
    return f"{what}{' is' if shown else ', by medians alone, is'} {_cost(report, first)}"


def _cost(report: Report, row: Row) -> str:
    worker_seconds = 3600 * row["worker_hours"]
    time, hours = (_duration(seconds) for seconds in (row["training_seconds"], worker_seconds))
    place = f"{_series(report, row)} on {count(int(row['workers']), 'worker')}"
    return f"{place} ({time}, {hours} of all workers)"


def _duration(seconds: float) -> str:
    size, unit = unit_of(pd.Series([seconds]))
    return f"{number(seconds / size, '~3')} {unit}"


def prediction_conclusion(report: Report) -> str:
    """Return the error of the predictions at worker counts that the fit has not seen."""
    errors = report.predictions.loc[report.predictions["held_out"].astype(bool), "error"].abs().dropna()
    if errors.empty:
        return next(iter(map(sentence, report.extrapolation.notes)), "Nothing was predicted.")
    shown = f"{percent(float(errors.median()))} (median), {percent(float(errors.max()))} at worst"
    return f"At worker counts that the fit has not seen the error is {shown}."


def fairness_conclusion(report: Report) -> str:
    """Return how many requirements are met, and which are not."""
    marks = report.fairness["mark"]
    counts = [f"{(marks == mark).sum()} {word}" for mark, word in MARK_WORDS.items() if (marks == mark).any()]
    unmet = report.fairness.loc[marks == "no", "check"].tolist()
    named = f" Not met: {first_of(unmet, 'requirement', MOST_SERIES_NAMED)}." if unmet else ""
    return f"Of {len(marks)} requirements {listed(counts)}.{named}"


def runs_conclusion(report: Report) -> str:
    """Return how many runs are used, and how many were disturbed where their records tell."""
    runs = report.study.runs
    disturbed = int((runs["disturbed"] != "").sum())
    known = disturbed > 0 or runs["busy_share"].notna().all()
    told = f", {disturbed or 'none'} disturbed by other programs or a stall" if known else ""
    return f"{count(len(runs), 'run')}{told}."


def left_out_conclusion(report: Report) -> str:
    """Return how many runs are not used, by state."""
    states = report.study.all_left_out["state"].value_counts()
    return sentence(listed(f"{runs} {state}" for state, runs in states.items()))


def notes_conclusion(notes: Sequence[str]) -> str:
    """Return the first note, and how many more there are."""
    more = f" ({count(len(notes) - 1, 'more note')})" if len(notes) > 1 else ""
    return notes[0] + more

"""The sections of the page that give the evidence, in reading order: values for sections.jinja."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from analysis.contrast import COSTS_NOTHING, NATIVE_FASTER
from analysis.forecast import score_notes
from analysis.points import CLOCK
from analysis.report.assemble import Report
from analysis.report.columns import grids, shared_reasons
from analysis.report.figure_files import FigureFiles
from analysis.report.played_section import played_runs_section, played_section
from analysis.report.saliency_section import saliency_section
from analysis.report.view import Section
from analysis.study import NAMES, SERIES
from analysis.text import sentence, series_name
from analysis.words import lines

# More remarks or runs left out than this are folded, or left to the tables: nobody reads on.
MOST_REMARKS = 12

Values = dict[str, Any]


def sections(report: Report, figures: FigureFiles) -> Iterator[Section]:
    """Yield the evidence in reading order."""
    own = {"played": played_section, "played-runs": played_runs_section, "saliency": saliency_section}
    for name in _names(report):
        section = own[name](report) if name in own else _section(report, name)
        yield replace(
            section,
            anchor=report.study.score.key(section.anchor),
            drawings=figures.in_section(section.anchor),
            grids=grids(report, section.anchor),
            absent=figures.missing_in_section(section.anchor),
        )


def _names(report: Report) -> Iterator[str]:
    """Yield the sections by name: a study of played runs only, or of maps, has no speed of training.

    Emulated runs have nothing else, and of scripts nothing is concluded.
    """
    study = report.study
    has_speed = len(study.runs) > 0
    learns = not (study.is_emulated or study.is_of_scripts)
    is_there = {
        "points": has_speed,
        "against": has_speed and not study.is_of_scripts,
        "frameworks": has_speed and len(report.wrappers),
        "iou": has_speed and learns,
        "played": study.played is not None and learns,
        "saliency": not report.saliency.is_empty and learns,
        "budget": has_speed,
        "cost": has_speed and learns,
        "loss": has_speed and learns,
        "request": has_speed and not study.is_of_scripts,
        "prediction": has_speed and not study.is_of_scripts,
        "fairness": True,
        "runs": has_speed,
        "played-runs": study.played is not None and learns,
        "left-out": len(study.all_left_out),
        "notes": report.notes,
    }
    return (name for name, shown in is_there.items() if shown)


def _section(report: Report, name: str) -> Section:
    title, lead, conclusion, is_open, remarks = _said(report, name)
    return Section(name, title, conclusion, lead, is_open=is_open, remarks=remarks)


def _said(report: Report, name: str) -> tuple[str, str, str, bool, tuple[str, ...]]:
    """Return title, lead, conclusion, whether it is open without a click, and remarks."""
    values = _VALUES[name](report)
    is_open = bool(values.pop("is_open", False))
    remarks = values.pop("remarks", [])
    title, lead, conclusion, *further = lines(
        "sections", section=name, study=report.study, series=partial(_series, report), **values
    )
    return title, lead, conclusion, is_open, (*further, *map(sentence, remarks))


def comparison_conclusion(report: Report) -> str:
    """Return the outcome at every worker count; where options differ too, in how many comparisons each."""
    return _said(report, "against")[2]


def _series(report: Report, row: Mapping[Any, Any]) -> str:
    """Return the framework with its knobs, and the options of the study."""
    return series_name(row, report.study.names) + (f" ({row['options']})" if row["options"] else "")


def _points(report: Report) -> Values:
    known = report.points[(report.points["workers"] > 1) & report.points["speedup"].notna()]
    largest = known[known["workers"] == known["workers"].max()]
    by_speed = largest.sort_values("speedup", ascending=False).to_dict("records")
    by_throughput = report.points.sort_values("throughput", ascending=False).to_dict("records")
    # Of more than two series a sentence names the two ends only.
    ends = [*by_speed[:1], *by_speed[1:][-1:]]
    return {"is_open": True, "rows": ends, "number_of": len(by_speed), "best": by_throughput[0]}


def _against(report: Report) -> Values:
    by_outcome = report.comparisons.groupby("outcome", sort=False)["workers"]
    workers = {outcome: sorted(set(counts)) for outcome, counts in by_outcome}
    is_one_each = sum(map(len, workers.values())) == report.comparisons["workers"].nunique()
    return {"is_open": True, "workers": workers if is_one_each else {}, "sizes": by_outcome.size().to_dict()}


def _frameworks(report: Report) -> Values:
    costs = []
    for framework, name in NAMES.items():
        rows = report.wrappers[report.wrappers["framework"] == framework]
        free = int((rows["costs"] == COSTS_NOTHING).sum())
        slower = int((rows["outcome"] == NATIVE_FASTER).sum())
        costs += [(name, free, len(rows), slower)] if len(rows) else []
    return {"is_open": True, "costs": costs, "costs_nothing": COSTS_NOTHING}


def _budget(report: Report) -> Values:
    has_budget = len(report.overhead.budget) > 0
    return {
        "is_open": bool(report.diagnoses),
        "first": dict(vars(report.diagnoses[0]).items()) if report.diagnoses else None,
        "has_budget": has_budget,
        "note": next(iter(report.budget_notes), ""),
        "remarks": report.budget_notes[:MOST_REMARKS] if has_budget else [],
    }


def _iou(report: Report) -> Values:
    judged = report.iou[report.iou["workers"] > 1]
    by_series = judged.groupby(SERIES, sort=False)
    found = {_series(report, rows.iloc[0].to_dict()): _marks(rows) for _, rows in by_series}
    if len({str(marks) for marks in found.values()}) == 1:
        found = {"": next(iter(found.values()))}
    return {
        "is_open": True,
        "found": list(found.items()),
        "points": judged["non_inferior"].value_counts().to_dict(),
        "margins": sorted(report.iou["margin"].unique()),
        "images": sorted(report.study.runs["test_images"].dropna().unique()),
        "shared": shared_reasons(report),
    }


def _marks(rows: pd.DataFrame) -> dict[str, list[int]]:
    """Return the worker counts by whether their IoU is not inferior."""
    return {str(mark): list(of["workers"]) for mark, of in rows.groupby("non_inferior", sort=False)}


def _loss(report: Report) -> Values:
    losses = report.study.runs.groupby("workers")["loss"].median().dropna()
    return {"ends": list(losses.iloc[[0, -1]].items())[: len(losses)] if len(losses) else []}


def _cost(report: Report) -> Values:
    known = report.cost.dropna(subset=["training_seconds", "worker_hours"])
    least = []
    for column, what in (("training_seconds", "fastest training"), ("worker_hours", "cheapest")):
        rows = known.sort_values(column).to_dict("records")
        # The least only where its interval is below all others.
        is_shown = len(rows) > 1 and all(rows[0][f"{column}_high"] < row[f"{column}_low"] for row in rows[1:])
        least += [(what, is_shown, rows[0])] if rows else []
    sets = [f"Pareto set of {kind}" for kind in report.cost["pareto_of"].drop_duplicates() if kind]
    return {"least": least, "clock": CLOCK, "remarks": [*report.targets, *sets]}


def _request(report: Report) -> Values:
    first, *more = report.request_sentences[:MOST_REMARKS] or ["no speed was measured"]
    return {"first": first, "remarks": more}


def _prediction(report: Report) -> Values:
    predicted = report.predictions
    errors = predicted.loc[predicted["held_out"].astype(bool), "error"].abs().dropna()
    first = next(iter(report.extrapolation.notes), "nothing was predicted")
    notes = [*score_notes(report.scores), *report.extrapolation.notes][:MOST_REMARKS]
    remarks = [note for note in notes if len(errors) or note != first]
    return {"errors": errors, "first": first, "remarks": remarks}


def _fairness(report: Report) -> Values:
    marks = report.fairness["mark"]
    unmet = report.fairness.loc[marks == "no", "check"].tolist()
    return {"is_open": bool(report.doubts), "marks": list(marks), "unmet": unmet}


def _runs(report: Report) -> Values:
    runs = report.study.runs
    disturbed = int((runs["disturbed"] != "").sum())
    is_known = disturbed > 0 or runs["busy_share"].notna().all()
    return {"runs": len(runs), "disturbed": disturbed, "is_known": is_known}


def _left_out(report: Report) -> Values:
    states = report.study.all_left_out["state"].value_counts().to_dict()
    return {"is_open": sum(states.values()) <= MOST_REMARKS, "states": states}


def _notes(report: Report) -> Values:
    return {"notes": report.notes, "remarks": report.notes}


_VALUES: Mapping[str, Callable[[Report], Values]] = {
    "points": _points,
    "against": _against,
    "frameworks": _frameworks,
    "budget": _budget,
    "iou": _iou,
    "cost": _cost,
    "loss": _loss,
    "request": _request,
    "prediction": _prediction,
    "fairness": _fairness,
    "runs": _runs,
    "left-out": _left_out,
    "notes": _notes,
}

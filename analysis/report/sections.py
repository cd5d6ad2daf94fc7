"""The sections of the page that give the evidence, in reading order: values for sections.jinja."""

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from analysis.contrast import NATIVE_FASTER
from analysis.figures.svg import DrawnFigure
from analysis.findings.answer import Answer
from analysis.forecast import score_notes
from analysis.played import kinds_of
from analysis.points import CLOCK
from analysis.report.assemble import Report
from analysis.report.columns import grids, shared_reasons
from analysis.report.tables import Grid
from analysis.restriction import restriction_notes
from analysis.saliency import Areas, areas_of
from analysis.strategies import strategy_sentence
from analysis.study import NAMES, SERIES, Explained
from analysis.text import chart_number, clean, count, labelled, listed, percent, sentence, series_name
from analysis.words import lines
from unet_scaling.study.files import read_regular
from unet_scaling.study.saliency import SaliencyFile, SaliencyScore
from unet_scaling.study.texts import score_title

# More remarks or runs left out than this are folded, or left to the tables: nobody reads on.
MOST_REMARKS = 12
# Images shown of the best, and as many of the worst.
MOST_IMAGES = 3
# By which an image is the best or the worst: that of the two on which both prediction and region count.
RANKED_BY: SaliencyScore = "iou"

Values = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """A part of the page: its title, what it finds in one sentence, how to read it, and the evidence.

    `is_open` shows the evidence without a click; `gallery` has pictures.
    """

    anchor: str
    title: str
    lead: str
    conclusion: str
    remarks: Sequence[str]
    is_open: bool
    drawings: Sequence[DrawnFigure]
    grids: Sequence[Grid]
    gallery: Values | None

    @property
    def is_empty(self) -> bool:
        """Return whether it has no evidence: the page then gives it one line."""
        return not (self.drawings or self.remarks or self.gallery or any(grid.groups for grid in self.grids))


def sections(report: Report, figures: Callable[[str], Sequence[DrawnFigure]]) -> Iterator[Section]:
    """Yield the evidence in reading order.

    A study of played runs only, or of maps, has no speed of training; emulated runs have nothing else, and of
    scripts nothing is concluded.
    """
    study = report.study
    speed = len(study.runs) > 0
    compared = speed and study.kind.compares
    learns = not study.kind.unlearned
    played = study.played is not None and learns
    shown = {
        "points": speed,
        "against": compared and study.runs["framework"].nunique() > 1,
        "frameworks": speed and len(report.wrappers),
        "iou": speed and learns,
        "seen": learns and report.seen,
        "played": played,
        "saliency": learns and not report.saliency.is_empty,
        "strategies": compared and len(report.strategies),
        "budget": speed,
        "cost": speed and learns,
        "loss": speed and learns,
        "request": report.request_sentences,
        "prediction": compared and len(report.extrapolation.predictions) + len(report.scores),
        "fairness": True,
        "left-out": len(study.all_left_out),
        "notes": _notes_beside(report),
    }
    is_open = dict.fromkeys(("cost", "loss", "request", "prediction", "notes"), False)
    is_open |= {"budget": bool(report.diagnoses), "fairness": bool(report.doubts)}
    is_open |= {"left-out": len(study.all_left_out) <= MOST_REMARKS}
    for name in (name for name, is_there in shown.items() if is_there):
        said = _said(report, name, _VALUES[name](report) if name in _VALUES else {})
        key, tables = study.score.key(name), grids(report, name)
        gallery = _gallery(report) if name == "saliency" else None
        if name == "seen":
            gallery = {"run": "", "rows": report.seen}
        yield Section(key, *said, is_open.get(name, True), figures(name), tables, gallery)


def _said(report: Report, name: str, values: Values) -> tuple[str, str, str, list[str]]:
    """Return title, lead, conclusion and remarks."""
    remarks = map(sentence, values.pop("remarks", []))
    title, lead, conclusion, *further = lines(
        "sections", section=name, report=report, study=report.study, series=partial(_series, report), **values
    )
    return title, lead, conclusion, [*further, *remarks]


def which_framework(report: Report, answer: Answer) -> str:
    """Return which framework is slower and why, unless the headline does, or the outcome at every count."""
    compared = report.comparisons[report.comparisons["options"] == answer.options]
    slower = report.slower.get(answer.options, "")
    if compared.empty:
        return ""
    if slower and slower not in answer.headline:
        return sentence(slower)
    return _said(report, "against", _against(report, compared))[2]


def _series(report: Report, row: Mapping[Any, Any]) -> str:
    """Return the framework with its knobs, and the options of the study."""
    return series_name(row, report.study.names) + (f" ({row['options']})" if row["options"] else "")


def _points(report: Report) -> Values:
    points = report.points
    best = points.sort_values("throughput", ascending=False).to_dict("records")[0]
    return {"best": best, "has_speedup": points.loc[points["workers"] > 1, "speedup"].notna().any()}


def _against(report: Report, compared: pd.DataFrame) -> Values:
    """Return the worker counts of each outcome, by the options and knobs in which comparisons differ."""
    labels = [name for name in ("options", "native_knobs", "horovod_knobs") if compared[name].nunique() > 1]
    found: dict[str, dict[str, list[int]]] = {}
    for row in compared.to_dict("records"):
        label = ", ".join(filter(None, (row[name] for name in labels)))
        label = f"with {label}" if label else ""
        found.setdefault(label, {}).setdefault(row["outcome"], []).append(row["workers"])
    levels = sorted({percent(level, 0) for level in report.comparisons["coverage"].dropna()})
    number_of = count(len(report.comparisons), "comparison")
    said = f"{listed(levels)} intervals, corrected for {number_of}." if levels else "No intervals."
    return {"found": found, "sizes": compared.groupby("outcome", sort=False).size().to_dict(), "levels": said}


def _frameworks(report: Report) -> Values:
    slower = report.wrappers.loc[report.wrappers["outcome"] == NATIVE_FASTER, "framework"]
    return {"slower": [NAMES[framework] for framework in slower.unique()]}


def _budget(report: Report) -> Values:
    has_budget = len(report.overhead.budget) > 0
    return {
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
    losses = list(report.study.runs.groupby("workers")["loss"].median().dropna().items())
    return {"ends": losses if len(losses) < 2 else [losses[0], losses[-1]]}


def _cost(report: Report) -> Values:
    known = report.cost.dropna(subset=["training_seconds", "worker_hours"])
    least = []
    for column, what in (("training_seconds", "fastest training"), ("worker_hours", "cheapest")):
        rows = known.sort_values(column).to_dict("records")
        # The least only where its interval is below all others.
        is_shown = len(rows) > 1 and all(rows[0][f"{column}_high"] < row[f"{column}_low"] for row in rows[1:])
        least += [(what, is_shown, rows[0])] if rows else []
    return {"least": least, "clock": CLOCK, "remarks": report.targets}


def _prediction(report: Report) -> Values:
    predicted = report.extrapolation.predictions
    errors = predicted.loc[predicted["held_out"].astype(bool), "error"].abs().dropna()
    notes = [*score_notes(report.scores), *report.extrapolation.notes][:MOST_REMARKS]
    return {"errors": errors, "remarks": notes}


def _notes_beside(report: Report) -> list[str]:
    """Return the notes, without those that stand beside the answer."""
    beside = restriction_notes(report.study)
    return [note for note in report.notes if note not in beside]


def _played(report: Report) -> Values:
    found = [labelled(options, text) for options, text in report.played.sentences.items()]
    plan = report.played.plan
    reasons = dict.fromkeys(reason for why in plan["why"] if why for reason in why.split("; "))
    return {
        "margins": sorted(report.played.points["margin"].unique()),
        "conclusion": report.played.compared_options or next(iter(found), ""),
        "kinds": kinds_of(report.played.kept) if report.played.kept else "",
        "found": [*found, *report.played.notes],
        "has_plan": plan["seconds_to_target"].notna().any(),
        "remarks": list(reasons),
    }


def _saliency(report: Report) -> Values:
    return {"found": [*report.saliency.warnings, *report.saliency.sentences]}


def _gallery(report: Report) -> Values | None:
    """Return the pictures of the first run that has some of images with curves; None where no run has."""
    study = report.saliency.study
    for run in study.runs["run"]:
        explained = study.explained.get(run)
        rows = list(_pictures(explained)) if explained else []
        if explained and any(source for _, pictures in rows for source, *_ in pictures):
            images = len(areas_of(explained, RANKED_BY))
            return {"run": run, "images": images, "rows": rows, "score": score_title(RANKED_BY)}
    return None


def _pictures(explained: Explained) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the best and the worst images, the best first, each with (source, title, numbers) of pictures."""
    areas = {score: areas_of(explained, score) for score in explained.manifest.scores}
    ranked = areas.get(RANKED_BY, {})
    order = sorted(ranked, key=lambda position: -ranked[position].deletion_gain)
    kept = order if len(order) <= 2 * MOST_IMAGES else [*order[:MOST_IMAGES], *order[-MOST_IMAGES:]]
    for position in kept:
        image = explained.manifest.images[position]
        pictures = [(_source(explained, image.pictures.get(name)), name, "") for name in ("image", "truth")]
        for score in (score for score, found in areas.items() if position in found):
            source = _source(explained, image.overlays.get(score))
            pictures.append((source, f"map of {score_title(score)}", _numbers(areas[score][position])))
        yield clean(image.image), pictures


def _numbers(areas: Areas) -> str:
    deletion, random_deletion, insertion, random_insertion = (
        chart_number(area, ".2f") for area in vars(areas).values()
    )
    return f"deletion {deletion} ({random_deletion}), insertion {insertion} ({random_insertion})"


def _source(explained: Explained, file: SaliencyFile | None) -> str:
    """Return a picture as a data URL; empty where it is not there, or not the one of the manifest."""
    try:
        content = read_regular(explained.folder / file.file) if file else b""
    except OSError:
        return ""
    if not file or hashlib.sha256(content).hexdigest() != file.sha256:
        return ""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


_VALUES: Mapping[str, Callable[[Report], Values]] = {
    "points": _points,
    "against": lambda report: _against(report, report.comparisons),
    "frameworks": _frameworks,
    "strategies": lambda report: {"found": strategy_sentence(report.study, report.strategies)},
    "budget": _budget,
    "iou": _iou,
    "cost": _cost,
    "loss": _loss,
    "request": lambda report: {"remarks": report.request_sentences[1:MOST_REMARKS]},
    "prediction": _prediction,
    "played": _played,
    "saliency": _saliency,
    "notes": lambda report: {"remarks": _notes_beside(report), "notes": len(_notes_beside(report))},
}

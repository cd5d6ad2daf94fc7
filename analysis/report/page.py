"""Write the page: one HTML file that needs nothing else, no script and no network."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.assembly.assemble import Report
from analysis.figures.svg import DrawnFigure
from analysis.judge.decide import Kind
from analysis.judge.trust import runs_to_come
from analysis.report.columns import TABLES, grids
from analysis.report.exports import origin_line, origins, outcomes_of, reproduction, which_framework
from analysis.report.tables import words_of
from analysis.study import POINT, Names, Study
from analysis.text import (
    Row,
    chart_number,
    clean,
    count,
    labelled,
    lines,
    page,
    percent,
    repeats_text,
    restriction_notes,
    sentence,
    series_name,
)
from unet_scaling.base.errors import UserError
from unet_scaling.base.files import read_json_with_checksum
from unet_scaling.format.record_lines import PICTURES_NAME, Pictures, SamplePicture

# The anchor of the first screen, above the sections.
MAIN = "main"
# Colour is never alone: each kind of answer has its word, and each light its word and its shape.
KIND_WORDS: dict[Kind, str] = {
    "scale": "Scale out",
    "stay": "Stay on 1 worker",
    "speed": "Speed only",
    "undecided": "Undecided",
    "unfair": "No fair comparison",
    "played": "{score} only: played, trained as so many workers on fewer",
    "script": "Recorded in a script: not compared",
    "maps": "Saliency maps only",
}


def report_page(report: Report, figures: Mapping[str, Sequence[DrawnFigure]]) -> str:
    """Return the report as HTML. The template escapes every text; figures are the project's own SVG.

    `figures` returns those of a section.
    """
    study = report.study
    # What logs in the older layout, and emulated runs, cannot say.
    caveats = restriction_notes(study.headers, study.scripts) if study.provenance_known else study.notes
    return page(
        "report",
        name=clean(study.name),
        frameworks=study.names,
        arms=" or ".join(study.names.values()),
        about=_measured(report),
        comparison=which_framework(report, report.answers[0]),
        words=words_of(study),
        kind_words={kind: word.format(score=study.score.heading) for kind, word in KIND_WORDS.items()},
        answers=report.answers,
        compared_options=report.compared_options,
        doubts=report.doubts,
        caveats=caveats,
        main_figures=figures.get(MAIN, ()),
        sections=list(sections(report, figures)),
        origins=origins(study.subject),
        origin_line=origin_line(study.subject.headers, study.subject.scripts),
        reproduction=reproduction(study.subject),
        files=[table.name(report) for table in TABLES if table.is_file and table.is_made(report)],
    )


def _measured(report: Report) -> str:
    """Return frameworks, worker counts and repeats in a line, of real and of played runs, and of maps."""
    study = report.study
    parts = [_runs_line(study.runs, study.names, report.points["repeats"])] if len(study.runs) else []
    for label, part in (("played", study.played), ("saliency maps only", study.maps_only)):
        if part is not None and len(part.runs):
            parts.append(f"{label}: {_runs_line(part.runs, part.names, part.runs.groupby(POINT).size())}")
    to_come = runs_to_come(study)
    left_out = len(study.all_left_out) - to_come
    parts += [f"{count(to_come, 'run')} not complete"] * (to_come > 0)
    return "; ".join([*parts, *[f"{count(left_out, 'run')} left out"] * (left_out > 0)])


def _runs_line(runs: pd.DataFrame, names: Names, repeats: "pd.Series[int]") -> str:
    workers = sorted(runs["workers"].unique())
    used = set(runs["framework"])
    arms = " and ".join(name for framework, name in names.items() if framework in used)
    counts = ", ".join(map(str, workers)) + (" worker" if workers == [1] else " workers")
    return f"{arms} on {counts}, {count(len(runs), 'run')}, {repeats_text(repeats)} per point"


# More remarks or runs left out than this are folded, or left to the tables: nobody reads on.
MOST_REMARKS = 12

Values = dict[str, Any]


def sections(report: Report, figures: Mapping[str, Sequence[DrawnFigure]]) -> Iterator[Values]:
    """Yield the parts of the page in reading order, each with its title, conclusion and evidence.

    What a kind of study has nothing to say of stands at the kind (analysis/study.py).
    """
    study = report.study
    seen = seen_rows(study)
    shown = {
        "points": True,
        "against": study.runs["framework"].nunique() > 1,
        "frameworks": len(report.wrappers),
        "iou": True,
        "seen": seen,
        "played": not report.played.is_empty,
        "saliency": not report.saliency.is_empty,
        "strategies": len(report.strategies),
        "budget": True,
        "cost": True,
        "request": report.request_sentences,
        "prediction": len(report.predictions) + len(report.scores),
        "fairness": True,
        "left-out": len(study.all_left_out),
        "notes": _notes_beside(report),
    }
    is_open = dict.fromkeys(("cost", "request", "prediction", "notes"), False)
    is_open |= {"budget": bool(report.diagnoses), "fairness": bool(report.doubts)}
    is_open |= {"left-out": len(study.all_left_out) <= MOST_REMARKS}
    levels = sorted({percent(level, 0) for level in report.comparisons["coverage"].dropna()})
    for name in study.subject.kind.told(name for name, is_there in shown.items() if is_there):
        title, lead = lines("sections", section=name, study=study, report=report, levels=levels)
        told = FOUND[name](report) if name in FOUND else ()
        if name in DOUBTED:
            told = [*map(report.doubted, told[:1]), *told[1:]]
        found = [sentence(text) for text in told]
        gallery = report.saliency.gallery if name == "saliency" else None
        if name == "seen":
            gallery = {"run": "", "rows": seen}
        section = {
            "drawings": figures.get(name, ()),
            "grids": [grid for grid in grids(report, name) if grid.groups],
            "remarks": found[1:],
            "gallery": gallery,
        }
        yield section | {
            "anchor": study.score.key(name),
            "title": title,
            "lead": lead,
            "conclusion": next(iter(found), ""),
            # Without a click.
            "is_open": is_open.get(name, True),
            # The page then gives it one line.
            "is_empty": not any(section.values()),
        }


def _series(report: Report, row: Mapping[Any, Any]) -> str:
    """Return the framework with its knobs, and the options of the study."""
    return series_name(row, report.study.names) + (f" ({row['options']})" if row["options"] else "")


def _budget(report: Report) -> list[str]:
    largest = [
        f"largest loss: {_series(report, vars(first))} on {count(first.workers, 'worker')}: {first.finding}"
        for first in report.diagnoses[:1]
    ]
    return [*largest, *report.budget_notes]


def _notes_beside(report: Report) -> list[str]:
    """Return the notes, without those that stand beside the answer."""
    beside = restriction_notes(report.study.headers, report.study.scripts)
    return [note for note in report.notes if note not in beside]


def _played(report: Report) -> list[str]:
    played = report.played
    found = [labelled(options, text) for options, text in played.sentences.items()]
    reasons = dict.fromkeys(reason for why in played.plan["why"] if why for reason in why.split("; "))
    return [*found, *played.notes, *reasons]


def _fairness(report: Report) -> list[str]:
    met = int((report.fairness["mark"] == "yes").sum())
    return [f"{met} of {count(len(report.fairness), 'requirement')} met"]


# What each section finds; the others have tables and figures alone.
FOUND: Mapping[str, Callable[[Report], Sequence[str]]] = {
    "against": lambda report: [outcomes_of(report.comparisons)],
    "strategies": lambda report: [report.strategy_sentence],
    "budget": _budget,
    "cost": lambda report: report.targets,
    "request": lambda report: report.request_sentences,
    "prediction": lambda report: [*report.score_notes, *report.prediction_notes],
    "played": _played,
    "saliency": lambda report: [*report.saliency.warnings, *report.saliency.sentences],
    "fairness": _fairness,
    "notes": _notes_beside,
}
# Sections whose conclusions rest on a comparison, or on the runs on 1 worker, and do not say so themselves.
DOUBTED = ("strategies", "budget", "prediction")


def seen_rows(study: Study) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return for each chosen image its name and its pictures, (source, title, numbers) each.

    Of the first repeat whose run on 1 worker left pictures: its run, and that of each framework on the most
    workers, of the same options. The images are those on which 1 worker has the best IoU, the median and the
    worst. A picture is used where it is of the weights that the record names.
    """
    found = dict(_runs_with_pictures(study))
    runs = [row for row in study.subject.runs.to_dict("records") if row["run"] in found]
    alone = next((row for row in runs if row["workers"] == 1), None)
    if alone is None:
        return []
    same = [row for row in runs if (row["options"], row["repeat"]) == (alone["options"], alone["repeat"])]
    most = max(row["workers"] for row in same)
    shown: list[Row] = [alone, *(row for row in same if row["workers"] == most > 1)]
    by_iou = sorted(
        (each for each in found[alone["run"]].values() if each.iou is not None),
        key=lambda each: each.iou or 0.0,
    )
    places = dict.fromkeys((len(by_iou) - 1, len(by_iou) // 2, 0)) if by_iou else ()
    names = dict(zip(places, ("best of 1 worker", "median of 1 worker", "worst of 1 worker"), strict=False))
    return [
        (
            f"test image {by_iou[place].position + 1}: {name}",
            [_shown(study.names, row, found[row["run"]].get(by_iou[place].position)) for row in shown],
        )
        for place, name in names.items()
    ]


def _shown(names: Names, row: Row, picture: SamplePicture | None) -> tuple[str, str, str]:
    title = f"{count(row['workers'], 'worker')}, {names[row['framework']]}"
    if picture is None:
        return "", title, ""
    iou = "" if picture.iou is None else f"IoU {chart_number(picture.iou, '.2f')}"
    return f"data:image/png;base64,{picture.png}", title, iou


def _runs_with_pictures(study: Study) -> Iterator[tuple[str, Mapping[int, SamplePicture]]]:
    """Yield each run with pictures of its last weights, and these by their position."""
    subject = study.subject
    last = subject.evaluations.drop_duplicates("run", keep="last")
    weights = dict(zip(last["run"], last["weights_sha256"], strict=True))
    for run in subject.runs["run"] if study.folder else ():
        try:
            content: Any = read_json_with_checksum(study.folder / run / PICTURES_NAME)
            pictures = Pictures.model_validate(content)
        except (OSError, ValueError, UserError):  # not there, or damaged
            continue
        if pictures.weights_sha256 == weights.get(run):
            yield run, {picture.position: picture for picture in pictures.images}

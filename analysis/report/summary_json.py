"""Write the answers and numbers of a report as JSON, for programs: keys do not change within a version."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.findings.decide import Recommendation
from analysis.report.assemble import Report
from analysis.report.provenance import origins
from analysis.report.tables import TABLES
from analysis.study import Study
from analysis.text import clean

# Counted up when a key is removed, renamed or changes its meaning; new keys may come at any time.
SCHEMA_VERSION = 2
# More than any measurement has, and the same on every processor: as in the CSV files.
_SIGNIFICANT_DIGITS = 10
_SALIENCY_LISTED = {"points": "saliency.csv", "faithfulness": "saliency_faithfulness.csv"}
_LISTED = {
    "points": "summary.csv",
    "comparisons": "comparison.csv",
    "iou": "iou.csv",
    "played": "played.csv",
    "plan": "plan.csv",
    "task_scores": "task_scores.csv",
}


def summary_json(report: Report) -> str:
    """Return the answers, verdicts, recommendations, points, checks and provenance of a report as JSON.

    What is not known is null, never NaN, 0 or -1.
    """
    content = {
        "schema_version": SCHEMA_VERSION,
        **_subject(report.study),
        "answers": [dataclasses.asdict(answer) for answer in report.answers],
        "recommendations": [_recommendation(advice, report) for advice in report.recommendations],
        "verdicts": [dataclasses.asdict(verdict) for verdict in report.verdicts],
        **{report.study.score.key(key): _rows(report, file) for key, file in _LISTED.items()},
        **_saliency(report),
        "checks": report.fairness.to_dict("records"),
        "doubts": report.doubts,
        "notes": report.notes,
    }
    return json.dumps(_plain(content), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _subject(study: Study) -> Mapping[str, object]:
    return {
        "study": study.name,
        "throughput_unit": study.unit,
        study.score.key("iou_scope"): study.iou_scope,
        "frameworks": study.names,
        "criteria": {study.score.key(key): value for key, value in study.criteria.model_dump().items()},
        "left_out": study.all_left_out[["run", "state", "reason"]].to_dict("records"),
        "provenance": {origin.name: origin.values for origin in origins(study.subject)},
    }


def _recommendation(advice: Recommendation, report: Report) -> Mapping[str, object]:
    """Return what is recommended; its sentence is the headline of the same options."""
    headlines = {answer.options: answer.headline for answer in report.answers}
    known = {name: getattr(advice, name) for name in ("options", "framework", "workers")}
    return {**known, "sentence": headlines[advice.options]}


def _saliency(report: Report) -> Mapping[str, object]:
    """Return what is known of saliency maps; no key without any."""
    found = report.saliency
    if found.is_empty:
        return {}
    rows = {key: _rows(report, file) for key, file in _SALIENCY_LISTED.items()}
    return {"saliency": {**rows, "sentences": found.sentences, "warnings": found.warnings}}


def _rows(report: Report, file: str) -> Sequence[Mapping[Any, object]]:
    """Return the rows of a table with the documented columns of its file."""
    (table,) = (table for table in TABLES if table.file == file)
    written = table.written(report)
    return table.make(report)[[*written]].rename(columns=written).to_dict("records")


def _plain(value: object) -> object:
    """Return a value as JSON has it: clean texts, numbers of ten digits, null for what is not known."""
    if isinstance(value, Mapping):
        return {clean(key): _plain(each) for key, each in value.items()}
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    return _scalar(value)


def _scalar(value: object) -> object:
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is None or plain is pd.NA:
        return None
    if isinstance(plain, float):
        return float(f"{plain:.{_SIGNIFICANT_DIGITS}g}") if math.isfinite(plain) else None
    assert isinstance(plain, bool | int), plain
    return plain

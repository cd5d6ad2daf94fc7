"""The prediction files of a study beside its records: which of them are older than what they predict."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from analysis.loading.prediction_files import (
    Estimate,
    PredictedPoint,
    PredictionFile,
    file_sha256,
    prediction_paths,
    read_prediction,
    series_sha256,
)
from analysis.study import FORECAST_COLUMNS, NAN, POINT, Study
from unet_scaling.study.errors import UserError
from unet_scaling.study.record import RECORD_NAME, attempt_records, read_record
from unet_scaling.study.study_file import PING_PONG_NAME, config_path, list_run_folders, read_config

AVERAGE = "average"
UNMEASURED = "not measured yet"
CHANGED = "is not what was read for it: changed or removed since"
HOLDS_THE_POINT = "its inputs hold a record of this point"
# In place of a start that is not known.
LONG_AGO = datetime.min.replace(tzinfo=UTC)

# Series, by its SHA-256, and workers.
_Key = tuple[str, int]


@dataclass(frozen=True)
class PointRecords:
    """What is known of every record of one point, also of attempts that failed."""

    first_start: datetime
    digests: frozenset[str]


def read_forecasts(folder: Path, study: Study) -> tuple[pd.DataFrame, list[str]]:
    """Return FORECAST_COLUMNS of every prediction file of a study, and the files that cannot be read.

    `unscored` says why a prediction is not held against the runs; empty where it is.
    """
    files: dict[str, PredictionFile] = {}
    problems = []
    for path in prediction_paths(folder):
        try:
            files[path.name] = read_prediction(path)
        except (OSError, ValueError) as error:
            problems.append(f"{path.parent.name}/{path.name} cannot be read: {str(error).splitlines()[0]}")
    records = _point_records(folder) if files else {}
    changed = {name: _changed_input(folder, file) for name, file in files.items()}
    labels = _labels(study)
    rows = [
        row | {"file": name}
        for name, file in files.items()
        for point in file.points
        for row in _rows(file, point, labels, records, changed[name])
    ]
    return pd.DataFrame(rows, columns=list(FORECAST_COLUMNS)), problems


def _labels(study: Study) -> Mapping[_Key, Mapping[str, object]]:
    """Return how the tables name each measured point."""
    rows = study.runs.drop_duplicates(POINT).to_dict("records")
    return {
        (series_sha256(study.headers[row["run"]].config), int(row["workers"])): {
            name: row[name] for name in POINT
        }
        for row in rows
    }


def _point_records(folder: Path) -> dict[_Key, PointRecords]:
    found: dict[_Key, PointRecords] = {}
    for place in list_run_folders(folder):
        try:
            config = read_config(config_path(place))
        except UserError:
            continue  # listed among the runs left out
        key = (series_sha256(config), config.workers)
        for path in (*attempt_records(place), place / RECORD_NAME):
            if path.exists():
                found[key] = _with_record(found.get(key), path)
    return found


def _changed_input(folder: Path, file: PredictionFile) -> str:
    """Return the first input that is not there any more as it was read; empty where all are.

    A record may have been set aside since, as run.attempt1.jsonl. A profile need not be on this machine.
    """
    for each in file.inputs:
        path = folder / each.file
        beside = path.parent.glob(f"{path.stem}*{path.suffix}")
        digests = {file_sha256(found) for found in beside if found.is_file()}
        is_elsewhere = not digests and path.name not in (RECORD_NAME, PING_PONG_NAME)
        if each.sha256 not in digests and not is_elsewhere:
            return each.file
    return ""


def _with_record(known: PointRecords | None, path: Path) -> PointRecords:
    one = _of_record(path)
    if known is None:
        return one
    return PointRecords(min(one.first_start, known.first_start), one.digests | known.digests)


def _of_record(path: Path) -> PointRecords:
    """Return what one record tells; one that cannot be read may be older than any prediction."""
    try:
        header = read_record(path).header
        digest = file_sha256(path)
    except OSError:
        return PointRecords(LONG_AGO, frozenset())
    attempts = header.attempts() if header else []
    started = [_moment(facts.started_utc) for facts in attempts] or [LONG_AGO]
    return PointRecords(min(started), frozenset([digest]))


def _moment(text: str) -> datetime:
    """Return a time; a record that does not tell its start may be older than any prediction."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return LONG_AGO
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _rows(
    file: PredictionFile,
    point: PredictedPoint,
    labels: Mapping[_Key, Mapping[str, object]],
    records: Mapping[_Key, PointRecords],
    changed: str,
) -> Iterator[dict[str, object]]:
    """Yield a row of the average and, where there are several, of each model."""
    key = (point.series_sha256, point.workers)
    own = {name: getattr(point, name) for name in POINT}
    shared = {
        **labels.get(key, own),
        "written_utc": file.written_utc,
        "held_out": point.held_out,
        "unscored": _unscored(file, records.get(key), key in labels, changed),
        **_columns("linear", point.linear),
    }
    yield shared | {"model": AVERAGE, "weight": 1.0, **_columns("predicted", point.throughput)}
    work = point.throughput.median * point.step_seconds.median
    for model in point.models if len(point.models) > 1 else ():
        throughput = _columns("predicted", _inverse(work, model.step_seconds))
        yield shared | {"model": model.model, "weight": model.weight, **throughput}


def _unscored(file: PredictionFile, records: PointRecords | None, is_measured: bool, changed: str) -> str:
    """Return why a prediction is not held against the runs; empty where it is."""
    if records is None:
        return UNMEASURED
    if records.digests & {each.sha256 for each in file.inputs}:
        return HOLDS_THE_POINT
    if changed:
        return f"{changed} {CHANGED}"
    started = records.first_start
    if started <= datetime.fromisoformat(file.written_utc):
        return f"written {file.written_utc}, its first run began {started.isoformat(timespec='seconds')}"
    return "" if is_measured else UNMEASURED


def _inverse(work: float, seconds: Estimate) -> Estimate:
    low, high = (work / end if end else None for end in (seconds.high, seconds.low))
    return Estimate(median=work / seconds.median, low=low, high=high)


def _columns(name: str, estimate: Estimate) -> dict[str, float]:
    values = {"": estimate.median, "_low": estimate.low, "_high": estimate.high}
    return {f"{name}{end}": NAN if value is None else value for end, value in values.items()}

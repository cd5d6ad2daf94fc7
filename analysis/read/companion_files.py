"""The files beside the records of a study: ping-pongs of hosts, manifests of saliency maps, predictions.

Predictions are `logs/STUDY/predictions/<UTC date-time>.json`: what records of some worker counts said of
larger ones before these were measured. One JSON object with a SHA-256 of its values as last key, written once
and never again.

Format history
    1  first format
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

import pandas as pd
from pydantic import Field, PositiveInt, model_validator

from analysis.read.options import guard_defaults
from analysis.read.records import name_of
from analysis.study import FORECAST_COLUMNS, NAN, PING_PONG_COLUMNS, POINT, Explained, bounded
from analysis.text import count
from unet_scaling.base.errors import UserError
from unet_scaling.base.files import (
    parse_json,
    read_json_with_checksum,
    read_regular,
    write_json_with_checksum,
)
from unet_scaling.base.validation import Digest, StrictModel
from unet_scaling.format.record import RECORD_NAME, attempt_records, read_record
from unet_scaling.format.record_lines import SALIENCY_FOLDER, AboveZero, Header, Saliency
from unet_scaling.format.saliency import SALIENCY_MANIFEST_NAME, SaliencyManifest
from unet_scaling.measure.ping_pong import read_ping_pong
from unet_scaling.study.config import Framework, RunConfig
from unet_scaling.study.study_file import PING_PONG_NAME, config_path, list_run_folders, read_config

PREDICTIONS_FOLDER = "predictions"
UTC_FORM = "%Y-%m-%dT%H%M%SZ"
UNMEASURED = "not measured yet"
# In place of a start that is not known.
LONG_AGO = datetime.min.replace(tzinfo=UTC)
# Of a digest in a sentence.
SHOWN_CHARACTERS = 12

# Series, by its SHA-256, and workers.
_Point = tuple[str, int]


def read_ping_pongs(study: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return every pair that was timed, by PING_PONG_COLUMNS, and the files that cannot be read."""
    rows: list[tuple[object, ...]] = []
    problems = []
    for path in sorted(study.glob(f"*/{PING_PONG_NAME}")):
        place = path.parent.name
        try:
            pairs = read_ping_pong(path).pairs
        except (OSError, ValueError) as error:
            problems.append(f"{place}: {PING_PONG_NAME} cannot be read: {str(error).splitlines()[0]}")
            continue
        rows += [
            (place, *sorted(pair.hosts), pair.medium, pair.latency_seconds, pair.bytes_per_second)
            for pair in pairs
        ]
    return pd.DataFrame(rows, columns=list(PING_PONG_COLUMNS)), problems


def pair_table(ping_pongs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per pair of hosts: medians over its measurements, and how many there are."""
    columns = ["latency_seconds", "bytes_per_second"]
    pairs = ping_pongs.groupby(["host", "other_host", "medium"], sort=True)[columns]
    return pairs.median().assign(measurements=pairs.size()).reset_index()


def read_manifests(
    study: Path, lines: Mapping[str, Saliency], headers: Mapping[str, Header]
) -> tuple[dict[str, Explained], list[str]]:
    """Return what is known of the maps of each run, by its name, and a note on each that is not whole.

    A manifest that does not fit its record is not used: its curves could be of other maps.
    """
    folders = {name_of(path): path for path in study.iterdir()}
    explained: dict[str, Explained] = {}
    notes: list[str] = []
    for run, line in lines.items():
        folder = folders[run] / SALIENCY_FOLDER
        try:
            manifest = _manifest(folder / SALIENCY_MANIFEST_NAME, line, headers[run])
        except (OSError, ValueError) as error:
            name = f"{SALIENCY_FOLDER}/{SALIENCY_MANIFEST_NAME}"
            notes.append(f"{run}: {name} is not used: {str(error).splitlines()[0]}")
            continue
        explained[run] = Explained(folder, manifest)
        maps = [image.map.file for image in manifest.images if image.map]
        missing = [file for file in maps if not (folder / file).is_file()]
        # A copy may leave out all.
        if missing and len(missing) < len(maps):
            of_maps = f"{count(len(missing), 'map')} of {len(maps)}"
            notes.append(f"{run}: {of_maps} missing in {SALIENCY_FOLDER}: {missing[0]}")
    return explained, notes


def _manifest(path: Path, line: Saliency, header: Header) -> SaliencyManifest:
    """Return the manifest that the record names.

    Raises OSError, and ValueError where it is another, or contradicts the record.
    """
    content = read_regular(path)
    digest = hashlib.sha256(content).hexdigest()
    if digest != line.manifest_sha256:
        recorded = line.manifest_sha256[:SHOWN_CHARACTERS]
        raise ValueError(
            f"its SHA-256 begins with {digest[:SHOWN_CHARACTERS]}, that of the record with {recorded}"
        )
    manifest = SaliencyManifest.model_validate_json(content)
    maps = sum(image.map is not None for image in manifest.images)
    facts: Mapping[str, tuple[object, object]] = {
        "method": (manifest.method, header.config.saliency.method),
        "weights_sha256": (manifest.weights_sha256, line.weights_sha256),
        "images": (len(manifest.images), line.images),
        "maps": (maps, line.maps),
    }
    for name, (found, expected) in facts.items():
        if found != expected:
            raise ValueError(f"{name} is {found}, but {expected} in the record")
    for image in manifest.images:
        untrained = image.untrained.faithfulness.values() if image.untrained else ()
        for curves in (*image.faithfulness.values(), *untrained):
            for scores in vars(curves).values():
                if len(scores) != len(manifest.shares):
                    shares = f"{len(manifest.shares)} shares of the pixels"
                    raise ValueError(f"a curve has {len(scores)} scores at {shares}")
    return manifest


class Estimate(StrictModel):
    """A median with its 95 % interval, which is missing where nothing supports one."""

    median: AboveZero
    low: AboveZero | None
    high: AboveZero | None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval has two ends")
        if self.low is not None and self.high is not None and not self.low <= self.median <= self.high:
            raise ValueError(f"the median {self.median} lies outside [{self.low}, {self.high}]")
        return self


class PredictedPoint(StrictModel):
    """One point that was not measured. `series_sha256` names its options whatever else the study varies."""

    framework: Framework
    options: str
    knobs: str
    series_sha256: Digest
    workers: PositiveInt
    nodes: PositiveInt | None = Field(description="assumed: filled as those measured; none where not known")
    fitted_on: list[PositiveInt] = Field(description="worker counts of the records used")
    step_seconds: Estimate
    throughput: Estimate
    linear: Estimate = Field(description="throughput if every worker kept the speed of one: b/N")
    # In files of older code, which averaged several models; not read.
    models: list[dict[str, object]] = Field(default=[])
    held_out: int = 0
    absent: dict[str, str] = Field(default={})
    remarks: list[str]


class InputFile(StrictModel):
    """A file that was read: its place below the study's folder, or else where the study says it lies."""

    file: str
    sha256: Digest


class PredictionFile(StrictModel):
    """The content of the file. `written_utc` is what decides whether a run is younger."""

    format: Literal[1] = 1
    study: str
    written_utc: str
    commit: str | None = Field(description="of the code; none outside a git checkout")
    dirty: bool | None = Field(description="uncommitted changes")
    unit: str = Field(description="of the throughput")
    inputs: list[InputFile] = Field(min_length=1)
    points: list[PredictedPoint] = Field(min_length=1)

    @model_validator(mode="after")
    def _written_at_a_time(self) -> Self:
        if datetime.fromisoformat(self.written_utc).tzinfo is None:
            raise ValueError(f"written_utc {self.written_utc!r} names no time zone")
        return self


def write_prediction(folder: Path, prediction: PredictionFile) -> Path:
    """Write the file, named by its time; raises UserError where one of this second exists, and OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    written = datetime.fromisoformat(prediction.written_utc).astimezone(UTC)
    path = folder / f"{written.strftime(UTC_FORM)}.json"
    if path.exists():
        raise UserError(f"{path} exists, and a prediction is never written again; wait a second")
    write_json_with_checksum(path, prediction.model_dump(mode="json"))
    return path


def _read_prediction(path: Path) -> PredictionFile:
    """Read a file; ValueError where it is damaged, changed or impossible, OSError where it cannot be read."""
    content = parse_json(read_regular(path))
    if isinstance(content, dict) and "sha256" not in content:
        raise ValueError("it has lost its sha256: changed by hand")
    return PredictionFile.model_validate_json(json.dumps(read_json_with_checksum(path)))


def prediction_inputs(folder: Path, headers: Mapping[str, Header]) -> list[InputFile]:
    """Return every file that a prediction of this study uses, with its SHA-256."""
    records = [place / RECORD_NAME for place in list_run_folders(folder) if name_of(place) in headers]
    return [InputFile(file=str(path.relative_to(folder)), sha256=_sha256(path)) for path in records]


def _sha256(path: Path) -> str:
    return hashlib.sha256(read_regular(path)).hexdigest()


def series_sha256(config: RunConfig) -> str:
    """Return what all runs of a series have in common, whatever the study varies besides.

    Without what tells its runs apart, and without options that guard a run or name a place.
    """
    training = config.training
    series = {
        "study": "-", "run": "-", "workers": 1, "repeat": 1, "seed": 0,
        "data": config.data.model_copy(update={"folder": "-", "manifest": None}),
        "training": training.model_copy(update=guard_defaults() | {"initial_weights": None}),
    }  # fmt: skip
    return config.model_copy(update=series).digest()


def read_forecasts(
    folder: Path, headers: Mapping[str, Header], runs: pd.DataFrame
) -> tuple[pd.DataFrame, list[str]]:
    """Return FORECAST_COLUMNS of every prediction file of a study, and the files that cannot be read.

    `unscored` says why a prediction is not held against the runs; empty where it is.
    """
    files: dict[str, PredictionFile] = {}
    problems = []
    for path in sorted((folder / PREDICTIONS_FOLDER).glob("*.json")):
        try:
            files[path.name] = _read_prediction(path)
        except (OSError, ValueError) as error:
            problems.append(f"{PREDICTIONS_FOLDER}/{path.name} cannot be read: {str(error).splitlines()[0]}")
    records = _point_records(folder) if files else {}
    # How the tables name each measured point.
    names = {
        (series_sha256(headers[row["run"]].config), int(row["workers"])): {name: row[name] for name in POINT}
        for row in runs.drop_duplicates(POINT).to_dict("records")
    }
    rows = []
    for name, file in files.items():
        changed = _changed_input(folder, file)
        for point in file.points:
            key = (point.series_sha256, point.workers)
            unscored = _unscored(file, records.get(key, []), changed) or (
                UNMEASURED if key not in names else ""
            )
            shared = {
                **names.get(key, {name: getattr(point, name) for name in POINT}),
                "file": name,
                "written_utc": file.written_utc,
                "unscored": unscored,
                "linear": point.linear.median,
            }
            ends = (point.throughput.median, point.throughput.low, point.throughput.high)
            known = [NAN if end is None else end for end in ends]
            rows.append(shared | dict(zip(bounded("predicted"), known, strict=True)))
    return pd.DataFrame(rows, columns=list(FORECAST_COLUMNS)), problems


def _point_records(folder: Path) -> dict[_Point, list[tuple[datetime, str]]]:
    """Return start and digest of every record of each point, also of attempts that failed.

    A record that cannot be read, or does not tell its start, may be older than any prediction.
    """
    found: dict[_Point, list[tuple[datetime, str]]] = {}
    for place in list_run_folders(folder):
        try:
            config = read_config(config_path(place))
        except UserError:
            continue  # listed among the runs left out
        of_point = found.setdefault((series_sha256(config), config.workers), [])
        for path in filter(Path.exists, (*attempt_records(place), place / RECORD_NAME)):
            try:
                header = read_record(path).header
                digest = _sha256(path)
            except OSError:
                of_point.append((LONG_AGO, ""))
                continue
            starts = [_moment(facts.started_utc) for facts in header.attempts()] if header else []
            of_point.append((min(starts, default=LONG_AGO), digest))
    return found


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return LONG_AGO
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _changed_input(folder: Path, file: PredictionFile) -> str:
    """Return the first input that is not there any more as it was read; empty where all are.

    A record may have been set aside since, as run.attempt1.jsonl. A profile need not be on this machine.
    """
    for each in file.inputs:
        path = folder / each.file
        beside = path.parent.glob(f"{path.stem}*{path.suffix}")
        digests = {_sha256(found) for found in beside if found.is_file()}
        is_elsewhere = not digests and path.name not in (RECORD_NAME, PING_PONG_NAME)
        if each.sha256 not in digests and not is_elsewhere:
            return each.file
    return ""


def _unscored(file: PredictionFile, records: list[tuple[datetime, str]], changed: str) -> str:
    """Return why a prediction is not held against these records of its point; empty where it is."""
    if not records:
        return UNMEASURED
    if {digest for _, digest in records} & {each.sha256 for each in file.inputs}:
        return "its inputs hold a record of this point"
    if changed:
        return f"{changed} is not what was read for it: changed or removed since"
    started = min(start for start, _ in records)
    if started <= datetime.fromisoformat(file.written_utc):
        return f"written {file.written_utc}, its first run began {started.isoformat(timespec='seconds')}"
    return ""

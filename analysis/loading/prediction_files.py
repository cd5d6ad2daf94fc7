"""Prediction files: what records of some worker counts said of larger ones before these were measured.

`logs/STUDY/predictions/<UTC date-time>.json`, one JSON object with a SHA-256 of its values as last key,
written once and never again.

Format history
    1  first format
"""

import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt, model_validator

from analysis.loading.options import guard_defaults
from analysis.loading.runs import name_of
from analysis.study import Study
from unet_scaling.study.config import Framework, RunConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.files import (
    parse_json,
    read_json_with_checksum,
    read_regular,
    write_json_with_checksum,
)
from unet_scaling.study.record import RECORD_NAME
from unet_scaling.study.study_file import list_run_folders
from unet_scaling.study.validation import Digest, StrictModel

PREDICTIONS_FOLDER = "predictions"
UTC_FORM = "%Y-%m-%dT%H%M%SZ"

Positive = Annotated[FiniteFloat, Field(gt=0)]


class Estimate(StrictModel):
    """A median with its 95 % interval, which is missing where nothing supports one."""

    median: Positive
    low: Positive | None
    high: Positive | None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval has two ends")
        if self.low is not None and self.high is not None and not self.low <= self.median <= self.high:
            raise ValueError(f"the median {self.median} lies outside [{self.low}, {self.high}]")
        return self


class ModelEstimate(StrictModel):
    """What one of several models said, in files of older code; `weight` is its share in the average."""

    model: str
    weight: Annotated[FiniteFloat, Field(ge=0, le=1)]
    step_seconds: Estimate


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
    models: list[ModelEstimate] = Field(
        default=[], description="in files of older code, which averaged several"
    )
    held_out: NonNegativeInt = Field(default=0, description="counts at which the skill of several was seen")
    absent: dict[str, str] = Field(default={}, description="why one of several said nothing")
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


def read_prediction(path: Path) -> PredictionFile:
    """Read a file; ValueError where it is damaged, changed or impossible, OSError where it cannot be read."""
    content = parse_json(read_regular(path))
    if isinstance(content, dict) and "sha256" not in content:
        raise ValueError("it has lost its sha256: changed by hand")
    return PredictionFile.model_validate_json(json.dumps(read_json_with_checksum(path)))


def prediction_inputs(folder: Path, study: Study) -> list[InputFile]:
    """Return every file that a prediction of this study uses, with its SHA-256."""
    records = [place / RECORD_NAME for place in list_run_folders(folder) if name_of(place) in study.headers]
    return [InputFile(file=str(path.relative_to(folder)), sha256=file_sha256(path)) for path in records]


def file_sha256(path: Path) -> str:
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


def prediction_paths(study: Path) -> Iterable[Path]:
    """Return the prediction files of a study, oldest first."""
    return sorted((study / PREDICTIONS_FOLDER).glob("*.json"))

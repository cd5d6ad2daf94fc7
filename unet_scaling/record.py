"""The record `run.jsonl`: what a training process says about itself, written and read here only.

One JSON object a line, written by worker 0, flushed and synced line by line. In this order:

    header   once, first       what is about to run, where, on what, from which weights and images
    epoch    one per epoch     its seconds (those of the slowest worker), images, loss, rate
    result   one per evaluation, the last after the last epoch: counts over the whole test set
    end      once, last        how the run ended; a record without it is of a run that failed

Every line ends with the CRC-32 of what stands before it, so that a damaged digit is noticed too.

Format history
    1  first format

Imported on login nodes and by the analysis: needs pydantic, but neither torch nor pandas.
"""

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from unet_scaling.config import Point

RECORD_NAME = "run.jsonl"
CUT_OFF = "the line is cut off"
EMPTY = "the record is empty"
SEAL = b',"crc32":"%08x"}'
SEAL_LENGTH = len(SEAL % 0)

Seconds = Annotated[FiniteFloat, Field(gt=0)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Line(BaseModel):
    """One line of the record: immutable, strict, refusing impossible values and unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class WorkerFacts(Line):
    """One worker and the device it owns."""

    worker: NonNegativeInt
    host: str
    process: PositiveInt
    device: str = Field(description="'cpu' or the name of the GPU")
    device_uuid: str = Field(description="of the GPU; empty for a CPU worker")
    cores: list[NonNegativeInt] = Field(description="the processors that this process may run on")
    threads: PositiveInt = Field(description="of one operation")


class Header(Line):
    """What is about to run: enough to repeat it, and to say whether it may be compared."""

    kind: Literal["header"] = "header"
    format: Literal[1] = 1
    point: Point
    point_sha256: Digest
    attempt: PositiveInt
    started_utc: str = Field(description="a label; never the source of a duration")
    commit: str | None = Field(description="of the code; none outside a git checkout")
    dirty: bool | None = Field(description="uncommitted changes")
    versions: dict[str, str] = Field(description="python, torch, horovod, mpi, nccl, driver, ...")
    transport: dict[str, str] = Field(description="what carries the gradients, as the framework names it")
    job: dict[str, str] = Field(description="allow-listed SLURM_* variables")
    manifest_sha256: Digest
    train_images: PositiveInt
    test_images: PositiveInt
    initial_weights_sha256: Digest
    workers: list[WorkerFacts]


class Epoch(Line):
    """One pass of training. The clock covers the steps only."""

    kind: Literal["epoch"] = "epoch"
    epoch: NonNegativeInt
    seconds: Seconds = Field(description="of the slowest worker")
    worker_seconds: list[Seconds]
    images: PositiveInt = Field(description="processed by all workers")
    steps: PositiveInt = Field(description="optimizer steps")
    loss: FiniteFloat = Field(description="mean over the images")
    learning_rate: Annotated[FiniteFloat, Field(gt=0)]
    warmup: bool = Field(description="not to be used for throughput")


class Result(Line):
    """One evaluation over the whole test set, each image once at any number of workers."""

    kind: Literal["result"] = "result"
    epochs: NonNegativeInt = Field(description="epochs trained before it")
    training_seconds: Annotated[FiniteFloat, Field(ge=0)] = Field(description="sum of those epochs' seconds")
    images: PositiveInt
    true_positive: NonNegativeInt = Field(description="pixels")
    false_positive: NonNegativeInt
    false_negative: NonNegativeInt
    true_negative: NonNegativeInt
    iou: Share | None = Field(description="none where neither mask nor prediction has foreground")
    dice: Share | None
    image_iou: Share | None = Field(description="mean of the per-image IoU, over the images that have one")
    smoothed_jaccard: Share = Field(description="the older study's (TP + 1) / (TP + FP + FN + 1)")
    seconds: Seconds
    weights_sha256: Digest

    @model_validator(mode="after")
    def _iou_follows_from_the_counts(self) -> Self:
        union = self.true_positive + self.false_positive + self.false_negative
        expected = self.true_positive / union if union else None
        if self.iou != expected:
            raise ValueError(f"iou is {self.iou}, but the counts give {expected}")
        return self


class End(Line):
    """How the run ended. `diverged`: a loss or weight was not finite; `stopped`: in order, to be resumed."""

    kind: Literal["end"] = "end"
    status: Literal["complete", "diverged", "stopped"]
    reason: str = ""


AnyLine = Annotated[Header | Epoch | Result | End, Field(discriminator="kind")]
_ANY_LINE: TypeAdapter[Header | Epoch | Result | End] = TypeAdapter(AnyLine)


class RecordWriter:
    """Appends lines to a new record; each is on disk when `write` returns.

    Raises FileExistsError where the record is there already: a record has one writer.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    def write(self, line: Line) -> None:
        data = sealed(line)
        if os.write(self._descriptor, data) != len(data):
            raise OSError("the record could not be written whole; is the disk full?")
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass(frozen=True)
class Record:
    """What could be read of one `run.jsonl`. `problems` name file and line; a sound record has none."""

    path: Path
    header: Header | None
    epochs: tuple[Epoch, ...]
    results: tuple[Result, ...]
    end: End | None
    problems: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether the run finished and nothing in its record contradicts that."""
        return self.end is not None and self.end.status == "complete" and not self.problems

    @property
    def damaged(self) -> bool:
        """Whether something is wrong that an early end of its writer does not explain."""
        return any(not problem.endswith((CUT_OFF, EMPTY)) for problem in self.problems)


def read_record(path: Path) -> Record:
    """Read a record. Every line that is torn, foreign, impossible or out of order becomes a problem.

    Nothing is skipped in silence, filled or coerced. Raises OSError where the file cannot be read.
    """
    lines: list[Line] = []
    problems: list[str] = []
    content = path.read_bytes()
    for number, raw in enumerate(content.splitlines(keepends=True), start=1):
        try:
            lines.append(_parse(raw))
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    if not problems:
        problems = [f"{path}: {problem}" for problem in _contradictions(lines)]
    return Record(
        path=path,
        header=next((line for line in lines if isinstance(line, Header)), None),
        epochs=tuple(line for line in lines if isinstance(line, Epoch)),
        results=tuple(line for line in lines if isinstance(line, Result)),
        end=next((line for line in lines if isinstance(line, End)), None),
        problems=tuple(problems),
    )


def earlier_attempts(folder: Path) -> int:
    """How many attempts of the run in this folder have had their record set aside."""
    return len(list(folder.glob("run.attempt*.jsonl")))


def set_record_aside(folder: Path) -> None:
    """Number the record of the newest attempt, so that another attempt may begin. Raises OSError."""
    (folder / RECORD_NAME).rename(folder / f"run.attempt{earlier_attempts(folder) + 1}.jsonl")


def sealed(line: Line) -> bytes:
    """A line as it stands in the file: its JSON object with the checksum as last key."""
    content = line.model_dump_json().encode()[:-1]
    return content + SEAL % zlib.crc32(content) + b"\n"


def _parse(raw: bytes) -> Line:
    if not raw.endswith(b"\n"):
        raise ValueError(CUT_OFF)
    content, seal = raw[: -SEAL_LENGTH - 1], raw[-SEAL_LENGTH - 1 : -1]
    if seal != SEAL % zlib.crc32(content):
        raise ValueError("the line does not match its checksum: it is damaged, or was changed by hand")
    try:
        return _ANY_LINE.validate_json(content + b"}")
    except ValidationError as error:
        fault: dict[str, Any] = dict(error.errors(include_url=False)[0])
        where = ".".join(str(part) for part in fault["loc"]) or "line"
        found = json.dumps(fault["input"], default=str)[:80]
        raise ValueError(f"{where}: {fault['msg']}, found {found}") from None


def _contradictions(lines: list[Line]) -> list[str]:
    """What is wrong with the lines taken together, each of them being sound by itself."""
    if not lines:
        return [EMPTY]
    found = []
    kinds = [type(line) for line in lines]
    if kinds[0] is not Header or kinds.count(Header) != 1:
        found.append("a record starts with its one header")
    if kinds.count(End) > 1 or (End in kinds and kinds[-1] is not End):
        found.append("there is a line after the end")
    numbers = [line.epoch for line in lines if isinstance(line, Epoch)]
    if numbers != list(range(len(numbers))):
        found.append(f"epochs are not 0, 1, 2, ...: {numbers}")
    if not found:
        found = _contradictions_with_header(lines)
    return found


def _contradictions_with_header(lines: list[Line]) -> list[str]:
    header, end = lines[0], lines[-1]
    assert isinstance(header, Header)
    found = []
    if header.point.digest() != header.point_sha256:
        found.append("the point was changed after the run: its SHA-256 differs")
    if len(header.workers) != header.point.workers:
        found.append(f"{header.point.workers} workers were asked for, {len(header.workers)} are described")
    results = [line for line in lines if isinstance(line, Result)]
    found += [
        f"{result.images} images evaluated, the test set has {header.test_images}"
        for result in results
        if result.images != header.test_images
    ]
    if isinstance(end, End) and end.status == "complete":
        asked = header.point.training.epochs
        trained = sum(isinstance(line, Epoch) for line in lines)
        if trained != asked:
            found.append(f"complete with {trained} epochs, {asked} were asked for")
        if not results or results[-1].epochs != asked:
            found.append("complete without an evaluation after the last epoch")
    return found

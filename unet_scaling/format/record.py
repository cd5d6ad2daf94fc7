"""Write and read the record `run.jsonl`: what a training process says about itself.

One JSON object a line, written by worker 0, flushed and synced line by line. In this order:

    header   once, first       what is about to run, where, on what, from which weights and images
    script   in its place      of a run that a script recorded (unet_scaling/record.py), of which there are
             lines `epoch` and `end` only
    startup  once, or never    how long the workers took from their start to the first epoch, by parts
    probe    once, or never    how long the group's all-reduce takes, by message size
    epoch    one per epoch     its seconds (of the slowest worker) and where they went, images, loss, rate
    result   one per evaluation, the last after the last epoch: counts over the whole test set; of an
             emulated run none
    scores   instead of `result`, where a Python file defines the task
    saliency once, or never    how long the saliency maps took, and which manifest names their files
    end      once, last        how the run ended; a record without it is of a run that failed

Every line ends with the CRC-32 of what stands before it, so that a damaged digit is noticed too (why not
SHA-256: files.py).

Format 5 is read, and no earlier one. Only under conditions there are:
    compute in the header, no loss in an epoch, and no line `result`: of an emulated run
    dilation and link_rate in the header, and quota in the cpu of an epoch: of a virtual cluster that is
    dilated, or whose links are limited
    the line `script`, no learning rate in an epoch, and scores in `end`: of a script's run
    task in the configuration, and the line `scores`: of a task that a Python file defines
    saliency in the configuration, the line `saliency`, and explained in `end`: of a study with [saliency]
Early records lack gradient_bytes and scales in the header and `environment` of its workers, longest_step and
other_workers_seconds in an epoch, and ended_utc in `end`.

The models of the lines are in record_lines.py.
"""

import errno
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from unet_scaling.base.files import PRIVATE, read_regular, retry_transient
from unet_scaling.base.validation import StrictModel
from unet_scaling.format.record_lines import (
    SALIENCY_FOLDER,
    End,
    Epoch,
    Evaluated,
    Evaluation,
    Header,
    Probe,
    Provenance,
    RecordLine,
    Saliency,
    ScriptHeader,
    Startup,
    WorkerFacts,
)

RECORD_NAME = "run.jsonl"
DISTURBED_RECORDS = "run.disturbed*.jsonl"
CUT_OFF = "the line is cut off"
EMPTY_RECORD = "the record is empty"
CHECKSUM_FORMAT = b',"crc32":"%08x"}'
CHECKSUM_BYTES = len(CHECKSUM_FORMAT % 0)

TaggedLine = Annotated[RecordLine, Field(discriminator="kind")]
AnyLine = TypeVar("AnyLine", Header, ScriptHeader, Startup, Probe, Saliency, End)
_ANY_LINE: TypeAdapter[RecordLine] = TypeAdapter(TaggedLine)
_ALL_LINES: TypeAdapter[list[RecordLine]] = TypeAdapter(list[TaggedLine])


class RecordWriter:
    """Appends lines to a new record; each is on disk when `write` returns.

    Raises FileExistsError where the record is there already: a record has one writer.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, PRIVATE)

    def write(self, line: StrictModel) -> None:
        """Append a line; a disk that is full for a moment is waited for. OSError leaves no part of it."""
        data = line_with_checksum(line)
        retry_transient(lambda: self._append(data))

    def _append(self, data: bytes) -> None:
        size = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass(frozen=True)
class Record:
    """The content of one `run.jsonl`. `problems` name file and line; a valid record has none.

    It has a `header`, or where the run is one of a script's, a `script`.
    """

    path: Path
    header: Header | None
    epochs: tuple[Epoch, ...]
    results: tuple[Evaluation, ...]
    end: End | None
    problems: tuple[str, ...]
    probe: Probe | None = None
    startup: Startup | None = None
    script: ScriptHeader | None = None
    saliency: Saliency | None = None

    @property
    def provenance(self) -> Provenance | None:
        """Return where the run ran, on what code; None where its first line cannot be read."""
        return self.header or self.script

    @property
    def complete(self) -> bool:
        """Return whether the run finished and nothing in its record contradicts that."""
        return self.end is not None and self.end.status == "complete" and not self.problems

    @property
    def damaged(self) -> bool:
        """Return whether something is wrong that an early end of its writer does not explain."""
        return any(not problem.endswith((CUT_OFF, EMPTY_RECORD)) for problem in self.problems)


def read_record(path: Path) -> Record:
    """Read a record; every line that is torn, foreign, impossible or out of order becomes a problem.

    Nothing is skipped, filled or coerced. Raises OSError where the file cannot be read.
    """
    lines, problems = _read_lines(path)
    if not lines and not problems:
        problems = [f"{path}: {EMPTY_RECORD}"]
    elif not problems:
        problems = [f"{path}: {problem}" for problem in record_contradictions(lines)]
    epochs = tuple(line for line in lines if type(line) is Epoch)
    others = [line for line in lines if type(line) is not Epoch]
    return Record(
        path=path,
        header=_first(others, Header),
        epochs=epochs,
        results=tuple(line for line in others if isinstance(line, Evaluated)),
        end=_first(others, End),
        problems=tuple(problems),
        probe=_first(others, Probe),
        startup=_first(others, Startup),
        script=_first(others, ScriptHeader),
        saliency=_first(others, Saliency),
    )


def read_any_record(path: Path) -> Record:
    """Read a record; where it cannot be read, that is its problem."""
    try:
        return read_record(path)
    except OSError as error:
        return Record(path, None, (), (), None, problems=(f"{path}: {error.strerror}",))


def _first(lines: Sequence[RecordLine], kind: type[AnyLine]) -> AnyLine | None:
    return next((line for line in lines if isinstance(line, kind)), None)


def _read_lines(path: Path) -> tuple[Sequence[RecordLine], list[str]]:
    """Return the valid lines of a file, and a problem for each of the others. Raises OSError."""
    raw = read_regular(path)
    raw_lines = raw.splitlines(keepends=True)
    try:
        # All lines in one call take a third of the time that they take one by one.
        lines = _ALL_LINES.validate_json(b"[" + b",".join(map(_without_checksum, raw_lines)) + b"]")
        if len(lines) == len(raw_lines):
            return lines, []
    except ValueError:
        pass  # read one by one, they tell which is wrong
    valid: list[RecordLine] = []
    problems: list[str] = []
    for number, line in enumerate(raw_lines, start=1):
        try:
            valid.append(_parse(line))
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    return valid, problems


def attempt_records(folder: Path) -> list[Path]:
    """Return the records of earlier attempts of the run in this folder, in order; some may be removed."""
    return sorted(folder.glob("run.attempt*.jsonl"), key=_attempt_number)


def _attempt_number(record: Path) -> int:
    number = record.name.split(".")[1].removeprefix("attempt")
    return int(number) if number.isdecimal() else 0


def attempt_to_set_aside(folder: Path) -> int:
    """Return the number of the attempt whose record is the next to be set aside."""
    return max(map(_attempt_number, attempt_records(folder)), default=0) + 1


def disturbed_records(folder: Path) -> list[Path]:
    """Return the records of disturbed launches of the run in this folder, each made again since."""
    return sorted(folder.glob(DISTURBED_RECORDS))


def set_record_aside(folder: Path) -> None:
    """Number the record of the newest attempt, so that another attempt may begin. Raises OSError."""
    (folder / RECORD_NAME).rename(folder / f"run.attempt{attempt_to_set_aside(folder)}.jsonl")


def set_launch_aside(folder: Path, name: str = "") -> Path:
    """Keep record and saliency maps of a complete launch under a name, and let its run start from nothing.

    The name is by default the number of an attempt. Returns the record. Raises OSError.
    """
    name = name or f"attempt{attempt_to_set_aside(folder)}"
    # First: a record that is still there is set aside once more, and new maps are never taken for old ones.
    if (folder / SALIENCY_FOLDER).exists():
        (folder / SALIENCY_FOLDER).rename(folder / f"{SALIENCY_FOLDER}.{name}")
    return (folder / RECORD_NAME).rename(folder / f"run.{name}.jsonl")


def take_launch_back(record: Path) -> None:
    """Undo `set_launch_aside`, by the record that it returned."""
    maps = record.with_name(f"{SALIENCY_FOLDER}.{record.name.split('.')[1]}")
    record.rename(record.with_name(RECORD_NAME))
    if maps.exists():
        maps.rename(record.with_name(SALIENCY_FOLDER))


def line_with_checksum(line: StrictModel) -> bytes:
    """Return a line as it stands in the file: its JSON object with the checksum as last key."""
    content = line.model_dump_json().encode()[:-1]
    return content + CHECKSUM_FORMAT % zlib.crc32(content) + b"\n"


def _without_checksum(raw: bytes) -> bytes:
    """Return the JSON object of a line as it stands in the file. Raises ValueError where it is damaged."""
    if not raw.endswith(b"\n"):
        raise ValueError(CUT_OFF)
    content = raw[: -CHECKSUM_BYTES - 1]
    if raw[len(content) : -1] != CHECKSUM_FORMAT % zlib.crc32(content):
        raise ValueError("the line does not match its checksum: it is damaged, or was changed by hand")
    return content + b"}"


def _parse(raw: bytes) -> RecordLine:
    content = _without_checksum(raw)
    try:
        return _ANY_LINE.validate_json(content)
    except ValidationError as error:
        fault: dict[str, Any] = dict(error.errors(include_url=False)[0])
        where = ".".join(str(part) for part in fault["loc"]) or "line"
        value = json.dumps(fault["input"], default=str)[:80]
        raise ValueError(f"{where}: {fault['msg']}, found {value}") from None


HEADERS = (Header, ScriptHeader)
# Lines that may stand between the header and what was trained.
OPENINGS: tuple[list[type], ...] = ([], [Startup], [Probe], [Startup, Probe])


def record_contradictions(lines: Sequence[RecordLine]) -> Iterator[str]:
    """Yield what is wrong with the order of the lines, or else with what they say of each other."""
    order = list(_faults_of_order(lines))
    yield from order
    header = lines[0]
    if not order and isinstance(header, Header):
        yield from _faults_of_training(header, lines)


def _faults_of_order(lines: Sequence[RecordLine]) -> Iterator[str]:
    kinds = [type(line) for line in lines]
    if kinds[0] not in HEADERS or sum(kind in HEADERS for kind in kinds) != 1:
        yield "a record starts with its one header"
    if End in kinds[:-1]:
        yield "there is a line after the end"
    optional = [kind for kind in kinds if kind in (Startup, Probe)]
    if optional not in OPENINGS or kinds[1 : 1 + len(optional)] != optional:
        yield "a startup and a probe come once, in this order, right after the header"
    if Saliency in kinds and kinds[kinds.index(Saliency) + 1 :] not in ([], [End]):
        yield "a line saliency comes once, after all epochs and evaluations"
    numbers = [line.epoch for line in lines if type(line) is Epoch]
    if numbers != list(range(len(numbers))):
        yield f"epochs are not 0, 1, 2, ...: {numbers}"


def _faults_of_training(header: Header, lines: Sequence[RecordLine]) -> Iterator[str]:
    """Yield what a record lacks that lost a worker, a loss, test samples, or lines before its end."""
    if len(header.workers) != header.config.workers:
        yield f"{header.config.workers} workers were asked for, {len(header.workers)} are described"
    epochs = [line for line in lines if type(line) is Epoch]
    results = [line for line in lines if isinstance(line, Evaluated)]
    for epoch in epochs:
        if epoch.loss is None and not header.is_emulated:
            yield f"epoch {epoch.epoch} has no loss"
    for result in results:
        if result.images != header.test_images:
            yield f"{result.images} {header.config.sample}s evaluated, the test set has {header.test_images}"
    end = lines[-1]
    if isinstance(end, End) and end.status == "complete":
        if header.config.is_explained and not any(isinstance(line, Saliency) for line in lines):
            yield f"complete without maps, though saliency.method is {header.config.saliency.method!r}"
        asked = header.config.training.epochs
        if len(epochs) != asked:
            yield f"complete with {len(epochs)} epochs, {asked} were asked for"
        if not header.is_emulated and (not results or results[-1].epochs != asked):
            yield "complete without an evaluation after the last epoch"


def owned_devices(worker: WorkerFacts) -> list[tuple[str, str]]:
    """Return what a worker has for itself: its GPU, or on a CPU its cores."""
    if worker.device_uuid:
        return [("device", worker.device_uuid)]
    return [(f"core {core} of", f"host {worker.host}") for core in worker.cores]


def shared_devices(workers: Sequence[WorkerFacts]) -> list[str]:
    """Return a sentence for each GPU or core that two workers both have."""
    first_owner: dict[tuple[str, str], int] = {}
    sentences = []
    for rank, worker in enumerate(workers):
        for device in owned_devices(worker):
            first = first_owner.setdefault(device, rank)
            if first != rank:
                sentences.append(f"workers {first} and {rank} share {' '.join(device)}")
    return sentences


def different_versions(workers: list[WorkerFacts], versions_by_rank: list[dict[str, str]]) -> list[str]:
    """Return a sentence for each version that differs from worker 0's, naming the first worker that does."""
    sentences = []
    for name in sorted(set().union(*versions_by_rank)):
        by_rank = [versions_of_worker.get(name, "none") for versions_of_worker in versions_by_rank]
        differing = [rank for rank, version in enumerate(by_rank) if version != by_rank[0]]
        if differing:
            compared = (0, differing[0])
            named = [f"{by_rank[rank]} on worker {rank} ({workers[rank].host})" for rank in compared]
            sentences.append(f"{name} is {' and '.join(named)}")
    return sentences

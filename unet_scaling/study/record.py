"""The record `run.jsonl`: what a training process says about itself, written and read here only.

One JSON object a line, written by worker 0, flushed and synced line by line. In this order:

    header   once, first       what is about to run, where, on what, from which weights and images
    startup  once, or never    how long the workers took from their start to the first epoch, by parts
    probe    once, or never    how long the group's all-reduce takes, by message size
    epoch    one per epoch     its seconds (of the slowest worker) and where they went, images, loss, rate
    result   one per evaluation, the last after the last epoch: counts over the whole test set
    end      once, last        how the run ended; a record without it is of a run that failed

Every line ends with the CRC-32 of what stands before it, so that a damaged digit is noticed too.

Format history
    1  first format
    2  the line `probe`; in `epoch` the fields budget, no_budget, cpu and gpu, in `header` resumed and
       in `end` position: none of them in format 1
    3  the line `startup`, and peak_memory_bytes in the cpu of an epoch: neither in formats 1 and 2
    4  `earlier` in the header, `environment` of its workers, other_seconds in the cpu of an epoch, and
       longest_step in its budget
    5  renamed: `config` and `config_sha256` in the header were `point` and `point_sha256`, and
       `warm_up_step_seconds` in `startup` was `rehearsal_seconds`; the digest covers what is no default;
       without the voluntary switches, switches of the process and minor faults in the cpu of an epoch

Older formats are read too (older_records.py).

The models of the lines are in record_lines.py.

Imported on login nodes and by the analysis: needs pydantic, but neither torch nor pandas.
"""

import errno
import json
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from unet_scaling.study.files import PRIVATE, read_regular, retry_transient
from unet_scaling.study.measurements import Line, Probe, Startup
from unet_scaling.study.older_records import in_newest_words
from unet_scaling.study.record_lines import End, Epoch, Header, Result

RECORD_NAME = "run.jsonl"
CUT_OFF = "the line is cut off"
EMPTY = "the record is empty"
SEAL = b',"crc32":"%08x"}'
SEAL_LENGTH = len(SEAL % 0)

Lines = Header | Startup | Probe | Epoch | Result | End
AnyLine = Annotated[Lines, Field(discriminator="kind")]
_ANY_LINE: TypeAdapter[Lines] = TypeAdapter(AnyLine)
_ALL_LINES: TypeAdapter[list[Lines]] = TypeAdapter(list[AnyLine])


class RecordWriter:
    """Appends lines to a new record; each is on disk when `write` returns.

    Raises FileExistsError where the record is there already: a record has one writer.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, PRIVATE)

    def write(self, line: Line) -> None:
        """Append a line; a disk that is full for a moment is waited for. OSError leaves no part of it."""
        data = sealed(line)
        retry_transient(lambda: self._append(data))

    def _append(self, data: bytes) -> None:
        size = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, "the record could not be written whole; is the disk full?")
            os.fsync(self._descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise

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
    probe: Probe | None = None
    startup: Startup | None = None

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
    lines, problems = _read_lines(path)
    if not problems:
        problems = [f"{path}: {problem}" for problem in _contradictions(lines)]
    return Record(
        path=path,
        header=next((line for line in lines if isinstance(line, Header)), None),
        epochs=tuple(line for line in lines if isinstance(line, Epoch)),
        results=tuple(line for line in lines if isinstance(line, Result)),
        end=next((line for line in lines if isinstance(line, End)), None),
        problems=tuple(problems),
        probe=next((line for line in lines if isinstance(line, Probe)), None),
        startup=next((line for line in lines if isinstance(line, Startup)), None),
    )


def _read_lines(path: Path) -> tuple[Sequence[Line], list[str]]:
    """The sound lines of a file, and what is wrong with the others. Raises OSError."""
    content = read_regular(path).splitlines(keepends=True)
    try:
        # All lines in one go take a third of the time that they take one by one.
        found = _ALL_LINES.validate_json(b"[" + b",".join(map(_content, content)) + b"]")
        if len(found) == len(content):
            return found, []
    except ValueError:
        pass  # one by one they tell which
    lines: list[Line] = []
    problems: list[str] = []
    for number, raw in enumerate(content, start=1):
        try:
            lines.append(_parse(raw))
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    return lines, problems


def attempt_records(folder: Path) -> list[Path]:
    """The records of earlier attempts of the run in this folder, in their order."""
    count = len(list(folder.glob("run.attempt*.jsonl")))
    return [folder / f"run.attempt{number}.jsonl" for number in range(1, count + 1)]


def earlier_attempts(folder: Path) -> int:
    """How many attempts of the run in this folder have had their record set aside."""
    return len(attempt_records(folder))


def set_record_aside(folder: Path) -> None:
    """Number the record of the newest attempt, so that another attempt may begin. Raises OSError."""
    (folder / RECORD_NAME).rename(folder / f"run.attempt{earlier_attempts(folder) + 1}.jsonl")


def sealed(line: Line) -> bytes:
    """A line as it stands in the file: its JSON object with the checksum as last key."""
    content = line.model_dump_json().encode()[:-1]
    return content + SEAL % zlib.crc32(content) + b"\n"


def _unsealed(raw: bytes) -> bytes:
    """The JSON object of a line as it stands in the file. Raises ValueError where it is not whole."""
    if not raw.endswith(b"\n"):
        raise ValueError(CUT_OFF)
    content, seal = raw[: -SEAL_LENGTH - 1], raw[-SEAL_LENGTH - 1 : -1]
    if seal != SEAL % zlib.crc32(content):
        raise ValueError("the line does not match its checksum: it is damaged, or was changed by hand")
    return content + b"}"


def _content(raw: bytes) -> bytes:
    """Return the JSON object of a line in the words of the newest format. Raises ValueError."""
    content = _unsealed(raw)
    older = any(key in content for key in (b'"point_sha256"', b'"rehearsal_seconds"', b'"minor_faults"'))
    return in_newest_words(content) if older else content


def _parse(raw: bytes) -> Line:
    content = _content(raw)
    try:
        return _ANY_LINE.validate_json(content)
    except ValidationError as error:
        fault: dict[str, Any] = dict(error.errors(include_url=False)[0])
        where = ".".join(str(part) for part in fault["loc"]) or "line"
        found = json.dumps(fault["input"], default=str)[:80]
        raise ValueError(f"{where}: {fault['msg']}, found {found}") from None


def _contradictions(lines: Sequence[Line]) -> list[str]:
    """What is wrong with the lines taken together, each of them being sound by itself."""
    if not lines:
        return [EMPTY]
    found = []
    kinds = [type(line) for line in lines]
    if kinds[0] is not Header or kinds.count(Header) != 1:
        found.append("a record starts with its one header")
    if kinds.count(End) > 1 or (End in kinds and kinds[-1] is not End):
        found.append("there is a line after the end")
    opening = [kind for kind in (Startup, Probe) if kind in kinds]
    if kinds[1 : 1 + len(opening)] != opening or any(kinds.count(kind) > 1 for kind in opening):
        found.append("a startup and a probe come once, in this order, right after the header")
    numbers = [line.epoch for line in lines if isinstance(line, Epoch)]
    if numbers != list(range(len(numbers))):
        found.append(f"epochs are not 0, 1, 2, ...: {numbers}")
    if not found:
        found = _contradictions_with_header(lines)
    return found


def _contradictions_with_header(lines: Sequence[Line]) -> list[str]:
    header, end = lines[0], lines[-1]
    assert isinstance(header, Header)
    found = []
    if header.config.digest() != header.config_sha256:
        found.append("the configuration was changed after the run: its SHA-256 differs")
    if len(header.workers) != header.config.workers:
        found.append(f"{header.config.workers} workers were asked for, {len(header.workers)} are described")
    results = [line for line in lines if isinstance(line, Result)]
    found += [
        f"{result.images} images evaluated, the test set has {header.test_images}"
        for result in results
        if result.images != header.test_images
    ]
    if isinstance(end, End) and end.status == "complete":
        asked = header.config.training.epochs
        trained = sum(isinstance(line, Epoch) for line in lines)
        if trained != asked:
            found.append(f"complete with {trained} epochs, {asked} were asked for")
        if not results or results[-1].epochs != asked:
            found.append("complete without an evaluation after the last epoch")
    return found

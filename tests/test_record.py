"""The record: one writer, strict lines, and no reading of what is not whole."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.records import make_epochs, make_header, make_point, make_result, write_all
from unet_scaling.format.record import (
    CHECKSUM_FORMAT,
    Record,
    RecordWriter,
    read_record,
)
from unet_scaling.format.record_lines import (
    PHASE_COLUMNS,
    STARTUP_COLUMNS,
    Budget,
    CpuFacts,
    End,
    Epoch,
    Probe,
    RecordLine,
    Result,
    Startup,
)

POINT = make_point(options={"training": {"epochs": 2}})
HEADER = make_header(POINT)
SECONDS = {"seconds": 1.5, "worker_seconds": [1.5]}
EPOCHS = [epoch.model_copy(update=SECONDS) for epoch in make_epochs(POINT, 100.0, 48)]
RESULT = make_result(HEADER, EPOCHS, 0.5)
END = End(status="complete")
WHOLE: list[RecordLine] = [HEADER, *EPOCHS, RESULT, END]


def budget(workers: int = 1) -> dict[str, object]:
    """Phases that sum to an epoch of 1.5 s."""
    parts = (0.1, 0.1, 0.4, 0.5, 0.2, 0.1, 0.1)
    columns = {name: [part] * workers for name, part in zip(PHASE_COLUMNS, parts, strict=True)}
    return columns | {"wire_seconds": 0.15}


def cpu() -> CpuFacts:
    return CpuFacts(
        process_seconds=1.5, thread_seconds={"training": 1.0, "communication": 0.5},
        training_runqueue_seconds=None, cores=1, frequency_mhz=None, peak_memory_bytes=2**28,
    )  # fmt: skip


def probe(**changed: object) -> Probe:
    fields = {
        "bytes": [4, 16],
        "repeats": [3, 3],
        "median_seconds": [2.0, 3.0],
        "minimum_seconds": [1.0, 2.0],
    }
    return Probe.model_validate(fields | changed)


def startup(**changed: object) -> Startup:
    """Of one worker; every part took a second."""
    return Startup.model_validate({column: [1.0] for column in STARTUP_COLUMNS} | changed)


def write(path: Path, lines: list[RecordLine]) -> Record:
    write_all(path, lines)
    return read_record(path)


def test_has_one_writer(tmp_path: Path) -> None:
    write(tmp_path / "run.jsonl", WHOLE)
    with pytest.raises(FileExistsError):
        RecordWriter(tmp_path / "run.jsonl")


@pytest.mark.parametrize(
    "lines",
    [
        [HEADER, probe(), probe()], [HEADER, probe(), startup()],
        [HEADER, startup(), EPOCHS[0], startup()],
    ],
)  # fmt: skip
def test_a_startup_and_a_probe_come_once_and_before_the_epochs(
    lines: list[RecordLine], tmp_path: Path
) -> None:
    """What else contradicts itself is in test_malformed.py."""
    record = write(tmp_path / "run.jsonl", lines)
    assert any("a startup and a probe come once" in problem for problem in record.problems), record.problems


def test_reads_what_was_written(tmp_path: Path) -> None:
    measured = EPOCHS[0].model_copy(update={"budget": Budget.model_validate(budget()), "cpu": [cpu()]})
    lines: list[RecordLine] = [HEADER, startup(), probe(), measured, EPOCHS[1], RESULT, END]
    record = write(tmp_path / "run.jsonl", lines)
    assert record.complete, record.problems
    assert [record.header, record.startup, record.probe, *record.epochs, *record.results, record.end] == lines


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sync_seconds": [-0.1]}, "greater than or equal to 0"),
        ({"sync_seconds": [float("nan")]}, "sync_seconds.0: Input should be a valid number, found null"),
        ({"forward_seconds": [0.4, 0.4]}, "different numbers of workers"),
        ({"host_paced_seconds": [0.1, 0.1]}, "different numbers of workers"),
        ({"wire_seconds": 0.3}, "wire is 0.3 s, but a worker's sync only 0.2 s"),
        ({"forward_seconds": [0.41]}, "the phases of worker 0 sum to 1.51 s, its epoch took 1.5 s"),
        (budget(workers=2), "budget is of 2 workers, worker_seconds of 1"),
    ],
)
def test_phases_that_cannot_be_are_reported(changed: dict[str, object], said: str, tmp_path: Path) -> None:
    measured = EPOCHS[0].model_copy(update={"budget": budget() | changed})
    with pytest.warns(UserWarning, match="serializer"):
        record = write(tmp_path / "run.jsonl", [HEADER, measured])
    assert any(said in problem for problem in record.problems), record.problems


@pytest.mark.parametrize(
    "make",
    [
        lambda: probe(bytes=[16, 4]),
        lambda: probe(bytes=[4]),
        lambda: probe(minimum_seconds=[1.0, 4.0]),
        lambda: probe(repeats=[3, 0]),
        lambda: startup(join_seconds=[1.0, 1.0]),
        lambda: Result.model_validate(RESULT.model_dump() | {"iou": 0.6}),
        lambda: Epoch.model_validate(EPOCHS[0].model_dump() | {"cpu": [cpu(), cpu()]}),
    ],
)
def test_measures_that_cannot_be_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValidationError):
        make()


@pytest.mark.parametrize(
    "line",
    [
        HEADER.model_dump(mode="json") | {"format": HEADER.format + 1},
        HEADER.model_dump(mode="json") | {"format": 4},
        {"kind": "epoch", "cpu": [None], "minor_faults": 1},
        ["rehearsal_seconds", {"point_sha256": 1}],
    ],
    ids=["of the future", "of the past", "no counters", "no object"],
)
def test_a_line_of_no_known_format_is_a_problem(line: object, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    text = json.dumps(line, separators=(",", ":")).encode()[:-1]
    path.write_bytes(text + CHECKSUM_FORMAT % zlib.crc32(text) + b"\n")
    problems = read_record(path).problems
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:1: ")

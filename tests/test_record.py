"""The record: one writer, strict lines, and no reading of what is not whole."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.records import make_epochs, make_header, make_point, make_result, write_all
from unet_scaling.study.record import (
    CHECKSUM_FORMAT,
    DROPPED_CPU_COUNTERS,
    Record,
    RecordWriter,
    in_newest_words,
    older_digest,
    read_record,
)
from unet_scaling.study.record_lines import (
    PHASE_COLUMNS,
    STARTUP_COLUMNS,
    Budget,
    CpuFacts,
    End,
    Epoch,
    Header,
    Probe,
    RecordLine,
    Result,
    Resumed,
    Startup,
)

DIGEST = "0" * 64
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


def test_a_record_of_the_first_format_is_still_read(tmp_path: Path) -> None:
    """As the first format wrote it: without the keys that it did not know."""
    path = tmp_path / "run.jsonl"
    lines = []
    for line in [HEADER.model_copy(update={"format": 1}), *WHOLE[1:]]:
        content = json.loads(line.model_dump_json(exclude_none=isinstance(line, Epoch)))
        if isinstance(line, Header):
            content["point"] = content.pop("config")
            content["point"]["training"].pop("budget", None)
            content["point_sha256"] = older_digest(content["point"])
            del content["config_sha256"]
        text = json.dumps(content).encode()[:-1]
        lines.append(text + CHECKSUM_FORMAT % zlib.crc32(text) + b"\n")
    path.write_bytes(b"".join(lines))
    record = read_record(path)
    assert record.complete, record.problems
    assert record.epochs[0].budget is None


def test_counters_that_older_records_have_are_passed_over() -> None:
    line = {"kind": "epoch", "cpu": [cpu().model_dump() | dict.fromkeys(DROPPED_CPU_COUNTERS, 1)]}
    newest = json.loads(in_newest_words(json.dumps(line).encode()))
    assert CpuFacts.model_validate(newest["cpu"][0]) == cpu()


def test_an_early_record_of_format_5_is_still_read(tmp_path: Path) -> None:
    """With the facts that nothing reads, which the format had in its first weeks."""
    lines = [HEADER.model_copy(update={"resumed": Resumed(epoch=0, step=1)}), *WHOLE[1:]]
    dropped = {"header": ("resumed", "repeated_epochs"), "result": (None, "smoothed_jaccard")}
    path = tmp_path / "run.jsonl"
    with path.open("wb") as file:
        for line in lines:
            content = json.loads(line.model_dump_json())
            if line.kind in dropped:
                table, key = dropped[line.kind]
                (content[table] if table else content)[key] = 0
            text = json.dumps(content, separators=(",", ":")).encode()[:-1]
            file.write(text + CHECKSUM_FORMAT % zlib.crc32(text) + b"\n")
    record = read_record(path)
    assert record.complete, record.problems
    assert [record.header, *record.epochs, *record.results, record.end] == lines


@pytest.mark.parametrize(
    "line",
    [
        HEADER.model_dump(mode="json") | {"format": HEADER.format + 1},
        {"kind": "header", "format": 4, "point": {}, "point_sha256": DIGEST},
        {"kind": "header", "format": 4, "point": {"data": None}, "rehearsal_seconds": 1},
        {"kind": "epoch", "cpu": [None], "minor_faults": 1},
        ["rehearsal_seconds", {"point_sha256": 1}],
    ],
    ids=["of the future", "no tables", "no digest", "no counters", "no object"],
)
def test_a_line_of_no_known_format_is_a_problem(line: object, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    text = json.dumps(line, separators=(",", ":")).encode()[:-1]
    path.write_bytes(text + CHECKSUM_FORMAT % zlib.crc32(text) + b"\n")
    problems = read_record(path).problems
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:1: ")

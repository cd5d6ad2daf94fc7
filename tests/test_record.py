"""The record: one writer, strict lines, and no reading of what is not whole."""

import json
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.studies import make_point
from unet_scaling.study.measurements import (
    PHASE_COLUMNS,
    STARTUP_COLUMNS,
    Budget,
    CpuFacts,
    Probe,
    Startup,
)
from unet_scaling.study.older_records import DROPPED_CPU_COUNTERS, in_newest_words, older_digest
from unet_scaling.study.record import CHECKSUM_FORMAT, Record, RecordWriter, line_with_checksum, read_record
from unet_scaling.study.record_lines import End, Epoch, Header, RecordLine, Result, Resumed, WorkerFacts

DIGEST = "0" * 64


def header(epochs: int = 2) -> Header:
    point = make_point(Path("/images"), epochs=epochs)
    facts = WorkerFacts(worker=0, host="a", process=1, device="cpu", device_uuid="", cores=[0], threads=1)
    return Header(
        config=point, config_sha256=point.digest(), attempt=1, started_utc="2026-01-01T00:00:00+00:00",
        commit=None, dirty=None, versions={"torch": "2"}, transport={"backend": "gloo"}, job={},
        manifest_sha256=DIGEST, train_images=8, test_images=2, initial_weights_sha256=DIGEST, workers=[facts],
    )  # fmt: skip


def epoch(number: int) -> Epoch:
    return Epoch(
        epoch=number, seconds=1.5, worker_seconds=[1.5], images=8, steps=4, loss=0.5,
        learning_rate=0.001, warmup=number == 0,
    )  # fmt: skip


def result(epochs: int = 2, **changed: object) -> Result:
    fields: dict[str, object] = {
        "epochs": epochs, "training_seconds": 3.0, "images": 2, "true_positive": 1, "false_positive": 1,
        "false_negative": 0, "true_negative": 6, "iou": 0.5, "dice": 2 / 3, "image_iou": 0.5,
        "seconds": 0.1, "weights_sha256": DIGEST,
    }  # fmt: skip
    return Result.model_validate(fields | changed)


def whole() -> list[RecordLine]:
    return [header(), epoch(0), epoch(1), result(), End(status="complete")]


def write(path: Path, lines: list[RecordLine]) -> Record:
    writer = RecordWriter(path)
    for line in lines:
        writer.write(line)
    writer.close()
    return read_record(path)


def test_reads_what_was_written(tmp_path: Path) -> None:
    record = write(tmp_path / "run.jsonl", whole())
    assert record.complete
    assert record.problems == ()
    assert [record.header, *record.epochs, *record.results, record.end] == whole()


def test_has_one_writer(tmp_path: Path) -> None:
    write(tmp_path / "run.jsonl", whole())
    with pytest.raises(FileExistsError):
        RecordWriter(tmp_path / "run.jsonl")


def test_cut_at_any_byte_it_is_never_complete_and_never_wrong(tmp_path: Path) -> None:
    """Whole lines before the cut stay readable; a torn one is reported with file and line."""
    path = tmp_path / "run.jsonl"
    write(path, whole())
    content = path.read_bytes()
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        record = read_record(path)
        assert not record.complete
        assert record.epochs == tuple(whole()[1:3])[: len(record.epochs)]
        if cut and not content[:cut].endswith(b"\n"):
            number = content[:cut].count(b"\n") + 1
            assert record.problems == (f"{path}:{number}: the line is cut off",)


@settings(max_examples=300)
@given(st.data())
def test_one_flipped_bit_is_always_noticed(data: st.DataObject) -> None:
    text = bytearray(b"".join(line_with_checksum(line) for line in whole()))
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= 1 << data.draw(st.integers(0, 7))
    path = Path(os.environ["UNET_SCALING_CACHE"]) / "flipped.jsonl"
    path.write_bytes(text)
    record = read_record(path)
    assert record.problems
    assert not record.complete


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "empty"),
        ([epoch(0)], "starts with its one header"),
        ([header(), header()], "one header"),
        ([header(), epoch(1)], r"epochs are not 0, 1, 2"),
        ([header(), epoch(0), epoch(0)], r"epochs are not 0, 1, 2"),
        ([header(), End(status="stopped"), epoch(0)], "after the end"),
        ([header(), epoch(0), result(1), End(status="complete")], "1 epochs, 2 were asked for"),
        ([header(), epoch(0), epoch(1), End(status="complete")], "without an evaluation"),
        ([header(), epoch(0), epoch(1), result(images=3), End(status="complete")], "3 images evaluated"),
    ],
)
def test_lines_that_contradict_each_other_are_named(
    lines: list[RecordLine], said: str, tmp_path: Path
) -> None:
    record = write(tmp_path / "run.jsonl", lines)
    assert not record.complete
    assert any(said.replace(r"\.", ".") in problem for problem in record.problems), record.problems


def test_a_point_changed_after_the_run_is_noticed(tmp_path: Path) -> None:
    other = header().model_copy(update={"config": make_point(Path("/others"), epochs=2)})
    record = write(tmp_path / "run.jsonl", [other, *whole()[1:]])
    assert any("SHA-256 differs" in problem for problem in record.problems)


def test_a_line_changed_by_hand_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, whole())
    path.write_text(path.read_text().replace('"seconds":1.5', '"seconds":1.4', 1))
    assert read_record(path).problems == (
        f"{path}:2: the line does not match its checksum: it is damaged, or was changed by hand",
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seconds", 0), ("seconds", -1.0), ("seconds", float("nan")), ("loss", float("inf")), ("images", 0),
        ("epoch", "1"), ("learning_rate", 0.0), ("surprise", 1),
    ],
)  # fmt: skip
def test_impossible_values_are_refused_on_construction(key: str, value: object) -> None:
    with pytest.raises(ValidationError):
        Epoch.model_validate(epoch(0).model_dump() | {key: value})


def test_an_iou_that_its_counts_do_not_give_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"the counts give 0\.5"):
        result(iou=0.6)


def test_a_foreign_line_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    foreign = Epoch.model_construct(**(epoch(1).model_dump() | {"loss": "low"}))
    record = write(path, [header(), epoch(0), foreign, result(), End(status="complete")])
    assert not record.complete
    assert record.problems[0].startswith(f"{path}:3: epoch.loss: ")


def test_a_line_that_is_no_json_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, whole())
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"two processes wrote here\n", *lines[2:]]))
    assert read_record(path).problems[0].startswith(f"{path}:3: ")


def test_a_write_error_is_loud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unet_scaling.study.retry.time.sleep", lambda _: None)
    writer = RecordWriter(tmp_path / "run.jsonl")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._descriptor)
    with pytest.raises(OSError, match="No space left"):
        writer.write(End(status="complete"))


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


def test_reads_the_measures_that_were_written(tmp_path: Path) -> None:
    measured = epoch(0).model_copy(update={"budget": Budget.model_validate(budget()), "cpu": [cpu()]})
    lines: list[RecordLine] = [header(), startup(), probe(), measured, epoch(1), result()]
    lines.append(End(status="complete"))
    record = write(tmp_path / "run.jsonl", lines)
    assert record.complete, record.problems
    assert (record.startup, record.probe) == (startup(), probe())
    assert record.epochs[0] == measured
    assert record.epochs[1].budget is None


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
    measured = epoch(0).model_copy(update={"budget": budget() | changed})
    with pytest.warns(UserWarning, match="serializer"):
        record = write(tmp_path / "run.jsonl", [header(), measured])
    assert any(said in problem for problem in record.problems), record.problems


def test_processor_facts_are_of_every_worker() -> None:
    with pytest.raises(ValidationError, match="cpu is of 2 workers, worker_seconds of 1"):
        Epoch.model_validate(epoch(0).model_dump() | {"cpu": [cpu(), cpu()]})


@pytest.mark.parametrize(
    "changed", [{"bytes": [16, 4]}, {"bytes": [4]}, {"minimum_seconds": [1.0, 4.0]}, {"repeats": [3, 0]}]
)
def test_a_probe_that_cannot_be_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        probe(**changed)


def test_a_start_whose_parts_name_other_workers_is_refused() -> None:
    with pytest.raises(ValidationError, match="different numbers of workers"):
        startup(join_seconds=[1.0, 1.0])


@pytest.mark.parametrize(
    "lines",
    [
        [header(), epoch(0), probe()],
        [header(), probe(), probe()],
        [header(), probe(), startup()],
        [header(), startup(), epoch(0), startup()],
    ],
)
def test_startup_and_probe_come_once_before_training(lines: list[RecordLine], tmp_path: Path) -> None:
    record = write(tmp_path / "run.jsonl", lines)
    assert any("a startup and a probe come once" in problem for problem in record.problems), record.problems


def test_a_record_of_the_first_format_is_still_read(tmp_path: Path) -> None:
    """As the first format wrote it: without the keys that it did not know."""
    path = tmp_path / "run.jsonl"
    lines = []
    for line in [header().model_copy(update={"format": 1}), *whole()[1:]]:
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
    first, *others = whole()
    assert isinstance(first, Header)
    lines = [first.model_copy(update={"resumed": Resumed(epoch=0, step=1)}), *others]
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


def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, [header().model_copy(update={"format": header().format + 1})])
    assert "format" in read_record(path).problems[0]


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "header", "format": 4, "point": {}, "point_sha256": DIGEST},
        {"kind": "header", "format": 4, "point": {"data": None}, "rehearsal_seconds": 1},
        {"kind": "epoch", "cpu": [None], "minor_faults": 1},
        ["rehearsal_seconds", {"point_sha256": 1}],
    ],
    ids=["no tables", "no digest", "no counters", "no object"],
)
def test_a_line_that_only_looks_like_an_older_format_is_a_problem(line: object, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    text = json.dumps(line, separators=(",", ":")).encode()[:-1]
    path.write_bytes(text + CHECKSUM_FORMAT % zlib.crc32(text) + b"\n")
    problems = read_record(path).problems
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:1: ")

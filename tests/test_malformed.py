"""Malformed records: each is left out with a message of its own, and the other runs stay as they are."""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.records import write_run
from tests.reports import report_of
from unet_scaling.format.record import CHECKSUM_FORMAT, RECORD_NAME

SPOILT = "pytorch_native-w01-r1"
# Where the lines of a record of three epochs stand.
HEADER, FIRST, SECOND, THIRD, RESULT, END = range(6)

Lines = list[bytes]
Spoil = Callable[[Lines], Lines]


def with_checksum(content: bytes) -> bytes:
    """Any text as a line of a record with its true checksum; `content` ends with its brace."""
    return content[:-1] + CHECKSUM_FORMAT % zlib.crc32(content[:-1]) + b"\n"


def with_values(line: bytes, **values: Any) -> bytes:
    """A line with these keys changed and a true checksum."""
    fields = {key: value for key, value in json.loads(line).items() if key != "crc32"} | values
    return with_checksum(json.dumps(fields).encode())


def change(place: int, **values: Any) -> Spoil:
    """Spoils one line by giving keys other values."""
    return lambda lines: [*lines[:place], with_values(lines[place], **values), *lines[place + 1 :]]


def order(*places: int) -> Spoil:
    """Spoils a record by taking these of its lines, in this order."""
    return lambda lines: [lines[place] for place in places]


def insert(place: int, line: bytes) -> Spoil:
    return lambda lines: [*lines[:place], line, *lines[place:]]


def cut(place: int, size: int) -> Spoil:
    """Spoils a record by ending it `size` bytes into a line; negative: so far before the line's end."""
    return lambda lines: [*lines[:place], lines[place][:size]]


@dataclass(frozen=True)
class Case:
    """A fault in a sound record of three epochs, and what is said of it."""

    name: str
    spoil: Spoil
    said: str


DAMAGED = "the line does not match its checksum"
RECORDS = (
    Case("empty", order(), "run.jsonl: the record is empty"),
    Case("no header", order(FIRST, SECOND, THIRD, RESULT, END), "starts with its one header"),
    Case("header twice", order(HEADER, HEADER, FIRST, SECOND, THIRD, RESULT, END), "its one header"),
    Case("torn at the end", cut(END, -3), ":6: the line is cut off"),
    Case(
        "epoch twice", order(HEADER, FIRST, FIRST, SECOND, THIRD, RESULT, END), "0, 1, 2, ...: [0, 0, 1, 2]"
    ),
    Case("last epoch missing", order(HEADER, FIRST, SECOND, RESULT, END), "2 epochs, 3 were asked for"),
    Case("no result", order(HEADER, FIRST, SECOND, THIRD, END), "without an evaluation after the last epoch"),
    Case("line after the end", order(HEADER, FIRST, SECOND, THIRD, END, RESULT), "a line after the end"),
    Case("no end", order(HEADER, FIRST, SECOND, THIRD, RESULT), "no end line after 3 of 3 epochs"),
    Case("foreign text", insert(2, b"slurmstepd: error: two processes wrote here\n"), f":3: {DAMAGED}"),
    Case("foreign kind", insert(2, with_checksum(b'{"kind":"note"}')), ":3: line: Input tag 'note'"),
    Case(
        "nested without end",
        insert(2, with_checksum(b'{"kind":' + b"[" * 10_000 + b"}")),
        ":3: line: Invalid JSON",
    ),
    Case(
        "negative seconds", change(SECOND, seconds=-1.0), ":3: epoch.seconds: Input should be greater than 0"
    ),
    Case("loss null", change(SECOND, loss=None), "epoch 1 has no loss"),
    Case("unknown key", change(SECOND, accuracy=0.9), ":3: epoch.accuracy: Extra inputs are not permitted"),
    Case("format 6", change(HEADER, format=6), ":1: header.format: Input should be 5"),
    Case(
        "epoch of ten million million years",
        change(SECOND, seconds=1e300, worker_seconds=[1e300]),
        "epoch 1: 480 images, 480 steps in 1e+300 s cannot be",
    ),
    Case("IoU not of its counts", change(RESULT, iou=0.9), "iou is 0.9, but the counts give 0.8"),
    Case("images left out", change(RESULT, images=11), "11 images evaluated, the test set has 12"),
    Case(
        "workers missing in an epoch", change(SECOND, worker_seconds=[]), "the seconds of 0 workers, not of 1"
    ),
    Case("worker missing", change(HEADER, workers=[]), "1 workers were asked for, 0 are described"),
)


@pytest.mark.parametrize("case", RECORDS, ids=lambda case: case.name.replace(" ", "-"))
def test_a_malformed_record_is_left_out_with_its_message(tmp_path: Path, case: Case) -> None:
    write_run(tmp_path)
    write_run(tmp_path, "horovod", 2, images_per_second=150.0)
    path = tmp_path / SPOILT / RECORD_NAME
    path.write_bytes(b"".join(case.spoil(path.read_bytes().splitlines(keepends=True))))
    found = report_of(tmp_path)
    assert case.said in found.left_out[SPOILT]
    assert len(found.left_out) == 1
    assert found.study.runs["run"].tolist() == ["horovod-w02-r1"]
    assert found.study.runs["images_per_second"].tolist() == pytest.approx([150.0])

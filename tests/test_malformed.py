"""Malformed records: each is left out with a message of its own, and the other runs stay as they are."""

from pathlib import Path

import pytest

from tests.malformed_records import RECORDS, Case
from tests.records import write_run
from tests.reports import report_of
from unet_scaling.study.record import RECORD_NAME

SPOILT = "pytorch_native-w01-r1"


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


def test_a_record_of_another_run_is_not_taken_for_this_one(tmp_path: Path) -> None:
    write_run(tmp_path)
    other = write_run(tmp_path, "horovod", 2) / RECORD_NAME
    (tmp_path / SPOILT / RECORD_NAME).write_bytes(other.read_bytes())
    assert "another configuration" in report_of(tmp_path).left_out[SPOILT]

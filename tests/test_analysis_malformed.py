"""Malformed runs: each is left out with its own message, and the other runs stay as they are."""

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.loading.load import load_study
from analysis.loading.runs import CompleteRun, read_run
from tests.malformed_records import RECORDS, Case, with_values
from tests.records import make_point, write_run
from unet_scaling.study.record import RECORD_NAME

CONFIG_NAME = "config.json"
SPOILT = "pytorch_native-w01-r1"


@dataclass(frozen=True)
class Folder:
    """A study of one run to be spoilt and one Horovod run that is sound."""

    study: Path

    @property
    def spoilt(self) -> Path:
        return self.study / SPOILT

    def reason(self) -> str:
        """Why the spoilt run, and only it, was left out; the other run is as if it were alone."""
        study = load_study(self.study)
        assert list(study.left_out["run"]) == [SPOILT]
        assert list(study.runs["run"]) == ["horovod-w02-r1"]
        assert study.runs["images_per_second"].tolist() == pytest.approx([150.0], rel=1e-12)
        assert set(study.epochs["run"]) == set(study.evaluations["run"]) == {"horovod-w02-r1"}
        reason = str(study.left_out["reason"].iloc[0])
        assert reason.encode()
        assert str(study.left_out["state"].iloc[0])
        return reason


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    write_run(tmp_path)
    write_run(tmp_path, "horovod", 2, images_per_second=150.0)
    return Folder(tmp_path)


@pytest.mark.parametrize("case", RECORDS, ids=lambda case: case.name.replace(" ", "-"))
def test_a_malformed_record_is_left_out_with_its_message(folder: Folder, case: Case) -> None:
    path = folder.spoilt / RECORD_NAME
    path.write_bytes(b"".join(case.spoil(path.read_bytes().splitlines(keepends=True))))
    assert case.said in folder.reason()


def test_each_malformed_record_has_a_message_of_its_own_place_or_kind() -> None:
    assert len({case.name for case in RECORDS}) == len(RECORDS) >= 40
    assert len({case.said for case in RECORDS}) >= 40


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "config.json cannot be read"),
        (b"{", "config.json cannot be read"),
        (b'{"study": "\xff"}', "config.json cannot be read"),
        (b"[" * 100_000, "config.json cannot be read"),
        (b"[]", "config.json: found []"),
        (b"{}", "config.json: study: missing"),
    ],
)
def test_a_malformed_point_is_left_out_with_its_message(folder: Folder, content: bytes, said: str) -> None:
    (folder.spoilt / CONFIG_NAME).write_bytes(content)
    assert said in folder.reason()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"workers": ...}, "config.json: workers: missing"),
        ({"workers": "2"}, "config.json: workers: found '2'"),
        ({"workers": 2}, "run.jsonl is of another configuration than config.json"),
        ({"framework": "deepspeed"}, "config.json: framework: found 'deepspeed'"),
        ({"framework": "horovod"}, "run.jsonl is of another configuration than config.json"),
        ({"learning_rate": 0.1}, "config.json: learning_rate: unknown key"),
        ({"\ud800": 1}, r"config.json: found '\ud800'"),
        ({"\x1b[2J": 1}, r"config.json: \x1b[2J: unknown key"),
        ({"seed": -1}, "config.json: seed: found -1"),
        ({"study": "../../etc"}, "config.json: study: found '../../etc'"),
    ],
)
def test_a_point_with_wrong_values_is_left_out(folder: Folder, values: dict[str, Any], said: str) -> None:
    path = folder.spoilt / CONFIG_NAME
    fields = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in fields.items() if value is not ...}))
    assert said in folder.reason()


@pytest.mark.parametrize("key", ["seed", "repeat"])
def test_a_point_with_a_huge_number_is_left_out(folder: Folder, key: str) -> None:
    point = make_point().model_copy(update={key: 10**30})
    path = folder.spoilt / RECORD_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    header = with_values(lines[0], point=point.model_dump(), config_sha256=point.digest())
    path.write_bytes(b"".join([header, *lines[1:]]))
    (folder.spoilt / CONFIG_NAME).write_text(point.model_dump_json())
    assert f"config.json: {key}: found {10**30}; allowed" in folder.reason()


@pytest.mark.parametrize("name", [RECORD_NAME, CONFIG_NAME])
def test_a_folder_in_place_of_a_file_is_reported(folder: Folder, name: str) -> None:
    (folder.spoilt / name).unlink()
    (folder.spoilt / name).mkdir()
    assert "Is a directory" in folder.reason()


def test_a_record_of_another_run_is_not_taken_for_this_one(folder: Folder) -> None:
    other = folder.study / "horovod-w02-r1" / RECORD_NAME
    (folder.spoilt / RECORD_NAME).write_bytes(other.read_bytes())
    assert "another configuration" in folder.reason()


def test_a_missing_evaluation_is_reported(tmp_path: Path) -> None:
    write_run(tmp_path, options={"training": {"evaluate_every": 1}})
    study = load_study(tmp_path)
    assert "the evaluation after 1 epochs is missing" in str(study.left_out["reason"].iloc[0])


def test_names_that_no_file_can_hold_are_escaped(folder: Folder) -> None:
    folder.spoilt.rename(folder.study / os.fsdecode(b"run\xff\x1b[2J"))
    study = load_study(folder.study)
    (name,) = set(study.runs["run"]) - {"horovod-w02-r1"}
    assert name == r"run\udcff\x1b[2J"
    assert study.epochs["run"].isin([name]).sum() == 3


def values_of(run: CompleteRun) -> pd.DataFrame:
    """All numbers of a run that any table takes."""
    return pd.concat([pd.DataFrame(run.epochs), pd.DataFrame(run.evaluations)])


def variants(content: bytes) -> Iterator[bytes]:
    """The record cut at every byte, then each byte changed in three ways."""
    yield from (content[:size] for size in range(len(content)))
    chance = random.Random(4)
    for place, byte in enumerate(content):
        for flipped in chance.sample(range(1, 256), 3):
            yield content[:place] + bytes([byte ^ flipped]) + content[place + 1 :]


def test_a_record_cut_or_changed_at_any_byte_is_never_used(folder: Folder) -> None:
    path = folder.spoilt / RECORD_NAME
    content = path.read_bytes()
    assert isinstance(read_run(folder.spoilt), CompleteRun)
    for spoilt in variants(content):
        path.write_bytes(spoilt)
        found = read_run(folder.spoilt)
        assert not isinstance(found, CompleteRun)
        assert found.left_out.reason


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 5), max_size=9))
def test_lines_in_any_order_give_the_same_numbers_or_a_report(folder: Folder, places: list[int]) -> None:
    path = folder.spoilt / RECORD_NAME
    lines = (folder.study / "whole").read_bytes() if (folder.study / "whole").exists() else path.read_bytes()
    (folder.study / "whole").write_bytes(lines)
    chosen = [lines.splitlines(keepends=True)[place] for place in places]
    path.write_bytes(b"".join(chosen))
    assert isinstance(read_run(folder.spoilt), CompleteRun) == (places == list(range(6)))

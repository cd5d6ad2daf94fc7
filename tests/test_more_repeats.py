"""Studies that get more repeats: until their intervals are narrow, or on request; and what that costs."""

import io
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from analysis.assembly.assemble import make_report
from analysis.judge import decide
from analysis.judge.decide import widest
from analysis.numbers.contrast import compare
from analysis.read.load import load_study
from slurm.launch.added_repeats import add_next_repeat, add_repeats, note_changed_request
from slurm.launch.study_folder import StudyFolder, open_study_folder
from tests.records import write_record
from unet_scaling.base.errors import UserError
from unet_scaling.study.config import RunConfig, StudyConfig
from unet_scaling.study.repeats import ADAPTIVE_SIGNIFICANCE, MOST_ADAPTIVE_REPEATS, read_history

STUDY: dict[str, Any] = {
    "name": "sweep",
    "workers": [1, 2],
    "data": {"folder": "/data", "image_height": 32, "image_width": 32},
    "training": {"epochs": 3},
}


@pytest.fixture(autouse=True)
def _ask_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What says whether a study goes on is a program, which test_disturbance.py starts; here it is called."""

    def run(command: Sequence[str], **_: object) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", command[2:])
        with redirect_stdout(io.StringIO()) as answer:
            decide.main()
        return SimpleNamespace(returncode=0, stdout=answer.getvalue())

    monkeypatch.setattr("slurm.launch.added_repeats.subprocess", SimpleNamespace(run=run))


def test_until_is_a_precision_with_a_cap() -> None:
    study = StudyConfig.model_validate(STUDY | {"repeats": "until 2.5 %, at most 8"})
    assert study.until is not None
    assert (study.repeats, study.until.half_width, study.until.most) == (3, 0.025, 8)
    plain = StudyConfig.model_validate(STUDY | {"repeats": "until 3 %"})
    assert plain.until is not None
    assert plain.until.most == MOST_ADAPTIVE_REPEATS
    again = StudyConfig.model_validate(json.loads(plain.model_dump_json()))
    assert again == plain


class Launched:
    """A study whose launches are written at once, with this ratio of native DDP to Horovod in each repeat."""

    def __init__(self, folder: StudyFolder, ratios: list[float]) -> None:
        self.folder = folder
        self.ratios = ratios
        self.text = io.StringIO()
        self.console = Console(file=self.text, width=300)

    def launch(self) -> None:
        """Write the record of every run that is missing."""
        for config in self.folder.prepare():
            if not self.folder.read_run(config).state.is_complete:
                write_record(self.folder.run_folder(config), config, images_per_second=self._speed(config))

    def go_on(self) -> bool:
        """Launch, ask for the next repeat, and take it if there is one."""
        self.launch()
        more = add_next_repeat(self.folder, self.console)
        self.folder = more or self.folder
        return more is not None

    def _speed(self, config: RunConfig) -> float:
        factor = self.ratios[config.repeat - 1] if config.framework == "pytorch_native" else 1.0
        return 100.0 * config.workers * factor


@pytest.fixture
def opened(tmp_path: Path) -> StudyFolder:
    study = StudyConfig.model_validate(STUDY | {"repeats": "until 3 %, at most 5"})
    return open_study_folder(tmp_path / "sweep", study)


def test_a_noisy_study_goes_on_to_its_cap_and_says_so(opened: StudyFolder) -> None:
    study = Launched(opened, [1.0, 1.3, 1.0, 1.3, 1.0])
    assert [study.go_on() for _ in range(3)] == [True, True, False]
    assert read_history(study.folder.path).totals == [3, 4, 5]
    printed = study.text.getvalue()
    assert "after 3 repeats, the widest interval of the ratio is ± " in printed
    assert "5 repeats are the most that the study allows" in printed
    again = open_study_folder(opened.path, opened.study)
    assert again.study.repeats == 5
    assert not Launched(again, []).go_on()


@pytest.mark.parametrize(("other", "goes_on"), [(1, True), (3, False)])
def test_where_runs_may_not_be_compared_a_study_goes_on_if_its_newest_repeat_may(
    other: int, goes_on: bool, opened: StudyFolder
) -> None:
    """As after a change of the code between two repeats: the next one can be compared with the newest."""
    study = Launched(opened, [1.0, 1.3, 1.0])
    for config in opened.prepare():
        commit = "0" * 40 if config.repeat == other else "1" * 40
        write_record(opened.run_folder(config), config, header={"commit": commit})
    assert study.go_on() is goes_on
    printed = study.text.getvalue()
    assert (
        "after 3 repeats, no interval at 1 worker: 2 of its repeats can be compared, 3 are needed" in printed
    )
    assert ("the report lists which runs it leaves out" in printed) is not goes_on


def test_repeats_are_added_on_request_and_keep_what_is_complete(tmp_path: Path) -> None:
    folder = open_study_folder(tmp_path / "sweep", StudyConfig.model_validate(STUDY | {"repeats": 3}))
    study = Launched(folder, [1.0, 1.1, 1.0, 1.1, 1.0, 1.1, 1.1])
    with pytest.raises(UserError, match=r"--more-repeats 2: .* is not complete"):
        add_repeats(folder, 2, study.console)
    study.launch()
    before = {path: path.read_bytes() for path in folder.path.glob("*/run.jsonl")}
    study.folder = add_repeats(folder, 2, study.console)
    study.launch()
    assert {path: path.read_bytes() for path in before} == before
    repeats = Counter(config.repeat for config in study.folder.study.configs())
    assert repeats == dict.fromkeys(range(1, 6), 4)
    assert [config.seed for config in study.folder.study.configs()][-1] == 5
    assert load_study(folder.path).significance == 0.025
    # The same command again, as after Ctrl-C: it goes on with what was added.
    (folder.path / "horovod-w01-r5" / "run.jsonl").unlink()
    again = open_study_folder(folder.path, folder.study)
    assert add_repeats(again, 2, study.console).study.repeats == 5
    assert "going on with them, adding none" in study.text.getvalue()


@pytest.mark.parametrize(
    ("first", "ratios", "then", "significance"),
    [
        (3, [1.0, 1.1, 1.0], [5, 4], [0.025, 0.025]),
        (2, [1.0, 1.1], [3], [0.05]),  # before there is an interval
        ("until 3 %, at most 5", [1.2, 1.2001, 1.2002], ["until 4 %, at most 5"], [0.02]),
        ("until 3 %, at most 5", [1.2, 1.2001, 1.2002], ["until 2 %, at most 5"], [0.01]),
        ("until 3 %, at most 5", [1.2, 1.2001, 1.2002], ["until 3 %, at most 6"], [0.01]),
        ("until 3 %, at most 5", [1.2, 1.2001, 1.2002], [3, 5], [0.02, 0.01]),
        (4, [1.0, 1.2, 1.0, 1.2], ["until 3 %, at most 5"], [0.01]),
    ],
)
def test_more_asked_for_in_the_study_file_after_results_is_a_look_at_them(
    first: object, ratios: list[float], then: list[object], significance: list[float], tmp_path: Path
) -> None:
    folder = open_study_folder(tmp_path / "sweep", StudyConfig.model_validate(STUDY | {"repeats": first}))
    study = Launched(folder, [*ratios, *[1.1] * 4])
    study.launch()
    for repeats, expected in zip(then, significance, strict=True):
        asked = StudyConfig.model_validate(STUDY | {"repeats": repeats})
        study.folder = note_changed_request(open_study_folder(folder.path, asked), study.console)
        study.launch()
        assert load_study(folder.path).significance == expected
    assert ("more is asked for after the results" in study.text.getvalue()) == (
        min(significance) in (0.025, 0.01)
    )


def test_other_points_in_the_folder_of_a_study_are_no_look_at_its_results(tmp_path: Path) -> None:
    folder = open_study_folder(tmp_path / "sweep", StudyConfig.model_validate(STUDY | {"repeats": 3}))
    study = Launched(folder, [1.0, 1.1, 1.0])
    study.launch()
    training = {"epochs": 3, "plays": [4, 8]}
    others = STUDY | {"workers": [1], "training": training, "repeats": 5}
    joined = open_study_folder(folder.path, StudyConfig.model_validate(others))
    note_changed_request(joined, study.console)
    assert read_history(folder.path).totals == []


def test_the_report_and_the_submission_decide_by_the_same_intervals(tmp_path: Path) -> None:
    """With a further framework the intervals of the report are corrected for more comparisons."""
    frameworks = ["pytorch_native", "horovod", "lightning"]
    asked = STUDY | {"frameworks": frameworks, "workers": [1]}
    folder = open_study_folder(tmp_path / "sweep", StudyConfig.model_validate(asked | {"repeats": 3}))
    study = Launched(folder, [1.0, 1.06, 1.03, 1.03])
    study.launch()
    loaded = replace(load_study(folder.path), significance=ADAPTIVE_SIGNIFICANCE)
    both = loaded.runs[loaded.runs["framework"] != "lightning"]
    pair = widest(compare(replace(loaded, runs=both)))[0]
    every = widest(make_report(loaded).comparisons)[0]
    assert pair < every
    until = StudyConfig.model_validate(asked | {"repeats": f"until {50 * (pair + every):.3f} %, at most 4"})
    study.folder = open_study_folder(folder.path, until)
    for goes_on in (True, False):
        assert study.go_on() is goes_on
        study.launch()

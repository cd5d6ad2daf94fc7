"""Is the machine quiet, and what becomes of a disturbed launch."""

import io
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import slurm.local
import slurm.processes
from slurm.after_run import disturbed_reason, is_to_be_repeated, set_disturbed_aside
from slurm.local import local_plan, run_study
from slurm.processes import say_whether_quiet
from slurm.study_folder import StudyFolder
from tests.budgets import Steps, write_budget_run
from tests.records import Measured, make_epochs, make_point, make_study, write_record, write_run
from unet_scaling.study.disturbance import MOST_DISTURBED
from unet_scaling.study.record import read_record
from unet_scaling.study.run_state import RecordedRun, recorded_run
from unet_scaling.study.study_file import read_config

LOADED = Steps(forward=0.08, contended={"communication": 0.0, "runqueue": 0.05, "other": 0.05})


def said(monkeypatch: pytest.MonkeyPatch, used: float) -> str:
    counted = iter([100.0, 100.0 + used])
    monkeypatch.setattr(slurm.processes, "busy_seconds", lambda cores: next(counted) * len(cores))
    text = io.StringIO()
    say_whether_quiet(Console(file=text, width=400), seconds=0.2)
    return text.getvalue()


def test_a_busy_machine_is_said_with_its_busiest_programs_and_not_their_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = [sys.executable, "-c", "while True: pass", "--password=hidden"]
    monkeypatch.setattr(slurm.processes, "MOST_NAMED_PROCESSES", 10_000)
    with subprocess.Popen(command) as program:
        try:
            text = said(monkeypatch, 1.0)
        finally:
            program.kill()
    assert text.startswith("the machine is not quiet: 100 % of ")
    assert f"(process {program.pid})" in text
    assert "hidden" not in text


def test_a_record_set_aside_says_why_and_is_kept_a_few_times(tmp_path: Path) -> None:
    run = write_budget_run(tmp_path, steps=LOADED)
    content = (run / "run.jsonl").read_bytes()
    text = io.StringIO()
    console = Console(file=text, width=400)
    assert "went to other processes" in reason(run)
    for number in range(1, MOST_DISTURBED + 1):
        assert is_to_be_repeated(recorded(run), console)
        assert set_disturbed_aside(run) == run / f"run.disturbed{number}.jsonl"
        (run / "run.jsonl").write_bytes(content)
    assert text.getvalue().count("launched again; its record is kept") == MOST_DISTURBED
    assert not is_to_be_repeated(recorded(run), console)
    assert text.getvalue().endswith("it stays as it is, and the report says so\n")
    assert (run / "run.disturbed1.jsonl").read_bytes() == content


def test_no_second_of_a_played_run_counts_so_none_is_made_again(tmp_path: Path) -> None:
    run = recorded(write_budget_run(tmp_path, steps=LOADED))
    training = run.config.training.model_copy(update={"plays": 4})
    played = replace(run, config=run.config.model_copy(update={"training": training}))
    assert disturbed_reason(run)
    assert disturbed_reason(played) == ""


def test_a_run_whose_epochs_all_follow_a_start_or_resume_is_measured_again(tmp_path: Path) -> None:
    """Each warms up, and none is timed: DDP on 2 workers would be missing from the report."""
    point = make_point("pytorch_native", 2, 1)
    epochs = make_epochs(point, 100.0, 48)
    for number, warm_up in enumerate((1, len(epochs))):
        flagged = [each.model_copy(update={"warmup": place < warm_up}) for place, each in enumerate(epochs)]
        folder = write_run(tmp_path / str(number), "pytorch_native", 2, measured=Measured(flagged))
        assert recorded(folder).state.is_complete
        assert is_to_be_repeated(recorded(folder), Console(quiet=True)) == (warm_up > 1)


def recorded(run: Path) -> RecordedRun:
    return recorded_run(run, read_config(run / "config.json"))


def reason(run: Path) -> str:
    return disturbed_reason(recorded(run))


def planned(folder: Path, repeat_disturbed: bool) -> str:
    """The line of a dry run that counts the runs."""
    study = StudyFolder(folder / "tiny", make_study("tiny", frameworks=["pytorch_native"]))
    text = io.StringIO()
    console = Console(file=text, width=400)
    local_plan(study, console, repeat_disturbed).show(console)
    return next(line for line in text.getvalue().splitlines() if line.startswith("tiny: "))


def local_study(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    launches: Iterator[Steps],
    repeat_disturbed: bool = False,
    repeats: int = 1,
    frameworks: Sequence[str] = ("pytorch_native",),
) -> str:
    """What a local study prints whose launches leave records of these steps; KeyboardInterrupt after them."""
    study = StudyFolder(folder / "tiny", make_study("tiny", frameworks=[*frameworks], repeats=repeats))

    def launch(program: Sequence[str], *_: object) -> int:
        run = Path(program[1])
        steps = next(launches, None)
        if steps is None:
            raise KeyboardInterrupt
        source = write_budget_run(folder / f"source{len(list(folder.iterdir()))}", steps=steps)
        epochs = read_record(source / "run.jsonl").epochs
        write_record(run, read_config(run / "config.json"), measured=Measured(list(epochs)))
        return 0

    monkeypatch.setattr(slurm.local, "launch", launch)
    monkeypatch.setattr(slurm.local, "require_ready", lambda *_: None)  # there are no images
    monkeypatch.setattr(slurm.local, "say_whether_quiet", lambda console: console.print("looked"))
    text = io.StringIO()
    run_study(study, Console(file=text, width=400), repeat_disturbed)
    return text.getvalue()


def test_a_disturbed_local_launch_is_said_and_made_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the next repeat: runs that are compared stay neighbours in time."""
    text = local_study(tmp_path, monkeypatch, iter([LOADED, Steps(), Steps()]), repeats=2)
    assert text.count("looked") == 1
    launched = [line.split(" ...")[0] for line in text.splitlines() if line.startswith("[")]
    first, second = "[1/2] pytorch_native-w01-r1", "[2/2] pytorch_native-w01-r2"
    assert launched == [first, f"{first} again", second]
    assert "disturbed: 32 % of a worker's time went to other processes" in text
    assert text.count("; will be launched again; its record is kept") == 1
    run = tmp_path / "tiny" / "pytorch_native-w01-r1"
    assert reason(run) == ""
    assert len(list(run.glob("run.disturbed*.jsonl"))) == 1


def test_disturbed_runs_keep_their_records_until_it_is_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study is ended in the first of two launches that are made again."""
    with pytest.raises(KeyboardInterrupt):
        local_study(tmp_path, monkeypatch, iter([LOADED] * 2), frameworks=("pytorch_native", "horovod"))
    assert len(list(tmp_path.glob("tiny/*/run.disturbed1.jsonl"))) == 1
    assert len(list(tmp_path.glob("tiny/*/run.jsonl"))) == 1


def test_a_complete_run_is_not_touched_without_being_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_study(tmp_path, monkeypatch, iter([LOADED, LOADED]))
    run = tmp_path / "tiny" / "pytorch_native-w01-r1"
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert "1 complete already" in local_study(tmp_path, monkeypatch, iter([]))
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert planned(tmp_path, repeat_disturbed=False) == "tiny: 1 run, 0 would start, one after the other"
    assert planned(tmp_path, repeat_disturbed=True) == "tiny: 1 run, 1 would start, one after the other"
    local_study(tmp_path, monkeypatch, iter([Steps()]), repeat_disturbed=True)
    assert reason(run) == ""
    assert len(list(run.glob("run.disturbed*.jsonl"))) == 2


def test_a_local_study_adds_repeats_until_its_intervals_are_narrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(program: Sequence[str], *_: object) -> int:
        run = Path(program[1])
        write_record(run, read_config(run / "config.json"), images_per_second=100.0)
        return 0

    monkeypatch.setattr(slurm.local, "launch", launch)
    monkeypatch.setattr(slurm.local, "require_ready", lambda *_: None)  # there are no images
    monkeypatch.setattr(slurm.local, "say_whether_quiet", lambda console: None)
    study = make_study("tiny", repeats="until 3 %, at most 5")
    text = io.StringIO()
    run_study(StudyFolder(tmp_path / "tiny", study), Console(file=text, width=400))
    assert len(list(tmp_path.glob("tiny/*/run.jsonl"))) == 2 * 3
    assert "after 3 repeats, the widest interval of the ratio is ± " in text.getvalue()

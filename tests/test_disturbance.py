"""Disturbed launches and stalls: what a record says of them, and what becomes of a disturbed launch."""

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, cycle
from pathlib import Path

import pytest
from rich.console import Console

import slurm.launch.local
import slurm.launch.processes
from analysis.assembly.assemble import make_report
from analysis.judge.checks import fairness_checks
from analysis.numbers.contrast import compare
from analysis.numbers.iou import iou_table
from analysis.numbers.points import summarise
from analysis.read.load import load_study
from slurm.after_run import explain_disturbance, is_to_be_repeated, set_disturbed_aside
from slurm.launch.local import plan_local_runs, run_study
from slurm.launch.processes import say_whether_quiet
from slurm.launch.study_folder import StudyFolder
from tests import tampering
from tests.honest import Honest, write_honest
from tests.records import (
    Measured,
    Steps,
    make_epochs,
    make_point,
    make_study,
    write_budget_run,
    write_record,
    write_run,
)
from tests.tampering import Change, Runs, config, slower
from unet_scaling.format.disturbance import (
    DISTURBED_SHARE,
    MOST_DISTURBED,
    UNCOUNTED,
    Disturbance,
    disturbance,
)
from unet_scaling.format.record import Record, read_record
from unet_scaling.format.record_lines import End, LongestStep
from unet_scaling.format.run_state import RecordedRun, recorded_run
from unet_scaling.study.study_file import read_config

LOADED = {"communication": 0.0, "runqueue": 0.05, "other": 0.05}
LONG = {"training": {"epochs": 13}}
BOTH = ("pytorch_native", "horovod")


def judged(folder: Path, steps: Steps, **more: object) -> Disturbance:
    run = write_budget_run(folder, "pytorch_native", 2, 1, steps, **more)  # type: ignore[arg-type]
    return disturbance(read_record(run / "run.jsonl"))


OWN = {"communication": 0.05, "runqueue": 0.05}  # of polling threads of the worker itself
ASLEEP = {"communication": 0.0, "runqueue": 0.0, "other": 0.01}
BESIDE = Steps(forward=0.08, contended=LOADED)
BEFORE_FORMAT_4 = {name: value for name, value in LOADED.items() if name != "other"}


@pytest.mark.parametrize(
    ("steps", "pace", "share", "is_disturbed"),
    [
        (Steps(), 1.0, 0.0, False),
        # 0.05 s of a step of 0.149 s, less a tick of each epoch.
        (BESIDE, 1.0, 0.05 / 0.149 - 0.01 / (6 * 0.149), True),
        (BESIDE, 0.1, None, False),  # too short to be judged
        (Steps(sync=0.02, wire=0.02, contended=ASLEEP), 1.0, 0.0, False),
        (Steps(forward=0.08, contended=OWN), 1.0, 0.0, False),
        (Steps(forward=0.08, contended=BEFORE_FORMAT_4), 1.0, 0.1, True),  # judged by how long it waited
    ],
)
def test_what_other_programs_took_from_a_worker_disturbs_its_launch(
    steps: Steps, pace: float, share: float | None, is_disturbed: bool, tmp_path: Path
) -> None:
    found = judged(tmp_path, steps, pace=pace)
    assert found.busy_share == (None if share is None else pytest.approx(share, abs=1e-3))
    assert bool(found.reason) == is_disturbed
    assert found.stalls == ()


# Of a step of 0.149 s on the same two cores: each worker computes 0.134 s, and waits for the other meanwhile.
CROWDED = {"communication": 0.0, "runqueue": 0.07, "other": 0.164}


def judged_on_shared_cores(folder: Path, contended: dict[str, float], budget: bool = True) -> Disturbance:
    steps = Steps(forward=0.08, contended=contended, cores=2)
    record = read_record(write_budget_run(folder, "pytorch_native", 2, 1, steps) / "run.jsonl")
    assert record.header is not None
    workers = [worker.model_copy(update={"cores": [0, 1]}) for worker in record.header.workers]
    header = record.header.model_copy(update={"workers": workers})
    unknown = {} if budget else {"budget": None, "no_budget": "no model"}
    epochs = tuple(epoch.model_copy(update=unknown) for epoch in record.epochs)
    return disturbance(replace(record, header=header, epochs=epochs))


@pytest.mark.parametrize("budget", [True, False])
@pytest.mark.parametrize(
    ("contended", "share"),
    [
        (CROWDED | {"other_workers": 0.164}, 0.0),
        # Of the step of 0.149 s another program has 0.03 s of two cores, less a tick of each epoch.
        (CROWDED | {"other_workers": 0.134}, 0.03 / (2 * 0.149) - 0.01 / (6 * 0.149)),
        ({"communication": 0.0, "runqueue": 0.0, "other": 0.16, "other_workers": 0.1}, 0.0),  # none waited
    ],
)
def test_workers_of_the_run_on_the_same_cores_are_no_other_programs(
    contended: dict[str, float], share: float, budget: bool, tmp_path: Path
) -> None:
    assert judged_on_shared_cores(tmp_path, contended, budget).busy_share == pytest.approx(share)


def test_older_records_of_workers_on_the_same_cores_are_judged_by_their_waiting(tmp_path: Path) -> None:
    assert (judged_on_shared_cores(tmp_path, CROWDED).busy_share or 0.0) > DISTURBED_SHARE


STILL = Steps(forward=(0.03, 10.03), sync=(10.0, 0.0))  # worker 1 for 60 s; worker 0 waits for it in sync


@pytest.mark.parametrize(
    ("epochs", "stalled", "reason"),
    [
        (13, {7: STILL}, "worker 1 stalled in epoch 7: 60.6 s, usually 0.594 s"),
        (3, {2: STILL}, "worker 1 stalled in epoch 2: 60.6 s, usually 0.594 s"),
        (13, {7: Steps(sync=10.0, wire=10.0)}, "the workers stalled in epoch 7: 60.6 s, usually 0.594 s"),
        (13, {7: Steps(forward=0.12), 9: Steps(forward=0.1)}, ""),
    ],
)
def test_a_stall_is_named_with_epoch_time_and_worker(
    epochs: int, stalled: dict[int, Steps], reason: str, tmp_path: Path
) -> None:
    found = judged(tmp_path, Steps(), options={"training": {"epochs": epochs}}, stalled=stalled)
    assert (found.reason, bool(found.stalls)) == (reason, bool(reason))


def with_longest_step(record: Record, epoch: int, longest: LongestStep, beyond: float) -> Record:
    """The record with one epoch longer by so many seconds, which that step took."""
    changed = record.epochs[epoch]
    assert changed.budget is not None
    sync = [seconds + beyond for seconds in changed.budget.sync_seconds]
    budget = changed.budget.model_copy(update={"longest_step": longest, "sync_seconds": sync})
    seconds = [seconds + beyond for seconds in changed.worker_seconds]
    update = {"budget": budget, "worker_seconds": seconds, "seconds": max(seconds)}
    epochs = list(record.epochs)
    epochs[epoch] = changed.model_copy(update=update)
    return replace(record, epochs=tuple(epochs))


@pytest.mark.parametrize(
    ("seconds", "work", "who"),
    [(1.1, 1.09, "worker 1 stalled"), (1.1, 0.1, "the workers stalled"), (0.4, 0.4, "")],
)
def test_a_single_stalled_step_disturbs_a_launch_whose_epochs_look_alike(
    seconds: float, work: float, who: str, tmp_path: Path
) -> None:
    """Where it matters for the speed of the whole launch."""
    run = write_budget_run(tmp_path, "pytorch_native", 2, options=LONG)
    longest = LongestStep(step=3, seconds=seconds, worker=1, work_seconds=work)
    found = disturbance(with_longest_step(read_record(run / "run.jsonl"), 7, longest, seconds - 0.1))
    assert found.reason == (f"{who} in step 3 of epoch 7: {seconds} s, usually 0.099 s" if who else "")
    assert found.stalled_epochs == frozenset()


def test_a_step_that_takes_the_mean_of_the_weights_is_no_stall(tmp_path: Path) -> None:
    """It is the longest of every epoch; one far longer than those of the other epochs is a stall."""
    options = LONG | {"strategy": {"synchronise_every": 4}}
    record = read_record(write_budget_run(tmp_path, "pytorch_native", 2, options=options) / "run.jsonl")
    for epoch in range(13):
        longest = LongestStep(step=3, seconds=4.1 if epoch == 7 else 1.1, worker=1, work_seconds=0.1)
        record = with_longest_step(record, epoch, longest, longest.seconds - 0.1)
        assert bool(disturbance(record).reason) == (epoch >= 7)
    first = "the workers stalled in step 3 of epoch 7: 4.1 s, usually 1.1 s"
    assert disturbance(record).reason == first
    second = LongestStep(step=3, seconds=4.0, worker=1, work_seconds=0.1)
    record = with_longest_step(record, 9, second, 2.9)
    assert disturbance(record).reason == f"{first}, and 1 other stall"


@pytest.mark.parametrize(("busy", "pairs", "mark"), [({2, 4}, 3, "yes"), ({1, 2, 3, 4, 5}, 5, "no")])
def test_disturbed_launches_are_left_out_of_speed_where_enough_others_are_and_kept_in_iou(
    busy: set[int], pairs: int, mark: str, tmp_path: Path
) -> None:
    for repeat in range(1, 6):
        for workers in (1, 2):
            write_budget_run(tmp_path, "horovod", workers, repeat)
            steps = BESIDE if workers == 2 and repeat in busy else Steps()
            write_budget_run(tmp_path, "pytorch_native", workers, repeat, steps)
    study = load_study(tmp_path)
    points = summarise(study).set_index(["framework", "workers"])
    assert points["repeats"]["pytorch_native", 2] == pairs
    speed = points["images_per_second"]
    assert (speed["pytorch_native", 2] == pytest.approx(speed["horovod", 2])) == (mark == "yes")
    assert set(iou_table(study)["seeds"]) == {5}
    assert compare(study).set_index("workers")["pairs"].to_dict() == {1: 5, 2: pairs}
    (check,) = [check for check in fairness_checks(study) if check.check == "machine quiet"]
    assert (check.mark, check.withholds) == (mark, mark == "no")
    assert (study.runs["disturbed"] != "").sum() == len(busy)


EVERY = (1, 2, 3, 4, 5)
EXCHANGING = config(model={"batch_norm": "sync"}, training={"channels_last": False})


@pytest.mark.parametrize(
    ("pause", "paused", "about", "fact"),
    [
        (slower(1.4, processor=False), (2, 4), None, "2 disturbed runs left out of speed"),
        (slower(1.4, processor=False), EVERY, None, UNCOUNTED),
        (slower(1.02, processor=False), EVERY, None, ""),
        (slower(1.4), (2, 4), None, ""),
        (slower(1.4, processor=False), (2, 4), tampering.workers(threads=2), ""),
        (slower(1.4, processor=False), (2, 4), EXCHANGING, ""),
    ],
)
def test_a_paused_machine_is_no_slower_framework(
    pause: Change, paused: Sequence[int], about: Change | None, fact: str, tmp_path: Path
) -> None:
    """Phases are 40 % longer, and no counter tells why, where all that a worker waits for is counted."""
    folder = write_honest(tmp_path / "study", Honest(workers=(1, 2), advantage=0.0))
    if about:
        Runs(folder).change(about)
    Runs(folder).of("horovod", workers=[2], repeats=paused).change(pause)
    report = make_report(load_study(folder))
    quiet = report.fairness.set_index("check").loc["machine quiet"]
    assert fact in quiet["fact"]
    assert (quiet["mark"] == "no") == (fact == UNCOUNTED)
    runs = report.study.runs
    told = runs.loc[runs["disturbed"].str.contains(UNCOUNTED), "repeat"]
    assert set(told) == (set(paused) if fact else set())
    if fact:
        assert not report.comparisons["outcome"].str.endswith("faster").any()
        assert {each.rule for each in report.diagnoses} <= {"machine busy", "negotiation"}


def said(monkeypatch: pytest.MonkeyPatch, used: float) -> str:
    counted = iter([100.0, 100.0 + used])
    monkeypatch.setattr(slurm.launch.processes, "busy_seconds", lambda cores: next(counted) * len(cores))
    text = io.StringIO()
    say_whether_quiet(Console(file=text, width=400), seconds=0.2)
    return text.getvalue()


def test_a_busy_machine_is_said_with_its_busiest_programs_and_not_their_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = [sys.executable, "-c", "while True: pass", "--password=hidden"]
    monkeypatch.setattr(slurm.launch.processes, "MOST_NAMED_PROCESSES", 10_000)
    with subprocess.Popen(command) as program:
        try:
            text = said(monkeypatch, 1.0)
        finally:
            program.kill()
    assert text.startswith("the machine is not quiet: 100 % of ")
    assert f"(process {program.pid})" in text
    assert "hidden" not in text


def test_a_record_set_aside_says_why_and_is_kept_a_few_times(tmp_path: Path) -> None:
    run = write_budget_run(tmp_path, steps=BESIDE)
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


@pytest.mark.parametrize("again", ["not begun", "interrupted", "diverged", "complete"])
@pytest.mark.parametrize("name", ["run.disturbed1.jsonl", "run.attempt1.jsonl"])
def test_a_record_set_aside_counts_until_the_new_one_is_complete(
    again: str, name: str, tmp_path: Path
) -> None:
    """As a launch leaves it that was to be made again, being disturbed or by --force, and was interrupted."""
    for workers in (1, 2):
        write_run(tmp_path / "study", "pytorch_native", workers, images_per_second=100.0 * workers)
    (folder,) = (tmp_path / "study").glob("pytorch_native-w02*")
    record = folder / "run.jsonl"
    lines = record.read_bytes().splitlines(keepends=True)
    record.rename(folder / name)
    if again == "interrupted":
        record.write_bytes(b"".join(lines[:-1]))
    elif again != "not begun":
        end = End(status="diverged", reason="loss is nan") if again == "diverged" else End(status="complete")
        write_run(tmp_path / "again", "pytorch_native", 2, images_per_second=200.0, end=end)
        next((tmp_path / "again").glob("*/run.jsonl")).rename(record)
    study = load_study(tmp_path / "study")
    used = [] if again == "diverged" else [2]
    assert study.runs["workers"].tolist() == [1, *used]
    assert study.left_out["state"].tolist() == (["diverged"] if again == "diverged" else [])
    if again != "diverged":
        assert study.runs["images_per_second"].tolist() == pytest.approx([100.0, 200.0], rel=0.01)


def test_no_second_of_a_played_run_counts_so_none_is_made_again(tmp_path: Path) -> None:
    run = recorded(write_budget_run(tmp_path, steps=BESIDE))
    training = run.config.training.model_copy(update={"plays": 4})
    played = replace(run, config=run.config.model_copy(update={"training": training}))
    assert explain_disturbance(run)
    assert explain_disturbance(played) == ""


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
    return explain_disturbance(recorded(run))


def planned(folder: Path, repeat_disturbed: bool) -> list[str]:
    """The runs that a dry run would start."""
    study = StudyFolder(folder / "tiny", make_study("tiny", frameworks=["pytorch_native"]))
    wanted, _ = plan_local_runs(study, Console(quiet=True), repeat_disturbed)
    return [config.run for config in wanted]


def local_study(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    launches: Iterator[Steps],
    repeat_disturbed: bool = False,
    repeats: int = 1,
    frameworks: Sequence[str] = ("pytorch_native",),
    keep_disturbed: bool = False,
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

    monkeypatch.setattr(slurm.launch.local, "launch", launch)
    monkeypatch.setattr(slurm.launch.local, "require_ready", lambda *_: None)  # there are no images
    monkeypatch.setattr(slurm.launch.local, "say_whether_quiet", lambda console: console.print("looked"))
    text = io.StringIO()
    console = Console(file=text, width=400, soft_wrap=True)
    run_study(study, console, repeat_disturbed, keep_disturbed=keep_disturbed)
    return text.getvalue()


def launched_again(text: str) -> list[str]:
    return re.findall(r"^\[\d/\d\] (\S+) again", text, re.MULTILINE)


# Of 2 launches a repeat: what their records say in the order in which they are made, and the repeats of those
# that are made again.
@pytest.mark.parametrize(
    ("launches", "again"),
    [
        pytest.param("bb bb bb", [], id="busy from the first repeat on"),
        pytest.param("bb .b ..", [], id="busy in the first repeat alone"),
        pytest.param("b.. bb bb", [1], id="busy from the second repeat on"),
        pytest.param("b.b b.. b.", [1, 2], id="half of all launches"),
    ],
)
def test_a_busy_machine_makes_a_local_study_longer_by_one_repeat_at_most(
    launches: str, again: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one line says so, with the command that measures on a quiet machine what was disturbed."""
    argv = ["unet-scaling run", "tiny.toml", "--more-repeats", "2", "--force=a", "--set", "repeats=3"]
    monkeypatch.setattr(sys, "argv", argv)
    steps = [BESIDE if each == "b" else Steps() for each in launches.replace(" ", "")]
    more = chain(steps, cycle([Steps()]))
    text = local_study(tmp_path, monkeypatch, more, repeats=3, frameworks=BOTH)
    assert [int(run.rpartition("-r")[2]) for run in launched_again(text)] == again
    (line,) = (line for line in text.splitlines() if line.startswith("the machine is busy"))
    command = shlex.split(line.partition("on a quiet machine, ")[2])
    assert command[1:6] == ["run", "tiny.toml", "--set", "repeats=3", "--repeat-disturbed"]


def test_every_launch_is_made_once_where_disturbed_ones_are_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([BESIDE, Steps()] * 2)
    text = local_study(tmp_path, monkeypatch, steps, repeats=2, frameworks=BOTH, keep_disturbed=True)
    assert launched_again(text) == []
    assert next(steps, None) is None
    assert not list(tmp_path.glob("tiny/*/run.disturbed*"))


def test_a_disturbed_local_launch_is_said_and_made_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the next repeat: runs that are compared stay neighbours in time."""
    text = local_study(tmp_path, monkeypatch, iter([BESIDE, Steps(), Steps()]), repeats=2)
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
    local_study(tmp_path, monkeypatch, iter([BESIDE] * 2), frameworks=BOTH)
    with pytest.raises(KeyboardInterrupt):
        local_study(tmp_path, monkeypatch, iter([]), repeat_disturbed=True, frameworks=BOTH)
    assert len(list(tmp_path.glob("tiny/*/run.disturbed1.jsonl"))) == 1
    assert len(list(tmp_path.glob("tiny/*/run.jsonl"))) == 1


def test_a_complete_run_is_not_touched_without_being_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_study(tmp_path, monkeypatch, iter([BESIDE, BESIDE]))
    run = tmp_path / "tiny" / "pytorch_native-w01-r1"
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert "1 complete already" in local_study(tmp_path, monkeypatch, iter([]))
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert planned(tmp_path, repeat_disturbed=False) == []
    assert planned(tmp_path, repeat_disturbed=True) == [run.name]
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

    monkeypatch.setattr(slurm.launch.local, "launch", launch)
    monkeypatch.setattr(slurm.launch.local, "require_ready", lambda *_: None)  # there are no images
    monkeypatch.setattr(slurm.launch.local, "say_whether_quiet", lambda console: None)
    study = make_study("tiny", repeats="until 3 %, at most 5")
    text = io.StringIO()
    run_study(StudyFolder(tmp_path / "tiny", study), Console(file=text, width=400))
    assert len(list(tmp_path.glob("tiny/*/run.jsonl"))) == 2 * 3
    assert "after 3 repeats, the widest interval of the ratio is ± " in text.getvalue()


@pytest.mark.parametrize(("uncounted", "said"), [(0.31, True), (0.12, False)])
def test_what_other_causes_leave_of_uncounted_time_is_told_beside_them(uncounted: float, said: bool) -> None:
    judged = Disturbance(busy_share=0.09, stalls=(), stalled_share=0.0, uncounted_share=uncounted)
    assert "9 % of a worker's time went to other processes" in judged.reason
    assert (UNCOUNTED in judged.reason) is said

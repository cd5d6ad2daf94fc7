"""Records that cannot be: one thing done to an honest study, and which runs are left out for it."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.valid import impossible_values
from tests.evidence import evidence
from tests.golden_studies import COMMITTED
from tests.honest import Honest, Lines, write_honest
from tests.reports import report_of
from tests.tampering import (
    Change,
    Runs,
    header,
    in_epochs,
    in_turn,
    processors,
    results,
    slower,
    started,
    with_epochs,
    workers,
)
from unet_scaling.study.files import write_verified
from unet_scaling.study.record import RECORD_NAME, read_record
from unet_scaling.study.record_lines import PHASE_COLUMNS, STEPS_NAME, End, Epoch, Resumed
from unet_scaling.study.study_file import LOG_NAME

RUN = "horovod-w02-r2"
OTHER = "pytorch_native-w02-r1"
ONE_HOUR = 3600.0
FILES = (STEPS_NAME, f"{STEPS_NAME}.sha256", LOG_NAME)
Do = Callable[[Path], object]


def on_run(change: Change) -> Do:
    """Write the record of RUN again, changed, and remove what lay beside it."""

    def do(study: Path) -> None:
        Runs(study).of("horovod", workers=[2], repeats=[2]).change(change)
        for name in FILES:
            (study / RUN / name).unlink()

    return do


def copied(of_epochs: Callable[[Lines, Lines], list[Epoch]]) -> Do:
    """Give RUN epochs that are made of its own and of those of another launch."""

    def do(study: Path) -> None:
        ((_, other),) = Runs(study).of("pytorch_native", workers=[2], repeats=[1]).records()
        on_run(lambda lines: with_epochs(lines, of_epochs(lines, other)))(study)

    return do


def an_hour(lines: Lines) -> Lines:
    """The epochs take an hour in all."""
    return slower(ONE_HOUR / sum(epoch.seconds for epoch in lines.epochs))(lines)


def ended(minutes: float) -> Change:
    """A run of an hour in all that ended so long after its start."""

    def change(lines: Lines) -> Lines:
        end = pd.Timestamp(lines.header.started_utc) + timedelta(minutes=minutes)
        return replace(lines, end=End(status="complete", ended_utc=f"{end}"))

    return in_turn(an_hour, change)


def resumed(minutes: float) -> Change:
    """A run of an hour in all that trained half of it, and was resumed so long after its start."""

    def change(lines: Lines) -> Lines:
        again = {"attempt": 2, "earlier": [lines.header], "resumed": Resumed(epoch=5, step=0)}
        return started(lambda _, at: at + timedelta(minutes=minutes))(header(**again)(lines))

    return in_turn(an_hour, change)


BOUND_ELSEWHERE = in_turn(
    workers(environment={"HOROVOD_THREAD_AFFINITY": "7"}),
    processors(process_seconds=lambda facts: 1.6 * facts.process_seconds),
)
SAME_WEIGHTS = results(
    lambda lines, result: result.model_copy(update={"weights_sha256": lines.header.initial_weights_sha256})
)


def log(edit: Callable[[list[str]], list[str]]) -> Do:
    def do(study: Path) -> None:
        path = study / RUN / LOG_NAME
        path.write_text("".join(edit(path.read_text().splitlines(keepends=True))))

    return do


def steps(edit: Callable[[pd.DataFrame], pd.DataFrame]) -> Do:
    """The single steps of RUN, changed, with their true checksum."""

    def do(study: Path) -> None:
        path = study / RUN / STEPS_NAME
        write_verified(path, edit(pd.read_parquet(path)).to_parquet(index=False))

    return do


def times(factor: float, *epochs: int) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Multiply the seconds of the steps of these epochs, or of all."""

    def edit(table: pd.DataFrame) -> pd.DataFrame:
        chosen = table["epoch"].isin(epochs) if epochs else table["epoch"] >= 0
        table = table.astype(dict.fromkeys(PHASE_COLUMNS, np.float64))
        table.loc[chosen, [*PHASE_COLUMNS]] *= factor
        return table

    return edit


def sampled(table: pd.DataFrame) -> pd.DataFrame:
    """Half of the steps, as the file of a long run has them."""
    return table[table["step"] % 2 == 0]


def unknown_phases(study: Path) -> None:
    without = in_epochs(budget=None, no_budget="where sync begins is not known")
    Runs(study).of("horovod", workers=[2], repeats=[2]).change(without)
    steps(times(np.nan))(study)


# What is done, which runs are left out for it, and a word of the reason.
CASES: Mapping[str, tuple[Do, set[str], str]] = {
    "honest": (lambda _: None, set(), ""),
    "honest, without the files beside it": (on_run(lambda lines: lines), set(), ""),
    "half the seconds": (on_run(slower(0.5, processor=False)), {RUN}, "worker 0 took"),
    "twice the seconds, and the CPU seconds": (on_run(slower(2.0)), set(), ""),
    "threads that are bound elsewhere": (on_run(BOUND_ELSEWHERE), set(), ""),
    "a suspended run": (on_run(ended(660)), set(), ""),
    "longer than from start to end": (on_run(ended(20)), {RUN}, "3600 s"),
    "resumed": (on_run(resumed(60)), set(), ""),
    "resumed too early": (on_run(resumed(5)), {RUN}, "300 s"),
    "another launch, times a factor": (
        copied(lambda _, other: slower(1.17)(other).epochs), {RUN, OTHER}, "digits",
    ),
    "another launch": (copied(lambda _, other: other.epochs), {RUN, OTHER}, "digits"),
    "one epoch of another launch": (
        copied(lambda own, other: [*own.epochs[:2], other.epochs[2], *own.epochs[3:]]), {RUN, OTHER},
        "epochs 2",
    ),
    "weights that did not change": (on_run(SAME_WEIGHTS), {RUN}, "nothing was trained"),
    "log.csv: other seconds": (
        log(lambda lines: [line.replace("2,", "2,1",
        1) if line.startswith("2,") else line for line in lines]),
        {RUN}, f"{LOG_NAME}:4",
    ),
    "log.csv: a line less": (log(lambda lines: lines[:-1]), {RUN}, f"{LOG_NAME}:11"),
    "log.csv of another tool": (
        log(lambda lines: [lines[0].replace("time_per_epoch", "seconds"), *lines[1:]]), set(), "",
    ),
    "steps: half the seconds of one epoch": (steps(times(0.5, 2)), {RUN}, "in epoch 2"),
    "steps: no last epoch": (steps(lambda table: table[table["epoch"] < 9]), {RUN}, "no step of epoch 9"),
    "steps: a sample": (steps(sampled), set(), ""),
    "steps: a sample of half the seconds": (
        steps(lambda table: times(0.5)(sampled(table))), {RUN}, "in the mean",
    ),
    "steps of phases that are not known": (unknown_phases, set(), ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    truth = Honest(workers=(2,), repeats=3, has_files=True)
    return write_honest(tmp_path_factory.mktemp("logs") / "honest", truth)


@pytest.mark.parametrize("case", CASES)
def test_a_record_that_cannot_be_is_left_out(honest: Path, tmp_path: Path, case: str) -> None:
    change, runs, words = CASES[case]
    shutil.copytree(honest, tmp_path / "honest")
    change(tmp_path / "honest")
    # Two of the cases are honest, and not to be compared with the others.
    left_out = {
        run: reason
        for run, reason in report_of(tmp_path / "honest").left_out.items()
        if "kept:" not in reason
    }
    assert set(left_out) == runs, left_out
    assert all(words in reason and RECORD_NAME in reason for reason in left_out.values()), left_out


def test_no_committed_record_contradicts_itself() -> None:
    """Dilated, emulated, played and resumed runs are among them."""
    records = [path for name in COMMITTED for path in sorted(evidence(name).glob("*/run.jsonl"))]
    assert len(records) > 400
    assert [problem for path in records for problem in impossible_values(read_record(path))] == []

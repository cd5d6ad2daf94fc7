"""Records that cannot be: one thing done to an honest study, and which runs are left out for it."""

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest

from analysis.loading.consistency import impossible_values
from analysis.loading.load import load_study
from slurm.study_folder import StudyFolder
from tests.evidence import evidence
from tests.golden_studies import COMMITTED
from tests.honest_launches import launch, opened, write
from unet_scaling.measure.step_sample import StepSample
from unet_scaling.study.files import write_verified
from unet_scaling.study.measurements import PHASE_COLUMNS, STEPS_NAME
from unet_scaling.study.record import RECORD_NAME, read_record
from unet_scaling.study.record_lines import AttemptFacts, End, Epoch, Header, Resumed
from unet_scaling.study.study_file import LOG_NAME

RUN = "horovod-w02-r2"
OTHER = "pytorch_native-w02-r1"
ONE_HOUR = 3600.0
NOON = "2025-01-31T12:00:00"


def scaled(epoch: Epoch, factor: float, *, processors: bool = False) -> Epoch:
    """The epoch with its seconds times a factor, its phases with them; CPU seconds too where asked."""
    content = epoch.model_dump()
    content["seconds"] *= factor
    content["worker_seconds"] = [factor * each for each in content["worker_seconds"]]
    for name, value in content["budget"].items():
        if isinstance(value, list):
            content["budget"][name] = [factor * each for each in value]
    content["budget"]["wire_seconds"] *= factor
    for name in ("seconds", "work_seconds"):
        content["budget"]["longest_step"][name] *= factor
    for facts in content["cpu"] if processors else ():
        facts["process_seconds"] *= factor
        facts["training_runqueue_seconds"] *= factor
        facts["thread_seconds"] = {name: factor * each for name, each in facts["thread_seconds"].items()}
    return Epoch.model_validate(content)


def rewrite(study: Path, change: Callable[[Header, list[Epoch]], tuple[Header, Iterable[Epoch]]]) -> None:
    """Write the record of RUN again, changed; what lay beside it is gone, unless it is put back."""
    record = read_record(study / RUN / RECORD_NAME)
    assert record.header is not None
    header, epochs = change(record.header, list(record.epochs))
    write(study / RUN, header, list(epochs))
    for name in (LOG_NAME, STEPS_NAME):
        (study / RUN / name).unlink()


def of_epochs(change: Callable[[Epoch], Epoch]) -> Callable[[Path], None]:
    return lambda study: rewrite(study, lambda header, epochs: (header, map(change, epochs)))


def copied_from_other(factor: float) -> Callable[[Path], None]:
    """All epochs of RUN are those of another launch times a factor."""

    def change(study: Path) -> None:
        others = read_record(study / OTHER / RECORD_NAME).epochs
        rewrite(study, lambda header, _: (header, [scaled(each, factor, processors=True) for each in others]))

    return change


def one_epoch_of_other(study: Path) -> None:
    third = read_record(study / OTHER / RECORD_NAME).epochs[2]
    rewrite(study, lambda header, epochs: (header, [*epochs[:2], third, epochs[3]]))


def half_the_cores(study: Path) -> None:
    """An honest run whose helper threads may run elsewhere: 1.6 cores of one."""

    def busier(epoch: Epoch) -> Epoch:
        more = [
            each.model_copy(update={
                "process_seconds": 1.6 * seconds,
                "thread_seconds": {**each.thread_seconds, "helper": 0.6 * seconds},
            })
            for each, seconds in zip(epoch.cpu or [], epoch.worker_seconds, strict=True)
        ]  # fmt: skip
        return epoch.model_copy(update={"cpu": more})

    def bound(header: Header, epochs: list[Epoch]) -> tuple[Header, Iterable[Epoch]]:
        environment = {"HOROVOD_THREAD_AFFINITY": "7"}
        workers = [each.model_copy(update={"environment": environment}) for each in header.workers]
        return header.model_copy(update={"workers": workers}), map(busier, epochs)

    rewrite(study, bound)


def same_weights(study: Path) -> None:
    record = read_record(study / RUN / RECORD_NAME)
    digest = record.results[-1].weights_sha256
    rewrite(
        study, lambda header, epochs: (header.model_copy(update={"initial_weights_sha256": digest}), epochs)
    )


def edited(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(study: Path) -> None:
        path = study / RUN / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


def log_without_its_last_line(study: Path) -> None:
    path = study / RUN / LOG_NAME
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def steps_of(
    change: Callable[[int, np.ndarray], np.ndarray], kept: int | None = None, epochs: int = 4
) -> Callable[[Path], None]:
    """The single steps of RUN, those of each epoch changed; of a long run only so many rows are kept."""

    def write_them(study: Path) -> None:
        record = read_record(study / RUN / RECORD_NAME)
        sample = StepSample(2, seed=3, **({"most_rows": kept} if kept else {}))
        chance = np.random.default_rng(1)
        for epoch in record.epochs[:epochs]:
            steps = np.zeros((2, epoch.steps, len(PHASE_COLUMNS)))
            shares = chance.dirichlet(np.full(epoch.steps, 50.0), size=2)
            steps[:, :, 2] = shares * np.array(epoch.worker_seconds)[:, None]
            sample.add(epoch.epoch, 0, change(epoch.epoch, steps))
        content = sample.parquet()
        assert content is not None
        write_verified(study / RUN / STEPS_NAME, content)

    return write_them


def long_run(study: Path) -> None:
    """RUN has 300 steps in an epoch."""

    def change(header: Header, epochs: list[Epoch]) -> tuple[Header, Iterable[Epoch]]:
        images = 300 * 2 * 8
        longer = [each.model_copy(update={"steps": 300, "images": images, "budget": None}) for each in epochs]
        return header.model_copy(update={"train_images": images}), longer

    rewrite(study, change)


def sampled(factor: float) -> Callable[[Path], None]:
    def change(study: Path) -> None:
        long_run(study)
        steps_of(lambda _, steps: factor * steps, kept=600)(study)

    return change


def unknown_phases(study: Path) -> None:
    of_epochs(lambda epoch: epoch.model_copy(update={"budget": None}))(study)
    steps_of(lambda _, steps: steps * np.nan)(study)


def hour(header: Header, epochs: list[Epoch]) -> tuple[Header, list[Epoch]]:
    """The epochs take an hour in all."""
    factor = ONE_HOUR / sum(each.seconds for each in epochs)
    return header, [scaled(each, factor, processors=True) for each in epochs]


def ended(clock: str) -> Callable[[Path], None]:
    """RUN has epochs of an hour in all, began at noon and ended by this clock."""

    def change(study: Path) -> None:
        rewrite(study, hour)
        record = read_record(study / RUN / RECORD_NAME)
        assert record.header is not None
        header = record.header.model_copy(update={"started_utc": f"{NOON}Z"})
        end = End(status="complete", ended_utc=f"2025-01-31T{clock}+00:00")
        write(study / RUN, header, list(record.epochs), end=end)

    return change


def resumed(clock: str) -> Callable[[Path], None]:
    """RUN began at noon, trained half an hour, and was resumed by this clock."""

    def change(study: Path) -> None:
        def later(header: Header, epochs: list[Epoch]) -> tuple[Header, Iterable[Epoch]]:
            facts = header.model_dump(include=set(AttemptFacts.model_fields)) | {"started_utc": f"{NOON}Z"}
            again = {"attempt": 2, "started_utc": f"2025-01-31T{clock}Z", "resumed": Resumed(epoch=2, step=0)}
            update = again | {"earlier": [AttemptFacts.model_validate(facts)]}
            return header.model_copy(update=update), hour(header, epochs)[1]

        rewrite(study, later)

    return change


def same(_: int, steps: np.ndarray) -> np.ndarray:
    return steps


# What is done to RUN, which runs are left out for it, and a word of the reason.
CASES: Mapping[str, tuple[Callable[[Path], None], set[str], str]] = {
    "honest": (lambda _: None, set(), ""),
    "honest, without the files beside it": (of_epochs(lambda epoch: epoch), set(), ""),
    "half the seconds": (of_epochs(lambda epoch: scaled(epoch, 0.5)), {RUN}, "worker 0 took"),
    "twice the seconds, and the CPU seconds": (
        of_epochs(lambda epoch: scaled(epoch, 2, processors=True)), set(), "",
    ),
    "threads that are bound elsewhere": (half_the_cores, set(), ""),
    "a suspended run": (ended("23:00:00"), set(), ""),
    "longer than from start to end": (ended("12:20:00"), {RUN}, "3600 s"),
    "resumed": (resumed("13:00:00"), set(), ""),
    "resumed too early": (resumed("12:05:00"), {RUN}, "300 s"),
    "another launch, times a factor": (copied_from_other(1.17), {RUN, OTHER}, "digits"),
    "another launch": (copied_from_other(1.0), {RUN, OTHER}, "digits"),
    "one epoch of another launch": (one_epoch_of_other, {RUN, OTHER}, "epochs 2 and 2"),
    "weights that did not change": (same_weights, {RUN}, "nothing was trained"),
    "log.csv: other seconds": (edited(LOG_NAME, "\n2,", "\n2,1"), {RUN}, f"{LOG_NAME}:4"),
    "log.csv: a line less": (log_without_its_last_line, {RUN}, f"{LOG_NAME}:5"),
    "log.csv of another tool": (edited(LOG_NAME, "time_per_epoch", "seconds"), set(), ""),
    "steps as in the record": (steps_of(same), set(), ""),
    "steps: half the seconds of one epoch": (
        steps_of(lambda epoch, steps: steps * (0.5 if epoch == 2 else 1)), {RUN}, "in epoch 2",
    ),
    "steps: no last epoch": (steps_of(same, epochs=3), {RUN}, "no step of epoch 3"),
    "steps: a sample": (sampled(1.0), set(), ""),
    "steps: a sample of half the seconds": (sampled(0.5), {RUN}, "in the mean"),
    "steps of phases that are not known": (unknown_phases, set(), ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    folder = opened(tmp_path_factory.mktemp("logs") / "honest", repeats=3)
    for config in folder.study.configs():
        launch(folder.run_folder(config), config)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_a_record_that_cannot_be_is_left_out(honest: StudyFolder, tmp_path: Path, case: str) -> None:
    change, runs, words = CASES[case]
    study = tmp_path / "honest"
    shutil.copytree(honest.path, study)
    change(study)
    left_out = load_study(study).all_left_out
    # Two of the cases are honest, and not to be compared with the others.
    left_out = left_out[~left_out["reason"].str.contains("kept:")]
    assert set(left_out["run"]) == runs, left_out["reason"].tolist()
    assert all(words in reason and RECORD_NAME in reason for reason in left_out["reason"])


def test_no_committed_record_contradicts_itself() -> None:
    """Dilated, emulated, played and resumed runs are among them."""
    records = [path for name in COMMITTED for path in sorted(evidence(name).glob("*/run.jsonl"))]
    assert len(records) > 400
    assert [problem for path in records for problem in impossible_values(read_record(path))] == []

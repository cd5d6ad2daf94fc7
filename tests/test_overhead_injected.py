"""The overhead budget of real runs with known faults: each lands in its own part, in both frameworks."""

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest

from analysis.budget import MOST_REST, PARTS, budget_table, network_table
from analysis.diagnosis import Diagnosis, diagnose
from analysis.load import load_study
from analysis.study import Study
from slurm.local import launch
from tests import injected
from tests.machine import needs_a_core_each, quiet_machine, skip_where_disturbed
from tests.records import write_all
from tests.studies import make_point, make_run
from unet_scaling.study.config import FRAMEWORKS, PROJECT, RunConfig
from unet_scaling.study.record import RECORD_NAME, read_record
from unet_scaling.study.record_lines import End

pytestmark = [pytest.mark.slow, pytest.mark.timing, needs_a_core_each]


FAULT_SECONDS = 0.2
# Steps of some 50 ms: a busy thread takes a core for some milliseconds at a time, and must meet the compute.
OPTIONS = {
    "epochs": injected.EPOCHS,
    "batch_per_worker": 1,
    "shared_devices": False,
    "width": 32,
    "image_height": 64,
    "image_width": 64,
}


@dataclass(frozen=True)
class InjectedPair:
    """The folders of a run on 1 worker without faults and of one on 2 workers with them."""

    alone: Path
    together: Path


@pytest.fixture(scope="module", params=FRAMEWORKS)
def pair(
    request: pytest.FixtureRequest, images: Path, tmp_path_factory: pytest.TempPathFactory
) -> InjectedPair:
    """Both runs of a framework; skipped, with the share that they took, where others disturbed them."""
    folders = []
    for workers, seconds in ((1, 0.0), (2, FAULT_SECONDS)):
        point = make_point(images, request.param, workers=workers, **OPTIONS)
        folder = make_run(tmp_path_factory.mktemp(request.param) / point.run, point)
        launch_with_faults(folder, point, seconds)
        folders.append(folder)
    return InjectedPair(*folders)


def launch_with_faults(folder: Path, point: RunConfig, seconds: float) -> None:
    """Train with faults that last so long; skip the test where the machine was not quiet meanwhile."""
    wrapper = [str(PROJECT / "tests" / "injected.py"), str(PROJECT / point.framework / "train.py")]
    output = folder / "output.log"
    with quiet_machine():
        code = launch([*wrapper, str(folder), str(seconds)], point.workers, output, cores_each=1)
        assert code == 0, output.read_text()
    skip_where_disturbed(read_record(folder / RECORD_NAME), injected.SLEEPING)


def study_of(pair: InjectedPair, epoch: int, study: Path) -> Study:
    """Both runs where this epoch alone is used: all others are flagged as warm-up.

    The run on 1 worker has no fault: its sound epoch is the baseline of every fault. What other programs did
    meanwhile is no fault of these runs.
    """
    for folder, used in ((pair.alone, injected.SOUND), (pair.together, epoch)):
        record = read_record(folder / RECORD_NAME)
        assert record.header is not None
        copy = study / folder.name
        copy.mkdir(parents=True)
        (copy / "config.json").write_bytes((folder / "config.json").read_bytes())
        epochs = [line.model_copy(update={"warmup": line.epoch != used}) for line in record.epochs]
        probe = [record.probe] if record.probe else []
        write_all(
            copy / RECORD_NAME, [record.header, *probe, *epochs, *record.results, End(status="complete")]
        )
    found = load_study(study)
    return replace(found, runs=found.runs.assign(busy_share=0.0, disturbed=""))


def budget_of(pair: InjectedPair, epoch: int, study: Path) -> "pd.Series[float]":
    """The one row of budget_table."""
    (row,) = (row for _, row in budget_table(study_of(pair, epoch, study)).iterrows())
    return row


@pytest.mark.parametrize(
    ("fault", "own_part"),
    [(injected.LOADER, "data_wait"), (injected.FORWARD, "compute"), (injected.OPTIMIZER, "optimizer")],
    ids=["loader", "forward of one worker", "optimizer"],
)
def test_a_fault_lands_in_its_part(pair: InjectedPair, fault: int, own_part: str, tmp_path: Path) -> None:
    """Against the sound epoch of the same launch, in seconds of a step: the mean over the workers in its
    own part; and as imbalance what each worker waited for the one that slept longest."""
    record = read_record(pair.together / RECORD_NAME)
    near = injected.near(record, FAULT_SECONDS, injected.SOUND, fault)
    slept = injected.slept(pair.together, record)[fault]
    expected = dict.fromkeys(PARTS, 0.0)
    expected[own_part] = slept.mean()
    expected["imbalance"] = slept.max(axis=1).mean() - slept.mean()
    assert slept.max() >= FAULT_SECONDS
    sound, faulty = (budget_of(pair, epoch, tmp_path / str(epoch)) for epoch in (injected.SOUND, fault))
    steps = {epoch: _step_seconds(pair, epoch) for epoch in (injected.SOUND, fault)}
    for part in PARTS:
        added = faulty[part] * steps[fault] - sound[part] * steps[injected.SOUND]
        assert added == pytest.approx(expected[part], abs=near), part
    assert faulty[list(PARTS)].sum() == pytest.approx(faulty["deviation"])
    assert faulty["rest_of_step"] < MOST_REST


def test_a_busy_thread_on_a_worker_s_core_slows_its_compute(pair: InjectedPair, tmp_path: Path) -> None:
    """Of what the kernel says that the training thread waited for the core, much is compute: the thread
    that carries its gradients waits for the same core, and that is wire."""
    record = read_record(pair.together / RECORD_NAME)
    waited = []
    for epoch in (injected.SOUND, injected.BUSY):
        facts = (record.epochs[epoch].cpu or [])[injected.BUSY_WORKER]
        if facts.training_runqueue_seconds is None:
            pytest.skip("this kernel does not tell how long a thread waited for a core")
        waited.append(facts.training_runqueue_seconds / record.epochs[epoch].steps)
    sound, busy = (
        budget_of(pair, epoch, tmp_path / str(epoch))["compute"] * _step_seconds(pair, epoch)
        for epoch in (injected.SOUND, injected.BUSY)
    )
    of_all_workers = (waited[1] - waited[0]) / len(record.epochs[0].worker_seconds)
    assert busy - sound > of_all_workers / 5


def test_a_busy_thread_is_named_as_core_contention(pair: InjectedPair, tmp_path: Path) -> None:
    (found,) = (each for each in _diagnoses(pair, injected.BUSY, tmp_path) if each.rule == "core contention")
    assert "the training thread waits for a core" in found.evidence


def test_a_slow_loader_is_named_first(pair: InjectedPair, tmp_path: Path) -> None:
    assert _diagnoses(pair, injected.LOADER, tmp_path)[0].rule == "input-bound"


def test_a_slow_worker_is_named_first_and_not_the_compute_of_all(pair: InjectedPair, tmp_path: Path) -> None:
    found = _diagnoses(pair, injected.FORWARD, tmp_path)
    assert found[0].finding == f"all wait for worker {injected.SLOW_WORKER}"
    # The machine may have been a little slower than in the launch on one worker; it is not half of this.
    others = [each.at_stake for each in found if each.rule == "slower compute"]
    assert all(at_stake < found[0].at_stake / 2 for at_stake in others)


def _diagnoses(pair: InjectedPair, epoch: int, folder: Path) -> list[Diagnosis]:
    study = study_of(pair, epoch, folder / "study")
    return diagnose(study, budget_table(study), network_table(study))


def _step_seconds(pair: InjectedPair, epoch: int) -> float:
    line = read_record(pair.together / RECORD_NAME).epochs[epoch]
    return line.seconds / line.steps

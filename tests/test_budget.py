"""The overhead budget of real runs: what each holds, and that known faults land in their own parts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pyarrow import parquet

from tests import injected
from tests.injected_runs import FAULT_SECONDS, InjectedPair
from tests.machine import needs_a_core_each, quiet_machine
from tests.studies import make_point, train
from tests.trained import TrainedRuns, plain_config
from unet_scaling.study.config import FRAMEWORKS
from unet_scaling.study.measurements import PHASE_COLUMNS, STEPS_NAME
from unet_scaling.study.record import Record, read_record

Seconds = npt.NDArray[np.float64]
pytestmark = [pytest.mark.slow, needs_a_core_each]


@dataclass(frozen=True)
class Steps:
    """A run's record and its steps.parquet, by column."""

    record: Record
    table: dict[str, npt.NDArray[Any]]

    @classmethod
    def read(cls, folder: Path) -> "Steps":
        table = parquet.read_table(folder / STEPS_NAME)
        columns = {name: table[name].to_numpy() for name in table.column_names}
        columns["imbalance_seconds"] = columns["sync_seconds"] - columns["wire_seconds"]
        return cls(read_record(folder / "run.jsonl"), columns)

    def column(self, name: str, epoch: int, worker: int) -> Seconds:
        """Seconds of each step."""
        chosen = (self.table["epoch"] == epoch) & (self.table["worker"] == worker)
        seconds: Seconds = self.table[name][chosen]
        return seconds


@dataclass(frozen=True)
class Injected:
    """A run with faults: its steps, and seconds slept [epochs, steps, workers]."""

    steps: Steps
    slept: Seconds

    @property
    def record(self) -> Record:
        return self.steps.record

    def added(self, name: str, epoch: int, worker: int, sleeper: int | None = None) -> float:
        """Seconds per step above those of the sound epoch, and above what `sleeper` slept in each step."""
        slept = 0.0 if sleeper is None else self.slept[epoch, :, sleeper]
        return typical(self.steps.column(name, epoch, worker) - slept) - typical(
            self.steps.column(name, injected.SOUND, worker)
        )


def typical(seconds: Seconds) -> float:
    """Lower quartile over the steps: what else runs on the machine only ever adds to a step."""
    return float(np.quantile(seconds, 0.25))


@pytest.fixture
def run(injected_pair: InjectedPair) -> Injected:
    steps = Steps.read(injected_pair.together)
    return Injected(steps, injected.slept(injected_pair.together, steps.record))


@pytest.fixture(scope="module", params=FRAMEWORKS)
def sound(request: pytest.FixtureRequest, images: Path, trained_run: TrainedRuns) -> Steps:
    """A run of two workers, a core each, whose times nobody compares."""
    return Steps.read(trained_run(plain_config(images, request.param)).folder)


@pytest.mark.timing
@pytest.mark.parametrize(
    ("epoch", "column"),
    [(injected.LOADER, "data_wait_seconds"), (injected.OPTIMIZER, "optimizer_seconds")],
)
def test_what_all_workers_wait_for_lands_in_its_own_phase(run: Injected, epoch: int, column: str) -> None:
    near = injected.near(run.record, FAULT_SECONDS, injected.SOUND, epoch)
    for worker in (0, 1):
        assert typical(run.slept[epoch, :, worker]) >= FAULT_SECONDS
        found = {name: run.added(name, epoch, worker) for name in PHASE_COLUMNS if name != column}
        found[column] = run.added(column, epoch, worker, sleeper=worker)
        assert all(abs(added) < near for added in found.values()), found


@pytest.mark.timing
def test_a_slow_forward_is_the_other_workers_imbalance_and_not_the_wire(run: Injected) -> None:
    slow, other = injected.SLOW_WORKER, 1 - injected.SLOW_WORKER
    near = injected.near(run.record, FAULT_SECONDS, injected.SOUND, injected.FORWARD)
    assert typical(run.slept[injected.FORWARD, :, slow]) >= FAULT_SECONDS
    assert abs(run.added("forward_seconds", injected.FORWARD, slow, sleeper=slow)) < near
    assert abs(run.added("imbalance_seconds", injected.FORWARD, other, sleeper=slow)) < near
    assert abs(run.added("wire_seconds", injected.FORWARD, slow)) < near
    assert abs(run.added("imbalance_seconds", injected.FORWARD, slow)) < near
    for column in ("data_wait_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds"):
        assert abs(run.added(column, injected.FORWARD, other)) < near


@pytest.mark.timing
def test_a_busy_thread_on_the_core_shows_in_the_processor_facts(run: Injected) -> None:
    sound, busy = (run.record.epochs[epoch] for epoch in (injected.SOUND, injected.BUSY))
    assert sound.cpu is not None
    assert busy.cpu is not None
    worker = injected.BUSY_WORKER
    before, after = sound.cpu[worker], busy.cpu[worker]
    helpers = after.process_seconds - after.thread_seconds["training"]
    assert helpers / after.process_seconds > 0.3
    assert before.process_seconds - before.thread_seconds["training"] < helpers
    assert after.training_runqueue_seconds is None or after.training_runqueue_seconds > 0


def test_the_record_holds_the_same_phases_as_the_steps(sound: Steps) -> None:
    for epoch in sound.record.epochs:
        assert epoch.budget is not None
        assert epoch.budget.worker_sums() == pytest.approx(epoch.worker_seconds, rel=1e-6)
        for column in PHASE_COLUMNS:
            sums = [sound.column(column, epoch.epoch, worker).sum() for worker in (0, 1)]
            assert sums == pytest.approx(getattr(epoch.budget, column), abs=1e-8)
        wire = sound.column("wire_seconds", epoch.epoch, 0).sum()
        assert wire == pytest.approx(epoch.budget.wire_seconds, abs=1e-8)


@pytest.mark.timing
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_little_is_left_over(framework: str, images: Path, tmp_path: Path) -> None:
    """Steps of this tiny model are the hardest case: what is left is some tens of microseconds."""
    with quiet_machine():
        point = make_point(images, framework, 2, epochs=2, batch_per_worker=1, shared_devices=False)
        train(tmp_path, point, cores_each=1)
    found = Steps.read(tmp_path)
    for worker in (0, 1):
        step = sum(typical(found.column(name, 1, worker)) for name in PHASE_COLUMNS)
        assert typical(found.column("rest_seconds", 1, worker)) < 0.02 * step


def test_every_worker_tells_its_processor_facts(sound: Steps) -> None:
    for epoch in sound.record.epochs:
        assert epoch.cpu is not None
        for facts in epoch.cpu:
            assert facts.cores == 1
            assert sum(facts.thread_seconds.values()) == pytest.approx(facts.process_seconds, rel=0.1)
            assert list(facts.thread_seconds)[:2] == ["training", "communication"]
        assert epoch.gpu is None


def test_the_network_is_probed_before_training(sound: Steps) -> None:
    probe = sound.record.probe
    assert probe is not None
    assert probe.bytes[0] == 4
    assert probe.bytes[-1] >= 4**10
    assert probe.bytes == sorted(probe.bytes)
    both = zip(probe.minimum_seconds, probe.median_seconds, strict=True)
    assert all(0 < least <= median for least, median in both)


def test_a_budget_that_is_off_leaves_nothing_and_changes_nothing(
    images: Path, trained_run: TrainedRuns
) -> None:
    """Under Horovod: what measures is the same code, but only there does it call into another library."""
    on, off = (trained_run(plain_config(images, "horovod", budget=choice)) for choice in ("on", "off"))
    assert on.record.epochs[0].budget is not None
    epoch = off.record.epochs[0]
    assert [epoch.budget, epoch.no_budget, epoch.cpu, epoch.gpu, off.record.probe] == [None] * 5
    assert (on.folder / STEPS_NAME).exists()
    assert not (off.folder / STEPS_NAME).exists()
    assert on.record.results[-1].weights_sha256 == off.record.results[-1].weights_sha256


def test_one_worker_has_no_network_to_probe(images: Path, trained_run: TrainedRuns) -> None:
    assert trained_run(plain_config(images, workers=1)).record.probe is None

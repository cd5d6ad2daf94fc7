"""Real runs with known faults: each lands in its own phase of the record, in both frameworks."""

from pathlib import Path

import numpy as np
import pytest

from slurm.local import launch
from tests import injected
from tests.machine import needs_a_core_each, quiet_machine, skip_where_disturbed
from tests.studies import make_point, make_run
from unet_scaling.study.config import FRAMEWORKS, PROJECT
from unet_scaling.study.record import RECORD_NAME, Record, read_record
from unet_scaling.study.record_lines import PHASE_COLUMNS

pytestmark = [pytest.mark.slow, pytest.mark.timing, needs_a_core_each]


FAULT_SECONDS = 0.2
# Steps of some 50 ms.
OPTIONS = {
    "epochs": injected.EPOCHS,
    "batch_per_worker": 1,
    "shared_devices": False,
    "width": 32,
    "image_height": 64,
    "image_width": 64,
}


@pytest.fixture(scope="module", params=FRAMEWORKS)
def folder(request: pytest.FixtureRequest, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 2 workers with a fault in an epoch each; skipped where others disturbed it."""
    point = make_point(images, request.param, workers=2, **OPTIONS)
    run = make_run(tmp_path_factory.mktemp(request.param) / point.run, point)
    wrapper = [str(PROJECT / "tests" / "injected.py"), str(PROJECT / point.framework / "train.py")]
    with quiet_machine():
        code = launch([*wrapper, str(run), str(FAULT_SECONDS)], 2, run / "output.log", cores_each=1)
        assert code == 0, (run / "output.log").read_text()
    skip_where_disturbed(read_record(run / RECORD_NAME), injected.SLEEPING)
    return run


def of_a_step(record: Record, epoch: int, phase: str) -> np.ndarray:
    """Seconds of a phase in a step, by worker."""
    line = record.epochs[epoch]
    return np.array(getattr(line.budget, phase)) / line.steps


@pytest.mark.parametrize(
    ("fault", "own_phase"),
    [
        (injected.LOADER, "data_wait_seconds"), (injected.FORWARD, "forward_seconds"),
        (injected.OPTIMIZER, "optimizer_seconds"),
    ],
    ids=["loader", "forward of one worker", "optimizer"],
)  # fmt: skip
def test_a_fault_lands_in_its_phase_and_who_waits_for_it_is_in_sync(
    fault: int, own_phase: str, folder: Path
) -> None:
    """Against the sound epoch of the same launch."""
    record = read_record(folder / RECORD_NAME)
    near = injected.near(record, FAULT_SECONDS, injected.SOUND, fault)
    slept = injected.slept(folder, record)[fault]
    assert slept.max() >= FAULT_SECONDS
    for phase in PHASE_COLUMNS:
        expected = slept.mean(axis=0) if phase == own_phase else np.zeros(2)
        if phase == "sync_seconds":
            expected = (slept.max(axis=1, keepdims=True) - slept).mean(axis=0)
        added = of_a_step(record, fault, phase) - of_a_step(record, injected.SOUND, phase)
        assert added == pytest.approx(expected, abs=near), phase

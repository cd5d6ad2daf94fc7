"""One launch of tests/injected.py per framework, and its baseline, that all tests of known faults share."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm.local import launch
from tests import injected
from tests.machine import quiet_machine, skip_where_disturbed
from tests.studies import make_point, make_run
from unet_scaling.study.config import FRAMEWORKS, PROJECT, RunConfig
from unet_scaling.study.record import RECORD_NAME, read_record

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


@pytest.fixture(scope="session", params=FRAMEWORKS)
def injected_pair(
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

"""Lightning Fabric and Accelerate as twins: they adopt the group that is there, and change nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slurm import preflight
from slurm.mpi import launch_environment
from slurm.preflight import check_inputs
from tests.faults import Fault, attempt, checkpoints, fault_point
from tests.studies import make_point, make_run
from tests.trained import TrainedRuns, plain_config
from tests.wrappers import each_wrapper
from unet_scaling.group.provenance import speed_variables
from unet_scaling.group.torchrun import require_all_workers
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import UserError

NATIVE = "pytorch_native"
EVERY_STEP_MINUTES = 1e-6


@pytest.mark.slow
@each_wrapper
def test_losses_of_four_workers_are_those_of_native_ddp(
    framework: str, images: Path, trained_run: TrainedRuns
) -> None:
    native, other = (trained_run(plain_config(images, name, 4)) for name in (NATIVE, framework))
    assert other.losses == pytest.approx(native.losses, rel=1e-6)


@pytest.mark.slow
@each_wrapper
def test_a_nan_on_one_worker_ends_all_as_diverged_and_never_reaches_the_weights(
    framework: str, images: Path, tmp_path: Path
) -> None:
    """With two passes to a step, gradients held back in the first."""
    point = fault_point(images, framework, checkpoint_minutes=EVERY_STEP_MINUTES)
    run = tmp_path / "run"
    diverged = attempt(run, point, Fault("nan", 5, every_step_is_safe=True))
    assert set(diverged.codes.values()) == {70}
    assert diverged.state.state == "diverged"
    assert checkpoints(run) == [f"checkpoint-00000-000000{step}.pt" for step in (3, 4)]


@pytest.mark.slow
@each_wrapper
def test_a_worker_neither_starts_mpi_nor_takes_other_threads_than_its_cores(
    framework: str, images: Path, tmp_path: Path
) -> None:
    outcome = attempt(tmp_path / "run", fault_point(images, framework), Fault("telling", 3, others="telling"))
    assert set(outcome.codes.values()) == {0}
    assert outcome.record.header is not None
    assert [worker.threads for worker in outcome.record.header.workers] == [1, 1]
    assert {name for worker in outcome.record.header.workers for name in worker.environment or {}} <= set(
        speed_variables(launch_environment())
    ), "a variable that the import of a wrapper sets: its runs would be compared with none of native DDP"
    for rank in (0, 1):
        told = json.loads((tmp_path / f"run.told{rank}").read_text())
        assert told == {"mpi4py.MPI": False, "threads": 1}


@pytest.mark.slow
@each_wrapper
def test_a_worker_that_would_train_alone_ends_with_both_counts(
    framework: str, images: Path, tmp_path: Path
) -> None:
    folder = make_run(tmp_path / "run", make_point(images, framework, 2))
    command = [sys.executable, str(PROJECT / framework / "train.py"), str(folder)]
    alone = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert alone.returncode == 2
    assert "asks for 2 workers, but this process is one of 1" in alone.stderr


def test_a_wrapper_that_counts_other_workers_is_refused_with_both_counts(images: Path) -> None:
    point = make_point(images, "accelerate", 2)
    require_all_workers("Accelerate", 2, point)
    with pytest.raises(UserError, match="asks for 2 workers, but Accelerate counts 1") as refused:
        require_all_workers("Accelerate", 1, point)
    assert refused.value.exit_code == 2


def test_a_missing_package_is_one_line_with_the_command_that_installs_it(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(preflight.FRAMEWORK_PACKAGES, "lightning", "a-package-that-nobody-has")
    with pytest.raises(UserError) as refused:
        check_inputs([make_point(images, "lightning")])
    assert str(refused.value) == (
        "lightning needs a-package-that-nobody-has, which is not installed; "
        "run environment/install.sh --with lightning"
    )

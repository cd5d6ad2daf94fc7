"""One worker fails, dies, lacks memory, meets a NaN or a signal: real processes, both frameworks."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.faults import STEPS, Fault, attempt, checkpoints, fault_point, steps_done, trained
from unet_scaling.run.failure import reporting_errors
from unet_scaling.run.interruption import STOP_AT_VARIABLE
from unet_scaling.study.config import FRAMEWORKS
from unet_scaling.study.errors import UserError, report_name
from unet_scaling.study.record import Record

pytestmark = pytest.mark.slow
both_frameworks = pytest.mark.parametrize("framework", FRAMEWORKS)
EVERY_STEP = 1e-6  # minutes between checkpoints
SIGNALS = {"pytorch_native": "SIGTERM", "horovod": "SIGUSR2"}
LIMIT_SECONDS = 270  # less than the others would wait: training.timeout_seconds is 300


@both_frameworks
def test_a_signal_to_one_worker_stops_all_in_order_and_nothing_changes(
    framework: str, images: Path, tmp_path: Path, undisturbed: dict[str, list[object]]
) -> None:
    """In the middle of an epoch, with evaluations in between and two passes to a step.

    One signal for each framework: what listens to them is the same code.
    """
    signal = SIGNALS[framework]
    point = fault_point(images, framework)
    run = tmp_path / "run"
    stopped = attempt(run, point, Fault(signal, STEPS + 4, every_step_is_safe=True))
    assert set(stopped.codes.values()) == {75}
    assert stopped.state.state == "resumable"
    assert signal in stopped.state.reason
    assert stopped.position == (1, 4)
    assert stopped.errors == []
    resumed = attempt(run, point)
    assert steps_done(resumed) == STEPS + 4
    assert trained(resumed.record) == undisturbed[framework]
    assert checkpoints(run) == []
    assert len(processes_of_attempts(resumed.record)) == 2 * point.workers


def processes_of_attempts(record: Record) -> set[int]:
    """Processes of all workers of all attempts that the record of the last one names."""
    assert record.header is not None
    return {worker.process for facts in record.header.attempts() for worker in facts.workers}


def test_the_end_of_the_jobs_time_stops_all_in_order_without_a_signal(images: Path, tmp_path: Path) -> None:
    """From there on it is the code that answers a signal: see above for both frameworks and resuming."""
    point = fault_point(images, "horovod")
    stopped = attempt(tmp_path / "run", point, variable=(STOP_AT_VARIABLE, str(time.time())))
    assert set(stopped.codes.values()) == {75}
    assert (stopped.state.state, stopped.position) == ("resumable", (0, 1))
    assert "the job's time is nearly over" in stopped.state.reason
    assert checkpoints(tmp_path / "run") == ["checkpoint-00000-0000001.pt"]


@both_frameworks
def test_a_killed_worker_costs_one_interval_and_nothing_changes(
    framework: str, images: Path, tmp_path: Path, undisturbed: dict[str, list[object]]
) -> None:
    point = fault_point(images, framework, checkpoint_minutes=EVERY_STEP)
    run = tmp_path / "run"
    killed = attempt(run, point, Fault("kill", 6, every_step_is_safe=True))
    assert 1 not in killed.codes
    assert killed.codes.get(0) != 0
    assert killed.seconds < LIMIT_SECONDS
    assert (killed.state.state, bool(killed.state.reason)) == ("failed", True)
    newest = run / checkpoints(run)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    half_written = [run / ".checkpoint-00000-0000006.pt.k1ll3d", run / ".error.attempt1.worker1.json.k1ll3d"]
    for path in half_written:
        path.touch(0o600)
    resumed = attempt(run, point)
    assert not any(path.exists() for path in half_written)
    assert f"{newest} cannot be used" in resumed.output
    assert steps_done(resumed) == 4
    assert trained(resumed.record) == undisturbed[framework]


@both_frameworks
def test_the_worker_that_failed_first_is_named(framework: str, images: Path, tmp_path: Path) -> None:
    failed = attempt(tmp_path / "run", fault_point(images, framework), Fault("exception", 3))
    assert failed.seconds < LIMIT_SECONDS
    assert failed.codes[1] == 1
    assert failed.codes.get(0) != 0
    assert failed.state.state == "failed"
    assert failed.state.reason.startswith("worker 1 on ")
    cause = failed.errors[-1]
    assert (cause["worker"], cause["attempt"]) == (1, 1)
    assert "a fault of this test" in failed.state.reason
    assert "ArithmeticError" in cause["traceback"]


def lack_host_memory() -> None:
    torch.empty(2**60, dtype=torch.uint8)


def lack_device_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


@pytest.mark.parametrize("lack", [lack_host_memory, lack_device_memory])
def test_a_lack_of_memory_is_reported_with_batch_image_size_and_peak(
    lack: Callable[[], None], images: Path, tmp_path: Path
) -> None:
    """What follows a report is the same for every failure."""
    point = fault_point(images, "pytorch_native")
    with pytest.raises(UserError, match="out of memory"), reporting_errors(tmp_path, point, 1):
        lack()
    report = json.loads((tmp_path / report_name(1, 0)).read_text())
    assert "out of memory with training.batch_per_worker = 1 images of 32 x 32, peak " in report["message"]


def test_a_lack_of_memory_among_the_maps_names_their_batch(images: Path, tmp_path: Path) -> None:
    def explain() -> None:
        lack_device_memory()

    def main() -> None:
        with reporting_errors(tmp_path, fault_point(images, "pytorch_native"), 1):
            explain()

    with pytest.raises(UserError, match=r"with saliency\.batch = 16 .*choose a smaller saliency\.batch,"):
        main()


@pytest.mark.parametrize(("framework", "value"), [("pytorch_native", "nan"), ("horovod", "infinity")])
def test_a_number_that_is_not_finite_on_one_worker_ends_all_as_diverged(
    framework: str, value: str, images: Path, tmp_path: Path
) -> None:
    point = fault_point(images, framework, checkpoint_minutes=EVERY_STEP)
    run = tmp_path / "run"
    diverged = attempt(run, point, Fault(value, 5, every_step_is_safe=True))
    assert set(diverged.codes.values()) == {70}
    assert diverged.state.state == "diverged"
    assert "epoch 0, up to its step 5" in diverged.state.reason
    assert diverged.record.results == ()
    assert checkpoints(run) == [f"checkpoint-00000-000000{step}.pt" for step in (3, 4)]
    assert not (run / "weights.pt").exists()

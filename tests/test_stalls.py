"""A worker stalls, or never joins: the others say so, and the whole launch ends within the time-out."""

import os
import threading
import time
from pathlib import Path

import pytest

from tests.faults import STEPS, Fault, attempt, checkpoints, fault_point, steps_done, trained
from tests.faulty import PAUSE_SECONDS
from tests.trained import TrainedRuns
from tests.wrappers import each_wrapper, framework_parameter
from unet_scaling.group.watchdog import blocking, start_watchdog
from unet_scaling.study.disturbance import disturbance

# More than one worker takes longer to start than the other, on a machine with other work, too.
LIMIT_SECONDS = 6
# Less than faulty.STALL_SECONDS and the default of training.timeout_seconds; a stopped one is so for ever.
FAR_BELOW_DEFAULT_SECONDS = 270
EVERY_STEP_MINUTES = 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "what", "worker"),
    [
        ("pytorch_native", "sleep", 1),
        ("pytorch_native", "stop", 0),
        ("horovod", "stop", 0),
        framework_parameter("lightning", "stop", 0),
        framework_parameter("accelerate", "stop", 0),
    ],
)
def test_a_worker_that_stalls_is_named_and_ended_with_the_others(
    what: str, worker: int, framework: str, images: Path, tmp_path: Path
) -> None:
    """Asleep in Python, or stopped with all its threads: also worker 0, on which Horovod looks for stalls.

    Horovod's other worker, stopped, is that of the next test.
    """
    point = fault_point(
        images, framework, timeout_seconds=LIMIT_SECONDS, checkpoint_minutes=EVERY_STEP_MINUTES
    )
    other = 1 - worker
    stalled = attempt(tmp_path / "run", point, Fault(what, 5, worker, every_step_is_safe=True))
    assert stalled.seconds < FAR_BELOW_DEFAULT_SECONDS
    assert stalled.codes == {other: 1}
    assert stalled.state.state == "failed"
    assert stalled.state.reason.startswith(f"worker {other} on ")
    assert (
        f"waited {LIMIT_SECONDS} s (training.timeout_seconds) in train_epoch for another worker"
        in stalled.state.reason
    )
    assert stalled.state.reason.endswith(f"worker {worker} did not report")
    assert [report["worker"] for report in stalled.errors] == [other]
    assert "train_epoch" in stalled.errors[0]["traceback"]
    assert checkpoints(tmp_path / "run") == [f"checkpoint-00000-000000{step}.pt" for step in (3, 4)]


@pytest.mark.slow
@each_wrapper
def test_a_run_goes_on_from_the_last_good_state_after_a_worker_was_stopped(
    framework: str, images: Path, tmp_path: Path, trained_run: TrainedRuns
) -> None:
    """The worker that saves nothing, and what native DDP trains where nothing happens."""
    point = fault_point(
        images, framework, timeout_seconds=LIMIT_SECONDS, checkpoint_minutes=EVERY_STEP_MINUTES
    )
    stopped = attempt(tmp_path / "run", point, Fault("stop", 5, 1, every_step_is_safe=True))
    assert stopped.codes == {0: 1}
    assert stopped.state.reason.endswith("worker 1 did not report")
    resumed = attempt(tmp_path / "run", point)
    assert steps_done(resumed) == 4
    assert trained(resumed.record) == trained(trained_run(fault_point(images, "pytorch_native")).record)


@pytest.mark.slow
def test_a_worker_told_to_end_while_it_waits_for_a_lost_one_leaves_in_time_and_says_so(
    images: Path, tmp_path: Path
) -> None:
    """As srun tells the others when one has died; training.timeout_seconds is 300."""
    lost = attempt(tmp_path / "run", fault_point(images, "horovod"), Fault("stop", 5, 1, others="SIGTERM"))
    assert lost.seconds < FAR_BELOW_DEFAULT_SECONDS
    assert lost.codes == {0: 1}
    assert "SIGTERM, and no safe point within 15 s: has another worker died?" in lost.state.reason
    assert lost.errors[0]["during"] == "train_epoch"


@pytest.mark.slow
def test_a_worker_that_never_joins_is_waited_for_no_longer(images: Path, tmp_path: Path) -> None:
    """Under MPI, which waits for ever; of native DDP, whose store waits, see tests/test_rendezvous.py."""
    point = fault_point(images, "horovod", timeout_seconds=LIMIT_SECONDS)
    stalled = attempt(tmp_path / "run", point, Fault("stop", 0))
    assert stalled.seconds < FAR_BELOW_DEFAULT_SECONDS
    assert stalled.state.state == "failed"
    assert f"waited {LIMIT_SECONDS} s (training.timeout_seconds) in join_group" in stalled.state.reason


@pytest.mark.slow
def test_a_worker_that_fails_before_it_has_joined_is_not_waited_for_at_all(
    images: Path, tmp_path: Path
) -> None:
    """One worker takes all cores of this machine, so that none are left for the other."""
    cores = len(os.sched_getaffinity(0))
    failed = attempt(tmp_path / "run", fault_point(images, "pytorch_native"), cores_each=cores)
    assert failed.seconds < FAR_BELOW_DEFAULT_SECONDS
    assert failed.state.state == "failed"
    assert f"worker 1 has no {cores} cores left" in failed.state.reason


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch_native", "horovod"])
def test_a_worker_that_decodes_for_longer_than_the_time_out_is_waited_for(
    framework: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNET_SCALING_CACHE", str(tmp_path / "cache"))
    point = fault_point(images, framework, timeout_seconds=LIMIT_SECONDS)
    slow = attempt(tmp_path / "run", point, Fault("slow decoding", 0, worker=0))
    assert slow.record.complete, slow.output
    assert slow.seconds > 3 * LIMIT_SECONDS


@pytest.mark.slow
def test_a_worker_whose_decoding_stands_still_is_named(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNET_SCALING_CACHE", str(tmp_path / "cache"))
    point = fault_point(images, "horovod", timeout_seconds=LIMIT_SECONDS)
    stuck = attempt(tmp_path / "run", point, Fault("stuck decoding", 0, worker=0))
    assert stuck.seconds < FAR_BELOW_DEFAULT_SECONDS
    assert f"waited {LIMIT_SECONDS} s (training.timeout_seconds) in load_data" in stuck.state.reason
    assert stuck.state.reason.endswith("worker 0 did not report")


@pytest.mark.slow
def test_a_run_told_to_stop_in_its_last_step_stops_before_its_evaluation(
    images: Path, tmp_path: Path, undisturbed: dict[str, list[object]]
) -> None:
    point = fault_point(images, "pytorch_native")
    stopped = attempt(tmp_path / "run", point, Fault("SIGUSR2", 3 * STEPS))
    assert stopped.state.state == "resumable"
    assert stopped.position == (3, 0)
    assert stopped.state.reason.endswith("stopped after epoch 3")
    resumed = attempt(tmp_path / "run", point)
    assert steps_done(resumed) == 3 * STEPS
    assert trained(resumed.record) == undisturbed["pytorch_native"]


@pytest.mark.slow
def test_a_worker_that_stands_still_within_its_time_out_is_named_as_a_stall(
    images: Path, tmp_path: Path
) -> None:
    """Stopped with all its threads, then continued: the record is complete, and says where.

    Native DDP, whose workers wait without spinning: what is judged is the record, alike for all frameworks.
    """
    point = fault_point(images, "pytorch_native")
    paused = attempt(tmp_path / "run", point, Fault("pause", STEPS + 4, worker=1))
    assert paused.record.complete, paused.record.problems
    judged = disturbance(paused.record)
    longest = max(judged.stalls, key=lambda stall: stall.seconds)
    assert longest.seconds >= PAUSE_SECONDS
    assert (longest.epoch, longest.worker) == (1, 1)
    assert str(longest) in judged.reason


def test_only_waiting_counts_and_not_the_time_between() -> None:
    gave_up = threading.Event()
    start_watchdog(0.1, gave_up.set)
    with blocking:
        pass
    time.sleep(0.5)
    assert not gave_up.is_set()
    with blocking, blocking:
        assert gave_up.wait(timeout=60)

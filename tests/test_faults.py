"""One worker dies, is told to stop, fails, meets a NaN or a full disk, stalls or never joins: real workers.

What is the same code under all frameworks is shown under one of them; that each goes on with the same bytes
shows in tests/test_equality.py.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from slurm.launch.processes import launch_environment
from tests.disks import small_disk
from tests.faults import (
    SECONDS_FULL_VARIABLE,
    STEPS,
    Fault,
    attempt,
    checkpoints,
    fault_point,
    framework_parameter,
    steps_done,
    trained,
)
from tests.faults import plain_runs as plain_runs
from tests.faulty import PAUSE_SECONDS, SLOW_IMAGE_SECONDS, SLOW_IMAGES
from unet_scaling.base.errors import UserError, error_file_name
from unet_scaling.format.disturbance import UNCOUNTED, disturbance
from unet_scaling.format.record import RECORD_NAME
from unet_scaling.group.watchdog import blocking, start_watchdog
from unet_scaling.group.worker import speed_variables
from unet_scaling.run.checkpoint import STOP_AT_VARIABLE
from unet_scaling.run.run_folder import reporting_errors

EVERY_STEP = 1e-6  # minutes between checkpoints
# More than one worker takes longer to start than the other, on a slow machine with other work, too.
LIMIT_SECONDS = 15
# Less than faulty.STALL_SECONDS and the default of training.timeout_seconds; a stopped one is so for ever.
FAR_BELOW_DEFAULT_SECONDS = 270


@pytest.mark.slow
def test_a_killed_run_and_a_stopped_one_go_on_and_nothing_changes(
    images: Path, tmp_path: Path, undisturbed: list[object]
) -> None:
    """Killed in an epoch, with its newest checkpoint cut; then told to stop in the last step of the last."""
    point = fault_point(images, "horovod", checkpoint_minutes=EVERY_STEP)
    run = tmp_path / "run"
    killed = attempt(run, point, Fault("kill", 6, every_step_is_safe=True))
    assert 1 not in killed.codes
    assert killed.codes.get(0) != 0
    assert killed.seconds < FAR_BELOW_DEFAULT_SECONDS
    assert (killed.state.state, bool(killed.state.reason)) == ("failed", True)
    newest = run / checkpoints(run)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    half_written = [run / ".checkpoint-00000-0000006.pt.k1ll3d", run / ".error.attempt1.worker1.json.k1ll3d"]
    for path in half_written:
        path.touch(0o600)
    stopped = attempt(run, point, Fault("SIGUSR2", 3 * STEPS - 4))
    assert not any(path.exists() for path in half_written)
    assert f"{newest} cannot be used" in stopped.output
    assert steps_done(stopped) == 4
    assert set(stopped.codes.values()) == {75}
    assert (stopped.state.state, stopped.position, stopped.errors) == ("resumable", (3, 0), [])
    assert "SIGUSR2" in stopped.state.reason
    resumed = attempt(run, point).record
    assert trained(resumed) == undisturbed
    assert checkpoints(run) == []
    assert resumed.header is not None
    of_attempts = [worker.process for facts in resumed.header.attempts() for worker in facts.workers]
    assert len(set(of_attempts)) == 3 * point.workers


@pytest.mark.slow
def test_a_run_stops_in_order_as_its_jobs_time_ends_and_where_it_is_asked_to_in_an_evaluation(
    images: Path, tmp_path: Path
) -> None:
    """Without a signal, after the first step; after the evaluation; after the last one it has ended."""
    point = fault_point(images, "pytorch_native", workers=1, batch_per_worker=2)
    late = attempt(tmp_path / "run", point, variable=(STOP_AT_VARIABLE, str(time.time())))
    assert set(late.codes.values()) == {75}
    assert (late.state.state, late.position) == ("resumable", (0, 1))
    assert "the job's time is nearly over" in late.state.reason
    assert checkpoints(tmp_path / "run") == ["checkpoint-00000-0000001.pt"]
    stopped = attempt(tmp_path / "run", point, Fault("SIGUSR2 in the evaluation", STEPS - 1, worker=0))
    assert set(stopped.codes.values()) == {75}
    assert (stopped.position, len(stopped.record.results)) == ((1, 0), 1)
    ended = attempt(tmp_path / "run", point, Fault("SIGUSR2 in the evaluation", 2 * STEPS, worker=0))
    assert (set(ended.codes.values()), len(ended.record.results)) == ({0}, 3)


@pytest.mark.slow
def test_an_attempt_with_another_variable_begins_anew_and_the_run_is_one_of_a_single_attempt(
    images: Path, tmp_path: Path
) -> None:
    """The report would leave it out if it went on: it would train for nothing."""
    point = fault_point(images, "pytorch_native", workers=1, batch_per_worker=2)
    run = tmp_path / "run"
    stopped = attempt(run, point, Fault("SIGUSR2", STEPS + 1, worker=0))
    assert set(stopped.codes.values()) == {75}
    again = attempt(run, point, variable=("OMP_SCHEDULE", "static"))
    assert "environment OMP_SCHEDULE: not set in attempt 1, but static in attempt 2" in again.output
    assert f"it begins anew; what was trained lies in {run}/checkpoints.attempt1" in again.output
    assert again.record.complete, again.record.problems
    assert [epoch.epoch for epoch in again.record.epochs] == [0, 1, 2]
    assert again.record.header is not None
    assert (again.record.header.earlier, again.record.header.resumed) == ([], None)
    assert not (run / "checkpoints.attempt1").exists()


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["horovod", pytest.param("pytorch_native", marks=pytest.mark.verify)])
def test_the_worker_that_failed_first_is_named(framework: str, images: Path, tmp_path: Path) -> None:
    failed = attempt(tmp_path / "run", fault_point(images, framework), Fault("exception", 3))
    assert failed.seconds < FAR_BELOW_DEFAULT_SECONDS
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


def explain() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


@pytest.mark.parametrize(
    ("fails", "named"),
    [
        (lack_host_memory, "training.batch_per_worker = 1 images of 32 x 32, peak "),
        (explain, "saliency.batch = 16"),
    ],
)
def test_a_lack_of_memory_is_reported_with_batch_image_size_and_peak(
    fails: Callable[[], None], named: str, images: Path, tmp_path: Path
) -> None:
    def main() -> None:
        with reporting_errors(tmp_path, fault_point(images, "pytorch_native"), 1):
            fails()

    with pytest.raises(UserError, match="out of memory"):
        main()
    assert named in json.loads((tmp_path / error_file_name(1, 0)).read_text())["message"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "value"),
    [("horovod", "infinity"), framework_parameter("lightning", "nan", marks=[pytest.mark.verify])],
)
def test_a_number_that_is_not_finite_on_one_worker_ends_all_as_diverged(
    framework: str, value: str, images: Path, tmp_path: Path
) -> None:
    """With two passes to a step, gradients held back in the first. Worker 0 tells what a wrapper changed."""
    point = fault_point(images, framework, checkpoint_minutes=EVERY_STEP)
    run = tmp_path / "run"
    diverged = attempt(run, point, Fault(value, 5, every_step_is_safe=True, others="telling"))
    assert set(diverged.codes.values()) == {70}
    assert diverged.state.state == "diverged"
    assert "epoch 0, up to its step 5" in diverged.state.reason
    assert diverged.record.results == ()
    assert checkpoints(run) == [f"checkpoint-00000-000000{step}.pt" for step in (3, 4)]
    assert not (run / "weights.pt").exists()
    assert diverged.record.header is not None
    workers = diverged.record.header.workers
    assert [worker.threads for worker in workers] == [1, 1]
    set_by_import = {name for worker in workers for name in worker.environment or {}}
    assert set_by_import <= set(speed_variables(launch_environment()))
    told = json.loads((tmp_path / "run.told0").read_text())
    assert told["threads"] == 1
    assert framework == "horovod" or not told["mpi4py.MPI"]


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["horovod", pytest.param("pytorch_native", marks=pytest.mark.verify)])
def test_a_worker_that_stalls_is_named_and_ended_with_the_others(
    framework: str, images: Path, tmp_path: Path
) -> None:
    """Stopped with all its threads: worker 0, on which Horovod looks for stalls. The wrappers are DDP."""
    point = fault_point(images, framework, timeout_seconds=LIMIT_SECONDS, checkpoint_minutes=EVERY_STEP)
    stalled = attempt(tmp_path / "run", point, Fault("stop", 5, 0, every_step_is_safe=True))
    assert stalled.seconds < FAR_BELOW_DEFAULT_SECONDS
    assert stalled.codes == {1: 1}
    assert stalled.state.state == "failed"
    assert stalled.state.reason.startswith("worker 1 on ")
    assert f"waited {LIMIT_SECONDS} s (training.timeout_seconds) in train_epoch" in stalled.state.reason
    assert stalled.state.reason.endswith("worker 0 did not report")
    assert [(report["worker"], report["during"]) for report in stalled.errors] == [(1, "train_epoch")]
    assert checkpoints(tmp_path / "run") == [f"checkpoint-00000-000000{step}.pt" for step in (3, 4)]


@pytest.mark.slow
def test_a_worker_told_to_end_while_it_waits_for_a_lost_one_leaves_in_time_and_says_so(
    images: Path, tmp_path: Path
) -> None:
    """As srun tells the others when one has died; training.timeout_seconds is 300."""
    lost = attempt(
        tmp_path / "run", fault_point(images, "horovod"), Fault("stop", 5, 1, others="SIGTERM soon")
    )
    assert lost.seconds < FAR_BELOW_DEFAULT_SECONDS
    assert lost.codes == {0: 1}
    assert "SIGTERM, and no safe point within 2 s" in lost.state.reason
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
@pytest.mark.verify
def test_a_worker_that_decodes_for_longer_than_the_time_out_is_waited_for_until_it_stands_still(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNET_SCALING_CACHE", str(tmp_path / "cache"))
    slow_seconds = SLOW_IMAGES * SLOW_IMAGE_SECONDS
    assert slow_seconds > LIMIT_SECONDS
    point = fault_point(images, "horovod", timeout_seconds=LIMIT_SECONDS)
    stuck = attempt(tmp_path / "run", point, Fault("slow, then stuck decoding", 0, worker=0))
    assert slow_seconds + LIMIT_SECONDS < stuck.seconds < FAR_BELOW_DEFAULT_SECONDS
    assert f"waited {LIMIT_SECONDS} s (training.timeout_seconds) in load_data" in stuck.state.reason
    assert stuck.state.reason.endswith("worker 0 did not report")


@pytest.mark.slow
def test_a_worker_that_stands_still_within_its_time_out_is_named_as_a_stall(
    images: Path, tmp_path: Path
) -> None:
    """Stopped with all its threads, then continued: the record is complete, and says where and who waited."""
    point = fault_point(images, "pytorch_native")
    paused = attempt(tmp_path / "run", point, Fault("pause", STEPS + 4, worker=1))
    assert paused.record.complete, paused.record.problems
    judged = disturbance(paused.record)
    longest = max(judged.stalls, key=lambda stall: stall.seconds)
    assert longest.seconds >= PAUSE_SECONDS
    assert (longest.epoch, longest.worker) == (1, 1)
    assert str(longest) in judged.reason
    budget = paused.record.epochs[1].budget
    assert budget is not None
    assert budget.sync_seconds[0] >= budget.sync_seconds[1] + PAUSE_SECONDS / 2, "who waits for it is in sync"


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize("fault", ["nothing", "pauses"])
def test_time_that_no_counter_explains_disturbs_a_launch(fault: str, images: Path, tmp_path: Path) -> None:
    """A worker is stopped for half of the time: it uses its core for as long as ever, and waits for none."""
    point = fault_point(images, "pytorch_native", epochs=12)
    record = attempt(tmp_path / "run", point, Fault(fault, STEPS, worker=1)).record
    assert record.complete, record.problems
    judged = disturbance(record)
    assert judged.uncounted_share is not None
    assert (judged.uncounted_share > 0.3) == (fault == "pauses") == (UNCOUNTED in judged.reason), judged


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_is_full_for_some_seconds_is_waited_for(images: Path, tmp_path: Path) -> None:
    """Worker 0 writes every file, by one code."""
    point = fault_point(images, "pytorch_native", workers=1, checkpoint_minutes=EVERY_STEP)
    fault = Fault("full disk", STEPS + 3, worker=0, every_step_is_safe=True)
    (tmp_path / "run").mkdir()
    with small_disk(tmp_path / "run", mebibytes=4) as disk:
        done = attempt(disk, point, fault, variable=(SECONDS_FULL_VARIABLE, "3"))
        assert done.record.complete, done.output
        assert steps_done(done) == 0


@pytest.mark.slow
def test_a_checkpoint_that_may_not_be_written_ends_the_run_with_the_reason(
    images: Path, tmp_path: Path
) -> None:
    """A limit of the process, which every user can have: the record still fits, checkpoints do not."""
    point = fault_point(images, "pytorch_native", workers=1, checkpoint_minutes=EVERY_STEP)
    run = tmp_path / "run"
    failed = attempt(run, point, Fault("file size", 5, worker=0, every_step_is_safe=True))
    assert failed.state.state == "failed"
    assert "-0000005.pt could not be written, the run stops: File too large" in failed.state.reason
    assert "Traceback" not in failed.output
    assert not failed.record.damaged
    assert checkpoints(run) == [f"checkpoint-00000-000000{step}.pt" for step in (3, 4)]


@pytest.mark.slow
def test_a_record_that_may_not_be_written_ends_the_run_with_the_reason(images: Path, tmp_path: Path) -> None:
    point = fault_point(images, "pytorch_native", workers=1)
    failed = attempt(tmp_path / "run", point, Fault("record size", 5, worker=0))
    assert failed.state.state == "failed"
    assert f"{RECORD_NAME} cannot be written" in failed.output
    assert "Traceback" not in failed.output
    assert not failed.record.damaged


def test_only_waiting_counts_and_not_the_time_between() -> None:
    gave_up = threading.Event()
    start_watchdog(0.1, gave_up.set)
    with blocking:
        pass
    time.sleep(0.5)
    assert not gave_up.is_set()
    with blocking, blocking:
        assert gave_up.wait(timeout=60)

"""A script that is not the project's records itself by three lines, with whatever framework it has."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from analysis.read.load import load_study
from slurm.commands.status import study_rows
from slurm.launch.preflight import is_installed
from slurm.launch.processes import launch
from tests.cluster import free_port, wait_until
from tests.machine import needs_a_core_each, quiet_machine
from tests.records import write_run
from unet_scaling import record
from unet_scaling.base.errors import UserError
from unet_scaling.format.record import RECORD_NAME, Record, read_record
from unet_scaling.format.record_lines import STEPS_NAME
from unet_scaling.measure import epoch_meter
from unet_scaling.measure.epoch_meter import NOT_EVERY_GRADIENT
from unet_scaling.script_recorder.meter import (
    EVALUATED_ALWAYS,
    EVALUATED_BY_SOME,
    NO_LENGTH,
    NO_MODEL,
    NOT_ONE_FORWARD,
    OTHER_LENGTH,
    PASSES_IN_UPDATE,
)
from unet_scaling.script_recorder.recording import count_samples
from unet_scaling.study.config import PROJECT

SCRIPTS = PROJECT / "tests" / "scripts"
STUDY = "scripts"
BATCHES = 4
BATCH = 8


def make_batches(count: int = BATCHES) -> list[Tensor]:
    return [torch.randn(BATCH, 3) for _ in range(count)]


class Loop:
    """A hand-written loop in this process, on one worker."""

    def __init__(self, logs: Path, *, hooked: bool = True, wrapped: bool = False) -> None:
        self.logs = logs
        self.model: nn.Module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        if wrapped:
            self.model = nn.DataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.run = record.begin(
            study=STUDY,
            framework="pytorch_native",
            model=self.model if hooked else None,
            optimizer=self.optimizer,
            logs=logs,
        )

    def step(self, batch: Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(batch).sum().backward()
        self.optimizer.step()

    def train(self, *epochs: Iterable[Tensor]) -> None:
        for epoch in epochs:
            for batch in epoch:
                self.step(batch)

    def finish(self, **scores: float) -> Record:
        self.run.finish(**scores)
        (found,) = records(self.logs)
        assert found.problems == ()
        return found


def test_records_samples_steps_and_phases_of_every_epoch_and_leaves_no_hook(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.train(*(loop.run.epoch(make_batches()) for _ in range(3)))
    loop.step(make_batches()[0])
    assert not loop.model._forward_hooks
    assert not loop.optimizer._optimizer_step_post_hooks
    assert not any(weight._post_accumulate_grad_hooks for weight in loop.model.parameters())
    found = loop.finish(accuracy=0.5, error=float("nan"))
    assert found.complete
    assert [epoch.images for epoch in found.epochs] == [BATCHES * BATCH] * 3
    assert [epoch.steps for epoch in found.epochs] == [BATCHES] * 3
    assert [epoch.warmup for epoch in found.epochs] == [True, False, False]
    for epoch in found.epochs:
        assert epoch.budget is not None
        phases = (epoch.budget.forward_seconds, epoch.budget.backward_seconds, epoch.budget.optimizer_seconds)
        assert all(seconds[0] > 0 for seconds in phases)
        assert epoch.budget.worker_sums() == pytest.approx(epoch.worker_seconds, rel=1e-3)
        assert epoch.cpu is None or "communication" not in epoch.cpu[0].thread_seconds
    assert found.end is not None
    assert found.end.scores == {"accuracy": 0.5}
    assert (found.path.parent / STEPS_NAME).exists()


def test_what_is_waited_for_is_data_wait(tmp_path: Path) -> None:
    loop = Loop(tmp_path)

    def slow() -> Iterator[Tensor]:
        for batch in make_batches():
            time.sleep(0.02)
            yield batch

    loop.train(loop.run.epoch(slow(), steps=BATCHES))
    budget = loop.finish().epochs[0].budget
    assert budget is not None
    assert budget.data_wait_seconds[0] >= BATCHES * 0.02


def test_a_number_of_steps_ends_an_epoch_and_the_next_goes_on(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    batches = iter(make_batches(6))
    assert len(loop.run.epoch(make_batches(6), steps=3)) == 3
    for _ in range(2):
        loop.train(loop.run.epoch(batches, steps=3))
    found = loop.finish()
    assert [epoch.images for epoch in found.epochs] == [3 * BATCH, 3 * BATCH]
    assert all(epoch.budget for epoch in found.epochs)


@pytest.mark.parametrize("updates", [[0, 1, 0, 1], [0, 1, 1, 1], [2, 2, 2, 2]], ids=str)
def test_batches_are_steps_however_many_updates_follow_each(
    updates: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where gradients are accumulated, or where the scaling of a loss skips an update."""
    loop = Loop(tmp_path)
    for _ in range(2):
        for batch, times in zip(loop.run.epoch(make_batches(40)), 10 * updates, strict=True):
            loop.model(batch).sum().backward()
            for _ in range(times):
                loop.optimizer.step()
    found = loop.finish(accuracy=None, of_classes=torch.ones(2), score=0.5)  # type: ignore[arg-type]
    assert [epoch.steps for epoch in found.epochs] == [40, 40]
    assert found.end is not None
    assert found.end.scores == {"score": 0.5}
    loop.run.finish()
    assert read_record(found.path).complete
    told = capsys.readouterr().err
    assert all(words in told for words in ("accuracy: found None", "of_classes: found", "has ended already"))
    assert load_study(found.path.parents[1]).left_out.empty
    with pytest.raises(UserError, match=r"holds only runs of scripts; .* report .* reads them"):
        study_rows(found.path.parents[1])


def _two_forwards(loop: Loop, batch: Tensor) -> None:
    (loop.model(batch) + loop.model(batch)).sum().backward()
    loop.optimizer.step()


def _frozen_at_times(loop: Loop, batch: Tensor) -> None:
    loop.model[0](batch).sum().backward()  # type: ignore[index]
    loop.model(batch)
    loop.optimizer.step()


def _closure(loop: Loop, batch: Tensor) -> None:
    def passes() -> float:
        loss: Tensor = loop.model(batch).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    loop.optimizer.step(passes)


class Mistaken(list[Tensor]):
    """A loader whose length is one less than its batches."""

    def __len__(self) -> int:
        return super().__len__() - 1


def _plain(loop: Loop, batch: Tensor) -> None:
    loop.step(batch)


@pytest.mark.parametrize(
    ("step", "batches", "hooked", "reason"),
    [
        (_two_forwards, make_batches, True, NOT_ONE_FORWARD),
        (_frozen_at_times, make_batches, True, NOT_EVERY_GRADIENT),
        (_closure, make_batches, True, PASSES_IN_UPDATE),
        (_plain, lambda: iter(make_batches()), True, NO_LENGTH),
        (_plain, lambda: Mistaken(make_batches()), True, OTHER_LENGTH),
        (_plain, make_batches, False, NO_MODEL),
    ],
)
def test_says_why_there_is_no_budget_and_records_the_speed_alone(
    step: Callable[[Loop, Tensor], None],
    batches: Callable[[], Iterable[Tensor]],
    hooked: bool,
    reason: str,
    tmp_path: Path,
) -> None:
    loop = Loop(tmp_path, hooked=hooked)
    for batch in loop.run.epoch(batches()):
        step(loop, batch)
    (epoch,) = loop.finish().epochs
    assert (epoch.budget, epoch.no_budget, epoch.images) == (None, reason, BATCHES * BATCH)


SLEEP_SECONDS = 0.2


def _evaluate(model: nn.Module) -> None:
    """Two passes, as over a test set, each with its loading."""
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(BATCH, 3))
            time.sleep(SLEEP_SECONDS)
    model.train()


@pytest.mark.parametrize("place", ["before", "after", "paused", "what is wrapped", "last"])
def test_an_evaluation_within_an_epoch_is_no_training(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(tmp_path, wrapped=True)
    model = next(loop.model.children()) if place == "what is wrapped" else loop.model
    for number, batch in enumerate(loop.run.epoch(make_batches())):
        is_due = number == (BATCHES - 1 if place == "last" else 1)
        if is_due and place == "before":
            _evaluate(model)
        loop.step(batch)
        if is_due and place == "paused":
            with loop.run.paused():
                time.sleep(2 * SLEEP_SECONDS)
        elif is_due and place != "before":
            _evaluate(model)
    (epoch,) = loop.finish().epochs
    assert epoch.seconds < SLEEP_SECONDS
    assert epoch.budget is not None
    assert epoch.budget.worker_sums() == pytest.approx(epoch.worker_seconds, rel=1e-3)
    assert ("of an evaluation within an epoch" in capsys.readouterr().err) == (place != "paused")


def test_a_pass_in_evaluation_mode_in_every_batch_is_part_of_the_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(tmp_path)
    for batch in loop.run.epoch(make_batches()):
        _evaluate(loop.model)
        loop.step(batch)
    (epoch,) = loop.finish().epochs
    assert epoch.seconds > 2 * BATCHES * SLEEP_SECONDS
    assert epoch.no_budget == EVALUATED_ALWAYS
    assert EVALUATED_ALWAYS in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param([], None, marks=pytest.mark.verify, id="even"),
        pytest.param(["--first-evaluates"], EVALUATED_BY_SOME, id="one"),
    ],
)
def test_samples_that_fill_the_workers_count_once_and_what_one_worker_evaluates_is_said(
    options: list[str], reason: str | None, tmp_path: Path
) -> None:
    texts = outputs(start_torchrun_workers("ddp.py", 2, tmp_path, "--images", "63", *options))
    (found,) = records(tmp_path)
    assert [epoch.images for epoch in found.epochs] == [63] * 3
    assert [epoch.no_budget for epoch in found.epochs] == [reason] * 3
    assert texts[0].count("1 samples that the loader repeats to fill its workers are not counted") == 1
    assert (reason or "images/s") in texts[0]


def no_memory(*_: object, **__: object) -> None:
    raise MemoryError


def test_an_epoch_that_cannot_begin_is_left_early_or_has_no_batch_is_not_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(epoch_meter, "phase_clock", no_memory)
        with pytest.raises(MemoryError):
            loop.train(loop.run.epoch(make_batches()))
    assert list(loop.run.epoch([])) == []
    for batch in loop.run.epoch(make_batches()):
        loop.step(batch)
        break
    loop.train(loop.run.epoch(make_batches()))
    assert [epoch.images for epoch in loop.finish().epochs] == [BATCHES * BATCH]
    told = capsys.readouterr().err
    assert "left early is not recorded" in told
    assert "without a sample" in told


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(3, 2),
        {"name": "x", "images": torch.zeros(3, 2), "labels": torch.zeros(3)},
        (None, ({"images": torch.zeros(3)},)),
    ],
)
def test_counts_the_samples_of_a_batch_by_its_first_tensor(batch: object) -> None:
    assert count_samples(batch) == 3


def test_a_batch_without_a_tensor_needs_a_count(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"of type dict, in which no tensor.*give samples="):
        count_samples({"text": "three words here"})
    loop = Loop(tmp_path, hooked=False)
    for _ in loop.run.epoch(["a b", "c"], samples=lambda text: len(text.split())):
        pass
    assert loop.finish().epochs[0].images == 3


def test_every_launch_has_a_folder_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        run = record.begin(study=STUDY, framework="horovod", options={"batch": 16}, logs=tmp_path)
        run.finish()
    names = [found.path.parent.name for found in records(tmp_path)]
    assert names == ["script-horovod-w01-batch=16-r1", "script-horovod-w01-batch=16-r2"]
    assert [found.script.repeat for found in records(tmp_path) if found.script] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"framework": "deepspeed"}, "framework: found 'deepspeed'; allowed: pytorch_native, horovod"),
        ({"study": "../elsewhere"}, "study: found '../elsewhere'; allowed: a text of letters"),
        ({"options": {"batch": [16]}}, "options"),
    ],
)
def test_refuses_wrong_arguments(arguments: dict[str, object], message: str, tmp_path: Path) -> None:
    given: dict[str, object] = {"study": STUDY, "framework": "pytorch_native", "logs": tmp_path}
    with pytest.raises(UserError, match=message):
        record.begin(**(given | arguments))  # type: ignore[arg-type]
    assert not any(tmp_path.iterdir())


def test_refuses_a_study_of_the_projects_own_runs_and_workers_without_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / STUDY)
    with pytest.raises(UserError, match=r"holds runs that were submitted.*give another name"):
        record.begin(study=STUDY, framework="pytorch_native", logs=tmp_path)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"torchrun started 2 workers.*call it after torch.distributed.init"):
        record.begin(study="another", framework="pytorch_native", logs=tmp_path)


# A thread of Gloo that tells a worker of a sum lets go of it 20 ms later.
LETS_GO_LATE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
int pthread_cond_broadcast(pthread_cond_t *condition) {
    int (*broadcast)(pthread_cond_t *) = dlvsym(RTLD_NEXT, "pthread_cond_broadcast", "GLIBC_2.3.2");
    if (!broadcast) broadcast = dlsym(RTLD_NEXT, "pthread_cond_broadcast");  // other than x86-64
    int result = broadcast(condition);
    if (syscall(SYS_gettid) != getpid()) usleep(20000);
    return result;
}
"""
SUMS = """
import sys, threading, weakref
import torch
from unet_scaling.script_recorder.recording import group_of_script

torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{sys.argv[1]}", rank=0, world_size=1)
group = group_of_script("pytorch_native", None)
freed_by = []
for _ in range(20):
    tensor = torch.ones(4)
    weakref.finalize(tensor, lambda: freed_by.append(threading.get_ident()))
    group.sum_over_workers(tensor)
    del tensor
print(len(freed_by), set(freed_by) == {threading.get_ident()})
"""


@pytest.mark.slow
def test_no_thread_of_gloo_frees_the_tensors_of_a_sum(tmp_path: Path) -> None:
    """Where Python ends meanwhile, such a thread aborts the script, which has been recorded in full."""
    library = tmp_path / "late.so"
    command = ["g++", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(command, input=LETS_GO_LATE, text=True, check=True)
    found = subprocess.run(
        [sys.executable, "-c", SUMS, str(free_port())],
        cwd=PROJECT,
        env=os.environ | {"LD_PRELOAD": str(library)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert found.stdout == "12 True\n"


def start_torchrun_workers(
    script: str, workers: int, logs: Path, *options: str
) -> list[subprocess.Popen[str]]:
    """Start the workers of a script with the variables by which torchrun tells them their rank."""
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(workers)}
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / script), STUDY, str(logs), *options],
            cwd=PROJECT,
            env=os.environ | variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(workers)
    ]


def outputs(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Return what workers printed, once all have ended well."""
    texts = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(texts)
    return texts


def records(logs: Path, pattern: str = "*") -> list[Record]:
    """Return the records of the study, by the names of their folders."""
    return [read_record(folder / RECORD_NAME) for folder in sorted((logs / STUDY).glob(f"script-{pattern}"))]


def epochs_in(logs: Path) -> list[int]:
    return [len(read_record(path).epochs) for path in logs.glob(f"*/*/{RECORD_NAME}")]


@pytest.mark.slow
def test_two_workers_of_ddp_record_one_run_that_can_be_read_when_they_are_killed(tmp_path: Path) -> None:
    workers = start_torchrun_workers("ddp.py", 2, tmp_path, "--epochs", "2", "--wait", "600")
    try:
        wait_until(lambda: epochs_in(tmp_path) == [2], "two epochs", seconds=300)
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            worker.communicate()
    (found,) = records(tmp_path)
    assert (found.problems, found.end) == ((), None)
    script = found.script
    assert script is not None
    assert (script.framework, script.script, script.repeat) == ("pytorch_native", "ddp.py", 1)
    assert script.transport == {"backend": "gloo"}
    assert [worker.worker for worker in script.workers] == [0, 1]
    assert len({worker.process for worker in script.workers}) == 2
    assert len(found.epochs) == 2
    for epoch in found.epochs:
        assert (epoch.images, epoch.steps, len(epoch.worker_seconds)) == (64, 2, 2)
        assert epoch.budget is not None
        assert 0 < epoch.budget.wire_seconds <= min(epoch.budget.sync_seconds) * (1 + 1e-3)
        assert epoch.cpu is not None
        first, second = epoch.cpu
        assert first.process_seconds > 0
        assert first.other_workers_seconds == pytest.approx(second.process_seconds, abs=1e-5)
        assert second.other_workers_seconds == pytest.approx(first.process_seconds, abs=1e-5)
    study = load_study(tmp_path / STUDY)
    assert study.runs.empty
    assert study.left_out["state"].tolist() == ["failed"]
    assert "no end line after 2 epochs" in study.left_out["reason"].iloc[0]


@pytest.mark.slow
def test_horovods_wait_for_averages_is_sync_and_a_step_counts_once(tmp_path: Path) -> None:
    output = tmp_path / "output.log"
    assert launch([str(SCRIPTS / "horovod_script.py"), STUDY, str(tmp_path)], 2, output, None) == 0, output
    (found,) = records(tmp_path)
    assert found.complete
    assert found.script is not None
    assert found.script.transport["controller"] == "MPI"
    for epoch in found.epochs:
        assert (epoch.images, epoch.steps) == (64, 2)
        assert epoch.budget is not None
        assert min(epoch.budget.sync_seconds) > 0


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("lightning"), reason="Lightning is not installed")
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.verify)])
def test_a_callback_records_the_training_of_a_lightning_trainer(workers: int, tmp_path: Path) -> None:
    outputs(start_torchrun_workers("lightning_script.py", workers, tmp_path))
    (found,) = records(tmp_path)
    assert found.complete
    assert found.script is not None
    assert "lightning" in found.script.versions
    assert [(epoch.images, epoch.steps) for epoch in found.epochs] == [(64, 4 // workers)] * 3
    assert all(epoch.budget for epoch in found.epochs)
    assert found.end is not None
    assert found.end.scores is not None
    assert list(found.end.scores) == ["error"]


@pytest.mark.slow
@pytest.mark.timing
@needs_a_core_each
def test_images_per_second_are_those_of_the_scripts_own_clock(tmp_path: Path) -> None:
    options = ("--epochs", "4", "--images", "8192", "--width", "16")
    # Its workers may run on each other's cores: to the record of each, the other is another program.
    with quiet_machine():
        texts = outputs(start_torchrun_workers("ddp.py", 2, tmp_path, *options))
    (found,) = records(tmp_path)
    for epoch, speeds in zip(found.epochs, zip(*map(_speeds, texts), strict=True), strict=True):
        if not epoch.warmup:
            # The clock of a script that is first to begin also counts how long it waits for the others.
            assert 0.99 * min(speeds) <= epoch.images / epoch.seconds <= 1.01 * max(speeds)


def _speeds(text: str) -> list[float]:
    return [float(line.split()[0]) for line in text.splitlines() if line.endswith("images/s")]

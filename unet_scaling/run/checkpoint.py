"""Checkpoints: all that a run needs to go on exactly where it stopped. Tensors and JSON only.

`checkpoint-EPOCH-STEP.pt` in the run folder, with its SHA-256 beside it; the newest two are kept. Weights
and optimizer are equal on all workers and stored once, unless a strategy lets each have its own; buffers,
generators, the sum of losses and the seconds of a begun epoch are each worker's own. The order of the images
is a function of (seed, epoch), so that the position is all there is to say of it.

They are written at safe points: moments between two steps at which all workers agree to save, to stop, or to
go on. No worker acts on what it alone knows, a signal or its clock: all exchange what they want, and do the
same. The points are some seconds apart, by a number of steps on which all have agreed, and outside the clock.
"""

import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from unet_scaling.base.errors import (
    EXIT_BAD_DATA,
    EXIT_BUG,
    EXIT_DIVERGED,
    NoSafePointError,
    StoppedError,
    UserError,
    or_user_error,
)
from unet_scaling.base.files import checksum_path, read_verified, retry_transient, write_verified
from unet_scaling.base.machine import clock_seconds, wall_seconds
from unet_scaling.base.validation import StrictModel
from unet_scaling.format.facts import MANIFEST, differing_attempts
from unet_scaling.format.record_lines import AttemptFacts, Epoch, Evaluation, Header
from unet_scaling.group.group import Group
from unet_scaling.group.identity import STOP_SIGNALS
from unet_scaling.run import training_state
from unet_scaling.study.study_file import CHECKPOINTS

# The newest may be damaged: then the run goes on from the one before it.
KEPT_CHECKPOINTS = 2
CHECKPOINT_PARTS: dict[str, type] = {"model": dict, "optimizer": dict, "workers": list, "progress": str}
WORKER_PARTS: dict[str, type] = {
    "buffers": dict, "random": dict, "played_random": list, "own": list, "loss": Tensor, "seconds": float,
}  # fmt: skip
# A lack of memory or a fault of a GPU, also RuntimeErrors: no reason to remove a checkpoint.
OF_THE_DEVICE = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
UNFITTING = (RuntimeError, ValueError, TypeError, LookupError, AttributeError)
# A folder for those of attempts from which a later one may not go on.
SET_ASIDE = "checkpoints.attempt"
# Short beside the 15 s that SIGTERM leaves, long beside the sum that a visit costs.
SECONDS_APART = 5.0
# No step is so short; it keeps a first visit without steps from dividing by zero.
POSITIVE_STEP_SECONDS = 1e-9
STOP_AT_VARIABLE = "UNET_SCALING_STOP_AT"
"""Seconds since 1970 at which to stop, some minutes before the job ends; set by the job script."""
# Safe points are some 5 s apart; Slurm kills 30 s after SIGTERM.
GRACE_SECONDS = 15.0


class Progress(StrictModel):
    """The progress of a run: `step` steps of `epoch` are done, and these epochs and evaluations before.

    `attempts` are the facts of those that trained it, the newest last.
    """

    config_sha256: str
    epoch: int
    step: int
    epochs: list[Epoch]
    results: list[Evaluation]
    attempts: list[AttemptFacts] = Field(min_length=1)

    def lines(self) -> list[Epoch | Evaluation]:
        """Return epochs and evaluations in the order in which a record has them."""
        evaluated = {result.epochs: result for result in self.results}
        ordered: list[Epoch | Evaluation] = []
        for trained in range(len(self.epochs) + 1):
            ordered += [evaluated[trained]] if trained in evaluated else []
            ordered += self.epochs[trained : trained + 1]
        return ordered


@dataclass(frozen=True)
class EpochSoFar:
    """A begun epoch on one worker: the sum of its losses so far, and its seconds."""

    loss: Tensor
    seconds: float


def save_checkpoint(
    folder: Path, group: Group, trained: training_state.Trained, progress: Progress, begun: EpochSoFar
) -> None:
    """Write a checkpoint and drop all but the newest two; all workers take part.

    Raises UserError on every worker alike where it cannot be written; the earlier ones are still there.
    """
    own = {
        "buffers": {name: buffer.cpu() for name, buffer in trained.model.named_buffers()},
        "random": training_state.generators(),
        "played_random": trained.played_generators,
        "own": trained.own_state(),
        "loss": begun.loss.cpu(),
        "seconds": begun.seconds,
    }
    workers = group.gather_bytes(training_state.pack_state(own), everywhere=False)

    def write() -> None:
        state = {
            "model": trained.model.state_dict(),
            "optimizer": trained.optimizer.state_dict(),
            "workers": [training_state.unpack_state(worker) for worker in workers],
            "progress": progress.model_dump_json(),
        }
        _write(folder, progress, training_state.pack_state(state))

    group.run_on_all(write if group.rank == 0 else lambda: None)


def load_checkpoint(
    folder: Path,
    group: Group,
    trained: training_state.Trained,
    config_sha256: str,
    may_go_on: Callable[[Progress], bool] = lambda _: True,
) -> tuple[Progress, EpochSoFar] | None:
    """Restore the newest checkpoint that every worker can read; None where there is none that may go on.

    A damaged one is skipped with a warning. Raises UserError (65) where there are checkpoints and none can be
    used: to train from the start in silence would hide that work was lost.
    """
    candidates = group.gather_strings(" ".join(path.name for path in _newest_first(folder)))[0].split()
    for name in candidates:
        state, problem = _read(folder / name, config_sha256, group.size)
        problems = [text for text in group.gather_strings(problem) if text]
        if problems and group.rank == 0:
            print(f"warning: {problems[0]}; trying the one before it", flush=True)
        if state is not None and not problems:
            may = may_go_on(state["progress"])
            return _restored(folder / name, state, group, trained) if may else None
    if candidates:
        raise UserError(
            f"none of the checkpoints in {folder} can be used: {', '.join(candidates)}; "
            f"rename them to train from the start",
            EXIT_BAD_DATA,
        )
    return None


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints, also those set aside: a complete run needs none."""
    for path in _newest_first(folder):
        _remove(path)
    for aside in folder.glob(f"{SET_ASIDE}*"):
        shutil.rmtree(aside)


def _restored(
    path: Path, state: dict[str, Any], group: Group, trained: training_state.Trained
) -> tuple[Progress, EpochSoFar]:
    """Restore a checkpoint; raises UserError (65) where the content does not fit the model after all."""
    own = state["workers"][group.rank]
    try:
        trained.model.load_state_dict(state["model"])
        with torch.no_grad():
            # This worker's own buffers, those of the workers that it plays among them.
            for name, buffer in trained.model.named_buffers():
                saved = own["buffers"][name]
                if saved.shape != buffer.shape:
                    shapes = f"{list(saved.shape)}, not {list(buffer.shape)}"
                    raise ValueError(f"buffer {name} has the shape {shapes}")
                buffer.copy_(saved)
        trained.optimizer.load_state_dict(state["optimizer"])
        training_state.set_generators(own["random"])
        trained.set_own_state(own["own"])
    except OF_THE_DEVICE:
        raise
    except UNFITTING as error:
        raise UserError(
            f"{path} does not fit this run: {training_state.one_line(error)}; rename it to go on from "
            "the one before it",
            EXIT_BAD_DATA,
        ) from None
    trained.played_generators[:] = own["played_random"]
    return state["progress"], EpochSoFar(own["loss"].to(group.device), own["seconds"])


def _write(folder: Path, progress: Progress, content: bytes) -> None:
    path = folder / f"checkpoint-{progress.epoch:05d}-{progress.step:07d}.pt"
    with or_user_error(f"{path} could not be written, the run stops", "launch it again", EXIT_BUG):
        retry_transient(lambda: _require_space(folder, 2 * len(content)))
        write_verified(path, content)
        for old in _newest_first(folder)[KEPT_CHECKPOINTS:]:
            _remove(old)


def _require_space(folder: Path, needed: int) -> None:
    """Raise OSError where a disk is full already, before anything is written."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        problem = f"{folder} has {free / 2**20:.0f} MiB free, {needed / 2**20:.0f} MiB are needed"
        raise OSError(errno.ENOSPC, problem)


def _read(path: Path, config_sha256: str, workers: int) -> tuple[dict[str, Any] | None, str]:
    """Return the content of a checkpoint, its progress read, or None and why it cannot be used."""
    try:
        state = training_state.unpack_state(read_verified(path))
        _require_parts(state, CHECKPOINT_PARTS)
        for worker in state["workers"]:
            _require_parts(worker, WORKER_PARTS)
        progress = Progress.model_validate_json(state["progress"])
    except (OSError, ValueError) as error:
        return None, f"{path} cannot be used: {training_state.one_line(error)}"
    if len(state["workers"]) != workers:
        return None, f"{path} is of {len(state['workers'])} workers, this run has {workers}"
    if progress.config_sha256 != config_sha256:
        return None, f"{path} is of another configuration"
    return state | {"progress": progress}, ""


def _require_parts(state: object, parts: dict[str, type]) -> None:
    """Raise ValueError unless this is a dictionary with these keys, each of its type."""
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__} where a dictionary belongs")
    for name, kind in parts.items():
        if not isinstance(state.get(name), kind):
            raise ValueError(f"its {name!r} is a {type(state.get(name)).__name__}, not a {kind.__name__}")


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob(CHECKPOINTS), reverse=True)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    checksum_path(path).unlink(missing_ok=True)


def why_anew(header: Header, folder: Path) -> str:
    """Return why an attempt begins anew, as the report leaves out a run of attempts that differ, or nothing.

    With another commit or other variables it begins anew, as any further run of the study would now start.
    Other images, devices, cores or versions are refused: they may be a mistake, and a run that began anew
    with them would be unlike the others. What a node decides may differ: a lost node costs no work.

    Raises UserError: 65 where the checkpoints are of other images, 2 where they are of another machine or
    software.
    """
    found = list(differing_attempts(header))
    cure = f"or remove {folder}/checkpoint-* to train from the start"
    for fact, words in found:
        if fact.name == MANIFEST:
            raise UserError(
                f"the checkpoints in {folder} were trained on other images: {words}; bring back the images "
                f"and their manifest, {cure}",
                EXIT_BAD_DATA,
            )
    if refused := "; ".join(words for fact, words in found if not fact.anew):
        raise UserError(
            f"the checkpoints in {folder} were made under other conditions: {refused}; "
            f"go on as attempt {header.earlier[0].attempt} did, {cure}"
        )
    return "; ".join(words for _, words in found)


def set_checkpoints_aside(folder: Path, attempt: int) -> Path:
    """Move all checkpoints into a folder named by the attempt that left them; return that folder."""
    aside = folder / f"{SET_ASIDE}{attempt}"
    with or_user_error(f"{aside} cannot be written", "launch it again", EXIT_BUG):
        aside.mkdir(exist_ok=True)
        for path in _newest_first(folder):
            for each in (path, checksum_path(path)):
                each.rename(aside / each.name)
    return aside


class Interruption:
    """A request to this worker to stop, and its source."""

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        stop_at = float(os.environ.get(STOP_AT_VARIABLE) or "inf")
        # A wall clock that is set while the run goes on must not move the deadline.
        self._stop_at = time.monotonic() + stop_at - time.time()
        self._acknowledged = threading.Event()

    def listen(self, abort: Callable[[Exception], None]) -> None:
        """Let the signals only set the flag from now on; SIGTERM also starts the grace period.

        Where that passes without a safe point, `abort` is called in a thread of its own.
        """
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)
        # Python writes to the pipe at once, also while the main thread is blocked inside a library.
        readable, writable = os.pipe()
        os.set_blocking(writable, False)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        threading.Thread(target=self._enforce_grace_period, args=[readable, abort], daemon=True).start()

    def acknowledge(self) -> None:
        """Note that all workers have agreed to stop: what is left to do may take its time."""
        self._acknowledged.set()

    def _enforce_grace_period(self, readable: int, abort: Callable[[Exception], None]) -> None:
        while os.read(readable, 1) != bytes([signal.SIGTERM]):
            pass
        seconds = wall_seconds(GRACE_SECONDS)
        if not self._acknowledged.wait(seconds):
            limit = f"SIGTERM, and no safe point within {seconds:.0f} s"
            abort(NoSafePointError(f"{limit}: has another worker died?"))

    def reason(self) -> str:
        """Return why to stop now; empty where there is no reason."""
        if self._received is not None:
            return f"asked to stop by {self._received.name}"
        if time.monotonic() >= self._stop_at:
            return "the job's time is nearly over"
        return ""

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._received = signal.Signals(number)


@dataclass(frozen=True)
class Position:
    """So many steps of this epoch are done; after the last epoch, so many of the saliency maps."""

    epoch: int
    step: int
    explained: int | None = None


Save = Callable[[Position, EpochSoFar], None]
# An attempt begins here: at the start of training, or at a checkpoint within an epoch.
Start = tuple[Position, EpochSoFar]


class SafePoints:
    """The safe points of an attempt: when the next one comes, and what happens there."""

    def __init__(
        self, group: Group, start: Start, interruption: Interruption, save: Save, seconds_between: float
    ) -> None:
        """`seconds_between` are those of training between two checkpoints; 0: none but when told to stop."""
        self._group = group
        self._begun_at, self._begun = start
        self._interruption = interruption
        self._save = save
        self._seconds_between_saves = seconds_between or float("inf")
        self._saved_at = clock_seconds()
        self._visited_at = self._saved_at
        self._steps_apart = 1
        self._steps = 0

    def is_first(self, epoch: int) -> bool:
        """Return whether this is the first epoch that this attempt trains, which is the warm-up."""
        return epoch == self._begun_at.epoch

    def begin_epoch(self, epoch: int) -> tuple[int, EpochSoFar]:
        """Return the steps already done of this epoch, and what they gave; a safe point in itself."""
        if self.is_first(epoch):
            return self._begun_at.step, self._begun
        nothing = EpochSoFar(torch.zeros((), device=self._group.device), 0.0)
        self.visit(Position(epoch, 0), nothing, diverged=False)
        return 0, nothing

    def is_due(self) -> bool:
        """Return whether to visit a safe point now, alike on every worker; called after each step."""
        self._steps += 1
        return self._steps >= self._steps_apart

    def save(self, position: Position, so_far: EpochSoFar) -> None:
        """Save the state of training; all workers come here together."""
        self._save(position, so_far)
        self._saved_at = clock_seconds()

    def visit(self, position: Position, so_far: EpochSoFar, diverged: bool) -> None:
        """Save or stop where one of the workers has reason to; all workers come here together.

        Raises UserError (70) where the training diverged, StoppedError where it is to stop; before that
        the state is saved.
        """
        reason = self._interruption.reason()
        any_stops, any_diverged, is_save_due = self._agree(bool(reason), diverged)
        if any_stops:
            self._interruption.acknowledge()
        if any_diverged:
            raise UserError(
                f"gradients of epoch {position.epoch}, up to its step {position.step}, were not finite: "
                f"the training diverged",
                EXIT_DIVERGED,
            )
        # Training is saved before the first map, and no map changes it.
        if position.explained is None and (any_stops or is_save_due):
            self.save(position, so_far)
        if any_stops:
            reasons = [text for text in self._group.gather_strings(reason) if text]
            raise StoppedError(reasons[0], (position.epoch, position.step), position.explained)

    def _agree(self, stops: bool, diverged: bool) -> tuple[bool, bool, bool]:
        """Return whether any worker stops, whether any diverged, and whether worker 0's checkpoint is due.

        Also agrees on the number of steps until the next safe point, from the slowest worker's.
        """
        now = clock_seconds()
        is_save_due = self._group.rank == 0 and now - self._saved_at >= self._seconds_between_saves
        step_seconds = (now - self._visited_at) / max(self._steps, 1)
        own = np.array([stops, diverged, is_save_due, step_seconds], dtype=np.float64)
        any_stops, any_diverged, any_save, slowest = self._group.gather_array(own).max(axis=0).tolist()
        self.begin_interval(slowest)
        return bool(any_stops), bool(any_diverged), bool(any_save)

    def begin_interval(self, step_seconds: float = float("inf")) -> None:
        """Let the next safe point come after as many steps of this length as fit between two, or one."""
        self._steps_apart = max(1, int(SECONDS_APART / max(step_seconds, POSITIVE_STEP_SECONDS)))
        self._steps = 0
        self._visited_at = clock_seconds()

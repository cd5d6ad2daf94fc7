"""The recorder of an attempt: the lines of its record, its checkpoints, and what a complete run leaves."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from unet_scaling import CODE_FOLDER
from unet_scaling.base.errors import (
    EXIT_BAD_DATA,
    EXIT_BUG,
    EXIT_DIVERGED,
    EXIT_RESUME,
    StoppedError,
    UserError,
    or_user_error,
)
from unet_scaling.base.files import write_atomically, write_json_with_checksum, write_verified
from unet_scaling.base.machine import CoreQuota, machine
from unet_scaling.base.texts import score_title
from unet_scaling.data.batches import RunData
from unet_scaling.format.facts import moved
from unet_scaling.format.older_log import older_log
from unet_scaling.format.record import RECORD_NAME, RecordWriter
from unet_scaling.format.record_lines import (
    PICTURES_NAME,
    SALIENCY_FOLDER,
    SALIENCY_ORIGIN_NAME,
    STARTUP_COLUMNS,
    STEPS_NAME,
    End,
    Epoch,
    Evaluation,
    Header,
    Pictures,
    RecordLine,
    Resumed,
    Saliency,
    Startup,
    WorkerFacts,
)
from unet_scaling.group.group import Group
from unet_scaling.group.watchdog import START_FIELD, stat_fields, thread_ids
from unet_scaling.group.worker import provenance, verify_group
from unet_scaling.measure.counters import communication_threads, threads_of_first_sums
from unet_scaling.measure.epoch_meter import BudgetMeter, Meter, probe_network
from unet_scaling.run.checkpoint import (
    EpochSoFar,
    Position,
    Progress,
    SafePoints,
    load_checkpoint,
    remove_checkpoints,
    save_checkpoint,
    set_checkpoints_aside,
    why_anew,
)
from unet_scaling.run.run_claim import RunClaim
from unet_scaling.run.run_folder import RunFolder, abort_worker, new_record, take_run_folder
from unet_scaling.run.training_state import WEIGHTS_NAME, Trained, save_weights, state_digests, weights_sha256
from unet_scaling.study.config import RunConfig
from unet_scaling.study.study_file import LOG_NAME

if TYPE_CHECKING:
    from unet_scaling.measure.compute_recorder import ComputeRecorder

# Bytes of a number of a gradient under training.gradient_compression = "fp16".
FP16_BYTES = 2
# The kernel knows the start of a process in ticks, some hundredths of a second.
MILLISECOND_DIGITS = 3


@contextmanager
def recording(run: RunFolder, group: Group) -> Iterator["Recorder"]:
    """Record this attempt; how it ended is its last line, where a failure lets that be written."""
    record = Recorder(run, group)
    try:
        record.open()
        yield record
    except Exception as error:
        record.fail(error)
        raise
    finally:
        record.close()


class Recorder:
    """Writes the record on worker 0; on the other workers it only takes part in what all must do."""

    def __init__(self, run: RunFolder, group: Group) -> None:
        self._run = run
        self._group = group
        self._writer: RecordWriter | None = None
        abort = partial(abort_worker, run.path, run.config, run.attempt)
        self._claim = RunClaim(run.path, run.attempt, abort)
        self._workers: list[WorkerFacts] = []
        self._communication = communication_threads(run.threads)
        self._startup = StartupClock(run.opened)
        self._meter = Meter(group)
        self._compute: ComputeRecorder | None = None
        self._resumed_lines: list[Epoch | Evaluation] = []
        self.epochs: list[Epoch] = []
        self.results: list[Evaluation] = []

    def open(self) -> None:
        """Verify with the other workers that this is one run, then claim its folder and begin the record."""
        self._workers = verify_group(self._group, self._run.config, self._run.environment)
        if self._group.device.type == "cuda":
            self._communication = threads_of_first_sums(self._group, self._run.threads)
        take_run_folder(self._run, self._group, self._claim)
        self._startup.mark("join_seconds")
        if self._group.rank == 0:
            self._writer = new_record(self._run)

    def close(self) -> None:
        """Leave the run folder to the next attempt."""
        if self._writer is not None:
            self._writer.close()
        if self._group.rank == 0:
            self._claim.release()

    def begin(self, data: RunData, model: nn.Module, optimizer: Optimizer) -> None:
        """Make the header, before any worker gets another's weights; UserError where these differ already."""
        self._data = data
        self._model = model
        self.built = state_digests(Trained(model, optimizer))
        self._startup.mark("data_seconds", data.opened)
        self._header = first_header(self._run, self._group, self._workers, data, model)
        self._startup.mark("model_seconds")

    def resume(self, trained: Trained) -> SafePoints:
        """Go back to the newest checkpoint, if there is one, and write the header."""
        config = self._run.config
        position = Position(0, 0)
        so_far = EpochSoFar(torch.zeros((), device=self._group.device), 0.0)
        folder = self._run.path
        checkpoint = load_checkpoint(folder, self._group, trained, config.digest(), self._may_go_on)
        if checkpoint is not None:
            progress, so_far = checkpoint
            position = Position(progress.epoch, progress.step)
            resumed = Resumed(epoch=progress.epoch, step=progress.step)
            self._header = self._header.model_copy(update={"resumed": resumed, "earlier": progress.attempts})
            self._resumed_lines = progress.lines()
            self.epochs = list(progress.epochs)
            self.results = list(progress.results)
            self._print(f"resuming {self._words(position)}")
        self._write(self._header)
        self._startup.mark("distribution_seconds")
        seconds = 60 * config.training.checkpoint_minutes
        save = partial(self._save, trained)
        self._safe_points = SafePoints(self._group, (position, so_far), self._run.interruption, save, seconds)
        return self._safe_points

    def _may_go_on(self, progress: Progress) -> bool:
        """Return whether this attempt goes on from these, as worker 0 finds, or else begins anew.

        Raises UserError on every worker alike where it may do neither.
        """
        header = self._header.model_copy(update={"earlier": progress.attempts})

        def judge() -> str:
            why = why_anew(header, self._run.path)
            if why:
                aside = set_checkpoints_aside(self._run.path, progress.attempts[-1].attempt)
                told = f"warning: {why}. The report leaves out a run of both: it begins anew"
                print(f"{told}; what was trained lies in {aside}", file=sys.stderr, flush=True)
            elif places := moved(header):
                print(f"going on elsewhere: {places}", flush=True)
            return why

        why = self._group.run_on_all(judge if self._group.rank == 0 else str)
        return not self._group.gather_strings(why)[0]

    def _save(self, trained: Trained, position: Position, so_far: EpochSoFar) -> None:
        progress = Progress(
            config_sha256=self._run.config.digest(),
            epoch=position.epoch,
            step=position.step,
            epochs=self.epochs,
            results=self.results,
            attempts=self._header.attempts(),
        )
        self._require_same_images(self._data.verification.verify_changed)
        save_checkpoint(self._run.path, self._group, trained, progress, so_far)
        self._print(f"saved {self._words(position)}")

    def _words(self, position: Position) -> str:
        if position.epoch == self._run.config.training.epochs:
            return "after the last epoch"
        return f"in epoch {position.epoch + 1} after {position.step} steps"

    def start_meter(self, replica: nn.Module, data: RunData) -> Meter:
        """Return what measures the epochs; with the budget, the network is probed first, outside the clock.

        On a slowed machine, every worker has its quota from here on; UserError where it cannot have one.
        Epochs and evaluations from before the checkpoint are written after the probe.
        """
        config = self._run.config
        self._startup.mark("warm_up_step_seconds")
        self._write(self._startup.startup(self._group))
        quota = self._group.run_on_all(self._enter_quota)
        if config.training.budget == "on":
            self._write(probe_network(self._group, self._header.gradient_bytes or 0))
            steps = data.steps_per_epoch
            self._meter = BudgetMeter(self._group, config, replica, steps, self._communication, quota)
        if config.training.compute_profile == "on":
            from unet_scaling.measure.compute_recorder import ComputeRecorder

            clock = self._meter.clock
            device = self._group.device
            self._compute = ComputeRecorder(clock, self._model, device, self._communication)
            self._meter.clock = self._compute
        for line in self._resumed_lines:
            self._write(line)
        return self._meter

    def _enter_quota(self) -> CoreQuota | None:
        cores = len(self._workers[self._group.rank].cores)
        return machine().enter_quota(self._group.rank, cores, thread_ids())

    @property
    def folder(self) -> Path:
        """Return the run folder."""
        return self._run.path

    def evaluation_is_due(self, epoch: int) -> bool:
        """Return whether to evaluate before this epoch, or after the last, unless an earlier attempt did."""
        config = self._run.config
        is_final = epoch == config.training.epochs and not config.is_emulated
        made = bool(self.results) and self.results[-1].epochs == epoch
        return (is_final or config.evaluation_is_due(epoch)) and not made

    def epoch(self, epoch: Epoch) -> None:
        """Record an epoch that has ended."""
        if self._compute is not None:
            self._compute.end_epoch()
        self.epochs.append(epoch)
        self._write(epoch)
        learned = "emulated" if epoch.loss is None else f"loss {epoch.loss:.4f}"
        self._print(
            f"epoch {epoch.epoch + 1}/{self._run.config.training.epochs}  {learned}  "
            f"{epoch.seconds:.2f} s  {epoch.images / epoch.seconds:.1f} images/s  "
            f"rate {epoch.learning_rate:g}"
        )

    def result(self, result: Evaluation) -> None:
        """Record an evaluation."""
        self.results.append(result)
        self._write(result)
        score = _shown(result.score)
        title = score_title(result.score_name)
        running = result.statistics.running if result.statistics else None
        left = f" ({_shown(running.score)} with the statistics that training left)" if running else ""
        self._print(f"after {result.epochs} epochs: {title} {score} on {result.images} test samples{left}")

    def end_training(self, result: Evaluation | None) -> None:
        """Write the last result; where maps come next, save what was trained, so that it is not repeated.

        An emulated run has no result. Raises UserError (65) on every worker alike where the images are no
        longer those of the manifest.
        """
        self._require_same_images(self._data.verification.verify_all)
        if result is not None:
            self.result(result)
        if self._group.rank == 0:
            # Here, since an attempt that stops among its maps leaves none of its training to the next.
            self._write_compute_profile()
        if self._run.config.is_explained:
            self._safe_points.save(*self._after_training(None))

    def begin_explaining(self) -> None:
        """Let the next safe point come after one of the steps that follow, which have another length."""
        self._safe_points.begin_interval()

    def visit_safe_point(self, explained: int) -> None:
        """Stop after training where that is asked for, and it is time to look; alike on every worker.

        `explained` are the steps of the saliency maps that are done, on worker 0 at least.
        """
        if self._safe_points.is_due():
            self._safe_points.visit(*self._after_training(explained), diverged=False)

    def _after_training(self, explained: int | None) -> tuple[Position, EpochSoFar]:
        nothing = EpochSoFar(torch.zeros((), device=self._group.device), 0.0)
        return Position(len(self.epochs), 0, explained), nothing

    def explained(self, line: Saliency) -> None:
        """Record the saliency maps. Raises as `end_training`: the maps are of images that were read again."""
        self._require_same_images(self._data.verification.verify_all)
        self._write(line)
        speed = f", {line.maps_made_here / line.seconds:.2f} maps/s" if line.maps_made_here else ""
        self._print(f"saliency: {line.maps} maps of {line.images} images, {line.masks} masks each{speed}")

    def pictures(self, pictures: Pictures) -> None:
        """Write what the report shows of the predictions; on worker 0."""
        with _needed(self._run.path / PICTURES_NAME) as path:
            write_json_with_checksum(path, pictures.model_dump(mode="json"))

    def finish(self, model: nn.Module) -> None:
        """Write what a complete run leaves, and then the line that says it is complete.

        An emulated run leaves no weights.
        """
        if self._group.rank == 0:
            if not self._run.config.is_emulated:
                with _needed(self._run.path / WEIGHTS_NAME) as path:
                    save_weights(model, path)
                with _needed(self._run.path / LOG_NAME) as path:
                    write_atomically(path, older_log(self.epochs, self.results[-1]))
            self._write_steps()
            self._write(End(status="complete", ended_utc=datetime.now(UTC).isoformat(timespec="seconds")))
            remove_checkpoints(self._run.path)
        # A worker that left earlier would have its launcher end worker 0 in the middle of this.
        self._group.wait_for_all()

    def _require_same_images(self, verify: Callable[[], None]) -> None:
        """Raise UserError on every worker alike where images have changed since the run began.

        Since when training saw other images is not known, so no checkpoint is left to go on from, and
        what maps are of is forgotten, so that none is kept.
        """
        try:
            self._group.run_on_all(verify)
        except UserError as error:
            if error.exit_code != EXIT_BAD_DATA:
                raise
            if self._group.rank == 0:
                remove_checkpoints(self._run.path)
                (self._run.path / SALIENCY_FOLDER / SALIENCY_ORIGIN_NAME).unlink(missing_ok=True)
            # A worker that left earlier would have its launcher end worker 0 before all are removed.
            self._group.wait_for_all()
            problem = f"{error}. It changed while the run lasted: the next attempt trains from the start"
            raise UserError(problem, EXIT_BAD_DATA) from None

    def _write_steps(self) -> None:
        """Write the single steps for the analysis."""
        if self._meter.sample:
            self._meter.sample.write(self._run.path / STEPS_NAME)

    def _write_compute_profile(self) -> None:
        """Write how long the worker computed; training is complete without it, too."""
        if self._compute is None:
            return
        from unet_scaling.format.compute_profile import COMPUTE_NAME

        trained_all_before = self._safe_points.is_first(self._run.config.training.epochs)
        if trained_all_before and (self._run.path / COMPUTE_NAME).exists():
            return
        profile = self._compute.profile(self._run.config, self._workers[0].device)
        if profile is None:
            why = "this attempt had no epoch after its warm-up; train the run anew (--force)"
            print(f"warning: {COMPUTE_NAME} is not written: {why}", file=sys.stderr, flush=True)
        else:
            with _needed(self._run.path / COMPUTE_NAME) as path:
                write_verified(path, profile.model_dump_json().encode())

    def fail(self, error: Exception) -> None:
        """End the record of a run that diverged or stopped in order. A full disk does not hide the error."""
        try:
            self._write(_end(error))
            self._write_steps()
        except (OSError, UserError) as problem:
            print(f"error: the end could not be recorded: {problem}", file=sys.stderr, flush=True)
        if isinstance(error, UserError) and error.exit_code in (EXIT_DIVERGED, EXIT_RESUME):
            # All came here together; one that left now would have its launcher end worker 0 in the middle.
            with suppress(RuntimeError):
                self._group.wait_for_all()

    def _write(self, line: RecordLine | None) -> None:
        """Append a line to the record, unless there is nothing to say."""
        if self._writer is not None and line is not None:
            with _needed(self._run.path / RECORD_NAME):
                self._writer.write(line)

    def _print(self, text: str) -> None:
        if self._group.rank == 0:
            print(text, flush=True)


def _shown(score: float | None) -> str:
    return "undefined" if score is None else f"{score:.4f}"


@contextmanager
def _needed(path: Path) -> Iterator[Path]:
    """Raise UserError where this file, which a run must leave, cannot be written."""
    with or_user_error(f"{path} cannot be written, the run stops", "launch it again", EXIT_BUG):
        yield path


def _end(error: Exception) -> End | None:
    """Return the last line of a run that stopped in order or diverged; other failures leave none."""
    if isinstance(error, StoppedError):
        return End(status="stopped", reason=str(error), position=error.position, explained=error.explained)
    if isinstance(error, UserError) and error.exit_code == EXIT_DIVERGED:
        return End(status="diverged", reason=str(error))
    return None


def first_header(
    run: RunFolder, group: Group, workers: list[WorkerFacts], data: RunData, model: nn.Module
) -> Header:
    """Return the header of an attempt that begins at the start, the same on every worker but for its time.

    Raises UserError on every worker alike where they start from different weights.
    """
    digests = group.gather_strings(weights_sha256(model))
    if len(set(digests)) > 1:
        raise UserError(f"the workers start from different weights: {', '.join(sorted(set(digests)))}")
    return Header(
        config=run.config,
        config_sha256=run.config.digest(),
        attempt=run.attempt,
        manifest_sha256=data.manifest_sha256,
        train_images=data.train_images,
        test_images=data.test_images,
        scales=data.scales,
        initial_weights_sha256=digests[0],
        gradient_bytes=sent_bytes(model, run.config),
        compute=data.compute,
        **provenance(group, workers, CODE_FOLDER),
    )


def sent_bytes(model: nn.Module, config: RunConfig) -> int:
    """Return the bytes of all gradients of one step as one worker sends them."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    half = config.training.gradient_compression == "fp16"
    return sum(weight.numel() * (FP16_BYTES if half else weight.element_size()) for weight in weights)


class StartupClock:
    """The ends of the parts of a worker's start, by the names of STARTUP_COLUMNS."""

    def __init__(self, opened: float) -> None:
        """Start with the moment at which the run folder was read, the first thing after the imports."""
        self._begun = time.perf_counter() - process_age()
        self._ends = {"imports_seconds": opened}

    def mark(self, part: str, moment: float | None = None) -> None:
        """Let this part end at this moment of the monotonic clock, or now; the next one begins there."""
        self._ends[part] = time.perf_counter() if moment is None else moment

    def startup(self, group: Group) -> Startup | None:
        """Return the parts of all workers, alike on all.

        None of a slowed machine: workers start without a quota, at another speed than the emulated one.
        """
        assert tuple(self._ends) == STARTUP_COLUMNS, f"parts {list(self._ends)}, not {STARTUP_COLUMNS}"
        own = np.diff(np.array([self._begun, *self._ends.values()], dtype=np.float64))
        parts = group.gather_array(own).clip(min=0).round(MILLISECOND_DIGITS)
        if machine().is_slowed:
            return None
        return Startup.model_validate(dict(zip(STARTUP_COLUMNS, parts.T.tolist(), strict=True)))


def process_age() -> float:
    """Return seconds since this process was started."""
    ticks = int(stat_fields(Path("/proc/self"))[START_FIELD])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")

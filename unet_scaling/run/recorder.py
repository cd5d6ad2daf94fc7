"""What an attempt writes into its run folder: the record, checkpoints, and what a complete run leaves."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from torch import nn

from unet_scaling.data.loader import RunData
from unet_scaling.group import provenance
from unet_scaling.group.worker import Group, verify_group
from unet_scaling.measure.cpu_counters import thread_ids
from unet_scaling.measure.epoch_meter import BudgetMeter, Meter
from unet_scaling.measure.network_probe import probe_network
from unet_scaling.measure.startup import StartupClock
from unet_scaling.measure.step_sample import STEPS_NAME
from unet_scaling.run.checkpoint import (
    CHECKPOINTS,
    EpochSoFar,
    Progress,
    Trained,
    load_checkpoint,
    remove_checkpoints,
    save_checkpoint,
)
from unet_scaling.run.continuation import require_same_facts
from unet_scaling.run.failure import give_up
from unet_scaling.run.run_claim import OWNER_NAME, RunClaim
from unet_scaling.run.run_folder import RunFolder
from unet_scaling.run.safe_points import Position, SafePoints, Start
from unet_scaling.run.weights import WEIGHTS_NAME, save_weights, weights_sha256
from unet_scaling.study.errors import (
    EXIT_BAD_DATA,
    EXIT_DIVERGED,
    EXIT_RESUME,
    StoppedError,
    UserError,
    report_name,
)
from unet_scaling.study.files import remove_unfinished, write_atomically, write_verified
from unet_scaling.study.record import (
    RECORD_NAME,
    RecordWriter,
    attempt_records,
    earlier_attempts,
    read_record,
    set_record_aside,
)
from unet_scaling.study.record_lines import (
    AttemptFacts,
    End,
    Epoch,
    Header,
    RecordLine,
    Result,
    Resumed,
    WorkerFacts,
)

LOG_NAME = "log.csv"
LOOK_SECONDS = 1.0


@contextmanager
def recording(run: RunFolder, group: Group) -> Iterator["Recording"]:
    """Record this attempt; how it ended is its last line, where a failure lets that be written."""
    record = Recording(run, group)
    try:
        record.open()
        yield record
    except Exception as error:
        record.fail(error)
        raise
    finally:
        record.close()


class Recording:
    """Writes the record on worker 0; on the other workers it only takes part in what all must do."""

    def __init__(self, run: RunFolder, group: Group) -> None:
        self._run = run
        self._group = group
        self._writer: RecordWriter | None = None
        self._claim = RunClaim(run.path, run.attempt, partial(give_up, run.path, run.config, run.attempt))
        self._waits_for = ""
        self._facts: list[WorkerFacts] = []
        self._attempts: list[AttemptFacts] = []
        self._communication = thread_ids() - run.threads
        self._startup = StartupClock(run.opened)
        self._meter = Meter(group)
        self._before: list[Epoch | Result] = []
        self.epochs: list[Epoch] = []
        self.results: list[Result] = []

    def open(self) -> None:
        """Agree with the other workers that this is one run, then claim the record."""
        self._facts = verify_group(self._group, self._run.config, self._run.environment)
        self._take_folder()
        self._startup.mark()
        if self._group.rank == 0:
            self._writer = _claim_record(self._run)

    def _take_folder(self) -> None:
        """Make the run folder this attempt's; UserError on every worker where another attempt is alive.

        All come back from each look together, so that no worker waits for another beyond its patience.
        """
        told = ""
        while True:
            self._group.agree(self._try_to_take)
            waits_for = self._group.gather_strings(self._waits_for)[0]
            if not waits_for:
                return
            if waits_for != told:
                self._say(f"waiting for the end of an earlier attempt: {waits_for}")
            told = waits_for
            time.sleep(LOOK_SECONDS)

    def _try_to_take(self) -> None:
        if self._group.rank == 0:
            try:
                self._waits_for = self._claim.try_to_take()
                if not self._waits_for:
                    _remove_own_reports(self._run)
            except OSError as error:
                raise UserError(f"the run folder cannot be claimed: {error}") from None

    def close(self) -> None:
        """Leave the run folder to the next attempt."""
        if self._group.rank == 0:
            self._claim.release()

    def begin(self, data: RunData, model: nn.Module) -> None:
        """Check that all workers start from the same weights, before any of them is told another's.

        Raises UserError on all of them where they do not.
        """
        digests = self._group.gather_strings(weights_sha256(model))
        if len(set(digests)) > 1:
            raise UserError(f"the workers start from different weights: {', '.join(sorted(set(digests)))}")
        self._data, self._initial_weights = data, digests[0]
        self._startup.mark(data.opened)
        self._startup.mark()

    def resume(self, trained: Trained) -> SafePoints:
        """Go back to the newest checkpoint, if there is one, and write the header."""
        run, group = self._run, self._group
        found = load_checkpoint(run.path, group, trained, run.config.digest())
        header = self._header(found[0] if found else None)
        if found:
            group.agree(partial(self._require_same_facts, found[0], header))
        self._attempts = header.attempts()
        self._write(header)
        if found:
            self._before = found[0].lines()
            self.epochs, self.results = list(found[0].epochs), list(found[0].results)
            self._say(f"going on in epoch {found[0].epoch + 1} after {found[0].step} steps")
        self._startup.mark()
        save = partial(self._save, trained)
        seconds = 60 * run.config.training.checkpoint_minutes
        return SafePoints(group, _start(found, group), run.interruption, save, seconds)

    def epochs_left(self) -> range:
        return range(len(self.epochs), self._run.config.training.epochs)

    def evaluation_is_due(self, epoch: int) -> bool:
        """Whether the study asks for an evaluation before this epoch that was not made yet."""
        made = bool(self.results) and self.results[-1].epochs == epoch
        return self._run.config.evaluation_is_due(epoch) and not made

    def _header(self, progress: Progress | None) -> Header:
        data = self._data
        commit, dirty = provenance.commit()
        return Header(
            config=self._run.config,
            config_sha256=self._run.config.digest(),
            attempt=self._run.attempt,
            started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            commit=commit,
            dirty=dirty,
            versions=provenance.versions(),
            transport=self._group.transport,
            job=provenance.job(),
            manifest_sha256=data.manifest_sha256,
            train_images=data.train_images,
            test_images=len(data.test_pixels),
            initial_weights_sha256=self._initial_weights,
            workers=self._facts,
            resumed=_resumed(self._run.path, progress) if progress else None,
            earlier=progress.attempts if progress else [],
        )

    def _require_same_facts(self, progress: Progress, header: Header) -> None:
        """Raise UserError where worker 0 finds that this attempt may not go on; print what else differs."""
        if self._group.rank == 0:
            for remark in require_same_facts(progress.attempts, header, self._run.path):
                print(f"warning: {remark}", file=sys.stderr, flush=True)

    def _save(self, trained: Trained, position: Position, so_far: EpochSoFar) -> None:
        progress = Progress(
            config_sha256=self._run.config.digest(),
            epoch=position.epoch,
            step=position.step,
            epochs=self.epochs,
            results=self.results,
            attempts=self._attempts,
        )
        self._require_same_images(self._data.verification.verify_changed)
        save_checkpoint(self._run.path, self._group, trained, progress, so_far)
        self._say(f"saved in epoch {position.epoch + 1} after {position.step} steps")

    def start_meter(self, replica: nn.Module, data: RunData) -> Meter:
        """What measures the epochs; with the budget, the network is probed first, outside the clock.

        Epochs and evaluations of before the checkpoint follow the probe: it stands right after the header.
        """
        config, group = self._run.config, self._group
        self._startup.mark()
        startup = self._startup.startup(group)
        if startup is not None:
            self._write(startup)
        if config.training.budget == "on":
            probe = probe_network(group)
            if probe is not None:
                self._write(probe)
            steps = data.steps_per_epoch
            self._meter = BudgetMeter(group, config, replica, steps, self._communication)
        for line in self._before:
            self._write(line)
        return self._meter

    def epoch(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)
        self._write(epoch)
        self._say(
            f"epoch {epoch.epoch + 1}/{self._run.config.training.epochs}  loss {epoch.loss:.4f}  "
            f"{epoch.seconds:.2f} s  {epoch.images / epoch.seconds:.1f} images/s  "
            f"rate {epoch.learning_rate:g}"
        )

    def result(self, result: Result) -> None:
        self.results.append(result)
        self._write(result)
        iou = "undefined" if result.iou is None else f"{result.iou:.4f}"
        self._say(f"after {result.epochs} epochs: IoU {iou} on {result.images} test images")

    def finish(self, model: nn.Module, result: Result) -> None:
        """Write the last result, what a complete run leaves, and then the line that says it is complete.

        Raises UserError (65) on every worker alike where the images are no longer those of the manifest.
        """
        self._require_same_images(self._data.verification.verify_all)
        self.result(result)
        if self._writer is not None:
            save_weights(model, self._run.path / WEIGHTS_NAME)
            write_atomically(self._run.path / LOG_NAME, older_log(self.epochs, result))
            self._write_steps()
        self._write(End(status="complete"))
        if self._group.rank == 0:
            remove_checkpoints(self._run.path)
        # A worker that left earlier would have its launcher end worker 0 in the middle of this.
        self._group.wait_for_all()

    def _require_same_images(self, verify: Callable[[], None]) -> None:
        """Raise UserError on every worker alike where images have changed since the run began.

        From when on the training saw other images is not known, so no checkpoint is left to go on from.
        """
        try:
            self._group.agree(verify)
        except UserError as error:
            if error.exit_code != EXIT_BAD_DATA:
                raise
            if self._group.rank == 0:
                remove_checkpoints(self._run.path)
            told = f"{error}. It changed while the run lasted: the next attempt trains from the start"
            raise UserError(told, EXIT_BAD_DATA) from None

    def _write_steps(self) -> None:
        """Leave the single steps for the analysis; a run is no less complete without them."""
        try:
            content = self._meter.steps_file()
            if content is not None:
                write_verified(self._run.path / STEPS_NAME, content)
        except (OSError, ImportError) as problem:
            print(f"warning: {STEPS_NAME} could not be written: {problem}", file=sys.stderr, flush=True)

    def fail(self, error: Exception) -> None:
        """End the record of a run that diverged or stopped in order. A full disk does not hide the error."""
        try:
            if isinstance(error, StoppedError):
                self._write(End(status="stopped", reason=str(error), position=error.position))
            elif isinstance(error, UserError) and error.exit_code == EXIT_DIVERGED:
                self._write(End(status="diverged", reason=str(error)))
            self._write_steps()
        except OSError as problem:
            print(f"error: the end could not be recorded: {problem}", file=sys.stderr, flush=True)
        if isinstance(error, UserError) and error.exit_code in (EXIT_DIVERGED, EXIT_RESUME):
            # All came here together; one that left now would have its launcher end worker 0 in the middle.
            with suppress(RuntimeError):
                self._group.wait_for_all()

    def _write(self, line: RecordLine) -> None:
        if self._writer is not None:
            self._writer.write(line)

    def _say(self, text: str) -> None:
        if self._group.rank == 0:
            print(text, flush=True)


def _start(found: tuple[Progress, EpochSoFar] | None, group: Group) -> Start:
    if found is None:
        return Start(Position(0, 0), EpochSoFar(torch.zeros((), device=group.device), 0.0))
    return Start(Position(found[0].epoch, found[0].step), found[1])


def _resumed(folder: Path, progress: Progress) -> Resumed:
    """Where the run goes on, and how many whole epochs the attempt before had recorded beyond that."""
    # An attempt that was refused before its header has lost nothing.
    begun = [record for record in map(read_record, attempt_records(folder)) if record.header]
    recorded = len(begun[-1].epochs) if begun else 0
    return Resumed(
        epoch=progress.epoch, step=progress.step, repeated_epochs=max(0, recorded - len(progress.epochs))
    )


def _claim_record(run: RunFolder) -> RecordWriter:
    record = run.path / RECORD_NAME
    try:
        _require_same_attempt(run)
        _remove_unfinished(run)
        if record.exists():
            set_record_aside(run.path)
        return RecordWriter(record)
    except OSError as error:
        raise UserError(f"the record cannot be written: {error}") from None


def _require_same_attempt(run: RunFolder) -> None:
    """Raise UserError where another attempt began, or even ended, while this one was starting."""
    record = run.path / RECORD_NAME
    begun = earlier_attempts(run.path) + record.exists()
    if begun + 1 != run.attempt or (record.exists() and read_record(record).complete):
        raise UserError(f"{run.path}: another attempt began while this one started; start it again")


def _remove_own_reports(run: RunFolder) -> None:
    """Remove reports of an attempt of this number that was refused: they would explain how this one ends."""
    for path in run.path.glob(report_name(run.attempt, "*")):
        path.unlink(missing_ok=True)


def _remove_unfinished(run: RunFolder) -> None:
    """What killed workers of earlier attempts were writing; the largest, a checkpoint, may fill a quota."""
    earlier = [report_name(attempt, "*") for attempt in range(1, run.attempt)]
    for names in (CHECKPOINTS, STEPS_NAME, WEIGHTS_NAME, LOG_NAME, OWNER_NAME, *earlier):
        remove_unfinished(run.path, names)


def older_log(epochs: list[Epoch], result: Result) -> str:
    """The older study's log.csv: one row per epoch, run-wide values repeated in each; seconds and rates."""
    iou = "" if result.iou is None else f"{result.iou:.6f}"
    rows = [
        f"{epoch.epoch},{epoch.seconds:.6f},{epoch.loss:.6f},{epoch.learning_rate:.6f},"
        f"{result.training_seconds:.6f},{result.seconds:.6f},{iou}"
        for epoch in epochs
    ]
    return "\n".join([",time_per_epoch,loss,lr,training_time,test_time,iou", *rows]) + "\n"

"""The recording of one run of a script: its epochs are measured, and worker 0 writes them down."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from unet_scaling.group.group import Group
from unet_scaling.record.batches import Item, RecordedBatches, count_samples
from unet_scaling.record.loop_hooks import LoopHooks
from unet_scaling.record.script_group import group_of_script
from unet_scaling.record.script_meter import MarkedModel, ScriptMeter
from unet_scaling.record.script_run import (
    SOURCE,
    RunArguments,
    RunOptions,
    introduce_workers,
    make_run_folder,
    script_header,
)
from unet_scaling.study.config import ALL_FRAMEWORKS
from unet_scaling.study.errors import UserError
from unet_scaling.study.files import write_verified
from unet_scaling.study.measurements import STEPS_NAME
from unet_scaling.study.record import RECORD_NAME, RecordWriter
from unet_scaling.study.record_lines import End, RecordLine, WorkerFacts


def begin(
    *,
    study: str,
    framework: str,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    options: RunOptions | None = None,
    logs: str | Path = "logs",
) -> "Recording":
    """Begin to record this run, on every worker, once they have their group.

    Each launch gets a folder of its own in LOGS/STUDY. `framework` names the arm: pytorch_native, horovod,
    lightning or accelerate. With `model` (the wrapped one) and `optimizer`, where the time goes is recorded
    too. `options` are what tells launches apart, such as {"batch": 16}.

    Raises UserError on every worker alike where an argument is wrong, the workers do not agree in them, or
    the record cannot be written.
    """
    marked = None
    if model is not None and optimizer is not None:
        marked = MarkedModel(model, partial(LoopHooks, model, optimizer))
    recording = Recording(script_group(framework, model), marked)
    recording.open(Path(logs), RunArguments(study, framework, options or {}))
    return recording


def script_group(framework: str, model: nn.Module | None) -> Group:
    """Return the group that the script has made; UserError where the framework is none of those known."""
    for known in ALL_FRAMEWORKS:
        if known == framework:
            return group_of_script(known, model)
    allowed = ", ".join(ALL_FRAMEWORKS)
    raise UserError(f"{SOURCE}: framework: found {framework!r}; allowed: {allowed}")


class Recording:
    """A run that is recorded: `epoch` around the batches of every epoch, then `finish`."""

    def __init__(self, group: Group, marked: MarkedModel | None) -> None:
        self._group = group
        self._meter = ScriptMeter(group, marked)
        self._writer: RecordWriter | None = None
        self._folder = Path()
        self._is_in_epoch = False

    def epoch(
        self,
        batches: Iterable[Item],
        steps: int | None = None,
        samples: Callable[[Item], int] = count_samples,
    ) -> RecordedBatches[Item]:
        """Return the batches of one epoch, to be iterated over instead of the loader, on every worker.

        `steps` ends it after so many batches, and tells their number where the loader has no length.
        `samples` counts those of a batch; by default they are the first dimension of its first tensor.
        """
        return RecordedBatches(self, batches, steps, samples)

    def finish(self, **scores: float) -> None:
        """Complete the record, with scores by their names; a record without this is of a run that failed."""
        self._leave_epoch()
        if self._writer is None:
            return
        self._write_steps()
        self._write(End(status="complete", scores=_finite(scores)))

    def open(self, logs: Path, arguments: RunArguments) -> None:
        """Begin the record in a folder of its own below `logs`; raises what the function `begin` does."""
        workers = introduce_workers(self._group, arguments)
        self._group.run_on_all(partial(self._begin_record, logs, arguments, workers))

    def _begin_record(self, logs: Path, arguments: RunArguments, workers: list[WorkerFacts]) -> None:
        if self._group.rank != 0:
            return
        header = script_header(arguments, self._group, workers)
        self._folder, header = make_run_folder(logs / arguments.study, header)
        try:
            self._writer = RecordWriter(self._folder / RECORD_NAME)
            self._writer.write(header)
        except OSError as error:
            raise UserError(f"{SOURCE}: the record cannot be written: {error}") from None
        print(f"recording into {self._folder}", flush=True)

    def begin_epoch(self, batches: int | None) -> None:
        """Start the clocks of all workers together, for so many batches; None: not known."""
        self._leave_epoch()
        self._is_in_epoch = True
        self._meter.begin(batches)

    def batch_arrived(self, samples: int) -> None:
        """Count a batch that the loader has just given."""
        self._meter.arrived(samples)

    def batch_done(self) -> None:
        """End the step of a batch."""
        self._meter.done()

    def end_epoch(self) -> None:
        """Gather what all workers measured, outside their clocks, and write it down."""
        self._is_in_epoch = False
        epoch = self._meter.end()
        if epoch is None:
            self._warn("an epoch without a sample is not recorded")
        else:
            self._write(epoch)

    def pause(self) -> None:
        """Stop the clock between two batches of an epoch, as for an evaluation."""
        if self._is_in_epoch:
            self._meter.pause()

    def resume(self) -> None:
        """Continue the clock that `pause` stopped."""
        if self._is_in_epoch:
            self._meter.resume()

    def _leave_epoch(self) -> None:
        """Give up an epoch whose loop was left: when its last step ended is not known."""
        if self._is_in_epoch:
            self._is_in_epoch = False
            self._meter.close()
            self._warn("an epoch that was left early is not recorded; end it by run.epoch(loader, steps=...)")

    def _write(self, line: RecordLine) -> None:
        """Append a line on worker 0; a training goes on where it cannot be recorded."""
        if self._writer is None:
            return
        try:
            self._writer.write(line)
        except OSError as problem:
            self._writer = None
            self._warn(f"nothing more is recorded: {problem}")

    def _write_steps(self) -> None:
        try:
            content = self._meter.steps_file()
            if content is not None:
                write_verified(self._folder / STEPS_NAME, content)
        except (OSError, ImportError) as problem:
            self._warn(f"{STEPS_NAME} could not be written: {problem}")

    def _warn(self, text: str) -> None:
        if self._group.rank == 0:
            print(f"warning: {self._folder}: {text}", file=sys.stderr, flush=True)


def _finite(scores: Mapping[str, float]) -> dict[str, float] | None:
    """Return the scores as numbers, those that are finite; None without any."""
    numbers = {name: float(score) for name, score in scores.items()}
    return {name: score for name, score in numbers.items() if math.isfinite(score)} or None

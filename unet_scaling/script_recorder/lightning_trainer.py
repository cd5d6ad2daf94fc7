"""A callback that records the training of a Lightning Trainer.

The Trainer tells of each phase itself, so that no hook is needed but those of the gradients. Before it hands
out a batch it has moved it to the device: that is part of data wait.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from unet_scaling.format.record_lines import Phase
from unet_scaling.script_recorder.meter import Marks
from unet_scaling.script_recorder.recording import (
    Recording,
    RunOptions,
    count_samples,
    group_of_script,
    samples_of_data,
)

FRAMEWORK = "lightning"


class RecorderCallback(Callback):  # type: ignore[misc]
    """Records each epoch of training; validation within it stops the clock."""

    def __init__(self, study: str, scores: Sequence[str], options: RunOptions, logs: str | Path) -> None:
        self._study = study
        self._options = options
        self._logs = Path(logs)
        self._scores = scores
        self._marks = Marks()
        self._recording: Recording | None = None

    @property
    def recording(self) -> Recording:
        assert self._recording is not None, "no training has started"
        return self._recording

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._recording = Recording(group_of_script(FRAMEWORK, pl_module), pl_module, self._marks)
        self._recording.open(self._logs, self._study, FRAMEWORK, self._options)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        batches = trainer.num_training_batches
        is_whole_pass = trainer.limit_train_batches == 1.0
        samples = samples_of_data(trainer.train_dataloader) if is_whole_pass else 0
        self.recording.begin_epoch(int(batches) if math.isfinite(batches) else None, samples)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        self.recording.meter.arrived(count_samples(batch))

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self._marks.clock.mark(Phase.FORWARD)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._marks.clock.mark(Phase.SYNC)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        self._marks.clock.mark(Phase.OPTIMIZER)
        self.recording.meter.done()
        if trainer.is_last_batch:
            self.recording.end_epoch()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # The Trainer also tries the validation before the training.
        if self._recording is not None and self._recording.is_in_epoch:
            self._recording.meter.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._recording is not None and self._recording.is_in_epoch:
            self._recording.meter.resume()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metrics = trainer.callback_metrics
        self.recording.finish(**{name: float(metrics[name]) for name in self._scores if name in metrics})

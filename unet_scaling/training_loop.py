"""The loop over the epochs of a run, and one epoch under the clock."""

import math

from torch import Tensor, nn

from unet_scaling.data.batches import RunData
from unet_scaling.evaluation import evaluate
from unet_scaling.group.group import Group
from unet_scaling.measure.epoch_meter import Meter
from unet_scaling.played import seed_workers
from unet_scaling.run.checkpoint import EpochSoFar
from unet_scaling.run.recorder import Recorder
from unet_scaling.run.safe_points import Position, SafePoints
from unet_scaling.run.training_state import Trained, require_unchanged, state_digests
from unet_scaling.study.errors import EXIT_DIVERGED, UserError
from unet_scaling.study.progress import progress
from unet_scaling.study.record_lines import Epoch
from unet_scaling.training import Step, learning_rate, set_learning_rate


def train_epochs(step: Step, model: nn.Module, data: RunData, group: Group, record: Recorder) -> None:
    """Train the epochs that are left, and evaluate after the last and where the study asks for it.

    An emulated run is not evaluated: it has learned nothing.

    `model` is the network itself, `step` trains its replica. Raises what `train_epoch` does.
    """
    require_unchanged(record.built, Trained(model, step.optimizer), group, "distribute")
    trained = Trained(model, step.optimizer, seed_workers(model, step.config.seed, group.rank))
    safe_points = record.resume(trained)
    before = state_digests(trained)
    step.warm_up_step(data)
    require_unchanged(before, trained, group, "the warm-up step")
    meter = record.start_meter(step.model, data)
    for epoch in record.epochs_left():
        if record.evaluation_is_due(epoch):
            record.result(evaluate(step.task, model, data, group, record.epochs))
        record.epoch(train_epoch(step, data, group, epoch, meter, safe_points))
    # What was trained is saved where a stop was asked for: an evaluation may last.
    safe_points.begin_epoch(step.config.training.epochs)
    is_due = record.final_evaluation_is_due()
    record.end_training(evaluate(step.task, model, data, group, record.epochs) if is_due else None)


def train_epoch(
    step: Step, data: RunData, group: Group, epoch: int, meter: Meter, safe_points: SafePoints
) -> Epoch:
    """Train one epoch; the clock covers the steps of the slowest worker and nothing else.

    Raises UserError (70) where a loss or gradient is not finite, and StoppedError where the run was asked to
    stop: on every worker alike.
    """
    set_learning_rate(step.optimizer, learning_rate(step.config, epoch))
    step.model.train()
    loss = _train_steps(step, data, epoch, meter, safe_points, group.rank == 0)
    own_seconds = meter.end()
    seconds = group.gather_numbers(own_seconds)
    mean_loss = None if step.config.is_emulated else _mean_loss(step, data, group, epoch, loss)
    return Epoch(
        epoch=epoch,
        seconds=max(seconds),
        worker_seconds=seconds,
        images=data.images_per_epoch,
        steps=data.steps_per_epoch,
        loss=mean_loss,
        learning_rate=float(step.optimizer.param_groups[0]["lr"]),
        warmup=safe_points.is_first(epoch),
        **vars(meter.measures(epoch, own_seconds)),
    )


def _train_steps(
    step: Step, data: RunData, epoch: int, meter: Meter, safe_points: SafePoints, shown: bool
) -> Tensor:
    """Take the steps of an epoch that are left; return the sum of this worker's losses over all of them."""
    done, so_far = safe_points.begin_epoch(epoch)
    loss = so_far.loss
    meter.begin(so_far.seconds)
    steps = data.steps(epoch, meter.clock, done)
    for batches in progress(steps, data.steps_per_epoch - done, f"epoch {epoch + 1}", shown):
        loss = loss + step.take(batches, meter.clock)
        meter.clock.next_step()
        done += 1
        if safe_points.is_due() and done < data.steps_per_epoch:
            # The clock is stopped while the workers agree whether to go on, and save where it is time.
            so_far = EpochSoFar(loss, meter.pause())
            safe_points.visit(Position(epoch, done), so_far, step.guard.triggered())
            meter.resume()
    return loss


def _mean_loss(step: Step, data: RunData, group: Group, epoch: int, loss: Tensor) -> float:
    """Return the mean loss of all workers and steps; UserError (70) where training diverged on any worker."""
    mean = math.fsum(group.gather_numbers(loss.item())) / group.size / data.steps_per_epoch
    if not math.isfinite(mean) or any(group.gather_numbers(step.guard.triggered())):
        raise UserError(f"the loss of epoch {epoch} is {mean}: the training diverged", EXIT_DIVERGED)
    return mean

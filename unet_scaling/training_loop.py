"""The loop over the epochs of a run, and one epoch under the clock."""

import base64
import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unet_scaling.base.errors import EXIT_DIVERGED, UserError, optional_part
from unet_scaling.base.progress import counted, progress
from unet_scaling.data.batches import RunData
from unet_scaling.format import record_lines
from unet_scaling.group.group import Group, wait_for_device
from unet_scaling.group.watchdog import blocking
from unet_scaling.measure.epoch_meter import Meter, synchronized_seconds
from unet_scaling.norm_statistics import norm_layers, recompute
from unet_scaling.run import training_state
from unet_scaling.run.checkpoint import EpochSoFar, Position, SafePoints
from unet_scaling.run.recorder import Recorder
from unet_scaling.task.task import NOT_FINITE, Task
from unet_scaling.training import Step, Twin, learning_rate, set_learning_rate


def build_step(task: Task, model: nn.Module, optimizer: Optimizer, data: RunData, twin: Twin) -> Step:
    """Return the step of the strategy of the run: gradients averaged at each, unless it has another one."""
    strategy = task.config.strategy
    if strategy.averages_gradients:
        with blocking:
            # Fabric gives the weights out on a stream of its own, and orders it with no other.
            wait_for_device(data.group.device)
            step = Step(task, *twin.distribute(model, optimizer, task.config), twin)
            wait_for_device(data.group.device)
        return step
    with optional_part("strategy"):
        from unet_scaling.strategies.steps import LocalSteps, StaleSteps
    kind = StaleSteps if strategy.staleness else LocalSteps
    return kind(task, model, optimizer, group=data.group)


def train_epochs(step: Step, model: nn.Module, data: RunData, group: Group, record: Recorder) -> None:
    """Train the epochs that are left, and evaluate after the last and where the study asks for it.

    An emulated run is not evaluated: it has learned nothing.

    `model` is the network itself, `step` trains its replica. Raises what `train_epoch` does.
    """
    training_state.require_unchanged(
        record.built, training_state.Trained(model, step.optimizer), group, "distribute"
    )
    players = training_state.seed_workers(model, step.config.seed, group.rank)
    trained = training_state.Trained(
        model, step.optimizer, players, step.own_state, step.set_own_state, step.is_shared
    )
    safe_points = record.resume(trained)
    before = training_state.state_digests(trained)
    step.warm_up_step(data)
    training_state.require_unchanged(before, trained, group, "the warm-up step")
    meter = record.start_meter(step.model, data)
    for epoch in range(len(record.epochs), step.config.training.epochs):
        if record.evaluation_is_due(epoch):
            record.result(evaluate(step.task, model, data, group, record.epochs))
        record.epoch(train_epoch(step, data, group, epoch, meter, safe_points))
    # Save what was trained if a stop was asked for, as an evaluation may take long.
    safe_points.begin_epoch(step.config.training.epochs)
    is_due = record.evaluation_is_due(step.config.training.epochs)
    record.end_training(evaluate(step.task, model, data, group, record.epochs) if is_due else None)
    if not step.config.is_emulated:
        group.run_on_all(lambda: draw(step.task, model, data, record) if group.rank == 0 else None)


def train_epoch(
    step: Step, data: RunData, group: Group, epoch: int, meter: Meter, safe_points: SafePoints
) -> record_lines.Epoch:
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
    return record_lines.Epoch(
        epoch=epoch,
        seconds=max(seconds),
        worker_seconds=seconds,
        images=data.images_per_epoch,
        steps=data.steps_per_epoch,
        loss=mean_loss,
        learning_rate=float(step.optimizer.param_groups[0]["lr"]),
        warmup=safe_points.is_first(epoch),
        **meter.measures(epoch, own_seconds),
    )


def _train_steps(
    step: Step, data: RunData, epoch: int, meter: Meter, safe_points: SafePoints, shown: bool
) -> Tensor:
    """Take the steps of an epoch that are left; return the sum of this worker's losses over all of them."""
    done, so_far = safe_points.begin_epoch(epoch)
    loss = so_far.loss
    meter.begin(so_far.seconds)
    steps = data.steps(epoch, meter.clock, done)
    if shown:
        steps = counted(steps, epoch, done, data.steps_per_epoch)
    for batches in progress(steps, data.steps_per_epoch - done, f"epoch {epoch + 1}", shown):
        with blocking:
            loss = loss + step.take(batches, meter.clock, data.steps_per_epoch - done - 1)
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


@torch.no_grad()
def draw(task: Task, model: nn.Module, data: RunData, record: Recorder) -> None:
    """Write pictures of what the model predicts on the first test samples, of a task that draws some."""
    model.eval()
    images = []
    for position in range(min(record_lines.MOST_PICTURES, data.test_images)):
        picture = task.picture(model, data.test_sample(position))
        if picture is None:
            return
        png = base64.b64encode(picture[0]).decode()
        images.append(record_lines.SamplePicture(position=position, iou=picture[1], png=png))
    record.pictures(record_lines.Pictures(weights_sha256=record.results[-1].weights_sha256, images=images))


@torch.no_grad()
def evaluate(
    task: Task, model: nn.Module, data: RunData, group: Group, epochs: list[record_lines.Epoch]
) -> record_lines.Evaluation:
    """Evaluate after these epochs; return the same result on every worker.

    Samples pass through the network one by one, so that neither a sample's neighbours in a batch
    nor the number of workers can change a count by rounding.
    """
    is_last = len(epochs) == task.config.training.epochs
    statistics = None
    running = None
    # Training goes on with the statistics that it left.
    with nullcontext() if is_last else training_state.unchanged_buffers(model):
        average_buffers(model, group)
        if task.config.recomputes_statistics:
            if is_last and norm_layers(model):
                running, _ = _counts_of_all(task, model, data, group)
            statistics = recompute(task, model, data, group)
        counts, seconds = _counts_of_all(task, model, data, group)
        evaluated = record_lines.Evaluated(
            epochs=len(epochs),
            training_seconds=sum(epoch.seconds for epoch in epochs),
            images=len(counts),
            seconds=seconds,
            weights_sha256=training_state.weights_sha256(model),
            statistics=statistics,
        )
    if statistics and running is not None and not (running == NOT_FINITE).any():
        score = task.result(running, evaluated).score
        left = record_lines.RunningScore(counts=running.sum(dim=0).tolist(), score=score)
        both = {"statistics": statistics.model_copy(update={"running": left})}
        evaluated = evaluated.model_copy(update=both)
    return task.result(counts, evaluated)


def explain(task: Task, model: nn.Module, data: RunData, group: Group, record: Recorder) -> None:
    """Make, check and record the saliency maps that the study asks for, if it asks for any.

    Raises UserError on every worker alike where xaitk-saliency is not installed, and what making maps raises.
    """
    if task.config.is_explained:
        explain_run = group.run_on_all(_import_saliency)
        explain_run(task.config, model, data, group, record)


def _import_saliency() -> Callable[..., None]:
    with optional_part("saliency.method", "xaitk"):
        from unet_scaling.saliency.run import explain_run
    return explain_run


def average_buffers(model: nn.Module, group: Group) -> None:
    """Give all workers, real and played, the mean of the buffers of floats in which they differ.

    Such are the running statistics of batch norm. Raises UserError, on every worker alike, where they differ
    in one that has no mean: one state would not have one score.
    """
    names = training_state.buffers_that_differ(model, group)
    if not names:
        return
    copies = training_state.copies_of_buffers(model)
    # Sum in float64, whose rounding the result in float32 does not show.
    sums = [copies[name].double().sum(dim=0) for name in names]
    with blocking:
        total = group.sum_over_workers(torch.cat([each.flatten() for each in sums]))
    workers = group.size * len(copies[names[0]])
    means = torch.split(total / workers, [each.numel() for each in sums])
    for name, mean in zip(names, means, strict=True):
        buffer = model.get_buffer(name)
        for each in (buffer, copies[name]):
            each.copy_(mean.view_as(buffer))


def _counts_of_all(task: Task, model: nn.Module, data: RunData, group: Group) -> tuple[Tensor, float]:
    """Return the counts of every test sample, int64 [test samples, k], on every worker, and the seconds."""
    group.wait_for_all()
    begin = synchronized_seconds(group.device)
    model.eval()
    with training_state.leaving_no_trace(model):
        own = {position: task.count(model, batch) for position, batch in data.test_share()}
    length = max(map(int, group.gather_numbers(max(map(len, own.values()), default=0))))
    # The first column counts how often a sample was evaluated.
    table = torch.zeros(data.test_images, 1 + length, dtype=torch.int64, device=group.device)
    for position, counts in own.items():
        table[position, 0] += 1
        table[position, 1:] = counts
    with blocking:
        table = group.sum_over_workers(table).cpu()
    assert bool((table[:, 0] == 1).all()), f"test samples were evaluated {table[:, 0].tolist()} times"
    return table[:, 1:], max(group.gather_numbers(synchronized_seconds(group.device) - begin))

"""Evaluation: every test sample exactly once at any number of workers, counted in integers."""

import torch
from torch import Tensor, nn

from unet_scaling.data.batches import RunData
from unet_scaling.group.group import Group
from unet_scaling.group.watchdog import blocking
from unet_scaling.measure.timing import synchronized_seconds
from unet_scaling.played import buffers_that_differ, copies_of_buffers
from unet_scaling.run.training_state import leaving_no_trace
from unet_scaling.run.weights import weights_sha256
from unet_scaling.study.record_lines import Epoch, Evaluated, Evaluation
from unet_scaling.task.task import Task


@torch.no_grad()
def evaluate(task: Task, model: nn.Module, data: RunData, group: Group, epochs: list[Epoch]) -> Evaluation:
    """Evaluate after these epochs; return the same result on every worker.

    Samples pass through the network one by one, so that neither a sample's neighbours in a batch
    nor the number of workers can change a count by rounding.
    """
    average_buffers(model, group)
    group.wait_for_all()
    begin = synchronized_seconds(group.device)
    with leaving_no_trace(model):
        counts = _counts_of_all(task, model, data, group)
    seconds = max(group.gather_numbers(synchronized_seconds(group.device) - begin))
    evaluated = Evaluated(
        epochs=len(epochs),
        training_seconds=sum(epoch.seconds for epoch in epochs),
        images=len(counts),
        seconds=seconds,
        weights_sha256=weights_sha256(model),
    )
    return task.result(counts, evaluated)


def average_buffers(model: nn.Module, group: Group) -> None:
    """Give all workers, real and played, the mean of the buffers of floats in which they differ.

    Such are the running statistics of batch norm. Raises UserError, on every worker alike, where they differ
    in one that has no mean: one state would not have one score.
    """
    names = buffers_that_differ(model, group)
    if not names:
        return
    copies = copies_of_buffers(model)
    # In float64, whose rounding the result in float32 does not show.
    sums = [copies[name].double().sum(dim=0) for name in names]
    with blocking:
        total = group.sum_over_workers(torch.cat([each.flatten() for each in sums]))
    workers = group.size * len(copies[names[0]])
    means = torch.split(total / workers, [each.numel() for each in sums])
    for name, mean in zip(names, means, strict=True):
        buffer = model.get_buffer(name)
        for each in (buffer, copies[name]):
            each.copy_(mean.view_as(buffer))


def _counts_of_all(task: Task, model: nn.Module, data: RunData, group: Group) -> Tensor:
    """Return the counts of every test sample, int64 [test samples, k], on every worker."""
    model.eval()
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
    return table[:, 1:]

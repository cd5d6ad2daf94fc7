"""Evaluation: every test image exactly once at any number of workers, counted in integers."""

import dataclasses

import torch
from torch import Tensor, nn

from unet_scaling.data.run_data import RunData
from unet_scaling.group.group import Group
from unet_scaling.group.watchdog import blocking
from unet_scaling.measure.timing import synchronized_seconds
from unet_scaling.metrics import count_pixels, mean_image_iou, total_counts
from unet_scaling.played import live_buffers, played_statistics
from unet_scaling.run.weights import weights_sha256
from unet_scaling.study.record_lines import Epoch, Result


@torch.no_grad()
def evaluate(model: nn.Module, data: RunData, group: Group, epochs: list[Epoch]) -> Result:
    """Evaluate after these epochs; return the same result on every worker.

    Images pass through the network one by one, so that neither an image's neighbours in a batch
    nor the number of workers can move a pixel across the threshold by rounding.
    """
    average_batch_norm(model, group)
    group.wait_for_all()
    begin = synchronized_seconds(group.device)
    counts = _count_pixels_of_all(model, data, group)
    seconds = max(group.gather_numbers(synchronized_seconds(group.device) - begin))
    _require_each_image_once(counts, data.test_pixels)
    total = total_counts(counts)
    return Result(
        epochs=len(epochs),
        training_seconds=sum(epoch.seconds for epoch in epochs),
        images=len(counts),
        **dataclasses.asdict(total),
        iou=total.iou,
        dice=total.dice,
        image_iou=mean_image_iou(counts),
        seconds=seconds,
        weights_sha256=weights_sha256(model),
    )


def average_batch_norm(model: nn.Module, group: Group) -> None:
    """Give all workers, real and played, the mean of their running statistics; counters are equal."""
    played = played_statistics(model)
    statistics = [buffer for buffer in live_buffers(model) if buffer.is_floating_point()]
    workers = group.size * (played.players if played else 1)
    if workers == 1 or not statistics:
        return
    # In float64 the mean of equal float32 numbers is that number, however many workers there are.
    sums = played.sums() if played else [buffer.double() for buffer in statistics]
    with blocking:
        total = group.sum_over_workers(torch.cat([each.flatten() for each in sums]))
    means = torch.split(total / workers, [each.numel() for each in sums])
    for buffer, mean in zip(statistics, means, strict=True):
        buffer.copy_(mean.view_as(buffer))
    if played:
        played.take_over()


def _count_pixels_of_all(model: nn.Module, data: RunData, group: Group) -> Tensor:
    """Return counts of pixels, int64 [test images, 4], on every worker."""
    own = _count_own_share(model, data, group)
    with blocking:
        return group.sum_over_workers(own).cpu()


def _count_own_share(model: nn.Module, data: RunData, group: Group) -> Tensor:
    """Return counts of pixels, int64 [test images, 4]: of this worker's images, zero for all others."""
    counts = torch.zeros(len(data.test_pixels), 4, dtype=torch.int64, device=group.device)
    model.eval()
    for position, image, mask in data.test_share():
        counts[position] = count_pixels(data.cropped(position, model(image)), data.cropped(position, mask))
    return counts


def _require_each_image_once(counts: Tensor, pixels: list[int]) -> None:
    counted = counts.sum(dim=1).tolist()
    assert counted == pixels, f"pixels counted per test image {counted}, pixels there {pixels}"

"""The statistics of norm layers such as batch norm, recomputed for the weights as they are.

Training leaves in them a running average over its last steps, which lags behind the weights: after few steps
it is mostly what it began with, and more workers take fewer steps. Here the same batches of training images,
without augmentation, pass through the network as in training, at any number of workers, and the moments of
each layer are pooled over them (precise batch norm: Wu and Johnson 2021, arXiv:2105.07576, section 3).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from unet_scaling.data.batches import RunData
from unet_scaling.data.order import Indices, epoch_order
from unet_scaling.format.record_lines import NormStatistics
from unet_scaling.group.group import Group
from unet_scaling.group.watchdog import blocking
from unet_scaling.measure.epoch_meter import synchronized_seconds
from unet_scaling.run import training_state
from unet_scaling.task.task import Task

Layers = Mapping[str, _NormBase]
# Batches whose moments are held and summed at a time: 14 MB of the 26,560 channels of a ResNet-50.
MOST_ROWS = 32


class Moments(NamedTuple):
    """Number [n], mean and variance [n, channels] in float64 of n parts of what passed through a layer.

    The number is that of values, or of an instance norm of instances; the variance is unbiased.
    """

    number: Tensor
    mean: Tensor
    variance: Tensor

    def pooled(self, layer: nn.Module) -> "Moments":
        """Return the moments of all parts together, as one.

        Of an instance norm the variance is the mean over the instances, each of which has one of its own.
        """
        weights = self.number[:, None]
        total = self.number.sum(dim=0, keepdim=True)
        mean = (weights * self.mean).sum(dim=0, keepdim=True) / total
        if isinstance(layer, _BatchNorm):
            squares = (weights - 1) * self.variance + weights * (self.mean - mean) ** 2
            return Moments(total, mean, squares.sum(dim=0, keepdim=True) / (total - 1))
        return Moments(total, mean, (weights * self.variance).sum(dim=0, keepdim=True) / total)


def norm_layers(model: nn.Module) -> dict[str, _NormBase]:
    """Return the layers of torch whose running statistics training moves, by name."""
    layers = {name: part for name, part in model.named_modules() if isinstance(part, _NormBase)}
    return {
        name: layer
        for name, layer in layers.items()
        if layer.track_running_stats and layer.running_mean is not None and layer.momentum != 0
    }


def statistics_batches(data: RunData) -> Indices:
    """Return the training samples of each batch that passes, [batches, b], at any number of workers.

    They are the first of epoch 0, a function of the seed, in batches as large as those of a worker, and of 2
    at least: one value has no variance.
    """
    training = data.config.training
    order = epoch_order(data.split.train, 1, data.config.seed, 0)
    batch = min(max(2, training.batch_per_worker), len(order))
    batches = max(1, min(training.statistics_images, len(order)) // batch)
    return order[: batches * batch].reshape(-1, batch)


@torch.no_grad()
def recompute(task: Task, model: nn.Module, data: RunData, group: Group) -> NormStatistics:
    """Give all norm layers that are not frozen the statistics of the weights; return what was done.

    The workers share the batches out: the result is the same on each, and to the byte at any number of
    workers of equal threads. No other buffer, weight or generator changes.
    """
    begin = synchronized_seconds(group.device)
    layers = norm_layers(model)
    if not layers:
        return NormStatistics(layers=0, images=0, seconds=0.0)
    batches = statistics_batches(data)
    tables = []
    moved: set[str] = set()
    was_training = model.training
    model.train()
    with training_state.leaving_no_trace(model), torch.compiler.set_stance("force_eager"):
        for first in range(0, len(batches), MOST_ROWS):
            nothing = torch.cat([_packed(layer, []) for layer in layers.values()])
            rows = [nothing] * min(MOST_ROWS, len(batches) - first)
            for number in range(group.rank, len(rows), group.size):
                training_state.seed_generators(task.config.seed, first + number)
                with training_state.unchanged_buffers(model), _noted(layers) as seen:
                    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
                    # A loss of one's own may take gradients itself.
                    with torch.set_grad_enabled(task.config.has_own_task):
                        task.loss(model, data.plain_batch(batches[first + number]))
                    noted = tuple(f"{name}." for name in layers if seen[name])
                    moved |= {
                        name
                        for name, buffer in model.named_buffers()
                        if buffer.is_floating_point()
                        and not name.startswith(noted)
                        and not buffer.equal(before[name])
                    }
                rows[number] = torch.cat([_packed(layer, seen[name]) for name, layer in layers.items()])
            # Each row is one worker's: the sum is exact. They are pooled in one order.
            with blocking:
                table = group.sum_over_workers(torch.stack(rows).to(group.sum_device)).cpu()
            tables.append(_pooled(layers, table))
    model.train(was_training)
    settled = _fill(layers, _pooled(layers, torch.stack(tables)))
    others = {name for text in group.gather_strings(" ".join(moved)) for name in text.split()}
    return NormStatistics(
        layers=settled,
        images=batches.size if settled else 0,
        seconds=max(group.gather_numbers(synchronized_seconds(group.device) - begin)),
        others=sorted(others),
    )


@contextmanager
def _noted(layers: Layers) -> Iterator[dict[str, list[Moments]]]:
    """Let the layers keep what passes instead of an average over all that passed; yield it, by name."""
    seen: dict[str, list[Moments]] = {name: [] for name in layers}
    momenta = {name: layer.momentum for name, layer in layers.items()}
    hooks = [layer.register_forward_hook(partial(_note, seen[name])) for name, layer in layers.items()]
    # Layers of all workers together would wait for workers that have fewer batches.
    joined = [layer for layer in layers.values() if type(layer).__name__ == "SyncBatchNorm"]
    try:
        for layer in layers.values():
            layer.momentum = 1.0
        for layer in joined:
            layer.forward = partial(_normalize_by_own_moments, layer)
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
        for name, layer in layers.items():
            layer.momentum = momenta[name]
        for layer in joined:
            del layer.forward


def _normalize_by_own_moments(layer: _NormBase, values: Tensor) -> Tensor:
    statistics = (layer.running_mean, layer.running_var, layer.weight, layer.bias)
    return functional.batch_norm(values, *statistics, layer.training, 1.0, layer.eps)


def _note(seen: list[Moments], layer: _NormBase, _inputs: object, output: Tensor) -> None:
    """Note the moments of what passed through a layer: a forward hook. A frozen layer keeps its own."""
    if not layer.training:
        return
    number = output.numel() // layer.num_features
    if not isinstance(layer, _BatchNorm):
        is_one = output.dim() == layer._get_no_batch_dim()  # type: ignore[operator]
        number = 1 if is_one else len(output)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    moments = (torch.tensor(number), layer.running_mean, layer.running_var)
    # Copies: the next pass writes over the buffers.
    seen.append(Moments(*(each.to("cpu", torch.float64, copy=True)[None] for each in moments)))


def _packed(layer: _NormBase, seen: list[Moments]) -> Tensor:
    """Return number, mean and variance of all parts, [1 + 2 channels]; zeros where nothing passed through."""
    if not seen:
        return torch.zeros(1 + 2 * layer.num_features, dtype=torch.float64)
    parts = Moments(*map(torch.cat, zip(*seen, strict=True)))
    return torch.cat([each.flatten() for each in parts.pooled(layer)])


def _unpacked(layers: Layers, table: Tensor) -> Iterator[tuple[_NormBase, Moments]]:
    """Yield each layer and its moments in the rows of a table [rows, ...], without those of nothing."""
    widths = [1 + 2 * layer.num_features for layer in layers.values()]
    for layer, rows in zip(layers.values(), torch.split(table, widths, dim=1), strict=True):
        used = rows[rows[:, 0] > 0]
        number, mean, variance = torch.split(used, [1, layer.num_features, layer.num_features], dim=1)
        yield layer, Moments(number[:, 0], mean, variance)


def _pooled(layers: Layers, table: Tensor) -> Tensor:
    """Return the moments of all rows of a table together, as one row."""
    every = _unpacked(layers, table)
    return torch.cat([_packed(layer, [own] if len(own.number) else []) for layer, own in every])


def _fill(layers: Layers, row: Tensor) -> int:
    """Give the layers the moments of a row; return how many anything passed through."""
    settled = 0
    for layer, own in _unpacked(layers, row[None]):
        for buffer, value in ((layer.running_mean, own.mean), (layer.running_var, own.variance)):
            assert buffer is not None
            if len(value):
                buffer.copy_(value[0])
        settled += len(own.number)
    return settled

"""Squared norms of gradients in sampled steps, from which the gradient noise scale is estimated.

McCandlish et al., arXiv 1812.06162, appendix A.1: gradients of a small batch, here each worker's own, beside
that of a large one, their mean. A worker's own gradient is that of the mean loss of its images in the step,
all passes of `accumulate` together. It is read parameter by parameter in a post-accumulate hook, before
DDP and Horovod, which average in place as soon as a parameter is ready. Of a played worker it is the
difference that its passes make to what the players before it have left.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from unet_scaling.group.group import Group
from unet_scaling.study.config import RunConfig
from unet_scaling.study.measurements import GradientNorms

# What "auto" stands for, where a sample takes less than 0.5 % of so many steps: benchmarks/README.md.
LEAST_STEPS = 8
# A sample's work depends on the weights, a step's on its pixels: from here on the one is below 4 %.
PIXELS_FOR_LEAST_STEPS = 100_000
# What a step of another network takes is not known: a sample as long as half a step stays within 0.5 %.
STEPS_OF_OWN_TASK = 100
# A sum of more squares in float32 has an error beyond 1e-6, and in float64 it takes three times as long.
MOST_SUMMED = 2**14


class GradientNormMeter:
    """The norms of an epoch at a time. In a step that is not sampled the model has no hooks of it."""

    def __init__(self, model: nn.Module, config: RunConfig) -> None:
        self._every = steps_between_samples(config)
        self._plays = config.plays_per_worker
        self._accumulate = config.training.accumulate
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._sampled: list[Tensor] = []

    def begin(self) -> None:
        """Start an epoch."""
        self._sampled = []

    @contextmanager
    def sampling(self, step: int) -> Iterator[None]:
        """Read the norms of the step taken inside, where it is one to sample; counted over the whole run."""
        # Not the first step of a run: its gradients are those of random weights.
        if step % self._every != self._every - 1:
            yield
            return
        with _own_norms(self._weights, self._plays, self._accumulate) as own:
            yield
        self._sampled.append(torch.stack([own.mean_square(), _mean_gradient_square(self._weights)]))

    def gather(self, group: Group) -> GradientNorms:
        """Return the norms of the epoch, equal on all workers, without steps where one is not finite.

        Waits for the device, and for the other workers: outside the clock.
        """
        if not self._sampled:
            return GradientNorms(own_squared=[], mean_squared=[])
        workers = group.gather_array(torch.stack(self._sampled).cpu().numpy())
        # Every worker holds the same averaged gradient.
        norms = np.stack([workers[:, :, 0].mean(axis=0), workers[0, :, 1]])
        own, mean = norms[:, np.isfinite(norms).all(axis=0)].tolist()
        return GradientNorms(own_squared=own, mean_squared=mean)


def gradient_norm_meter(model: nn.Module, config: RunConfig) -> GradientNormMeter | None:
    """Return what reads the norms of a run; None where it is off, or where no two gradients can be compared.

    With batch norm over all workers a worker's gradient depends on the images of the others, and those of
    emulated workers are zero.
    """
    compared = config.played_workers > 1 and config.model.batch_norm != "sync" and not config.is_emulated
    return GradientNormMeter(model, config) if compared and steps_between_samples(config) else None


def steps_between_samples(config: RunConfig) -> int:
    """Return from how many steps one is sampled, 0 for none.

    With "auto" LEAST_STEPS, or, where the run's seconds count, as many as keep samples below 0.5 % of them.
    """
    every = config.training.noise_scale_every
    if every != "auto":
        return every
    if config.is_played:
        return LEAST_STEPS
    if config.has_own_task:
        return STEPS_OF_OWN_TASK
    pixels = config.data.image_height * config.data.image_width
    pixels_of_step = pixels * config.training.batch_per_worker * config.training.accumulate
    return LEAST_STEPS * math.ceil(PIXELS_FOR_LEAST_STEPS / pixels_of_step)


class _OwnNorms:
    """The own gradients of one step: of a real worker, or of each that it plays, one after the other."""

    def __init__(self, weights: Sequence[Tensor], plays: int, accumulate: int) -> None:
        self._plays = plays
        self._accumulate = accumulate
        self._passes = [0] * len(weights)
        self._before: list[Tensor | None] = [None] * len(weights)
        self._norms: list[Tensor] = []

    def ready(self, parameter: int, weight: Tensor) -> None:
        """Take the gradient of a parameter after a pass: after the last one of a player, its own norm."""
        assert weight.grad is not None
        self._passes[parameter] += 1
        players, passes = divmod(self._passes[parameter], self._accumulate)
        if passes:
            return
        gradient = weight.grad
        before = self._before[parameter]
        self._norms += _norms(gradient if before is None else gradient - before)
        if players < self._plays:
            self._before[parameter] = gradient.clone()

    def mean_square(self) -> Tensor:
        """Return the mean over the players of their squared norms; NaN unless every pass gave all of them."""
        # The loss of each pass is divided by all passes of the step, so that gradients add up to their mean.
        total = _square(self._norms) * self._plays
        whole = all(passes == self._plays * self._accumulate for passes in self._passes)
        return total if whole else torch.full_like(total, torch.nan)


@contextmanager
def _own_norms(weights: Sequence[Tensor], plays: int, accumulate: int) -> Iterator[_OwnNorms]:
    own = _OwnNorms(weights, plays, accumulate)
    hooks = [
        weight.register_post_accumulate_grad_hook(partial(own.ready, number))  # type: ignore[no-untyped-call]
        for number, weight in enumerate(weights)
    ]
    try:
        yield own
    finally:
        for hook in hooks:
            hook.remove()


def _mean_gradient_square(weights: Sequence[Tensor]) -> Tensor:
    """Return the squared norm of the averaged gradients, which stay in place after the update."""
    return _square([norm for weight in weights if weight.grad is not None for norm in _norms(weight.grad)])


def _square(norms: Sequence[Tensor]) -> Tensor:
    """Return the squared norm of what these are the norms of, in float64."""
    return torch.stack([*norms]).double().square().sum()


def _norms(gradient: Tensor) -> Sequence[Tensor]:
    """Return the norms of the parts of a gradient."""
    if gradient.numel() <= MOST_SUMMED:
        return (torch.linalg.vector_norm(gradient),)
    return torch._foreach_norm(torch.split(gradient.flatten(), MOST_SUMMED))

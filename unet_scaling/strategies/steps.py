"""Optimizer steps of other strategies than averaging the gradients at every step: alike for all frameworks.

The framework's wrapper takes no part: the workers exchange one flat tensor, by the framework's own sum.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unet_scaling.data.batches import Batch, StepBatches
from unet_scaling.format.record_lines import Phase
from unet_scaling.group.group import Group
from unet_scaling.group.watchdog import blocking
from unet_scaling.measure.epoch_meter import Clock
from unet_scaling.training import Step


@dataclass
class PlayedWorker:
    """A worker that is played: its weights, and what the optimizer keeps of each of them."""

    weights: list[Tensor]
    moments: dict[Tensor, Any]


@dataclass(frozen=True)
class LocalSteps(Step):
    """Local SGD: each worker trains by its own gradients; now and then all take the mean of their weights.

    Counted from the end of an epoch, so that its last step leaves one network, which is what is evaluated.
    With `strategy.average_moments` they take the mean of the optimizer's moments as well. Each worker that is
    played trains by gradients of its own, too.
    """

    group: Group = field(kw_only=True)
    is_shared: ClassVar[bool] = False

    def take(self, batches: Iterable[Batch], clock: Clock, left: int = 0) -> Tensor:
        of_players = batches if isinstance(batches, StepBatches) else StepBatches(batches)
        losses = []
        for player in self.players:
            with self._acting(player):
                losses.append(self.take_as(range(player, player + 1), of_players, clock))
        if left % self.config.strategy.synchronise_every == 0:
            self._average()
            clock.mark(Phase.SYNC)
        return torch.stack(losses).mean()

    def own_state(self) -> list[dict[str, Any]]:
        """Return the weights and the optimizer's state of each worker that is played here, or of this one."""
        states = []
        for player in self.players:
            with self._acting(player):
                weights = [weight.detach().clone() for weight in self._weights]
                states.append({"weights": weights, "optimizer": self.optimizer.state_dict()})
        return states

    def set_own_state(self, state: list[dict[str, Any]]) -> None:
        if len(state) != len(self.players):
            raise ValueError(f"it holds the weights of {len(state)} workers of {len(self.players)}")
        for player, saved in enumerate(state):
            with self._acting(player):
                _copy(saved["weights"], self._weights)
                self.optimizer.load_state_dict(saved["optimizer"])

    @cached_property
    def _weights(self) -> list[nn.Parameter]:
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    @cached_property
    def _played_workers(self) -> list[PlayedWorker]:
        """Return all workers that are played here; empty where it is one, whose state is the network's."""
        if len(self.players) == 1:
            return []
        copies = [[weight.detach().clone() for weight in self._weights] for _ in self.players]
        return [PlayedWorker(weights, defaultdict(dict)) for weights in copies]

    @contextmanager
    def _acting(self, number: int) -> Iterator[None]:
        """Let the network and the optimizer be those of this player; keep what becomes of them."""
        if not self._played_workers:
            yield
            return
        player = self._played_workers[number]
        _copy(player.weights, self._weights)
        self.optimizer.state = player.moments  # type: ignore[assignment]
        yield
        player.moments = self.optimizer.state
        _copy(self._weights, player.weights)

    @torch.no_grad()
    def _average(self) -> None:
        """Give all workers, real and played, the mean of their weights, and of the optimizer's moments."""
        played = self._played_workers or [PlayedWorker(list(self._weights), self.optimizer.state)]
        workers = self.group.size * len(played)
        if workers == 1:
            return
        tensors = [self._averaged(player) for player in played]
        total = torch.stack([_flat(own) for own in tensors]).sum(dim=0)
        with blocking:
            mean = self.group.sum_over_workers(total) / workers
        for own in tensors:
            _fill(own, mean)
        _copy(played[0].weights, self._weights)

    def _averaged(self, player: PlayedWorker) -> list[Tensor]:
        moments = []
        if self.config.strategy.average_moments:
            # Fused optimizers count the steps in a tensor, which is equal on all workers.
            of_weights = [player.moments.get(weight, {}) for weight in self._weights]
            moments = [
                state[name]
                for state in of_weights
                for name in sorted(state)
                if name != "step" and isinstance(state[name], Tensor)
            ]
        return [*player.weights, *moments]


@dataclass
class Exchange:
    """Gradients on their way: the sum over all workers, once `wait` has returned."""

    gradients: Tensor
    wait: Callable[[], object]


@dataclass(frozen=True)
class StaleSteps(Step):
    """Bounded asynchrony: a step applies the averaged gradients of the one before, while its own are summed.

    The first step of an epoch applies none, its last one those of two steps: one network is evaluated.
    """

    group: Group = field(kw_only=True)
    # None, or that of the last step.
    _under_way: list[Exchange] = field(default_factory=list)

    def take(self, batches: Iterable[Batch], clock: Clock, left: int = 0) -> Tensor:
        self.optimizer.zero_grad()
        clock.mark(Phase.OPTIMIZER)
        loss = self.average_gradients(self.players, batches, clock)
        own = _flat(self._gradients())
        before = self._arrived()
        self._under_way.append(Exchange(own, self.group.start_sum(own)))
        clock.mark(Phase.SYNC)
        self._apply(before, clock)
        if left == 0:
            last = self._arrived()
            clock.mark(Phase.SYNC)
            self._apply(last, clock)
        return loss

    def own_state(self) -> list[dict[str, Any]]:
        """Return the gradients that are on their way, once they have arrived."""
        arrived = [Exchange(each, lambda: None) for each in self._arrived()]
        self._under_way.extend(arrived)
        return [{"gradients": each.gradients} for each in arrived]

    def set_own_state(self, state: list[dict[str, Any]]) -> None:
        device = self.group.device
        self._under_way[:] = [Exchange(each["gradients"].to(device), lambda: None) for each in state]

    def _gradients(self) -> list[Tensor]:
        return [weight.grad for weight in self.model.parameters() if weight.grad is not None]

    def _arrived(self) -> list[Tensor]:
        """Wait for the gradients that are on their way, if any are; return their sum over all workers."""
        exchanges = list(self._under_way)
        self._under_way.clear()
        with blocking:
            for each in exchanges:
                each.wait()
        return [each.gradients for each in exchanges]

    def _apply(self, sums: list[Tensor], clock: Clock) -> None:
        for total in sums:
            _fill(self._gradients(), total / self.group.size)
            self.update(clock)


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _copy(source: Iterable[Tensor], target: Iterable[Tensor]) -> None:
    with torch.no_grad():
        for own, other in zip(target, source, strict=True):
            own.copy_(other)


def _fill(tensors: list[Tensor], flat: Tensor) -> None:
    """Copy a flat tensor into those that it was made of."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    _copy([part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)], tensors)

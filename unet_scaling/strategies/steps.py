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
from unet_scaling.group.group import Group, StartSum
from unet_scaling.group.watchdog import blocking
from unet_scaling.measure.epoch_meter import Clock
from unet_scaling.training import Step


@dataclass
class Replica:
    """A worker or subgroup that is played: its weights, and what the optimizer keeps of each of them."""

    weights: list[Tensor]
    moments: dict[Tensor, Any]


@dataclass(frozen=True)
class LocalSteps(Step):
    """Local SGD: each worker trains by its own gradients; now and then all take the mean of their weights.

    Counted from the end of an epoch, so that its last step leaves one network, which is what is evaluated.
    With `strategy.average_moments` they take the mean of the optimizer's moments as well. Each worker that is
    played trains by gradients of its own, too. The workers of a subgroup average their gradients at every
    step: hierarchical averaging, or post-local SGD (Lin et al., arXiv:1808.07217).
    """

    group: Group = field(kw_only=True)
    # Of the outer optimizer: all weights as the last averaging left them, and their momentum.
    _outer: list[Tensor] = field(default_factory=list)
    is_shared: ClassVar[bool] = False

    def take(self, batches: Iterable[Batch], clock: Clock, left: int = 0) -> Tensor:
        of_players = batches if isinstance(batches, StepBatches) else StepBatches(batches)
        if self.config.strategy.outer_momentum and not self._outer:
            begun = _flat(self._weights)
            self._outer.extend((begun, torch.zeros_like(begun)))
        losses = []
        for number, players in enumerate(self._players_of_replicas):
            with self._acting(number):
                losses.append(self.take_as(players, of_players, clock))
        if left % self.config.strategy.synchronise_every == 0:
            self._average()
            clock.mark(Phase.SYNC)
        return torch.stack(losses).mean()

    def average_gradients(self, players: range, batches: Iterable[Batch], clock: Clock) -> Tensor:
        """Leave the mean gradients of a subgroup in place: of these players and those on other workers."""
        loss = super().average_gradients(players, batches, clock)
        workers = self.config.subgroup_size // len(self.players)
        if workers > 1:
            gradients = [weight.grad for weight in self._weights if weight.grad is not None]
            total = _flat(gradients)
            with blocking:
                self._start_subgroup_sum(total)()
            _fill(gradients, total / workers)
            clock.mark(Phase.SYNC)
        return loss

    def own_state(self) -> list[dict[str, Any]]:
        """Return weights and the optimizer's state of each replica that is played here, or of this worker."""
        states = []
        for number in range(len(self._players_of_replicas)):
            with self._acting(number):
                weights = [weight.detach().clone() for weight in self._weights]
                states.append({"weights": weights, "optimizer": self.optimizer.state_dict()})
        states[0]["outer"] = list(self._outer)
        return states

    def set_own_state(self, state: list[dict[str, Any]]) -> None:
        replicas = len(self._players_of_replicas)
        if len(state) != replicas:
            raise ValueError(f"it holds the weights of {len(state)} replicas of {replicas}")
        for number, saved in enumerate(state):
            with self._acting(number):
                _copy(saved["weights"], self._weights)
                self.optimizer.load_state_dict(saved["optimizer"])
        self._outer[:] = [each.to(self.group.device) for each in state[0]["outer"]]

    @cached_property
    def _weights(self) -> list[nn.Parameter]:
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    @cached_property
    def _players_of_replicas(self) -> list[range]:
        """Return the players here that have the same weights: each alone, or those of a subgroup."""
        size = min(self.config.subgroup_size, len(self.players))
        return [range(first, first + size) for first in self.players[::size]]

    @cached_property
    def _start_subgroup_sum(self) -> StartSum:
        return self.group.subgroup_sum(self.config.subgroup_size // len(self.players))

    @cached_property
    def _replicas(self) -> list[Replica]:
        """Return all replicas that are played here; empty where it is one, whose state is the network's."""
        if len(self._players_of_replicas) == 1:
            return []
        copies = [[weight.detach().clone() for weight in self._weights] for _ in self._players_of_replicas]
        return [Replica(weights, defaultdict(dict)) for weights in copies]

    @contextmanager
    def _acting(self, number: int) -> Iterator[None]:
        """Let the network and the optimizer be those of this replica; keep what becomes of them."""
        if not self._replicas:
            yield
            return
        replica = self._replicas[number]
        _copy(replica.weights, self._weights)
        self.optimizer.state = replica.moments  # type: ignore[assignment]
        yield
        replica.moments = self.optimizer.state
        _copy(self._weights, replica.weights)

    @torch.no_grad()
    def _average(self) -> None:
        """Give all workers, real and played, the mean of their weights, and of the optimizer's moments."""
        played = self._replicas or [Replica(list(self._weights), self.optimizer.state)]
        copies = self.group.size * len(played)
        if copies == 1 and not self._outer:
            return
        tensors = [self._averaged(replica) for replica in played]
        total = torch.stack([_flat(own) for own in tensors]).sum(dim=0)
        with blocking:
            mean = self.group.sum_over_workers(total) / copies
        if self._outer:
            weights = len(self._outer[0])
            mean[:weights] = self._outer_step(mean[:weights])
        for own in tensors:
            _fill(own, mean)
        _copy(played[0].weights, self._weights)

    def _outer_step(self, mean: Tensor) -> Tensor:
        """Return the next weights of all: a step of the outer optimizer from the last, x, to their mean.

        That of SlowMo (Wang et al., arXiv:1910.00643), with g the learning rate of the epoch: the momentum is
        u = b u + (x - mean) / g, the next weights are x - a g u. With Nesterov's momentum they are
        x - a g ((x - mean) / g + b u): at a constant rate, DiLoCo (Douillard et al., arXiv:2311.08105).
        """
        strategy = self.config.strategy
        last, momentum = self._outer
        rate = float(self.optimizer.param_groups[0]["lr"])
        change = (last - mean) / rate
        momentum.mul_(strategy.outer_momentum).add_(change)
        step = change + strategy.outer_momentum * momentum if strategy.outer_nesterov else momentum
        last.sub_(strategy.outer_learning_rate * rate * step)
        return last

    def _averaged(self, replica: Replica) -> list[Tensor]:
        moments = []
        if self.config.strategy.average_moments:
            # Fused optimizers count the steps in a tensor, which is equal on all workers.
            of_weights = [replica.moments.get(weight, {}) for weight in self._weights]
            moments = [
                state[name]
                for state in of_weights
                for name in sorted(state)
                if name != "step" and isinstance(state[name], Tensor)
            ]
        return [*replica.weights, *moments]


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

"""One worker that trains as several: each worker that it plays has running statistics of its own.

The gradients of their passes add up to those that as many real workers would average. What a real worker has
for itself besides are the buffers of its network: the running statistics of batch norm.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

PLAYED_STATISTICS = "played_statistics"


class PlayedStatistics(nn.Module):
    """The buffers of a network for each played worker, [players, ...] each; no part of its state_dict."""

    def __init__(self, model: nn.Module, players: int) -> None:
        super().__init__()
        self.live = list(model.buffers())
        self.players = players
        for number, buffer in enumerate(self.live):
            copies = buffer.expand(players, *buffer.shape).clone()
            self.register_buffer(f"of_buffer{number}", copies, persistent=False)
        self._own = [[copies[player] for copies in self.buffers()] for player in range(players)]

    @contextmanager
    def acting(self, player: int) -> Iterator[None]:
        """Let the network have the buffers of this player, and keep what becomes of them."""
        torch._foreach_copy_(self.live, self._own[player])
        yield
        torch._foreach_copy_(self._own[player], self.live)

    @torch.no_grad()
    def sums(self) -> list[Tensor]:
        """Return the sum over the players of each buffer of floats, in float64."""
        return [copies.double().sum(dim=0) for copies in self.buffers() if copies.is_floating_point()]

    @torch.no_grad()
    def take_over(self) -> None:
        """Give every player the floats that the network has, and the network the first one's counters."""
        for live, copies in zip(self.live, self.buffers(), strict=True):
            if live.is_floating_point():
                copies.copy_(live.expand_as(copies))
            else:
                live.copy_(copies[0])


def add_played_statistics(model: nn.Module, players: int) -> None:
    """Add statistics of so many players to a network that is on its device and has its first weights.

    One without batch norm has no buffers, and its players nothing of their own.
    """
    if players > 1 and next(model.buffers(), None) is not None:
        model.add_module(PLAYED_STATISTICS, PlayedStatistics(model, players))


def live_buffers(model: nn.Module) -> list[Tensor]:
    """Return the buffers that the network computes with."""
    played = played_statistics(model)
    return played.live if played else list(model.buffers())


def played_statistics(model: nn.Module) -> PlayedStatistics | None:
    """Return the statistics of the workers that a network or its replica plays; None where it is one."""
    return next((part for part in model.modules() if isinstance(part, PlayedStatistics)), None)

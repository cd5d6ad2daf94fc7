"""One worker that trains as several: each worker that it plays has buffers and generators of its own.

The gradients of their passes add up to those that as many real workers would average. What a real worker has
for itself besides are the buffers of its network, such as the running statistics of batch norm, and the
generators that its passes draw from, as dropout does.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unet_scaling.data.sample_data import sample_sha256
from unet_scaling.group.group import Group
from unet_scaling.run.training_state import (
    Generators,
    buffer_places,
    generators,
    names_that_differ,
    seed_generators,
    set_generators,
    some_of,
)
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import UserError

PLAYED_STATISTICS = "played_statistics"


class PlayedStatistics(nn.Module):
    """The buffers of a network for each played worker, [players, ...] each; no part of its state_dict."""

    def __init__(self, model: nn.Module, players: int) -> None:
        super().__init__()
        self.generators = [generators() for _ in range(players)]
        self._places = buffer_places(model)
        for number, place in enumerate(self._places):
            buffer = place.tensor()
            copies = buffer.expand(players, *buffer.shape).clone()
            self.register_buffer(f"of_buffer{number}", copies, persistent=False)

    @contextmanager
    def acting(self, player: int) -> Iterator[None]:
        """Let the network have the buffers and generators of this player; keep what becomes of them."""
        # Not kept: a framework may move the model, and put other tensors into it.
        own = [copies[player] for copies in self.buffers()]
        self._copy(own, self._live())
        set_generators(self.generators[player])
        yield
        self.generators[player] = generators()
        self._copy(self._live(), own)

    def _live(self) -> list[Tensor]:
        return [place.tensor() for place in self._places]

    def _copy(self, of: list[Tensor], to: list[Tensor]) -> None:
        if of:
            torch._foreach_copy_(to, of)

    def copies(self) -> dict[str, Tensor]:
        """Return the buffers of all players, [players, ...] each, by their names in the network."""
        return {place.name: copies for place, copies in zip(self._places, self.buffers(), strict=True)}


def add_played_statistics(model: nn.Module, players: int) -> None:
    """Add buffers of so many players to a network that is on its device and has its first weights."""
    if players > 1:
        model.add_module(PLAYED_STATISTICS, PlayedStatistics(model, players))


def played_statistics(model: nn.Module) -> PlayedStatistics | None:
    """Return the statistics of the workers that a network or its replica plays; None where it is one."""
    return next((part for part in model.modules() if isinstance(part, PlayedStatistics)), None)


def seed_workers(model: nn.Module, config: RunConfig, rank: int) -> list[Generators]:
    """Seed the generators of this worker, and return those of each that it plays: by seed and rank alone."""
    players = config.plays_per_worker
    played = played_statistics(model)
    of_players = played.generators if played else []
    for player in range(len(of_players)):
        seed_generators(config.seed, rank * players + player)
        of_players[player] = generators()
    seed_generators(config.seed, rank * players)
    return of_players


def copies_of_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return each buffer by its name, [players, ...]: as every worker has it that is played here, or one."""
    played = played_statistics(model)
    return played.copies() if played else {name: buffer[None] for name, buffer in model.named_buffers()}


def buffers_that_differ(model: nn.Module, group: Group) -> list[str]:
    """Return the names of buffers that are not equal on all workers, real and played: they can be averaged.

    Raises UserError, on every worker alike, where one of them holds no floats.
    """
    copies = copies_of_buffers(model)
    digests = {name: {sample_sha256(each) for each in of_workers} for name, of_workers in copies.items()}
    differing = names_that_differ(digests, group)
    others = [f"{name} ({copies[name].dtype})" for name in differing if not copies[name].is_floating_point()]
    if others:
        raise UserError(
            f"buffer {some_of(others)}: workers differ in it, and only floats are averaged to evaluate; "
            "keep it in floats, or let it depend on no sample"
        )
    return differing

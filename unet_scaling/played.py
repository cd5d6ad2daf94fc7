"""One worker that trains as several: each worker that it plays has buffers and generators of its own.

The gradients of their passes add up to those that as many real workers would average. What a real worker has
for itself besides are the buffers of its network, such as the running statistics of batch norm, and the
generators that its passes draw from, as dropout does.
"""

from collections.abc import Iterator
from contextlib import contextmanager

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
from unet_scaling.study.errors import UserError

PLAYED_STATISTICS = "played_statistics"


class PlayedStatistics(nn.Module):
    """The buffers of a network for each played worker, [players, ...] each; no part of its state_dict."""

    def __init__(self, model: nn.Module, players: int) -> None:
        super().__init__()
        self.generators = [generators() for _ in range(players)]
        self.places = buffer_places(model)
        for number, buffer in enumerate(list(model.buffers())):
            copies = buffer.expand(players, *buffer.shape).clone()
            self.register_buffer(f"of_buffer{number}", copies, persistent=False)

    @contextmanager
    def acting(self, player: int) -> Iterator[None]:
        """Let the network have the buffers and generators of this player; keep what becomes of them."""
        for (_, module, key), copies in zip(self.places, self.buffers(), strict=True):
            module.get_buffer(key).copy_(copies[player])
        set_generators(self.generators[player])
        yield
        self.generators[player] = generators()
        for (_, module, key), copies in zip(self.places, self.buffers(), strict=True):
            copies[player].copy_(module.get_buffer(key))


def add_played_statistics(model: nn.Module, players: int) -> None:
    """Add buffers of so many players to a network that is on its device and has its first weights."""
    if players > 1:
        model.add_module(PLAYED_STATISTICS, PlayedStatistics(model, players))


def played_statistics(model: nn.Module) -> PlayedStatistics | None:
    """Return the statistics of the workers that a network or its replica plays; None where it is one."""
    return next((part for part in model.modules() if isinstance(part, PlayedStatistics)), None)


def seed_workers(model: nn.Module, seed: int, rank: int) -> list[Generators]:
    """Seed the generators of this worker, and return those of each that it plays: by seed and rank alone."""
    played = played_statistics(model)
    of_players = played.generators if played else []
    for player in range(len(of_players)):
        seed_generators(seed, rank * len(of_players) + player)
        of_players[player] = generators()
    if not of_players:
        seed_generators(seed, rank)
    return of_players


def copies_of_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return each buffer by its name, [players, ...]: as every worker has it that is played here, or one."""
    played = played_statistics(model)
    if played is None:
        return {name: buffer[None] for name, buffer in model.named_buffers()}
    return {name: copies for (name, *_), copies in zip(played.places, played.buffers(), strict=True)}


def buffers_that_differ(model: nn.Module, group: Group) -> list[str]:
    """Return the names of buffers that are not equal on all workers, real and played: they can be averaged.

    Raises UserError, on every worker alike, where one of them holds no floats, or is not part of the weights.
    """
    copies = copies_of_buffers(model)
    digests = {name: {sample_sha256(each) for each in of_workers} for name, of_workers in copies.items()}
    differing = names_that_differ(digests, group)
    played = played_statistics(model)
    places = played.places if played else buffer_places(model)
    unsaved = {name for name, module, key in places if key in module._non_persistent_buffers_set}
    others = [name for name in differing if name in unsaved or not copies[name].is_floating_point()]
    if others:
        raise UserError(
            f"buffer {some_of(others)}: workers differ in it, and only persistent floats are averaged; "
            "make it one, or let it depend on no sample"
        )
    return differing

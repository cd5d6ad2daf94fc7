"""The clock of a worker while it makes maps: each moment belongs to one phase."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from unet_scaling.measure.timing import synchronized_seconds
from unet_scaling.study.saliency import SaliencyPhases

PHASES = tuple(name for name in SaliencyPhases.model_fields if name != "other")


class PhaseSeconds:
    """Seconds by phase, from the moment it is made; what no phase covers is other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._began = synchronized_seconds(device)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what runs inside as this phase; phases do not overlap."""
        assert name in self._seconds, f"{name!r} is no phase; there are {', '.join(PHASES)}"
        began = synchronized_seconds(self._device)
        yield
        self._seconds[name] += synchronized_seconds(self._device) - began

    def stop(self) -> SaliencyPhases:
        """Return the seconds of all phases until now."""
        total = synchronized_seconds(self._device) - self._began
        other = max(0.0, total - sum(self._seconds.values()))
        return SaliencyPhases(**self._seconds, other=other)

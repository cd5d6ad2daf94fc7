"""Counters of the GPU's driver, through NVML: only where its Python library (nvidia-ml-py) is installed."""

import importlib
from collections.abc import Callable
from typing import Any

import torch

from unet_scaling.study.measurements import GpuFacts


class Gpu:
    """One GPU and its driver's counters; None for each that the driver does not provide."""

    def __init__(self, library: Any, handle: Any) -> None:  # noqa: ANN401, NVML's objects have no types
        self._library = library
        self._handle = handle

    def energy_joules(self) -> float | None:
        """Return the energy since the driver was loaded; only differences mean anything."""
        millijoules = self._ask(self._library.nvmlDeviceGetTotalEnergyConsumption)
        return None if millijoules is None else millijoules / 1000

    def facts(self, energy_before: float | None) -> GpuFacts:
        """Return the present state, and the energy since `energy_before`."""
        rates = self._ask(self._library.nvmlDeviceGetUtilizationRates)
        memory = self._ask(self._library.nvmlDeviceGetMemoryInfo)
        milliwatts = self._ask(self._library.nvmlDeviceGetPowerUsage)
        limit = self._ask(self._library.nvmlDeviceGetEnforcedPowerLimit)
        energy = self.energy_joules()
        return GpuFacts(
            utilization=None if rates is None else rates.gpu / 100,
            memory_bytes=None if memory is None else memory.used,
            power_watts=None if milliwatts is None else milliwatts / 1000,
            energy_joules=None if energy is None or energy_before is None else energy - energy_before,
            power_limit_watts=None if limit is None else limit / 1000,
        )

    def _ask(self, question: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        try:
            return question(self._handle)
        except self._library.NVMLError:
            return None


def open_gpu(device: torch.device) -> Gpu | None:
    """Return the worker's GPU; None for a CPU worker and where NVML is not installed."""
    if device.type != "cuda":
        return None
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    return gpu_of(library, f"GPU-{torch.cuda.get_device_properties(device).uuid}")


def gpu_of(library: Any, uuid: str) -> Gpu | None:  # noqa: ANN401
    """Return the GPU of this UUID; None where the driver does not answer."""
    try:
        library.nvmlInit()
        return Gpu(library, library.nvmlDeviceGetHandleByUUID(uuid))
    except library.NVMLError:
        return None

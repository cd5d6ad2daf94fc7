"""GPU facts through a stand-in for NVML, which refuses every call it does not know."""

from types import SimpleNamespace

import pytest
import torch

from unet_scaling.measure.gpu_counters import gpu_of, open_gpu

UUID = "GPU-1"


class Driver:
    """NVML's functions for one GPU; those named in `silent` raise as an old GPU's do."""

    class NVMLError(Exception):
        pass

    def __init__(self, *silent: str) -> None:
        self.silent = silent
        self.millijoules = 5_000

    def nvmlInit(self) -> None:  # noqa: N802, NVML's name
        self._answer("nvmlInit", None)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object:  # noqa: N802
        return self._answer("nvmlDeviceGetHandleByUUID", uuid)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> object:  # noqa: N802
        return self._of(handle, "nvmlDeviceGetTotalEnergyConsumption", self.millijoules)

    def nvmlDeviceGetUtilizationRates(self, handle: object) -> object:  # noqa: N802
        return self._of(handle, "nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=85, memory=40))

    def nvmlDeviceGetMemoryInfo(self, handle: object) -> object:  # noqa: N802
        return self._of(handle, "nvmlDeviceGetMemoryInfo", SimpleNamespace(used=2**30, total=2**34))

    def nvmlDeviceGetPowerUsage(self, handle: object) -> object:  # noqa: N802
        return self._of(handle, "nvmlDeviceGetPowerUsage", 250_000)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: object) -> object:  # noqa: N802
        return self._of(handle, "nvmlDeviceGetEnforcedPowerLimit", 350_000)

    def _of(self, handle: object, name: str, answer: object) -> object:
        assert handle == UUID
        return self._answer(name, answer)

    def _answer(self, name: str, answer: object) -> object:
        if name in self.silent:
            raise self.NVMLError(name)
        return answer


def test_units_are_joules_watts_bytes_and_shares() -> None:
    driver = Driver()
    gpu = gpu_of(driver, UUID)
    assert gpu is not None
    before = gpu.energy_joules()
    driver.millijoules += 7_500
    facts = gpu.facts(before)
    assert facts.energy_joules == 7.5
    assert facts.power_watts == 250
    assert facts.utilization == 0.85
    assert facts.memory_bytes == 2**30


@pytest.mark.parametrize(
    ("silent", "field"),
    [
        ("nvmlDeviceGetTotalEnergyConsumption", "energy_joules"),
        ("nvmlDeviceGetUtilizationRates", "utilization"),
        ("nvmlDeviceGetMemoryInfo", "memory_bytes"),
        ("nvmlDeviceGetPowerUsage", "power_watts"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_watts"),
    ],
)
def test_what_the_driver_does_not_tell_is_none_and_the_rest_stays(silent: str, field: str) -> None:
    gpu = gpu_of(Driver(silent), UUID)
    assert gpu is not None
    facts = gpu.facts(gpu.energy_joules()).model_dump()
    assert facts.pop(field) is None
    assert None not in facts.values()


@pytest.mark.parametrize("silent", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_a_driver_that_does_not_answer_is_no_gpu(silent: str) -> None:
    assert gpu_of(Driver(silent), UUID) is None


def test_a_worker_on_a_processor_has_no_gpu() -> None:
    assert open_gpu(torch.device("cpu")) is None

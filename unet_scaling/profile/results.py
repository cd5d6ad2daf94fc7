"""The figures of a profile and what follows from them; seconds and images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from unet_scaling.study.config import RunConfig

# Nine of ten samples lie between these two.
PERCENTILES = (5, 95)

LoadingName = Literal["decode", "cache"]
LOADING_NAMES: tuple[LoadingName, ...] = get_args(LoadingName)


def loading_of(config: RunConfig) -> LoadingName:
    return "decode" if config.data.loading == "decode" else "cache"


@dataclass(frozen=True)
class Samples:
    """Median of samples, with their 5th and 95th percentile."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float] | npt.NDArray[np.float64]) -> Self:
        low, high = np.percentile(values, PERCENTILES).tolist()
        return cls(median=float(np.median(values)), low=low, high=high, count=len(values))


@dataclass(frozen=True)
class Throughput:
    """Images per second of this many loader processes, a sample a round; 0 loads in the main process."""

    processes: int
    images_per_second: Samples


@dataclass(frozen=True)
class Steps:
    """Training steps of one worker on its cores; seconds of a step of one batch.

    `data_wait` is loading to uint8 tensors in main memory, `host_to_device` transfer and conversion,
    `compute` forward, backward and optimizer. `in_line` is the whole step, each batch loaded when it is
    needed, and `prefetched` the whole step with `loader_processes` on the same cores.
    """

    device: str
    threads: int
    data_wait: Samples
    host_to_device: Samples
    compute: Samples
    in_line: Samples
    loader_processes: int
    prefetched: Samples

    @property
    def loading_seconds(self) -> float:
        return self.data_wait.median + self.host_to_device.median

    @property
    def hideable_seconds(self) -> float:
        """Return the seconds of a step that loader processes with cores of their own would hide.

        The training process brings each batch to the device itself, and a step never gets shorter than the
        work of that process.
        """
        return min(self.data_wait.median, self.host_to_device.median + self.compute.median)


@dataclass(frozen=True)
class HostCores:
    """The cores that this process may use, and their division among the study's workers."""

    cores: int
    workers_per_host: int
    cores_per_worker: int


@dataclass(frozen=True)
class Measurements:
    """All measured figures; `stages` are seconds per image of every stage, in one process."""

    config: RunConfig
    host: HostCores
    stages: dict[LoadingName, dict[str, Samples]]
    throughput: list[Throughput]
    steps: Steps
    notes: list[str]

    @property
    def batch(self) -> int:
        return self.config.training.batch_per_worker

    @property
    def loading(self) -> LoadingName:
        """Return how throughput and steps load: as the study, or by the cache for images kept on a device."""
        return loading_of(self.config)

    def seconds_per_image(self, loading: LoadingName) -> float:
        """Return the sum of the stages' medians."""
        return sum(samples.median for samples in self.stages[loading].values())


@dataclass(frozen=True)
class Conclusions:
    """The conclusions that follow from the figures.

    Shares are of a step that loads in line, `dominant_share` of the loading of an image. `hideable_share` is
    what a perfect loader would hide, `hidden_share` what loader processes hid: below 0, what they cost.
    """

    input_bound: bool
    dominant_stage: str
    dominant_share: float
    loading_share: float
    hideable_share: float
    hidden_share: float
    loader_processes: int
    advice: str
    warnings: list[str]


@dataclass(frozen=True)
class Profile(Measurements):
    """The figures with their conclusions."""

    conclusions: Conclusions

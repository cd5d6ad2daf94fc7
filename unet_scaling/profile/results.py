"""The content of the profiler's JSON file; seconds and images.

Format history
    1  first format
    2  shrunk to what the conclusions need: no cold stages, threads, context switches and scaled batches
"""

from collections.abc import Sequence
from typing import Literal, Self, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt

from unet_scaling.study.config import RunConfig
from unet_scaling.study.measurements import Duration, Share
from unet_scaling.study.validation import StrictModel

# Nine of ten samples lie between these two.
PERCENTILES = (5, 95)

LoadingName = Literal["decode", "cache"]
LOADING_NAMES: tuple[LoadingName, ...] = get_args(LoadingName)


def loading_of(config: RunConfig) -> LoadingName:
    return "decode" if config.data.loading == "decode" else "cache"


class Samples(StrictModel):
    """Median of samples, with their 5th and 95th percentile."""

    median: Duration
    low: Duration
    high: Duration
    count: PositiveInt

    @classmethod
    def of(cls, values: Sequence[float] | npt.NDArray[np.float64]) -> Self:
        low, high = np.percentile(values, PERCENTILES).tolist()
        return cls(median=float(np.median(values)), low=low, high=high, count=len(values))


class Throughput(StrictModel):
    """Images per second of this many loader processes, a sample a round; 0 loads in the main process."""

    processes: NonNegativeInt
    images_per_second: Samples


class Steps(StrictModel):
    """Training steps of one worker on its cores; seconds of a step of one batch."""

    device: str
    threads: PositiveInt
    data_wait: Samples = Field(description="loading to uint8 tensors in main memory")
    host_to_device: Samples = Field(description="transfer and conversion to floats")
    compute: Samples = Field(description="forward, backward and optimizer")
    in_line: Samples = Field(description="the whole step, each batch loaded when it is needed")
    loader_processes: NonNegativeInt = Field(description="that loaded ahead for `prefetched`")
    prefetched: Samples = Field(description="the whole step, loader processes on the same cores")

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


class HostCores(StrictModel):
    """The cores that this process may use, and their division among the study's workers."""

    cores: PositiveInt
    workers_per_host: PositiveInt
    cores_per_worker: PositiveInt


class Measurements(StrictModel):
    """All measured figures."""

    format: Literal[2] = 2
    config: RunConfig
    host: HostCores
    stages: dict[LoadingName, dict[str, Samples]] = Field(
        description="seconds per image of every stage, files in the page cache, in one process"
    )
    throughput: list[Throughput]
    steps: Steps
    notes: list[str]

    @property
    def batch(self) -> int:
        return self.config.training.batch_per_worker

    @property
    def loading(self) -> LoadingName:
        """The way of loading of throughput and steps: the study's, the cache for images kept on a device."""
        return loading_of(self.config)

    def seconds_per_image(self, loading: LoadingName) -> float:
        """Return the sum of the stages' medians."""
        return sum(samples.median for samples in self.stages[loading].values())


class Conclusions(StrictModel):
    """What follows from the figures."""

    input_bound: bool = Field(description="loading one batch takes longer than its step")
    dominant_stage: str
    dominant_share: Share = Field(description="of the loading of an image")
    loading_share: Share = Field(description="of a step that loads in line")
    hideable_share: Share = Field(description="of that step; what a perfect loader would hide")
    hidden_share: FiniteFloat = Field(description="of that step; what loader processes hid, below 0: cost")
    loader_processes: NonNegativeInt = Field(description="recommended for each worker")
    advice: str
    warnings: list[str]


class Profile(Measurements):
    """The whole content of the JSON file."""

    conclusions: Conclusions

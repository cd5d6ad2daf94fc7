"""What a profile of the input pipeline found: the content of its JSON file, seconds and images.

Format history
    1  first format
"""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

LOWEST, HIGHEST = 5, 95  # percentiles between which nine of ten samples lie

LoadingName = Literal["decode", "cache"]
Share = Annotated[float, Field(ge=0, le=1)]


class Finding(BaseModel):
    """A part of the profile: immutable, nothing coerced, no unknown keys, no NaN; null is "not known"."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Spread(Finding):
    """Median of samples, and the bounds that the field using it names."""

    median: NonNegativeFloat
    low: NonNegativeFloat
    high: NonNegativeFloat
    samples: PositiveInt

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Median, and the 5th and 95th percentile of the samples."""
        low, median, high = (float(value) for value in np.percentile(values, [LOWEST, 50, HIGHEST]))
        return cls(median=median, low=low, high=high, samples=len(values))

    def scaled(self, factor: float) -> Self:
        """The same in another unit."""
        bounds = {key: getattr(self, key) * factor for key in ("median", "low", "high")}
        return self.model_copy(update=bounds)


class Stage(Finding):
    """One stage; what is done for a whole batch at once is divided by its images."""

    stage: str
    seconds_per_image: Spread = Field(description="with the 5th and 95th percentile")


class Loading(Finding):
    """One way of loading in one process without loader processes."""

    loading: LoadingName
    warm: list[Stage] = Field(description="files in the page cache")
    cold: list[Stage] | None = Field(description="files not in memory; null where they cannot be put out")
    whole: Spread = Field(description="seconds per image of the undivided call, warm")

    def median_sum(self) -> float:
        """Seconds per image that the stages take together, warm."""
        return sum(stage.seconds_per_image.median for stage in self.warm)


class Threads(Finding):
    """Threads of this process that Python did not start, around loading in the main thread."""

    before: NonNegativeInt
    after: NonNegativeInt
    helper_cpu_share: NonNegativeFloat = Field(
        description="CPU seconds of all other threads over those of the loading thread, while it loads"
    )
    libraries: list[str] = Field(description="loaded libraries that can start threads")


class LoaderCount(Finding):
    """Batches from this many loader processes, 0 being the main thread itself."""

    processes: NonNegativeInt
    images_per_second: Spread = Field(description="with the lowest and highest of the rounds")
    switches_per_second: NonNegativeFloat | None = Field(
        description="involuntary context switches of one loading process"
    )


class Steps(Finding):
    """Training steps of one plain process on the cores of one worker; seconds of a whole batch."""

    device: str
    threads: PositiveInt
    batch: PositiveInt
    measured_batch: PositiveInt = Field(description="smaller than batch where a step takes long; scaled up")
    gather: Spread = Field(description="loading to uint8 tensors in the main memory")
    to_device: Spread = Field(description="transfer and conversion to floats")
    compute: Spread = Field(description="forward, backward and Adam")
    in_line: Spread = Field(description="all three one after the other, as this project's training does")
    loader_processes: NonNegativeInt = Field(description="that loaded ahead for `overlapped`")
    overlapped: Spread = Field(description="a step while loader processes load ahead on the same cores")


class Verdict(Finding):
    """What follows from the figures."""

    input_bound: bool = Field(description="loading one batch takes longer than its step")
    dominant_stage: str
    dominant_share: Share = Field(description="of the loading of an image, warm")
    loading_share: Share = Field(description="of a step that loads in line")
    hideable_share: Share = Field(description="of that step which a perfect loader could hide")
    hidden_share: float = Field(description="of that step which the loader processes hid; below 0: they cost")
    loader_processes: NonNegativeInt = Field(description="sensible number for each worker")
    advice: str
    warnings: list[str]


class Host(Finding):
    """The cores that this process may use, and how the workers of the study share them."""

    cores: PositiveInt
    workers_per_host: PositiveInt
    cores_per_worker: PositiveInt


class Measured(Finding):
    """All figures, before anything is concluded from them."""

    format: Literal[1] = 1
    study: str
    loading: LoadingName = Field(description="of the study; the loader counts and steps are for it")
    batch: PositiveInt
    image_height: PositiveInt
    image_width: PositiveInt
    channels: PositiveInt
    host: Host
    loadings: list[Loading]
    threads: Threads
    loader_counts: list[LoaderCount]
    steps: Steps
    notes: list[str]

    def chosen(self) -> Loading:
        """The stages of the study's own way of loading."""
        return next(loading for loading in self.loadings if loading.loading == self.loading)


class Profile(Measured):
    """The whole content of the JSON file."""

    verdict: Verdict

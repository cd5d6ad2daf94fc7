"""Models of where the time went: phases, processor, GPU and network, in seconds and counts.

Lines and parts of lines of `run.jsonl`; `unet_scaling/study/record.py` writes and reads them.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt, model_validator

from unet_scaling.study.validation import StrictModel

# A GPU's events and the processor's clock drift apart by some millionths, and count whole microseconds.
TOLERANCE = 1e-3

Duration = Annotated[FiniteFloat, Field(ge=0)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]


class Phase(IntEnum):
    """The parts of a step, in its order; each moment of a step belongs to exactly one."""

    DATA_WAIT = 0
    HOST_TO_DEVICE = 1
    FORWARD = 2
    BACKWARD = 3
    SYNC = 4
    OPTIMIZER = 5
    REST = 6


# Of single steps, beside the record (measure/epoch_meter.py).
STEPS_NAME = "steps.parquet"
# Of the record and of that file.
PHASE_COLUMNS = tuple(f"{phase.name.lower()}_seconds" for phase in Phase)


class LongestStep(StrictModel):
    """The step of an epoch in which a worker took longest."""

    step: NonNegativeInt = Field(description="counted from 0 in its epoch")
    seconds: Duration = Field(description="of the worker that took longest")
    worker: NonNegativeInt = Field(description="whose own work, all but sync, took longest in that step")
    work_seconds: Duration = Field(description="of that worker's own work")


class Budget(StrictModel):
    """The phases of an epoch: for each the seconds of every worker, by rank, summed over the steps."""

    data_wait_seconds: list[Duration] = Field(description="until the images of a batch are in memory")
    host_to_device_seconds: list[Duration] = Field(description="until they are float32 on the device")
    forward_seconds: list[Duration]
    backward_seconds: list[Duration] = Field(description="until the worker's last gradient is ready")
    sync_seconds: list[Duration] = Field(description="from there until all gradients are averaged")
    optimizer_seconds: list[Duration]
    rest_seconds: list[Duration] = Field(description="what is left of the epoch")
    wire_seconds: Duration = Field(description="smallest sync of all workers, summed over the steps")
    longest_step: LongestStep | None = Field(None, description="none in formats 1 to 3")

    def worker_sums(self) -> list[float]:
        """Return the seconds of all phases of each worker."""
        return [sum(phases) for phases in zip(*self._phases(), strict=True)]

    def _phases(self) -> list[list[float]]:
        return [getattr(self, column) for column in PHASE_COLUMNS]

    @model_validator(mode="after")
    def _one_number_per_worker(self) -> Self:
        counts = {len(numbers) for numbers in self._phases()}
        if len(counts) != 1:
            raise ValueError(f"the phases name different numbers of workers: {sorted(counts)}")
        return self

    @model_validator(mode="after")
    def _wire_is_within_every_sync(self) -> Self:
        least = min(self.sync_seconds, default=0.0)
        if self.wire_seconds > least * (1 + TOLERANCE):
            raise ValueError(f"wire is {self.wire_seconds} s, but a worker's sync only {least} s")
        return self


class QuotaFacts(StrictModel):
    """The quota of one worker of a dilated cluster in an epoch: what it used, and how busy the machine was.

    Seconds of waiting are divided by the dilation, as all durations. CPU seconds are not: a quota of a k-th
    of a core gives as many in k seconds as the core that is stood for in one.
    """

    used_seconds: Duration = Field(description="CPU seconds of the worker and its loader processes")
    throttled_seconds: Duration = Field(
        description="in which the quota was used up, or with several cores that of a thread, summed over them"
    )
    processors: PositiveInt = Field(description="of this machine that the worker may run on")
    idle_share: Share = Field(description="of all processors of this machine")


class CpuFacts(StrictModel):
    """One worker's processor time and memory from the start of an epoch to its end."""

    process_seconds: Duration = Field(description="CPU seconds of all threads")
    thread_seconds: dict[str, Duration] = Field(
        description="CPU seconds: 'training', 'communication' (threads born while joining the group), the "
        "largest others by their names, 'other' for what is left; their sum is process_seconds"
    )
    training_runqueue_seconds: Duration | None = Field(description="ready to run, but without a core")
    other_seconds: Duration | None = Field(
        None, description="CPU seconds that the worker's cores gave to other processes, or lost to their host"
    )
    other_workers_seconds: Duration | None = Field(
        None,
        description="of these, those of other workers of the run and their loader processes, which have the "
        "same cores; none where one of them may run on other cores too",
    )
    cores: PositiveInt = Field(description="that the training thread may run on")
    peak_memory_bytes: PositiveInt | None = Field(None, description="of the process since it began")
    frequency_mhz: Annotated[FiniteFloat, Field(gt=0)] | None = Field(description="their mean, at the end")
    quota: QuotaFacts | None = Field(None, description="none where the cluster was not dilated")


class GpuFacts(StrictModel):
    """One worker's GPU, as its driver counts; none where the driver does not say."""

    utilization: Share | None = Field(description="of the driver's last sample before the epoch's end")
    memory_bytes: NonNegativeInt | None = Field(description="in use on the device at the epoch's end")
    power_watts: Duration | None = Field(description="at the epoch's end")
    energy_joules: Duration | None = Field(description="of the epoch, from the device's counter")
    power_limit_watts: Duration | None = Field(None, description="enforced; none in records without it")


class Startup(StrictModel):
    """The parts of the start of an attempt before its first epoch, in seconds of each worker by rank."""

    kind: Literal["startup"] = "startup"
    imports_seconds: list[Duration] = Field(description="from the start of the process to the run's folder")
    join_seconds: list[Duration] = Field(description="until all workers had met")
    data_seconds: list[Duration] = Field(description="until the images were open; decoding them, if need be")
    model_seconds: list[Duration] = Field(description="until model and optimizer were built and compared")
    distribution_seconds: list[Duration] = Field(
        description="until all had one state, a checkpoint's perhaps"
    )
    warm_up_step_seconds: list[Duration] = Field(
        description="a first step without update, with its compilation"
    )

    @model_validator(mode="after")
    def _one_number_per_worker(self) -> Self:
        if len({len(getattr(self, column)) for column in STARTUP_COLUMNS}) != 1:
            raise ValueError("the parts of the start name different numbers of workers")
        return self


STARTUP_COLUMNS = tuple(name for name in Startup.model_fields if name != "kind")


class Probe(StrictModel):
    """Times of the group's own all-reduce before training, by message size; of the slowest worker."""

    kind: Literal["probe"] = "probe"
    bytes: list[PositiveInt] = Field(description="of one message, ascending")
    repeats: list[PositiveInt]
    median_seconds: list[Annotated[FiniteFloat, Field(gt=0)]]
    minimum_seconds: list[Annotated[FiniteFloat, Field(gt=0)]]

    @model_validator(mode="after")
    def _one_number_per_size(self) -> Self:
        columns = (self.bytes, self.repeats, self.median_seconds, self.minimum_seconds)
        if len({len(column) for column in columns}) != 1 or self.bytes != sorted(set(self.bytes)):
            raise ValueError("sizes must ascend, with one number of repeats, median and minimum for each")
        if any(low > middle for low, middle in zip(self.minimum_seconds, self.median_seconds, strict=True)):
            raise ValueError("a minimum is above its median")
        return self


@dataclass(frozen=True)
class PixelCounts:
    """Pixels of a test set by mask and prediction."""

    true_positive: int
    false_positive: int
    false_negative: int
    true_negative: int

    @property
    def iou(self) -> float | None:
        """Return TP / (TP + FP + FN); none where neither mask nor prediction has foreground."""
        union = self.true_positive + self.false_positive + self.false_negative
        return self.true_positive / union if union else None

    @property
    def dice(self) -> float | None:
        """Return 2 TP / (2 TP + FP + FN); none where neither mask nor prediction has foreground."""
        both = 2 * self.true_positive + self.false_positive + self.false_negative
        return 2 * self.true_positive / both if both else None


class Probed(StrictModel):
    """Steps of one worker on the machine of the probe, after one that warmed up."""

    device: str = Field(description="'cpu' or the name of the GPU")
    cores: PositiveInt = Field(description="that the worker had")
    images_per_step: PositiveInt
    step_seconds: list[Annotated[FiniteFloat, Field(gt=0)]] = Field(min_length=1)

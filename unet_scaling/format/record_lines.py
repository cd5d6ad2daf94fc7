"""Models of the lines of the record `run.jsonl` and of files beside it, each refusing impossible values.

In their order: what runs, where the time of its start and epochs went, what it scored, and how it ended.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, JsonValue, NonNegativeInt, PositiveInt, model_validator

from unet_scaling.base.validation import Digest, StrictModel
from unet_scaling.study.config import Framework, RunConfig
from unet_scaling.study.options import Count, ImageScales

# A GPU's events and the processor's clock drift apart by some millionths, and count whole microseconds.
TOLERANCE = 1e-3

Duration = Annotated[FiniteFloat, Field(ge=0)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
SALIENCY_FOLDER = "saliency"
# Says what the maps of this folder were made of; where that changed, they are made again.
SALIENCY_ORIGIN_NAME = "origin.json"
# A score's name is that of a column of tables, and stands in sentences.
SCORE_NAME = r"^[a-z][a-z0-9_]{0,39}$"
ScoreName = Annotated[str, Field(pattern=SCORE_NAME)]
AboveZero = Annotated[FiniteFloat, Field(gt=0)]
# Beside the record: written by a complete run, read by the report.
PICTURES_NAME = "pictures.json"
# The first test images: the same for all runs of one split.
MOST_PICTURES = 6


class WorkerFacts(StrictModel):
    """One worker and the device it owns."""

    worker: NonNegativeInt
    host: str
    process: PositiveInt
    device: str = Field(description="'cpu' or the name of the GPU")
    device_uuid: str = Field(description="of the GPU; empty for a CPU worker")
    cores: list[NonNegativeInt] = Field(
        description="that this process may run on; on a dilated cluster those of the emulated host"
    )
    threads: PositiveInt = Field(description="of one operation")
    allocator: dict[str, str] | None = Field(
        None, description="settings of glibc's and what was preloaded, as it found them"
    )
    environment: dict[str, str] | None = Field(
        None, description="allow-listed variables that decide speed (NCCL_*, OMP_*, ...)"
    )


class Resumed(StrictModel):
    """The position from which this attempt went on."""

    epoch: NonNegativeInt
    step: NonNegativeInt = Field(description="steps of that epoch done before")


class Provenance(StrictModel):
    """Code, software and machine on which something ran."""

    started_utc: str = Field(description="a label; never the source of a duration")
    commit: str | None = Field(description="of the code; none outside a git checkout")
    dirty: bool | None = Field(description="uncommitted changes")
    versions: dict[str, str] = Field(description="python, torch, horovod, mpi, nccl, driver, ...")
    transport: dict[str, str] = Field(description="what carries the gradients, as the framework names it")
    float32: dict[str, str] | None = Field(
        None,
        description="how each back end of torch computes in it, as read back; none in early records",
    )
    job: dict[str, str] = Field(description="allow-listed SLURM_* variables")
    dilation: Annotated[FiniteFloat, Field(gt=1)] | None = Field(
        None, description="how many times slower all of the virtual cluster ran; none where it was not slowed"
    )
    link_rate: str | None = Field(
        None,
        description="of each host's link on the emulated machine; none where not limited",
    )
    workers: list[WorkerFacts]

    @property
    def first_started_utc(self) -> str:
        """Return when what is told of here began for the first time."""
        return self.started_utc


class AttemptFacts(Provenance):
    """Code, software, machine and data of one attempt."""

    attempt: PositiveInt
    manifest_sha256: Digest


class ComputeFacts(StrictModel):
    """The profile by which emulated workers wait instead of computing."""

    name: str = Field(description="STUDY/RUN that recorded it, or the name of a file written by hand")
    sha256: Digest
    device: str = Field(description="that computed, or is assumed")
    assumption: str | None = Field(None, description="where its figures come from, if not measured")


class Header(AttemptFacts):
    """The facts of a run: enough to repeat it, and to decide whether it may be compared."""

    kind: Literal["header"] = "header"
    format: Literal[5] = 5
    config: RunConfig
    config_sha256: Digest
    train_images: PositiveInt
    test_images: PositiveInt
    scales: ImageScales | None = Field(None, description="at which an IoU holds; none in early records")
    initial_weights_sha256: Digest
    gradient_bytes: PositiveInt | None = Field(
        None,
        description="of all gradients of a step, in the type that travels; none in early records",
    )
    compute: ComputeFacts | None = Field(
        None, description="by which emulated workers wait; none where they compute"
    )
    resumed: Resumed | None = Field(None, description="none where the attempt began at the start")
    earlier: list[AttemptFacts] = Field([], description="attempts that trained epochs of this record before")

    @property
    def is_emulated(self) -> bool:
        """Return whether the workers waited instead of computing."""
        return self.compute is not None

    @property
    def first_started_utc(self) -> str:
        return self.attempts()[0].started_utc

    def attempts(self) -> list[AttemptFacts]:
        """Return the facts of every attempt that trained a part of this record, in their order."""
        return [*self.earlier, self]


class ScriptHeader(Provenance):
    """The facts of a run whose script is not the project's: what it trained is not known, nor how."""

    kind: Literal["script"] = "script"
    format: Literal[5] = 5
    framework: Framework = Field(description="whose arm the script says to be")
    repeat: Count
    script: str = Field(description="name of its file; empty where it was typed")
    script_sha256: Digest | None = Field(description="of that file; none where it was typed")
    options: dict[str, str | bool | int | FiniteFloat] = Field(description="as the script names them")


class Phase(IntEnum):
    """The parts of a step, in its order; each moment of a step belongs to exactly one."""

    DATA_WAIT = 0
    HOST_TO_DEVICE = 1
    FORWARD = 2
    BACKWARD = 3
    SYNC = 4
    OPTIMIZER = 5
    REST = 6


# Phases of single steps, beside the record (measure/epoch_meter.py).
STEPS_NAME = "steps.parquet"
# The columns of phases in the record and in that file.
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
    longest_step: LongestStep | None = Field(None, description="none in early records")
    host_paced_seconds: list[Duration] | None = Field(
        None,
        description="of the phases but data wait and sync: in which the GPU kept up with the host, so that "
        "the host set the pace; none on CPUs",
    )

    def worker_sums(self) -> list[float]:
        """Return the seconds of all phases of each worker."""
        phases = [getattr(self, column) for column in PHASE_COLUMNS]
        return [sum(of_worker) for of_worker in zip(*phases, strict=True)]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        counts = {len(getattr(self, column)) for column in PHASE_COLUMNS}
        if self.host_paced_seconds is not None:
            counts.add(len(self.host_paced_seconds))
        if len(counts) != 1:
            raise ValueError(f"the phases name different numbers of workers: {sorted(counts)}")
        least = min(self.sync_seconds, default=0.0)
        if self.wire_seconds > least * (1 + TOLERANCE):
            raise ValueError(f"wire is {self.wire_seconds} s, but a worker's sync only {least} s")
        return self


class QuotaFacts(StrictModel):
    """The quota of one worker of a dilated cluster in an epoch: what it used, and how busy the machine was.

    Seconds of waiting are divided by the dilation, as all durations. CPU seconds are not: a quota of a k-th
    of a core gives as many in k seconds as the emulated core in one.
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
        description="CPU seconds: 'training', 'communication' (threads born while joining the group, on GPUs "
        "by its first sums too), the largest others by their names, 'other' for what is left; their sum is "
        "process_seconds"
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
    frequency_mhz: AboveZero | None = Field(description="their mean, at the end")
    quota: QuotaFacts | None = Field(None, description="none where the cluster was not dilated")


class GpuFacts(StrictModel):
    """One worker's GPU, as its driver counts; none where the driver does not say."""

    utilization: Share | None = Field(description="of the driver's last sample before the epoch's end")
    memory_bytes: NonNegativeInt | None = Field(description="in use on the device at the epoch's end")
    power_watts: Duration | None = Field(description="at the epoch's end")
    energy_joules: Duration | None = Field(description="of the epoch, from the device's counter")
    power_limit_watts: Duration | None = Field(None, description="enforced; none in records without it")
    sm_clock_mhz: Duration | None = Field(None, description="at the epoch's end; none in early records")
    throttle_reasons: list[str] | None = Field(
        None,
        description="what held the clock down at the epoch's end, or as the driver counts for 1 % of it; "
        "none in early records",
    )
    other_memory_bytes: NonNegativeInt | None = Field(
        None,
        description="in use by other processes at the epoch's end; none in early records, and where the "
        "driver does not list this process, as in a container",
    )
    peak_allocated_bytes: NonNegativeInt | None = Field(
        None, description="most that torch's allocator gave in the epoch; none in early records"
    )


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
    median_seconds: list[AboveZero]
    minimum_seconds: list[AboveZero]

    @model_validator(mode="after")
    def _one_number_per_size(self) -> Self:
        columns = (self.bytes, self.repeats, self.median_seconds, self.minimum_seconds)
        if len({len(column) for column in columns}) != 1 or self.bytes != sorted(set(self.bytes)):
            raise ValueError("sizes must ascend, with one number of repeats, median and minimum for each")
        if any(low > middle for low, middle in zip(self.minimum_seconds, self.median_seconds, strict=True)):
            raise ValueError("a minimum is above its median")
        return self


class Epoch(StrictModel):
    """One pass of training. The clock covers the steps only."""

    kind: Literal["epoch"] = "epoch"
    epoch: NonNegativeInt
    seconds: AboveZero = Field(description="of the slowest worker")
    worker_seconds: list[AboveZero]
    images: PositiveInt = Field(description="processed by all workers")
    steps: PositiveInt = Field(description="of the optimizer; of a script, batches")
    loss: FiniteFloat | None = Field(
        description="mean over the images; none of an emulated run, nor of a script's"
    )
    learning_rate: AboveZero | None = Field(None, description="none of a script's run")
    warmup: bool = Field(description="not to be used for throughput")
    budget: Budget | None = Field(None, description="where the seconds went; none where it was off")
    no_budget: str | None = Field(None, description="why there is none though it was on")
    cpu: list[CpuFacts] | None = Field(None, description="of each worker, by rank; none without a budget")
    gpu: list[GpuFacts] | None = Field(None, description="of each worker, by rank; none without NVML")
    gradient_norms: dict[str, list[float]] | None = Field(
        None, exclude=True, description="of records by older code; neither used nor written"
    )

    @model_validator(mode="after")
    def _one_entry_per_worker_and_phases_sum_to_the_epoch(self) -> Self:
        if self.budget is None and self.cpu is None and self.gpu is None:
            return self
        workers = len(self.worker_seconds)
        phases = self.budget.sync_seconds if self.budget else None
        for name, entries in (("budget", phases), ("cpu", self.cpu), ("gpu", self.gpu)):
            if entries is not None and len(entries) != workers:
                raise ValueError(f"{name} is of {len(entries)} workers, worker_seconds of {workers}")
        sums = self.budget.worker_sums() if self.budget else []
        for worker, (spent, epoch) in enumerate(zip(sums, self.worker_seconds, strict=False)):
            if abs(spent - epoch) > TOLERANCE * epoch:
                raise ValueError(f"the phases of worker {worker} sum to {spent} s, its epoch took {epoch} s")
        return self


class RunningScore(StrictModel):
    """The score with the statistics that training left in the norm layers, their mean over the workers."""

    counts: list[int] = Field(description="summed over the samples; of images those of PixelCounts")
    score: Share | None = Field(description="that is judged; none where the counts give none")


class NormStatistics(StrictModel):
    """The statistics of norm layers, recomputed for the weights of an evaluation over training images."""

    layers: NonNegativeInt = Field(description="with running statistics that training moves; 0: none")
    images: NonNegativeInt = Field(description="of the training set, the same at any number of workers")
    seconds: Duration = Field(description="of the slowest worker, outside the clock of training")
    others: list[str] = Field([], description="buffers besides, which are as training left them")
    running: RunningScore | None = Field(None, description="of the last evaluation of a run alone")


class Evaluated(StrictModel):
    """What every evaluation over the whole test set records besides its counts."""

    epochs: NonNegativeInt = Field(description="epochs trained before it")
    training_seconds: Duration = Field(description="sum of those epochs' seconds")
    images: PositiveInt = Field(description="of the test set, or its samples, each once")
    seconds: AboveZero
    weights_sha256: Digest
    statistics: NormStatistics | None = Field(
        None, description="none where they are those that training left, as in early records"
    )


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


class Result(Evaluated):
    """One evaluation over the whole test set, each image once at any number of workers."""

    kind: Literal["result"] = "result"
    true_positive: NonNegativeInt = Field(description="pixels")
    false_positive: NonNegativeInt
    false_negative: NonNegativeInt
    true_negative: NonNegativeInt
    iou: Share | None = Field(description="none where neither mask nor prediction has foreground")
    dice: Share | None
    image_iou: Share | None = Field(description="mean of the per-image IoU, over the images that have one")
    image_ious: list[Share | None] | None = Field(
        None,
        description="of each test image, to 4 digits; of the last evaluation of a run, none in early records",
    )

    @property
    def score_name(self) -> str:
        """Return the name of the score that is judged."""
        return "iou"

    @property
    def score(self) -> float | None:
        return self.iou

    @model_validator(mode="after")
    def _iou_follows_from_the_counts(self) -> Self:
        union = self.true_positive + self.false_positive + self.false_negative
        expected = self.true_positive / union if union else None
        if self.iou != expected:
            raise ValueError(f"iou is {self.iou}, but the counts give {expected}")
        running = self.statistics.running if self.statistics else None
        if running and running.score != (expected := PixelCounts(*running.counts).iou):
            raise ValueError(f"the running statistics score {running.score}, their counts give {expected}")
        if self.image_ious is not None and len(self.image_ious) != self.images:
            raise ValueError(f"{len(self.image_ious)} image_ious of {self.images} images")
        return self


class Scores(Evaluated):
    """One evaluation of a task that a file defines over its whole test set, each sample once."""

    kind: Literal["scores"] = "scores"
    counts: list[int] = Field(description="of the task, summed over the samples")
    scores: dict[ScoreName, FiniteFloat | None] = Field(
        min_length=1, description="that follow from the counts; the first, a share, is the one that is judged"
    )

    @property
    def score_name(self) -> str:
        return next(iter(self.scores))

    @property
    def score(self) -> float | None:
        """Return the score that is judged; none where the counts give none."""
        return self.scores[self.score_name]

    @model_validator(mode="after")
    def _judged_is_a_share(self) -> Self:
        if self.score is not None and not 0 <= self.score <= 1:
            raise ValueError(f"{self.score_name} is {self.score}: the first score is a share, from 0 to 1")
        return self


Evaluation = Annotated[Result | Scores, Field(discriminator="kind")]


class SaliencyPhases(StrictModel):
    """Where the seconds of one worker went while maps were made."""

    masks: Duration = Field(description="until the masks are made, once for all images")
    forward: Duration = Field(description="loading images, masking them, forward passes and scores")
    weighting: Duration = Field(description="adding up masks by their scores")
    sum: Duration = Field(description="sums over the workers, with the wait for the slowest")
    files: Duration = Field(description="writing maps")
    other: Duration = Field(description="what is left")

    def total(self) -> float:
        """Return the seconds of all phases."""
        return self.masks + self.forward + self.weighting + self.sum + self.files + self.other


class Saliency(StrictModel):
    """The saliency maps of a run. The clock covers them, and neither their overlays nor what checks them."""

    kind: Literal["saliency"] = "saliency"
    epochs: NonNegativeInt = Field(description="trained before it")
    weights_sha256: Digest
    manifest_sha256: Digest = Field(description="of saliency/manifest.json")
    split: Literal["images", "masks"] = Field(description="what the workers shared out")
    configuration: dict[str, JsonValue] = Field(
        description="of xaitk's PerturbationOcclusion, as it names it: perturber and generator"
    )
    images: PositiveInt = Field(description="that were to be explained")
    maps: NonNegativeInt = Field(description="images that have one; the prediction for the others is empty")
    maps_made_here: NonNegativeInt = Field(description="by this attempt; fewer where it was resumed")
    masks: PositiveInt = Field(description="of each image")
    seconds: Duration = Field(description="of the slowest worker")
    worker_seconds: list[Duration]
    phases: list[SaliencyPhases] = Field(description="of each worker, by rank")
    peak_bytes: list[PositiveInt] = Field(description="of memory that each worker held at most until then")
    check_seconds: Duration = Field(description="for overlays, curves and untrained maps, after the clock")

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if not self.maps_made_here <= self.maps <= self.images:
            raise ValueError(
                f"{self.maps_made_here} maps made here, {self.maps} maps, {self.images} images: each may be "
                "at most the next"
            )
        counts = {len(self.worker_seconds), len(self.phases), len(self.peak_bytes)}
        if len(counts) != 1:
            raise ValueError(f"worker_seconds, phases and peak_bytes are of {sorted(counts)} workers")
        if self.seconds != max(self.worker_seconds):
            raise ValueError(f"seconds is {self.seconds}, the slowest worker took {max(self.worker_seconds)}")
        for worker, (phases, seconds) in enumerate(zip(self.phases, self.worker_seconds, strict=True)):
            if abs(phases.total() - seconds) > TOLERANCE * seconds:
                raise ValueError(
                    f"the phases of worker {worker} sum to {phases.total()} s, it took {seconds} s"
                )
        return self


class End(StrictModel):
    """The end of a run. `diverged`: a loss or weight was not finite; `stopped`: in order, to be resumed."""

    kind: Literal["end"] = "end"
    status: Literal["complete", "diverged", "stopped"]
    reason: str = ""
    position: tuple[NonNegativeInt, NonNegativeInt] | None = Field(
        None, description="epoch and its steps done, where a run stopped in order"
    )
    explained: NonNegativeInt | None = Field(
        None,
        description="images mapped, and images checked, where it stopped among its saliency maps",
    )
    ended_utc: str | None = Field(
        None, description="of a complete run: what was trained fits between its start and this"
    )
    scores: dict[str, FiniteFloat] | None = Field(
        None, description="by name, as a script reports them; none of the project's own runs"
    )


RecordLine = Header | ScriptHeader | Startup | Probe | Epoch | Result | Scores | Saliency | End


class SamplePicture(StrictModel):
    """One test image with the outlines of its true mask and of the predicted one, as a PNG in base64."""

    position: NonNegativeInt = Field(description="in the test set, from 0")
    iou: Share | None = Field(description="of this image alone; none where neither mask has foreground")
    png: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+=*$")]


class Pictures(StrictModel):
    """All pictures of a run."""

    weights_sha256: Digest = Field(description="of the last evaluation")
    images: list[SamplePicture]


class FailureReport(StrictModel):
    """The reason why a worker of an attempt failed; `during` names the part of the program."""

    attempt: int
    worker: int
    workers: int
    host: str
    utc: str
    error: str
    message: str
    during: str
    traceback: str


class Probed(StrictModel):
    """Steps of one worker on the machine of the probe, after one that warmed up."""

    device: str = Field(description="'cpu' or the name of the GPU")
    cores: PositiveInt = Field(description="that the worker had")
    images_per_step: PositiveInt
    step_seconds: list[AboveZero] = Field(min_length=1)

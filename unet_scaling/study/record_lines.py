"""Models of the lines of the record `run.jsonl`, each refusing impossible values; and of its pictures."""

from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt, model_validator

from unet_scaling.study.config import Framework, RunConfig
from unet_scaling.study.measurements import (
    TOLERANCE,
    Budget,
    CpuFacts,
    GpuFacts,
    Probe,
    Share,
    Startup,
)
from unet_scaling.study.options import Count
from unet_scaling.study.saliency import Saliency
from unet_scaling.study.validation import Digest, StrictModel

# As the name of a column of tables, and in sentences.
SCORE_NAME = r"^[a-z][a-z0-9_]{0,39}$"
ScoreName = Annotated[str, Field(pattern=SCORE_NAME)]
PositiveSeconds = Annotated[FiniteFloat, Field(gt=0)]
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
        description="that this process may run on; on a dilated cluster those of the host that is stood for"
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
    job: dict[str, str] = Field(description="allow-listed SLURM_* variables")
    dilation: Annotated[FiniteFloat, Field(gt=1)] | None = Field(
        None, description="how many times slower all of the virtual cluster ran; none where it was not slowed"
    )
    link_rate: str | None = Field(
        None,
        description="of each host's link, as the machine has it that is stood for; none where not limited",
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
    format: Literal[1, 2, 3, 4, 5] = 5
    config: RunConfig
    config_sha256: Digest
    train_images: PositiveInt
    test_images: PositiveInt
    initial_weights_sha256: Digest
    gradient_bytes: PositiveInt | None = Field(
        None,
        description="of all gradients of a step, in the type that travels; none in formats 1 to 4",
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


class Epoch(StrictModel):
    """One pass of training. The clock covers the steps only."""

    kind: Literal["epoch"] = "epoch"
    epoch: NonNegativeInt
    seconds: PositiveSeconds = Field(description="of the slowest worker")
    worker_seconds: list[PositiveSeconds]
    images: PositiveInt = Field(description="processed by all workers")
    steps: PositiveInt = Field(description="optimizer steps")
    loss: FiniteFloat | None = Field(
        description="mean over the images; none of an emulated run, nor of a script's"
    )
    learning_rate: Annotated[FiniteFloat, Field(gt=0)] | None = Field(
        None, description="none of a script's run"
    )
    warmup: bool = Field(description="not to be used for throughput")
    budget: Budget | None = Field(None, description="where the seconds went; none where it was off")
    no_budget: str | None = Field(None, description="why there is none though it was on")
    cpu: list[CpuFacts] | None = Field(
        None, description="of each worker, by rank; none without a budget, nor in format 1"
    )
    gpu: list[GpuFacts] | None = Field(None, description="of each worker, by rank; none without NVML")
    gradient_norms: dict[str, list[float]] | None = Field(
        None, description="of records by older code, which sampled the gradient noise scale; not used"
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


class Evaluated(StrictModel):
    """What every evaluation over the whole test set records besides its counts."""

    epochs: NonNegativeInt = Field(description="epochs trained before it")
    training_seconds: Annotated[FiniteFloat, Field(ge=0)] = Field(description="sum of those epochs' seconds")
    images: PositiveInt = Field(description="of the test set, or its samples, each once")
    seconds: PositiveSeconds
    weights_sha256: Digest


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

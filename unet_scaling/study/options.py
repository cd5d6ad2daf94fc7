"""Models of the options of a run, table by table, with ranges and defaults."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, model_serializer, model_validator
from pydantic.json_schema import SkipJsonSchema

from unet_scaling.base.validation import Digest, StrictModel

# Far beyond any study: a slip is refused as the study is read, not noticed by a run that never ends.
MOST = 1_000_000
MOST_PIXELS = 65_536
MOST_LEVELS = 16
MOST_GRID_CELLS = 1_024
MOST_CURVE_STEPS = 1_000
MOST_MIB = 2**20
MONTH_SECONDS = 30 * 24 * 3600
YEAR_MINUTES = 365 * 24 * 60
MINUTE_MS = 60_000
# The largest seed that torch takes.
LARGEST_SEED = 2**63 - 1
# Each use of random numbers has its own number, which goes behind the seed into the generator's key.
# Never reuse or renumber those of the data: every run would split, order and augment it otherwise.
SPLIT_STREAM = 1
ORDER_STREAM = 2
AUGMENTATION_STREAM = 3
STEP_SAMPLE_STREAM = 4
EMULATION_STREAM = 5
TRANSFORM_STREAM = 6
UNTRAINED_STREAM = 7
CURVE_STREAM = 8
WORKER_STREAM = 9
# Fewer optimizer steps say nothing of what a larger number of workers costs: they teach little on any.
FEWEST_JUDGED_STEPS = 100
# Of fewer test samples one alone moves the score by more than 0.2 of its range. Of more, their spread tells.
FEWEST_TEST_SAMPLES = 5
# Squared and multiplied by a worker count, float64 still holds it.
LOWEST_RATE = 1e-30
HIGHEST_RATE = 1e30

Count = Annotated[int, Field(ge=1, le=MOST)]
CountOrZero = Annotated[int, Field(ge=0, le=MOST)]
PixelCount = Annotated[int, Field(ge=1, le=MOST_PIXELS)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Scalar = bool | int | float | str


class TaskOptions(StrictModel):
    """What is trained: the built-in U-Net, or what a Python file defines (docs/your_model.md)."""

    file: str | None = Field(
        None, description="Python file, relative to this one; default: the U-Net", examples=["my_task.py"]
    )
    sha256: SkipJsonSchema[Digest | None] = Field(None, description="of that file as the study was read")
    options: dict[str, Scalar | list[Scalar]] = Field(
        {},
        description="handed to the functions of that file; a list is an axis",
        examples=[{"width": [16, 32]}],
    )
    find_unused_parameters: bool = Field(
        False, description="allow parameters that a pass does not use: it gives them a gradient of 0"
    )
    loss_is_mean: bool = Field(
        True, description="false keeps a loss that is no mean over the samples, which the report then says"
    )

    def __hash__(self) -> int:
        # A dict has no hash: those of equal names are told apart by comparing them.
        return hash((self.file, self.sha256, *self.options))


class Data(StrictModel):
    """Which images, at which size, and how they are split and loaded."""

    folder: str = Field(
        description="folder with images/ and masks/ paired by stem", examples=["$WORK/images"]
    )
    manifest: str | None = Field(
        None, description="default: manifest.json in that folder", examples=["$HOME/images.json"]
    )
    image_height: PixelCount = Field(description="pixels after resizing", examples=[768])
    image_width: PixelCount = Field(description="pixels after resizing", examples=[1024])
    channels: Literal[1, 3] = Field(1, description="1 converts to grey, 3 to colour")
    foreground: str = Field(
        "nonzero",
        description="mask values that count as foreground: 'nonzero', '255', '1,2', '>127' or '<1'",
        examples=["255"],
    )
    intensity: Literal["dtype", "image"] = Field(
        "dtype", description="scale pixels by the range of their type, or of each image"
    )
    test_share: float = Field(0.2, gt=0, lt=1, description="share of the images kept for evaluation")
    split_seed: Seed = Field(42, description="seed that draws the test images, the same for all repeats")
    passes_per_epoch: Count = Field(
        1, description="times each training image is seen in an epoch", examples=[2]
    )
    loading: Literal["cache", "decode", "device"] = Field(
        "cache", description="decode once, at every step, or once and keep all images on every device"
    )
    loader_workers: CountOrZero = Field(
        0, description="processes of each worker that decode ahead; for loading = 'decode'", examples=[2]
    )
    augment_flips: bool = Field(False, description="mirror half of the images, in each direction")
    augment_crop: float = Field(
        1.0, gt=0, le=1, description="share of each side that a random window keeps", examples=[0.8]
    )
    augment_brightness: float = Field(
        0.0, ge=0, lt=1, description="largest random shift of the brightness, of the range 1", examples=[0.1]
    )
    augment_contrast: float = Field(
        0.0, ge=0, lt=1, description="largest random change of the contrast", examples=[0.1]
    )

    @model_validator(mode="after")
    def _processes_have_something_to_decode(self) -> Self:
        if self.loader_workers and self.loading != "decode":
            raise ValueError(
                f"data.loader_workers: found {self.loader_workers}; allowed: 0, as loading = "
                f"{self.loading!r} decodes once; or use loading = 'decode'"
            )
        return self

    @property
    def is_augmented(self) -> bool:
        changes_grey = self.augment_brightness > 0 or self.augment_contrast > 0
        return self.augment_flips or self.augment_crop < 1 or changes_grey

    @property
    def manifest_path(self) -> Path:
        return Path(self.manifest) if self.manifest else Path(self.folder, "manifest.json")


class ImageScales(StrictModel):
    """The scales of a data set: pixels of data.image_height x data.image_width for one of an image's own."""

    median_height: PositiveFloat = Field(description="of the images' own sizes, in pixels")
    median_width: PositiveFloat
    lowest: PositiveFloat = Field(description="of the largest image")
    median: PositiveFloat
    highest: PositiveFloat = Field(description="of the smallest image")


class TaskData(Data):
    """The options of `[data]` that a task of its own has: where its samples come from is its own affair."""

    folder: str = ""
    image_height: PixelCount = 1
    image_width: PixelCount = 1

    @model_serializer
    def _own(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in TASK_DATA_KEYS}


class Model(StrictModel):
    """The U-Net's shape; 8 and 5 give the reference network."""

    width: Count = Field(8, description="channels of the first level, doubled at each further one")
    depth: int = Field(5, ge=1, le=MOST_LEVELS, description="levels of the U-Net")
    batch_norm: Literal["local", "sync", "off"] = Field(
        "local",
        description="batch statistics over the images of a worker, of the group, or none",
        examples=["off"],
    )
    activation_checkpointing: bool = Field(
        False, description="compute activations again in the backward pass: less memory, more time"
    )


# Keys of `[training]` that older studies and records have, and that have no effect any more.
FORMER_TRAINING_KEYS = ("noise_scale_every",)


def without_former_keys(training: object) -> object:
    """Return the content of `[training]` without the keys that only older files have."""
    if not isinstance(training, dict):
        return training
    return {key: value for key, value in training.items() if key not in FORMER_TRAINING_KEYS}


class Training(StrictModel):
    """The training options, which are the same for all frameworks."""

    epochs: CountOrZero = Field(
        description="passes over the training images; 0 only evaluates", examples=[20]
    )
    batch_per_worker: Count = Field(16, description="images of one forward pass on one worker")
    accumulate: Count = Field(1, description="forward passes per optimizer step", examples=[2])
    plays: Count | None = Field(
        None, description="train as so many workers, for IoU and not speed; default: workers", examples=[14]
    )
    learning_rate: float = Field(
        1e-3, ge=LOWEST_RATE, le=HIGHEST_RATE, description="learning rate of one worker"
    )
    rate_scaling: Literal["linear", "square_root", "none"] = Field(
        "linear", description="how the learning rate grows with the number of workers"
    )
    warmup_epochs: CountOrZero = Field(
        0, description="epochs over which the rate climbs to its scaled value", examples=[5]
    )
    schedule: Literal["reference", "constant"] = Field(
        "reference", description="learning rate: halved at 40, 60 and 75 % of the epochs, or constant"
    )
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32", description="number format of the forward and backward pass"
    )
    channels_last: bool = Field(True, description="memory format of images and weights: channels last")
    compile: bool = Field(False, description="torch.compile the model")
    cudnn_benchmark: bool = Field(
        False, description="on GPUs: let cuDNN choose each convolution's algorithm by timing, at every start"
    )
    gradient_compression: Literal["none", "fp16"] = Field(
        "none", description="number format in which gradients travel"
    )
    budget: Literal["on", "off"] = Field("on", description="record where the time of each step went")
    compute_profile: Literal["on", "off"] = Field(
        "off", description="on 1 worker: record when gradients are ready, for emulated ones", examples=["off"]
    )
    evaluate_every: CountOrZero = Field(
        0, description="epochs between evaluations; 0: only after the last", examples=[5]
    )
    statistics_images: CountOrZero = Field(
        1024,
        description="training images over which the statistics of batch norm are recomputed before an "
        "evaluation; 0 keeps those that training left",
        examples=[4096],
    )
    timeout_seconds: int = Field(
        300, ge=1, le=MONTH_SECONDS, description="how long one worker may keep the others waiting"
    )
    cores_per_worker: Count | None = Field(
        None, description="cores used per worker; default: every core the launcher bound", examples=[8]
    )
    checkpoint_minutes: float = Field(
        10, ge=0, le=YEAR_MINUTES, description="between two checkpoints; 0: only when told to stop"
    )
    shared_devices: bool = Field(
        False, description="let workers share a device or cores; for trials, never compared"
    )
    initial_weights: str | None = Field(
        None,
        description="weights.pt of another run to start from; default: random, by the seed",
        examples=["logs/first/pytorch_native-w01-r1/weights.pt"],
    )

    @model_validator(mode="before")
    @classmethod
    def _read_older_files(cls, content: object) -> object:
        return without_former_keys(content)


class Strategy(StrictModel):
    """How workers keep one network: averaged gradients, or other ways (docs/background/strategies.md)."""

    synchronise_every: Count = Field(
        1,
        description="optimizer steps from one averaging of the weights to the next; 1 averages gradients",
        examples=[4],
    )
    average_moments: bool = Field(
        True,
        description="with the weights, average the moments that the optimizer keeps of them",
        examples=[True],
    )
    subgroup_size: Count = Field(
        1,
        description="workers, such as those of a node, that average their gradients at every step",
        examples=[2],
    )
    outer_momentum: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="of an outer optimizer, which takes a step at each averaging of the weights; 0: none",
        examples=[0.9],
    )
    outer_learning_rate: float = Field(
        1.0,
        gt=0,
        le=MOST,
        description="of the outer optimizer: the share of the way to the mean that a step goes",
        examples=[0.7],
    )
    outer_nesterov: bool = Field(False, description="Nesterov's momentum in the outer optimizer")
    staleness: Literal[0, 1] = Field(
        0, description="1 applies the gradients of the step before, while those of this step are averaged"
    )
    stale_rate_factor: float = Field(
        1.0,
        gt=0,
        le=1,
        description="by which the learning rate is multiplied where gradients are a step late",
        examples=[0.5],
    )

    @property
    def averages_gradients(self) -> bool:
        """Return whether every step averages its own gradients, by the framework's wrapper."""
        return self.synchronise_every == 1 and self.staleness == 0


# Keys of [strategy] that have an effect only where another one is not at its default.
_NEEDED_KEYS = {
    "average_moments": "synchronise_every",
    "subgroup_size": "synchronise_every",
    "outer_momentum": "synchronise_every",
    "outer_learning_rate": "outer_momentum",
    "outer_nesterov": "outer_momentum",
    "stale_rate_factor": "staleness",
}


def keys_without_effect(strategy: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of [strategy] that are set and change nothing, each with the key that it needs."""
    values = {name: field.default for name, field in Strategy.model_fields.items()}
    defaults = dict(values)
    values.update(strategy)
    found = {}
    for key, needed in _NEEDED_KEYS.items():
        if values[key] != defaults[key] and values[needed] == defaults[needed]:
            found[key] = needed
            values[key] = defaults[key]
    return found


class Emulation(StrictModel):
    """Workers that wait instead of computing; what they communicate, and by what, is real."""

    compute: str | None = Field(
        None,
        description="run folder with a compute.json, or a profile as TOML; default: workers compute",
        examples=["logs/first/pytorch_native-w01-r1"],
    )
    data: Literal["replayed", "real"] = Field(
        "replayed", description="images are waited for as the profile says, or really loaded"
    )


class SaliencyOptions(StrictModel):
    """Saliency maps of the test images after training, made with xaitk-saliency (docs/saliency.md)."""

    method: Literal["off", "rise", "sliding_window", "random_grid", "sliding_radial"] = Field(
        "off", description="how images are perturbed; off: no maps, and no need of the package"
    )
    masks: Count = Field(500, description="random masks of each image; of rise and random_grid")
    grid: int = Field(8, ge=1, le=MOST_GRID_CELLS, description="cells of each side of the grid of rise")
    p1: float = Field(
        0.5, ge=0, le=1, description="share of the cells that stay visible; of rise and random_grid"
    )
    debiased: bool = Field(
        True, description="take p1 from every mask before it is weighted; of rise and random_grid"
    )
    seed: Seed = Field(1, description="of the random masks, the same for all images and repeats")
    window: PixelCount = Field(
        50, description="side of the sliding window, radius of sliding_radial, side of a cell of random_grid"
    )
    stride: PixelCount = Field(20, description="pixels from one window or radial to the next")
    fill: Literal["black", "mean"] = Field(
        "black", description="hidden pixels become black, or the mean colour, which hides dark objects, too"
    )
    batch: Count = Field(16, description="masked images of one forward pass")
    split: Literal["auto", "images", "masks"] = Field(
        "auto", description="what workers share out; auto: images, unless there are fewer than workers"
    )
    images: Count | None = Field(
        None, description="so many test images, from the first; default: all", examples=[8]
    )
    curve_steps: int = Field(
        20, ge=0, le=MOST_CURVE_STEPS, description="steps of the deletion and insertion curves; 0: no curves"
    )
    untrained_check: CountOrZero = Field(
        4, description="so many of the images are explained with freshly drawn weights, too"
    )


class NativeKnobs(StrictModel):
    """Options of DDP, native or wrapped; empty means its own default."""

    bucket_cap_mb: float | None = Field(
        None, gt=0, le=MOST_MIB, description="size of a gradient bucket, MiB", examples=[50]
    )
    gradient_as_bucket_view: bool | None = Field(
        None, description="gradients are views into their bucket: spares a copy per step"
    )
    static_graph: bool | None = Field(
        None, description="every step uses the same weights in the same order, as this network does"
    )

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of DistributedDataParallel."""
        return self.model_dump(exclude_none=True)


# Set both alike: Horovod 0.28.1 crashes where MPI controls what Gloo sums. Those of a shell are removed.
CONTROLLER_VARIABLES = ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS")


class HorovodKnobs(StrictModel):
    """Options of Horovod; empty means its own default."""

    cycle_time_ms: float | None = Field(
        None, ge=0, le=MINUTE_MS, description="pause between two negotiations, ms", examples=[1]
    )
    fusion_threshold_mb: float | None = Field(
        None, ge=0, le=MOST_MIB, description="size of the fusion buffer, MiB", examples=[64]
    )
    groups: Count | None = Field(
        None, description="gradients are averaged in so many groups, each whole", examples=[1]
    )
    yield_when_idle: bool | None = Field(
        None, description="a waiting MPI leaves its core to other threads (Open MPI, Intel MPI)"
    )
    controller: Literal["mpi", "gloo"] | None = Field(
        None, description="what workers negotiate over, and without GPUs sum over; default: MPI"
    )

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of DistributedOptimizer."""
        return self.model_dump(include={"groups"}, exclude_none=True)

    def environment(self) -> dict[str, str]:
        """Return the variables, set before the start, by which Horovod and its MPI take these options."""
        variables = {}
        if self.cycle_time_ms is not None:
            variables["HOROVOD_CYCLE_TIME"] = str(self.cycle_time_ms)
        if self.fusion_threshold_mb is not None:
            variables["HOROVOD_FUSION_THRESHOLD"] = str(round(self.fusion_threshold_mb * 2**20))
        if self.yield_when_idle is not None:
            # MPICH has no such option, and did not hold the core where the other two did.
            wait = str(int(self.yield_when_idle))
            variables |= {"OMPI_MCA_mpi_yield_when_idle": wait, "I_MPI_WAIT_MODE": wait}
        if self.controller is not None:
            variables |= dict.fromkeys(CONTROLLER_VARIABLES, self.controller)
        return variables


class Criteria(StrictModel):
    """The acceptance criteria of the analysis; none of them changes how a run trains."""

    iou_margin: float = Field(
        0.01, gt=0, lt=1, description="largest IoU drop accepted; of another score: score_margin"
    )
    efficiency_floor: float = Field(0.7, gt=0, le=1, description="least efficiency worth its workers")
    equal_within: float = Field(
        0.03, gt=0, lt=1, description="difference of speed that does not matter: what lies within is equal"
    )
    target_iou: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="to which time and cost are counted; default: what all runs on 1 worker reach, less the "
        "margin; of another score: target_score",
        examples=[0.75],
    )

    @model_validator(mode="before")
    @classmethod
    def _read_names_of_own_task(cls, content: object) -> object:
        """Read the criteria under the names that they have where the score is no IoU."""
        if not isinstance(content, dict):
            return content
        return {CRITERIA_OF_OWN_TASK.get(key, key): value for key, value in content.items()}


# Two of the criteria by the names that a study with a task of its own may give them.
CRITERIA_OF_OWN_TASK = {"score_margin": "iou_margin", "target_score": "target_iou"}
# The keys of `[data]` of a study with a task of its own.
TASK_DATA_KEYS = ("passes_per_epoch",)
# Keys by which a task of its own departs from the contract of tasks.
TASK_SWITCHES = ("find_unused_parameters", "loss_is_mean")
# Tables that only the built-in task has.
BUILT_IN_TABLES = ("model", "emulation", "saliency")
# The tables of options that all frameworks have.
SHARED_TABLES: dict[str, type[StrictModel]] = {
    "data": Data,
    "model": Model,
    "training": Training,
    "strategy": Strategy,
    "emulation": Emulation,
    "saliency": SaliencyOptions,
}

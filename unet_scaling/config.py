"""Studies and points: what a TOML file may say, and the points that the product of its axes gives.

Imported on login nodes: needs pydantic, but neither torch nor pandas.
"""

import hashlib
import itertools
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from unet_scaling.errors import UserError

Framework = Literal["pytorch_native", "horovod"]
FRAMEWORKS: tuple[Framework, ...] = ("pytorch_native", "horovod")
PROJECT = Path(__file__).resolve().parents[1]
PATH_KEYS = (("data", "folder"), ("data", "manifest"), ("training", "initial_weights"))
PLAIN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+=-]*$"


class Section(BaseModel):
    """A table of the study: immutable, nothing coerced, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


AnySection = TypeVar("AnySection", bound=Section)


class Data(Section):
    """Which images, at which size, and how they are split and loaded."""

    folder: str = Field(description="folder with images/ and masks/ paired by stem")
    manifest: str | None = Field(None, description="manifest of that folder; default folder/manifest.json")
    image_height: PositiveInt = Field(description="pixels after resizing")
    image_width: PositiveInt = Field(description="pixels after resizing")
    channels: Literal[1, 3] = Field(1, description="1 converts to grey, 3 to colour")
    foreground: str = Field("nonzero", description="'nonzero', values such as '255' or '1,2', or '>127'")
    intensity: Literal["dtype", "image"] = Field("dtype", description="scale by the pixel type or per image")
    test_share: float = Field(0.2, gt=0, lt=1, description="share of the images kept for evaluation")
    split_seed: NonNegativeInt = Field(42, description="seed of the split, the same for all repeats")
    passes_per_epoch: PositiveInt = Field(1, description="times each training image is seen in an epoch")
    loading: Literal["cache", "decode"] = Field("cache", description="decode once, or at every step")

    @property
    def manifest_path(self) -> Path:
        return Path(self.manifest or Path(self.folder) / "manifest.json")


class Model(Section):
    """The U-Net's shape; 8 and 5 give the reference network."""

    width: PositiveInt = Field(8, description="channels of the first level, doubled at each further one")
    depth: PositiveInt = Field(5, description="levels")
    batch_norm: Literal["local", "sync", "off"] = Field(
        "local", description="over a worker, the group, or none"
    )


class Training(Section):
    """How a run trains; every option is the same for all frameworks."""

    epochs: NonNegativeInt = Field(description="0 only evaluates")
    batch_per_worker: PositiveInt = Field(16, description="images of one forward pass on one worker")
    accumulate: PositiveInt = Field(1, description="forward passes per optimizer step")
    learning_rate: PositiveFloat = Field(1e-3, description="of one worker, before scaling")
    rate_scaling: Literal["linear", "square_root", "none"] = Field("linear", description="with the workers")
    warmup_epochs: NonNegativeInt = Field(
        0, description="epochs over which the rate climbs to its scaled value"
    )
    schedule: Literal["reference", "constant"] = Field(
        "reference", description="halved at 40, 60, 75 % of epochs"
    )
    precision: Literal["fp32", "tf32", "bf16"] = Field("fp32", description="of the forward and backward pass")
    channels_last: bool = Field(True, description="memory format of the images")
    compile: bool = Field(False, description="torch.compile the model")
    evaluate_every: NonNegativeInt = Field(
        0, description="epochs between evaluations; 0: only after the last"
    )
    shared_devices: bool = Field(
        False, description="let workers share a device or cores; for trials, never compared"
    )
    initial_weights: str | None = Field(None, description="weights.pt of another run to start from")


class NativeKnobs(Section):
    """Options of native DDP; empty means its own default."""

    bucket_cap_mb: PositiveFloat | None = Field(None, description="size of a gradient bucket, MiB")


class HorovodKnobs(Section):
    """Options of Horovod; empty means its own default."""

    cycle_time_ms: NonNegativeFloat | None = Field(None, description="pause between two negotiations")
    fusion_threshold_mb: NonNegativeFloat | None = Field(None, description="size of the fusion buffer, MiB")

    def environment(self) -> dict[str, str]:
        """The variables by which Horovod takes these options, to be set before it starts."""
        variables = {}
        if self.cycle_time_ms is not None:
            variables["HOROVOD_CYCLE_TIME"] = str(self.cycle_time_ms)
        if self.fusion_threshold_mb is not None:
            variables["HOROVOD_FUSION_THRESHOLD"] = str(round(self.fusion_threshold_mb * 2**20))
        return variables


TABLES: dict[str, type[Section]] = {
    "data": Data,
    "model": Model,
    "training": Training,
    "pytorch_native": NativeKnobs,
    "horovod": HorovodKnobs,
}


class Point(Section):
    """One repeat of one point: all that a training process needs to know, the content of point.json.

    `seed` belongs to the repeat: the same for both frameworks and all worker counts, so that runs
    of one repeat are a pair.
    """

    format: Literal[1] = 1
    study: str = Field(pattern=PLAIN_NAME)
    run: str = Field(pattern=PLAIN_NAME)
    framework: Framework
    workers: PositiveInt
    repeat: PositiveInt
    seed: NonNegativeInt
    data: Data
    model: Model = Model()
    training: Training
    pytorch_native: NativeKnobs | None = None
    horovod: HorovodKnobs | None = None

    @model_validator(mode="after")
    def _only_its_own_knobs(self) -> Self:
        for framework in FRAMEWORKS:
            if framework != self.framework and getattr(self, framework) is not None:
                raise ValueError(f"a {self.framework} point has no table {framework}")
        return self

    def digest(self) -> str:
        """SHA-256 of the point's canonical JSON: equal exactly when the configuration is equal."""
        canonical = json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


class Study(Section):
    """One TOML file: frameworks x worker counts x options x repeats. Tables hold scalars or axes."""

    name: str = Field(pattern=PLAIN_NAME, description="default: the file's name")
    frameworks: list[Framework] = Field(list(FRAMEWORKS), min_length=1)
    workers: list[PositiveInt] = Field(min_length=1)
    repeats: PositiveInt = Field(5, description="launches of each point, each with its own seed")
    seed: NonNegativeInt = Field(1, description="of the first repeat; the next ones count up")
    order: Literal["interleaved", "listed"] = Field("interleaved", description="of the runs within a repeat")
    data: dict[str, Any]
    model: dict[str, Any] = {}
    training: dict[str, Any]
    pytorch_native: dict[str, Any] = {}
    horovod: dict[str, Any] = {}

    @model_validator(mode="after")
    def _no_value_twice(self) -> Self:
        for key in ("frameworks", "workers"):
            values = getattr(self, key)
            if len(set(values)) != len(values):
                raise ValueError(f"{key}: {values} names a value twice")
        return self

    def points(self, source: str = "study") -> list[Point]:
        """All runs, repeat by repeat; a UserError names `source` and the key that no point can have."""
        points = [
            self._point(framework, workers, repeat, options, source)
            for repeat in range(1, self.repeats + 1)
            for framework in self.frameworks
            for workers in self.workers
            for options in self._options(framework)
        ]
        if len({point.run for point in points}) != len(points):
            raise UserError(f"{source}: two points have the same run id; an axis names a value twice")
        return points

    def _options(self, framework: Framework) -> Iterator[dict[tuple[str, str], Any]]:
        """Every combination of this framework's axes: {(table, key): value}."""
        tables = ("data", "model", "training", framework)
        axes = {
            (table, key): value
            for table in tables
            for key, value in getattr(self, table).items()
            if isinstance(value, list)
        }
        for values in itertools.product(*axes.values()):
            yield dict(zip(axes, values, strict=True))

    def _point(
        self, framework: Framework, workers: int, repeat: int, axes: dict[tuple[str, str], Any], source: str
    ) -> Point:
        tables = {table: dict(getattr(self, table)) for table in ("data", "model", "training", framework)}
        for (table, key), value in axes.items():
            tables[table][key] = value
        name = [framework, f"w{workers:02d}", *(f"{key}={_plain(value)}" for (_, key), value in axes.items())]
        fields = {
            "study": self.name,
            "run": "-".join([*name, f"r{repeat}"]),
            "framework": framework,
            "workers": workers,
            "repeat": repeat,
            "seed": self.seed + repeat - 1,
        }
        return validated(Point, fields | tables, source)


def _plain(value: object) -> str:
    """A value as part of a run id; what a file name cannot carry is replaced."""
    return re.sub(r"[^A-Za-z0-9.+]+", "_", str(value))


def read_study(path: Path, overrides: dict[str, Any] | None = None, name: str | None = None) -> Study:
    """Read a study file; `overrides` maps dotted keys ("training.epochs") to values.

    Paths may use ~ and variables, and are relative to the project's folder. Raises UserError for a
    file that is no TOML, an unknown key, or a value outside its range.
    """
    content = read_toml(path)
    for dotted, value in (overrides or {}).items():
        table, _, key = dotted.rpartition(".")
        (content.setdefault(table, {}) if table else content)[key] = value
    content["name"] = name or content.get("name", path.stem)
    study = validated(Study, _with_absolute_paths(content), str(path))
    study.points(str(path))
    return study


def read_point(path: Path) -> Point:
    """Read a point.json; raises UserError where it is missing or not a valid point."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; slurm/submission.sh makes run folders") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    return validated(Point, content, str(path))


def _with_absolute_paths(content: dict[str, Any]) -> dict[str, Any]:
    for table, key in PATH_KEYS:
        section = content.get(table)
        if isinstance(section, dict) and key in section:
            value = section[key]
            paths = [_absolute(path) for path in value] if isinstance(value, list) else _absolute(value)
            content = content | {table: content[table] | {key: paths}}
    return content


def _absolute(path: object) -> object:
    if not isinstance(path, str):
        return path
    expanded = os.path.expandvars(path)
    if "$" in expanded:
        raise UserError(f"path {path!r} names a variable that is not set")
    return str(PROJECT / Path(expanded).expanduser())


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None


def validated(model: type[AnySection], content: object, source: str) -> AnySection:
    """`content` as a `model`, or a UserError with one line for each key that is wrong."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        lines = [_explain(model, dict(fault)) for fault in error.errors()]
        raise UserError(f"{source}: " + "\n       ".join(lines)) from None


def _explain(model: type[Section], fault: dict[str, Any]) -> str:
    keys = [str(key) for key in fault["loc"]]
    where = ".".join(keys) or "file"
    if fault["type"] == "extra_forbidden":
        return f"{where}: unknown key; known here: {', '.join(_known_keys(model, keys[:-1]))}"
    if fault["type"] == "missing":
        return f"{where}: missing"
    found = "" if fault["type"] == "value_error" else f"found {fault['input']!r}; "
    return f"{where}: {found}{fault['msg'].removeprefix('Value error, ')}"


def _known_keys(model: type[Section], tables: list[str]) -> list[str]:
    """The keys of the table at this path, for an error that lists what is allowed."""
    return sorted((TABLES[tables[0]] if tables else model).model_fields)

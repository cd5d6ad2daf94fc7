"""Models of a study file and of the configuration of one run; the runs that a study expands to."""

import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, SerializeAsAny, WithJsonSchema, model_validator
from pydantic.json_schema import SkipJsonSchema

from unet_scaling import PROJECT as PROJECT
from unet_scaling.base.errors import UserError
from unet_scaling.base.machine import machine, wall_seconds
from unet_scaling.base.validation import Allowed, StrictModel, as_toml, validated
from unet_scaling.study.frameworks import ALL_FRAMEWORKS as ALL_FRAMEWORKS
from unet_scaling.study.frameworks import FRAMEWORK_ROWS, FRAMEWORK_WORDS, Knobs, with_table_of_each_framework
from unet_scaling.study.frameworks import FRAMEWORKS as FRAMEWORKS
from unet_scaling.study.frameworks import PROGRAMS_FOLDER as PROGRAMS_FOLDER
from unet_scaling.study.frameworks import WRAPPERS as WRAPPERS
from unet_scaling.study.frameworks import Framework as Framework
from unet_scaling.study.options import SHARED_TABLES as SHARED_TABLES
from unet_scaling.study.options import (
    Count,
    Criteria,
    Data,
    Emulation,
    HorovodKnobs,
    Model,
    NativeKnobs,
    SaliencyOptions,
    Seed,
    Strategy,
    TaskData,
    TaskOptions,
    Training,
    keys_without_effect,
    without_former_keys,
)
from unet_scaling.study.repeats import (
    FEWEST_ADAPTIVE_REPEATS,
    PRECISION_WORDS,
    UNTIL,
    Precision,
    parse_precision,
)

# The options of a task of its own are a table within a table.
TASK_OPTIONS = "task.options"
NO_TASK = vars(TaskOptions())
# After the worker's own time-out (group/watchdog.py), which names the option, come those of the frameworks.
FALLBACK_SECONDS = 30
HOROVOD_CYCLE_TIME_VARIABLE = "HOROVOD_CYCLE_TIME"
# The default of Horovod 0.28.1.
HOROVOD_CYCLE_TIME_MILLISECONDS = 1.0
PLAIN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+=-]*$"
PLAIN_NAME_WORDS = "a text of letters, digits and . _ + = - that begins with a letter or digit"
# The longest name of a folder on file systems of Linux, in bytes; names of runs are ASCII.
LONGEST_NAME = 255
MOST_WORKERS = 65_536
MOST_REPEATS = 10_000
# More would take minutes to write down, and weeks to run.
MOST_RUNS = 100_000
# The largest integer that every reader of JSON holds exactly.
LARGEST_FIRST_SEED = 2**53

PlainName = Annotated[str, Field(pattern=PLAIN_NAME), Allowed(PLAIN_NAME_WORDS)]
Workers = Annotated[int, Field(ge=1, le=MOST_WORKERS)]
# A number, or the words that are read as `until`.
REPEATS_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": MOST_REPEATS, "words": PRECISION_WORDS},
        {"type": "string", "pattern": UNTIL.pattern, "words": PRECISION_WORDS},
    ]
}
Element = TypeVar("Element")
OptionKey = tuple[str, str]  # table and key
Options = dict[OptionKey, Any]
# The first epoch of an attempt is its warm-up.
FEWEST_PROFILED_EPOCHS = 2


def no_value_twice(values: list[Any]) -> list[Any]:
    """Return the values; raises ValueError where one is there twice."""
    if len(set(values)) != len(values):
        raise ValueError(f"{values} names a value twice")
    return values


# A list, such as an axis, that has at least one value and none twice.
Distinct = Annotated[
    list[Element],
    Field(min_length=1, json_schema_extra={"uniqueItems": True}),
    AfterValidator(no_value_twice),
]


@with_table_of_each_framework(lambda row: (row.knobs | None, None))
class RunConfig(StrictModel):
    """All that a training process needs to know about one run: the content of config.json.

    `seed` belongs to the repeat: the same for all frameworks and all worker counts, so that runs
    of one repeat are a pair.
    """

    format: Literal[1] = 1
    study: PlainName
    run: PlainName
    framework: Framework
    workers: Workers
    repeat: Count
    seed: Seed
    task: TaskOptions = TaskOptions()
    data: SerializeAsAny[Data]
    model: Model = Model()
    training: Training
    strategy: Strategy = Strategy()
    emulation: Emulation = Emulation()
    saliency: SaliencyOptions = SaliencyOptions()

    @model_validator(mode="before")
    @classmethod
    def _read_data_of_own_task(cls, content: object) -> object:
        """Read `[data]` of a task of its own, which has no images."""
        if not isinstance(content, dict) or not task_file(content):
            return content
        data = content.get("data", {})
        return content | {"data": TaskData.model_validate(data) if isinstance(data, dict) else data}

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        faults = [*_conflicts(self), *_conflicts_of_strategy(self), *_conflicts_of_emulation(self)]
        if self.model.batch_norm == "sync" and self.training.channels_last:
            # The frameworks would not do the same work.
            faults.append(
                "model.batch_norm = 'sync': each such layer of Horovod copies channels-last images, DDP's do "
                "not; set training.channels_last = false"
            )
        if faults:
            raise ValueError(faults[0])
        return self

    @property
    def is_explained(self) -> bool:
        """Return whether saliency maps are made after training."""
        return self.saliency.method != "off"

    @property
    def has_own_task(self) -> bool:
        """Return whether a Python file defines what is trained, instead of the built-in U-Net."""
        return self.task.file is not None

    @property
    def sample(self) -> str:
        """Return what the data consist of: an "image" of the built-in task, a "sample" of another one."""
        return "sample" if self.has_own_task else "image"

    @property
    def is_emulated(self) -> bool:
        """Return whether the workers wait instead of computing: nothing is learned."""
        return self.emulation.compute is not None

    @property
    def is_played(self) -> bool:
        """Return whether the run trains as a stated number of workers: its seconds are those of no number."""
        return self.training.plays is not None

    @property
    def played_workers(self) -> int:
        """Return how many workers there are as far as the training can tell: training.plays, or the real."""
        return self.training.plays or self.workers

    @property
    def images_per_step(self) -> int:
        """Return how many images all workers together process in one optimizer step."""
        return self.played_workers * self.training.batch_per_worker * self.training.accumulate

    @property
    def plays_per_worker(self) -> int:
        """Return as how many workers each real one trains, one after the other."""
        return self.played_workers // self.workers

    @property
    def subgroup_size(self) -> int:
        """Return how many workers, real or played, are in a subgroup: all, where there are fewer."""
        return min(self.strategy.subgroup_size, self.played_workers)

    @property
    def passes_per_step(self) -> int:
        """Return the forward passes of a real worker in one optimizer step."""
        return self.plays_per_worker * self.training.accumulate

    @property
    def knobs(self) -> Knobs:
        """Return the options that only the run's framework has."""
        own: Knobs | None = getattr(self, self.framework)
        return own or FRAMEWORK_ROWS[self.framework].knobs()

    def wrapper_arguments(self) -> dict[str, Any]:
        """Return the options that the framework's wrapper of model or optimizer takes, by keyword."""
        return self.knobs.arguments()

    def evaluation_is_due(self, epoch: int) -> bool:
        """Return whether to evaluate before this epoch; the evaluation after the last is always made."""
        every = self.training.evaluate_every
        return every > 0 and epoch > 0 and epoch % every == 0

    @property
    def recomputes_statistics(self) -> bool:
        """Return whether evaluations recompute statistics of norm layers; not where nothing is trained."""
        return self.training.epochs > 0 and self.training.statistics_images > 0

    def digest(self) -> str:
        """Return the SHA-256 of what differs from the defaults: equal exactly when the configuration is.

        An option added later, at its default, changes no digest.
        """
        content = self.model_dump(exclude_defaults=True) | {"format": self.format}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def horovod_environment(config: RunConfig) -> dict[str, str]:
    """Return the variables by which Horovod takes its options, to be set before it starts.

    By default it only warns of a worker that keeps the others waiting. On a slowed machine all its times are
    as much longer.
    """
    knobs = config.knobs if isinstance(config.knobs, HorovodKnobs) else HorovodKnobs()
    limit = round(wall_seconds(config.training.timeout_seconds + FALLBACK_SECONDS))
    variables = _cycle_time_there(knobs).environment() | {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(max(1, limit // 5)),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(limit),
    }
    if config.strategy.subgroup_size > 1:
        variables["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    return variables


def _cycle_time_there(knobs: HorovodKnobs) -> HorovodKnobs:
    """Return the options with the cycle time, which Horovod would else take from its variable, slowed."""
    if not machine().is_slowed:
        return knobs
    found = os.environ.get(HOROVOD_CYCLE_TIME_VARIABLE) or HOROVOD_CYCLE_TIME_MILLISECONDS
    try:
        seconds = float(found) if knobs.cycle_time_ms is None else knobs.cycle_time_ms
    except ValueError:
        raise UserError(
            f"{HOROVOD_CYCLE_TIME_VARIABLE} = {found!r}: allowed: a number of milliseconds"
        ) from None
    return knobs.model_copy(update={"cycle_time_ms": wall_seconds(seconds)})


@with_table_of_each_framework(lambda _: (dict[str, Any], Field({})))
class StudyConfig(StrictModel):
    """One TOML file: frameworks x worker counts x options x repeats. Tables hold scalars or axes."""

    name: PlainName = Field(
        max_length=LONGEST_NAME,
        description="of the study and its folder below logs/; default: the file's name",
        examples=["sweep"],
    )
    frameworks: Distinct[Annotated[Framework, Allowed(FRAMEWORK_WORDS)]] = Field(
        list(FRAMEWORKS),
        description=f"compared; {' and '.join(WRAPPERS)}: environment/install.sh --with",
        examples=[["horovod"]],
    )
    workers: Distinct[Workers] = Field(
        description="worker counts, for speed-up with 1 among them", examples=[[1, 2, 4]]
    )
    repeats: Annotated[int, Field(ge=1, le=MOST_REPEATS), WithJsonSchema(REPEATS_SCHEMA)] = Field(
        5,
        description="launches of each configuration, each with its own seed; or 'until 3 %, at most 20'",
        examples=["until 3 %"],
    )
    until: SkipJsonSchema[Precision | None] = Field(None, description="set by repeats = 'until 3 %'")
    seed: int = Field(
        1, ge=0, le=LARGEST_FIRST_SEED, description="of the first repeat; the next ones count up"
    )
    order: Literal["interleaved", "listed"] = Field(
        "interleaved", description="of the runs within a repeat: shuffled, or as listed"
    )
    task: TaskOptions = Field(TaskOptions(), description=TaskOptions.__doc__)
    data: dict[str, Any] = Field({})
    model: dict[str, Any] = Field({})
    training: dict[str, Any]
    strategy: dict[str, Any] = Field({})
    emulation: dict[str, Any] = Field({})
    saliency: dict[str, Any] = Field({})
    criteria: Criteria = Criteria()

    @model_validator(mode="before")
    @classmethod
    def _read_older_files(cls, content: object) -> object:
        if not isinstance(content, dict) or "training" not in content:
            return content
        return content | {"training": without_former_keys(content["training"])}

    @model_validator(mode="before")
    @classmethod
    def _repeats_until(cls, content: object) -> object:
        """Read `repeats = "until 3 %"` as the fewest repeats, and what to reach by more."""
        if not isinstance(content, dict) or not isinstance(content.get("repeats"), str):
            return content
        until = parse_precision(content["repeats"])
        return content | {"repeats": FEWEST_ADAPTIVE_REPEATS, "until": until}

    @model_validator(mode="after")
    def _until_has_something_to_compare(self) -> Self:
        if self.until and not set(FRAMEWORKS) <= set(self.frameworks):
            raise ValueError(
                f'repeats = "{self.until}" compares {" and ".join(FRAMEWORKS)}; name both frameworks'
            )
        return self

    def configs(self, source: str = "study", first_repeat: int = 1) -> list[RunConfig]:
        """Return the runs, repeat by repeat. Raises UserError that names `source` and every wrong key."""
        combinations = (math.prod(map(len, self._axes(framework).values())) for framework in self.frameworks)
        runs = sum(combinations) * len(self.workers) * self.repeats
        if runs > MOST_RUNS:
            raise UserError(
                f"{source}: its axes and repeats = {self.repeats} give {runs} runs, at most {MOST_RUNS} are "
                "allowed; shorten an axis"
            )
        configs = []
        faults = []
        for launch in self._launches(first_repeat):
            try:
                configs.append(self._config(*launch, source))
            except UserError as error:
                faults.append(str(error))
        if not configs and not faults:
            faults = [f"{source}: strategy.synchronise_every, strategy.staleness: one needs its default"]
        if not faults:
            faults = [
                f"{source}: strategy.{key} = {as_toml(value)} has no effect at any point; remove it"
                for key, value in self.strategy.items()
                if not isinstance(value, list)
                and all(getattr(config.strategy, key) != value for config in configs)
            ]
        if faults:
            raise UserError("\n".join(dict.fromkeys(faults)))
        if len({config.run for config in configs}) != len(configs):
            raise UserError(f"{source}: two runs have the same name; an axis names a value twice")
        return configs

    def run_names(self) -> list[str]:
        """Return the names of all runs, in the order of their configurations."""
        return [_run_name(*launch, "study") for launch in self._launches()]

    def _launches(self, first_repeat: int = 1) -> Iterator[tuple[Framework, int, int, Options]]:
        """Yield framework, workers, repeat and options of each run."""
        for repeat in range(first_repeat, self.repeats + 1):
            for framework, workers in itertools.product(self.frameworks, self.workers):
                axes = self._axes(framework)
                for values in itertools.product(*axes.values()):
                    options, left_out = self._as_strategy(dict(zip(axes, values, strict=True)))
                    if not left_out:
                        yield framework, workers, repeat, options

    def left_out(self) -> list[str]:
        """Return what axes of [strategy] hold that together is no point of its own."""
        axes = {("strategy", key): value for key, value in self.strategy.items() if isinstance(value, list)}
        combinations = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
        return list(dict.fromkeys(pair for options in combinations for pair in self._as_strategy(options)[1]))

    def _as_strategy(self, options: Options) -> tuple[Options, list[str]]:
        """Return the values of the axes, with the default of each that has no effect beside the others.

        And which of them make no point of its own: two strategies at once, or what others are as well.
        """
        own = {key: value for (table, key), value in options.items() if table == "strategy"}
        strategy = self.strategy | own
        steps, staleness = strategy.get("synchronise_every", 1), strategy.get("staleness", 0)
        if own and steps != 1 and staleness != 0:
            return options, [f"synchronise_every = {as_toml(steps)} with staleness = {as_toml(staleness)}"]
        left_out = []
        for key, needed in keys_without_effect(strategy).items():
            if key in own:
                default = Strategy.model_fields[key].default
                axis = self.strategy[key]
                # Of values that all mean the default, it stays, or else the first.
                if default in axis or own[key] != axis[0]:
                    at = as_toml(Strategy.model_fields[needed].default)
                    left_out.append(f"{key} = {as_toml(own[key])} with {needed} = {at}")
                options = options | {("strategy", key): default}
        return options, left_out

    def _axes(self, framework: Framework) -> dict[OptionKey, list[Any]]:
        """Return the options that this framework's runs differ in: {(table, key): values}."""
        return {
            (table, key): value
            for table, options in self._tables(framework).items()
            for key, value in options.items()
            if isinstance(value, list)
        }

    def _tables(self, framework: Framework) -> dict[str, dict[str, Any]]:
        """Return the options of this framework's runs, by table."""
        tables = {table: getattr(self, table) for table in (*SHARED_TABLES, framework)}
        return tables | {TASK_OPTIONS: self.task.options}

    def _config(
        self, framework: Framework, workers: int, repeat: int, options: Options, source: str
    ) -> RunConfig:
        tables = {table: dict(values) for table, values in self._tables(framework).items()}
        for (table, key), value in options.items():
            tables[table][key] = value
        if tables["strategy"] != self.strategy:
            # Beside an axis, an option has no effect at some points.
            for key in keys_without_effect(tables["strategy"]):
                del tables["strategy"][key]
        fields = {
            "study": self.name,
            "run": _run_name(framework, workers, repeat, options, source),
            "framework": framework,
            "workers": workers,
            "repeat": repeat,
            "seed": self.seed + repeat - 1,
            "task": self.task.model_copy(update={"options": tables.pop(TASK_OPTIONS)}),
        }
        return validated(RunConfig, fields | tables, source)


def task_file(content: dict[str, Any]) -> str:
    """Return the file of the task that a study or run names, before anything is validated.

    Empty for the built-in task, and for what is no text.
    """
    task = content.get("task")
    file = task.get("file") if isinstance(task, dict) else getattr(task, "file", None)
    return file if isinstance(file, str) else ""


def _run_name(framework: Framework, workers: int, repeat: int, options: Options, source: str) -> str:
    """Return the name of a run and its folder, for people only. Raises UserError where it is too long."""
    values = [f"{key}={_plain(value)}" for (_, key), value in options.items()]
    name = "-".join([framework, f"w{workers:02d}", *values, f"r{repeat}"])
    if len(name) > LONGEST_NAME:
        (table, key), value = max(options.items(), key=lambda option: len(_plain(option[1])))
        raise UserError(
            f"{source}: {table}.{key}: found {str(value)[:30]!r} of an axis: the name of a run has "
            f"{len(name)} characters; allowed: {LONGEST_NAME}. Use shorter values or fewer axes"
        )
    return name


def _plain(value: object) -> str:
    """Return a value as part of a run's name; what a file name cannot carry is replaced."""
    return re.sub(r"[^A-Za-z0-9.+]+", "_", str(value))


def _conflicts(config: RunConfig) -> Iterator[str]:
    """Yield which options of a run exclude each other, and what to do."""
    training, task = config.training, config.task
    for framework in ALL_FRAMEWORKS:
        if framework != config.framework and getattr(config, framework) is not None:
            yield f"a {config.framework} run has no table {framework}"
    if training.plays and training.plays % config.workers:
        yield (
            f"training.plays = {training.plays} is no multiple of workers = {config.workers}; "
            "use workers = 1, which plays any number"
        )
    if training.plays and config.model.batch_norm == "sync":
        yield "training.plays is for model.batch_norm = 'local' or 'off', found 'sync'"
    if isinstance(config.knobs, NativeKnobs) and config.knobs.static_graph:
        if config.passes_per_step > 1:
            yield (
                f"{config.framework}.static_graph needs one pass per step (training.accumulate, "
                f"training.plays), found {config.passes_per_step}"
            )
        if task.find_unused_parameters:
            yield f"{config.framework}.static_graph and task.find_unused_parameters: remove one of them"
    if config.model.activation_checkpointing:
        excluded = {
            "model.batch_norm = 'sync'": config.model.batch_norm == "sync",
            "training.compile = true": training.compile,
            "training.compute_profile = 'on'": training.compute_profile == "on",
        }
        for option in (name for name, is_set in excluded.items() if is_set):
            yield f"model.activation_checkpointing = true and {option}: remove one of them"
    if training.compute_profile == "on":
        asked = "training.compute_profile = 'on' needs"
        if config.workers != 1:
            yield f"{asked} workers = 1, found workers = {config.workers}"
        if training.epochs < FEWEST_PROFILED_EPOCHS:
            yield f"{asked} training.epochs of at least 2, found {training.epochs}"
        if config.passes_per_step > 1:
            yield f"{asked} one pass per step, found {config.passes_per_step}; leave plays and accumulate out"
    if not config.has_own_task:
        given = " and ".join(f"task.{name}" for name, value in vars(task).items() if value != NO_TASK[name])
        if given:
            yield f"{given} are for the task that task.file names; set it, or remove them"
        return
    if task.sha256 is None:
        yield "task.sha256 is missing: the SHA-256 of task.file belongs to the configuration"
    built_in = (config.model, config.emulation, config.saliency)
    if built_in != (Model(), Emulation(), SaliencyOptions()) or training.compute_profile == "on":
        yield (
            "[model], [emulation], [saliency] and training.compute_profile are for the built-in U-Net; "
            "remove them, or task.file"
        )


def _conflicts_of_strategy(config: RunConfig) -> Iterator[str]:
    """Yield the options that make no sense beside how the workers keep one network."""
    strategy = config.strategy
    name = "staleness" if strategy.staleness else "synchronise_every"
    for key, needed in keys_without_effect(vars(strategy)).items():
        yield (
            f"strategy.{key} = {as_toml(getattr(strategy, key))} has no effect at strategy.{needed} = "
            f"{as_toml(getattr(strategy, needed))}; set that, or remove strategy.{key}"
        )
    if strategy.averages_gradients:
        return
    asked = f"strategy.{name} = {getattr(strategy, name)}"
    if strategy.synchronise_every > 1 and strategy.staleness:
        yield f"{asked} and strategy.synchronise_every = {strategy.synchronise_every}: set one of them"
    if config.framework in WRAPPERS:
        yield f"{asked} is for {' and '.join(FRAMEWORKS)}, found {config.framework}"
    size, played = config.subgroup_size, max(1, config.plays_per_worker)
    if config.played_workers % size:
        yield f"strategy.subgroup_size = {size} is no divisor of {config.played_workers} workers; use one"
    elif size % played and played % size:
        yield f"strategy.subgroup_size = {size}: each worker plays {played}; use workers = 1"
    if strategy.synchronise_every > 1 and config.model.batch_norm == "sync":
        yield f"{asked}: model.batch_norm = 'sync' exchanges in every step; use 'local' or 'off'"
    if config.is_emulated:
        yield f"{asked}: emulated workers average gradients at every step; remove emulation.compute"
    without_effect = [f"{config.framework}.{key}" for key in config.wrapper_arguments()]
    if config.training.gradient_compression != "none":
        without_effect.append("training.gradient_compression")
    for option in without_effect:
        yield f"{asked}: {option} has no effect; remove it"


def _conflicts_of_emulation(config: RunConfig) -> Iterator[str]:
    """Yield the options that make no sense for workers that wait instead of computing."""
    if not config.is_emulated:
        return
    training = config.training
    excluded = {
        "training.plays": training.plays is not None,
        "training.initial_weights": training.initial_weights is not None,
        "training.compute_profile": training.compute_profile == "on",
        "training.compile": training.compile,
        "training.epochs": training.epochs == 0,
        "training.evaluate_every": training.evaluate_every > 0,
        "model.batch_norm": config.model.batch_norm == "sync",
        "model.activation_checkpointing": config.model.activation_checkpointing,
        "data.loader_workers": config.data.loader_workers > 0 and config.emulation.data == "replayed",
        "saliency.method": config.is_explained,
    }
    for option in (name for name, is_set in excluded.items() if is_set):
        table, _, key = option.partition(".")
        value = getattr(getattr(config, table), key)
        yield f"emulation.compute: found {option} = {value!r}, which emulated workers cannot do; remove one"

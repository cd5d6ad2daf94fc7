"""The options that vary between runs: the axes of a study, as the records themselves tell them."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from unet_scaling.study.config import ALL_FRAMEWORKS, SHARED_TABLES, TASK_OPTIONS, RunConfig
from unet_scaling.study.options import OPTION_TABLES, TASK_DATA_KEYS, Training
from unet_scaling.study.record_lines import Header
from unet_scaling.study.validation import flat_values

# They guard a run against its end, and change neither what is computed nor what the clock of an epoch covers.
GUARDS = ("training.checkpoint_minutes", "training.timeout_seconds")
# Of a task that a file defines: what its contract allows.
TASK_SWITCHES = ("find_unused_parameters", "loss_is_mean")
# They name a place; what lies there is told by its checksum.
DATA_PLACES = ("data.folder", "data.manifest")
WEIGHTS_PLACE = "training.initial_weights"
OPERATIONAL = (*GUARDS, *DATA_PLACES, WEIGHTS_PLACE)


def guard_defaults(guards: Iterable[str] = GUARDS) -> dict[str, object]:
    """Return the default of these guards, by its name in the table `training`."""
    names = [key.removeprefix("training.") for key in guards]
    return {name: Training.model_fields[name].default for name in names}


def flat_options(config: RunConfig) -> dict[str, object]:
    """Return every option of a point, {"training.precision": "fp32", ...}, with its framework's own knobs."""
    knobs = getattr(config, config.framework) or OPTION_TABLES[config.framework]()
    return shared_options(config) | flat_values(knobs, f"{config.framework}.")


def shared_options(config: RunConfig) -> dict[str, object]:
    """Return the options that all frameworks have."""
    if config.has_own_task:
        return _options_of_own_task(config)
    options: dict[str, object] = {}
    for table in SHARED_TABLES:
        options |= flat_values(getattr(config, table), f"{table}.")
    return options


def _options_of_own_task(config: RunConfig) -> dict[str, object]:
    """Return the options of a run whose task is no built-in one: its file is told by its SHA-256."""
    options = flat_values(config.training, "training.")
    options |= {f"data.{key}": getattr(config.data, key) for key in TASK_DATA_KEYS}
    options |= {f"task.{name}": getattr(config.task, name) for name in TASK_SWITCHES}
    return options | {f"{TASK_OPTIONS}.{key}": value for key, value in config.task.options.items()}


def compared_configs(headers: Sequence[Header]) -> list[RunConfig]:
    """Return the points of runs with equal operational options, so that they alone separate no runs.

    Places of equal content become the first of them. An operational option is kept where runs that differ
    in nothing else would otherwise be the same repeat of one point: then a study varies it on purpose.
    """
    configs = [header.config for header in headers]
    if not set(varying(configs)) & set(OPERATIONAL):
        return configs
    return _without(_varied_on_purpose(configs, _without(OPERATIONAL, headers)), headers)


def with_common_places(configs: Sequence[RunConfig], compared: Sequence[RunConfig]) -> Iterator[RunConfig]:
    """Yield the points of runs without header, with the operational options all compared runs share."""
    varied = varying(compared)
    shared = [key.split(".") for key in OPERATIONAL if key not in varied] if compared else []
    for config in configs:
        tables = {
            table: getattr(config, table).model_copy(
                update={key: getattr(getattr(compared[0], table), key) for of, key in shared if of == table}
            )
            for table in ("data", "training")
        }
        yield config.model_copy(update=tables)


def identity(config: RunConfig) -> Hashable:
    """Return what only copies of one run have in common."""
    return config.framework, config.workers, config.repeat, tuple(flat_options(config).items())


def _varied_on_purpose(configs: Sequence[RunConfig], compared: Sequence[RunConfig]) -> tuple[str, ...]:
    """Return the operational options that are to be left out: all but those that tell repeats apart."""
    alike: dict[Hashable, list[RunConfig]] = {}
    for config, without in zip(configs, compared, strict=True):
        alike.setdefault(identity(without), []).append(config)
    kept = {key for same in alike.values() if len(same) > 1 for key in varying(same)}
    if kept & set(DATA_PLACES):
        kept |= set(DATA_PLACES)
    return tuple(key for key in OPERATIONAL if key not in kept)


def _without(left_out: Sequence[str], headers: Sequence[Header]) -> list[RunConfig]:
    """Return the points with the default of each guard that is left out, and one place for equal contents."""
    first: dict[Hashable, RunConfig] = {}
    return [
        _updated(
            header.config, _common_data(header, left_out, first), _common_training(header, left_out, first)
        )
        for header in headers
    ]


def _common_data(
    header: Header, left_out: Sequence[str], first: dict[Hashable, RunConfig]
) -> Mapping[str, object]:
    """Return the place where the first run with these images read them."""
    if DATA_PLACES[0] not in left_out:
        return {}
    common = first.setdefault(("data", header.manifest_sha256), header.config).data
    return {"folder": common.folder, "manifest": common.manifest}


def _common_training(
    header: Header, left_out: Sequence[str], first: dict[Hashable, RunConfig]
) -> Mapping[str, object]:
    """Return the defaults of guards, and the place where the first run with these weights read them."""
    training = header.config.training
    common = guard_defaults([key for key in GUARDS if key in left_out])
    if WEIGHTS_PLACE in left_out and training.initial_weights is not None:
        of_first = first.setdefault(("weights", header.initial_weights_sha256), header.config)
        common["initial_weights"] = of_first.training.initial_weights
    return common


def _updated(config: RunConfig, data: Mapping[str, object], training: Mapping[str, object]) -> RunConfig:
    tables = {
        "data": config.data.model_copy(update=data),
        "training": config.training.model_copy(update=training),
    }
    return config.model_copy(update=tables)


def is_knob(key: str) -> bool:
    """Return whether a flat key belongs to one framework only."""
    return key.partition(".")[0] in ALL_FRAMEWORKS


def varying(configs: Sequence[RunConfig]) -> tuple[str, ...]:
    """Return the axes: flat keys that have more than one value among the points that have the key."""
    values: dict[str, set[object]] = {}
    for config in configs:
        for key, value in flat_options(config).items():
            values.setdefault(key, set()).add(value)
    return tuple(key for key, found in values.items() if len(found) > 1)


def label(config: RunConfig, axes: Iterable[str]) -> str:
    """Return what distinguishes this point, for people: "precision=bf16, compile=True", or nothing."""
    options = flat_options(config)
    return ", ".join(f"{axis.rpartition('.')[2]}={shown(options[axis])}" for axis in axes if axis in options)


def labels(config: RunConfig, axes: Iterable[str]) -> tuple[str, str]:
    """Return what distinguishes a point in shared options, and in knobs of its own framework."""
    shared, knobs = split_axes(list(axes))
    return label(config, shared), label(config, knobs)


def split_axes(axes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options that all series share, and the knobs of a framework."""
    return [axis for axis in axes if not is_knob(axis)], [axis for axis in axes if is_knob(axis)]


def shown(value: object) -> str:
    """Return an option's value as text; no value means the default."""
    return "default" if value is None else str(value)


def order(config: RunConfig, axes: Iterable[str]) -> tuple[tuple[int, float, str], ...]:
    """Return a key that sorts points by the values of their axes: numbers by size, then text."""
    options = flat_options(config)
    return tuple(_order_of(options.get(axis)) for axis in axes)


def _order_of(value: object) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return (1, float(value), "")
    return (0, 0.0, "") if value is None else (2, 0.0, str(value))

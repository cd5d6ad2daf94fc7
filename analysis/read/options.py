"""The options that vary between runs: the axes of a study, as the records themselves tell them."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from unet_scaling.base.validation import flat_values
from unet_scaling.format.record_lines import Header
from unet_scaling.study.config import ALL_FRAMEWORKS, SHARED_TABLES, TASK_OPTIONS, RunConfig
from unet_scaling.study.options import TASK_DATA_KEYS, TASK_SWITCHES, Training

# They guard a run against its end, and change neither what is computed nor what the clock of an epoch covers.
GUARDS = ("training.checkpoint_minutes", "training.timeout_seconds")
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
    return shared_options(config) | own_options(config)


def own_options(config: RunConfig) -> dict[str, object]:
    """Return the options that only the framework of a point has, {"horovod.cycle_time_ms": 1.0, ...}."""
    return flat_values(config.knobs, f"{config.framework}.")


def shared_options(config: RunConfig) -> dict[str, object]:
    """Return the options that all frameworks have; the file of a task is told by its SHA-256."""
    options: dict[str, object] = {}
    if not config.has_own_task:
        for table in SHARED_TABLES:
            options |= flat_values(getattr(config, table), f"{table}.")
        return options
    options = flat_values(config.training, "training.") | flat_values(config.strategy, "strategy.")
    options |= {f"data.{key}": getattr(config.data, key) for key in TASK_DATA_KEYS}
    options |= {f"task.{name}": getattr(config.task, name) for name in TASK_SWITCHES}
    return options | {f"{TASK_OPTIONS}.{key}": value for key, value in config.task.options.items()}


def identity(config: RunConfig) -> Hashable:
    """Return what only copies of one run have in common."""
    return config.framework, config.workers, config.repeat, tuple(flat_options(config).items())


def compared_configs(headers: Sequence[Header]) -> list[RunConfig]:
    """Return the points of runs with equal operational options, so that they alone separate no runs.

    Places of equal content become the first of them. An operational option is kept where runs that differ
    in nothing else would otherwise be the same repeat of one point: then a study varies it on purpose.
    """
    configs = [header.config for header in headers]
    if not set(varying(configs)) & set(OPERATIONAL):
        return configs
    alike: dict[Hashable, list[RunConfig]] = {}
    for config, without in zip(configs, _without(OPERATIONAL, headers), strict=True):
        alike.setdefault(identity(without), []).append(config)
    kept = {key for same in alike.values() if len(same) > 1 for key in varying(same)}
    if kept & set(DATA_PLACES):
        kept |= set(DATA_PLACES)
    return _without([key for key in OPERATIONAL if key not in kept], headers)


def _without(left_out: Sequence[str], headers: Sequence[Header]) -> list[RunConfig]:
    """Return the points with the default of each guard that is left out, and one place for equal contents."""
    first: dict[Hashable, RunConfig] = {}
    guards = guard_defaults([key for key in GUARDS if key in left_out])
    configs = []
    for header in headers:
        config = header.config
        data: dict[str, object] = {}
        training = dict(guards)
        if DATA_PLACES[0] in left_out:
            common = first.setdefault(("data", header.manifest_sha256), config).data
            data = {"folder": common.folder, "manifest": common.manifest}
        if WEIGHTS_PLACE in left_out and config.training.initial_weights is not None:
            same = first.setdefault(("weights", header.initial_weights_sha256), config)
            training["initial_weights"] = same.training.initial_weights
        configs.append(_updated(config, {"data": data, "training": training}))
    return configs


def with_common_places(configs: Sequence[RunConfig], compared: Sequence[RunConfig]) -> Iterator[RunConfig]:
    """Yield the points of runs without header, with the operational options all compared runs share."""
    varied = varying(compared)
    common: dict[str, dict[str, object]] = {"data": {}, "training": {}}
    for table, key in (key.split(".") for key in OPERATIONAL if compared and key not in varied):
        common[table][key] = getattr(getattr(compared[0], table), key)
    yield from (_updated(config, common) for config in configs)


def _updated(config: RunConfig, values: Mapping[str, Mapping[str, object]]) -> RunConfig:
    tables = {name: getattr(config, name).model_copy(update=of) for name, of in values.items()}
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
    axes = list(axes)
    shared = [axis for axis in axes if not is_knob(axis)]
    return label(config, shared), label(config, filter(is_knob, axes))


def shown(value: object) -> str:
    """Return an option's value as text; no value means the default."""
    return "default" if value is None else str(value)


def sort_key(config: RunConfig, axes: Sequence[str]) -> tuple[object, ...]:
    """Return a key that sorts runs by shared options, framework, knobs, workers and repeat.

    Values of options sort by size where they are numbers, then as text.
    """
    options = flat_options(config)

    def order(axis: str) -> tuple[int, float, str]:
        value = options.get(axis)
        if isinstance(value, int | float):
            return (1, float(value), "")
        return (0, 0.0, "") if value is None else (2, 0.0, str(value))

    shared = tuple(order(axis) for axis in axes if not is_knob(axis))
    knobs = tuple(order(axis) for axis in axes if is_knob(axis))
    return shared, ALL_FRAMEWORKS.index(config.framework), knobs, config.workers, config.repeat

"""Which options vary between runs: the axes of a study, as the records themselves tell them."""

from collections.abc import Hashable, Iterable, Sequence

from unet_scaling.study.config import FRAMEWORKS, RunConfig
from unet_scaling.study.options import TABLES
from unet_scaling.study.record_lines import Header
from unet_scaling.study.validation import flat_values

SHARED_TABLES = ("data", "model", "training")
# They guard a run against its end, and change neither what is computed nor what the clock of an epoch covers.
GUARDS = ("training.checkpoint_minutes", "training.timeout_seconds")
# They name a place; what lies there is told by its checksum.
DATA_PLACES = ("data.folder", "data.manifest")
WEIGHTS_PLACE = "training.initial_weights"
OPERATIONAL = (*GUARDS, *DATA_PLACES, WEIGHTS_PLACE)


def flat_options(config: RunConfig) -> dict[str, object]:
    """Every option of a point as {"training.precision": "fp32", ...}, its framework's own knobs included."""
    knobs = getattr(config, config.framework) or TABLES[config.framework]()
    return shared_options(config) | flat_values(knobs, f"{config.framework}.")


def shared_options(config: RunConfig) -> dict[str, object]:
    """The options that both frameworks have."""
    options: dict[str, object] = {}
    for table in SHARED_TABLES:
        options |= flat_values(getattr(config, table), f"{table}.")
    return options


def compared_configs(headers: Sequence[Header]) -> list[RunConfig]:
    """Return the points of runs with equal operational options, so that they alone separate no runs.

    Places of equal content become the first of them. An operational option is kept where runs that differ
    in nothing else would otherwise be the same repeat of one point: then a study varies it on purpose.
    """
    configs = [header.config for header in headers]
    if not set(varying(configs)) & set(OPERATIONAL):
        return configs
    return _without(_varied_on_purpose(configs, _without(OPERATIONAL, headers)), headers)


def with_common_places(config: RunConfig, compared: Sequence[RunConfig]) -> RunConfig:
    """Return the point of a run without header, with the operational options all compared runs share."""
    if not compared:
        return config
    varied = varying(compared)
    shared = [key.split(".") for key in OPERATIONAL if key not in varied]
    tables = {
        table: getattr(config, table).model_copy(
            update={key: getattr(getattr(compared[0], table), key) for found, key in shared if found == table}
        )
        for table in ("data", "training")
    }
    return config.model_copy(update=tables)


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
    places: dict[Hashable, RunConfig] = {}
    found = []
    for header in headers:
        config = header.config
        training: dict[str, object] = {}
        data: dict[str, object] = {}
        for key in set(GUARDS) & set(left_out):
            name = key.partition(".")[2]
            training[name] = type(config.training).model_fields[name].default
        if DATA_PLACES[0] in left_out:
            first = places.setdefault(("data", header.manifest_sha256), config)
            data = {"folder": first.data.folder, "manifest": first.data.manifest}
        if WEIGHTS_PLACE in left_out and config.training.initial_weights is not None:
            first = places.setdefault(("weights", header.initial_weights_sha256), config)
            training["initial_weights"] = first.training.initial_weights
        found.append(
            config.model_copy(
                update={
                    "data": config.data.model_copy(update=data),
                    "training": config.training.model_copy(update=training),
                }
            )
        )
    return found


def is_knob(key: str) -> bool:
    """Whether a flat key belongs to one framework only."""
    return key.partition(".")[0] in FRAMEWORKS


def varying(configs: Sequence[RunConfig]) -> tuple[str, ...]:
    """The axes: flat keys that have more than one value among the points that have the key."""
    values: dict[str, set[object]] = {}
    for config in configs:
        for key, value in flat_options(config).items():
            values.setdefault(key, set()).add(value)
    return tuple(key for key, found in values.items() if len(found) > 1)


def label(config: RunConfig, axes: Iterable[str]) -> str:
    """What distinguishes this point, for people: "precision=bf16, compile=True", or nothing."""
    options = flat_options(config)
    return ", ".join(f"{axis.partition('.')[2]}={shown(options[axis])}" for axis in axes if axis in options)


def labels(config: RunConfig, axes: Iterable[str]) -> tuple[str, str]:
    """What distinguishes it in options that both frameworks have, and in knobs of its own framework."""
    axes = list(axes)
    shared, knobs = [axis for axis in axes if not is_knob(axis)], [axis for axis in axes if is_knob(axis)]
    return label(config, shared), label(config, knobs)


def shown(value: object) -> str:
    """An option's value as text; no value means the default."""
    return "default" if value is None else str(value)


def order(config: RunConfig, axes: Iterable[str]) -> tuple[tuple[int, float, str], ...]:
    """Sorts points by the values of their axes: numbers by size, then text."""
    options = flat_options(config)
    return tuple(_order_of(options.get(axis)) for axis in axes)


def _order_of(value: object) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return (1, float(value), "")
    return (0, 0.0, "") if value is None else (2, 0.0, str(value))

"""Which options vary between runs: the axes of a study, as the records themselves tell them."""

from collections.abc import Iterable, Sequence

from unet_scaling.config import FRAMEWORKS, Point
from unet_scaling.options import TABLES
from unet_scaling.validation import Section

SHARED_TABLES = ("data", "model", "training")


def flat_options(point: Point) -> dict[str, object]:
    """Every option of a point as {"training.precision": "fp32", ...}, its framework's own knobs included."""
    knobs = getattr(point, point.framework) or TABLES[point.framework]()
    return shared_options(point) | _flat(point.framework, knobs)


def shared_options(point: Point) -> dict[str, object]:
    """The options that both frameworks have."""
    options: dict[str, object] = {}
    for table in SHARED_TABLES:
        options |= _flat(table, getattr(point, table))
    return options


def _flat(table: str, section: Section) -> dict[str, object]:
    """The values of one table, all of them plain: as model_dump gives them, but ten times as fast."""
    return {f"{table}.{key}": value for key, value in vars(section).items()}


def is_knob(key: str) -> bool:
    """Whether a flat key belongs to one framework only."""
    return key.partition(".")[0] in FRAMEWORKS


def varying(points: Sequence[Point]) -> tuple[str, ...]:
    """The axes: flat keys that have more than one value among the points that have the key."""
    values: dict[str, set[object]] = {}
    for point in points:
        for key, value in flat_options(point).items():
            values.setdefault(key, set()).add(value)
    return tuple(key for key, found in values.items() if len(found) > 1)


def label(point: Point, axes: Iterable[str]) -> str:
    """What distinguishes this point, for people: "precision=bf16, compile=True", or nothing."""
    options = flat_options(point)
    return ", ".join(f"{axis.partition('.')[2]}={shown(options[axis])}" for axis in axes if axis in options)


def labels(point: Point, axes: Iterable[str]) -> tuple[str, str]:
    """What distinguishes it in options that both frameworks have, and in knobs of its own framework."""
    axes = list(axes)
    shared, knobs = [axis for axis in axes if not is_knob(axis)], [axis for axis in axes if is_knob(axis)]
    return label(point, shared), label(point, knobs)


def shown(value: object) -> str:
    """An option's value as text; no value means the default."""
    return "default" if value is None else str(value)


def order(point: Point, axes: Iterable[str]) -> tuple[tuple[int, float, str], ...]:
    """Sorts points by the values of their axes: numbers by size, then text."""
    options = flat_options(point)
    return tuple(_order_of(options.get(axis)) for axis in axes)


def _order_of(value: object) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return (1, float(value), "")
    return (0, 0.0, "") if value is None else (2, 0.0, str(value))

"""Which options vary between runs: the axes of a study, as the records themselves tell them."""

from collections.abc import Iterable, Sequence

from unet_scaling.config import FRAMEWORKS, TABLES, Point

SHARED_TABLES = ("data", "model", "training")


def flat_options(point: Point) -> dict[str, object]:
    """Every option of a point as {"training.precision": "fp32", ...}, its framework's own knobs included."""
    tables = {table: getattr(point, table) for table in SHARED_TABLES}
    tables[point.framework] = getattr(point, point.framework) or TABLES[point.framework]()
    return {
        f"{table}.{key}": value
        for table, section in tables.items()
        for key, value in section.model_dump().items()
    }


def shared_options(point: Point) -> dict[str, object]:
    """The options that both frameworks have."""
    return {key: value for key, value in flat_options(point).items() if not is_knob(key)}


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

"""Say what is wrong with the values of a file: key, value found, values allowed, the nearest known name."""

import difflib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from unet_scaling.study.keys import NAME_ITSELF, Shape, allowed, choices, shape_at, table_at, written_by_users

# As characters of a value that is shown.
LONGEST_SHOWN = 80
# How alike two names have to be, from 0 to 1, for one to be taken for a slip of the other.
NEAR = 0.6
# Where pydantic names which branch it took of "a value or a list of them", or of "a number or words".
BRANCHES = ("value", "axis", "number", "words")


def fault_lines(model: type[BaseModel], error: ValidationError) -> list[str]:
    """Return a line for each fault of a content that should have been of this model."""
    return [_line(model, dict(fault)) for fault in error.errors()]


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return "did you mean ...? " with the known name nearest to this one; empty where none is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
    return f"did you mean {near[0]}? " if near else ""


def _line(model: type[BaseModel], fault: dict[str, Any]) -> str:
    path = [part for part in fault["loc"] if part not in BRANCHES]
    key = _dotted([part for part in path if part != NAME_ITSELF])
    wrong = _what_is_wrong(model, path, fault)
    return f"{key}: {wrong}" if key else wrong


def _dotted(path: Sequence[str | int]) -> str:
    """Return a path as `training.epochs` or `workers[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _what_is_wrong(model: type[BaseModel], path: Sequence[str | int], fault: dict[str, Any]) -> str:
    kind = fault["type"]
    if kind == "extra_forbidden":
        return _unknown_key(model, path)
    if kind == "value_error":  # raised by a validator of our own, which names the value
        return str(fault["msg"].removeprefix("Value error, "))
    if kind == "too_short":
        return f"found {_shown(fault['input'])}; at least one value is needed"
    found = shape_at(model, path) or Shape(())
    wanted = f"allowed: {allowed(found)}" if allowed(found) else str(fault["msg"])
    return f"missing; {wanted}" if kind == "missing" else _wrong_value(fault["input"], found, wanted)


def _wrong_value(value: object, found: Shape, wanted: str) -> str:
    hint = did_you_mean(str(value), [str(choice) for choice in choices(found)])
    return f"found {_shown(value)}; {hint}{wanted}"


def _unknown_key(model: type[BaseModel], path: Sequence[str | int]) -> str:
    name = str(path[-1])
    table = table_at(model, path[:-1])
    known = sorted(_keys_of_users(table)) if table else []
    elsewhere = [key for key in _tables_with(model, name) if key != _dotted(path)]
    hint = f"did you mean {' or '.join(elsewhere)}? " if elsewhere else did_you_mean(name, known)
    return f"unknown key; {hint}known here: {', '.join(known)}"


def _keys_of_users(table: type[BaseModel]) -> list[str]:
    return [name for name, field in table.model_fields.items() if written_by_users(field)]


def _tables_with(model: type[BaseModel], name: str) -> Iterator[str]:
    """Yield the dotted keys of this name in the tables of a model."""
    for table in _keys_of_users(model):
        below = table_at(model, [table])
        if below is not None and name in below.model_fields:
            yield f"{table}.{name}"


def _shown(value: object) -> str:
    """Return a value as it stands in the file, a very long one cut."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."

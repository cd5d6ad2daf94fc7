"""Validate what files say: nothing coerced, no unknown key, errors that name the key.

Imported on login nodes: needs pydantic, but neither torch nor pandas.
"""

import argparse
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unet_scaling.study.errors import UserError

# A SHA-256, as hashlib writes it.
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class StrictModel(BaseModel):
    """Base of all models of files: immutable, nothing coerced, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


AnyModel = TypeVar("AnyModel", bound=StrictModel)
# What pydantic calls a number outside its range, and the words for the bounds.
OUT_OF_RANGE = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
RANGE_WORDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
LONGEST_SHOWN = 80


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None


def setting(text: str) -> tuple[str, object]:
    """Return `training.epochs=3` as ("training.epochs", 3): the value is TOML, or else a plain text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not TABLE.KEY=VALUE")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except ValueError:
        return key, tomllib.loads(f"value = {json.dumps(value)}")["value"]


def positive(text: str) -> int:
    """Return a number of at least 1 from the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a number of at least 1")
    return int(text)


def flat_values(model: StrictModel, prefix: str = "") -> dict[str, object]:
    """Return the values of a model by dotted keys; ten times as fast as `model_dump`."""
    values: dict[str, object] = {}
    for key, value in vars(model).items():
        if isinstance(value, StrictModel):
            values |= flat_values(value, f"{prefix}{key}.")
        else:
            values[prefix + key] = value
    return values


def validated(model: type[AnyModel], content: object, source: str) -> AnyModel:
    """Return `content` as a `model`; raises UserError with one line for each key that is wrong."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        lines = [_explain(model, dict(fault)) for fault in error.errors()]
        raise UserError(f"{source}: " + "\n       ".join(lines)) from None


def _explain(model: type[StrictModel], fault: dict[str, Any]) -> str:
    keys = [str(key) for key in fault["loc"]]
    return f"{'.'.join(keys) or 'file'}: {_what_is_wrong(model, keys, fault)}"


def _what_is_wrong(model: type[StrictModel], keys: list[str], fault: dict[str, Any]) -> str:
    kind = fault["type"]
    if kind == "extra_forbidden":
        return f"unknown key; known here: {', '.join(sorted(_table(model, keys[:-1]).model_fields))}"
    if kind == "missing":
        return "missing"
    if kind == "value_error":  # raised by a validator of our own, which names the value
        return str(fault["msg"].removeprefix("Value error, "))
    limits = _limits(model, keys) if kind in OUT_OF_RANGE else ""
    return f"found {_shown(fault['input'])}; " + (f"allowed: {limits}" if limits else fault["msg"])


def _shown(value: object) -> str:
    """Return a value as it stands in the file, a very long one cut."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _limits(model: type[StrictModel], keys: list[str]) -> str:
    """Return the range that the number at this path has to be in, as text; empty where it has none."""
    *tables, name = (key for key in keys if not key.isdigit())
    field = _table(model, tables).model_fields[name]
    bounds = [*field.metadata, *_bounds(field.annotation)]
    limits = {kind: getattr(bound, kind) for bound in bounds for kind in RANGE_WORDS if hasattr(bound, kind)}
    return ", ".join(f"{words} {limits[kind]}" for kind, words in RANGE_WORDS.items() if kind in limits)


def _bounds(annotation: object) -> Iterator[object]:
    """Yield the constraints inside a type such as `list[Annotated[int, Field(ge=1)]]`."""
    for constraint in getattr(annotation, "__metadata__", ()):
        yield from getattr(constraint, "metadata", [constraint])
    for part in get_args(annotation):
        yield from _bounds(part)


def _table(model: type[StrictModel], tables: list[str]) -> type[StrictModel]:
    """Return the model of the table at this path."""
    for table in tables:
        annotation = model.model_fields[table].annotation
        kinds = (annotation, *get_args(annotation))
        model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, StrictModel))
    return model

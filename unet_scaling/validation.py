"""Configuration that is checked as it is read: nothing coerced, no unknown key, errors that name the key.

Imported on login nodes: needs pydantic, but neither torch nor pandas.
"""

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from unet_scaling.errors import UserError


class Section(BaseModel):
    """A table of the study: immutable, nothing coerced, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


AnySection = TypeVar("AnySection", bound=Section)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None


def setting(text: str) -> tuple[str, object]:
    """`training.epochs=3` as ("training.epochs", 3): the value is TOML, or else a plain text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not TABLE.KEY=VALUE")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, tomllib.loads(f"value = {json.dumps(value)}")["value"]


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
    for table in tables:
        annotation = model.model_fields[table].annotation
        kinds = (annotation, *get_args(annotation))
        model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section))
    return sorted(model.model_fields)

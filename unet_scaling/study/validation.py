"""Validate what files say: nothing coerced, no unknown key, errors that name the key.

Imported on login nodes: needs pydantic, but neither torch nor pandas.
"""

import argparse
import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unet_scaling.study.errors import UserError
from unet_scaling.study.keys import fault_lines
from unet_scaling.study.texts import did_you_mean

# A SHA-256, as hashlib writes it.
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class StrictModel(BaseModel):
    """Base of all models of files: immutable, nothing coerced, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


AnyModel = TypeVar("AnyModel", bound=StrictModel)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raises UserError that says why it cannot be read."""
    try:
        return tomllib.loads(_text_of(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}: line {line} is not UTF-8, as TOML has to be; save it as UTF-8") from None
    except FileNotFoundError:
        near = did_you_mean(str(path), [str(file) for file in path.parent.glob(f"*{path.suffix}")])
        raise UserError(f"{path} does not exist{'; ' if near else ''}{near}".rstrip()) from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; name a TOML file in it") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


# As in "2,repeats=1": meant for two keys.
ANOTHER_SETTING = re.compile(r",\s*[a-z_.]+=")


def setting(text: str) -> tuple[str, object]:
    """Return `training.epochs=3` as ("training.epochs", 3): the value is TOML, or else a plain text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not TABLE.KEY=VALUE")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        if ANOTHER_SETTING.search(value):
            raise argparse.ArgumentTypeError(
                f"{text!r}: repeat the option for each key, or quote a text"
            ) from None
        return key, tomllib.loads(f"value = {json.dumps(value)}")["value"]


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the option that replaces values of a study."""
    what = "replace a value of the study, e.g. training.epochs=3 (may be repeated)"
    parser.add_argument(
        "--set", action="append", default=[], type=setting, metavar="TABLE.KEY=VALUE", help=what
    )


def positive(text: str) -> int:
    """Return a number of at least 1 from the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a number of at least 1")
    return int(text)


def counts(text: str) -> list[int]:
    """Return the worker counts of "8,14", ascending, from the command line."""
    words = [word.strip() for word in text.split(",")]
    found = sorted({int(word) for word in words if word.isdecimal()})
    if len(found) < len(words) or found[0] < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: different numbers, such as 1,2,8")
    return found


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
        raise UserError(user_message(source, fault_lines(model, error))) from None


def user_message(source: str, lines: Iterable[str]) -> str:
    """Return the text of an error that lists what is wrong with a file, each fault once."""
    return f"{source}: " + "\n       ".join(dict.fromkeys(lines))

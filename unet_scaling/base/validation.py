"""Validate what files say, and describe their keys by the JSON Schema of their model.

Nothing is coerced, no key unknown. Errors, docs/study.md and `unet-scaling explain` say the same of a key.
"""

import argparse
import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema

from unet_scaling.base.errors import UserError
from unet_scaling.base.files import read_given
from unet_scaling.base.texts import did_you_mean

Schema = dict[str, Any]
# A value, and values, of each type as sentences name them.
TYPE_WORDS = {
    "integer": ("an integer", "integers"),
    "number": ("a number", "numbers"),
    "string": ("a text", "texts"),
    "boolean": ("true or false", "values of true or false"),
    "object": ("a table", "tables"),
}
# Keys by the names that other programs have for them.
OTHER_NAMES = {
    "modules": "prologue", "module": "prologue", "walltime": "time", "nodes": "max_nodes",
    "queue": "partition", "gpus": "gpus_per_node", "cpus_per_task": "cores_per_worker", "qos": "options",
    "mem": "options", "memory": "options", "constraint": "options", "reservation": "options",
    "nodelist": "options", "batch_size": "batch_per_worker", "batch": "batch_per_worker",
    "lr": "learning_rate", "amp": "precision", "num_workers": "loader_workers",
}  # fmt: skip
# What has no key, and what there is in its place.
WITHOUT_KEY = {
    "optimizer": "the U-Net is trained by Adam; a task of your own may bring another: docs/your_model.md"
}
# Values by the names that others have for them.
OTHER_VALUES = {"mpirun": "mpiexec", "ddp": "pytorch_native", "float32": "fp32", "bfloat16": "bf16"}
LIMIT_WORDS = {
    "exclusiveMinimum": "more than {}",
    "minimum": "at least {}",
    "exclusiveMaximum": "less than {}",
    "maximum": "at most {}",
    "maxLength": "at most {} characters",
}
# The last part of the path of a fault that lies in the name of a key, not in its value.
NAME_ITSELF = "[key]"
# Characters of a value in a message.
LONGEST_SHOWN = 80
# A SHA-256, as hashlib writes it.
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class StrictModel(BaseModel):
    """Base of all models of files: immutable, nothing coerced, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


AnyModel = TypeVar("AnyModel", bound=StrictModel)


def read_toml(path: Path, supplied: Path | None = None) -> dict[str, Any]:
    """Return the content of a TOML file; raises UserError that says why it cannot be read.

    `supplied` is the folder of the project's own files of this kind, which reports name without it.
    """
    try:
        return tomllib.loads(read_given(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n"))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}: line {line} is not UTF-8, as TOML has to be; save it as UTF-8") from None
    except FileNotFoundError:
        near = did_you_mean(str(path), [str(file) for file in path.parent.glob(f"*{path.suffix}")])
        if supplied and (supplied / path.name).is_file():
            near = f"did you mean {os.path.relpath(supplied / path.name)}?"
        raise UserError(
            f"{path} does not exist; {near or f'TOML files there: {_toml_files(path.parent)}'}".rstrip()
        ) from None
    except IsADirectoryError:
        if any(path.glob("*/run.jsonl")):
            meant = f"is where the study's runs are; name its file, {path.name}.toml"
            raise UserError(f"{path} {meant}") from None
        raise UserError(f"{path} is a folder; name a TOML file in it: {_toml_files(path)}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; name a TOML file") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}{_toml_cure(str(error))}") from None


# What helps, by what the parser says.
TOML_CURES = {
    "Invalid value": "texts stand in quotes, true and false in lower case",
    "Cannot overwrite": "the key is there twice; leave one out",
    "Unclosed array": "close it with ]",
    "Expected '='": "write key = value",
    "end of a table": "write [table]",
}


def _toml_cure(said: str) -> str:
    cures = (cure for words, cure in TOML_CURES.items() if words in said)
    return f"; {next(cures, 'correct it')}"


def _toml_files(folder: Path) -> str:
    return ", ".join(sorted(file.name for file in folder.glob("*.toml"))) or "none"


# Matches "2,repeats=1", which is meant for two keys.
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
        if value.startswith("["):
            texts = [word.strip() for word in value.strip("[]").split(",")]
            cure = shlex.quote(f"{key}={as_toml(texts)}")
            raise argparse.ArgumentTypeError(f"found {text}; a shell takes quotes away: {cure}") from None
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
        raise argparse.ArgumentTypeError(
            f"found {text!r}; allowed: different numbers of at least 1, such as 1,2,8"
        )
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


@dataclass(frozen=True)
class Allowed:
    """Words for a constraint of a type that would else be shown as a regular expression."""

    words: str

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        return handler(core) | {"words": self.words}


@dataclass(frozen=True)
class Key:
    """A key of a file, with its default and a line that sets it, both as TOML writes them."""

    table: str
    name: str
    allowed: str
    default: str | None
    required: bool
    meaning: str
    example: str

    @property
    def dotted(self) -> str:
        return f"{self.table}.{self.name}".removeprefix(".")


@cache
def described(model: type[BaseModel]) -> Schema:
    """Return the JSON Schema of a file, with what it refers to in place of each reference."""
    schema = model.model_json_schema()
    return dict(_resolved(schema, schema.get("$defs", {})))


def _resolved(content: Any, definitions: Schema) -> Any:  # noqa: ANN401  (the same kind of JSON)
    if isinstance(content, list):
        return [_resolved(each, definitions) for each in content]
    if not isinstance(content, dict):
        return content
    if "$ref" in content:
        content = definitions[content["$ref"].rpartition("/")[2]] | content
    return {
        key: _resolved(each, definitions) for key, each in content.items() if key not in ("$ref", "$defs")
    }


def keys(model: type[BaseModel]) -> list[Key]:
    """Return the keys of a file in the order of its model, those outside of tables first."""
    tables = {"": described(model)}
    tables |= {name: each for name, each in tables[""]["properties"].items() if "properties" in each}
    return [
        _key(table, name, each, name in schema.get("required", ()))
        for table, schema in tables.items()
        for name, each in schema["properties"].items()
        if table or name not in tables
    ]


def _key(table: str, name: str, schema: Schema, required: bool) -> Key:
    default = schema.get("default")
    # Without an example of its own, another choice than the default shows more than the default.
    values = choices(schema) or ([True, False] if allowed(schema) == TYPE_WORDS["boolean"][0] else [])
    other = next((value for value in values if value != default), default)
    example = schema.get("examples", [other])[0]
    return Key(
        table=table,
        name=name,
        allowed=allowed(schema),
        default=as_toml(default),
        required=required,
        meaning=schema.get("description", ""),
        example="" if example is None else f"{name} = {as_toml(example)}",
    )


def branches(schema: Schema) -> list[Schema]:
    """Return the alternatives of a schema, each without any; null, which TOML cannot write, is left out."""
    inner = schema.get("anyOf") or schema.get("oneOf")
    if inner:
        return [branch for each in inner for branch in branches(each)]
    return [] if schema.get("type") == "null" else [schema]


def choices(schema: Schema) -> list[Any]:
    """Return the values that a schema allows, where it lists them."""
    return [
        value
        for each in branches(schema)
        for value in each.get("enum", [each["const"]] if "const" in each else ())
    ]


def allowed(schema: Schema) -> str:
    """Return the values that a schema allows, in words; empty where they cannot be said."""
    # An axis is a value or a list of such values, which is not said each time.
    found = branches(schema)
    found = [each for each in found if each.get("type") != "array"] or found
    kinds = dict.fromkeys(filter(None, map(_words, found)))
    return ", ".join([" or ".join(kinds), *_limits(found)]) if kinds else ""


def _words(schema: Schema) -> str:
    if "words" in schema:
        return str(schema["words"])
    values = [repr(value) for value in choices(schema)]
    if values:
        return " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))
    if schema.get("type") == "array":
        return f"a list of {_item_words(schema['items'])}"
    return TYPE_WORDS.get(schema.get("type", ""), ("", ""))[0]


def _item_words(items: Schema) -> str:
    if "words" in items:
        return f"texts, each {items['words']}"
    kind = allowed(items) if choices(items) else TYPE_WORDS.get(items.get("type", ""), ("", "values"))[1]
    return ", ".join([kind, *_limits([items])])


def _limits(found: Sequence[Schema]) -> list[str]:
    limits = {name: each[name] for each in found for name in LIMIT_WORDS if name in each}
    return [text.format(limits[name]) for name, text in LIMIT_WORDS.items() if name in limits]


def as_toml(value: object) -> str | None:
    """Return a value as TOML writes it; None, which TOML has no word for, stays None."""
    if isinstance(value, dict):
        names = {key: key if re.fullmatch(r"[\w-]+", key, re.ASCII) else as_toml(key) for key in value}
        pairs = ", ".join(f"{names[key]} = {as_toml(each)}" for key, each in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(str(as_toml(each)) for each in value)}]"
    # TOML wants DEL escaped, which JSON does not.
    return None if value is None else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def fault_lines(model: type[BaseModel], error: ValidationError) -> list[str]:
    """Return a line for each fault of a content that should have been of this model."""
    return [_line(described(model), dict(fault)) for fault in error.errors()]


def _line(schema: Schema, fault: dict[str, Any]) -> str:
    path = list(fault["loc"])
    unknown = [path.pop()] if fault["type"] == "extra_forbidden" else []
    parts: list[str] = []
    found = parent = schema
    for part in path:
        below = next(filter(None, (_below(branch, part) for branch in branches(found))), None)
        if part == NAME_ITSELF:
            found = parent.get("propertyNames", {})
        elif below is not None:
            parent, found = found, below
            parts.append(f"[{part}]" if isinstance(part, int) else f".{part}")
        elif "properties" in found or not found:  # a key that no file holds, such as one that another sets
            found = {}
            parts.append(f".{part}")
        # Else no part of the file, but which branch of a union pydantic took.
    place = "".join(parts).removeprefix(".")
    key = ".".join(filter(None, [place, *unknown]))
    wrong = _unknown_key(schema, found, place, *unknown) if unknown else _what_is_wrong(found, fault)
    return f"{key}: {wrong}" if key else wrong


def _below(schema: Schema, part: str | int) -> Schema | None:
    """Return the schema of a value in a list or table; None where there is none of this place or name."""
    if isinstance(part, int):
        return schema.get("items")
    named = [schema.get("properties", {}).get(part), *schema.get("patternProperties", {}).values()]
    return next(
        (each for each in (*named, schema.get("additionalProperties")) if isinstance(each, dict)), None
    )


def _properties(schema: Schema) -> Schema:
    """Return the keys of a table, also of one that may be absent."""
    return {name: key for each in branches(schema) for name, key in each.get("properties", {}).items()}


def _unknown_key(schema: Schema, table: Schema, place: str, name: str) -> str:
    known = _properties(table)
    tables = {other: _properties(each) for other, each in schema["properties"].items()}
    elsewhere = [f"{other}.{name}" for other, names in tables.items() if name in names]
    near = f"did you mean {' or '.join(elsewhere)}?" if elsewhere else did_you_mean(name, known)
    if OTHER_NAMES.get(name) in known:
        near = f"did you mean {OTHER_NAMES[name]}?"
    if name in WITHOUT_KEY:
        return f"unknown key; {WITHOUT_KEY[name]}"
    explained = " ".join(filter(None, ("unet-scaling explain", place, "lists those known")))
    return f"unknown key; {near or explained}".rstrip()


def _what_is_wrong(schema: Schema, fault: dict[str, Any]) -> str:
    text = repr(fault["input"])
    shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    if fault["type"] == "value_error":  # raised by a validator of our own, which names the value
        return str(fault["msg"].removeprefix("Value error, "))
    if fault["type"] == "too_short":
        return f"found {shown}; at least one value is needed"
    wanted = f"allowed: {allowed(schema)}" if allowed(schema) else str(fault["msg"])
    if fault["type"] == "missing":
        return f"missing; {wanted}"
    found = str(fault["input"])
    known = list(map(str, choices(schema)))
    meant = OTHER_VALUES.get(found.lower())
    hint = f"did you mean {meant}? " if meant in known else did_you_mean(found, known)
    return f"found {shown}; {hint or _as_another_type(schema, fault)}{wanted}"


def _as_another_type(schema: Schema, fault: dict[str, Any]) -> str:
    """Return how a value is written that is of another type than its key; empty where that is not clear."""
    found = fault["input"]
    types = {branch.get("type") for branch in branches(schema)}
    items = {branch.get("items", {}).get("type") for branch in branches(schema)}
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if "string" in types and is_number and not types & {"integer", "number"}:
        return f"write {as_toml(str(found))}; "
    if types & {"integer", "number"} and re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", str(found)):
        is_right = isinstance(found, str) and ("number" in types or found.lstrip("-").isdecimal())
        return f"write {found}; " if is_right else ""
    if "array" in types and (("string" in items) if isinstance(found, str) else is_number):
        return f"write {as_toml([found])}; "
    numbers = str(found).replace(",", " ").split()
    if "array" in types and "integer" in items and numbers and all(map(str.isdecimal, numbers)):
        return f"write {as_toml([int(number) for number in numbers])}; "
    return ""

"""Describe the keys of a file by its model: types, ranges, defaults, meaning and an example.

Errors, docs/study.md and `unet-scaling explain` say the same of a key, by these functions.
Imported on login nodes: needs pydantic, but neither torch nor pandas.
"""

import difflib
import json
import types
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema

# What a value of each type is called in sentences.
TYPE_WORDS = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}
LIST_WORDS = {int: "integers", float: "numbers", str: "texts", bool: "values of true or false"}
RANGE_WORDS = {"gt": "more than {}", "ge": "at least {}", "lt": "less than {}", "le": "at most {}"}
LENGTH_WORDS = {"max_length": "at most {} characters"}
# The last part of the path of a fault that lies in the name of a key, not in its value.
NAME_ITSELF = "[key]"
# As characters of a value that is shown.
LONGEST_SHOWN = 80
# How alike two names have to be, from 0 to 1, for one to be taken for a slip of the other.
NEAR = 0.6
# Where pydantic names which branch it took of "a value or a list of them", or of "a number or words".
BRANCHES = ("value", "axis", "number", "words")


@dataclass(frozen=True)
class Allowed:
    """Words for a constraint of a type that would else be shown as a regular expression."""

    words: str


@dataclass(frozen=True)
class Shape:
    """The types that a value may have, and the constraints on it."""

    types: tuple[Any, ...]
    constraints: tuple[object, ...] = ()

    def __add__(self, other: "Shape") -> "Shape":
        return Shape(self.types + other.types, self.constraints + other.constraints)


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


def shape(annotation: object) -> Shape:
    """Return the types and constraints inside an annotation; None, which TOML cannot write, is left out."""
    kind = get_origin(annotation)
    if kind is Annotated:
        inner, *constraints = get_args(annotation)
        return shape(inner) + Shape((), tuple(_flat(constraints)))
    if kind in (Union, types.UnionType):
        members = (shape(member) for member in get_args(annotation) if member is not types.NoneType)
        return sum(members, Shape(()))
    return Shape((annotation,))


def field_shape(field: FieldInfo) -> Shape:
    return shape(field.annotation) + Shape((), tuple(_flat(field.metadata)))


def _flat(constraints: Sequence[object]) -> Iterator[object]:
    for constraint in constraints:
        yield from constraint.metadata if isinstance(constraint, FieldInfo) else [constraint]


def shape_at(model: type[BaseModel], path: Sequence[str | int]) -> Shape | None:
    """Return the shape of the value at a path as pydantic names it, or None where the path leads nowhere."""
    found: Shape | None = Shape((model,))
    if path[-1:] == [NAME_ITSELF]:
        *path, _, _ = path
        return _name_shape(shape_at(model, path))
    for part in path:
        found = _below(found, part) if found else None
    return found


def _name_shape(parent: Shape | None) -> Shape | None:
    """Return the shape of the names in a table that may hold any."""
    names = (get_args(kind)[0] for kind in (parent.types if parent else ()) if get_origin(kind) is dict)
    return next(map(shape, names), None)


def _below(parent: Shape, part: str | int) -> Shape | None:
    for kind in parent.types:
        if isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
            return field_shape(kind.model_fields[str(part)])
        if get_origin(kind) is list and isinstance(part, int):
            return shape(get_args(kind)[0])
        if get_origin(kind) is dict:
            return shape(get_args(kind)[1])
    return parent if isinstance(part, int) else None


def table_at(model: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the model of the table at this path, or None where no table of known keys is there."""
    found = shape_at(model, path)
    kinds = found.types if found else ()
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def choices(found: Shape) -> tuple[Any, ...]:
    """Return the values that a shape allows, where it lists them."""
    return next((get_args(kind) for kind in found.types if get_origin(kind) is Literal), ())


def allowed(found: Shape) -> str:
    """Return the values that a shape allows, in words; empty where they cannot be said."""
    named = [constraint.words for constraint in found.constraints if isinstance(constraint, Allowed)]
    limits = [*_limits(found.constraints, RANGE_WORDS), *_limits(found.constraints, LENGTH_WORDS)]
    # Of a value that may also be a list of such values, an axis, the list is not said each time.
    single = [kind for kind in found.types if get_origin(kind) is not list]
    kinds = list(dict.fromkeys(filter(None, map(_type_words, single or found.types))))
    return ", ".join([" or ".join(named or kinds), *limits]) if named or kinds else ""


def _type_words(kind: object) -> str:
    if get_origin(kind) is Literal:
        return _listed([repr(value) for value in get_args(kind)])
    if get_origin(kind) is list:
        return _list_words(shape(get_args(kind)[0]))
    if get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return "a table"
    return TYPE_WORDS.get(kind, "") if isinstance(kind, type) else ""


def _list_words(element: Shape) -> str:
    names = [constraint.words for constraint in element.constraints if isinstance(constraint, Allowed)]
    if names:
        return f"a list of texts, each {names[0]}"
    if choices(element):
        return f"a list of {allowed(element)}"
    kind = LIST_WORDS.get(element.types[0], "values")
    return ", ".join([f"a list of {kind}", *_limits(element.constraints, RANGE_WORDS)])


def _listed(values: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))


def _limits(constraints: Sequence[object], words: dict[str, str]) -> list[str]:
    limits = {
        name: getattr(constraint, name)
        for constraint in constraints
        for name in words
        if getattr(constraint, name, None) is not None
    }
    return [text.format(limits[name]) for name, text in words.items() if name in limits]


def keys(model: type[BaseModel]) -> list[Key]:
    """Return the keys of a file in the order of its model, those outside of tables first."""
    tables = {
        name: table
        for name, field in model.model_fields.items()
        if (table := table_at(model, [name])) and written_by_users(field)
    }
    own = [
        _key("", name, field)
        for name, field in model.model_fields.items()
        if name not in tables and written_by_users(field)
    ]
    below = [
        _key(table, name, field)
        for table, table_model in tables.items()
        for name, field in table_model.model_fields.items()
        if written_by_users(field)
    ]
    return own + below


def written_by_users(field: FieldInfo) -> bool:
    """Return whether a file may hold this key; the value of another key sets those that it may not."""
    return not any(type(constraint) is SkipJsonSchema for constraint in field.metadata)


def _key(table: str, name: str, field: FieldInfo) -> Key:
    found = field_shape(field)
    return Key(
        table=table,
        name=name,
        allowed=allowed(found),
        default=None if field.is_required() else as_toml(field.default),
        required=field.is_required(),
        meaning=field.description or "",
        example=_example(name, field, found),
    )


def _example(name: str, field: FieldInfo, found: Shape) -> str:
    """Return a line that sets the key: to its own example, or else to another choice than the default.

    Empty where neither is there: a required key has to bring its example.
    """
    if field.examples:
        return f"{name} = {as_toml(field.examples[0])}"
    if field.is_required():
        return ""
    values = choices(found) or ((True, False) if bool in found.types else ())
    other = next((value for value in values if value != field.default), field.default)
    return f"{name} = {as_toml(other)}"


def as_toml(value: object) -> str | None:
    """Return a value as TOML writes it; None, which TOML has no word for, stays None."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{key} = {as_toml(each)}" for key, each in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    return None if value is None else json.dumps(value, ensure_ascii=False)


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

"""The model of a study file as it is written: an option is a value, or a list of values, an axis.

Imported on login nodes: needs pydantic, but neither torch nor pandas.
"""

from functools import cache
from typing import Annotated, Any, Union

from pydantic import AfterValidator, Discriminator, Field, Tag, create_model
from pydantic.fields import FieldInfo

from unet_scaling.study.config import LONGEST_NAME, PlainName, StudyConfig, no_value_twice
from unet_scaling.study.keys import Allowed, field_shape
from unet_scaling.study.options import OPTION_TABLES
from unet_scaling.study.repeats import PRECISION_WORDS, UNTIL
from unet_scaling.study.validation import StrictModel


@cache
def study_file_model(built_in: bool = True) -> type[StudyConfig]:
    """Return StudyConfig with its tables of options spelled out, for errors, the reference and editors.

    `built_in`: of a study of the built-in task, whose `[data]` is required.
    """
    tables: dict[str, Any] = {name: _table(name, built_in or name != "data") for name in OPTION_TABLES}
    return create_model(
        "StudyFile", __base__=StudyConfig, name=_optional_name(), repeats=_repeats(), **tables
    )


def _table(name: str, needed: bool) -> tuple[type[StrictModel], object]:
    table = OPTION_TABLES[name]
    required = needed and any(field.is_required() for field in table.model_fields.values())
    return _with_axes(table), Field(... if required else {}, description=table.__doc__)


def _optional_name() -> tuple[Any, Any]:
    field = StudyConfig.model_fields["name"]
    optional = Field(None, max_length=LONGEST_NAME, description=field.description, examples=field.examples)
    return PlainName | None, optional


def _repeats() -> tuple[Any, Any]:
    """Return the field that is a number, or the words that StudyConfig reads as `until`."""
    field = StudyConfig.model_fields["repeats"]
    number: Any = Annotated[(int, *field.metadata, Tag("number"))]
    words = Annotated[str, Field(pattern=UNTIL.pattern), Allowed(PRECISION_WORDS), Tag("words")]
    either = Annotated[number | words, Discriminator(_kind)]
    return either, Field(field.default, description=field.description, examples=["until 3 %"])


def _with_axes(table: type[StrictModel]) -> type[StrictModel]:
    """Return a table of options, each of which may be an axis."""
    fields: dict[str, Any] = {
        name: (_or_axis(field), _without_constraints(field)) for name, field in table.model_fields.items()
    }
    return create_model(table.__name__, __base__=StrictModel, __doc__=table.__doc__, **fields)


def _or_axis(field: FieldInfo) -> object:
    found = field_shape(field)
    one: Any = Union.__getitem__(found.types)  # as `Union[...]` of types that are known at run time only
    value: Any = Annotated[(one, *found.constraints, Tag("value"))]
    axis = Annotated[
        list[value],
        Field(min_length=1, json_schema_extra={"uniqueItems": True}),
        AfterValidator(no_value_twice),
        Tag("axis"),
    ]
    return Annotated[value | axis, Discriminator(_branch)]


def _without_constraints(field: FieldInfo) -> object:
    default = ... if field.is_required() else field.default
    return Field(default, description=field.description, examples=field.examples)


def _kind(value: object) -> str:
    return "words" if isinstance(value, str) else "number"


def _branch(value: object) -> str:
    return "axis" if isinstance(value, list) else "value"

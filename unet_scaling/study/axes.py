"""The model of a study file as it is written: an option is a value, or a list of values, an axis.

Imported on login nodes: needs pydantic, but neither torch nor pandas.
"""

from functools import cache
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, create_model
from pydantic.fields import FieldInfo

from unet_scaling.study.config import LONGEST_NAME, Distinct, PlainName, StudyConfig
from unet_scaling.study.options import OPTION_TABLES
from unet_scaling.study.validation import StrictModel


@cache
def study_file_model(built_in: bool = True) -> type[StudyConfig]:
    """Return StudyConfig with its tables of options spelled out, for errors, the reference and editors.

    `built_in`: of a study of the built-in task, whose `[data]` is required.
    """
    fields: dict[str, Any] = {}
    for name, table in OPTION_TABLES.items():
        options: Any = {key: (_or_axis(field), _field(field)) for key, field in table.model_fields.items()}
        with_axes: Any = create_model(table.__name__, __base__=StrictModel, __doc__=table.__doc__, **options)
        required = any(field.is_required() for field in table.model_fields.values())
        default: Any = ... if required and (built_in or name != "data") else {}
        fields[name] = (with_axes, Field(default, description=table.__doc__))
    # It may be left out of a file, whose own name it then is.
    name_field = _field(StudyConfig.model_fields["name"], default=None, max_length=LONGEST_NAME)
    return create_model("StudyFile", __base__=StudyConfig, name=(PlainName | None, name_field), **fields)


def _or_axis(field: FieldInfo) -> object:
    one: Any = Annotated[(field.annotation, *field.metadata, Tag("value"))]
    axis: Any = Annotated[Distinct[one], Tag("axis")]
    return Annotated[one | axis, Discriminator(lambda value: "axis" if isinstance(value, list) else "value")]


def _field(field: FieldInfo, **changes: Any) -> Any:  # noqa: ANN401  (a field, as create_model takes them)
    """Return the description of a field without its constraints."""
    default = ... if field.is_required() else field.default
    described: Any = {"default": default, "description": field.description, "examples": field.examples}
    return Field(**described | changes)

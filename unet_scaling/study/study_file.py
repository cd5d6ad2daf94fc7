"""Read study files and run configurations; the names of the files in a study and run folder."""

import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, ValidationError, create_model
from pydantic.fields import FieldInfo

from unet_scaling import CODE_FOLDER
from unet_scaling.base.errors import UserError, or_user_error, reason_of
from unet_scaling.base.files import parse_json, read_json_with_checksum, read_regular
from unet_scaling.base.texts import LAUNCH_HINT, did_you_mean
from unet_scaling.base.validation import StrictModel, fault_lines, read_toml, user_message, validated
from unet_scaling.study.config import (
    LONGEST_NAME,
    PROJECT,
    Distinct,
    PlainName,
    RunConfig,
    StudyConfig,
    task_file,
)
from unet_scaling.study.frameworks import OPTION_TABLES
from unet_scaling.study.options import BUILT_IN_TABLES, TASK_DATA_KEYS
from unet_scaling.study.repeats import HISTORY_KEY, PRECISION_WORDS

STUDY_NAME = "study.json"
CONFIG_NAME = "config.json"
_KEYS_OF_A_RUN = {"study", "run", "framework"}
JOB_NAME = "job.json"
OUTPUT_NAME = "output.log"
LOG_NAME = "log.csv"
PING_PONG_NAME = "ping_pong.json"
CHECKPOINTS = "checkpoint-*.pt"
# The key of study.json that a study file sets by the words of `repeats`.
SET_BY_REPEATS = "until"
PATH_KEYS = (
    ("data", "folder"),
    ("data", "manifest"),
    ("training", "initial_weights"),
    ("emulation", "compute"),
)


def read_study(path: Path, overrides: dict[str, Any] | None = None, name: str | None = None) -> StudyConfig:
    """Read a study file; `overrides` maps dotted keys ("training.epochs") to values.

    Paths may use ~ and variables, and are relative to the project's folder, that of a task to the study
    file's. Raises UserError that lists every unknown key and every value outside its range; then, of valid
    values, those that exclude each other.
    """
    content = read_toml(path, CODE_FOLDER / "slurm" / "studies")
    if "launcher" in content and "workers" not in content:
        raise UserError(f"{path} is a cluster file, which --cluster names; name a study file here")
    for key, value in (overrides or {}).items():
        _override(content, key, value, path)
    content["name"] = content.get("name", path.stem) if name is None else name
    _require_valid(content, str(path))
    content = _with_task_file(_with_absolute_paths(content), path)
    study = validated(StudyConfig, content, str(path))
    study.configs(str(path), first_repeat=study.repeats)  # right with the longest names, all are
    if left_out := study.left_out():
        told = "; ".join(left_out)
        print(f"{path}: [strategy]: left out, as no point of its own: {told}", file=sys.stderr)
    return study


def _require_valid(content: dict[str, Any], source: str) -> None:
    """Raise UserError that lists every fault of a study file, in its tables of options too."""
    built_in = not task_file(content)
    faults = [*_unset_variables(content), *_find_keys_of_built_in_task(content)]
    if SET_BY_REPEATS in content:
        found = f"{content[SET_BY_REPEATS]!r:.80}"
        cure = f"no key of a study file; give repeats {PRECISION_WORDS}"
        faults.insert(0, f"{SET_BY_REPEATS}: found {found}; {cure}")
    other = (SET_BY_REPEATS,) if built_in else (SET_BY_REPEATS, "data", *BUILT_IN_TABLES)
    model = study_file_model(built_in)
    try:
        model.model_validate({key: value for key, value in content.items() if key not in other})
    except ValidationError as error:
        faults = fault_lines(model, error) + faults
    if faults:
        raise UserError(user_message(source, faults))


def config_path(run_folder: Path) -> Path:
    """Return where the configuration of a run is, or is to be written."""
    return run_folder / CONFIG_NAME


def list_run_folders(study_folder: Path) -> list[Path]:
    """Return the folders of a study that hold a run configuration, by name."""
    _warn_of_writers(study_folder)
    return sorted(path.parent for path in study_folder.glob(f"*/{CONFIG_NAME}") if not is_of_others(path))


def is_of_others(config: Path) -> bool:
    """Return whether a config.json is not a run's, but such as a language model's; a damaged one may be."""
    try:
        return _has_no_key_of_a_run(parse_json(read_regular(config)))
    except (OSError, ValueError):
        return False


def _has_no_key_of_a_run(content: object) -> bool:
    return not (isinstance(content, dict) and _KEYS_OF_A_RUN & content.keys())


@cache
def _warn_of_writers(folder: Path) -> None:
    """Say, once, that anyone may write into a folder."""
    with suppress(OSError):
        if folder.stat().st_mode & stat.S_IWOTH:
            print(f"warning: {folder} may be written by anyone: chmod o-w {folder}", file=sys.stderr)


def read_config(path: Path) -> RunConfig:
    """Read a config.json; raises UserError where it is missing or not a valid configuration."""
    try:
        content = read_json_with_checksum(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; {LAUNCH_HINT} makes run folders") from None
    except (OSError, ValueError) as error:
        cure = f"rename the run's folder: {LAUNCH_HINT} makes it again"
        raise UserError(f"{path} cannot be read: {reason_of(error)}; {cure}") from None
    if _has_no_key_of_a_run(content):
        problem = f"{path} is no run's: it has no study, run and framework"
        raise UserError(f"{problem}; give the folder of a run, logs/STUDY/RUN")
    return validated(RunConfig, content, str(path))


def recorded_study(folder: Path) -> StudyConfig | None:
    """Return the study of this folder as it was last submitted; None where none was.

    Raises UserError where the file is not that of a study.
    """
    path = folder / STUDY_NAME
    try:
        content = read_json_with_checksum(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        problem = f"{path} cannot be read: {reason_of(error)}"
        raise UserError(f"{problem}; rename it: {LAUNCH_HINT} writes it again") from None
    if isinstance(content, dict):
        content.pop(HISTORY_KEY, None)
    return validated(StudyConfig, content, str(path))


def _override(content: dict[str, Any], dotted_key: str, value: object, path: Path) -> None:
    *tables, key = dotted_key.split(".")
    section: Any = content
    for number, table in enumerate(tables, start=1):
        section = section.setdefault(table, {})
        if not isinstance(section, dict):
            named = ".".join(tables[:number])
            raise UserError(
                f"{path}: {dotted_key}: {named} is no table, but {section!r}; give {named} itself a value"
            )
    section[key] = value


def _paths(content: dict[str, Any]) -> Iterator[tuple[str, str, list[object]]]:
    """Yield table, key and values of every option of a study file that is a path."""
    for table, key in PATH_KEYS:
        section = content.get(table)
        if isinstance(section, dict) and key in section:
            yield table, key, section[key] if isinstance(section[key], list) else [section[key]]


def _unset_variables(content: dict[str, Any]) -> Iterator[str]:
    for table, key, paths in _paths(content):
        for path in paths:
            if isinstance(path, str) and "$" in os.path.expandvars(path):
                yield f"{table}.{key}: found {path!r}, which names a variable that is not set; export it"


def _with_absolute_paths(content: dict[str, Any]) -> dict[str, Any]:
    for table, key, paths in _paths(content):
        absolute = [str(PROJECT / _expanded(str(path), f"{table}.{key}")) for path in paths]
        value = absolute if isinstance(content[table][key], list) else absolute[0]
        content = content | {table: content[table] | {key: value}}
    return content


def _expanded(text: str, key: str) -> Path:
    """Return a path with its variables and ~ replaced; UserError where there is no such user."""
    try:
        return Path(os.path.expandvars(text)).expanduser()
    except RuntimeError:
        raise UserError(f"{key}: found {text!r}, the home of a user that is not known here") from None


def _find_keys_of_built_in_task(content: dict[str, Any]) -> Iterator[str]:
    """Yield the keys that only the built-in task has, in a study that names another."""
    if not task_file(content):
        return
    for table in ("data", *BUILT_IN_TABLES):
        section = content.get(table, {})
        for key in section if isinstance(section, dict) else ():
            if table != "data" or key not in TASK_DATA_KEYS:
                yield (
                    f"{table}.{key}: is for the built-in U-Net, but task.file names a task of its own; "
                    f"remove it, or hand it to the task as task.options.{key}"
                )


def _with_task_file(content: dict[str, Any], source: Path) -> dict[str, Any]:
    """Return the content with the absolute path of the task's file, and its SHA-256."""
    named = task_file(content)
    if not named:
        return content
    path = source.resolve().parent / _expanded(named, f"{source}: task.file")
    facts = {"file": str(path), "sha256": task_sha256(path, f"{source}: task.file")}
    return content | {"task": content["task"] | facts}


def task_sha256(path: Path, key: str) -> str:
    """Return the SHA-256 of the file of a task; UserError that begins with `key` where it cannot be read."""
    near = did_you_mean(str(path), [str(file) for file in path.parent.glob("*.py")]).strip()
    with or_user_error(f"{key}: found {path}, which cannot be read", near or "name a Python file"):
        return hashlib.sha256(read_regular(path)).hexdigest()


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

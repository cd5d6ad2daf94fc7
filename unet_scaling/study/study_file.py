"""Read study files and run configurations; the names of the files in a study and run folder.

Imported on login nodes: needs pydantic, but neither torch nor pandas.
"""

import os
from pathlib import Path
from typing import Any

from unet_scaling.study.config import PROJECT, RunConfig, StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.files import read_json_with_checksum
from unet_scaling.study.validation import read_toml, validated

STUDY_NAME = "study.json"
CONFIG_NAME = "config.json"
# Its name before record format 5.
OLDER_CONFIG_NAME = "point.json"
JOB_NAME = "job.json"
OUTPUT_NAME = "output.log"
# First line of log.csv, in the layout of the older study; its first column has no name.
OLDER_LOG_HEADER = ",time_per_epoch,loss,lr,training_time,test_time,iou"
PING_PONG_NAME = "ping_pong.json"
CHECKPOINTS = "checkpoint-*.pt"
PATH_KEYS = (("data", "folder"), ("data", "manifest"), ("training", "initial_weights"))


def read_study(path: Path, overrides: dict[str, Any] | None = None, name: str | None = None) -> StudyConfig:
    """Read a study file; `overrides` maps dotted keys ("training.epochs") to values.

    Paths may use ~ and variables, and are relative to the project's folder. Raises UserError for a
    file that is no TOML, an unknown key, or a value outside its range.
    """
    content = read_toml(path)
    for key, value in (overrides or {}).items():
        _override(content, key, value, path)
    content["name"] = content.get("name", path.stem) if name is None else name
    study = validated(StudyConfig, _with_absolute_paths(content), str(path))
    study.configs(str(path))
    return study


def config_path(run_folder: Path) -> Path:
    """Return where the configuration of a run is, or is to be written; an older file keeps its name."""
    older = run_folder / OLDER_CONFIG_NAME
    newest = run_folder / CONFIG_NAME
    try:
        return older if older.exists() and not newest.exists() else newest
    except OSError:
        return newest  # reading it says why the folder may not be looked into


def list_run_folders(study_folder: Path) -> list[Path]:
    """Return the folders of a study that hold a run configuration, by name."""
    names = (CONFIG_NAME, OLDER_CONFIG_NAME)
    return sorted({path.parent for name in names for path in study_folder.glob(f"*/{name}")})


def read_config(path: Path) -> RunConfig:
    """Read a config.json; raises UserError where it is missing or not a valid configuration."""
    try:
        content = read_json_with_checksum(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; slurm/submission.sh makes run folders") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
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
        raise UserError(
            f"{path} cannot be read: {error}; remove it: slurm/submission.sh writes it again"
        ) from None
    if isinstance(content, dict) and "claims" in content:  # its name before record format 5
        content["criteria"] = content.pop("claims")
    return validated(StudyConfig, content, str(path))


def _override(content: dict[str, Any], dotted_key: str, value: object, path: Path) -> None:
    table, _, key = dotted_key.rpartition(".")
    section = content.setdefault(table, {}) if table else content
    if not isinstance(section, dict):
        raise UserError(
            f"{path}: {dotted_key}: {table} is no table, but {section!r}; give {table} itself a value"
        )
    section[key] = value


def _with_absolute_paths(content: dict[str, Any]) -> dict[str, Any]:
    for table, key in PATH_KEYS:
        section = content.get(table)
        if isinstance(section, dict) and key in section:
            value = section[key]
            paths = [_absolute(path) for path in value] if isinstance(value, list) else _absolute(value)
            content = content | {table: content[table] | {key: paths}}
    return content


def _absolute(path: object) -> object:
    if not isinstance(path, str):
        return path
    expanded = os.path.expandvars(path)
    if "$" in expanded:
        raise UserError(f"path {path!r} names a variable that is not set")
    return str(PROJECT / Path(expanded).expanduser())

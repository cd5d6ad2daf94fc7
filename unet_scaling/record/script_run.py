"""The run folder of a recorded script, and the header of its record."""

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from pydantic import BaseModel

from unet_scaling.group import provenance
from unet_scaling.group.group import Group
from unet_scaling.group.verification import own_facts
from unet_scaling.study import code_version
from unet_scaling.study.config import PLAIN_NAME, PLAIN_NAME_WORDS
from unet_scaling.study.dilation import dilation, is_dilated, link_rate
from unet_scaling.study.errors import UserError
from unet_scaling.study.record_lines import ScriptHeader, WorkerFacts
from unet_scaling.study.study_file import STUDY_NAME, list_run_folders
from unet_scaling.study.validation import validated

RunOptions = Mapping[str, str | bool | int | float]
# By it the run folders are told from those that a submission makes.
FOLDER_PREFIX = "script"
SOURCE = "record.begin"


@dataclass(frozen=True)
class RunArguments:
    """What a script says of its run; the same on all its workers."""

    study: str
    framework: str
    options: RunOptions


class _Introduction(BaseModel):
    """What one worker tells the others: facts in which all must agree, and its own."""

    common: dict[str, str]
    facts: WorkerFacts


def introduce_workers(group: Group, arguments: RunArguments) -> list[WorkerFacts]:
    """Return the facts of all workers, by rank; UserError on all alike where they record different runs."""
    common = {
        "study": arguments.study,
        "framework": arguments.framework,
        "options": json.dumps(dict(arguments.options), sort_keys=True, default=str),
        "script": _script()[1] or "",
    }
    facts = own_facts(group.identity, group.device, provenance.speed_variables())
    own = _Introduction(common=common, facts=facts).model_dump_json()
    workers = list(map(_Introduction.model_validate_json, group.gather_strings(own)))
    for worker in workers:
        _require_same(workers[0], worker)
    return [worker.facts for worker in workers]


def _require_same(first: _Introduction, other: _Introduction) -> None:
    for name, value in first.common.items():
        if other.common[name] != value:
            values = f"{value!r} on worker 0, {other.common[name]!r} on worker {other.facts.worker}"
            raise UserError(f"{SOURCE}: {name}: found {values}; call it alike on every worker")


def script_header(arguments: RunArguments, group: Group, workers: list[WorkerFacts]) -> ScriptHeader:
    """Return the header of the first repeat; UserError where an argument is wrong."""
    if not re.fullmatch(PLAIN_NAME, arguments.study):
        raise UserError(f"{SOURCE}: study: found {arguments.study!r}; allowed: {PLAIN_NAME_WORDS}")
    script, sha256 = _script()
    commit, dirty = code_version.commit(Path(script).parent) if script else (None, None)
    content = {
        "framework": arguments.framework,
        "repeat": 1,
        "script": Path(script).name,
        "script_sha256": sha256,
        "options": dict(arguments.options),
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "versions": provenance.versions(),
        "transport": group.transport,
        "job": provenance.job(),
        "dilation": dilation() if is_dilated() else None,
        "link_rate": link_rate(),
        "workers": workers,
    }
    return validated(ScriptHeader, content, SOURCE)


def make_run_folder(study: Path, first: ScriptHeader) -> tuple[Path, ScriptHeader]:
    """Make the folder of this launch below that of the study; return it with the header of its repeat.

    Raises UserError where the study is one of the project's own runs, and where no folder can be made.
    """
    folder, repeat = _make_folder(study, first)
    return folder, first.model_copy(update={"repeat": repeat})


def _make_folder(study: Path, header: ScriptHeader) -> tuple[Path, int]:
    """Make the folder of the first repeat that has none; return it with the number of the repeat."""
    options = [f"{key}={value}" for key, value in header.options.items()]
    parts = [FOLDER_PREFIX, header.framework, f"w{len(header.workers):02d}", *options]
    name = re.sub(r"[^A-Za-z0-9.+=_-]+", "_", "-".join(parts))
    try:
        study.mkdir(parents=True, exist_ok=True)
        _require_no_other_runs(study)
        repeat = next(repeat for repeat in count(1) if _is_made(study / f"{name}-r{repeat}"))
    except OSError as error:
        raise UserError(f"{SOURCE}: no run folder can be made in {study}: {error}") from None
    return study / f"{name}-r{repeat}", repeat


def _is_made(folder: Path) -> bool:
    """Make a folder; return whether it was not there before."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def _require_no_other_runs(study: Path) -> None:
    """Raise UserError where the folder holds runs of the project's own training programs."""
    if (study / STUDY_NAME).exists() or list_run_folders(study):
        raise UserError(
            f"{SOURCE}: study: found {study.name!r}, but {study} holds runs that were submitted, with which "
            "those of another script are not compared; give another name"
        )


def _script() -> tuple[str, str | None]:
    """Return path and SHA-256 of the program that runs; empty and None where it was typed."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None or not Path(path).is_file():
        return "", None
    return str(Path(path).resolve()), hashlib.sha256(Path(path).read_bytes()).hexdigest()

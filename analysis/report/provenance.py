"""Where the runs of a report come from, and how to have them again: a study file put together from them."""

import json
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.facts import FACTS, values_of, version_facts
from analysis.findings.answer import NO_CLUSTER_FILE, is_of_slurm, study_file_name
from analysis.options import TASK_SWITCHES
from analysis.study import NAMES, Study
from analysis.text import clean, count, listed
from unet_scaling.study.config import ALL_FRAMEWORKS, PROJECT, SHARED_TABLES, TASK_OPTIONS, RunConfig
from unet_scaling.study.options import OPTION_TABLES, TaskOptions
from unet_scaling.study.study_file import PATH_KEYS
from unet_scaling.study.texts import PASTED

# More hosts or jobs than this fill the page without saying more.
MOST_SHOWN = 12
# Of a time in ISO 8601: 2025-01-31.
_DATE_LETTERS = 10
# Of what is trained; the built-in task has none of them.
TASK_TABLES = ("task", TASK_OPTIONS)
# The values of each (table, key) that is set, in the order of the runs.
Axes = Mapping[tuple[str, str], Sequence[object]]


def origins(study: Study) -> dict[str, tuple[str, ...]]:
    """Return every fact that the headers of the used runs tell, with its values; none of logs without."""
    found = [*study.headers.values(), *study.scripts.values()]
    if not found:
        return {}
    facts = [fact for fact in FACTS if study.headers or fact.group != "data"]
    # Scripts of Fabric and of the Trainer are one arm.
    fabric = NAMES["lightning"]
    named: dict[str, Iterable[str | None]] = {
        fact.title(found[0]).replace(fabric, study.names.get("lightning", fabric)): values_of(fact, found)
        for fact in (*facts, *version_facts({**study.headers, **study.scripts}))
    }
    named["scripts"] = [each.script or "typed" for each in study.scripts.values()]
    named["SHA-256 of the scripts"] = [each.script_sha256 or "not known" for each in study.scripts.values()]
    told = {clean(name): _distinct(values) for name, values in named.items() if values}
    told["Slurm jobs"] = _distinct(each.job.get("SLURM_JOB_ID") for each in found)
    return told | {"started (UTC)": _ends(each.started_utc for each in found)}


def origin_line(study: Study) -> str:
    """Return commit, hosts and days of the used runs in one sentence; empty for logs that carry none."""
    found = [*study.headers.values(), *study.scripts.values()]
    if not found:
        return ""
    code = count(len({each.commit for each in found}), "commit")
    hosts = count(len({worker.host for each in found for worker in each.workers}), "host")
    days = _ends(each.started_utc[:_DATE_LETTERS] for each in found)
    return f"{code}, {hosts}, {' to '.join(days)}."


def _distinct(values: Iterable[str | None]) -> tuple[str, ...]:
    """Return every value once, or the first and how many more there are: at most MOST_SHOWN lines and one."""
    texts = [clean(value) for value in dict.fromkeys(values) if value is not None]
    more = len(texts) - MOST_SHOWN
    # "and 1 other" would take the place of the value.
    return (*texts[:MOST_SHOWN], f"and {count(more, 'other')}") if more > 1 else tuple(texts)


def _ends(times: Iterable[str]) -> tuple[str, ...]:
    """Return the first and the last time."""
    ordered = sorted(set(times))
    return tuple(clean(time) for time in dict.fromkeys((ordered[0], ordered[-1])))


@dataclass(frozen=True)
class Reproduction:
    """A study file that gives the runs again, the commands, and what the file cannot say."""

    study_file: str
    commands: tuple[str, ...]
    remarks: tuple[str, ...]


def reproduction(study: Study) -> Reproduction | None:
    """Return the study file of the used runs and the commands; None for logs that carry no headers.

    The product of the file's axes may hold points that were not used here: runs that failed, or were
    refused. A remark says how many. Paths in the project are relative to it; others stay as they are, so that
    the file goes on with the runs, with a remark for other machines.
    """
    configs = [header.config for header in study.headers.values()]
    if not configs:
        return None
    axes = _axes(configs)
    file = study_file_name(study)
    again = f"submit {file} --cluster {NO_CLUSTER_FILE}" if is_of_slurm(study) else f"run {file}"
    commands = (f"{PASTED} {again}", f"{PASTED} report logs/{configs[0].study}")
    remarks = (*_remarks(configs, axes), *_places(study))
    asked = study.criteria.model_dump(exclude_defaults=True)
    criteria = {study.score.key(key): value for key, value in asked.items()}
    return Reproduction(_study_file(configs, axes, criteria), commands, remarks)


def study_file(study: Study) -> dict[str, bytes]:
    """Return the study file that the commands name, by its name; none for logs without headers."""
    again = reproduction(study)
    return {} if again is None else {study_file_name(study): again.study_file.encode()}


def _places(study: Study) -> Iterator[str]:
    """Yield what the commands and paths of this machine leave to the reader."""
    configs = [header.config for header in study.headers.values()]
    task = configs[0].task
    if task.file is not None:
        yield f"task.file has the SHA-256 {task.sha256}; elsewhere, give the path that it has there"
    if is_of_slurm(study):
        yield f"the records do not name the cluster file: {NO_CLUSTER_FILE} stands for yours"
    paths = {key: [getattr(getattr(config, key[0]), key[1]) for config in configs] for key in PATH_KEYS}
    outside = [f"{table}.{key}" for (table, key), each in paths.items() if any(map(_is_outside, each))]
    if outside:
        yield f"{listed(outside)}: the runs read a place outside the project; elsewhere, put your own there"


def _is_outside(path: str | Path | None) -> bool:
    """Return whether a path is that of a file or folder outside the project."""
    return path is not None and Path(path).is_absolute() and not Path(path).is_relative_to(PROJECT)


def _portable(path: str) -> str:
    """Return a path relative to the project, where it is in it."""
    return Path(path).relative_to(PROJECT).as_posix() if Path(path).is_relative_to(PROJECT) else path


def _axes(configs: Sequence[RunConfig]) -> Axes:
    values: dict[tuple[str, str], dict[object, None]] = {}
    for config in {config.model_copy(update={"run": "", "repeat": 1, "seed": 0}): None for config in configs}:
        for key, value in _options(config):
            values.setdefault(key, {}).setdefault(value)
    return {key: [*found] for key, found in values.items() if [*found] != [_default(*key)]}


def _options(config: RunConfig) -> Iterator[tuple[tuple[str, str], Hashable]]:
    """Return every option of a run, set or not, by table and key."""
    if config.task.file is not None:
        yield ("task", "file"), config.task.file
        for key in TASK_SWITCHES:
            if getattr(config.task, key) != TaskOptions.model_fields[key].default:
                yield ("task", key), getattr(config.task, key)
        yield from (((TASK_OPTIONS, key), value) for key, value in config.task.options.items())  # type: ignore[misc]
    for table in (*SHARED_TABLES, config.framework):
        options = getattr(config, table) or OPTION_TABLES[table]()
        for key, value in options.model_dump().items():
            is_path = (table, key) in PATH_KEYS and value is not None
            yield (table, key), _portable(value) if is_path else value


def _default(table: str, key: str) -> object:
    return None if table in TASK_TABLES else OPTION_TABLES[table].model_fields[key].default


def _study_file(configs: Sequence[RunConfig], axes: Axes, criteria: Mapping[str, object]) -> str:
    used = {config.framework for config in configs}
    frameworks = [framework for framework in ALL_FRAMEWORKS if framework in used]
    lines = [
        f"frameworks = {_toml(frameworks)}",
        f"workers = {_toml(sorted({config.workers for config in configs}))}",
        f"repeats = {max(config.repeat for config in configs)}",
        f"seed = {min(config.seed - config.repeat + 1 for config in configs)}",
    ]
    tables: dict[str, list[str]] = {
        name: [] for name in (*TASK_TABLES, *SHARED_TABLES, *frameworks, "criteria")
    }
    for (table, key), values in axes.items():
        known = [value for value in values if value is not None]
        tables[table].append(f"{key} = {_toml(known if len(values) > 1 else known[0])}")
    tables["criteria"] = [f"{key} = {_toml(value)}" for key, value in criteria.items()]
    for table, options in tables.items():
        lines += ["", f"[{table}]", *options] if options else []
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """Return a value in TOML; its strings, numbers and arrays are written as JSON writes them."""
    return json.dumps(value, ensure_ascii=True)


def _remarks(configs: Sequence[RunConfig], axes: Axes) -> Iterable[str]:
    unset = sorted(f"{table}.{key}" for (table, key), values in axes.items() if None in values)
    if unset:
        yield f"TOML cannot write a default in a list: run once more without {', '.join(unset)}"
    if len({config.seed - config.repeat for config in configs}) > 1:
        yield "the seeds do not count up with the repeats: more than one study file was used"
    # The product of the axes of each framework.
    points = sum(
        math.prod(
            len(values)
            for (table, _), values in axes.items()
            if table in (*TASK_TABLES, *SHARED_TABLES, framework)
        )
        for framework in {config.framework for config in configs}
    )
    repeats = max(config.repeat for config in configs)
    asked = points * len({config.workers for config in configs}) * repeats
    if asked > len(configs):
        yield f"the file asks for {asked} runs; {len(configs)} of them are used here"

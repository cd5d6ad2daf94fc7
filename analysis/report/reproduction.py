"""Reproduce a study: its file, put together from the records, and the commands."""

import json
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from analysis.study import Study
from unet_scaling.study.config import FRAMEWORKS, RunConfig
from unet_scaling.study.options import OPTION_TABLES, Criteria

SHARED = ("data", "model", "training")

# The values of each (table, key) that is set, in the order of the runs.
Axes = Mapping[tuple[str, str], Sequence[object]]


@dataclass(frozen=True)
class Reproduction:
    """A study file that gives the runs again, the commands, and what the file cannot say."""

    study_file: str
    commands: tuple[str, ...]
    remarks: tuple[str, ...]


def reproduction(study: Study) -> Reproduction | None:
    """Return the study file of the used runs; None for logs that carry no headers.

    The product of the file's axes may hold points that were not used here: runs that failed, or were
    refused. A remark says how many.
    """
    configs = [header.config for header in study.headers.values()]
    if not configs:
        return None
    name = configs[0].study
    axes = _axes(configs)
    commands = (
        f"slurm/submission.sh {name}.toml --cluster slurm/clusters/CLUSTER.toml",
        f"python -m analysis logs/{name}",
    )
    return Reproduction(_study_file(configs, axes, study.criteria), commands, tuple(_remarks(configs, axes)))


def _axes(configs: Sequence[RunConfig]) -> Axes:
    values: dict[tuple[str, str], dict[object, None]] = {}
    for config in {config.model_copy(update={"run": "", "repeat": 1, "seed": 0}): None for config in configs}:
        for key, value in _options(config):
            values.setdefault(key, {}).setdefault(value)
    return {key: [*found] for key, found in values.items() if [*found] != [_default(*key)]}


def _options(config: RunConfig) -> Iterator[tuple[tuple[str, str], Hashable]]:
    """Return every option of a run, set or not, by table and key."""
    for table in (*SHARED, config.framework):
        options = getattr(config, table) or OPTION_TABLES[table]()
        for key, value in options.model_dump().items():
            yield (table, key), value


def _default(table: str, key: str) -> object:
    return OPTION_TABLES[table].model_fields[key].default


def _study_file(configs: Sequence[RunConfig], axes: Axes, criteria: Criteria) -> str:
    used = {config.framework for config in configs}
    frameworks = [framework for framework in FRAMEWORKS if framework in used]
    lines = _what_is_run(frameworks, configs)
    for table in (*SHARED, *frameworks):
        lines += _table(table, {key: values for (of, key), values in axes.items() if of == table})
    asked = criteria.model_dump(exclude_defaults=True)
    lines += _table("criteria", {key: [value] for key, value in asked.items()})
    return "\n".join(lines) + "\n"


def _what_is_run(frameworks: Sequence[str], configs: Sequence[RunConfig]) -> list[str]:
    return [
        f"frameworks = {_toml(frameworks)}",
        f"workers = {_toml(sorted({config.workers for config in configs}))}",
        f"repeats = {_repeats(configs)}",
        f"seed = {min(config.seed - config.repeat + 1 for config in configs)}",
    ]


def _table(name: str, options: Mapping[str, Sequence[object]]) -> list[str]:
    if not options:
        return []
    return ["", f"[{name}]", *(f"{key} = {_option(values)}" for key, values in options.items())]


def _option(values: Sequence[object]) -> str:
    known = [value for value in values if value is not None]
    return _toml(known if len(values) > 1 else known[0])


def _toml(value: object) -> str:
    """Return a value in TOML; its strings, numbers and arrays are written as JSON writes them."""
    return json.dumps(value, ensure_ascii=True)


def _remarks(configs: Sequence[RunConfig], axes: Axes) -> Iterable[str]:
    unset = sorted(f"{table}.{key}" for (table, key), values in axes.items() if None in values)
    if unset:
        yield f"TOML cannot write a default in a list: run once more without {', '.join(unset)}"
    seeds = {config.seed - config.repeat for config in configs}
    if len(seeds) > 1:
        yield "the seeds do not count up with the repeats: more than one study file was used"
    asked = _points_of(axes, configs) * _repeats(configs)
    if asked > len(configs):
        yield f"the file asks for {asked} runs; {len(configs)} of them are used here"


def _repeats(configs: Sequence[RunConfig]) -> int:
    return max(config.repeat for config in configs)


def _points_of(axes: Axes, configs: Sequence[RunConfig]) -> int:
    """Return how many points the product of the axes gives."""
    combinations = sum(
        math.prod(len(values) for (table, _), values in axes.items() if table in (*SHARED, framework))
        for framework in {config.framework for config in configs}
    )
    return combinations * len({config.workers for config in configs})

"""How to measure a study again: its file, put together from the records, and the commands."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.study import Study
from unet_scaling.study.config import FRAMEWORKS, RunConfig
from unet_scaling.study.options import TABLES, Criteria

SHARED = ("data", "model", "training")


@dataclass(frozen=True)
class Reproduction:
    """A study file that gives the runs again, the commands, and what the file cannot say."""

    study_file: str
    commands: tuple[str, ...]
    remarks: tuple[str, ...]


def reproduction(study: Study) -> Reproduction | None:
    """From the points in the headers of the used runs; None for logs that carry none.

    The study's product of axes may hold points that were not used here: runs that failed, or were
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


def _axes(configs: Sequence[RunConfig]) -> dict[tuple[str, str], list[object]]:
    """Every option that is set, with its values in the order of the runs."""
    found: dict[tuple[str, str], dict[object, None]] = {}
    for config in {config.model_copy(update={"run": "", "repeat": 1, "seed": 0}): None for config in configs}:
        for table in (*SHARED, config.framework):
            section = getattr(config, table) or TABLES[table]()
            for key, value in section.model_dump().items():
                found.setdefault((table, key), {}).setdefault(value)
    defaults = {
        (table, key): field.default
        for table, kind in TABLES.items()
        for key, field in kind.model_fields.items()
    }
    return {key: [*values] for key, values in found.items() if [*values] != [defaults[key]]}


def _study_file(
    configs: Sequence[RunConfig], axes: dict[tuple[str, str], list[object]], criteria: Criteria
) -> str:
    frameworks = [
        framework for framework in FRAMEWORKS if any(config.framework == framework for config in configs)
    ]
    lines = [
        f"frameworks = {_toml(frameworks)}",
        f"workers = {_toml(sorted({config.workers for config in configs}))}",
        f"repeats = {max(config.repeat for config in configs)}",
        f"seed = {min(config.seed - config.repeat + 1 for config in configs)}",
    ]
    for table in (*SHARED, *frameworks):
        options = [(key, values) for (name, key), values in axes.items() if name == table]
        if options:
            lines += ["", f"[{table}]", *(f"{key} = {_option(values)}" for key, values in options)]
    wanted = criteria.model_dump(exclude_defaults=True)
    if wanted:
        lines += ["", "[criteria]", *(f"{key} = {_toml(value)}" for key, value in wanted.items())]
    return "\n".join(lines) + "\n"


def _option(values: list[object]) -> str:
    known = [value for value in values if value is not None]
    return _toml(known if len(values) > 1 else known[0])


def _toml(value: object) -> str:
    """A value in TOML; its strings, numbers and arrays are written as JSON writes them."""
    return json.dumps(value, ensure_ascii=True)


def _remarks(configs: Sequence[RunConfig], axes: dict[tuple[str, str], list[object]]) -> Iterable[str]:
    unset = sorted(f"{table}.{key}" for (table, key), values in axes.items() if None in values)
    if unset:
        yield f"TOML has no word for a default in a list: run once more without {', '.join(unset)}"
    seeds = {config.seed - config.repeat for config in configs}
    if len(seeds) > 1:
        yield "the seeds do not count up with the repeats: more than one study file was used"
    asked = _points_of(axes, configs) * max(config.repeat for config in configs)
    if asked > len(configs):
        yield f"the file asks for {asked} runs; {len(configs)} of them are used here"


def _points_of(axes: dict[tuple[str, str], list[object]], configs: Sequence[RunConfig]) -> int:
    """How many points the product of the axes gives."""
    combinations = sum(
        math.prod(len(values) for (table, _), values in axes.items() if table in (*SHARED, framework))
        for framework in {config.framework for config in configs}
    )
    return combinations * len({config.workers for config in configs})

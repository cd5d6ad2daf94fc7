"""The files of a report for other programs, for papers and proposals: JSON and Markdown.

And where its runs come from, and how to have them again: a study file put together from them.
"""

import dataclasses
import json
import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.assembly.assemble import Report
from analysis.judge.answer import NO_CLUSTER_FILE, Answer, is_of_slurm, study_file_name
from analysis.report.columns import TABLES, table_of
from analysis.report.tables import Column, Table, integer_column, number_column, point_keys, text_column
from analysis.study import COMPARED, CONFIDENCE, NAMES, Names, Score, Study
from analysis.text import (
    clean,
    count,
    labelled,
    percent,
    repeats_text,
    sentence,
    with_restriction,
)
from unet_scaling import PROJECT
from unet_scaling.base.texts import PASTED
from unet_scaling.format.facts import FACTS, values_of, version_facts
from unet_scaling.format.record_lines import Header, ScriptHeader
from unet_scaling.study.config import ALL_FRAMEWORKS, SHARED_TABLES, TASK_OPTIONS, RunConfig
from unet_scaling.study.frameworks import OPTION_TABLES
from unet_scaling.study.options import TASK_SWITCHES, TaskOptions
from unet_scaling.study.study_file import PATH_KEYS

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
    named: dict[str, Iterable[str | None]] = {
        _renamed(fact.title(found[0]), study.names): values_of(fact, found)
        for fact in (*facts, *version_facts({**study.headers, **study.scripts}))
    }
    named["scripts"] = [each.script or "typed" for each in study.scripts.values()]
    named["SHA-256 of the scripts"] = [each.script_sha256 or "not known" for each in study.scripts.values()]
    told = {clean(name): _distinct(values) for name, values in named.items() if values}
    told["Slurm jobs"] = _distinct(each.job.get("SLURM_JOB_ID") for each in found)
    return told | {"started (UTC)": _ends(each.started_utc for each in found)}


def _renamed(title: str, names: Names) -> str:
    """Return the title of a fact with the framework in it called as by these names."""
    for framework, name in NAMES.items():
        title = title.replace(name, names.get(framework, name))
    return title


def origin_line(headers: Mapping[str, Header], scripts: Mapping[str, ScriptHeader]) -> str:
    """Return commit, hosts and days of the used runs in one sentence; empty for logs that carry none."""
    found = [*headers.values(), *scripts.values()]
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


def reproduction(study: Study) -> tuple[str, tuple[str, ...]] | None:
    """Return the study file of the used runs and the commands; None for logs that carry no headers.

    The product of the file's axes may hold points that were not used here: runs that failed, or were
    refused. Paths in the project are relative to it; others stay as they are.
    """
    configs = [header.config for header in study.headers.values()]
    if not configs:
        return None
    file = study_file_name(study)
    again = f"submit {file} --cluster {NO_CLUSTER_FILE}" if is_of_slurm(study) else f"run {file}"
    commands = (f"{PASTED} {again}", f"{PASTED} report logs/{configs[0].study}")
    asked = study.criteria.model_dump(exclude_defaults=True)
    criteria = {study.score.key(key): value for key, value in asked.items()}
    return _study_file(configs, _axes(configs), criteria), commands


def _axes(configs: Sequence[RunConfig]) -> Axes:
    values: dict[tuple[str, str], dict[object, None]] = {}
    for config in {config.model_copy(update={"run": "", "repeat": 1, "seed": 0}): None for config in configs}:
        for key, value in _options(config):
            values.setdefault(key, {}).setdefault(value)
    axes = {}
    for (table, name), found in values.items():
        default = None if table in TASK_TABLES else OPTION_TABLES[table].model_fields[name].default
        if [*found] != [default]:
            axes[table, name] = [*found]
    return axes


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
            if (table, key) in PATH_KEYS and value is not None and Path(value).is_relative_to(PROJECT):
                value = Path(value).relative_to(PROJECT).as_posix()
            yield (table, key), value


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
        once_more = "  # TOML has no word for the default: run once more without this key"
        default = once_more if None in values else ""
        tables[table].append(f"{key} = {_toml(known if len(values) > 1 else known[0])}{default}")
    tables["criteria"] = [f"{key} = {_toml(value)}" for key, value in criteria.items()]
    for table, options in tables.items():
        lines += ["", f"[{table}]", *options] if options else []
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """Return a value in TOML; its strings, numbers and arrays are written as JSON writes them."""
    return json.dumps(value, ensure_ascii=True)


# Counted up when a key is removed, renamed or changes its meaning; new keys may come at any time.
SCHEMA_VERSION = 3
# More than any measurement has, and the same on every processor: as in the CSV files.
_SIGNIFICANT_DIGITS = 10
# The tables that have a file as well.
_LISTED = {
    "points": "summary.csv", "comparisons": "comparison.csv", "played": "played.csv", "plan": "plan.csv",
    "task_scores": "task_scores.csv",
}  # fmt: skip


def export_files(report: Report) -> dict[str, bytes]:
    """Return the contents of summary.json and summary.md, by file name."""
    return {
        "summary.json": summary_json(report).encode(),
        "summary.md": summary_markdown(report).encode(),
    }


def speed_columns(report: Report) -> list[Column]:
    """Return the columns of every table of points on a terminal and in papers."""
    columns = table_of("summary.csv").columns(report)
    return columns[: [column.heading for column in columns].index("efficiency") + 1]


def played_short_columns(report: Report) -> list[Column]:
    """Return the columns on played runs that a terminal or a paper has room for."""
    return [
        *point_keys(report.study.names),
        text_column("runs", "kind"),
        integer_column("seeds", "seeds"),
        number_column(report.study.score.title, "iou", ".3f"),
        number_column("difference to 1 worker", "difference", "+.3f"),
        text_column("verdict", "verdict"),
    ]


def played_meaning(score: Score) -> str:
    """Return what the numbers of a table of played runs are."""
    return (
        f"played: one worker trained exactly as so many, so its {score.title} is theirs and its seconds are "
        "no speed; medians and intervals are over seeds"
    )


def summary_json(report: Report) -> str:
    """Return the answers, verdicts, recommendations, points, checks and provenance of a report as JSON.

    What is not known is null, never NaN, 0 or -1.
    """
    study = report.study
    key = study.score.key
    headlines = {answer.options: answer.headline for answer in report.answers}
    recommendations = [
        {name: getattr(advice, name) for name in ("options", "framework", "workers")}
        | {"sentence": headlines[advice.options], "not_judged": advice.subject.row["not_judged"]}
        for advice in report.recommendations
    ]
    content: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "study": study.name,
        "throughput_unit": study.unit,
        key("iou_scope"): study.iou_scope,
        "frameworks": study.names,
        "criteria": {key(name): value for name, value in study.criteria.model_dump().items()},
        "provenance": origins(study.subject),
        "answers": [dataclasses.asdict(answer) for answer in report.answers],
        "recommendations": recommendations,
        # Of the key of a comparison, options, knobs of both and workers: a verdict with one is on Horovod.
        "verdicts": [
            dataclasses.asdict(verdict) | {"pair": verdict.pair and verdict.pair[:4]}
            for verdict in report.verdicts
        ],
        **{key(name): _rows(report, table_of(file)) for name, file in _LISTED.items()},
        **{key(table.file): _rows(report, table) for table in TABLES if not table.is_file},
    }
    maps = report.saliency
    if not maps.is_empty:
        content["saliency"] = {
            "points": _rows(report, table_of("saliency.csv")),
            "faithfulness": _rows(report, table_of("saliency_faithfulness.csv")),
            "sentences": maps.sentences,
            "warnings": maps.warnings,
        }
    content |= {"doubts": report.doubts, "notes": report.notes}
    return json.dumps(_plain(content), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _rows(report: Report, table: Table) -> object:
    """Return the rows of a table with its documented columns."""
    written = table.written(report)
    made = table.make(report)
    return made[[*written]].rename(columns=written).to_dict("records") if len(made) else []


def _plain(value: object) -> object:
    """Return a value as JSON has it: clean texts, numbers of ten digits, null for what is not known."""
    if isinstance(value, Mapping):
        return {clean(key): _plain(each) for key, each in value.items()}
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is None or plain is pd.NA:
        return None
    if isinstance(plain, float):
        return float(f"{plain:.{_SIGNIFICANT_DIGITS}g}") if math.isfinite(plain) else None
    assert isinstance(plain, bool | int), plain
    return plain


MARKUP = re.compile(r"[\\`*_{}<>#|$!]")


def summary_markdown(report: Report) -> str:
    """Return the answers, a table for each set of options, a caption, the verdicts, doubts, and the notes."""
    title = f"{report.study.name}: speed-up, efficiency and {report.study.score.title}"
    parts = [f"# {escaped(title)}", *_answers(report)]
    for options, rows in report.points.groupby("options", sort=False):
        score = number_column(report.study.score.title, "iou", ".3f")
        parts += [f"## {escaped(options)}"] if options else []
        parts.append(_table([*speed_columns(report), score], rows))
    if len(report.points):
        parts.append(_caption(report))
    parts += _played(report)
    parts += [f"**{escaped(verdict)}**" for verdict in report.verdicts]
    if report.doubts:
        parts += ["Not equal in this comparison:", bullets(map(sentence, report.doubts))]
    if report.notes:
        parts.append(bullets(report.notes))
    return "\n\n".join(parts) + "\n"


def bullets(lines: Iterable[str]) -> str:
    """Return these lines as a list."""
    return "\n".join(f"- {escaped(line)}" for line in lines)


def _answers(report: Report) -> Iterator[str]:
    """Yield the headline of each set of options, its tiles, and what to do next."""
    if report.compared_options:
        yield f"**{escaped(sentence(report.compared_options))}**"
    for answer in report.answers:
        yield f"**{escaped(labelled(answer.options, answer.headline))}**"
        yield bullets(answer_lines(report, answer))


def answer_lines(report: Report, answer: Answer) -> Iterator[str]:
    """Yield what stands below a headline: what restricts it, which framework is faster, tiles, what to do."""
    yield from map(sentence, answer.remarks)
    if comparison := which_framework(report, answer):
        native, horovod = (report.study.short_names[name] for name in COMPARED)
        yield f"{native} or {horovod}? {comparison}"
    for tile in answer.tiles:
        light = "" if tile.light == "none" else f" [{tile.light}]"
        yield f"{tile.title}{light} {tile.value}: {tile.detail}"
    yield from (f"Next: {step}" for step in answer.next_steps)


def which_framework(report: Report, answer: Answer) -> str:
    """Return which framework is slower and why, or the outcome at every count; "" where that is unfair."""
    compared = report.comparisons[report.comparisons["options"] == answer.options]
    slower = report.slower.get(answer.options, "")
    if compared.empty or (answer.kind == "unfair" and (compared["doubts"] != "").any()):
        return ""
    if slower and slower not in answer.headline:
        return sentence(slower)
    return sentence(outcomes_of(compared))


def outcomes_of(compared: pd.DataFrame) -> str:
    """Return on which workers each outcome of these comparisons is, of several series in how many of them."""
    if compared.empty:
        return "the frameworks have no worker count in common"
    is_one_series = not compared["workers"].duplicated().any()
    parts = []
    for outcome, rows in compared.groupby("outcome", sort=False):
        most = count(int(rows["workers"].max()), "worker")
        workers = f"on {', '.join([*map(str, rows['workers'][:-1]), most])}"
        share = f"in {len(rows)} of {count(len(compared), 'comparison')}"
        parts.append(f"{outcome!s} {workers if is_one_series else share}")
    return ", ".join(parts)


def _played(report: Report) -> Iterator[str]:
    """Yield the IoU of played and real runs at every number of workers; nothing without a played run."""
    for options, rows in report.played.points.groupby("options", sort=False):
        title = f": {options!s}" if options else ""
        yield f"## {report.study.score.heading} of played and real runs{escaped(title)}"
        yield _table(played_short_columns(report), rows)
    if len(report.played.points):
        yield escaped(sentence(played_meaning(report.study.score)))


def _table(columns: Sequence[Column], rows: pd.DataFrame) -> str:
    """Return a Markdown table; what would end a cell or start markup is escaped."""
    lines = [[escaped(column.heading) for column in columns]]
    lines.append(["--:" if column.kind == "number" else ":--" for column in columns])
    lines += [[escaped(column.cell(row)) for column in columns] for row in rows.to_dict("records")]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: object) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return MARKUP.sub(r"\\\g<0>", clean(text))


def _caption(report: Report) -> str:
    """Return what the table has, and the confidence level of its intervals."""
    repeats = report.points["repeats"]
    runs = count(int(repeats.sum()), "run")
    intervals = "No intervals: they need 3 repeats of a point."
    if report.points["throughput_low"].notna().any():
        intervals = f"In brackets: {percent(CONFIDENCE, 0)} intervals over launches."
    measured = f"Medians over {runs}, {repeats_text(repeats)} per point, warm-up left out."
    measured += " Efficiency is speed-up / workers."
    return with_restriction(report.study.kind, f"{measured} {intervals}")

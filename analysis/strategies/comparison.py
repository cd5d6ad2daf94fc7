"""Strategies of exchange against gradients averaged at every step: the gain in speed, the loss of score.

Runs of one framework, worker count and repeat are a pair; the interval of the ratio of throughputs is that of
the comparison of frameworks (contrast.py), and the score is judged as on more workers (iou.py). A strategy
changes what is learned: it is called faster only where its score is shown to be not inferior. Where that is
inferior there is a trade, and whether it is worth it is not for a report to say.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.judge.checks import checks_of_points
from analysis.numbers.check import PointPair
from analysis.numbers.contrast import (
    Equality,
    causes_beside,
    outcome_of,
    paired_ratios,
    speed_facts,
    undisturbed,
)
from analysis.numbers.iou import PointSeeds, judged_points, seeds_of
from analysis.read.options import label
from analysis.study import NAN, POINT, Score, Study, bounded
from analysis.text import Row, lines
from unet_scaling.format.record_lines import Header
from unet_scaling.study.options import Strategy

_FASTER = "faster"
_TRADE = "faster, at a loss"
_UNPROVEN = "faster, loss not excluded"
_SLOWER = "slower"
CLAIMS = (_FASTER, _TRADE, _UNPROVEN, _SLOWER)
# Of the lost efficiency, what an exchange may be the cause of: waiting for others, and computing that its
# threads slow down.
_OF_EXCHANGE = ("wire", "imbalance", "compute")
# Those of a point without averaged gradients, and of the same one with them.
_ARMS = ("strategy", "gradients")
_KEY = ["framework", "knobs", "workers", "options_strategy", "options_gradients"]
STRATEGY_COLUMNS = [
    *POINT, "against", "pairs", *bounded("ratio"), "coverage", "most_gain", *bounded("difference"), "margin",
    "non_inferior", "doubts", "outcome",
]  # fmt: skip


def strategy_table(study: Study, budget: pd.DataFrame) -> pd.DataFrame:
    """Return one row per point of several workers that has another strategy than averaged gradients.

    `against` are the options of the same point with averaged gradients. `most_gain` follows from its row of
    `budget.budget_table`. `doubts` names what the runs of both points do not meet: nothing is claimed then.
    """
    axes = strategy_axes(study.axes)
    if not axes:
        return pd.DataFrame(columns=STRATEGY_COLUMNS)
    pairs = _pairs(study.runs, study.headers, [axis for axis in study.axes if axis not in axes])
    table = paired_ratios(study, pairs, _KEY, _ARMS)
    rows = table.rename(columns={"options_strategy": "options", "options_gradients": "against"})
    # By which share the throughput would grow if an exchange took nothing. About: of medians, and beside what
    # the framework's wrapper costs on 1 worker, which a strategy spares.
    gains = {}
    for row in budget.to_dict("records"):
        lost = sum(max(0.0, row[part]) for part in _OF_EXCHANGE)
        gains[_key(row, "options")] = lost / (1 - lost)
    rows["most_gain"] = [gains.get(_key(row, "against"), NAN) for row in rows.to_dict("records")]
    rows = _with_scores(study, rows)
    facts = speed_facts(study)
    equal = Equality.of_ratios(study)
    unmet = _doubts(study, rows)
    # Load or clock of the cores may be most of a difference in speed.
    causes = [
        causes_beside(row, facts[_key(row, "options")], facts[_key(row, "against")], equal)
        if not np.isnan(row["ratio"])
        else ""
        for row in rows.to_dict("records")
    ]
    rows["doubts"] = [", ".join(filter(None, both)) for both in zip(unmet, causes, strict=True)]
    rows["outcome"] = [_outcome(row, equal) for row in rows.to_dict("records")]
    return rows[STRATEGY_COLUMNS].reset_index(drop=True)


def strategy_axes(axes: tuple[str, ...]) -> list[str]:
    """Return the axes of a study that are of the strategy."""
    return [axis for axis in axes if axis.startswith("strategy.")]


def _pairs(runs: pd.DataFrame, headers: Mapping[str, Header], others: Sequence[str]) -> pd.DataFrame:
    """Return each run of another strategy beside that of the same repeat with averaged gradients."""
    configs = {run: header.config for run, header in headers.items()}
    runs = runs[runs["workers"] > 1]
    runs = runs.assign(
        alike=[label(configs[run], others) for run in runs["run"]],
        averages=np.array([configs[run].strategy.averages_gradients for run in runs["run"]], dtype=bool),
    )
    keys = ["framework", "knobs", "workers", "alike", "repeat"]
    own, averaged = runs[~runs["averages"]], runs[runs["averages"]]
    pairs = own.merge(averaged, on=keys, suffixes=(f"_{_ARMS[0]}", f"_{_ARMS[1]}"))
    return undisturbed(pairs, _ARMS, _KEY)


def _key(row: Mapping[Any, Any], options: str) -> tuple[str, str, str, int]:
    """Return the key of the point of a row that has these of its options."""
    return row[options], row["framework"], row["knobs"], row["workers"]


def _with_scores(study: Study, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the difference of the score, its margin, and whether it is not inferior."""
    seeds: dict[tuple[Any, ...], PointSeeds] = {
        (*point.series, point.workers): point for point in seeds_of(study)
    }
    sides = [
        [seeds[_key(row, options)] for row in rows.to_dict("records")] for options in ("options", "against")
    ]
    found = [cells | {"non_inferior": test.shown} for cells, test in judged_points(study, *sides)]
    columns = [*bounded("difference"), "margin", "non_inferior"]
    scores = pd.DataFrame(found, columns=columns, index=rows.index)
    return rows.join(scores)


def _doubts(study: Study, rows: pd.DataFrame) -> list[str]:
    """Return by row which requirements of a fair comparison its two points do not meet."""
    points = {
        PointPair(row["options"], row["knobs"], row["knobs"], row["workers"], row["framework"]): (
            _key(row, "options"),
            _key(row, "against"),
        )
        for row in rows.to_dict("records")
    }
    forbidding = [check for check in checks_of_points(study, points) if check.withholds]
    return [
        ", ".join(check.check for check in forbidding if not check.pairs or pair in check.pairs)
        for pair in points
    ]


def with_claims(table: pd.DataFrame) -> pd.DataFrame:
    """Return a `strategy_table` for a drawing: options that differ, and which differences are claimed."""
    return table.assign(
        options=list(map(changed_options, table["options"], table["against"])),
        claimed=table["outcome"].isin(CLAIMS),
        iou_claimed=table["non_inferior"].isin(("yes", "no")),
    )


def changed_options(options: str, against: str) -> str:
    """Return the options of a point without those of its strategy that averaged gradients have, too."""
    shared = {each for each in against.split(", ") if each.partition("=")[0] in Strategy.model_fields}
    return ", ".join(each for each in options.split(", ") if each not in shared)


def strategy_sentence(score: Score, strategies: pd.DataFrame) -> str:
    """Return what each strategy gains and costs on the most workers; empty where there is none."""
    if strategies.empty:
        return ""
    most = int(strategies["workers"].max())
    found: dict[str, list[Row]] = {}
    for row in strategies[strategies["workers"] == most].to_dict("records"):
        found.setdefault(changed_options(row["options"], row["against"]), []).append(row)
    return lines("strategies", found=found, workers=most, score=score)[0]


def _outcome(row: Mapping[Any, Any], equal: Equality) -> str:
    """Return what a row shows; of 3 or 4 repeats, what they suggest."""
    faster = {"yes": _FASTER, "no": _TRADE}.get(row["non_inferior"].rpartition(" ")[2], _UNPROVEN)
    ends = row["ratio_low"], row["ratio_high"]
    return outcome_of(ends, (_SLOWER, faster), row["pairs"], row["doubts"], equal=equal)

"""Sentences of a study with frameworks that wrap DDP: what each costs, and whether Horovod may be left."""

import pandas as pd

from analysis.findings.comparison import NOT_ENOUGH
from analysis.findings.verdict import Verdict, evidence_words
from analysis.score import Score
from analysis.study import COMPARED, NAMES
from analysis.text import Row, bracketed, count, number

_SERIES = ["framework", "options", "native_knobs", "knobs"]
LEAVING = "leaving Horovod"


def wrapper_verdicts(table: pd.DataFrame, score: Score) -> list[Verdict]:
    """Return one verdict for each series compared with native DDP, at the most workers with enough repeats.

    `table` is `wrapper_comparison.each_against_native`; without rows there is none.
    """
    decided = table[table["outcome"] != NOT_ENOUGH].sort_values("workers", kind="stable")
    largest = decided.groupby(_SERIES, sort=False).tail(1)
    return [_of_row(row, score) for row in largest.to_dict("records")]


def _of_row(row: Row, score: Score) -> Verdict:
    is_horovod = row["framework"] == COMPARED[1]
    name = LEAVING if is_horovod else NAMES[row["framework"]]
    knobs = "; ".join(filter(None, (name, row["native_knobs"], row["knobs"])))
    found = _leaving(row) if is_horovod else _cost(row)
    where = count(int(row["workers"]), "worker")
    sentence = f"At {where} {found}{_doubted(row)} ({evidence_words(row)}); {_learned(row, score)}"
    return Verdict(row["options"], knobs, sentence, row["outcome"])


def _cost(row: Row) -> str:
    """Return what a wrapper costs; that it costs nothing only where its whole interval says so."""
    interval = bracketed(row["cost_ms_low"], row["cost_ms_high"], "+.2f")
    step = f"a step of native DDP takes {number(row['step_ms'], '.1f')} ms"
    other = f"{NAMES[row['framework']]} adds {number(row['cost_ms'], '+.2f')} ms {interval} to it"
    judged = f"{row['costs']} of a step" if row["costs"] != "not shown" else row["outcome"]
    return f"{step}, and {other}: {judged}"


def _leaving(row: Row) -> str:
    """Return how much faster or slower native DDP is than Horovod."""
    interval = bracketed(row["ratio_low"], row["ratio_high"], ".3f")
    ratio = f"{number(row['ratio'], '.3f')} {interval}"
    return f"native DDP has {ratio} times the throughput of Horovod: {row['outcome']}"


def _doubted(row: Row) -> str:
    return f", since {row['doubts']}" if row["doubts"] else ""


def _learned(row: Row, score: Score) -> str:
    """Return whether both learned the same, as far as they were evaluated."""
    if not row["same_weights"]:
        return f"nothing was evaluated: weights and {score.title} are not compared"
    equal = {"yes": "equal within the margin", "no": "not equal within the margin"}
    learned = equal.get(str(row["equal_within_margin"]), "not shown to be equal within the margin")
    return f"the same weights in {row['same_weights']} repeats, {score.title} {learned}"

"""Sentences of a study with frameworks that wrap DDP: what each costs, and whether Horovod may be left."""

from collections.abc import Iterator

import pandas as pd

from analysis.findings.comparison import NOT_ENOUGH
from analysis.findings.verdict import Verdict
from analysis.study import COMPARED, NAMES
from analysis.text import Row, bracketed, count, number

_SERIES = ["framework", "options", "native_knobs", "knobs"]
LEAVING = "leaving Horovod"


def wrapper_verdicts(table: pd.DataFrame) -> list[Verdict]:
    """Return one verdict for each series compared with native DDP, at the most workers that both have.

    `table` is `wrapper_comparison.each_against_native`; without rows there is none.
    """
    largest = table.sort_values("workers", kind="stable").groupby(_SERIES, sort=False).tail(1)
    return [verdict for row in largest.to_dict("records") for verdict in _of_row(row)]


def _of_row(row: Row) -> Iterator[Verdict]:
    name = LEAVING if row["framework"] == COMPARED[1] else NAMES[row["framework"]]
    knobs = "; ".join(filter(None, (name, row["native_knobs"], row["knobs"])))
    if row["outcome"] != NOT_ENOUGH:
        sentence = _leaving(row) if name == LEAVING else _cost(row)
        yield Verdict(row["options"], knobs, sentence, row["outcome"])


def _cost(row: Row) -> str:
    """Return what a wrapper costs; that it costs nothing only where its whole interval says so."""
    interval = bracketed(row["cost_ms_low"], row["cost_ms_high"], "+.2f")
    more = f"{number(row['cost_ms'], '+.2f')} ms {interval} more with {NAMES[row['framework']]}"
    step = f"a step of native DDP takes {number(row['step_ms'], '.1f')} ms, and {more}"
    judged = f"{row['costs']} of a step" if row["costs"] != "not shown" else row["outcome"]
    return f"At {count(int(row['workers']), 'worker')} {step}: {judged}{_doubted(row)}; {_learned(row)}"


def _leaving(row: Row) -> str:
    """Return what changes from Horovod to native DDP: weights, IoU and speed."""
    interval = bracketed(row["ratio_low"], row["ratio_high"], ".3f")
    speed = f"native DDP has {number(row['ratio'], '.3f')} {interval} times the throughput of Horovod"
    outcome = f"{row['outcome']}{_doubted(row)}"
    return f"At {count(int(row['workers']), 'worker')} {speed}: {outcome}; {_learned(row)}"


def _doubted(row: Row) -> str:
    return f" ({row['doubts']})" if row["doubts"] else ""


def _learned(row: Row) -> str:
    equal = {"yes": "equal within the margin", "no": "not equal within the margin"}
    iou = equal.get(str(row["equal_within_margin"]), "not shown to be equal within the margin")
    return f"the same weights in {row['same_weights']} repeats, IoU {iou}"

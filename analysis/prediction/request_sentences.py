"""What to know before asking for nodes, in words: how many workers are efficient, what more would cost."""

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.findings.standing import least_efficiency
from analysis.prediction.request import AS_PREDICTED
from analysis.restriction import after, restriction_words
from analysis.study import SECONDS_PER_HOUR, SERIES, Study
from analysis.text import Row, count, labelled, number, percent, series_name, with_interval
from unet_scaling.study.options import Criteria


def request_sentences(study: Study, table: pd.DataFrame, plan: pd.DataFrame) -> Iterator[str]:
    """Yield for every series up to which count it is efficient, what takes the rest, and the time to an IoU.

    `table` is `request.request_table`, `plan` that of played runs (analysis/played/plan.py). Of emulated
    runs, every sentence says so first.
    """
    words = restriction_words(study)
    for options, text in (*_of_series(study, table), *_of_plan(study, plan)):
        yield labelled(options, after(words, text))


def _of_series(study: Study, table: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the options of each series, and what there is to say of its efficiency."""
    for _, rows in table.groupby(SERIES, sort=False):
        known = rows.to_dict("records")
        said = "; ".join(_of_efficiency(known, study.criteria))
        yield str(known[0]["options"]), f"{series_name(known[0], study.names)}: {said}"


def _of_plan(study: Study, plan: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the options of each point with a time to the target IoU, and that time."""
    score = study.score.with_article
    for row in plan[plan["seconds_to_target"].notna()].to_dict("records"):
        hours = with_interval(row, "seconds_to_target", "~3", SECONDS_PER_HOUR)
        where = f"{series_name(row, study.names)} on {count(int(row['workers']), 'worker')}"
        target = f"{hours} h to {score} of {row['target_iou']:g} (speed {row['speed']})"
        yield str(row["options"]), f"{where}: {target}"


def _of_efficiency(rows: Sequence[Row], criteria: Criteria) -> Iterator[str]:
    yield _reach(rows, criteria)
    last = rows[-1]
    if last["source"] == AS_PREDICTED:
        yield _expected(last)
    else:
        yield "larger counts are not predicted: that needs 3 worker counts, 1 among them"


def _reach(rows: Sequence[Row], criteria: Criteria) -> str:
    """Return up to which count the efficiency is above the floor, and on what that rests."""
    floor = number(criteria.efficiency_floor, "g")
    reached = efficient_counts(rows, criteria)
    if all(math.isnan(row["efficiency"]) for row in rows if row["workers"] > 1):
        return "no efficiency is known"
    if not reached:
        return f"at no count of several workers does the whole interval of the efficiency lie above {floor}"
    largest = reached[-1]
    is_last_predicted = largest is rows[-1] and largest["source"] == AS_PREDICTED
    reach = " (as far as predictions reach)" if is_last_predicted else ""
    confidence = percent(min(row["coverage"] for row in reached), 0)
    return (
        f"the efficiency is above {floor} up to {count(int(largest['workers']), 'worker')}{reach}, by whole "
        f"intervals of {confidence} confidence, there {with_interval(largest, 'efficiency', '.2f')} "
        f"({largest['source']})"
    )


def _expected(last: Row) -> str:
    """Return what the largest count predicted is expected to reach."""
    parts = [f"an efficiency of {with_interval(last, 'efficiency', '.2f')}"]
    if not math.isnan(last["worker_hours"]):
        parts.append(f"{with_interval(last, 'worker_hours', '~3')} worker-hours a training")
    said = [f"{count(int(last['workers']), 'worker')} are expected at {' and '.join(parts)}"]
    if last["largest_term"]:
        share = percent(last["largest_term_share"], 0)
        said.append(f"of what is lost the terms fitted give {share} to {last['largest_term']}")
    return "; ".join(filter(None, [*said, last["why"]]))


def efficient_counts(rows: Sequence[Row], criteria: Criteria) -> list[Row]:
    """Return the counts of several workers whose whole interval is above the floor, up to one of which not.

    A count without an interval shows nothing: it ends them where its efficiency itself is below the floor,
    and else stands in no other's way.
    """
    found = []
    for row in rows:
        floor = least_efficiency(int(row["workers"]), criteria)
        is_bounded = not math.isnan(row["efficiency_low"])
        if (row["efficiency_low"] if is_bounded else row["efficiency"]) < floor:
            break
        if is_bounded and row["workers"] > 1:
            found.append(row)
    return found

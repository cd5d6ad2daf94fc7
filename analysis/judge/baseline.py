"""Checks of the runs on 1 worker, with which speed-up and efficiency of all others compare.

Guards against a baseline of another day, node or clock: a slowed one makes everything scale well.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial

import numpy as np
import pandas as pd

from analysis.judge.chance import REFUSED, by_chance, shuffled, unequal_use
from analysis.judge.launch_checks import (
    LARGEST_CLOCK_DIFFERENCE,
    SECONDS_PER_DAY,
    Checked,
    are_on_one_machine,
)
from analysis.numbers import stats
from analysis.numbers.check import Check, no, not_known, yes
from analysis.numbers.contrast import MOST_EXAMPLES, first_points, grouped
from analysis.study import NAMES, SERIES
from analysis.text import Row, clean, count, first_of, listed

ONE_WORKER = "equal on 1 worker"
# The repeats of a study run within hours of each other; machines are updated, filled and emptied over days.
BASELINE_APART_DAYS = 1.0
# In studies of emulated workers on quiet machines Horovod's thread cost up to 1.4 % on 1 worker.
LARGEST_DIFFERENCE_OF_ONE_SHARE = 0.02

# How runs on 1 worker differ from those of a larger count: what stands before that count, and after it.
Differ = Callable[[Sequence[Row], Sequence[Row]], tuple[str, str] | None]


def check_baseline(subject: Checked) -> Check:
    """Check that nothing slowed the runs on 1 worker alone: other hosts, a lower clock, other days.

    Of jobs that a scheduler placed, hosts count where chance does not explain them, and days are only said
    (`check_baseline_times`).
    """
    of_places: Sequence[Differ] = (_other_hosts, _other_days)
    if subject.is_drawn:
        of_places = () if _hosts_are_chance(subject.runs) else (_other_hosts,)
    doubts, of_series = _baseline_doubts(subject, (*of_places, partial(_other_clock, lower=True)))
    if not of_series:
        return not_known("no series has runs on 1 worker and on more")
    if doubts:
        return no(f"{first_points(doubts)}: speed-up and efficiency compare with them")
    if not all(row["hosts"] and not math.isnan(row["begin"]) for row in of_series):
        return not_known("not every run on 1 worker says where and when it ran")
    if subject.is_drawn:
        return yes("the scheduler gave the runs on 1 worker hosts as it gave them to the others")
    return yes("the runs on 1 worker ran on hosts, and within a day, of those of each larger count")


def check_baseline_times(subject: Checked) -> Check | None:
    """Say where the runs on 1 worker had a higher clock, or were on other days as jobs that wait may be.

    One core of a busy processor is faster than all of them: that is part of what scaling on it costs.
    """
    higher: Differ = partial(_other_clock, lower=False)
    doubts, _ = _baseline_doubts(subject, (higher, _other_days) if subject.is_drawn else (higher,))
    return no(f"{first_points(doubts)}: a part of the lost efficiency may be theirs") if doubts else None


def _baseline_doubts(subject: Checked, differ_in: Sequence[Differ]) -> tuple[list[str], list[Row]]:
    """Return how runs on 1 worker differ from those of each larger count, and all that were compared."""
    doubts: list[str] = []
    of_series: list[Row] = []
    for runs in grouped(subject.runs, SERIES).values():
        one = [row for row in runs if row["workers"] == 1]
        if len(one) in (0, len(runs)):
            continue
        of_series += one
        counts: dict[tuple[str, str], list[str]] = {}
        for (workers,), larger in sorted(grouped(runs, ["workers"]).items())[1:]:
            for differ in differ_in:
                if doubt := differ(one, larger):
                    counts.setdefault(doubt, []).append(str(workers))
        doubts += [
            f"{of_one} those on {listed(larger_counts)} workers {of_larger}"
            for (of_one, of_larger), larger_counts in counts.items()
        ]
    return doubts, of_series


def check_one_worker(comparisons: pd.DataFrame) -> Check:
    """Check that frameworks are equally fast on 1 worker, where both do the same work and average nothing.

    A framework's own threads and hooks may cost something there, so that a difference forbids no claim. But
    it is no matter of communication, and stands beside what is said of more workers.
    """
    ones = comparisons[comparisons["workers"] == 1].to_dict("records")
    most = 1 + LARGEST_DIFFERENCE_OF_ONE_SHARE
    found = [
        f"on 1 worker native DDP has {row['ratio']:.3f} times the throughput of "
        f"{NAMES[row['framework']]} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
        for row in ones
        if row["ratio_low"] > most or row["ratio_high"] < 1 / most
    ]
    if found:
        cause = "that is no averaging, but a framework's own threads and hooks, or unequal arms"
        return no(f"{first_points(found)}: {cause}")
    if all(math.isnan(row["ratio_low"]) for row in ones):
        return not_known("too few repeats of both frameworks on 1 worker")
    return yes(f"on 1 worker no difference above {LARGEST_DIFFERENCE_OF_ONE_SHARE:.0%} is shown")


def _other_hosts(one: Sequence[Row], larger: Sequence[Row]) -> tuple[str, str] | None:
    known = {host for row in larger for host in row["hosts"].split()}
    strange = [row for row in one if not known.issuperset(row["hosts"].split())]
    if not strange or (are_on_one_machine(one) and are_on_one_machine(larger)):
        return None
    return f"{len(strange)} of {_baseline(one)} ran on {_host_names(strange)},", f"on {_host_names(larger)}"


def _host_names(runs: Sequence[Row]) -> str:
    names = sorted({host for row in runs for host in row["hosts"].split()})
    return first_of([clean(name) for name in names], "host", MOST_EXAMPLES)


def _other_days(one: Sequence[Row], larger: Sequence[Row]) -> tuple[str, str] | None:
    begins = sorted(row["begin"] for row in larger if not math.isnan(row["begin"]))
    if not begins:
        return None
    apart = {row["begin"]: max(begins[0] - row["begin"], row["begin"] - begins[-1]) for row in one}
    late = [row["begin"] for row in one if apart[row["begin"]] > BASELINE_APART_DAYS * SECONDS_PER_DAY]
    if not late:
        return None
    started = f"{len(late)} of {_baseline(one)} started on {listed(_dates(sorted(late)))}"
    days = max(apart[begin] for begin in late) / SECONDS_PER_DAY
    return f"{started}, {days:.0f} days from", f"({' to '.join(_dates([begins[0], begins[-1]]))})"


def _dates(times: Iterable[float]) -> list[str]:
    return list(dict.fromkeys(f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}" for time in times))


def _hosts_are_chance(runs: Sequence[Row]) -> bool:
    """Return whether chance explains which hosts served runs on 1 worker, of all frameworks, and others.

    Of each run one host counts, whichever of them: larger runs have more.
    """
    random = np.random.default_rng(stats.RESAMPLING_SEED)
    taken = np.array([random.choice(row["hosts"].split() or [""]) for row in runs])
    weights = shuffled([row["workers"] == 1 for row in runs], [row["options"] for row in runs])
    probability, _ = by_chance([unequal_use(weights, taken[:, None] == np.unique(taken))])
    return probability >= REFUSED


def _other_clock(one: Sequence[Row], larger: Sequence[Row], *, lower: bool) -> tuple[str, str] | None:
    """Return that clocks differ by more than nodes do by chance."""
    clocks = [np.array([row["mhz"] for row in runs if not math.isnan(row["mhz"])]) for runs in (one, larger)]
    if not all(map(len, clocks)):
        return None
    mhz, other = (float(np.median(each)) for each in clocks)
    least = LARGEST_CLOCK_DIFFERENCE * max(mhz, other)
    if (mhz < other) is not lower or not stats.apart(clocks[0], clocks[1], least):
        return None
    return f"the {_baseline(one)} had {mhz:,.0f} MHz,", f"{other:,.0f} MHz"


def _baseline(one: Sequence[Row]) -> str:
    return f"{count(len(one), 'run')} of {NAMES[one[0]['framework']]} on 1 worker"

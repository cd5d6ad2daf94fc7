"""The check of the runs on 1 worker: same hosts, days and clock as the larger counts compared with them."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.findings.check import Check, no, not_known, yes
from analysis.findings.decide import compared_framework
from analysis.findings.machines import are_on_one_machine, clocks_differ, host_names, with_clocks
from analysis.findings.order import start_times
from analysis.findings.pairs import first_points
from analysis.study import NAMES, SERIES, Study
from analysis.text import count, listed

ONE_WORKER = "equal on 1 worker"
# The repeats of a study run within hours of each other; machines are updated, filled and emptied over days.
BASELINE_APART_DAYS = 1.0
# In studies of emulated workers on quiet machines Horovod's thread cost up to 1.4 % on 1 worker.
LARGEST_DIFFERENCE_OF_ONE_SHARE = 0.02


def check_baseline(study: Study) -> Check:
    """Check that the runs on 1 worker ran where and when those of each larger count did, at their clock."""
    runs = with_clocks(study).assign(started=start_times(study.runs))
    split = [
        (own[own["workers"] == 1], own[own["workers"] > 1]) for _, own in runs.groupby(SERIES, sort=False)
    ]
    series = [(one, more) for one, more in split if len(one) and len(more)]
    if not series:
        return not_known("no series has runs on 1 worker and on more")
    doubts = [doubt for one, more in series for doubt in _doubts(one, more)]
    if doubts:
        return no(f"{first_points(doubts)}: speed-up and efficiency compare with them")
    if not all((one["hosts"] != "").all() and one["started"].notna().all() for one, _ in series):
        return not_known("not every run on 1 worker says where and when it ran")
    return yes("the runs on 1 worker ran on hosts, and within a day, of those of each larger count")


def check_one_worker(comparisons: pd.DataFrame) -> Check:
    """Check that frameworks are equally fast on 1 worker, where both do the same work and average nothing.

    A framework's own threads and hooks may cost something there, so that a difference forbids no claim. But
    it is no matter of communication, and stands beside what is said of more workers.
    """
    ones = comparisons[comparisons["workers"] == 1]
    is_decided = (ones["ratio_low"] > 1) | (ones["ratio_high"] < 1)
    is_large = np.abs(np.log(ones["ratio"])) > np.log1p(LARGEST_DIFFERENCE_OF_ONE_SHARE)
    apart = ones[is_decided & is_large].to_dict("records")
    if apart:
        found = first_points(
            f"on 1 worker native DDP has {row['ratio']:.3f} times the throughput of "
            f"{NAMES[compared_framework(row)]} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
            for row in apart
        )
        return no(f"{found}: that is no averaging, but a framework's own threads and hooks, or unequal arms")
    if ones["ratio_low"].isna().all():
        return not_known("too few repeats of both frameworks on 1 worker")
    return yes(f"on 1 worker no difference above {LARGEST_DIFFERENCE_OF_ONE_SHARE:.0%} is shown")


def _doubts(one: pd.DataFrame, more: pd.DataFrame) -> Iterator[str]:
    """Yield how the runs on 1 worker differ from those of larger counts, equal doubts of several as one."""
    counts: dict[tuple[str, str], list[str]] = {}
    for workers, larger in more.groupby("workers"):
        for differ in (_other_hosts, _other_days, _other_clock):
            if doubt := differ(one, larger):
                counts.setdefault(doubt, []).append(str(workers))
    for (of_one, of_larger), larger_counts in counts.items():
        yield f"{of_one} those on {listed(larger_counts)} workers {of_larger}"


def _other_hosts(one: pd.DataFrame, larger: pd.DataFrame) -> tuple[str, str] | None:
    known = {host for hosts in larger["hosts"] for host in hosts.split()}
    strange = one[[not known.issuperset(hosts.split()) for hosts in one["hosts"]]]
    if strange.empty or (are_on_one_machine(one) and are_on_one_machine(larger)):
        return None
    return f"{len(strange)} of {_baseline(one)} ran on {host_names(strange)},", f"on {host_names(larger)}"


def _other_days(one: pd.DataFrame, larger: pd.DataFrame) -> tuple[str, str] | None:
    first = larger["started"].min()
    last = larger["started"].max()
    days = np.maximum(first - one["started"], one["started"] - last) / pd.Timedelta(days=1)
    late = one.loc[days > BASELINE_APART_DAYS, "started"]
    if late.empty:
        return None
    started = f"{len(late)} of {_baseline(one)} started on {listed(_dates(late.sort_values()))}"
    return f"{started}, {days.max():.0f} days from", f"({' to '.join(_dates(pd.Series([first, last])))})"


def _dates(times: "pd.Series[pd.Timestamp]") -> list[str]:
    return list(dict.fromkeys(times.dt.strftime("%Y-%m-%d")))


def _other_clock(one: pd.DataFrame, larger: pd.DataFrame) -> tuple[str, str] | None:
    mhz = one["mhz"].median()
    other = larger["mhz"].median()
    if not clocks_differ(mhz, other):
        return None
    return f"the {_baseline(one)} had {mhz:,.0f} MHz,", f"{other:,.0f} MHz"


def _baseline(one: pd.DataFrame) -> str:
    return f"{count(len(one), 'run')} of {NAMES[one['framework'].iloc[0]]} on 1 worker"

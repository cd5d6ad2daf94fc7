"""Where and when the runs that are compared ran: hosts, clocks and order of both frameworks, baseline.

None of it is reason to refuse a run, as every run is sound by itself; but where one framework alone had
the slower machine or the later hours, their difference is no difference of the frameworks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from analysis.findings.check import BASELINE, NO, NOT_KNOWN, WITHOUT_RECORD, YES, Check, Pair
from analysis.study import NAMES, SERIES, Study
from analysis.text import clean, count, listed

# Up to it, no more than half of what one framework's runs used was used as much by the other's.
TOO_FEW_SHARED_HOSTS = 0.5
# Of five launches of each framework: a host that served all of one, and one of the other.
MOST_UNEQUAL_SHARE = 0.8
ROUNDING = 1e-9
# Processors change their clock in steps of 100 MHz, which are 5 % of 2 GHz: one step may be chance.
LARGEST_CLOCK_DIFFERENCE = 0.05
# Runs that trained together for less of the shorter one's time ran one after the other.
LEAST_OVERLAP = 0.5
# The repeats of a study run within hours of each other; machines are updated, filled and emptied over days.
BASELINE_APART_DAYS = 1.0
SHOWN = 3

Sides = tuple[pd.DataFrame, pd.DataFrame]


def check_hosts(study: Study) -> Check:
    """Check that runs of equal worker count ran on the same hosts, and each framework as often on each.

    A single host that served nearly all launches of one framework and hardly any of the other is enough
    to make a difference, however many others they share: an epoch lasts as long as its slowest worker.
    """
    name, runs = "same nodes", study.runs
    if (runs["hosts"] == "").all():
        return Check(name, NOT_KNOWN, WITHOUT_RECORD)
    apart = {pair: told for pair, both in sides(runs) if (told := _hosts_apart(*both))}
    if apart:
        fact = first_points(f"{point_name(pair)} {told}" for pair, told in apart.items())
        cure = "their difference may be that of the hosts (submit with --one-allocation)"
        return Check(name, NO, f"{fact}: {cure}", withholds=True, pairs=frozenset(apart))
    sets = runs.groupby("workers")["hosts"].nunique()
    differing = sets.index[sets > 1]
    if len(differing):
        workers = ", ".join(map(str, differing))
        fact = f"runs on {workers} workers used several sets of hosts; a difference may be theirs"
        return Check(name, NO, fact)
    return Check(name, YES, f"runs of equal worker count used the same hosts: {_names_of(runs)}")


def check_clocks(study: Study) -> Check:
    """Check that the cores of both frameworks ran at the same clock: medians over the runs of a point.

    A clock that never changes is that of a virtual machine's description: no measurement, unless the
    frameworks differ in it.
    """
    name = "same clock of the cores"
    clocks = {pair: _clocks(both) for pair, both in sides(_with_clocks(study))}
    apart = {pair: mhz for pair, mhz in clocks.items() if _differ(*mhz)}
    if apart:
        fact = first_points(
            f"{point_name(pair)} the runs of {NAMES['pytorch_native']} had {first:,.0f} MHz, "
            f"those of {NAMES['horovod']} {second:,.0f} MHz"
            for pair, (first, second) in apart.items()
        )
        return Check(name, NO, fact, withholds=True, pairs=frozenset(apart))
    if not clocks or any(np.isnan(mhz).any() for mhz in clocks.values()):
        return Check(name, NOT_KNOWN, "not every point of both frameworks has runs that recorded the clock")
    if study.budgets["frequency_mhz"].nunique() == 1:
        mhz = study.budgets["frequency_mhz"].iloc[0]
        fact = f"all name {mhz:,.0f} MHz at all times, as virtual machines do whatever their clock"
        return Check(name, NOT_KNOWN, fact)
    bound = f"{LARGEST_CLOCK_DIFFERENCE:.0%}".replace("%", " %")
    return Check(name, YES, f"at {count(len(clocks), 'point')} the medians are within {bound}")


def check_order(study: Study) -> Check:
    """Check that at no point one framework ran before the other as a whole.

    Of the runs of a point, ranked by their start, the two of one repeat are neighbours in an order that
    alternates, and as far apart as there are repeats where one framework ran wholly before the other. The
    median of their signed distance decides: more than half the number of repeats is "no". One run that
    came later than the others does not move a median; two of one repeat that ran at once for most of the
    shorter one's time are not apart.
    """
    name = "order interleaved in time"
    distances = {
        pair: _distance(_started(native), _started(horovod)) for pair, (native, horovod) in sides(study.runs)
    }
    known = {pair: found for pair, found in distances.items() if found is not None}
    if not known:
        return Check(
            name, NOT_KNOWN, "no point of both frameworks has two repeats with different start times"
        )
    apart = frozenset(pair for pair, (distance, repeats) in known.items() if abs(distance) > repeats / 2)
    if apart:
        at = f"at {len(apart)} of {count(len(known), 'point')}"
        fact = f"{at} one framework ran before the other ({first_points(map(point_name, sorted(apart)))})"
        drift = "a drift of the machine would look like a difference"
        return Check(name, NO, f"{fact}: {drift}", withholds=True, pairs=apart)
    return Check(name, YES, f"at {count(len(known), 'point')} the runs of both frameworks alternate")


def check_baseline(study: Study) -> Check:
    """Check that the runs on 1 worker ran where and when those of each larger count did, at their clock."""
    name, runs = BASELINE, _with_clocks(study).assign(started=_times(study.runs))
    series = [
        (one, more)
        for _, group in runs.groupby(SERIES, sort=False)
        if len(one := group[group["workers"] == 1]) and len(more := group[group["workers"] > 1])
    ]
    if not series:
        return Check(name, NOT_KNOWN, "no series has runs on 1 worker and on more")
    doubts = [doubt for one, more in series for doubt in _doubts(one, more)]
    if doubts:
        return Check(name, NO, f"{first_points(doubts)}: speed-up and efficiency compare with them")
    if any((one["hosts"] == "").any() or one["started"].isna().any() for one, _ in series):
        return Check(name, NOT_KNOWN, "not every run on 1 worker says where and when it ran")
    return Check(
        name, YES, "the runs on 1 worker ran on hosts, and within a day, of those of each larger count"
    )


def sides(runs: pd.DataFrame) -> Iterator[tuple[Pair, Sides]]:
    """Yield every pair of points of equal options and workers, with the runs of each framework."""
    native, horovod = (_points_of(runs[runs["framework"] == framework]) for framework in NAMES)
    for (options, workers, knobs), first in native.items():
        for (other_options, other_workers, other_knobs), second in horovod.items():
            if (options, workers) == (other_options, other_workers):
                yield (options, knobs, other_knobs, workers), (first, second)


def _points_of(runs: pd.DataFrame) -> dict[tuple[str, int, str], pd.DataFrame]:
    key = ["options", "workers", "knobs"]
    groups = [group for _, group in runs.groupby(key, sort=False)]
    return {
        (each["options"].iloc[0], int(each["workers"].iloc[0]), each["knobs"].iloc[0]): each
        for each in groups
    }


def _hosts_apart(native: pd.DataFrame, horovod: pd.DataFrame) -> str:
    """Return which hosts served one framework and not the other, in words; else nothing."""
    if _shared_hosts(native, horovod) <= TOO_FEW_SHARED_HOSTS:
        told = f"{_names_of(native)} served {NAMES['pytorch_native']}"
        return f"{told}, {_names_of(horovod)} {NAMES['horovod']}"
    first, second = _launches_of_hosts(native), _launches_of_hosts(horovod)
    most = MOST_UNEQUAL_SHARE - ROUNDING
    for host in sorted({*first, *second}):
        if abs(first[host] / len(native) - second[host] / len(horovod)) >= most:
            told = f"{clean(host)} served {first[host]} of {len(native)} launches"
            other = f"{second[host]} of {len(horovod)} of {NAMES['horovod']}"
            return f"{told} of {NAMES['pytorch_native']}, {other}"
    return ""


def _launches_of_hosts(side: pd.DataFrame) -> Counter[str]:
    """Return how many of these launches each host served, in any attempt."""
    return Counter(host for hosts in side["hosts"] for host in set(hosts.split()))


def _shared_hosts(native: pd.DataFrame, horovod: pd.DataFrame) -> float:
    """Return which share of the frameworks' use of hosts is equal: 1 if each host served both as much."""
    first, second = _launches_of_hosts(native), _launches_of_hosts(horovod)
    if not first or not second:
        return 1.0
    return sum(min(first[host] / first.total(), second[host] / second.total()) for host in first & second)


def _with_clocks(study: Study) -> pd.DataFrame:
    """Return the runs with the mean clock of their workers' cores, NaN where it is not recorded."""
    by_run = study.budgets.groupby("run", observed=True)["frequency_mhz"].mean()
    return study.runs.assign(mhz=study.runs["run"].map(by_run.to_dict()).astype(float))


def _differ(mhz: float, other: float) -> bool:
    return abs(mhz - other) > LARGEST_CLOCK_DIFFERENCE * max(mhz, other)


def _clocks(both: Sides) -> tuple[float, float]:
    native, horovod = (float(side["mhz"].median()) for side in both)
    return native, horovod


def _started(side: pd.DataFrame) -> pd.DataFrame:
    """Return start and end of training of each repeat whose start is known."""
    begin = _times(side)
    end = begin + pd.to_timedelta(side["training_seconds"], unit="s")
    return pd.DataFrame({"repeat": side["repeat"], "begin": begin, "end": end}).dropna(subset="begin")


def _distance(native: pd.DataFrame, horovod: pd.DataFrame) -> tuple[float, int] | None:
    """Return the median signed distance in rank of the two runs of a repeat, and the number of repeats.

    None where there are fewer than two repeats of both, or all started in the same second.
    """
    both = native.merge(horovod, on="repeat", suffixes=("_first", "_second"))
    begin = pd.concat([both["begin_first"], both["begin_second"]])
    if len(both) < 2 or begin.nunique() < 2:
        return None
    ranks = begin.rank().to_numpy()
    apart = np.where(_at_once(both), 0.0, ranks[: len(both)] - ranks[len(both) :])
    return float(np.median(apart)), len(both)


def _at_once(both: pd.DataFrame) -> "pd.Series[bool]":
    """Return which pairs of runs trained together for most of the shorter one's time."""
    ends, begins = both[["end_first", "end_second"]], both[["begin_first", "begin_second"]]
    together = ends.min(axis="columns") - begins.max(axis="columns")
    lengths = pd.concat(
        [both["end_first"] - both["begin_first"], both["end_second"] - both["begin_second"]], axis="columns"
    )
    return (together > pd.Timedelta(0)) & (together >= LEAST_OVERLAP * lengths.min(axis="columns"))


def _doubts(one: pd.DataFrame, more: pd.DataFrame) -> Iterator[str]:
    """Yield how the runs on 1 worker differ from those of larger counts, equal doubts of several as one."""
    counts: dict[tuple[str, str], list[str]] = {}
    for workers, larger in more.groupby("workers"):
        for doubt in (_other_hosts(one, larger), _other_days(one, larger), _other_clock(one, larger)):
            if doubt:
                counts.setdefault(doubt, []).append(str(workers))
    for (of_one, of_larger), larger_counts in counts.items():
        yield f"{of_one} those on {listed(larger_counts)} workers {of_larger}"


def _other_hosts(one: pd.DataFrame, larger: pd.DataFrame) -> tuple[str, str] | None:
    known = {host for hosts in larger["hosts"] for host in hosts.split()}
    strange = one[[not known.issuperset(hosts.split()) for hosts in one["hosts"]]]
    if strange.empty:
        return None
    return f"{len(strange)} of {_baseline(one)} ran on {_names_of(strange)},", f"on {_names_of(larger)}"


def _other_days(one: pd.DataFrame, larger: pd.DataFrame) -> tuple[str, str] | None:
    first, last = larger["started"].min(), larger["started"].max()
    days = np.maximum(first - one["started"], one["started"] - last) / pd.Timedelta(days=1)
    late = one[days > BASELINE_APART_DAYS]
    if late.empty:
        return None
    span = " to ".join(f"{time:%Y-%m-%d}" for time in dict.fromkeys((first.date(), last.date())))
    dates = listed(dict.fromkeys(f"{time:%Y-%m-%d}" for time in late["started"].sort_values()))
    return f"{len(late)} of {_baseline(one)} started on {dates}, {days.max():.0f} days from", f"({span})"


def _other_clock(one: pd.DataFrame, larger: pd.DataFrame) -> tuple[str, str] | None:
    mhz, other = one["mhz"].median(), larger["mhz"].median()
    if not _differ(mhz, other):
        return None
    return f"the {_baseline(one)} had {mhz:,.0f} MHz,", f"{other:,.0f} MHz"


def _baseline(one: pd.DataFrame) -> str:
    return f"{count(len(one), 'run')} of {NAMES[one['framework'].iloc[0]]} on 1 worker"


def _times(runs: pd.DataFrame) -> "pd.Series[pd.Timestamp]":
    return pd.to_datetime(runs["started_utc"], errors="coerce", utc=True, format="ISO8601")


def _names_of(runs: pd.DataFrame) -> str:
    if runs["hosts"].nunique() == 1 and len(runs["hosts"].iloc[0].split()) <= SHOWN * SHOWN:
        return clean(runs["hosts"].iloc[0])
    names = sorted({host for hosts in runs["hosts"] for host in hosts.split()})
    return _some([clean(name) for name in names], "host")


def point_name(pair: Pair) -> str:
    options, native, horovod, workers = pair
    where = "; ".join(part for part in (options, native, horovod) if part)
    return clean(f"at {count(workers, 'worker')}{f' ({where})' if where else ''}")


def first_points(parts: Iterable[str]) -> str:
    return _some(list(parts), "point", separator="; ")


def _some(texts: Sequence[str], thing: str, separator: str = ", ") -> str:
    more = len(texts) - SHOWN
    rest = f" and {count(more, f'more {thing}')}" if more > 0 else ""
    return separator.join(texts[:SHOWN]) + rest

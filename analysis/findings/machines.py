"""The checks of hosts and clocks: a slower machine of one framework alone is no slower framework."""

from collections import Counter

import numpy as np
import pandas as pd

from analysis.findings.check import WITHOUT_RECORD, Check, no, not_known, withhold_claims, yes
from analysis.findings.pairs import MOST_EXAMPLES, Sides, first_points, point_name, sides
from analysis.study import Study
from analysis.text import clean, count, first_of

# Up to it, no more than half of what one framework's runs used was used as much by the other's.
TOO_FEW_SHARED_HOSTS = 0.5
# Of five launches of each framework: a host that served all of one, and one of the other.
MOST_UNEQUAL_SHARE = 0.8
_ROUNDING = 1e-9
# Processors change their clock in steps of 100 MHz, which are 5 % of 2 GHz: one step may be chance.
LARGEST_CLOCK_DIFFERENCE = 0.05
# So many hosts of a single set are listed in full.
MOST_HOSTS_LISTED = 9


def check_hosts(study: Study) -> Check:
    """Check that runs of equal worker count ran on the same hosts, and each framework as often on each.

    A single host that served nearly all launches of one framework and hardly any of the other is enough
    to make a difference, however many others they share: an epoch lasts as long as its slowest worker.
    """
    runs = study.runs
    if (runs["hosts"] == "").all():
        return not_known(WITHOUT_RECORD)
    if are_on_one_machine(runs):
        return yes("all hosts are those of a slowed virtual cluster, and so of one machine")
    apart = {pair: hosts for pair, both in sides(runs) if (hosts := _hosts_apart(both, study.compared_names))}
    if apart:
        fact = first_points(f"{point_name(pair)} {hosts}" for pair, hosts in apart.items())
        cure = "their difference may be that of the hosts (submit with --one-allocation)"
        return withhold_claims(f"{fact}: {cure}", apart)
    sets = runs.groupby("workers")["hosts"].nunique()
    differing = ", ".join(map(str, sets.index[sets > 1]))
    if differing:
        return no(f"runs on {differing} workers used several sets of hosts; a difference may be theirs")
    return yes(f"runs of equal worker count used the same hosts: {host_names(runs)}")


def are_on_one_machine(runs: pd.DataFrame) -> bool:
    """Return whether the hosts of these runs are parts of one machine, those of a slowed virtual cluster."""
    return bool((runs["dilation"] > 1).all())


def _hosts_apart(both: Sides, names: tuple[str, str]) -> str:
    """Return which hosts served one framework and not the other, in words; else nothing."""
    first, second = map(_launches_of_hosts, both)
    if _shared_use(first, second) <= TOO_FEW_SHARED_HOSTS:
        native, horovod = map(host_names, both)
        return f"{native} served {names[0]}, {horovod} {names[1]}"
    launches = tuple(map(len, both))
    for host in sorted({*first, *second}):
        difference = first[host] / launches[0] - second[host] / launches[1]
        if abs(difference) >= MOST_UNEQUAL_SHARE - _ROUNDING:
            served = f"{clean(host)} served {first[host]} of {launches[0]} launches of {names[0]}"
            return f"{served}, {second[host]} of {launches[1]} of {names[1]}"
    return ""


def _launches_of_hosts(side: pd.DataFrame) -> Counter[str]:
    """Return how many of these launches each host served, in any attempt."""
    return Counter(host for hosts in side["hosts"] for host in set(hosts.split()))


def _shared_use(first: Counter[str], second: Counter[str]) -> float:
    """Return which share of the frameworks' use of hosts is equal: 1 if each host served both as much."""
    if not first or not second:
        return 1.0
    return sum(min(first[host] / first.total(), second[host] / second.total()) for host in first & second)


def host_names(runs: pd.DataFrame) -> str:
    """Return the hosts of these runs: all of a single set that is not long, else the first names."""
    names = sorted({host for hosts in runs["hosts"] for host in hosts.split()})
    one_set = runs["hosts"].nunique() == 1 and len(names) <= MOST_HOSTS_LISTED
    return (
        clean(runs["hosts"].iloc[0])
        if one_set
        else first_of([clean(name) for name in names], "host", MOST_EXAMPLES)
    )


def check_clocks(study: Study) -> Check:
    """Check that the cores of both frameworks ran at the same clock: medians over the runs of a point.

    A clock that never changes is that of a virtual machine's description: no measurement, unless the
    frameworks differ in it.
    """
    clocks = {pair: _median_clocks(both) for pair, both in sides(with_clocks(study))}
    apart = {pair: mhz for pair, mhz in clocks.items() if clocks_differ(*mhz)}
    if apart:
        named = (
            f"{point_name(pair)} {_both_clocks(mhz, study.compared_names)}" for pair, mhz in apart.items()
        )
        return withhold_claims(first_points(named), apart)
    if not clocks or np.isnan(list(clocks.values())).any():
        return not_known("not every point of both frameworks has runs that recorded the clock")
    return _equal_clocks(len(clocks), study.budgets["frequency_mhz"])


def _equal_clocks(points: int, recorded: "pd.Series[float]") -> Check:
    if recorded.nunique() == 1:
        fact = f"all name {recorded.iloc[0]:,.0f} MHz at all times"
        return not_known(f"{fact}, as virtual machines do whatever their clock")
    bound = f"{100 * LARGEST_CLOCK_DIFFERENCE:.0f} %"
    return yes(f"at {count(points, 'point')} the medians are within {bound}")


def _both_clocks(mhz: tuple[float, float], names: tuple[str, str]) -> str:
    return f"the runs of {names[0]} had {mhz[0]:,.0f} MHz, those of {names[1]} {mhz[1]:,.0f} MHz"


def with_clocks(study: Study) -> pd.DataFrame:
    """Return the runs with `mhz`, the mean clock of their workers' cores, NaN where it is not recorded."""
    by_run = study.budgets.groupby("run", observed=True)["frequency_mhz"].mean()
    return study.runs.assign(mhz=study.runs["run"].map(by_run.to_dict()).astype(float))


def clocks_differ(mhz: float, other: float) -> bool:
    """Return whether two clocks differ by more than a step of 100 MHz of a slow processor."""
    return abs(mhz - other) > LARGEST_CLOCK_DIFFERENCE * max(mhz, other)


def _median_clocks(both: Sides) -> tuple[float, float]:
    native, horovod = (float(side["mhz"].median()) for side in both)
    return native, horovod

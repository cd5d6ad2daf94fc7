"""The checks of hosts and clocks: a slower machine of one framework alone is no slower framework."""

import numpy as np
import pandas as pd

from analysis.facts import PLACES
from analysis.findings.check import (
    WITHOUT_RECORD,
    YES,
    Check,
    PointPair,
    known_of_one,
    no,
    not_known,
    withhold_claims,
    yes,
)
from analysis.findings.headers import check_facts
from analysis.findings.pairs import MOST_EXAMPLES, Sides, first_points, in_both, point_name, sides
from analysis.study import Study
from analysis.text import clean, count, first_of, number

# Processors change their clock in steps of 100 MHz, which are 5 % of 2 GHz: one step may be chance.
LARGEST_CLOCK_DIFFERENCE = 0.05
_ROUNDING = 1e-9
# GPUs that wait need more energy for an image, never less: those of the slower framework need less only where
# they were held to less power. NVML's readings are of moments, and good to some per cent.
LARGEST_ENERGY_DIFFERENCE = 0.15
ENERGY = "joules_per_image"
# Column -> what it is, its unit, and by which share of the larger the medians may differ.
CLOCKS = {
    "mhz": ("clock of the cores", "MHz", LARGEST_CLOCK_DIFFERENCE),
    "gpu_power_limit_watts": ("power limit of the GPUs", "W", _ROUNDING),
    ENERGY: ("energy of an image", "J", LARGEST_ENERGY_DIFFERENCE),
}
# So many hosts of a single set are listed in full.
MOST_HOSTS_LISTED = 9


def check_places(study: Study) -> Check:
    """Check that runs of equal worker count ran on the same hosts, devices, cores and partition."""
    runs = study.runs
    if not study.headers or (runs["hosts"] == "").all():
        return not_known(WITHOUT_RECORD)
    if are_on_one_machine(runs):
        return yes("all hosts are those of a slowed virtual cluster, and so of one machine")
    found = check_facts(PLACES, study)
    sets = runs.groupby("workers")["hosts"].nunique()
    differing = ", ".join(map(str, sets.index[sets > 1]))
    if found.mark == YES and differing:
        return no(f"runs on {differing} workers used several sets of hosts; a difference may be theirs")
    return found


def are_on_one_machine(runs: pd.DataFrame) -> bool:
    """Return whether the hosts of these runs are parts of one machine, those of a slowed virtual cluster."""
    return bool((runs["dilation"] > 1).all())


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
    """Check that cores and GPUs of both frameworks had the same clock and power: medians over a point's runs.

    A clock that never changes is that of a virtual machine's description: no measurement, unless the
    frameworks differ in it.
    """
    measured = with_clocks(study)
    apart: dict[PointPair, str] = {}
    one_sided: dict[PointPair, str] = {}
    known = []
    for pair, both in sides(measured):
        for column, (name, unit, most) in CLOCKS.items():
            first, second = (float(side[column].median()) for side in both)
            values = [[] if np.isnan(each) else [f"{number(each, '~3')} {unit}"] for each in (first, second)]
            words = f"{point_name(pair)} {in_both(name, values, study.compared_names)}"
            if np.isnan(first) != np.isnan(second):
                one_sided.setdefault(pair, words)
            elif column == ENERGY and _needs_more_where_slower(both):
                continue
            elif abs(first - second) > most * max(first, second):
                apart.setdefault(pair, words)
        known.append(bool(both[0]["mhz"].notna().any() and both[1]["mhz"].notna().any()))
    if apart:
        return withhold_claims(first_points(apart.values()), {*apart, *one_sided})
    if one_sided:
        return known_of_one(first_points(one_sided.values()), one_sided)
    if not all(known) or not known:
        return not_known("not every point of both frameworks has runs that recorded the clock")
    return _equal_clocks(len(known), study.budgets["frequency_mhz"])


def _needs_more_where_slower(both: Sides) -> bool:
    """Return whether the slower framework's GPUs need no less energy for an image than the faster one's."""
    speeds, energies = ([side[column].median() for side in both] for column in ("images_per_second", ENERGY))
    return bool((speeds[0] - speeds[1]) * (energies[0] - energies[1]) < 0)


def _equal_clocks(points: int, recorded: "pd.Series[float]") -> Check:
    if recorded.nunique() == 1:
        fact = f"all name {recorded.iloc[0]:,.0f} MHz at all times"
        return not_known(f"{fact}, as virtual machines do whatever their clock")
    bound = f"{100 * LARGEST_CLOCK_DIFFERENCE:.0f} %"
    return yes(f"at {count(points, 'point')} the medians are within {bound}")


def with_clocks(study: Study) -> pd.DataFrame:
    """Return the runs with `mhz`, the mean clock of their workers' cores, and power and energy of their GPUs.

    NaN where it is not recorded.
    """
    columns = ["frequency_mhz", "gpu_power_limit_watts", "gpu_power_watts"]
    budgets = study.budgets[columns].astype(float)
    means = budgets.groupby(study.budgets["run"].astype(str)).mean()
    runs = study.runs.join(means.rename(columns={"frequency_mhz": "mhz"}), on="run")
    return runs.assign(**{ENERGY: runs["gpu_power_watts"] * runs["workers"] / runs["images_per_second"]})


def clocks_differ(mhz: float, other: float) -> bool:
    """Return whether two clocks differ by more than a step of 100 MHz of a slow processor."""
    return abs(mhz - other) > LARGEST_CLOCK_DIFFERENCE * max(mhz, other)

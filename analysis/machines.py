"""Checks of where and when runs trained: clock of the cores, order, other runs at once, the runs on 1 worker.

A slower machine, or a drift of one, that meets one framework alone is no slower framework.
"""

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pandas as pd
from scipy import stats  # type: ignore[import-untyped]

from analysis.facts import hosts
from analysis.pairs import (
    MOST_EXAMPLES,
    Check,
    PointPair,
    Sides,
    first_points,
    in_both,
    known_of_one,
    names_of_pair,
    no,
    not_known,
    pairs_known_of_one,
    pairs_of,
    point_name,
    side_by_side,
    sides,
    withhold_claims,
    yes,
)
from analysis.study import NAMES, SERIES, Study
from analysis.text import clean, count, first_of, listed, number
from unet_scaling.study.record_checks import owned_devices

ONE_WORKER = "equal on 1 worker"
WITHOUT_RECORD = "these logs do not say"
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
# Runs that trained together for less of the shorter one's time ran one after the other.
LEAST_OVERLAP = 0.5
# In so few honest comparisons does one framework come first as often by chance: 9 pairs of 9, 14 of 15. A
# report of four frameworks makes three of them.
CHANCE_OF_ORDER_SHARE = 0.005
# The repeats of a study run within hours of each other; machines are updated, filled and emptied over days.
BASELINE_APART_DAYS = 1.0
# In studies of emulated workers on quiet machines Horovod's thread cost up to 1.4 % on 1 worker.
LARGEST_DIFFERENCE_OF_ONE_SHARE = 0.02
# Start times are whole seconds.
CLOCK_STEP_SECONDS = 1.0

# A host, a device, or a core of a host: its kind and its name.
Resource = tuple[str, str]
# Both runs, and what they shared.
Clash = tuple[str, str, str]
FREE = (-math.inf, "")


def are_on_one_machine(runs: pd.DataFrame) -> bool:
    """Return whether the hosts of these runs are parts of one machine, those of a slowed virtual cluster."""
    return bool((runs["dilation"] > 1).all())


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


def start_times(runs: pd.DataFrame) -> "pd.Series[pd.Timestamp]":
    """Return when each run started, NaT where the record does not say."""
    return pd.to_datetime(runs["started_utc"], errors="coerce", utc=True, format="ISO8601")


def check_clocks(study: Study) -> Check:
    """Check that cores and GPUs of both frameworks had the same clock and power: medians over a point's runs.

    A clock that never changes is that of a virtual machine's description: no measurement, unless the
    frameworks differ in it.
    """
    apart: dict[PointPair, str] = {}
    one_sided: dict[PointPair, str] = {}
    known = []
    for pair, both in sides(with_clocks(study)):
        for column, (name, unit, most) in CLOCKS.items():
            first, second = (float(side[column].median()) for side in both)
            values = [[] if np.isnan(each) else [f"{number(each, '~3')} {unit}"] for each in (first, second)]
            words = f"{point_name(pair)} {in_both(name, values, names_of_pair(study, pair))}"
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
    recorded = study.budgets["frequency_mhz"]
    if recorded.nunique() == 1:
        fact = f"all name {recorded.iloc[0]:,.0f} MHz at all times"
        return not_known(f"{fact}, as virtual machines do whatever their clock")
    return yes(
        f"at {count(len(known), 'point')} the medians are within {100 * LARGEST_CLOCK_DIFFERENCE:.0f} %"
    )


def _needs_more_where_slower(both: Sides) -> bool:
    """Return whether the slower framework's GPUs need no less energy for an image than the faster one's."""
    speeds, energies = ([side[column].median() for side in both] for column in ("images_per_second", ENERGY))
    return bool((speeds[0] - speeds[1]) * (energies[0] - energies[1]) < 0)


def check_order(study: Study) -> Check:
    """Check that at no point one framework ran before the other as a whole.

    Of the runs of a point, ranked by their start, the two of one repeat are neighbours in an order that
    alternates, and as far apart as there are repeats where one framework ran wholly before the other. The
    median of their signed distance decides: more than half the number of repeats is "no". One run that
    came later than the others does not move a median; two of one repeat that ran at once for most of the
    shorter one's time are not apart.
    """
    distances = {pair: _distance(*map(_trained, both)) for pair, both in sides(study.runs)}
    known = {pair: distance for pair, distance in distances.items() if distance is not None}
    one_sided = pairs_known_of_one(study.runs, study.runs.loc[start_times(study.runs).notna(), "run"])
    if one_sided:
        where = first_points(map(point_name, one_sided))
        return known_of_one(f"{where} only one framework's runs say when they started", one_sided)
    if not known:
        return not_known("no point of both frameworks has two repeats with different start times")
    apart = sorted(pair for pair, (distance, repeats) in known.items() if abs(distance) > repeats / 2)
    if apart:
        where = f"at {len(apart)} of {count(len(known), 'point')}"
        fact = f"{where} one framework ran before the other ({first_points(map(point_name, apart))})"
        return withhold_claims(f"{fact}: a drift of the machine would look like a difference", apart)
    return yes(f"at {count(len(known), 'point')} the runs of both frameworks alternate")


def check_first(study: Study) -> Check:
    """Check that of the two runs of a repeat now one framework's, now the other's began first."""
    times = study.runs.join(_trained(study.runs)[["begin", "end"]])
    both = side_by_side(times, ["options", "workers", "repeat"]).dropna(
        subset=["begin_native", "begin_other"]
    )
    in_turn = both[~_together(both) & (both["begin_native"] != both["begin_other"])]
    if in_turn.empty:
        return not_known("no two runs of one repeat are known to have run one after the other")
    native, other = names_of_pair(study, pairs_of(in_turn)[0])
    first = int((in_turn["begin_native"] < in_turn["begin_other"]).sum())
    pairs = count(len(in_turn), "pair")
    most, name = max((first, native), (len(in_turn) - first, other))
    if stats.binomtest(most, len(in_turn)).pvalue < CHANCE_OF_ORDER_SHARE:
        ordered = f"{name} came first in {most} of {pairs} of runs of one repeat"
        return no(f"{ordered}: what the first of two leaves to the second would look like a difference")
    return yes(f"{native} came first in {first} of {pairs}")


def _trained(side: pd.DataFrame) -> pd.DataFrame:
    """Return start and end of training of each repeat whose start is known, by the clock of its machine."""
    begin = start_times(side)
    end = begin + pd.to_timedelta(side["training_seconds"] * side["dilation"], unit="s")
    return pd.DataFrame({"repeat": side["repeat"], "begin": begin, "end": end}).dropna(subset="begin")


def _distance(native: pd.DataFrame, other: pd.DataFrame) -> tuple[float, int] | None:
    """Return the median signed distance in rank of the two runs of a repeat, and the number of repeats.

    None where there are fewer than two repeats of both, or all started in the same second.
    """
    both = native.merge(other, on="repeat", suffixes=("_native", "_other"))
    begin = pd.concat([both["begin_native"], both["begin_other"]])
    if len(both) < 2 or begin.nunique() < 2:
        return None
    native_rank, other_rank = begin.rank().to_numpy().reshape(2, -1)
    return float(np.median(np.where(_together(both), 0.0, native_rank - other_rank))), len(both)


def _together(both: pd.DataFrame) -> "pd.Series[bool]":
    """Return which pairs of runs trained together for most of the shorter one's time."""
    native = both["end_native"] - both["begin_native"]
    other = both["end_other"] - both["begin_other"]
    shorter = native.where(native <= other, other)
    first_end = both[["end_native", "end_other"]].min(axis="columns")
    overlap = first_end - both[["begin_native", "begin_other"]].max(axis="columns")
    return (overlap > pd.Timedelta(0)) & (overlap >= LEAST_OVERLAP * shorter)


def check_alone(study: Study) -> Check:
    """Check that no run of the study trained at the same time as another on one core or device.

    Another may be one of whose header and epochs alone the study tells, beside its runs.
    A run trained at least from its last attempt's start for as long as that attempt's epochs say: what its
    processes took to start and its evaluations come on top, and are not counted.
    """
    if not study.headers:
        return not_known("the records of scripts do not say" if study.is_of_scripts else WITHOUT_RECORD)
    own = set(study.runs["run"])
    trained = _last_attempts(study)
    clashes = [clash for clash in _clashes_of_cores(study, trained) if own & {*clash[:2]}]
    if clashes:
        first, second, shared = clashes[0]
        more = f" (and {count(len(clashes) - 1, 'more pair')})" if len(clashes) > 1 else ""
        both_runs = f"{clean(first)} and {clean(second)}"
        fact = f"{both_runs} trained at the same time on {shared}{more}: each slows the other"
        concerned = _runs_of(clashes)
        pairs = [pair for pair, both in sides(study.runs) if any(concerned & {*side["run"]} for side in both)]
        return withhold_claims(fact, pairs) if pairs else no(fact)
    unknown = int(trained["begin"].isna().sum())
    if unknown:
        return not_known(f"{unknown} of {count(len(trained), 'run')} do not say when they started")
    return yes("no two runs trained at the same time on one core or device")


def clashes_of(study: Study) -> list[Clash]:
    """Return both runs and what they shared, for each run that began while another held a core of its own."""
    return _clashes_of_cores(study, _last_attempts(study))


def _clashes_of_cores(study: Study, trained: pd.DataFrame) -> list[Clash]:
    in_order = trained.dropna().sort_values("begin", kind="stable")
    # Cores are many: only of runs that a host served at the same time are they looked up.
    by_host = {run: [("host", host) for host in hosts([header])] for run, header in study.headers.items()}
    together = _runs_of(_clashes(in_order, by_host))
    owned = {
        run: [each for worker in study.headers[run].workers for each in owned_devices(worker)]
        for run in together
    }
    return list(_clashes(in_order[in_order.index.isin(together)], owned))


def _runs_of(clashes: Iterable[Clash]) -> set[str]:
    return {run for clash in clashes for run in clash[:2]}


def _last_attempts(study: Study) -> pd.DataFrame:
    """Return begin and end, in seconds, of what the last attempt of each run trained."""
    started = pd.Series({run: header.started_utc for run, header in study.headers.items()})
    times = pd.to_datetime(started, errors="coerce", utc=True, format="ISO8601")
    begin = (times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    resumed = {run: header.resumed for run, header in study.headers.items()}
    first_epochs = {run: at.epoch + (at.step > 0) if at else 0 for run, at in resumed.items()}
    epochs = study.epochs[["run", "epoch", "seconds"]].assign(run=study.epochs["run"].astype(str))
    own = epochs[epochs["epoch"] >= epochs["run"].map(first_epochs).astype(int)]
    # What a dilated cluster records lasts as many times longer by the clock that says when runs started.
    slowed = pd.Series({run: header.dilation or 1.0 for run, header in study.headers.items()})
    seconds = own.groupby("run")["seconds"].sum().reindex(begin.index).fillna(0.0)
    return pd.DataFrame({"begin": begin, "end": begin + seconds * slowed})


def _clashes(trained: pd.DataFrame, resources: Mapping[str, list[Resource]]) -> Iterator[Clash]:
    """Yield, for each run that began while another held one of its resources, both runs and that resource.

    `trained` is sorted by begin, so that the last end of each core and device is all there is to keep.
    """
    last: dict[Resource, tuple[float, str]] = {}
    for run, begin, end in trained.itertuples(name=None):
        held = resources[run]
        # By (end, run): what is free has ended before all others.
        clash = next((each for each in held if last.get(each, FREE)[0] > begin + CLOCK_STEP_SECONDS), None)
        if clash:
            yield last[clash][1], run, clean(" ".join(clash))
        for resource in held:
            last[resource] = max(last.get(resource, (end, run)), (end, run))


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
            f"{NAMES[row['framework']]} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
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
    return f"{len(strange)} of {_baseline(one)} ran on {_host_names(strange)},", f"on {_host_names(larger)}"


def _host_names(runs: pd.DataFrame) -> str:
    """Return the hosts of these runs: all of a single set that is not long, else the first names."""
    names = sorted({host for hosts in runs["hosts"] for host in hosts.split()})
    if runs["hosts"].nunique() == 1 and len(names) <= MOST_HOSTS_LISTED:
        return clean(runs["hosts"].iloc[0])
    return first_of([clean(name) for name in names], "host", MOST_EXAMPLES)


def _other_days(one: pd.DataFrame, larger: pd.DataFrame) -> tuple[str, str] | None:
    ends = [larger["started"].min(), larger["started"].max()]
    days = np.maximum(ends[0] - one["started"], one["started"] - ends[1]) / pd.Timedelta(days=1)
    late = one.loc[days > BASELINE_APART_DAYS, "started"]
    if late.empty:
        return None
    dates = dict.fromkeys(f"{time:%Y-%m-%d}" for time in late.sort_values())
    started = f"{len(late)} of {_baseline(one)} started on {listed(dates)}"
    span = " to ".join(dict.fromkeys(f"{time:%Y-%m-%d}" for time in ends))
    return f"{started}, {days.max():.0f} days from", f"({span})"


def _other_clock(one: pd.DataFrame, larger: pd.DataFrame) -> tuple[str, str] | None:
    mhz, other = one["mhz"].median(), larger["mhz"].median()
    if not clocks_differ(mhz, other):
        return None
    return f"the {_baseline(one)} had {mhz:,.0f} MHz,", f"{other:,.0f} MHz"


def _baseline(one: pd.DataFrame) -> str:
    return f"{count(len(one), 'run')} of {NAMES[one['framework'].iloc[0]]} on 1 worker"

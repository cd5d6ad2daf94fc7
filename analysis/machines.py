"""Checks of where and when runs trained: clock of the cores, order, other runs at once, the runs on 1 worker.

A slower machine, or a drift of one, that meets one framework alone is no slower framework. Nor is one whose
launches were chosen by their results: what was asked for is checked against what is read.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from analysis.contrast import (
    MOST_EXAMPLES,
    Check,
    PointPair,
    Sides,
    first_points,
    grouped,
    in_both,
    known_of_one,
    names_of_pair,
    no,
    not_known,
    point_name,
    repeats_of,
    sides,
    with_clocks,
    withhold_claims,
    yes,
)
from analysis.facts import hosts
from analysis.study import ABSENT, COMPARED, IS_READ, NAMES, NAN, NOT_ASKED, NOT_RECORDED, SERIES, Study
from analysis.text import Row, clean, count, first_of, listed, number
from unet_scaling.study.config import Framework
from unet_scaling.study.record import owned_devices
from unet_scaling.study.record_lines import Header
from unet_scaling.study.repeats import FIXED_SIGNIFICANCE

ONE_WORKER = "equal on 1 worker"
# Processors change their clock in steps of 100 MHz, which are 5 % of 2 GHz: one step may be chance.
LARGEST_CLOCK_DIFFERENCE = 0.05
# Runs that trained together for less of the shorter one's time ran one after the other.
LEAST_OVERLAP = 0.5
# In so few honest comparisons does one framework come first as often by chance: 9 pairs of 9, 14 of 15. A
# report of four frameworks makes three of them.
CHANCE_OF_ORDER_SHARE = 0.005
# The repeats of a study run within hours of each other; machines are updated, filled and emptied over days.
BASELINE_APART_DAYS = 1.0
SECONDS_PER_DAY = 86_400.0
# In studies of emulated workers on quiet machines Horovod's thread cost up to 1.4 % on 1 worker.
LARGEST_DIFFERENCE_OF_ONE_SHARE = 0.02
# Start times are whole seconds.
CLOCK_STEP_SECONDS = 1.0

# A host, a device, or a core of a host: its kind and its name.
Resource = tuple[str, str]
# Both runs, and what they shared.
Clash = tuple[str, str, str]
FREE = (-math.inf, "")
# The epochs, or the evaluations, of one run: an array for each column.
RunTable = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Checked:
    """What is checked: the runs of a study, and those of native DDP beside another framework's.

    runs         rows of study.runs, with `begin` (seconds since 1970, NaN where not known) and `mhz`
    epochs, evaluations  of each run of the study
    clashes      runs of the study that trained at once on a core or device
    """

    study: Study
    runs: Sequence[Row]
    headers: Mapping[str, Header]
    sides: Mapping[PointPair, Sides]
    epochs: Mapping[str, RunTable]
    evaluations: Mapping[str, RunTable]
    clashes: Sequence[Clash]

    def of(self, framework: Framework) -> "Checked":
        """Return what is checked of the runs of native DDP and of this framework."""
        runs = [row for row in self.runs if row["framework"] in (COMPARED[0], framework)]
        headers = {row["run"]: self.headers[row["run"]] for row in runs if row["run"] in self.headers}
        of_pair = {pair: both for pair, both in self.sides.items() if pair.framework == framework}
        return replace(self, runs=runs, headers=headers, sides=of_pair)

    def known_of_one(self, known: Iterable[str]) -> list[PointPair]:
        """Return the points at which more of one framework's runs than of the other's are `known`."""
        told = {*known}
        return [
            pair
            for pair, both in self.sides.items()
            if len({sum(row["run"] in told for row in side) / len(side) for side in both}) > 1
        ]


def subject_of(study: Study) -> Checked:
    """Return what is checked of a study, read once for all checks."""
    table = with_clocks(study)
    begin = map(start_seconds, table["started_utc"])
    rows = [row | {"begin": at} for row, at in zip(table.to_dict("records"), begin, strict=True)]
    epochs = by_run(study.epochs)
    clashes = clashes_of(study.headers, epochs)
    return Checked(study, rows, study.headers, sides(rows), epochs, by_run(study.evaluations), clashes)


def by_run(table: pd.DataFrame) -> dict[str, RunTable]:
    """Return the columns of a table of runs for each run."""
    columns = {name: table[name].to_numpy() for name in table.columns if name != "run"}
    rows_of = table.groupby("run", sort=False, observed=True).indices
    return {
        str(run): {name: values[rows] for name, values in columns.items()} for run, rows in rows_of.items()
    }


def are_on_one_machine(runs: Iterable[Row]) -> bool:
    """Return whether the hosts of these runs are parts of one machine, those of a slowed virtual cluster."""
    return all(row["dilation"] > 1 for row in runs)


def clocks_differ(mhz: float, other: float) -> bool:
    """Return whether two clocks differ by more than a step of 100 MHz of a slow processor."""
    return abs(mhz - other) > LARGEST_CLOCK_DIFFERENCE * max(mhz, other)


def start_seconds(started_utc: str) -> float:
    """Return when a run started, in seconds since 1970; NaN where the record does not say."""
    try:
        started = datetime.fromisoformat(started_utc)
    except ValueError:
        return NAN
    return (started if started.tzinfo else started.replace(tzinfo=UTC)).timestamp()


def _median(runs: Iterable[Row], column: str) -> float:
    """Return the median of what these runs recorded; NaN where none did."""
    known = [row[column] for row in runs if not math.isnan(row[column])]
    return float(np.median(known)) if known else NAN


def check_clocks(subject: Checked) -> Check:
    """Check that the cores of both frameworks had the same clock: medians over a point's runs.

    A clock that never changes is that of a virtual machine's description: no measurement, unless the
    frameworks differ in it.
    """
    apart: dict[PointPair, str] = {}
    one_sided: dict[PointPair, str] = {}
    for pair, both in subject.sides.items():
        medians = [_median(side, "mhz") for side in both]
        is_of_one = math.isnan(medians[0]) != math.isnan(medians[1])
        if clocks_differ(*medians) or is_of_one:
            values = [[] if math.isnan(each) else [f"{number(each, '~3')} MHz"] for each in medians]
            words = in_both("clock of the cores", values, names_of_pair(subject.study, pair))
            (one_sided if is_of_one else apart)[pair] = f"{point_name(pair)} {words}"
    if apart:
        return withhold_claims(first_points(apart.values()), {*apart, *one_sided})
    if one_sided:
        return known_of_one(first_points(one_sided.values()), one_sided)
    clocks = [_median(side, "mhz") for both in subject.sides.values() for side in both]
    if not clocks or any(map(math.isnan, clocks)):
        return not_known("not every point of both frameworks has runs that recorded the clock")
    budgets = subject.study.budgets
    recorded = budgets["frequency_mhz"][budgets["run"].isin([row["run"] for row in subject.runs])]
    if recorded.nunique() == 1:
        fact = f"all name {recorded.iloc[0]:,.0f} MHz at all times"
        return not_known(f"{fact}, as virtual machines do whatever their clock")
    points = count(len(subject.sides), "point")
    return yes(f"at {points} the medians are within {100 * LARGEST_CLOCK_DIFFERENCE:.0f} %")


def check_order(subject: Checked) -> Check:
    """Check that at no point one framework ran before the other as a whole.

    Of the runs of a point, ranked by their start, the two of one repeat are neighbours in an order that
    alternates, and as far apart as there are repeats where one framework ran wholly before the other. The
    median of their signed distance decides: more than half the number of repeats is "no". One run that
    came later than the others does not move a median; two of one repeat that ran at once for most of the
    shorter one's time are not apart.
    """
    known_starts = [row["run"] for row in subject.runs if not math.isnan(row["begin"])]
    known: dict[PointPair, tuple[float, int]] = {}
    for pair, both in subject.sides.items():
        repeats = _timed(both)
        begin = [row["begin"] for arm in zip(*repeats, strict=True) for row in arm]
        if len(repeats) > 1 and len({*begin}) > 1:
            native, other = pd.Series(begin).rank().to_numpy().reshape(2, -1)
            together = [_together(*each) for each in repeats]
            known[pair] = float(np.median(np.where(together, 0.0, native - other))), len(repeats)
    if one_sided := subject.known_of_one(known_starts):
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


def check_first(subject: Checked) -> Check:
    """Check that of the two runs of a repeat now one framework's, now the other's began first."""
    in_turn = [
        (native["begin"], other["begin"])
        for both in subject.sides.values()
        for native, other in _timed(both)
        if native["begin"] != other["begin"] and not _together(native, other)
    ]
    if not in_turn:
        return not_known("no two runs of one repeat are known to have run one after the other")
    name, other_name = names_of_pair(subject.study, next(iter(subject.sides)))
    first = sum(native < other for native, other in in_turn)
    pairs = count(len(in_turn), "pair")
    most, who = max((first, name), (len(in_turn) - first, other_name))
    # By the two-sided sign test.
    if 2 * special.bdtrc(most - 1, len(in_turn), 0.5) < CHANCE_OF_ORDER_SHARE:
        ordered = f"{who} came first in {most} of {pairs} of runs of one repeat"
        return no(f"{ordered}: that alone may make a difference")
    return yes(f"{name} came first in {first} of {pairs}")


def _timed(both: Sides) -> list[tuple[Row, Row]]:
    """Return the two runs of each repeat whose starts are known."""
    return [each for each in repeats_of(both) if not any(math.isnan(row["begin"]) for row in each)]


def _together(native: Row, other: Row) -> bool:
    """Return whether two runs trained together for most of the shorter one's time."""
    lasted = [row["training_seconds"] * row["dilation"] for row in (native, other)]
    ends = [row["begin"] + seconds for row, seconds in zip((native, other), lasted, strict=True)]
    overlap = min(ends) - max(native["begin"], other["begin"])
    return bool(overlap > 0 and overlap >= LEAST_OVERLAP * min(lasted))


def check_alone(subject: Checked) -> Check:
    """Check that no run of these trained at the same time as another of the study on one core or device.

    A run trained at least from its last attempt's start for as long as that attempt's epochs say: what its
    processes took to start and its evaluations come on top, and are not counted.
    """
    study = subject.study
    if not study.headers:
        return not_known(NOT_RECORDED)
    own = {row["run"] for row in subject.runs}
    clashes = [clash for clash in subject.clashes if own & {*clash[:2]}]
    if clashes:
        fact = f"{at_once(clashes)}: each slows the other"
        concerned = _runs_of(clashes)
        runs_at = {
            pair: {row["run"] for side in both for row in side} for pair, both in subject.sides.items()
        }
        pairs = [pair for pair, runs in runs_at.items() if runs & concerned]
        return withhold_claims(fact, pairs) if pairs else no(fact)
    unknown = sum(math.isnan(start_seconds(header.started_utc)) for header in study.headers.values())
    if unknown:
        return not_known(f"{unknown} of {count(len(study.headers), 'run')} do not say when they started")
    return yes("no two runs trained at the same time on one core or device")


def at_once(clashes: Sequence[Clash]) -> str:
    """Return the first two of these runs with what they shared, and how many more pairs there are."""
    first, second, shared = clashes[0]
    more = f" (and {count(len(clashes) - 1, 'more pair')})" if len(clashes) > 1 else ""
    return f"{clean(first)} and {clean(second)} trained at the same time on {shared}{more}"


def clashes_of(headers: Mapping[str, Header], epochs: Mapping[str, RunTable]) -> list[Clash]:
    """Return both runs and what they shared, for each run that began while another held a core of its own."""
    trained = []
    for run, header in headers.items():
        begin = start_seconds(header.started_utc)
        first = header.resumed.epoch + (header.resumed.step > 0) if header.resumed else 0
        own = epochs.get(run)
        seconds = float(own["seconds"][own["epoch"] >= first].sum()) if own else 0.0
        if not math.isnan(begin):
            # A dilated cluster records seconds that last as many times longer by the clock of the starts.
            trained.append((run, begin, begin + seconds * (header.dilation or 1.0)))
    trained.sort(key=lambda each: each[1])
    # Cores are many: only of runs that a host served at the same time are they looked up.
    by_host = {run: [("host", host) for host in hosts([header])] for run, header in headers.items()}
    together = _runs_of(_clashes(trained, by_host))
    owned = {
        run: [each for worker in headers[run].workers for each in owned_devices(worker)] for run in together
    }
    return list(_clashes([each for each in trained if each[0] in together], owned))


def _runs_of(clashes: Iterable[Clash]) -> set[str]:
    return {run for clash in clashes for run in clash[:2]}


def _clashes(
    trained: Iterable[tuple[str, float, float]], resources: Mapping[str, list[Resource]]
) -> Iterator[Clash]:
    """Yield, for each run that began while another held one of its resources, both runs and that resource.

    `trained` is sorted by begin, so that the last end of each core and device is all there is to keep.
    """
    last: dict[Resource, tuple[float, str]] = {}
    for run, begin, end in trained:
        held = resources[run]
        # By (end, run): what is free has ended before all others.
        clash = next((each for each in held if last.get(each, FREE)[0] > begin + CLOCK_STEP_SECONDS), None)
        if clash:
            yield last[clash][1], run, clean(" ".join(clash))
        for resource in held:
            last[resource] = max(last.get(resource, (end, run)), (end, run))


def check_baseline(subject: Checked) -> Check:
    """Check that the runs on 1 worker ran where and when those of each larger count did, at their clock."""
    doubts: list[str] = []
    of_series: list[Row] = []
    for runs in grouped(subject.runs, SERIES).values():
        one = [row for row in runs if row["workers"] == 1]
        if len(one) in (0, len(runs)):
            continue
        of_series += one
        counts: dict[tuple[str, str], list[str]] = {}
        for (workers,), larger in sorted(grouped(runs, ["workers"]).items())[1:]:
            for differ in (_other_hosts, _other_days, _other_clock):
                if doubt := differ(one, larger):
                    counts.setdefault(doubt, []).append(str(workers))
        doubts += [
            f"{of_one} those on {listed(larger_counts)} workers {of_larger}"
            for (of_one, of_larger), larger_counts in counts.items()
        ]
    if not of_series:
        return not_known("no series has runs on 1 worker and on more")
    if doubts:
        return no(f"{first_points(doubts)}: speed-up and efficiency compare with them")
    if not all(row["hosts"] and not math.isnan(row["begin"]) for row in of_series):
        return not_known("not every run on 1 worker says where and when it ran")
    return yes("the runs on 1 worker ran on hosts, and within a day, of those of each larger count")


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


# How runs on 1 worker differ from those of a larger count: what stands before that count, and after it.
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


def _other_clock(one: Sequence[Row], larger: Sequence[Row]) -> tuple[str, str] | None:
    mhz, other = _median(one, "mhz"), _median(larger, "mhz")
    if not clocks_differ(mhz, other):
        return None
    return f"the {_baseline(one)} had {mhz:,.0f} MHz,", f"{other:,.0f} MHz"


def _baseline(one: Sequence[Row]) -> str:
    return f"{count(len(one), 'run')} of {NAMES[one[0]['framework']]} on 1 worker"


def check_asked(subject: Checked) -> Check:
    """Check that all runs that study.json asks for are read, and that no launch replaced another one.

    Repeats that are missing with a reason, or still to come, are said: the significance is that of a look
    before the end. Disturbed launches may be made again. Claims are withheld at a point where launches could
    be chosen by their results: a repeat that left nothing between those that are read, or quiet launches, or
    most of a framework's, that were made again in one framework more than in the other.
    """
    study = subject.study
    asked = study.asked
    if asked is None:
        for pair, both in subject.sides.items():
            for side in both:
                repeats = {row["repeat"] for row in side}
                missing = sorted(set(range(min(repeats), max(repeats))) - repeats)
                if missing:
                    lacking = f"{point_name(pair)} lacks repeats {listed(map(str, missing))}"
                    return no(f"no study.json says what was asked for, and {lacking}")
        return not_known("no study.json says what was asked for")
    pairs = {
        pair: [asked_at(asked, (row["run"] for row in side)) for side in both]
        for pair, both in subject.sides.items()
    }
    short = [fact for pair, arms in pairs.items() if (fact := _short(study, pair, arms))]
    facts = [f"repeats read of those asked for: {first_points(short)}"] if short else []
    chosen = {
        pair: fact for pair, arms in pairs.items() if (fact := _chosen(names_of_pair(study, pair), arms))
    }
    facts += [f"{point_name(pair)} {fact}" for pair, fact in list(chosen.items())[:1]]
    read = asked[asked["fate"].isin([IS_READ, NOT_ASKED])]
    absent = asked[~asked["point"].isin(read["point"])].drop_duplicates("point")
    if len(absent):
        named = [
            clean(f"{NAMES[row['framework']]} on {count(row['workers'], 'worker')} {row['label']}").strip()
            for row in absent.to_dict("records")
        ]
        facts.append(f"of {count(len(named), 'point')} asked for no run is read: {first_points(named)}")
    replaced = {name: int(read.loc[read["framework"] == name, "replaced"].sum()) for name in NAMES}
    again = [f"{number} of {NAMES[name]}" for name, number in replaced.items() if number]
    told = f"launches made again beside those read: {listed(again)}" if again else ""
    if not facts and not read["quiet_replaced"].any():
        disturbed = f"; {told}, all of them disturbed" if told else ""
        return yes(f"all {count(len(asked), 'run')} asked for are read{disturbed}")
    fact = "; ".join(filter(None, (*facts, told)))
    return withhold_claims(fact, chosen) if chosen else no(fact)


def asked_at(asked: pd.DataFrame, runs: Iterable[str]) -> pd.DataFrame:
    """Return what was asked for at the points of these runs."""
    return asked[asked["point"].isin(asked.loc[asked["run"].isin(list(runs)), "point"])]


def _short(study: Study, pair: PointPair, arms: list[pd.DataFrame]) -> str:
    """Return how many repeats of each framework are read, and why others are not; nothing where all are."""
    fates = [Counter(arm["fate"]) for arm in arms]
    if all(set(found) <= {IS_READ} for found in fates):
        return ""
    parts = []
    for name, found in zip(names_of_pair(study, pair), fates, strict=True):
        asked = found.total() - found[NOT_ASKED]
        others = [f"{number} {fate}" for fate, number in found.items() if fate != IS_READ]
        parts.append(f"{found[IS_READ]} of {asked} of {name}{f' ({listed(others)})' if others else ''}")
    return f"{point_name(pair)} {listed(parts)}"


def _chosen(names: tuple[str, str], arms: list[pd.DataFrame]) -> str:
    """Return how launches of a point could be chosen by their results; nothing where they could not."""
    for name, arm in zip(names, arms, strict=True):
        last = arm.loc[arm["fate"] == IS_READ, "repeat"].max()
        gaps = arm.loc[(arm["fate"] == ABSENT) & (arm["repeat"] < last), "repeat"]
        if len(gaps):
            repeats = listed(map(str, sorted(gaps)))
            return (
                f"repeats {repeats} of {name} left nothing, and later ones are read: submit the study again"
            )
    quiet = [int(arm["quiet_replaced"].sum()) for arm in arms]
    read = [arm.loc[arm["fate"].isin([IS_READ, NOT_ASKED]), "replaced"] for arm in arms]
    again_or_once = [[(replaced > 0).sum(), (replaced == 0).sum()] for replaced in read]
    if not any(again for again, _ in again_or_once):
        return ""
    # Only now: few studies need it, and it takes long to import.
    from scipy import stats

    if quiet[0] == quiet[1] and stats.fisher_exact(again_or_once).pvalue >= FIXED_SIGNIFICANCE:
        return ""
    both = [
        f"{arm['replaced'].sum()} launches of {name} ({number} of them not disturbed)"
        for name, arm, number in zip(names, arms, quiet, strict=True)
    ]
    return f"{listed(both)} were made again: the better one of each may stand"

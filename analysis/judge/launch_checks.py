"""Checks of the launches: their order, others at the same time, and whether all that were asked for are read.

A slower machine, or a drift of one, that meets one framework alone is no slower framework. Nor is one whose
launches were chosen by their results: what was asked for is checked against what is read.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from analysis.judge.chance import REFUSED, Statistics, unless_chance, unlike
from analysis.numbers.check import Check, PointPair, no, not_known, recorded_by_one, withhold_claims, yes
from analysis.numbers.contrast import (
    MOST_EXAMPLES,
    Sides,
    first_points,
    grouped,
    names_of_pair,
    point_name,
    repeats_of,
    sides,
    with_clocks,
)
from analysis.study import (
    ABSENT,
    COMPARED,
    FEWEST_REPEATS,
    IS_READ,
    NAMES,
    NAN,
    NOT_ASKED,
    NOT_RECORDED,
    POINT,
    Array,
    Names,
    Study,
)
from analysis.text import Row, clean, count, first_of, listed
from unet_scaling.format.disturbance import SHORTEST_JUDGED_SECONDS
from unet_scaling.format.facts import hosts
from unet_scaling.format.record import owned_devices
from unet_scaling.format.record_lines import Header
from unet_scaling.study.config import Framework

# Processors change their clock in steps of 100 MHz, which are 5 % of 2 GHz: one step may be chance.
LARGEST_CLOCK_DIFFERENCE = 0.05
# Runs that trained together for less of the shorter one's time ran one after the other.
LEAST_OVERLAP = 0.5
# In so few honest comparisons does one framework come first as often by chance: 9 pairs of 9, 14 of 15. A
# report of four frameworks makes three of them.
CHANCE_OF_ORDER_SHARE = 0.005
SECONDS_PER_DAY = 86_400.0
# Load, temperature and power of a site follow the hour; within a morning they do not change sides.
LEAST_HOURS_APART = 3.0
# Of all launches: a study in another order than its repeats'.
MOST_OUT_OF_ORDER = 0.3
# Of the launches of a point: more of one side's and not of the other's were disturbed.
UNEQUALLY_DISTURBED = 0.5
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

    @property
    def is_drawn(self) -> bool:
        """Whether each run was a job of its own, so that a scheduler dealt out nodes, devices and hours."""
        told = [self.headers[row["run"]] for row in self.runs if row["run"] in self.headers]
        jobs = {header.job.get("SLURM_JOB_ID") for header in told}
        return bool(told) and None not in jobs and len(jobs) == len(told)

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
    table = with_clocks(study.runs, study.budgets)
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


def check_order(subject: Checked) -> Check:
    """Check that no framework ran before the other as a whole, nor at other hours of the day.

    Of the runs of a point, ranked by their start, the two of one repeat are neighbours in an order that
    alternates, and as far apart as there are repeats where one framework ran wholly before the other. The
    median of their signed distance decides: more than half the number of repeats is "no". One run that
    came later than the others does not move a median; two of one repeat that ran at once for most of the
    shorter one's time are not apart. Jobs that started when a scheduler had room for them have an order by
    chance: there all points together are judged.
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
        return recorded_by_one(f"{where} only one framework's runs say when they started", one_sided)
    if not known:
        return not_known("no point of both frameworks has two repeats with different start times")
    apart = sorted(pair for pair, (distance, repeats) in known.items() if abs(distance) > repeats / 2)
    if apart and not subject.is_drawn:
        where = f"at {len(apart)} of {count(len(known), 'point')}"
        fact = f"{where} one framework ran before the other ({first_points(map(point_name, apart))})"
        return withhold_claims(f"{fact}: a drift of the machine would look like a difference", apart)
    timed = {pair: subject.sides[pair] for pair in known}
    dealt = list(unlike(timed, _by_hour))
    if subject.is_drawn:
        dealt += unlike(timed, _by_rank)
    return unless_chance(dealt, f"at {count(len(known), 'point')} the runs of both frameworks alternate")


def _by_rank(weights: Array, runs: Sequence[Row], pair: PointPair) -> Statistics:
    """Return by how much one framework's runs began before the other's, at all points and at each."""
    begin = pd.DataFrame({"workers": [row["workers"] for row in runs], "at": [row["begin"] for row in runs]})
    rank = begin.groupby("workers")["at"].rank(pct=True).fillna(0.5).to_numpy()
    found = {"one framework ran before the other": np.abs(weights @ rank)}
    for workers, own in begin.groupby("workers").indices.items():
        where = point_name(pair._replace(workers=int(str(workers))))
        found[f"{where} one framework ran before the other"] = np.abs(weights[:, own] @ rank[own])
    return found


def _by_hour(weights: Array, runs: Sequence[Row], _: PointPair) -> Statistics:
    """Return by how much the hours of the day differ at which the frameworks' runs began, if by hours."""
    begin = np.array([row["begin"] for row in runs], dtype=np.float64)
    hours = np.where(np.isnan(begin), 0, np.exp(2j * np.pi * begin / SECONDS_PER_DAY))
    first, second = (hours[weights[0] * sign > 0].sum() for sign in (1, -1))
    apart = abs(float(np.angle(first * np.conj(second)))) * 12 / np.pi
    if apart < LEAST_HOURS_APART:
        return {}
    return {f"the frameworks ran at hours of the day that are {apart:.0f} h apart": np.abs(weights @ hours)}


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
    name, other_name = names_of_pair(subject.study.names, next(iter(subject.sides)))
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


def check_study_order(subject: Checked) -> Check | None:
    """Say which launches began after those of later repeats; no row where none did, or none is known.

    Guards against a run that was removed and made again because of its result. One that has an earlier
    attempt on record, or an earlier launch, says itself why it came later. Jobs have the order of their
    numbers. A study that is not trained repeat by repeat has too many to mean anything.
    """
    asked = subject.study.asked
    replaced = set() if asked is None else set(asked.loc[asked["replaced"] > 0, "run"])
    begun = sorted(
        (moment, row["repeat"], row["run"])
        for row in subject.runs
        if not math.isnan(moment := _moment(row, subject))
    )
    again = [run for run in _out_of_order(begun) if run not in replaced and subject.headers[run].attempt == 1]
    if not again or len(again) > MOST_OUT_OF_ORDER * len(begun):
        return None
    late = first_of(again, "run", MOST_EXAMPLES)
    fact = f"began after launches of later repeats, with no earlier attempt on record: {late}"
    told = f"{count(len(again), 'launch')} made later than the study's order has them"
    per_side = [
        [sum(row["run"] in again for row in side) for side in both] for both in subject.sides.values()
    ]
    if any(first != second for first, second in per_side):
        return no(fact)
    return replace(yes(fact), remark=told)


def _moment(row: Row, subject: Checked) -> float:
    """Return when a run was submitted, as the number of its job, or began; NaN where that is not known."""
    job = subject.headers[row["run"]].job.get("SLURM_JOB_ID", "") if row["run"] in subject.headers else None
    if job is None:
        return NAN
    return float(job) if subject.is_drawn and job.isdigit() else float(row["begin"])


def _out_of_order(begun: Sequence[tuple[float, int, str]]) -> list[str]:
    """Return the fewest runs without which the repeats of these never fall; `begun` is sorted by time."""
    # Of each length of a series that never falls: the least repeat that ends one, and the runs of it.
    ends: list[int] = []
    series: list[list[str]] = []
    for _, repeat, run in begun:
        place = bisect_right(ends, repeat)
        ends[place : place + 1] = [repeat]
        series[place : place + 1] = [[*(series[place - 1] if place else []), run]]
    kept = set(series[-1]) if series else set()
    return [run for *_, run in begun if run not in kept]


def check_alone(subject: Checked) -> Check:
    """Check that no run of these trained at the same time as another of the study on one core or device.

    A run trained at least from its last attempt's start for as long as that attempt's epochs say: what its
    processes took to start and its evaluations come on top, and are not counted. Jobs that a scheduler put on
    one node, on cores that it does not deal out, are neighbours by chance unless one framework had more.
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

        def shared(weights: Array, runs: Sequence[Row], _: PointPair) -> Statistics:
            return {fact: np.abs(weights @ np.array([row["run"] in concerned for row in runs]))}

        if subject.is_drawn and all(each.startswith("core ") for *_, each in clashes):
            check = unless_chance(list(unlike(subject.sides, shared)), fact)
            return check if check.withholds else no(fact)
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
        fact = "no study.json says what was asked for: launches may have been chosen by their results"
        # Logs of others never have one; a study's folder was copied without it.
        return replace(not_known(fact), withholds=bool(subject.headers))
    pairs = {
        pair: [asked_at(asked, (row["run"] for row in side)) for side in both]
        for pair, both in subject.sides.items()
    }
    short = [fact for pair, arms in pairs.items() if (fact := _short(study.names, pair, arms))]
    facts = [f"fewer repeats than asked for: {first_points(short)}"] if short else []
    chosen = {
        pair: fact
        for pair, arms in pairs.items()
        if (fact := _chosen(names_of_pair(study.names, pair), arms))
    }
    facts += [f"{point_name(pair)} {fact}" for pair, fact in list(chosen.items())[:1]]
    read = asked[asked["fate"].isin([IS_READ, NOT_ASKED])]
    absent = asked[~asked["point"].isin(read["point"])].drop_duplicates("point")
    if len(absent):
        named = [
            clean(f"{NAMES[row['framework']]} on {count(row['workers'], 'worker')} {row['label']}").strip()
            for row in absent.to_dict("records")
        ]
        facts.append(f"no run is read of {first_points(named)}")
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


def _short(names: Names, pair: PointPair, arms: list[pd.DataFrame]) -> str:
    """Return how many repeats of each framework are read, and why others are not; nothing where all are."""
    fates = [Counter(arm["fate"]) for arm in arms]
    if all(set(found) <= {IS_READ} for found in fates):
        return ""
    parts = []
    for name, found in zip(names_of_pair(names, pair), fates, strict=True):
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
    from scipy.stats import fisher_exact  # type: ignore[import-untyped]

    if quiet[0] == quiet[1] and fisher_exact(again_or_once).pvalue >= REFUSED:
        return ""
    both = [
        f"{arm['replaced'].sum()} launches of {name} ({number} of them not disturbed)"
        for name, arm, number in zip(names, arms, quiet, strict=True)
    ]
    return f"{listed(both)} were made again: the better one of each may stand"


def check_quiet(subject: Checked) -> Check:
    """Check that neither other programs nor stalls disturbed launches that count for speed.

    Disturbed launches that both frameworks had by chance widen the interval: they are said. Claims are
    withheld where one framework had more of them than chance explains, or most of its launches at a point.
    """
    runs = subject.runs
    reasons = [run["disturbed"] for run in runs if run["disturbed"]]
    points = grouped(runs, POINT).values()
    kept = any(_kept_disturbed([run["disturbed"] for run in own]) for own in points)
    pairs = [
        pair
        for pair, both in subject.sides.items()
        if _kept_disturbed([native["disturbed"] or other["disturbed"] for native, other in repeats_of(both)])
    ]
    if pairs or kept:
        fact = f"{len(reasons)} of {count(len(runs), 'run')} disturbed, such as: {clean(reasons[0])}"
        of_one = [pair for pair in pairs if _more_of_one(subject.sides[pair])]
        sides = {pair: subject.sides[pair] for pair in pairs}
        check = unless_chance(list(unlike(sides, _by_disturbance)), fact)
        if of_one or check.withholds:
            return withhold_claims(fact, {*of_one, *check.pairs})
        return no(fact)
    known = {run["run"]: run["busy_share"] for run in runs if run["busy_share"] == run["busy_share"]}
    short = [
        run["run"] for run in runs if run["epochs_used"] * run["seconds_per_epoch"] < SHORTEST_JUDGED_SECONDS
    ]
    if one_sided := subject.known_of_one([*known, *short]):
        where = first_points(map(point_name, one_sided))
        return recorded_by_one(f"{where} only one framework's runs say what other processes took", one_sided)
    if len(known) < len(runs):
        return not_known("not every run recorded what other processes took of its cores")
    most = max((known[run["run"]] for run in runs if not run["disturbed"]), default=NAN)
    left_out = f"; {count(len(reasons), 'disturbed run')} left out of speed" if reasons else ""
    return yes(f"other processes took at most {100 * most:.1f} % of a worker's time{left_out}")


def _kept_disturbed(disturbed: Sequence[str]) -> bool:
    """Return whether launches of one point count for speed though some are disturbed (Study.timed)."""
    return any(disturbed) and sum(not each for each in disturbed) < FEWEST_REPEATS


def _more_of_one(both: Sides) -> bool:
    """Return whether most launches of one side were disturbed and not of the other."""
    shares = [sum(bool(run["disturbed"]) for run in side) / len(side) for side in both]
    return abs(shares[0] - shares[1]) > UNEQUALLY_DISTURBED


def _by_disturbance(weights: Array, runs: Sequence[Row], _: PointPair) -> Statistics:
    return {"disturbed": np.abs(weights @ np.array([run["disturbed"] != "" for run in runs]))}

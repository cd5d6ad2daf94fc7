"""The two studies of a comparison, called A and B: which of their points are compared, and what differs.

Settings, software, machine and data are equal, or have both values. Speeds are in doubt where launches were
disturbed, at once, chosen, or the same in both studies. IoU of other test images is not compared.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from analysis.judge.checks import disturbed_notes, work_differences
from analysis.judge.launch_checks import (
    Clash,
    asked_at,
    at_once,
    by_run,
    clashes_of,
    clocks_differ,
    start_seconds,
    subject_of,
)
from analysis.numbers.check import PointPair
from analysis.numbers.contrast import point_name, with_clocks
from analysis.numbers.iou import COUNTS
from analysis.numbers.stats import kept_though_disturbed
from analysis.read.load import FINAL_FATES, load_study
from analysis.read.options import OPERATIONAL, flat_options, labels, shown
from analysis.study import NOT_RECORDED, POINT, Score, Study
from analysis.text import clean, count, first_of
from unet_scaling.base.errors import EXIT_BAD_DATA, UserError, required_module
from unet_scaling.base.texts import CALLED
from unet_scaling.format.facts import FACTS, setting_facts, values_of, version_facts
from unet_scaling.format.record_lines import Header
from unet_scaling.study.config import ALL_FRAMEWORKS, Framework

Letter = Literal["A", "B"]
# More reasons would hide the advice; the study's own report has them all.
_MOST_REASONS = 3


@dataclass(frozen=True)
class StudyPoint:
    """A point of one study: its runs, and its options by flat key, {"training.precision": "fp32", ...}."""

    framework: Framework
    workers: int
    runs: tuple[str, ...]
    settings: Mapping[str, str]


@dataclass(frozen=True)
class StudySide:
    """One of the two studies, its folder and its points, in the order of its runs."""

    letter: Letter
    folder: Path
    study: Study
    points: tuple[StudyPoint, ...]

    @property
    def title(self) -> str:
        """Return "A (before)"."""
        return f"{self.letter} ({self.study.name})"

    def headers(self, points: Sequence[StudyPoint]) -> list[Header]:
        """Return the headers of the runs of these points; none of logs in the older layout."""
        headers = self.study.headers
        return [headers[run] for point in points for run in point.runs if run in headers]

    def label(self, point: StudyPoint, axes: Sequence[str]) -> tuple[str, str]:
        """Return what these axes say of a point: shared options, and knobs of its framework."""
        known = self.headers([point])
        return labels(known[0].config, axes) if known else ("", "")


@dataclass(frozen=True)
class PointMatch:
    """A point of A, the point of B that it is compared with, and what tells the match from others."""

    a: StudyPoint
    b: StudyPoint
    options: str
    knobs: str


def read_side(letter: Letter, folder: Path) -> StudySide:
    """Return the study in a folder: its records, or logs in the older layout where it has no records.

    Raises UserError where the folder is missing or holds no usable run.
    """
    # Logs beside records lie in the folders of their runs.
    is_older = folder.is_dir() and any(folder.glob("log_*.csv"))
    read: Callable[[Path], Study] = load_study
    if is_older:
        read = required_module("analysis.older_logs.logs", f"{letter} = {folder}").load_reference
    study = read(folder)
    if study.runs.empty and len(study.subject.runs):
        played = study.played is not None
        runs = "played runs only (training.plays)" if played else "no run with an epoch after the warm-up"
        raise UserError(f"{letter} = {folder} has {runs}: there is no speed to compare", EXIT_BAD_DATA)
    if study.runs.empty:
        rows = study.left_out.iloc[:_MOST_REASONS].to_dict("records")
        reasons = "; ".join(f"{row['run']}: {row['reason']}" for row in rows)
        raise UserError(f"{letter} = {folder} has no usable run: {reasons}", EXIT_BAD_DATA)
    points = []
    for _, rows_of_point in study.runs.groupby(POINT, sort=False):
        first = rows_of_point.iloc[0]
        header = study.headers.get(first["run"])
        options = flat_options(header.config) if header else {}
        settings = {name: shown(value) for name, value in options.items()}
        runs_of_point = tuple(rows_of_point["run"])
        points.append(StudyPoint(first["framework"], int(first["workers"]), runs_of_point, settings))
    return StudySide(letter, folder, study, tuple(points))


def match_points(
    a: StudySide, b: StudySide
) -> tuple[list[PointMatch], Sequence[StudyPoint], Sequence[StudyPoint]]:
    """Return the points of both studies, matched, in the order of A; then those of A alone, and of B alone.

    An option changed where all of A has one value of it and all of B another: it is what is compared, so
    points may differ in it. In every other option they must agree, but for those that only guard a run or
    name a place, unless a study varies them.
    """
    varied = dict.fromkeys((*a.study.axes, *b.study.axes))
    places = frozenset(OPERATIONAL) - {*varied}
    ignored = {name: _changed_options(a.points, b.points, name) | places for name in ALL_FRAMEWORKS}

    def key(point: StudyPoint) -> Hashable:
        kept = {item for item in point.settings.items() if item[0] not in ignored[point.framework]}
        return point.framework, point.workers, frozenset(kept)

    of_b = {key(point): point for point in b.points}
    matches, only_a = [], []
    for point in a.points:
        other = of_b.pop(key(point), None)
        if other is None:
            only_a.append(point)
            continue
        axes = [axis for axis in varied if axis not in ignored[point.framework]]
        matches.append(PointMatch(point, other, *a.label(point, axes)))
    return matches, only_a, [*of_b.values()]


def _changed_options(a: Sequence[StudyPoint], b: Sequence[StudyPoint], framework: str) -> frozenset[str]:
    """Return the options that have one value at all points of A, and another one at all of B."""
    first: dict[str, set[str]] = {}
    second: dict[str, set[str]] = {}
    for values, points in ((first, a), (second, b)):
        for point in points:
            if point.framework == framework:
                for key, value in point.settings.items():
                    values.setdefault(key, set()).add(value)
    return frozenset(
        key
        for key in first.keys() & second.keys()
        if len(first[key]) == len(second[key]) == 1 and first[key] != second[key]
    )


# What a cell has room for; the rest is counted.
_MOST_VALUES = 4
# Pixels and network decide what one image costs; other options decide how it is computed.
_OPTIONS_OF_WORK = (
    "data.image_height", "data.image_width", "data.channels", "model.width", "model.depth",
)  # fmt: skip
# They decide which pixels of which images an IoU is of.
TEST_SET_OPTIONS = (
    "data.test_share", "data.split_seed", "data.image_height", "data.image_width", "data.foreground",
)  # fmt: skip


@dataclass(frozen=True)
class ComparedFact:
    """A fact of both studies: the distinct values of each, none where it is not recorded.

    `group` is that of the fact, or "option".
    """

    group: str
    name: str
    a: tuple[str, ...]
    b: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Return whether the studies differ in it."""
        return self.a != self.b

    @property
    def texts(self) -> tuple[str, str]:
        """Return the values of A and of B; of many, those that the other study lacks come first."""
        return _text(self.a, self.b), _text(self.b, self.a)


def _text(values: Sequence[str], other: Sequence[str]) -> str:
    ordered = sorted(values, key=lambda value: value in other)
    return first_of(ordered, "value", _MOST_VALUES) or NOT_RECORDED


def compared_facts(a: StudySide, b: StudySide, matches: Sequence[PointMatch]) -> list[ComparedFact]:
    """Return every fact of the points that are compared; of all points where none are.

    Empty unless both studies have records: logs in the older layout say nothing of where they come from.
    """
    first = a.headers([match.a for match in matches] or a.points)
    second = b.headers([match.b for match in matches] or b.points)
    if not (first and second):
        return []
    every = {str(number): header for number, header in enumerate([*first, *second])}
    facts = [*FACTS, *version_facts(every), *setting_facts(every, varying=False)]
    options = [[flat_options(header.config) for header in headers] for headers in (first, second)]
    found = []
    for name in dict.fromkeys(key for side in options for each in side for key in each):
        values = [[shown(each[name]) for each in side if name in each] for side in options]
        found.append(_both("option", name, *values))
    seeds = {header.config.seed for header in first} & {header.config.seed for header in second}
    for fact in facts:
        sides = [first, second]
        if fact.name == "initial weights":
            sides = [[header for header in headers if header.config.seed in seeds] for headers in sides]
        values = [values_of(fact, headers) for headers in sides]
        if all(values) or (any(values) and not (fact.same and fact.group == "environment")):
            found.append(_both(fact.group, fact.title(first[0]), *values))
    for name, trained in _trained(a, b, matches, seeds).items():
        found.append(_both("data", name, *trained))
    clocks = [float(with_clocks(side.study.runs, side.study.budgets)["mhz"].median()) for side in (a, b)]
    if clocks_differ(*clocks):
        found.append(_both("machine", "clock of the cores", *([f"{clock:,.0f} MHz"] for clock in clocks)))
    # Whether settings are recorded is worth a line where one study did not.
    return [fact for fact in found if fact.a != ("recorded",) or fact.b != ("recorded",)]


def _trained(
    a: StudySide, b: StudySide, matches: Sequence[PointMatch], seeds: Collection[int]
) -> Mapping[str, tuple[list[str], list[str]]]:
    """Return what compared runs of one seed trained on 1 worker, in A and in B: on CPUs to the last digit."""
    values: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for number, side in enumerate((a, b)):
        points = [match.b if number else match.a for match in matches]
        headers = {run: side.study.headers[run] for point in points for run in point.runs}
        alone = {
            run
            for run, header in headers.items()
            if header.config.workers == 1 and header.config.seed in seeds
            if not header.workers[0].device_uuid
        }
        last = side.study.evaluations.drop_duplicates("run", keep="last").set_index("run")
        for run, epochs in side.study.epochs.groupby("run", sort=False, observed=True):
            if run in alone:
                weights = str(last["weights_sha256"].get(run, ""))[:16]
                told = {
                    "learning rates": dict.fromkeys(f"{rate:g}" for rate in epochs["learning_rate"]),
                    "epochs of warm-up": [str(int(epochs["warmup"].sum()))],
                    "last losses": [repr(loss) for loss in epochs["loss"].tail(1) if loss == loss],
                    "final weights": [weights] if weights else [],
                }
                for name, own in told.items():
                    values[f"{name} on 1 worker"][number].extend(own)
    return {name: both for name, both in values.items() if all(both)}


def _both(group: str, name: str, first: Iterable[str], second: Iterable[str]) -> ComparedFact:
    """Return a fact with every value once, numbers by size: the order of runs says nothing."""
    distinct = [{clean(value) for value in values} for values in (first, second)]
    ordered = [tuple(sorted(values, key=lambda value: (len(value), value))) for values in distinct]
    return ComparedFact(group, clean(name), *ordered)


def unequal_samples(differing: Sequence[ComparedFact], score: Score) -> Iterator[str]:
    """Yield which options make a sample other work in one study than in the other."""
    options = [fact for fact in differing if fact.name in _OPTIONS_OF_WORK]
    if options:
        values = "; ".join("{}: A {}, B {}".format(fact.name, *fact.texts) for fact in options)
        article = "an" if score.sample == "image" else "a"
        same = f"{article} {score.sample} is not the same work in A and B"
        yield f"{same}, so a ratio of {score.samples} / s says little: {values}"


def why_no_difference(a: StudySide, b: StudySide, match: PointMatch) -> str:
    """Return why the IoUs of a point of each study may not be compared; empty where they may."""
    if not a.study.provenance_known:
        return "the test images of logs in the older layout are unknown"
    first = _test_set(a, match.a)
    second = _test_set(b, match.b)
    differing = (name for name, value in first.items() if value != second[name])
    return "; ".join(f"{name}: A {first[name]}, B {second[name]}" for name in differing)


def _test_set(side: StudySide, point: StudyPoint) -> dict[str, str]:
    """Return what an IoU is of, by name; a study has refused runs that differ in it."""
    header, *_ = side.headers([point])
    evaluations, runs = side.study.evaluations, side.study.runs
    statistics = runs.loc[runs["run"].isin(point.runs), "statistics"]
    counts = evaluations.loc[evaluations["run"].isin(point.runs), COUNTS].astype(float)
    return {
        "data manifest": header.manifest_sha256[:16],
        f"test {side.study.score.samples}": f"{header.test_images:,}",
        **{key: point.settings[key] for key in TEST_SET_OPTIONS if key in point.settings},
        "statistics of norm layers": ", ".join(sorted({*statistics} - {""})),
        "evaluated pixels": ", ".join(f"{each:,.0f}" for each in sorted({*counts.sum(axis="columns")})),
    }


def doubts_on_speed(a: StudySide, b: StudySide, matches: Sequence[PointMatch]) -> list[str]:
    """Return what speaks against the throughputs of each match, or nothing."""
    common = _common_launches(a, b)
    clashes = _clashes_between(a, b, {*common.values()})
    work = _work_faults(a, b, matches)
    return [
        "; ".join((*work.get(number, ()), *_doubts(a, b, match, clashes, common)))
        for number, match in enumerate(matches)
    ]


def _work_faults(a: StudySide, b: StudySide, matches: Sequence[PointMatch]) -> Mapping[int, list[str]]:
    """Return what a report withholds a claim for: other steps, images or epochs of warm-up, by match.

    Where an option was changed, steps and images may be others on purpose.
    """
    subjects = {side.letter: subject_of(side.study) for side in (a, b)}

    def named(tables: Mapping[Letter, Mapping[str, Any]]) -> dict[str, Any]:
        return {f"{letter} {run}": of for letter, own in tables.items() for run, of in own.items()}

    rows = named({letter: {row["run"]: row for row in each.runs} for letter, each in subjects.items()})
    rows = {run: row | {"run": run} for run, row in rows.items()}
    both = replace(
        subjects["A"],
        headers=named({letter: each.headers for letter, each in subjects.items()}),
        epochs=named({letter: each.epochs for letter, each in subjects.items()}),
    )
    found = {}
    for number, match in enumerate(matches):
        pair = PointPair("", "", "", match.a.workers)
        sides = [[rows[f"A {run}"] for run in match.a.runs], [rows[f"B {run}"] for run in match.b.runs]]
        columns = ("steps", "images", "warmup") if match.a.settings == match.b.settings else ("warmup",)
        faults = work_differences(replace(both, sides={pair: (sides[0], sides[1])}), columns)
        found[number] = [text.removeprefix(f"{point_name(pair)} ") for text in faults.values()]
    return found


def _doubts(
    a: StudySide, b: StudySide, match: PointMatch, clashes: Sequence[Clash], common: Mapping[str, str]
) -> Iterator[str]:
    sides = ((a, match.a), (b, match.b))
    for side, point in sides:
        disturbed = int(kept_though_disturbed(side.study)["run"].isin(point.runs).sum())
        if disturbed:
            yield f"{count(disturbed, 'launch')} of {side.letter} disturbed by other programs or a stall"
    # Launches could be chosen by their results: by a look before the last, or by making quiet ones again.
    for side, point in sides:
        if side.study.asked is None:
            continue
        own = asked_at(side.study.asked, point.runs)
        to_come = int((~own["fate"].isin(FINAL_FATES)).sum())
        if to_come:
            yield f"{count(to_come, 'repeat')} that {side.letter} asks for are still to come"
        again = int(own["quiet_replaced"].sum())
        if again:
            yield f"{count(again, 'launch')} of {side.letter} made again, though nothing disturbed them"
    launches = {f"{side.letter} {run}" for side, point in sides for run in point.runs}
    if together := [clash for clash in clashes if launches & {*clash[:2]}]:
        yield at_once(together)
    same = [run for run in match.a.runs if common.get(run) in match.b.runs]
    if same:
        yield f"{count(len(same), 'launch')} of it stand in both studies: the same measurement, or copied"


def _common_launches(a: StudySide, b: StudySide) -> Mapping[str, str]:
    """Return the launches that stand in both studies, perhaps in part: {run of A: of B}."""
    of_b = {mark: run for run in b.study.headers for mark in _marks(b, run)}
    found = {run: [of_b[mark] for mark in _marks(a, run) if mark in of_b] for run in a.study.headers}
    return {run: same[0] for run, same in found.items() if same}


def _marks(side: StudySide, run: str) -> list[object]:
    """Return what no other launch has: its start, place and results together, and digests of its epochs."""
    header = side.study.headers[run]
    row = side.study.runs[side.study.runs["run"] == run].iloc[0]
    launch = header.config_sha256, header.started_utc, row["hosts"], row["images_per_second"], row["iou"]
    return [launch, *side.study.digests.get(run, ())]


def _clashes_between(a: StudySide, b: StudySide, copies: Collection[str]) -> list[Clash]:
    """Return the launches, "A RUN" or "B RUN", that trained at the same time on one core or device.

    Launches of both studies count once: `copies` are those of B.
    """
    headers = {f"A {run}": header for run, header in a.study.headers.items()}
    headers |= {f"B {run}": header for run, header in b.study.headers.items() if run not in copies}
    epochs = {
        f"{side.letter} {run}": own for side in (a, b) for run, own in by_run(side.study.epochs).items()
    }
    return clashes_of(headers, epochs)


def remarks_on(a: StudySide, b: StudySide, differing: Sequence[ComparedFact]) -> Iterator[str]:
    """Yield what no ratio tells by itself: how much differs, when both studies ran, what is left out."""
    if len(differing) > 1:
        yield f"the studies differ in {len(differing)} settings; a ratio reflects all of them"
    if not a.study.provenance_known:
        yield "logs in the older layout do not say what differs: code, versions, machine and data are unknown"
    starts = [map(start_seconds, side.study.runs["started_utc"]) for side in (a, b)]
    first, second = ([time for time in times if not math.isnan(time)] for times in starts)
    if first and second and (max(first) < min(second) or max(second) < min(first)):
        ends = [
            datetime.fromtimestamp(each, UTC)
            for times in (first, second)
            for each in (min(times), max(times))
        ]
        spans = [f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}" for begin, end in (ends[:2], ends[2:])]
        changed = "the machine may have changed in between"
        yield f"A ran {spans[0]}, B {spans[1]} (UTC): {changed}"
    for side in (a, b):
        study = side.study
        if len(study.left_out):
            left_out = count(len(study.left_out), "run")
            yield f"{side.letter} leaves out {left_out}: {CALLED} report {side.folder} says why"
        if study.played is not None:
            yield f"{side.letter} has {count(len(study.played.runs), 'played run')}, which are not compared"
        yield from (f"{side.letter}: {note}" for note in (*disturbed_notes(study), *study.notes))

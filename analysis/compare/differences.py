"""B against A at every point of both studies: as CSV, as a page with a forest plot, and printed.

As in the comparison of frameworks (docs/background/statistics.md): a bootstrap interval over launches, never
narrower than Student's t for all points together. Launches of two studies are no pairs,
since nothing ties a launch of one to a launch of the other: t is Welch's, and both studies are resampled
independently. IoU is paired by seed where enough seeds agree.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape

from analysis.compare.two_studies import (
    ComparedFact,
    PointMatch,
    StudyPoint,
    StudySide,
    compared_facts,
    doubts_on_speed,
    match_points,
    read_side,
    remarks_on,
    unequal_samples,
    why_no_difference,
)
from analysis.figures.catalogue import MOST_FOREST_ROWS, study_forests
from analysis.figures.svg import DrawnFigure, picture
from analysis.judge.trust import Light
from analysis.numbers import stats
from analysis.numbers.contrast import EQUAL, Equality, outcome_of
from analysis.numbers.iou import learning_of, seeds_of
from analysis.report.program import MOST_CONSOLE_ROWS, claim_folder, empty_table, print_list, report_console
from analysis.report.tables import COMPARE_LINES, Grid, as_csv, make_grid, text_column
from analysis.study import FEWEST_REPEATS, NAMES, NAN, RECOMMENDED_REPEATS, Array, Score
from analysis.text import after, clean, count, lines, listed, page, sentence, series_name, with_restriction
from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_OK, UserError, or_user_error
from unet_scaling.base.files import READABLE, write_atomically
from unet_scaling.format.facts import task_words
from unet_scaling.study.options import FEWEST_JUDGED_STEPS

A_FASTER = "A faster"
B_FASTER = "B faster"
REFUSED = "refused"
A_HIGHER = "A higher"
B_HIGHER = "B higher"
# Means of equal numbers differ by their rounding.
_ROUNDING = 1e-12
# Between two shares.
_POSSIBLE: stats.Interval = (-1.0, 1.0)
_KEYS = ["framework", "workers", "options", "knobs"]


@dataclass(frozen=True)
class Sample:
    """One number per launch of one study, grouped into points; `deviations` are those of their blocks."""

    launches: stats.Launches
    values: Array
    deviations: Array | None = None

    def by_point(self) -> list[Array]:
        """Return the values of each point."""
        return [self.values[self.launches.point == point] for point in range(self.launches.points)]


def unpaired_contrasts(a: Sample, b: Sample) -> list[dict[str, float]]:
    """Return B minus A at each point; swapping the studies changes nothing but the sign."""
    # Replicates of different streams are independent.
    drawn = [
        [each.launches.replicates(each.values, each.deviations, stream=stream) for stream in (0, 1)]
        for each in (a, b)
    ]
    one, other = (drawn[1][stream] - drawn[0][1 - stream] for stream in (0, 1))
    low, high = stats.bounds(np.concatenate([one, other], axis=-1))
    samples = zip(a.by_point(), b.by_point(), strict=True)
    return list(map(stats.contrast_of, samples, zip(low.tolist(), high.tolist(), strict=True)))


def corrected_contrasts(
    contrasts: Sequence[Mapping[str, float]], possible: stats.Interval = stats.ANY, margin: float = 0.0
) -> pd.DataFrame:
    """Return a row for each contrast, with its probability and interval corrected for all of them."""
    tests = pd.DataFrame(contrasts, columns=list(stats.CONTRAST_COLUMNS))
    tests["centre"] = tests["centre"].mask(tests["centre"].abs() < _ROUNDING, 0.0)
    found = stats.corrected(tests, equal_within=margin)
    found[["low", "high"]] = found[["low", "high"]].clip(*possible)
    return found.assign(**tests[["median", "fewest"]])


def compared_points(a: StudySide, b: StudySide, matches: Sequence[PointMatch]) -> pd.DataFrame:
    """Return one row per match: its throughputs and their ratio, and its IoU and their difference.

    Disturbed launches count only where fewer than 3 others of their point remain; then nothing is claimed.
    A difference of IoU of runs that saw other images or other masks has no meaning, and is refused.
    """
    keys = [(match.a.framework, match.a.workers, match.options, match.knobs) for match in matches]
    table = pd.DataFrame(keys, columns=_KEYS)
    if not keys:
        return table
    return pd.concat([table, _ratios(a, b, matches), _iou_differences(a, b, matches)], axis=1)


def _ratios(a: StudySide, b: StudySide, matches: Sequence[PointMatch]) -> pd.DataFrame:
    table = pd.DataFrame()
    samples = _speeds(a, [match.a for match in matches]), _speeds(b, [match.b for match in matches])
    for letter, sample in zip("ab", samples, strict=True):
        table[f"launches_{letter}"] = [len(values) for values in sample.by_point()]
        table[f"throughput_{letter}"] = sample.launches.medians(np.exp(sample.values))
    equal = Equality.of_ratios(a.study, b.study)
    found = corrected_contrasts(unpaired_contrasts(*samples), margin=math.log(equal.high))
    fewest = found["fewest"].astype(int)
    table["coverage"] = stats.coverage(fewest)
    table["ratio"] = table["throughput_b"] / table["throughput_a"]
    table["ratio_low"] = np.exp(found["low"])
    table["ratio_high"] = np.exp(found["high"])
    table[["p_adjusted", "comparisons"]] = found[["p_adjusted", "comparisons"]]
    table["launches_needed"] = found["needed"]
    table["doubts"] = doubts_on_speed(a, b, matches)
    rows = zip(table["ratio_low"], table["ratio_high"], fewest, table["doubts"], strict=True)
    claims = A_FASTER, B_FASTER
    table["outcome"] = [outcome_of((low, high), claims, *more, equal=equal) for low, high, *more in rows]
    return table


def _speeds(side: StudySide, points: Sequence[StudyPoint]) -> Sample:
    """Return the logarithms of the throughputs of the launches that count for speed."""
    numbers = {run: number for number, point in enumerate(points) for run in point.runs}
    runs = side.study.timed.runs
    runs = runs[runs["run"].isin([*numbers])]
    point = np.asarray(runs["run"].map(numbers), dtype=np.int64)
    launches = stats.Launches(point, len(points), runs["repeat"].to_numpy(dtype=np.int64))
    values = np.log(runs[side.study.throughput].to_numpy(dtype=np.float64))
    return Sample(
        launches,
        values,
        stats.block_deviations(side.study.epochs, side.study.throughput, runs["run"].to_list()),
    )


def _iou_differences(a: StudySide, b: StudySide, matches: Sequence[PointMatch]) -> pd.DataFrame:
    """Return seeds, medians, the difference with its interval, and the outcome of each match."""
    rows, contrasts, verdicts = [], [], []
    of_a, of_b = (_seeds(side) for side in (a, b))
    for match in matches:
        seeds_a, lost_a, steps_a, learned_a = of_a[match.a.runs]
        seeds_b, lost_b, steps_b, learned_b = of_b[match.b.runs]
        common = [seed for seed in seeds_a if seed in seeds_b]
        is_paired = len(common) >= FEWEST_REPEATS
        refused = why_no_difference(a, b, match)
        contrast: dict[str, float] = {}
        if is_paired and not refused:
            differences = np.array([seeds_b[seed] - seeds_a[seed] for seed in common], dtype=np.float64)
            contrast = stats.contrasts_of([differences])[0]
        elif seeds_a and seeds_b and not refused:
            (contrast,) = unpaired_contrasts(_seeds_sample(seeds_a), _seeds_sample(seeds_b))
        contrasts.append(contrast)
        nothing = learned_a == learned_b == "no"
        verdicts.append(REFUSED if refused else "nothing learned" if nothing else "")
        pairing = f"{len(common)} seeds as pairs" if is_paired else "seeds not paired"
        lost = [
            f"{count(runs, 'run')} of {of} diverged" for of, runs in (("A", lost_a), ("B", lost_b)) if runs
        ]
        if min(steps_a, steps_b) < FEWEST_JUDGED_STEPS:
            lost.append(f"{min(steps_a, steps_b):.0f} optimizer steps say little of a longer training")
        rows.append(
            {
                "seeds_a": len(seeds_a),
                "seeds_b": len(seeds_b),
                "seeds_paired": len(common) if is_paired else 0,
                "iou_a": float(np.median([*seeds_a.values()])) if seeds_a else NAN,
                "iou_b": float(np.median([*seeds_b.values()])) if seeds_b else NAN,
                "iou_remarks": refused or "; ".join([pairing, *lost]),
            }
        )
    found = corrected_contrasts(contrasts, _POSSIBLE)
    ends = zip(verdicts, found["low"], found["high"], strict=True)
    equal = Equality.of_scores(min(side.study.criteria.iou_margin for side in (a, b)))
    return pd.DataFrame(rows).assign(
        iou_difference=found["median"],
        iou_difference_low=found["low"],
        iou_difference_high=found["high"],
        iou_p_adjusted=found["p_adjusted"],
        iou_outcome=[
            decided or outcome_of(own, (A_HIGHER, B_HIGHER), RECOMMENDED_REPEATS, equal=equal)
            for decided, *own in ends
        ],
    )


def _seeds(side: StudySide) -> Mapping[tuple[str, ...], tuple[dict[int, float], int, float, str]]:
    """Return what each point learned: IoU by seed, diverged runs, steps, and if more than a constant.

    Disturbed launches learned as well as the others.
    """
    points = seeds_of(side.study)
    found = learning_of(points, side.study.criteria.iou_margin)
    return {
        point.runs: (
            {seed: iou for seed, iou in own.ious.items() if iou == iou},
            own.diverged,
            own.trained.steps,
            of.learned,
        )
        for point, own, of in zip(side.points, points, found, strict=True)
    }


def _seeds_sample(ious: Mapping[int, float]) -> Sample:
    seeds = np.array([*ious], dtype=np.int64)
    return Sample(stats.Launches(np.zeros(len(seeds), dtype=np.int64), 1, seeds), np.array([*ious.values()]))


# What the launches show of the speed of B against that of A.
SpeedChange = Literal["faster", "slower", "mixed", "equal", "unclear"]


@dataclass(frozen=True)
class StudyComparison:
    """Two studies, what differs between them, and the ratio and difference at every point that both have.

    `points` has one row per matched point, in the order of A; `only` one per point of one study alone.
    """

    a: StudySide
    b: StudySide
    facts: list[ComparedFact]
    points: pd.DataFrame
    only: pd.DataFrame

    @property
    def score(self) -> Score:
        """Return the score of both studies, which train one task."""
        return self.a.study.score

    @property
    def differing(self) -> list[ComparedFact]:
        """Return the facts in which the studies differ."""
        return [fact for fact in self.facts if fact.differs]

    @property
    def nothing_differs(self) -> str:
        """Return what to say in place of a table of differences."""
        if self.facts:
            return "Nothing that the records say."
        return "Not known: logs in the older layout say nothing of where they come from."

    @property
    def change(self) -> SpeedChange:
        """Return whether B is faster at all points where anything is shown."""
        outcomes = {row["outcome"] for row in self.points.to_dict("records")}
        shown = outcomes & {A_FASTER, B_FASTER}
        if len(shown) > 1:
            return "mixed"
        if shown:
            return "faster" if B_FASTER in shown else "slower"
        return "equal" if outcomes and all(EQUAL in outcome for outcome in outcomes) else "unclear"

    @cached_property
    def headline(self) -> str:
        """Return which study is faster, by how much at how many points, and where the IoU of B is another."""
        rows = self.points.to_dict("records")
        is_equal = self.change == "equal"
        said = lines("compared", a=self.a, b=self.b, rows=rows, score=self.score, equal=is_equal)
        return after(self.a.study.kind.restricted, " ".join(said))

    @cached_property
    def notes(self) -> list[str]:
        """Return what to know before any number is used: first what may not be claimed, and why."""
        found = [] if self.points.empty else [*unequal_samples(self.differing, self.score)]
        refused = []
        for row in self.points.to_dict("records"):
            if row["doubts"]:
                name = ", ".join(filter(None, (series_name(row, NAMES), row["options"])))
                found.append(f"{name} on {count(row['workers'], 'worker')}: {row['doubts']}")
            if row["iou_outcome"] == REFUSED:
                refused.append(f"{self.score.title}: not compared: {row['iou_remarks']}")
        if len(self.only):
            found.append(f"{count(len(self.only), 'point')} of one study only: compare.csv names them")
        return [*found, *dict.fromkeys(refused), *remarks_on(self.a, self.b, self.differing)]


def compare_studies(a: StudySide, b: StudySide) -> StudyComparison:
    """Return the comparison of two studies. Pure: nothing is read or written.

    Raises UserError where only one of them has records: then no number of one can be held against the other.
    """
    if a.study.source != b.study.source:
        raise UserError(
            f"A has {a.study.source}, B {b.study.source}; compare two studies of one kind", EXIT_BAD_DATA
        )
    matches, *alone = match_points(a, b)
    axes = tuple(dict.fromkeys((*a.study.axes, *b.study.axes)))
    only = [
        (point.framework, point.workers, *side.label(point, axes), side.letter)
        for side, points in zip((a, b), alone, strict=True)
        for point in points
    ]
    return StudyComparison(
        a,
        b,
        compared_facts(a, b, matches),
        compared_points(a, b, matches),
        pd.DataFrame(only, columns=[*_KEYS, "only_in"]),
    )


# Of compare.html, for which a console has no room.
OUTCOMES = ("speed", "outcome")
# The name of the figure's files, and of the page.
STEM = "compare"
# What stands below the headline; the table has them all.
MOST_CHANGES = 3
# Colour is never alone: each change has its word, and each light its shape.
CHANGES: dict[SpeedChange, tuple[Light, str]] = {
    "faster": ("good", "B is faster"),
    "slower": ("bad", "B is slower"),
    "mixed": ("caution", "B is faster and slower"),
    "equal": ("unknown", "No difference shown"),
    "unclear": ("unknown", "Not decided"),
}


def comparison_files(comparison: StudyComparison) -> dict[str, bytes]:
    """Return the contents of the files of a comparison by name; the page comes last."""
    columns = [name for line in COMPARE_LINES for name in line.names]
    points = pd.concat([comparison.points, comparison.only]).reindex(columns=columns)
    facts = [(fact.group, fact.name, *fact.texts, fact.differs) for fact in comparison.facts]
    drawn = forest(comparison)
    pictures = {f"{STEM}.svg": each.svg for each in drawn}
    return {
        "compare.csv": as_csv(points.rename(columns=comparison.score.key)),
        "compare_facts.csv": as_csv(pd.DataFrame(facts, columns=["group", "fact", "a", "b", "differs"])),
        **pictures,
        "compare.html": comparison_page(comparison, drawn).encode(),
    }


def points_grid(comparison: StudyComparison) -> Grid:
    """Return the table of points, without columns that would be empty."""
    points, study = comparison.points, comparison.a.study
    columns = [column for line in COMPARE_LINES for column in line.columns(points, study)]
    caption = f"Throughput in {study.unit}, and {comparison.score.title}"
    return make_grid("compare", caption, points, columns, "compare.csv")


def facts_grid(comparison: StudyComparison) -> Grid:
    """Return the table of what differs."""
    rows = [(fact.group, fact.name, *fact.texts) for fact in comparison.differing]
    headings = ("of", "what differs", "A", "B")
    table = pd.DataFrame(rows, columns=list(headings))
    columns = [text_column(heading, heading) for heading in headings]
    return make_grid("facts", "What differs", table, columns, "compare_facts.csv")


def comparison_page(comparison: StudyComparison, drawings: Sequence[DrawnFigure]) -> str:
    """Return the comparison as HTML: the answer, what differs, a forest plot, and the tables behind them."""
    a, b = comparison.a, comparison.b
    light, word = CHANGES[comparison.change]
    if comparison.change == "faster" and A_HIGHER in set(comparison.points["iou_outcome"]):
        light, word = "caution", f"B is faster, its {comparison.score.title} lower"
    launches = [f"{count(len(side.study.runs), 'launch')} in {side.letter}" for side in (a, b)]
    differing = comparison.differing
    changes = [clean(f"{fact.name}: {' → '.join(fact.texts)}") for fact in differing[:MOST_CHANGES]]
    if len(differing) > MOST_CHANGES:
        changes.append(f"{count(len(differing) - MOST_CHANGES, 'more fact')}, below")
    return page(
        "compare",
        name=clean(f"{b.title} against {a.title}"),
        frameworks=NAMES,
        files=("compare.csv", "compare_facts.csv"),
        about=f"{listed(launches)}, {count(len(comparison.points), 'point')} in both",
        light=light,
        word=word,
        changes=changes or [comparison.nothing_differs],
        drawings=drawings,
        points=points_grid(comparison),
        facts=facts_grid(comparison),
        comparison=comparison,
    )


def forest(comparison: StudyComparison) -> list[DrawnFigure]:
    """Return the figure; none without a common point."""
    if comparison.points.empty:
        return []
    caption = (
        f"Right of the line B is faster, or its {comparison.score.title} higher; left of it A. In the colour "
        "of its framework: the interval, corrected for all points, excludes equality; grey: nothing is "
        "claimed."
    )
    if len(comparison.points) > MOST_FOREST_ROWS:
        caption += (
            f" The first {MOST_FOREST_ROWS} of {len(comparison.points)} points; all are in compare.csv."
        )
    points = comparison.points.assign(
        claimed=comparison.points["outcome"].isin((A_FASTER, B_FASTER)),
        iou_claimed=comparison.points["iou_outcome"].isin((A_HIGHER, B_HIGHER)),
    )
    charts = study_forests(points, comparison.score)
    panels = [panel for chart in charts for panel in chart.panels()]
    caption = with_restriction(comparison.a.study.kind, caption)
    return [picture(panels, STEM, caption, charts[0].alternative())]


def print_comparison(comparison: StudyComparison, console: Console) -> None:
    """Print what differs, the points, what to know, and last the answer; long tables and lists are cut."""
    for side in (comparison.a, comparison.b):
        console.print(f"{side.letter}: {side.folder}", markup=False, soft_wrap=True)
    if comparison.differing:
        _print_grid(console, facts_grid(comparison), "What differs")
    else:
        print_list(console, "What differs", [comparison.nothing_differs], "")
    points = points_grid(comparison)
    _print_grid(console, points, points.caption)
    print_list(console, "Notes", comparison.notes, "compare.html")
    print_list(console, "", [sentence(comparison.headline)], "")


def _print_grid(console: Console, grid: Grid, title: str) -> None:
    """Print a table without outcomes, for which the console has no room."""
    shown = [place for place, column in enumerate(grid.columns) if column.heading not in OUTCOMES]
    for options, rows in grid.groups:
        table = empty_table([grid.columns[place] for place in shown], f"{title}: {options}".rstrip(": "))
        for row in rows[:MOST_CONSOLE_ROWS]:
            table.add_row(*(escape(str(row[place])) for place in shown))
        if len(rows) > MOST_CONSOLE_ROWS:
            table.caption = f"{len(rows) - MOST_CONSOLE_ROWS:,} further rows are in {grid.file}"
        console.print(table)


def compare_folders(first: Path, second: Path, output: Path) -> int:
    """Write the comparison of A and B to the output folder, and print it."""
    a = read_side("A", first)
    b = read_side("B", second)
    _require_one_kind(a, b)
    comparison = compare_studies(a, b)
    files = comparison_files(comparison)
    with or_user_error(f"the comparison cannot be written to {output}", "try --output"):
        claim_folder(output, f"{STEM}.html", files)
        for name, content in files.items():
            write_atomically(output / name, content, READABLE, durable=False)
        (output / f"{STEM}.png").unlink(missing_ok=True)  # of an earlier version
    print_comparison(comparison, report_console())
    print(f"\ncomparison: {output}")
    if comparison.points.empty:
        raise UserError(f"{first} and {second} have no point in common: see above", EXIT_BAD_DATA)
    return EXIT_OK


def _require_one_kind(a: StudySide, b: StudySide) -> None:
    """Raise UserError where only one study is emulated, one is of scripts, or their tasks differ."""
    words = [side.study.kind.called for side in (a, b)]
    tasks = [{task_words(header) for header in side.study.headers.values()} for side in (a, b)]
    fault = ""
    if not (a.study.kind.compares and b.study.kind.compares):
        fault = "runs of scripts are compared with no others"
    elif words[0] != words[1]:
        fault = "emulated runs are not compared with measured ones"
    elif all(tasks) and tasks[0] != tasks[1]:
        fault = "they do not train the same task"
        words = [", ".join(sorted(task)) for task in tasks]
    if fault:
        raise UserError(f"A is {words[0]}, B is {words[1]}: {fault}", EXIT_BAD_DATA)

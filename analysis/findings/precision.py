"""Whether a study needs more repeats, and how long they take.

  python -m analysis.findings.precision logs/STUDY

Prints one JSON object for the submission: goes_on (whether one more repeat of each point is to follow, by the
words of `repeats = "until ..."`), and a sentence that says why.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd

from analysis.contrast import (
    KEY,
    PAIR,
    PointPair,
    compare,
    of_compared_pair,
    pair_of,
    paired_runs,
    point_name,
)
from analysis.findings.decide import CandidateSet
from analysis.load import load_study
from analysis.stats import FEWEST_REPEATS, RECOMMENDED_REPEATS
from analysis.study import POINT, Study
from analysis.text import count
from unet_scaling.study.command_line import CommandLine
from unet_scaling.study.errors import UserError, run_program
from unet_scaling.study.record_lines import STARTUP_COLUMNS
from unet_scaling.study.repeats import Precision
from unet_scaling.study.run_state import Exclusion
from unet_scaling.study.study_file import recorded_study
from unet_scaling.study.texts import duration


def main() -> None:
    parser = CommandLine("python -m analysis.findings.precision", __doc__)
    parser.add_argument("study", type=Path, metavar="logs/STUDY", help="folder of a study's runs")
    folder: Path = parser.parse_args().study
    recorded = recorded_study(folder)
    if recorded is None or recorded.until is None:
        raise UserError(f'{folder}: repeats: found a number; only "until 3 %" asks for a width')
    study = load_study(folder)
    # Those of the report: corrected for all comparisons of the study, with further frameworks too.
    print(json.dumps(asdict(decide(study, of_compared_pair(compare(study)), recorded.until))))


@dataclass(frozen=True)
class Decision:
    """Whether one more repeat of each point is to follow, and why."""

    goes_on: bool
    sentence: str


def decide(study: Study, comparisons: pd.DataFrame, until: Precision) -> Decision:
    """Return whether a study whose runs are all complete gets one more repeat."""
    half_width, pair = widest(comparisons)
    newest = int(max([*study.runs["repeat"], *study.left_out["repeat"]]))
    after = f"after {count(newest, 'repeat')}"
    if math.isnan(half_width):
        why = f"{after}, no interval"
        pairs = paired_runs(study)
        repeats = pairs.loc[(pairs[KEY] == pair).all(axis="columns"), "repeat"].tolist() if pair else []
        if pair:
            compared = f"{len(repeats)} of its repeats can be compared, {FEWEST_REPEATS} are needed"
            why += f" {point_name(pair)}: {compared}"
        # The next repeat can be compared where the newest one can.
        if newest not in repeats:
            lost = "the newest can not, so more would not help: the report lists which runs it leaves out"
            return Decision(False, f"{why}; {lost}")
    else:
        where = f" ({point_name(pair)})" if pair else ""
        why = f"{after}, the widest interval of the ratio is ± {100 * half_width:.1f} %{where}"
        if half_width <= until.half_width:
            return Decision(False, f"{why}, narrow enough: no more are needed")
        why += f", more than ± {100 * until.half_width:g} %"
    if newest >= until.most:
        return Decision(
            False, f"{why}; {until.most} repeats are the most that the study allows: it ends here"
        )
    return Decision(True, f"{why}: one more is needed")


def widest(comparisons: pd.DataFrame) -> tuple[float, PointPair | None]:
    """Return half the width of the widest interval over its ratio, and of which pair.

    NaN where one is not known, which is wider than any other.
    """
    if comparisons.empty:
        return math.nan, None
    widths = half_widths(comparisons).to_numpy(dtype=np.float64)
    row = int(np.nan_to_num(widths, nan=np.inf).argmax())
    return float(widths[row]), pair_of(list(comparisons[PAIR].iloc[row]))


def half_widths(comparisons: pd.DataFrame) -> "pd.Series[float]":
    """Return half the width of each interval over its ratio; NaN where there is no interval."""
    return (comparisons["ratio_high"] - comparisons["ratio_low"]) / (2 * comparisons["ratio"])


def width_notes(study: Study, comparisons: pd.DataFrame) -> Iterator[str]:
    """Yield why a study that adds repeats by itself ended, or that it has not yet."""
    if study.until is None or study.runs.empty:
        return
    asked = f"repeats = {str(study.until)!r}"
    unfinished = sum(~study.left_out["state"].isin(get_args(Exclusion)))
    if unfinished:
        yield f"{asked}: not decided, as {count(unfinished, 'run')} of the study did not complete"
    else:
        yield f"{asked}: {decide(study, comparisons, study.until).sentence}"


def repeats_for_intervals(candidates: CandidateSet) -> int:
    """Return how many repeats the point with the fewest has less than recommended; never below 0."""
    fewest = min(int(point.row["repeats"]) for point in candidates.candidates)
    return max(0, RECOMMENDED_REPEATS - fewest)


def more_repeats(study: Study, number: int) -> str:
    """Return "3 more repeats (about 2 min)": of every point, one after the other, as those recorded took.

    A run lasts from its launch to its end: the start of its slowest worker, training and evaluations.
    """
    starts = study.startups[list(STARTUP_COLUMNS)].sum(axis="columns").groupby(study.startups["run"]).max()
    evaluations = study.evaluations.groupby("run")["seconds"].sum()
    runs = study.runs
    seconds = runs["training_seconds"]
    for beside in (evaluations, starts):
        seconds = seconds + runs["run"].map(beside).astype(float).fillna(0.0)
    of_points = seconds.groupby([runs[name] for name in POINT]).median()
    needed = number * float(of_points.sum(skipna=False))
    if math.isnan(needed):
        return count(number, "more repeat")
    about = "about" if runs["run"].isin(study.startups["run"]).all() else "at least"
    return f"{count(number, 'more repeat')} ({about} {duration(needed)})"


if __name__ == "__main__":
    run_program(main)

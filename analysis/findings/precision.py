"""Say whether the intervals of native DDP over Horovod are as narrow as the study asks; for the submission.

  python -m analysis.findings.precision logs/STUDY

Prints one JSON object: goes_on (whether one more repeat of each point is to follow, by the words of
`repeats = "until ..."`), and a sentence that says why.
"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd

from analysis.contrast import compare, of_compared_pair
from analysis.load import load_study
from analysis.pairs import KEY, PAIR, PointPair, pair_of, paired_runs, point_name
from analysis.stats import FEWEST_REPEATS
from analysis.study import Study
from analysis.text import count
from unet_scaling.study.errors import UserError, run_program
from unet_scaling.study.repeats import Precision
from unet_scaling.study.run_state import Exclusion
from unet_scaling.study.study_file import recorded_study


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.findings.precision",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", type=Path, metavar="logs/STUDY", help="folder of a study's runs")
    folder: Path = parser.parse_args().study
    recorded = recorded_study(folder)
    if recorded is None or recorded.until is None:
        raise UserError(f'{folder}: repeats: found a number; only "until 3 %" asks for a width')
    study = load_study(folder)
    # Those of the report: corrected for all comparisons of the study, with further frameworks too.
    comparisons = of_compared_pair(compare(study))
    print(json.dumps(asdict(decide(study, comparisons, recorded.until))))


@dataclass(frozen=True)
class Decision:
    """Whether one more repeat of each point is to follow, and why."""

    goes_on: bool
    sentence: str


@dataclass(frozen=True)
class Widest:
    """Half the width of the widest interval over its ratio, NaN where one is not known; and of which pair."""

    half_width: float
    pair: PointPair | None


def decide(study: Study, comparisons: pd.DataFrame, until: Precision) -> Decision:
    """Return whether a study whose runs are all complete gets one more repeat."""
    width = widest(comparisons)
    repeats = _newest_repeat(study)
    after = f"after {count(repeats, 'repeat')}"
    if math.isnan(width.half_width):
        return _without_interval(study, width.pair, until, f"{after}, no interval")
    where = f" ({point_name(width.pair)})" if width.pair else ""
    found = f"{after}, the widest interval of the ratio is ± {100 * width.half_width:.1f} %{where}"
    if width.half_width <= until.half_width:
        return Decision(False, f"{found}, narrow enough: no more are needed")
    return _one_more(repeats, until, f"{found}, more than ± {100 * until.half_width:g} %")


def widest(comparisons: pd.DataFrame) -> Widest:
    """Return the widest interval of these comparisons; one that is not known is wider than any other."""
    if comparisons.empty:
        return Widest(math.nan, None)
    widths = half_widths(comparisons).to_numpy(dtype=np.float64)
    row = int(np.nan_to_num(widths, nan=np.inf).argmax())
    return Widest(float(widths[row]), pair_of(list(comparisons[PAIR].iloc[row])))


def _one_more(repeats: int, until: Precision, why: str) -> Decision:
    if repeats >= until.most:
        return Decision(
            False, f"{why}; {until.most} repeats are the most that the study allows: it ends here"
        )
    return Decision(True, f"{why}: one more is needed")


def _without_interval(study: Study, pair: PointPair | None, until: Precision, why: str) -> Decision:
    """Return that another repeat follows only where the newest one can be compared, as the next can then."""
    newest = _newest_repeat(study)
    pairs = paired_runs(study)
    repeats = pairs.loc[(pairs[KEY] == pair).all(axis="columns"), "repeat"].tolist() if pair else []
    if pair:
        why += (
            f" {point_name(pair)}: {len(repeats)} of its repeats can be compared, {FEWEST_REPEATS} are needed"
        )
    if newest in repeats:
        return _one_more(newest, until, why)
    return Decision(
        False,
        f"{why}; the newest can not, so more would not help: the report lists which runs it leaves out",
    )


def _newest_repeat(study: Study) -> int:
    repeats = pd.concat([study.runs["repeat"], study.left_out["repeat"]])
    return int(repeats.max())


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


def half_widths(comparisons: pd.DataFrame) -> "pd.Series[float]":
    """Return half the width of each interval over its ratio; NaN where there is no interval."""
    return (comparisons["ratio_high"] - comparisons["ratio_low"]) / (2 * comparisons["ratio"])


if __name__ == "__main__":
    run_program(main)

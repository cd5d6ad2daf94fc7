"""Say whether the intervals of native DDP over Horovod are as narrow as the study asks; for the submission.

  python -m analysis.findings.precision logs/STUDY

Prints one JSON object: repeats; half_width (of the widest interval, over its ratio; null where one is not
known); where that is; narrow (whether it is at most what `repeats = "until ..."` of the study asks for).
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.findings.comparison import compare
from analysis.findings.pairs import PAIR, pair_of, point_name
from analysis.loading.load import load_study
from unet_scaling.study.errors import UserError, run_program
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
    answer = {"repeats": recorded.repeats} | widest(compare(load_study(folder)), recorded.until.half_width)
    print(json.dumps(answer))


def widest(comparisons: pd.DataFrame, asked: float) -> dict[str, object]:
    """Return half the width of the widest interval over its ratio, where it is, and whether it is narrow."""
    widths = half_widths(comparisons).to_numpy(dtype=np.float64)
    if len(widths) == 0:
        return {"half_width": None, "where": "of any comparison", "narrow": False}
    # An interval that is not known is wider than any other.
    row = int(np.nan_to_num(widths, nan=np.inf).argmax())
    where = point_name(pair_of(list(comparisons[PAIR].iloc[row])))
    half_width = float(widths[row])
    known = None if math.isnan(half_width) else half_width
    return {"half_width": known, "where": where, "narrow": half_width <= asked}


def half_widths(comparisons: pd.DataFrame) -> "pd.Series[float]":
    """Return half the width of each interval over its ratio; NaN where there is no interval."""
    return (comparisons["ratio_high"] - comparisons["ratio_low"]) / (2 * comparisons["ratio"])


if __name__ == "__main__":
    run_program(main)

"""Notes on launches that other programs or a stall disturbed, and whether they count."""

from collections.abc import Iterator

import pandas as pd

from analysis.statistics.intervals import FEWEST_REPEATS
from analysis.statistics.timed import kept_though_disturbed
from analysis.study import Study

# A note carries more names than a sentence: each is a launch to repeat.
MOST_NAMED = 6
CURE = "--repeat-disturbed on submission measures them again"


def disturbed_notes(study: Study) -> Iterator[str]:
    """Yield the disturbed launches by name and reason, and the stalls that were too short to disturb one."""
    disturbed = study.runs[study.runs["disturbed"] != ""]
    is_kept = disturbed["run"].isin(kept_though_disturbed(study)["run"])
    if (~is_kept).any():
        left_out = _launches(disturbed[~is_kept])
        yield f"{left_out} left out of speed, and kept in IoU: {_named(disturbed[~is_kept])}; {CURE}"
    if is_kept.any():
        yield (
            f"{_launches(disturbed[is_kept])} counted for speed all the same, as fewer than {FEWEST_REPEATS} "
            f"others of the point remain: {_named(disturbed[is_kept])}; {CURE}"
        )
    stalled = study.runs[(study.runs["disturbed"] == "") & (study.runs["stalls"] != "")]
    if len(stalled):
        yield f"stalled epochs are left out of throughput: {_named(stalled, 'stalls')}"


def _launches(disturbed: pd.DataFrame) -> str:
    return "1 disturbed launch is" if len(disturbed) == 1 else f"{len(disturbed)} disturbed launches are"


def _named(runs: pd.DataFrame, column: str = "disturbed") -> str:
    named = [f"{run} ({reason})" for run, reason in zip(runs["run"], runs[column], strict=True)]
    more = len(named) - MOST_NAMED
    return "; ".join(named[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")

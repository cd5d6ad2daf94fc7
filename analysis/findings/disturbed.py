"""Notes on launches that other programs or a stall disturbed, and whether they count."""

from collections.abc import Iterator

import pandas as pd

from analysis.stats import FEWEST_REPEATS, kept_though_disturbed
from analysis.study import Study

# A note carries more names than a sentence: each is a launch to repeat.
_MOST_NAMED = 6
CURE = "--repeat-disturbed on submission measures them again"


def disturbed_notes(study: Study) -> Iterator[str]:
    """Yield the disturbed launches by name and reason, and the stalls that were too short to disturb one."""
    disturbed = study.runs[study.runs["disturbed"] != ""]
    is_kept = disturbed["run"].isin(kept_though_disturbed(study)["run"])
    yield from _notes(disturbed[~is_kept], f"left out of speed, and kept in {study.score.title}")
    few = f"as fewer than {FEWEST_REPEATS} others of the point remain"
    yield from _notes(disturbed[is_kept], f"counted for speed all the same, {few}")
    stalled = study.runs[(study.runs["disturbed"] == "") & (study.runs["stalls"] != "")]
    if len(stalled):
        yield f"stalled epochs are left out of throughput: {_named(stalled, 'stalls')}"


def _notes(disturbed: pd.DataFrame, fate: str) -> Iterator[str]:
    if len(disturbed):
        launches = (
            f"{len(disturbed)} disturbed launches are" if len(disturbed) > 1 else "1 disturbed launch is"
        )
        yield f"{launches} {fate}: {_named(disturbed)}; {CURE}"


def _named(runs: pd.DataFrame, column: str = "disturbed") -> str:
    named = [f"{run} ({reason})" for run, reason in zip(runs["run"], runs[column], strict=True)]
    more = len(named) - _MOST_NAMED
    return "; ".join(named[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")

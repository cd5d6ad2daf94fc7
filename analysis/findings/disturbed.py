"""Which launches were disturbed by other programs or by a stall, and what became of them, in words."""

from collections.abc import Iterator

import pandas as pd

from analysis.findings.comparison import PAIR, paired_runs
from analysis.statistics.intervals import FEWEST_REPEATS
from analysis.statistics.timed import kept_though_disturbed
from analysis.study import Study

MOST_NAMED = 6
CURE = "--repeat-disturbed on submission measures them again"


def disturbed_notes(study: Study) -> Iterator[str]:
    """Yield the disturbed launches by name and reason, and the stalls that were too short to disturb one."""
    disturbed = study.runs[study.runs["disturbed"] != ""]
    kept = disturbed["run"].isin(kept_though_disturbed(study)["run"])
    left, held = (_named(disturbed[which], "disturbed") for which in (~kept, kept))
    if left:
        yield f"{_launches(left)} left out of speed, and kept in IoU: {_some(left)}; {CURE}"
    if held:
        yield (
            f"{_launches(held)} counted for speed all the same, as fewer than {FEWEST_REPEATS} others of the "
            f"point remain: {_some(held)}; {CURE}"
        )
    short = _named(study.runs[(study.runs["disturbed"] == "") & (study.runs["stalls"] != "")], "stalls")
    if short:
        yield f"stalled epochs are left out of throughput: {_some(short)}"


def disturbed_pairs(study: Study) -> frozenset[tuple[str, str, str, int]]:
    """Return the points of which a compared pair of runs holds a disturbed launch; keys as PAIR."""
    pairs = paired_runs(study)
    busy = pairs[(pairs["disturbed_native"] != "") | (pairs["disturbed_horovod"] != "")]
    return frozenset(
        (str(options), str(native), str(horovod), int(workers))
        for options, native, horovod, workers in busy[PAIR].itertuples(index=False, name=None)
    )


def _launches(named: list[str]) -> str:
    return "1 disturbed launch is" if len(named) == 1 else f"{len(named)} disturbed launches are"


def _named(runs: pd.DataFrame, column: str) -> list[str]:
    return [f"{run} ({why})" for run, why in zip(runs["run"], runs[column], strict=True)]


def _some(named: list[str]) -> str:
    more = len(named) - MOST_NAMED
    return "; ".join(named[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")

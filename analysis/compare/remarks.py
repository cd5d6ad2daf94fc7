"""What no ratio of two studies tells by itself: how much differs, when both ran."""

from collections.abc import Iterator, Sequence

from analysis.checks import disturbed_notes
from analysis.compare.facts import ComparedFact
from analysis.compare.sides import StudySide
from analysis.machines import start_times
from analysis.text import count
from unet_scaling.study.command_line import PASTED


def remarks_on(a: StudySide, b: StudySide, differing: Sequence[ComparedFact]) -> Iterator[str]:
    """Yield what no ratio tells by itself: how many things differ, when both studies ran."""
    if len(differing) > 1:
        yield f"the studies differ in {len(differing)} facts: a ratio is that of all of them together"
    if not a.study.provenance_known:
        yield "logs in the older layout do not say what differs: code, versions, machine and data are unknown"
    yield from _apart(a, b)
    for side in (a, b):
        yield from _of_side(side)


def _of_side(side: StudySide) -> Iterator[str]:
    if len(side.study.left_out):
        left_out = count(len(side.study.left_out), "run")
        yield f"{side.letter} leaves out {left_out}: {PASTED} report {side.folder} says why"
    if side.study.played is not None:
        yield f"{side.letter} has {count(len(side.study.played.runs), 'played run')}, which are not compared"
    yield from (f"{side.letter}: {note}" for note in disturbed_notes(side.study))
    yield from (f"{side.letter}: {note}" for note in side.study.notes)


def _apart(a: StudySide, b: StudySide) -> Iterator[str]:
    """Yield when both studies ran, where one ran before the other."""
    times = [start_times(side.study.runs).dropna() for side in (a, b)]
    if any(started.empty for started in times):
        return
    first, second = times
    if first.max() < second.min() or second.max() < first.min():
        spans = [f"{started.min():%Y-%m-%d %H:%M} to {started.max():%Y-%m-%d %H:%M}" for started in times]
        changed = "what changed on the machine between them is part of every ratio"
        yield f"A ran {spans[0]}, B {spans[1]} (UTC): {changed}"

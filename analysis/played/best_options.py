"""Sets of options with played runs against each other: which keeps the IoU up to the most workers."""

from collections.abc import Sequence

from analysis.played.kept import KeptIou
from analysis.study import Names, Study
from analysis.text import count, first_of, with_interval

# More names would hide the first; the table has all.
_MOST_SETS = 3


def kept_over_options(kept: Sequence[KeptIou], study: Study) -> str:
    """Return one line over the answers of several sets of options; empty for one set.

    Of sets that keep the IoU equally far the one of the highest median IoU there
    is named, by medians alone: that it is better is not shown.
    """
    sets = len({each.options for each in kept})
    title = study.score.title
    if sets < 2:
        return ""
    most = max(each.workers for each in kept)
    if most == 1:
        return f"none of {sets} sets of options is shown to keep the {title} on more than 1 worker"
    farthest = [each for each in kept if each.workers == most]
    named = first_of([f"[{_name(each, kept, study.names)}]" for each in farthest], "set", _MOST_SETS)
    reach = f"up to {count(most, 'worker')}, with {named}"
    text = f"of {sets} sets of options the {title} is kept farthest, {reach}"
    return f"{text}{_highest(farthest, kept, study)}{_less_far(kept, most, study.names)}"


def _name(each: KeptIou, kept: Sequence[KeptIou], names: Names) -> str:
    """Return the options, with the framework where several have played runs."""
    several = len({other.name(names) for other in kept}) > 1
    return f"{each.options} ({each.name(names)})" if several else each.options


def _highest(farthest: Sequence[KeptIou], kept: Sequence[KeptIou], study: Study) -> str:
    """Return which of several sets has the highest median at their number of workers."""
    if len(farthest) < 2:
        return ""
    rows = {_name(each, kept, study.names): each.shown[-1].row for each in farthest}
    best = max(rows, key=lambda name: rows[name]["iou"])
    highest = f"highest median {study.score.title}"
    return f"; the {highest} there is {with_interval(rows[best], 'iou', '.3f')}, with [{best}]"


def _less_far(kept: Sequence[KeptIou], most: int, names: Names) -> str:
    """Return how far the next sets keep the IoU, and how many keep it less far."""
    shorter = [each for each in kept if each.workers < most]
    following = max((each.workers for each in shorter), default=1)
    if following == 1:
        return "; no other set is shown to keep it on more than 1 worker" if shorter else ""
    next_sets = [f"[{_name(each, kept, names)}]" for each in shorter if each.workers == following]
    rest = len(shorter) - len(next_sets)
    text = f"; up to {following:,} with {first_of(next_sets, 'set', _MOST_SETS)}"
    return f"{text}; less far with {count(rest, 'more set')}" if rest else text

"""The check of what was asked for against what is read: nobody chose among launches by their results."""

from collections import Counter
from collections.abc import Iterable, Mapping

import pandas as pd

from analysis.pairs import (
    Check,
    PointPair,
    Sides,
    first_points,
    names_of_pair,
    no,
    not_known,
    point_name,
    withhold_claims,
    yes,
)
from analysis.study import ABSENT, IS_READ, NAMES, NOT_ASKED, Study
from analysis.text import clean, count, listed
from unet_scaling.study.repeats import FIXED_SIGNIFICANCE


def check_asked(study: Study, sides: Mapping[PointPair, Sides]) -> Check:
    """Check that all runs that study.json asks for are read, and that no launch replaced another one.

    Repeats that are missing with a reason, or still to come, are said: the significance is that of a look
    before the end. Disturbed launches may be made again. Claims are withheld at a point where launches could
    be chosen by their results: a repeat that left nothing between those that are read, or quiet launches, or
    most of a framework's, that were made again in one framework more than in the other.
    """
    asked = study.asked
    if asked is None:
        for pair, both in sides.items():
            for side in both:
                repeats = {row["repeat"] for row in side}
                missing = sorted(set(range(min(repeats), max(repeats))) - repeats)
                if missing:
                    lacking = f"{point_name(pair)} lacks repeats {listed(map(str, missing))}"
                    return no(f"no study.json says what was asked for, and {lacking}")
        return not_known("no study.json says what was asked for")
    pairs = {
        pair: [asked_at(asked, (row["run"] for row in side)) for side in both] for pair, both in sides.items()
    }
    short = [fact for pair, arms in pairs.items() if (fact := _short(study, pair, arms))]
    facts = [f"repeats read of those asked for: {first_points(short)}"] if short else []
    chosen = {
        pair: fact for pair, arms in pairs.items() if (fact := _chosen(names_of_pair(study, pair), arms))
    }
    facts += [f"{point_name(pair)} {fact}" for pair, fact in list(chosen.items())[:1]]
    read = asked[asked["fate"].isin([IS_READ, NOT_ASKED])]
    absent = asked[~asked["point"].isin(read["point"])].drop_duplicates("point")
    if len(absent):
        named = [
            clean(f"{NAMES[row['framework']]} on {count(row['workers'], 'worker')} {row['label']}").strip()
            for row in absent.to_dict("records")
        ]
        facts.append(f"of {count(len(named), 'point')} asked for no run is read: {first_points(named)}")
    replaced = {name: int(read.loc[read["framework"] == name, "replaced"].sum()) for name in NAMES}
    again = [f"{number} of {NAMES[name]}" for name, number in replaced.items() if number]
    told = f"launches made again beside those read: {listed(again)}" if again else ""
    if not facts and not read["quiet_replaced"].any():
        disturbed = f"; {told}, all of them disturbed" if told else ""
        return yes(f"all {count(len(asked), 'run')} asked for are read{disturbed}")
    fact = "; ".join(filter(None, (*facts, told)))
    return withhold_claims(fact, chosen) if chosen else no(fact)


def asked_at(asked: pd.DataFrame, runs: Iterable[str]) -> pd.DataFrame:
    """Return what was asked for at the points of these runs."""
    return asked[asked["point"].isin(asked.loc[asked["run"].isin(list(runs)), "point"])]


def _short(study: Study, pair: PointPair, arms: list[pd.DataFrame]) -> str:
    """Return how many repeats of each framework are read, and why others are not; nothing where all are."""
    fates = [Counter(arm["fate"]) for arm in arms]
    if all(set(found) <= {IS_READ} for found in fates):
        return ""
    parts = []
    for name, found in zip(names_of_pair(study, pair), fates, strict=True):
        asked = found.total() - found[NOT_ASKED]
        others = [f"{number} {fate}" for fate, number in found.items() if fate != IS_READ]
        parts.append(f"{found[IS_READ]} of {asked} of {name}{f' ({listed(others)})' if others else ''}")
    return f"{point_name(pair)} {listed(parts)}"


def _chosen(names: tuple[str, str], arms: list[pd.DataFrame]) -> str:
    """Return how launches of a point could be chosen by their results; nothing where they could not."""
    for name, arm in zip(names, arms, strict=True):
        last = arm.loc[arm["fate"] == IS_READ, "repeat"].max()
        gaps = arm.loc[(arm["fate"] == ABSENT) & (arm["repeat"] < last), "repeat"]
        if len(gaps):
            repeats = listed(map(str, sorted(gaps)))
            return (
                f"repeats {repeats} of {name} left nothing, and later ones are read: submit the study again"
            )
    quiet = [int(arm["quiet_replaced"].sum()) for arm in arms]
    read = [arm.loc[arm["fate"].isin([IS_READ, NOT_ASKED]), "replaced"] for arm in arms]
    again_or_once = [[(replaced > 0).sum(), (replaced == 0).sum()] for replaced in read]
    if not any(again for again, _ in again_or_once):
        return ""
    # Only now: few studies need it, and it takes long to import.
    from scipy import stats  # type: ignore[import-untyped]

    if quiet[0] == quiet[1] and stats.fisher_exact(again_or_once).pvalue >= FIXED_SIGNIFICANCE:
        return ""
    both = [
        f"{arm['replaced'].sum()} launches of {name} ({number} of them not disturbed)"
        for name, arm, number in zip(names, arms, quiet, strict=True)
    ]
    return f"{listed(both)} were made again: the better one of each may stand"

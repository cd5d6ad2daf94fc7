"""The rows of the fairness table that facts of headers answer (analysis/facts.py): equal, apart, not known.

Runs that differ in a fact that must agree have been refused; what is left are facts that one framework's
runs alone tell, values that prove nothing, and sets such as hosts, of which each may have had its own.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from analysis.facts import (
    CORE_NUMBERS,
    EVALUATED,
    FACTS,
    PLACES,
    SETTINGS,
    SOFTWARE,
    Fact,
    moved_between_attempts,
    setting_facts,
    share_cores,
    values_of,
    version_facts,
)
from analysis.findings.check import Check, PointPair, known_of_one, no, not_known, withhold_claims, yes
from analysis.findings.pairs import (
    MOST_EXAMPLES,
    Sides,
    first_points,
    in_both,
    pairs_known_of_one,
    point_name,
    sides,
)
from analysis.restriction import NOTHING_LEARNED
from analysis.study import Study
from analysis.text import clean, count, first_of
from unet_scaling.study.record_lines import Header

COUNTS = ["true_positive", "false_positive", "false_negative", "true_negative"]
# Of the masks alone: equal whatever a network predicts.
FOREGROUND_COUNTS = ["true_positive", "false_negative"]
# Up to it, no more than half of what one framework's runs used was used as much by the other's.
TOO_FEW_SHARED = 0.5
# Of five launches of each framework: a host that served all of one, and one of the other.
MOST_UNEQUAL_SHARE = 0.8
_ROUNDING = 1e-9
# More would not be read in one cell of the fairness table.
_MOST_LISTED = 6


def check_facts(row: str, study: Study) -> Check:
    """Check what answers for a row: that both frameworks had the same, and that the runs of both tell it."""
    facts = [fact for fact in FACTS if fact.row == row]
    facts += version_facts(study.headers) if row == SOFTWARE else ()
    facts += setting_facts(study.headers) if row in SETTINGS.values() else ()
    own = [fact for fact in facts if fact.row == row]
    return facts_apart(own, study) or known_by_one(own, study) or _equal(own, study)


def facts_apart(facts: Sequence[Fact], study: Study) -> Check | None:
    """Return at which points the frameworks had hardly anything of a set in common."""
    sets = [fact for fact in facts if fact.is_free_set]
    apart: dict[PointPair, str] = {}
    for pair, both in sides(study.runs) if sets else ():
        found = (_apart(fact, both, study) for fact in sets)
        words = next(filter(None, found), "")
        if words:
            apart[pair] = words
    if not apart:
        return None
    named = first_points(f"{point_name(pair)} {words}" for pair, words in apart.items())
    cure = " (submit with --one-allocation)" if sets[0].row == PLACES else ""
    return withhold_claims(f"{named}: a difference may be theirs{cure}", apart)


def _apart(fact: Fact, both: Sides, study: Study) -> str:
    """Return what one framework's runs had and the other's had not, in words; else nothing.

    A single host that served nearly all launches of one framework and hardly any of the other is enough to
    make a difference, however many others they share: an epoch lasts as long as its slowest worker. Not so
    a single core: Slurm gives jobs now these, now those.
    """
    launches = [len(side) for side in both]
    used = [_launches_by_value(fact, side, study.headers) for side in both]
    if _shared_use(*used) <= TOO_FEW_SHARED:
        return in_both(fact.name, map(sorted, used), study.compared_names)
    for value in sorted({*used[0], *used[1]}) if fact.name != CORE_NUMBERS else ():
        shares = [own[value] / number for own, number in zip(used, launches, strict=True)]
        if abs(shares[0] - shares[1]) >= MOST_UNEQUAL_SHARE - _ROUNDING:
            times = [[f"{own[value]} of {number}"] for own, number in zip(used, launches, strict=True)]
            return in_both(f"{fact.name}, launches on {value}", times, study.compared_names)
    return ""


def _launches_by_value(fact: Fact, side: pd.DataFrame, headers: Mapping[str, Header]) -> Counter[str]:
    """Return how many of these launches had each value, in any attempt."""
    return Counter(value for run in side["run"] for value in values_of(fact, headers[run].attempts()))


def _shared_use(first: Counter[str], second: Counter[str]) -> float:
    """Return which share of the frameworks' use of something is equal: 1 if each was used by both as much."""
    if not first or not second:
        return float(not first and not second)
    return sum(min(first[value] / first.total(), second[value] / second.total()) for value in first & second)


def known_by_one(facts: Sequence[Fact], study: Study) -> Check | None:
    """Return at which points only one framework's runs tell a fact, with what both tell."""
    found: dict[PointPair, str] = {}
    for fact in facts:
        known = _proven(fact, study.headers)
        if len(known) < len(study.headers):
            pairs = set(pairs_known_of_one(study.runs, known))
            for pair, both in sides(study.runs) if pairs else ():
                if pair in pairs:
                    values = (values_of(fact, (study.headers[run] for run in side["run"])) for side in both)
                    words = in_both(fact.name, values, study.compared_names)
                    found.setdefault(pair, f"{point_name(pair)} {words}")
    return known_of_one(first_points(found.values()), found) if found else None


def _proven(fact: Fact, headers: Mapping[str, Header]) -> list[str]:
    """Return the runs that tell a fact, and in a way that proves it; what is a set may be empty."""
    values = {run: fact.of(header) for run, header in headers.items()}
    return [
        run for run, told in values.items() if fact.is_free_set or (told is not None and fact.sound(told))
    ]


def _equal(facts: Sequence[Fact], study: Study) -> Check:
    """Return that the runs agree in these facts, with their values, or which of them prove nothing."""
    headers = study.headers.values()
    first = next(iter(headers))
    unproven = [fact for fact in facts if len(_proven(fact, study.headers)) < len(headers)]
    told = [
        f"{fact.title(first)} {first_of([clean(value) for value in values], 'value', MOST_EXAMPLES)}"
        for fact in unproven or facts
        if (values := values_of(fact, headers)) or unproven
    ]
    text = first_of([words.strip() for words in told], "fact", _MOST_LISTED, separator="; ")
    return not_known(f"not recorded by every run, or no proof: {text}") if unproven else yes(text)


def check_evaluated(study: Study) -> Check:
    """Check that every run evaluated the same test images, all of them once; emulated ones evaluate none."""
    if study.is_emulated:
        return yes(NOTHING_LEARNED)
    options = dict(zip(study.runs["run"], study.runs["options"], strict=True))
    of_run = study.evaluations["run"].map(options).astype(str)
    for what, counts in (("pixels", COUNTS), ("pixels of foreground", FOREGROUND_COUNTS)):
        pixels = study.evaluations[counts].astype(float).sum(axis="columns")
        ranges = pixels.groupby(of_run).agg(["min", "max"])
        unequal = ranges[ranges["min"] < ranges["max"]]
        if len(unequal):
            fewest, most = (f"{number:,.0f}" for number in unequal.iloc[0])
            return withhold_claims(f"evaluations are of {fewest} to {most} {what} of the same test set")
    return check_facts(EVALUATED, study)


def check_shared(study: Study) -> Check:
    """Check that GPU workers could not use each other's cores: shared devices have been refused."""
    sharing_cores = [run for run, header in study.headers.items() if share_cores(header)]
    if sharing_cores:
        runs = count(len(sharing_cores), "run")
        return no(f"devices are owned, but GPU workers of {runs} could use the same cores")
    return yes("every worker had a device, or cores, of its own")


def check_attempts(study: Study) -> Check:
    """Check the hosts of attempts, which may differ: code, cores and data that differ have been refused."""
    moved = {run: hosts for run, header in study.headers.items() if (hosts := moved_between_attempts(header))}
    if moved:
        return no(_named_runs(f"{run} was resumed on other hosts ({hosts})" for run, hosts in moved.items()))
    if study.unknown_attempts:
        fact = f"earlier attempts of {_named_runs(study.unknown_attempts)} left no record"
        pairs = pairs_known_of_one(study.runs, study.headers.keys() - set(study.unknown_attempts))
        return known_of_one(fact, pairs) if pairs else not_known(fact)
    resumed = sum(header.resumed is not None for header in study.headers.values())
    if not resumed:
        return yes("no run was resumed")
    return yes(f"the attempts of {count(resumed, 'resumed run')} agree in code, cores and hosts")


def _named_runs(runs: Iterable[str]) -> str:
    return first_of([clean(run) for run in runs], "run", _MOST_LISTED)

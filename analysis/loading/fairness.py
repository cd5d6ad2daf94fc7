"""The refusal of runs that may not be compared: those that differ in a fact that must agree."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

from analysis.loading.compared_facts import (
    ATTEMPT_FACTS,
    FACTS,
    NOT_SET,
    SETTINGS,
    TIMEOUT_VARIABLES,
    UNCOMMITTED,
    Fact,
    Found,
    setting_facts,
    settings,
    version_facts,
)
from analysis.loading.resources import sharing
from unet_scaling.study.record_lines import AttemptFacts, Header, Provenance

# Of each framework: fewer carry no interval, and to refuse all others for them would leave no answer.
FEWEST_COMMITTED_RUNS = 3
# A longer value would hide which fact differs and where.
LONGEST_SHOWN_CHARACTERS = 60


def refusals(headers: Mapping[str, Header]) -> dict[str, str]:
    """Return the runs that may not be compared, {run: reason}; each reason names the fact and both values.

    First those that disagree with themselves: workers that share a device, attempts that differ. Then,
    where enough runs are of committed code, those that are not. Among the others the value that most of
    them have stands and the others are refused; among equally many, that of the run which started first.
    The reason ends with which runs stand: "(kept: 9 of 10 runs)". Host names may differ, since Slurm chooses
    hosts for each job, but devices, cores, threads and the number of workers on each host may not. Versions
    and variables are compared where both runs recorded them.
    """
    reasons = {run: reason for run, header in headers.items() if (reason := _of_one_run(header))}
    sound = {run: header for run, header in headers.items() if run not in reasons}
    reasons |= _uncommitted(sound)
    return reasons | _differences({run: header for run, header in sound.items() if run not in reasons})


def _differences(headers: Mapping[str, Header]) -> dict[str, str]:
    """Return the runs that differ from the others in any fact, {run: all such facts}."""
    return differing_in(headers, (*FACTS, *version_facts(headers), *setting_facts(headers)))


def differing_in(headers: Mapping[str, Found], facts: Sequence[Fact[Found]]) -> dict[str, str]:
    """Return the runs that differ from the others in one of these facts, {run: all such facts}."""
    differing: dict[str, list[str]] = {}
    # Several facts have to agree among the same runs, and in a large study these keys take their time.
    keys = {alike: list(map(alike, headers.values())) for alike in {fact.alike for fact in facts}}
    for fact in facts:
        for run, reason in _differing(fact, headers, keys[fact.alike]):
            differing.setdefault(run, []).append(reason)
    return {run: "; ".join(parts) for run, parts in differing.items()}


def _of_one_run(header: Header) -> str:
    return sharing(header) or "; ".join(differing_attempts(header))


def differing_attempts(header: Header) -> list[str]:
    """Return in which facts two attempts of a run differ, with both values and the attempts."""
    first, *others = header.attempts()
    return [reason for other in others for reason in between(first, other)]


def between(first: AttemptFacts, other: AttemptFacts) -> Iterator[str]:
    """Yield in which facts two attempts differ, with both values."""
    for name, old, new in _pairs(first, other):
        if old is not None and new is not None and old != new:
            before, after = _apart(old, new)
            yield f"{name} is {before} in attempt {first.attempt}, but {after} in attempt {other.attempt}"


def _pairs(first: AttemptFacts, other: AttemptFacts) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield the name of each fact with its values in both attempts; None is not compared."""
    for name, value in ATTEMPT_FACTS.items():
        yield name, value(first), value(other)
    for package in sorted({*first.versions, *other.versions}):
        yield f"version of {package}", first.versions.get(package), other.versions.get(package)
    for kind in SETTINGS:
        yield from _pairs_of_settings(kind, settings(first, kind), settings(other, kind))


def _pairs_of_settings(
    kind: str, before: Mapping[str, str] | None, after: Mapping[str, str] | None
) -> Iterator[tuple[str, str, str]]:
    if before is not None and after is not None:
        for name in sorted({*before, *after} - TIMEOUT_VARIABLES):
            yield f"{kind} {name}", before.get(name, NOT_SET), after.get(name, NOT_SET)


def _uncommitted(headers: Mapping[str, Header]) -> dict[str, str]:
    """Refuse runs with uncommitted changes, however many they are, where the others are enough to answer."""
    committed = [run for run, header in headers.items() if header.dirty is False]
    if not committed or not _are_enough([headers[run] for run in committed], headers.values()):
        return {}
    reason = f"{UNCOMMITTED} is True, but False in {_and_more(committed)} (kept: committed code)"
    return {run: reason for run, header in headers.items() if header.dirty}


def _are_enough(committed: Sequence[Header], headers: Collection[Header]) -> bool:
    """Return whether runs of committed code are half of all, or carry intervals of all frameworks alone."""
    if 2 * len(committed) >= len(headers):
        return True
    runs = Counter(header.config.framework for header in committed)
    return all(runs[header.config.framework] >= FEWEST_COMMITTED_RUNS for header in headers)


def _differing(
    fact: Fact[Found], headers: Mapping[str, Found], keys: Sequence[Hashable]
) -> list[tuple[str, str]]:
    groups: dict[Hashable, dict[str, str]] = {}
    for (run, header), key in zip(headers.items(), keys, strict=True):
        value = fact.value(header)
        if value is not None:
            groups.setdefault(key, {})[run] = value
    return [outlier for values in groups.values() for outlier in _outliers(fact.name, values, headers)]


def _outliers(
    fact: str, values: Mapping[str, str], headers: Mapping[str, Provenance]
) -> Iterator[tuple[str, str]]:
    """Yield the runs that have another value than most; of two that as many have, the first run's stands."""
    runs_of = _runs_by_value(values)
    usual = _usual(runs_of, headers)
    for value, runs in runs_of.items():
        if value != usual:
            reason = _why_refused(fact, value, usual, runs_of)
            yield from ((run, reason) for run in runs)


def _usual(runs_of: Mapping[str, Sequence[str]], headers: Mapping[str, Provenance]) -> str:
    """Return the value of most runs; of two that as many have, that of the first run to start."""
    most = max(map(len, runs_of.values()))
    common = [value for value, runs in runs_of.items() if len(runs) == most]
    # Texts in ISO 8601 sort by time.
    return min(common, key=lambda value: min(headers[run].first_started_utc for run in runs_of[value]))


def _why_refused(fact: str, value: str, usual: str, runs_of: Mapping[str, Sequence[str]]) -> str:
    kept = runs_of[usual]
    first = ", the first to start" if len(runs_of[value]) == len(kept) else ""
    every = sum(map(len, runs_of.values()))
    shown, other = _apart(value, usual)
    return f"{fact} is {shown}, but {other} in {_and_more(kept)} (kept: {len(kept)} of {every} runs{first})"


def _runs_by_value(values: Mapping[str, str]) -> dict[str, list[str]]:
    runs_of: dict[str, list[str]] = {}
    for run, value in values.items():
        runs_of.setdefault(value, []).append(run)
    return runs_of


def _and_more(runs: Sequence[str]) -> str:
    """Return "RUN", or "RUN and 3 more"."""
    return f"{runs[0]} and {len(runs) - 1} more" if len(runs) > 1 else runs[0]


def _apart(value: str, other: str) -> tuple[str, str]:
    """Return two values shortened for a message, but not so far that they look alike."""
    shown = _short(value), _short(other)
    if shown[0] != shown[1]:
        return shown
    same = next((place for place, (a, b) in enumerate(zip(value, other, strict=False)) if a != b), 0)
    return "..." + _short(value[same:]), "..." + _short(other[same:])


def _short(value: str) -> str:
    return value if len(value) <= LONGEST_SHOWN_CHARACTERS else value[:LONGEST_SHOWN_CHARACTERS] + "..."

"""Which runs may not be compared, by the facts that their records tell (unet_scaling/format/facts.py)."""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from analysis.read.options import flat_options, shared_options
from unet_scaling.format.facts import (
    COMMIT,
    FACTS,
    UNCOMMITTED_CHANGES,
    Fact,
    differing_attempts,
    facts_of,
    parted,
    sharing,
)
from unet_scaling.format.record_lines import Header, Provenance

# At a point: fewer carry no interval, and to refuse all others for them would leave no answer.
FEWEST_COMMITTED_RUNS = 3


def _options(header: Header) -> Hashable:
    return tuple(shared_options(header.config).items())


SAME: Mapping[str, Callable[[Any], Hashable]] = {
    "all": lambda _: None,
    "options": _options,
    "seed": lambda header: (_options(header), header.config.seed),
    "repeat": lambda header: (_options(header), header.config.repeat),
    # What code a run with uncommitted changes ran, its commit does not tell.
    "code": lambda header: bool(header.dirty),
    "workers": lambda header: header.config.workers,
    # Workers that were asked to use equally many of their cores.
    "cores": lambda header: header.config.training.cores_per_worker,
    "framework": lambda header: header.config.framework,
    "series": lambda header: (header.config.framework, tuple(flat_options(header.config).items())),
}


def refusals(headers: Mapping[str, Header]) -> dict[str, str]:
    """Return the runs that may not be compared, {run: reason}; each reason names the fact and both values.

    First those that disagree with themselves: workers that share a device, attempts that differ. Then those
    emulated, or on a slowed clock, beside measured ones. Then, where runs of committed code answer as much
    without them, those that are not; where most are not, commits prove nothing, and refuse none. Among the
    others the value that most of them have stands and the others are refused; among equally many, that of
    the run which started first.
    The reason ends with which runs stand: "(kept: 9 of 10 runs)". What is not recorded is not compared here:
    the fairness table says what only one framework's runs tell.
    """
    reasons = {
        run: reason
        for run, each in headers.items()
        if (reason := sharing(each) or "; ".join(words for _, words in differing_attempts(each)))
    }

    def left() -> dict[str, Header]:
        return {run: header for run, header in headers.items() if run not in reasons}

    reasons |= differing_in(left(), [fact for fact in FACTS if fact.stands])
    reasons |= _uncommitted(left())
    proves = 2 * sum(not header.dirty for header in left().values()) >= len(left())
    facts = [fact for fact in facts_of(left()) if proves or fact.name != COMMIT]
    return reasons | differing_in(left(), facts)


def _uncommitted(headers: Mapping[str, Header]) -> dict[str, str]:
    """Refuse runs with uncommitted changes, however many they are, where the others are enough to answer.

    They are where at every point they are half of all, or enough for an interval. Else no run is refused: the
    row on software of the fairness table names what it is not proven by.
    """
    changed = [run for run, header in headers.items() if header.dirty]
    points: dict[Hashable, list[bool]] = {}
    for header in headers.values():
        point = SAME["series"](header), header.config.workers
        points.setdefault(point, []).append(not header.dirty)
    if not changed or any(
        sum(clean) < min(FEWEST_COMMITTED_RUNS, len(clean) / 2) for clean in points.values()
    ):
        return {}
    committed = [run for run in headers if run not in changed]
    reason = f"{UNCOMMITTED_CHANGES}: True, but False in {_and_more(committed)} (kept: committed code)"
    return dict.fromkeys(changed, reason)


def differing_in(
    headers: Mapping[str, Provenance],
    facts: Sequence[Fact],
    same: Mapping[str, Callable[[Any], Hashable]] = SAME,
) -> dict[str, str]:
    """Return the runs that differ from most of those they have to agree with, {run: all such facts}."""
    reasons: dict[str, list[str]] = {}
    # Several facts have to agree among the same runs, and in a large study these keys take their time.
    keys = {name: list(map(same[name], headers.values())) for name in {fact.same for fact in facts} if name}
    for fact in facts:
        groups: dict[Hashable, dict[str, list[str]]] = {}
        for (run, header), key in zip(headers.items(), keys.get(fact.same, ()), strict=False):
            value = fact.of(header)
            if value is not None:
                groups.setdefault(key, {}).setdefault(value, []).append(run)
        for runs_of in groups.values():
            if len(runs_of) > 1:
                name = fact.title(next(iter(headers.values())))
                for run, reason in _outliers(name, runs_of, headers, fact.stands):
                    reasons.setdefault(run, []).append(reason)
    return {run: "; ".join(parts) for run, parts in reasons.items()}


def _outliers(
    name: str, runs_of: Mapping[str, Sequence[str]], headers: Mapping[str, Provenance], stands: str
) -> Iterator[tuple[str, str]]:
    """Yield the runs that have another value than most; of two that as many have, the first run's stands."""

    def rank(value: str) -> tuple[bool, int, str]:
        # Texts in ISO 8601 sort by time.
        return (
            value != stands,
            -len(runs_of[value]),
            min(headers[run].first_started_utc for run in runs_of[value]),
        )

    usual = min(runs_of, key=rank)
    kept = runs_of[usual]
    for value, runs in runs_of.items():
        first = ", the first to start" if len(runs) == len(kept) else ""
        shown, other = parted(value, usual)
        which = f"(kept: {len(kept)} of {sum(map(len, runs_of.values()))} runs{first})"
        if value != usual:
            yield from ((run, f"{name}: {shown}, but {other} in {_and_more(kept)} {which}") for run in runs)


def _and_more(runs: Sequence[str]) -> str:
    """Return "RUN", or "RUN and 3 more"."""
    return f"{runs[0]} and {len(runs) - 1} more" if len(runs) > 1 else runs[0]


def is_sharing(reason: str) -> bool:
    """Return whether a run was refused because two of its workers share a device or core."""
    return re.match(r"workers \d+ and \d+ share ", reason) is not None

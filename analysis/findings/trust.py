"""The tile of trust: quiet machine, repeats, steadiness and fairness, each with the check of its table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.findings.check import NO, NOT_KNOWN, QUIET, YES, Check
from analysis.findings.recommendation import Recommendation
from analysis.findings.steadiness import run_steadiness
from analysis.findings.tiles import Light, Tile
from analysis.statistics.intervals import FEWEST_REPEATS, RECOMMENDED_REPEATS
from analysis.text import count, listed

# From good to bad: the light of the tile is the worst of its reasons.
LIGHTS: Sequence[Light] = ("good", "caution", "bad")


@dataclass(frozen=True)
class _Reason:
    """A light and why; one that is `minor` stands beside the value only where no other weighs as much."""

    light: Light
    text: str
    minor: bool = False


def trust_tile(advice: Recommendation, checks: Sequence[Check]) -> Tile:
    """Return how far the numbers of these options may be trusted."""
    own = [check for check in checks if _concerns(check, advice.options)]
    if not advice.candidates.study.provenance_known:
        unknown = "logs in the older layout do not say which code, machine and data they are of"
        return Tile("Trust", _met(own), unknown, "unknown", (_repeats(advice).text,))
    reasons = [_quiet(own), _repeats(advice), _steady(advice), *_fair(own)]
    worst = max((reason.light for reason in reasons), key=LIGHTS.index)
    weakest = [reason for reason in reasons if reason.light == worst]
    named = [reason for reason in weakest if not reason.minor] or weakest
    others = tuple(reason.text for reason in reasons if reason not in named)
    return Tile("Trust", _met(own), "; ".join(reason.text for reason in named), worst, others)


def _met(checks: Sequence[Check]) -> str:
    """Return how many of the checks that the records can answer are met."""
    known = [check.mark for check in checks if check.mark != NOT_KNOWN]
    return f"{known.count(YES)} of {count(len(known), 'check')} met"


def _concerns(check: Check, options: str) -> bool:
    """Return whether a check says something of these options; one that names no points says it of all."""
    return not check.pairs or any(pair[0] == options for pair in check.pairs)


def _quiet(checks: Sequence[Check]) -> _Reason:
    reasons = [_quiet_pair(check) for check in checks if check.check == QUIET]
    quiet = _Reason("good", "machine quiet at these points")
    return max(reasons, key=lambda reason: LIGHTS.index(reason.light), default=quiet)


def _quiet_pair(check: Check) -> _Reason:
    light: Light = "good" if check.mark == YES else "bad" if check.withholds else "caution"
    return _Reason(light, f"{check.title}: {check.mark}: {check.fact}")


def _repeats(advice: Recommendation) -> _Reason:
    fewest = min(int(point.row["repeats"]) for point in advice.candidates.candidates)
    light: Light = "good" if fewest >= RECOMMENDED_REPEATS else "caution"
    if fewest < FEWEST_REPEATS:
        light = "bad"
    needed = f"{FEWEST_REPEATS} are needed, {RECOMMENDED_REPEATS} recommended"
    return _Reason(light, f"{count(fewest, 'repeat')} at the point with the fewest: {needed}")


def _steady(advice: Recommendation) -> _Reason:
    study = advice.candidates.study
    own = study.runs.loc[study.runs["options"] == advice.options, "run"]
    table = run_steadiness(study)
    steady = table.loc[table["run"].isin(own), "steady"]
    runs = count(len(steady), "run")
    unsteady = int((steady == "no").sum())
    if unsteady:
        return _Reason("caution", f"{unsteady} of {runs} not steady after the warm-up")
    short = int((steady == "not checked").sum())
    if short:
        # Nothing was found against these runs, and for who reads of few repeats it is one thing too many.
        return _Reason("caution", f"{short} of {runs} too short to be checked for drift", minor=True)
    return _Reason("good", f"{runs}, all steady after the warm-up")


def _fair(checks: Sequence[Check]) -> Iterator[_Reason]:
    unmet = [check for check in checks if (check.mark == NO or check.one_sided) and check.check != QUIET]
    for check in unmet:
        light: Light = "bad" if check.withholds else "caution"
        yield _Reason(light, f"{check.title}: {check.mark}: {check.fact}")
    if not unmet:
        unknown = [check.title for check in checks if check.mark == NOT_KNOWN]
        rest = f"; not known: {listed(unknown)}" if unknown else ""
        yield _Reason("good", f"every fairness check that the records can answer is met{rest}")

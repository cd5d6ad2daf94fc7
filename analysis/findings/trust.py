"""How far to trust numbers: quiet machine, repeats, steadiness, fairness; as a tile, and within sentences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import pandas as pd

from analysis.findings.check import NO, NOT_KNOWN, QUIET, YES, Check, PointPair
from analysis.findings.steadiness import run_steadiness
from analysis.findings.tiles import Light, Tile
from analysis.stats import FEWEST_REPEATS, RECOMMENDED_REPEATS
from analysis.study import Study
from analysis.text import count, listed
from unet_scaling.study.run_state import Exclusion

# From good to bad: the light of the tile is the worst of its reasons.
LIGHTS: Sequence[Light] = ("good", "caution", "bad")
# So many of them stand in a sentence; the tile has all.
MOST_QUALIFIERS = 2
# One epoch says nothing of how others would have been.
FEWEST_TIMED_EPOCHS = 2


@dataclass(frozen=True)
class Reason:
    """A light and why; `short`: for a sentence that claims something, empty where nothing speaks against it.

    One that is `minor` stands beside the value only where no other weighs as much.
    """

    light: Light
    text: str
    short: str = ""
    minor: bool = False


@dataclass(frozen=True)
class Trust:
    """What tells how far to trust a study: its runs, and the checks of its fairness table."""

    study: Study
    checks: Sequence[Check]

    def tile(self, options: str) -> Tile:
        """Return how far the numbers of these options may be trusted."""
        own = [check for check in self.checks if _concerns(check, options)]
        reasons = self._reasons(own, options)
        if not self.study.provenance_known:
            unknown = "logs in the older layout do not say which code, machine and data they are of"
            return Tile("Trust", _met(own), unknown, "unknown", (reasons[-1].text,))
        worst = max((reason.light for reason in reasons), key=LIGHTS.index)
        weakest = [reason for reason in reasons if reason.light == worst]
        named = [reason for reason in weakest if not reason.minor] or weakest
        others = tuple(reason.text for reason in reasons if reason not in named)
        return Tile("Trust", _met(own), "; ".join(reason.text for reason in named), worst, others)

    def qualified(self, claim: str, options: str, pair: PointPair | None = None) -> str:
        """Return a sentence with what lowers the trust in it, the worst first, unless it says so itself.

        `pair`: the sentence is about these points alone.
        """
        if not self.study.provenance_known:
            return claim
        own = [check for check in self.checks if _concerns(check, options, pair)]
        reasons = sorted(
            self._reasons(own, options), key=lambda each: (-LIGHTS.index(each.light), each.minor)
        )
        shorts = dict.fromkeys(each.short for each in reasons if each.short)
        new = [short for short in shorts if short.partition(":")[0] not in claim]
        return f"{claim}; caution: {', '.join(new[:MOST_QUALIFIERS])}" if new else claim

    def _reasons(self, checks: Sequence[Check], options: str) -> list[Reason]:
        runs = self.study.runs[self.study.runs["options"] == options]
        fewest = int(runs.groupby(["framework", "knobs", "workers"]).size().min())
        steadiness = self._steadiness.loc[self._steadiness["run"].isin(runs["run"]), "steady"]
        steady = _steady(steadiness, int(runs["epochs_used"].min()))
        return [_quiet(checks), *_incomplete(self.study, options), *_fair(checks), steady, _repeats(fewest)]

    @cached_property
    def _steadiness(self) -> pd.DataFrame:
        return run_steadiness(self.study)


def _met(checks: Sequence[Check]) -> str:
    """Return how many of the checks are met, and how many the records cannot answer."""
    marks = [check.mark for check in checks]
    unknown = f", {marks.count(NOT_KNOWN)} not known" if NOT_KNOWN in marks else ""
    return f"{marks.count(YES)} of {count(len(marks), 'check')} met{unknown}"


def _concerns(check: Check, options: str, pair: PointPair | None = None) -> bool:
    """Return whether a check says something of these options; one that names no points says it of all."""
    if not check.pairs:
        return True
    return pair in check.pairs if pair else any(each[0] == options for each in check.pairs)


def _quiet(checks: Sequence[Check]) -> Reason:
    reasons = [_unmet(check, "caution") for check in checks if check.check == QUIET and check.mark != YES]
    quiet = Reason("good", "machine quiet at these points")
    return max(reasons, key=lambda reason: LIGHTS.index(reason.light), default=quiet)


def _unmet(check: Check, light: Light) -> Reason:
    short = f"{check.title}: {'known of one framework only' if check.one_sided else check.mark}"
    text = f"{check.title}: {check.mark}: {check.fact}"
    return Reason("bad" if check.withholds else light, text, short)


def _repeats(fewest: int) -> Reason:
    light: Light = "good" if fewest >= RECOMMENDED_REPEATS else "caution"
    if fewest < FEWEST_REPEATS:
        light = "bad"
    needed = f"{FEWEST_REPEATS} are needed, {RECOMMENDED_REPEATS} recommended"
    repeats = count(fewest, "repeat")
    text = f"{repeats} at the point with the fewest: {needed}"
    return Reason(light, text, "" if light == "good" else repeats)


def _incomplete(study: Study, options: str) -> Iterator[Reason]:
    """Yield that runs of the study are still to come: who looks before may see what would not last."""
    settled = (*get_args(Exclusion), "diverged")
    left = study.left_out
    missing = ~left["state"].isin(settled) & left["options"].isin(["", options])
    if missing.any():
        runs = count(int(missing.sum()), "run")
        yield Reason("caution", f"{runs} of the study did not complete", f"{runs} incomplete")


def _steady(steady: "pd.Series[str]", fewest_epochs: int) -> Reason:
    runs = count(len(steady), "run")
    unsteady = int((steady == "no").sum())
    if unsteady:
        text = f"{unsteady} of {runs} not steady"
        return Reason("caution", f"{text} after the warm-up", text)
    short = int((steady == "not checked").sum())
    if short:
        if fewest_epochs < FEWEST_TIMED_EPOCHS:
            return Reason("caution", f"some of {runs} have one timed epoch", "one epoch timed", minor=True)
        # Nothing was found against these runs: short ones are usual, and their launches show the spread.
        return Reason("good", f"{short} of {runs} too short to be checked for drift", minor=True)
    return Reason("good", f"{runs}, all steady after the warm-up")


def _fair(checks: Sequence[Check]) -> Iterator[Reason]:
    unmet = [check for check in checks if (check.mark == NO or check.one_sided) and check.check != QUIET]
    yield from (_unmet(check, "caution") for check in unmet)
    unknown = [check.title for check in checks if check.mark == NOT_KNOWN and not check.one_sided]
    rest = f"; not known: {listed(unknown)}" if unknown else ""
    few = f"{count(len(unknown), 'check')} not known" if unknown else ""
    if not unmet:
        yield Reason(
            "good", f"every fairness check that the records can answer is met{rest}", few, minor=True
        )

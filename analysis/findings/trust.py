"""How far to trust numbers: quiet machine, repeats, steadiness, fairness; as a tile, and within sentences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import pandas as pd

from analysis.contrast import NO, NOT_KNOWN, QUIET, YES, Check, PointPair
from analysis.stats import FEWEST_REPEATS, RECOMMENDED_REPEATS
from analysis.steady import run_steadiness
from analysis.study import Study
from analysis.text import count, listed
from unet_scaling.study.run_state import Exclusion

# none: no criterion tells what would be good.
Light = Literal["good", "caution", "bad", "unknown", "none"]
# From good to bad: the light of the tile is the worst of its reasons.
LIGHTS: Sequence[Light] = ("good", "caution", "bad")
# So many of them stand in a sentence; the tile has all.
MOST_QUALIFIERS = 2
# One epoch says nothing of how others would have been.
FEWEST_TIMED_EPOCHS = 2
UNMET = {NO: "not met", NOT_KNOWN: "not known"}
# Said with every claim of logs that do not say where they come from.
NO_PROVENANCE = "no provenance"


@dataclass(frozen=True)
class Tile:
    """One aspect of an answer: a short value, a sentence with interval and unit, a light and its reasons."""

    title: str
    value: str
    detail: str
    light: Light
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reason:
    """A light and why; `short`: what a sentence that claims something has to say of it, or nothing.

    One that is `minor` stands beside the value only where no other weighs as much. A claim that names what a
    reason is `about` says it itself.
    """

    light: Light
    text: str
    short: str = ""
    minor: bool = False
    about: str = ""

    @property
    def weight(self) -> int:
        return LIGHTS.index(self.light)


@dataclass(frozen=True)
class Trust:
    """What tells how far to trust a study: its runs, and the checks of its fairness table."""

    study: Study
    checks: Sequence[Check]

    def tile(self, options: str) -> Tile:
        """Return how far the numbers of these options may be trusted."""
        own = self._checks_of(options)
        marks = [check.mark for check in own]
        rest = [f"{marks.count(mark)} {words}" for mark, words in UNMET.items() if mark in marks]
        value = ", ".join((f"{marks.count(YES)} of {count(len(marks), 'check')} met", *rest))
        reasons = list(self._reasons(own, options))
        if not self.study.provenance_known:
            detail = "nothing says which code, machine and data these numbers are of"
            return Tile("Trust", value, detail, "unknown", (reasons[-1].text,))
        worst = max(reasons, key=lambda reason: reason.weight).light
        weakest = [reason for reason in reasons if reason.light == worst]
        named = [reason for reason in weakest if not reason.minor] or weakest
        others = tuple(reason.text for reason in reasons if reason not in named and reason.light != "good")
        return Tile("Trust", value, "; ".join(reason.text for reason in named), worst, others)

    def qualified(self, claim: str, options: str, pair: PointPair | None = None) -> str:
        """Return a sentence with what lowers the trust in it, the worst first, unless it says so itself.

        `pair`: the sentence is about these points alone.
        """
        if not self.study.provenance_known:
            return claim if NO_PROVENANCE in claim else f"{claim}; caution: {NO_PROVENANCE}"
        reasons = self._reasons(self._checks_of(options, pair), options)
        worst_first = sorted(reasons, key=lambda reason: (-reason.weight, reason.minor))
        new = {each.short: each.light for each in worst_first if (each.about or each.short) not in claim}
        said = list(new.items())[:MOST_QUALIFIERS]
        warnings = ", ".join(short for short, light in said if light != "good")
        remarks = [short for short, light in said if light == "good"]
        return "; ".join((claim, *[f"caution: {warnings}"] * bool(warnings), *remarks))

    def _checks_of(self, options: str, pair: PointPair | None = None) -> list[Check]:
        """Return the checks that say something of these options; one that names no points says it of all."""
        return [
            check
            for check in self.checks
            if not check.pairs
            or (pair in check.pairs if pair else any(each[0] == options for each in check.pairs))
        ]

    def _reasons(self, checks: Sequence[Check], options: str) -> Iterator[Reason]:
        runs = self.study.runs[self.study.runs["options"] == options]
        quiet = [_unmet(check) for check in checks if check.check == QUIET and check.mark != YES]
        good = Reason("good", "machine quiet at these points", minor=True)
        yield max(quiet, key=lambda reason: reason.weight, default=good)
        yield from incomplete(self.study, options)
        yield from _unfair(checks)
        steady = self._steadiness.loc[self._steadiness["run"].isin(runs["run"]), "steady"]
        yield _steady(steady, int(runs["epochs_used"].min()))
        fewest = int(runs.groupby(["framework", "knobs", "workers"]).size().min())
        light: Light = "good" if fewest >= RECOMMENDED_REPEATS else "caution"
        needed = f"{FEWEST_REPEATS} are needed, {RECOMMENDED_REPEATS} recommended"
        repeats = count(fewest, "repeat")
        yield Reason(
            light if fewest >= FEWEST_REPEATS else "bad",
            f"{repeats} at the point with the fewest: {needed}",
            "" if light == "good" else repeats,
        )

    @cached_property
    def _steadiness(self) -> pd.DataFrame:
        return run_steadiness(self.study)


def _unmet(check: Check) -> Reason:
    lacks = "known of one framework only" if check.one_sided else UNMET[check.mark]
    short = f'check "{check.title}" {lacks}'
    text = f"{check.title}: {check.mark}: {check.fact}"
    about = "quiet" if check.check == QUIET else check.title
    return Reason("bad" if check.withholds else "caution", text, short, about=about)


def incomplete(study: Study, options: str) -> Iterator[Reason]:
    """Yield that runs of the study are still to come: who looks before may see what would not last."""
    settled = (*get_args(Exclusion), "diverged")
    left = study.left_out
    missing = int((~left["state"].isin(settled) & left["options"].isin(["", options])).sum())
    if missing:
        runs = count(missing, "run")
        yield Reason("caution", f"{runs} of the study did not complete", f"{runs} incomplete")


def _unfair(checks: Sequence[Check]) -> Iterator[Reason]:
    unmet = [check for check in checks if (check.mark == NO or check.one_sided) and check.check != QUIET]
    yield from map(_unmet, unmet)
    if unmet:
        return
    unknown = [check.title for check in checks if check.mark == NOT_KNOWN and not check.one_sided]
    rest = f"; not known: {listed(unknown)}" if unknown else ""
    few = f"{count(len(unknown), 'check')} not known" if unknown else ""
    yield Reason("good", f"every fairness check that the records can answer is met{rest}", few, minor=True)


def _steady(steady: "pd.Series[str]", fewest_epochs: int) -> Reason:
    runs = count(len(steady), "run")
    unsteady = int((steady == "no").sum())
    short = int((steady == "not checked").sum())
    if unsteady:
        text = f"{unsteady} of {runs} not steady"
        return Reason("caution", f"{text} after the warm-up", text)
    if short and fewest_epochs < FEWEST_TIMED_EPOCHS:
        return Reason("caution", f"some of {runs} have one timed epoch", "one epoch timed", minor=True)
    if short:
        # Nothing was found against these runs: short ones are usual, and their launches show the spread.
        return Reason("good", f"{short} of {runs} too short to be checked for drift", minor=True)
    return Reason("good", f"{runs}, all steady after the warm-up")

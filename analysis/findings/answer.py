"""The answer of a study: for each set of options a headline, four tiles, and what to do next."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from analysis.findings.recommendation import Recommendation

# scale: train on more workers; stay: on 1; undecided: evidence is missing; unfair: a check forbids the claim.
Kind = Literal["scale", "stay", "undecided", "unfair"]
Light = Literal["good", "caution", "bad", "unknown"]


@dataclass(frozen=True)
class Tile:
    """One aspect of an answer: a short value, a sentence with interval and unit, a light and its reasons."""

    title: str
    value: str
    detail: str
    light: Light
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What the study says of the runs that have these options; `tiles`: speed, IoU, time and cost, trust."""

    options: str
    kind: Kind
    headline: str
    tiles: tuple[Tile, ...]
    next_steps: tuple[str, ...]


def answers_of(recommendations: Iterable[Recommendation]) -> list[Answer]:
    """Return one answer for each set of options, the most decided first."""
    return [_answer(advice) for advice in recommendations]


def _answer(advice: Recommendation) -> Answer:
    kind: Kind = "undecided" if advice.workers is None else "stay" if advice.workers == 1 else "scale"
    tiles = tuple(Tile(title, "", "", "unknown") for title in ("Speed", "IoU", "Time and cost", "Trust"))
    return Answer(advice.options, kind, advice.sentence, tiles, ())

"""The answer of a study: for each set of options a headline, four tiles, and what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from analysis.findings.device_words import DeviceWords, device_words
from analysis.findings.headline import Kind, headline, kind_of
from analysis.findings.next_steps import next_steps
from analysis.findings.option_sets import best_set
from analysis.findings.recommendation import Recommendation
from analysis.findings.tiles import Tile, cost_tile, iou_tile, speed_tile
from analysis.findings.trust import Trust


@dataclass(frozen=True)
class Answer:
    """What the study says of the runs that have these options; `tiles`: speed, IoU, time and cost, trust."""

    options: str
    kind: Kind
    headline: str
    tiles: tuple[Tile, ...]
    next_steps: tuple[str, ...]


def answers_of(recommendations: Sequence[Recommendation], trust: Trust) -> list[Answer]:
    """Return one answer for each set of options: the best set first, then the most decided.

    Nothing is decided here: `recommendations` and the checks of the same study are put in words.
    """
    best = best_set(recommendations)
    ordered = sorted(recommendations, key=lambda advice: (advice is not best, _rank(advice)))
    return [_answer(advice, trust, device_words(trust.study)) for advice in ordered]


def _rank(advice: Recommendation) -> int:
    return get_args(Kind).index(kind_of(advice))


def _answer(advice: Recommendation, trust: Trust, words: DeviceWords) -> Answer:
    tiles = (
        speed_tile(advice, words),
        iou_tile(advice, words),
        cost_tile(advice, words),
        trust.tile(advice.options),
    )
    steps = tuple(next_steps(advice, trust.checks))
    kind = kind_of(advice)
    line = headline(advice, words)
    # An unfair comparison names what speaks against it, and claims nothing.
    line = line if kind == "unfair" else trust.qualified(line, advice.options)
    return Answer(advice.options, kind, line, tiles, steps)

"""Answers of emulated studies: their speed, said to be emulated, and nothing that a training gives."""

from collections.abc import Sequence
from dataclasses import replace

from analysis.emulation import NOTHING_LEARNED, after
from analysis.findings.answer import Answer
from analysis.findings.tiles import Tile

NOT_EMULATED = "not emulated"
# Of the tiles of an answer, those on what a training gives.
LEARNED_TILES = ("IoU", "Time and cost")


def as_emulated(answers: Sequence[Answer], words: str) -> list[Answer]:
    """Return the answers with these words before each headline; as they are where there are no words."""
    return [_emulated(answer, words) for answer in answers] if words else list(answers)


def _emulated(answer: Answer, words: str) -> Answer:
    tiles = tuple(
        Tile(tile.title, NOT_EMULATED, NOTHING_LEARNED, "unknown") if tile.title in LEARNED_TILES else tile
        for tile in answer.tiles
    )
    return replace(answer, headline=after(words, answer.headline), tiles=tiles)

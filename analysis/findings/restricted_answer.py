"""Answers of restricted studies: speed, said to be emulated or of scripts, and nothing that was learned."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from analysis.findings.answer import Answer
from analysis.findings.tiles import COST_TITLE, Tile
from analysis.restriction import NOT_PROVEN_EQUAL, after, not_learned, restriction_words
from analysis.study import Study
from analysis.text import Row, count, number, repeats_text, with_interval

NOT_EMULATED = "not emulated"
NOT_EVALUATED = "not recorded"
NO_VERDICT = "no verdict against another arm"
COMPARE_TWINS = (
    "to compare frameworks, train with the project's own programs, which do the same work in each of them"
)


def as_restricted(answers: Sequence[Answer], study: Study) -> list[Answer]:
    """Return the answers with what the runs are before each headline; unchanged without a restriction."""
    words = restriction_words(study)
    return [_restricted(answer, study, words) for answer in answers] if words else list(answers)


def _restricted(answer: Answer, study: Study, words: str) -> Answer:
    value = NOT_EVALUATED if study.is_of_scripts else NOT_EMULATED
    learned = _learned_tiles(study)
    tiles = tuple(
        Tile(tile.title, value, not_learned(study), "unknown") if tile.title in learned else tile
        for tile in answer.tiles
    )
    return replace(answer, headline=after(words, answer.headline), tiles=tiles)


def _learned_tiles(study: Study) -> tuple[str, ...]:
    """Return the titles of the tiles on what a training gives."""
    return study.score.heading, COST_TITLE


def script_answers(study: Study, points: pd.DataFrame) -> list[Answer]:
    """Return for each arm, whose options name its script, how fast it was, and that nothing is concluded.

    `points` are those of `speedup.summarise`.
    """
    return [
        _of_arm(study, str(options), rows.sort_values("workers").to_dict("records"))
        for options, rows in points.groupby("options", sort=False)
    ]


def _of_arm(study: Study, options: str, rows: Sequence[Row]) -> Answer:
    largest = rows[-1]
    speeds = ", ".join(f"{number(row['throughput'], '~3')} on {_workers(row)}" for row in rows)
    repeats = repeats_text(pd.Series([row["repeats"] for row in rows]))
    arm = study.names[largest["framework"]]
    tiles = (
        _speed_tile(study, largest),
        *(Tile(title, "", "", "unknown") for title in _learned_tiles(study)),
        Tile(
            "Trust", NOT_PROVEN_EQUAL, f"{repeats} per point; what the script trains is not known", "caution"
        ),
    )
    return Answer(
        options, "script", f"{arm} took {speeds} ({study.unit}); {NO_VERDICT}", tiles, (COMPARE_TWINS,)
    )


def _speed_tile(study: Study, row: Row) -> Tile:
    """Return the speed-up against the same arm on 1 worker; the throughput where that was not recorded."""
    measured = f"on {_workers(row)} {with_interval(row, 'throughput', '~3')} {study.unit}"
    if row["workers"] == 1 or pd.isna(row["speedup"]):
        value = f"{number(row['throughput'], '~3')} {study.unit}"
        return Tile("Speed", value, measured, "unknown")
    scaled = f"{with_interval(row, 'speedup', '.2f')} times its own 1 worker"
    efficiency = f"efficiency {with_interval(row, 'efficiency', '.2f')}"
    value = f"{number(row['speedup'], '~2')}x"
    return Tile("Speed", value, f"{measured}, {scaled}, {efficiency}", "unknown")


def _workers(row: Row) -> str:
    return count(int(row["workers"]), "worker")

"""Answers with what played runs say: a clause beside those of real runs, and answers of their own."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from analysis.findings.answer import Answer
from analysis.findings.device_words import device_words
from analysis.findings.headline import Kind
from analysis.findings.next_steps import LEARN_FIRST
from analysis.findings.submission import submit_command
from analysis.findings.tiles import COST_TITLE, Light, Tile
from analysis.played.kept import JudgedCount, KeptIou, kept_farthest_first, kinds_of
from analysis.played.quality import PlayedQuality
from analysis.score import Score
from analysis.stats import FEWEST_REPEATS, RECOMMENDED_REPEATS
from analysis.study import POINT
from analysis.text import Row, capitalised, count, number, unit_of_value, with_interval

NOT_MEASURED = "not measured"
SECONDS_OF_PLAYED = "played: the seconds are of no real number of workers"


def with_played(answers: Sequence[Answer], quality: PlayedQuality) -> list[Answer]:
    """Return the answers, each with the finding of the played runs of its options; then answers of others.

    The latter come in the order of how many workers keep the IoU, the most first, and of the IoU there.
    """
    kept = kept_farthest_first(quality.kept)
    joined = [
        _with_clause(answer, quality, kept[answer.options]) if answer.options in kept else answer
        for answer in answers
    ]
    known = {answer.options for answer in answers}
    return [*joined, *(_answer(quality, of) for options, of in kept.items() if options not in known)]


def _with_clause(answer: Answer, quality: PlayedQuality, kept: Sequence[KeptIou]) -> Answer:
    """Return the answer of real runs with how far played and real runs keep the IoU in its headline."""
    clause = f"by {kinds_of(kept)} runs {quality.sentences[answer.options]}"
    tiles = tuple(
        replace(tile, reasons=(*tile.reasons, clause)) if tile.title == quality.study.score.heading else tile
        for tile in answer.tiles
    )
    return replace(answer, headline=f"{answer.headline}; {clause}", tiles=tiles)


def _answer(quality: PlayedQuality, kept: Sequence[KeptIou]) -> Answer:
    """Return the answer of options that only played runs have; of several series the one that keeps least."""
    first = min(kept, key=lambda each: each.workers)
    found = capitalised(quality.sentences[first.options])
    tiles = (
        Tile("Speed", NOT_MEASURED, SECONDS_OF_PLAYED, "unknown"),
        _iou_tile(quality, first),
        _cost_tile(quality, first),
        _trust_tile(kept),
    )
    kind: Kind = "played" if first.is_decided else "undecided"
    steps = tuple(_next_steps(quality, first))
    return Answer(first.options, kind, f"{found}; {kinds_of(kept)}, so without speed", tiles, steps)


def _iou_tile(quality: PlayedQuality, kept: KeptIou) -> Tile:
    score = quality.study.score
    if not kept.is_decided:
        value = "undecided"
    else:
        value = f"kept up to {kept.workers:,}" if kept.shown else "not kept"
    judged = [*kept.shown[-1:], *kept.beyond]
    undecided = [each for each in judged if each.verdict == "undecided"]
    reasons = [f"{count(each.workers, 'worker')}: {each.verdict}: {each.row['why']}" for each in undecided]
    detail = "; ".join(_iou_at(each.row, score) for each in judged[:2])
    detail = detail or f"no {score.title} on more than 1 worker"
    return Tile(score.heading, value, f"played: {detail}", _iou_light(kept), tuple(reasons))


def _iou_at(row: Row, score: Score) -> str:
    where = f"as {count(int(row['workers']), 'worker')}"
    if not row["seeds"]:
        return f"{where} no {score.title}: every run diverged"
    return f"{where} {with_interval(row, 'iou', '.3f')} ({row['difference']:+.3f} against 1)"


def _iou_light(kept: KeptIou) -> Light:
    if kept.not_learned:
        return "bad"
    if not kept.is_decided:
        return "caution" if kept.counts else "unknown"
    if not kept.shown:
        return "bad"
    return "caution" if kept.beyond else "good"


def _cost_tile(quality: PlayedQuality, kept: KeptIou) -> Tile:
    """Return the time to the target on the most workers that keep the IoU, where real runs give the speed."""
    row = _planned(quality, kept)
    if row is None or math.isnan(row["seconds_to_target"]):
        lacking = f"{SECONDS_OF_PLAYED}; {_epochs(quality, row)}"
        return Tile(COST_TITLE, NOT_MEASURED, lacking, "unknown")
    size, unit = unit_of_value(row["seconds_to_target"])
    value = f"{number(row['seconds_to_target'] / size, '~3')} {unit}"
    light: Light = "good" if row["speed"] == "measured" else "caution"
    reasons = (row["why"],) if row["why"] else ()
    return Tile(COST_TITLE, value, _cost_detail(quality, row), light, reasons)


def _cost_detail(quality: PlayedQuality, row: Row) -> str:
    """Return the epochs, the time and the device-hours to the target IoU, and where the speed is from."""
    size, unit = unit_of_value(row["seconds_to_target"])
    time = f"{with_interval(row, 'seconds_to_target', '~3', size)} {unit}"
    hours = device_words(quality.study).cost_with_interval(_hours(row))
    where = f"on {count(int(row['workers']), 'worker')}"
    target = f"{where} {quality.study.score.title} {row['target_iou']:g} after {_epochs(quality, row)}"
    return f"{target}: {time}, {hours}, by {row['speed']} speed"


def _planned(quality: PlayedQuality, kept: KeptIou) -> Row | None:
    """Return the row of the plan at the most workers that keep the IoU."""
    point = (kept.options, kept.framework, kept.knobs, kept.workers)
    rows = quality.plan.to_dict("records")
    return next((row for row in rows if tuple(row[name] for name in POINT) == point), None)


def _hours(row: Row) -> Row:
    return {f"worker_hours{end}": row[f"worker_hours_to_target{end}"] for end in ("", "_low", "_high")}


def _epochs(quality: PlayedQuality, row: Row | None) -> str:
    if row is None or math.isnan(row["epochs_to_target"]):
        return f"epochs to the target {quality.study.score.title} not known"
    return f"{with_interval(row, 'epochs_to_target', '.3g')} epochs"


def _trust_tile(kept: Sequence[KeptIou]) -> Tile:
    counts = [each for of in kept for each in of.counts if each.verdict != "diverges"]
    seeds = min((int(each.row["pairs"]) for each in counts), default=0)
    light: Light = "good" if seeds >= RECOMMENDED_REPEATS else "caution" if seeds >= FEWEST_REPEATS else "bad"
    needed = f"{FEWEST_REPEATS} are needed, {RECOMMENDED_REPEATS} recommended"
    detail = f"{count(seeds, 'seed')} in common with 1 worker at the point with the fewest: {needed}"
    return Tile("Trust", count(seeds, "seed"), detail, light)


def _next_steps(quality: PlayedQuality, kept: KeptIou) -> Iterator[str]:
    command = submit_command(quality.study.subject)
    if not kept.baseline_seeds:
        yield f"add 1 to training.plays in the study, then {command}"
    elif kept.not_learned:
        yield LEARN_FIRST
    elif any(_needs_seeds(each) for each in kept.counts):
        yield f"set repeats = {RECOMMENDED_REPEATS} in the study, then {command}"
    elif any(each.verdict == "undecided" for each in kept.counts):
        yield "more repeats would narrow the intervals"
    failing = any(each.verdict in ("loss", "diverges") for each in kept.counts)
    if failing:
        yield "try training.rate_scaling, training.warmup_epochs or training.epochs as an axis of the study"
    elif kept.shown and not kept.beyond:
        found = f"the largest number tried keeps the {quality.study.score.title}"
        yield f"add more than {kept.workers:,} to training.plays: {found}"
    yield "measure the speed in real runs of a few epochs: this study without training.plays, on real workers"


def _needs_seeds(judged: JudgedCount) -> bool:
    return bool(judged.row["pairs"] < FEWEST_REPEATS and judged.verdict == "undecided")

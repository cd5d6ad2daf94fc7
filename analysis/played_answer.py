"""Answers with what played runs say: a clause beside those of real runs, and answers of their own."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from analysis.findings.answer import COST_TITLE, LEARN_FIRST, Answer
from analysis.findings.decide import Kind
from analysis.findings.precision import submit_command
from analysis.findings.trust import Light, Tile
from analysis.played import KeptIou, PlayedQuality, kept_farthest_first, kinds_of
from analysis.score import Score
from analysis.stats import FEWEST_REPEATS, RECOMMENDED_REPEATS
from analysis.study import POINT
from analysis.text import Row, capitalised, count, number, unit_of_value, with_interval
from analysis.words import cost, device_of

_NOT_MEASURED = "not measured"
_SECONDS_OF_PLAYED = "played: the seconds are of no real number of workers"


def with_played(answers: Sequence[Answer], quality: PlayedQuality) -> list[Answer]:
    """Return the answers, each with the finding of the played runs of its options; then answers of others.

    The latter come in the order of how many workers keep the IoU, the most first, and of the IoU there.
    """
    found = kept_farthest_first(quality.kept)
    joined = [
        _with_clause(answer, quality, found[answer.options]) if answer.options in found else answer
        for answer in answers
    ]
    known = {answer.options for answer in answers}
    return [*joined, *(_answer(quality, kept) for options, kept in found.items() if options not in known)]


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
    tiles = (
        Tile("Speed", _NOT_MEASURED, _SECONDS_OF_PLAYED, "unknown"),
        _iou_tile(quality.study.score, first),
        _cost_tile(quality, first),
        _trust_tile(kept),
    )
    line = f"{capitalised(quality.sentences[first.options])}; {kinds_of(kept)}, so without speed"
    kind: Kind = "played" if first.is_decided else "undecided"
    return Answer(first.options, kind, line, tiles, tuple(_next_steps(quality, first)))


def _iou_tile(score: Score, kept: KeptIou) -> Tile:
    light: Light = "caution" if kept.beyond else "good"
    value = f"kept up to {kept.workers:,}"
    if not kept.is_decided:
        light = "caution" if kept.counts else "unknown"
        value = "undecided"
    elif not kept.shown:
        light = "bad"
        value = "not kept"
    if kept.not_learned:
        light = "bad"
    judged = [*kept.shown[-1:], *kept.beyond]
    reasons = [
        f"{count(row['workers'], 'worker')}: undecided: {row['why']}"
        for row in judged
        if row["verdict"] == "undecided"
    ]
    detail = "; ".join(_iou_at(row, score) for row in judged[:2])
    detail = detail or f"no {score.title} on more than 1 worker"
    return Tile(score.heading, value, f"played: {detail}", light, tuple(reasons))


def _iou_at(row: Row, score: Score) -> str:
    where = f"as {count(int(row['workers']), 'worker')}"
    if not row["seeds"]:
        return f"{where} no {score.title}: every run diverged"
    return f"{where} {with_interval(row, 'iou', '.3f')} ({row['difference']:+.3f} against 1)"


def _cost_tile(quality: PlayedQuality, kept: KeptIou) -> Tile:
    """Return the time to the target on the most workers that keep the IoU, where real runs give the speed."""
    title = quality.study.score.title
    point = (kept.options, kept.framework, kept.knobs, kept.workers)
    rows = quality.plan.to_dict("records")
    row = next((row for row in rows if tuple(row[name] for name in POINT) == point), None)
    epochs = f"epochs to the target {title} not known"
    if row is not None and not math.isnan(row["epochs_to_target"]):
        epochs = f"{with_interval(row, 'epochs_to_target', '.3g')} epochs"
    if row is None or math.isnan(row["seconds_to_target"]):
        return Tile(COST_TITLE, _NOT_MEASURED, f"{_SECONDS_OF_PLAYED}; {epochs}", "unknown")
    size, unit = unit_of_value(row["seconds_to_target"])
    hours = cost(
        {f"worker_hours{end}": row[f"worker_hours_to_target{end}"] for end in ("", "_low", "_high")},
        device_of(quality.study),
        bounded=True,
    )
    time = f"{with_interval(row, 'seconds_to_target', '~3', size)} {unit}"
    reached = f"on {count(kept.workers, 'worker')} {title} {row['target_iou']:g} after {epochs}"
    return Tile(
        COST_TITLE,
        f"{number(row['seconds_to_target'] / size, '~3')} {unit}",
        f"{reached}: {time}, {hours}, by {row['speed']} speed",
        "good" if row["speed"] == "measured" else "caution",
        (row["why"],) if row["why"] else (),
    )


def _trust_tile(kept: Sequence[KeptIou]) -> Tile:
    counts = [row for each in kept for row in each.counts if row["verdict"] != "diverges"]
    seeds = min((int(row["pairs"]) for row in counts), default=0)
    light: Light = "good" if seeds >= RECOMMENDED_REPEATS else "caution" if seeds >= FEWEST_REPEATS else "bad"
    needed = f"{FEWEST_REPEATS} are needed, {RECOMMENDED_REPEATS} recommended"
    detail = f"{count(seeds, 'seed')} in common with 1 worker at the point with the fewest: {needed}"
    return Tile("Trust", count(seeds, "seed"), detail, light)


def _next_steps(quality: PlayedQuality, kept: KeptIou) -> Iterator[str]:
    command = submit_command(quality.study.subject)
    undecided = [row for row in kept.counts if row["verdict"] == "undecided"]
    if not kept.baseline_seeds:
        yield f"add 1 to training.plays in the study, then {command}"
    elif kept.not_learned:
        yield LEARN_FIRST
    elif any(row["pairs"] < FEWEST_REPEATS for row in undecided):
        yield f"set repeats = {RECOMMENDED_REPEATS} in the study, then {command}"
    elif undecided:
        yield "more repeats would narrow the intervals"
    if any(row["verdict"] in ("loss", "diverges") for row in kept.counts):
        yield "try training.rate_scaling, training.warmup_epochs or training.epochs as an axis of the study"
    elif kept.shown and not kept.beyond:
        found = f"the largest number tried keeps the {quality.study.score.title}"
        yield f"add more than {kept.workers:,} to training.plays: {found}"
    yield "measure the speed in real runs of a few epochs: this study without training.plays, on real workers"

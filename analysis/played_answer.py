"""Answers with what played runs say: a clause beside those of real runs, and answers of their own."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from analysis.findings.answer import COST_TITLE, LEARN_FIRST, Answer
from analysis.findings.commands import next_commands
from analysis.findings.decide import Kind
from analysis.findings.trust import Light, Tile, incomplete
from analysis.played import KeptIou, PlayedQuality, kept_farthest_first, kinds_of
from analysis.stats import FEWEST_REPEATS, RECOMMENDED_REPEATS
from analysis.study import POINT
from analysis.text import capitalised, count
from analysis.words import device_of, lines


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
    kinds = f"{kinds_of(kept)} runs (played: trained as so many workers, on fewer)"
    clause = f"by {kinds} {quality.sentences[answer.options]}"
    return replace(answer, headline=f"{answer.headline}; {clause}")


def _answer(quality: PlayedQuality, kept: Sequence[KeptIou]) -> Answer:
    """Return the answer of options that only played runs have; of several series the one that keeps least."""
    study = quality.study
    first = min(kept, key=lambda each: each.workers)
    point = (first.options, first.framework, first.knobs, first.workers)
    rows = quality.plan.to_dict("records")
    row = next((row for row in rows if tuple(row[name] for name in POINT) == point), None)
    said = partial(lines, "played", study=study, kept=first, row=row, device=device_of(study))
    has_time = row is not None and not math.isnan(row["seconds_to_target"])
    tiles = (
        Tile("Speed", "not measured", "played: the seconds are of no real number of workers", "unknown"),
        _tile(study.score.heading, said(said="iou"), _iou_light(first)),
        _tile(COST_TITLE, said(said="cost"), "none" if has_time else "unknown"),
        _trust_tile(kept),
    )
    line = f"{capitalised(quality.sentences[first.options])}; {kinds_of(kept)}, so without speed"
    kind: Kind = "played" if first.is_decided else "undecided"
    more = max(1, RECOMMENDED_REPEATS - first.baseline_seeds)
    is_incomplete = any(incomplete(study, first.options))
    plan = next_commands(study, more)
    steps = said(said="next", plan=plan, is_incomplete=is_incomplete, LEARN_FIRST=LEARN_FIRST)
    return Answer(first.options, kind, line, tiles, tuple(steps))


def _tile(title: str, said: Sequence[str], light: Light) -> Tile:
    value, detail, *reasons = said
    return Tile(title, value, detail, light, tuple(reasons))


def _iou_light(kept: KeptIou) -> Light:
    if kept.not_learned or (kept.is_decided and not kept.shown):
        return "bad"
    if not kept.is_decided:
        return "caution" if kept.counts else "unknown"
    return "caution" if kept.beyond else "good"


def _trust_tile(kept: Sequence[KeptIou]) -> Tile:
    counts = [row for each in kept for row in each.counts if row["verdict"] != "diverges"]
    seeds = min((int(row["pairs"]) for row in counts), default=0)
    light: Light = "good" if seeds >= RECOMMENDED_REPEATS else "caution" if seeds >= FEWEST_REPEATS else "bad"
    needed = f"{FEWEST_REPEATS} are needed, {RECOMMENDED_REPEATS} recommended"
    detail = f"{count(seeds, 'seed')} in common with 1 worker at the point with the fewest: {needed}"
    return Tile("Trust", count(seeds, "seed"), detail, light)

"""What played runs say: up to how many workers training keeps the IoU of 1 worker, and the time to it.

A played run trains exactly as so many workers (training.plays), on fewer, so both kinds of runs are judged
alike: by the differences to 1 worker, paired by seed, and the study's margin, as in iou.py. A run that
diverged counts: training that diverges for one seed does not keep the IoU.

Epochs to the target come from the IoU during training, of played and real runs alike; seconds of an epoch
only from real runs: measured, or predicted. Options that decide what is learned, but not how fast
(SPEED_NEUTRAL), may differ between both: a few epochs of real runs give the speed of a long training.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Literal, get_args

import numpy as np
import pandas as pd

from analysis.judge.answer import COST_TITLE, LEARN_FIRST, Answer, next_commands
from analysis.judge.decide import Kind
from analysis.judge.trust import Light, Tile, runs_to_come
from analysis.numbers.iou import (
    MarginAnswer,
    MarginTest,
    PointSeeds,
    judged_points,
    reasons_at,
    seeds_of,
)
from analysis.numbers.points import target_of
from analysis.numbers.stats import NOT_NEGATIVE, UNKNOWN_INTERVAL, median_intervals
from analysis.read.options import OPERATIONAL, flat_options
from analysis.study import (
    ENDS,
    FEWEST_REPEATS,
    NAMES,
    NAN,
    POINT,
    RECOMMENDED_REPEATS,
    SECONDS_PER_HOUR,
    SERIES,
    Study,
    bounded,
)
from analysis.text import Row, capitalised, count, device_of, lines, listed, series_name
from unet_scaling.base.errors import optional_module

# From what ends a recommendation to what lets it go on to more workers.
LossVerdict = Literal["diverges", "loss", "not judged", "undecided", "no loss", "baseline"]
PLAYED_COLUMNS = [
    *POINT, "kind", "seeds", "test_images", *bounded("iou", "difference"), "pairs", "diverged",
    "constant_iou", "learned", "margin", "verdict", "why", "steps", "not_judged",
]  # fmt: skip
# What few seeds suggest counts as the answer; the sentences say that it is a suggestion.
VERDICTS: Mapping[MarginAnswer, LossVerdict] = {
    "yes": "no loss", "suggests yes": "no loss", "no": "loss", "suggests no": "loss",
    "not shown": "undecided", "not judged": "not judged",
}  # fmt: skip


def played_table(study: Study, points: Sequence[PointSeeds]) -> pd.DataFrame:
    """Return one row per point and kind of run, by series and workers: PLAYED_COLUMNS.

    The runs on 1 worker are those of the same kind, and of the other kind for further seeds. What is not
    known is NaN.
    """
    baselines = [_baseline_of(points, point) for point in points]
    rows = []
    for point, baseline, (cells, test) in zip(
        points, baselines, judged_points(study, points, baselines), strict=True
    ):
        verdict = "baseline" if point.workers == 1 else VERDICTS[test.shown]
        why = "; ".join(_why(study, point, baseline, test))
        rows.append(
            cells | {"kind": point.kind, "verdict": "diverges" if point.diverged else verdict, "why": why}
        )
    return pd.DataFrame(rows, columns=PLAYED_COLUMNS)


def points_of(study: Study) -> list[PointSeeds]:
    """Return every point of the played and the real runs, those of which every run diverged among them."""
    parts = reversed(study.real_and_played)
    points = [point for kind, part in parts for point in _list_points(kind, part)]
    series = list(dict.fromkeys(point.series for point in points))
    return sorted(points, key=lambda point: (series.index(point.series), point.workers, point.kind))


def _list_points(kind: Literal["real", "played"], study: Study) -> Iterator[PointSeeds]:
    """Yield the points, those of which every run diverged last."""
    points = [replace(point, kind=kind) for point in seeds_of(study)]
    yield from points
    known = {(*point.series, point.workers) for point in points}
    lost = study.left_out[study.left_out["state"] == "diverged"]
    for key_of_lost, runs in lost.groupby(POINT):
        options, framework, knobs, workers = map(str, key_of_lost)
        if (options, framework, knobs, int(workers)) not in known:
            diverged = int(runs["repeat"].nunique())
            yield PointSeeds(options, framework, knobs, int(workers), {}, NAN, diverged, kind=kind)


def _baseline_of(points: Sequence[PointSeeds], point: PointSeeds) -> PointSeeds | None:
    """Return 1 worker of the same series: its runs of the same kind, and of the other for further seeds.

    A run that plays 1 worker and one that has it train alike.
    """
    alone = [each for each in points if each.series == point.series and each.workers == 1]
    own_last = sorted(alone, key=lambda each: each.kind == point.kind)
    ious = {seed: iou for each in own_last for seed, iou in each.ious.items()}
    return replace(own_last[-1], ious=ious) if ious else None


def _why(study: Study, point: PointSeeds, baseline: PointSeeds | None, test: MarginTest) -> Iterator[str]:
    """Yield what stands behind the verdict on a point."""
    if point.workers > 1 and baseline and point.ious:
        missing = baseline.ious.keys() - point.ious.keys()
        further = point.ious.keys() - baseline.ious.keys()
        if missing:
            yield f"{len(missing)} of {count(len(baseline.ious), 'seed')} of 1 worker missing here"
        if further:
            yield f"{len(further)} of {count(len(point.ious), 'seed')} without a run on 1 worker"
    yield from reasons_at(study, point, baseline, test, "add 1 to training.plays")


@dataclass(frozen=True)
class KeptIou:
    """What a series shows: its numbers of workers above 1, in order, and the seeds of 1 worker with an IoU.

    `counts` are rows of `played_table`. Where played and real runs have a number of workers, it is that of
    the worse verdict; but one that is undecided does not count where the other has more seeds in common with
    1 worker. `last` is the largest that keeps the IoU, as do all smaller ones, and `workers` its number, 1
    without one; `beyond` are the larger ones. `baseline_diverged` counts runs on 1 worker; `kinds` are those
    of its runs, "played" or "real". `not_learned` is the row of 1 worker where that learned no more than a
    constant prediction; `series_name` the framework with its knobs.
    """

    options: str
    framework: str
    knobs: str
    series_name: str
    counts: list[Row]
    last: Row | None
    workers: int
    beyond: list[Row]
    baseline_seeds: int
    baseline_diverged: int
    kinds: list[str]
    not_learned: Row | None = None

    @property
    def is_decided(self) -> bool:
        """Whether a number above 1 is shown to keep the IoU, or the smallest one not to."""
        return bool(self.last) or bool(self.counts and self.counts[0]["verdict"] in ("loss", "diverges"))


def kept_ious(table: pd.DataFrame) -> list[KeptIou]:
    """Return what each series of `played_table` shows, in its order; only of series with a played run."""
    found = []
    order = get_args(LossVerdict)
    for (options, framework, knobs), rows in table.groupby(SERIES, sort=False):
        kinds = [kind for kind in ("played", "real") if (rows["kind"] == kind).any()]
        if "played" not in kinds:
            continue
        alone = rows[rows["workers"] == 1]
        counts: list[Row] = []
        for _, of in rows[rows["workers"] > 1].groupby("workers"):
            is_open = of["verdict"].isin(("undecided", "not judged"))
            telling = of[~is_open | (of["pairs"] == of["pairs"].max())]
            counts.append(min(telling.to_dict("records"), key=lambda row: order.index(row["verdict"])))
        shown = list(takewhile(lambda row: row["verdict"] == "no loss", counts))
        last = shown[-1] if shown else None
        name = series_name({"framework": framework, "knobs": knobs}, NAMES)
        seeds, diverged = (int(alone[name].max()) if len(alone) else 0 for name in ("seeds", "diverged"))
        nothing = next(iter(alone[alone["learned"] == "no"].to_dict("records")), None)
        series = (str(options), str(framework), str(knobs), name)
        kept = (last, int(last["workers"]) if last else 1, counts[len(shown) :])
        found.append(KeptIou(*series, counts, *kept, seeds, diverged, kinds, nothing))
    return found


def kept_farthest_first(kept: Sequence[KeptIou]) -> dict[str, list[KeptIou]]:
    """Return the findings of each set of options, of most workers that keep the IoU first, then of most IoU.

    Of several series of a set the one that keeps it least far counts.
    """

    def order(found: tuple[str, list[KeptIou]]) -> tuple[float, float]:
        first = min(found[1], key=lambda each: each.workers)
        return -first.workers, -float(first.last["iou"]) if first.last else 0.0

    sets: dict[str, list[KeptIou]] = {}
    for each in kept:
        sets.setdefault(each.options, []).append(each)
    return dict(sorted(sets.items(), key=order))


def kinds_of(kept: Sequence[KeptIou]) -> str:
    """Return "played", or "played and real": the kinds of the runs behind a finding."""
    kinds = {kind for each in kept for kind in each.kinds}
    return listed(kind for kind in ("played", "real") if kind in kinds)


def _agreement_notes(study: Study, points: Sequence[PointSeeds]) -> Iterator[str]:
    """Yield by how much the IoU of played and real runs of equal workers and seed differs at most."""
    real = {(*point.series, point.workers): point.ious for point in points if point.kind == "real"}
    apart = [
        (abs(iou - other[seed]), point.workers)
        for point in points
        if point.kind == "played" and (other := real.get((*point.series, point.workers)))
        for seed, iou in point.ious.items()
        if seed in other and not np.isnan(iou - other[seed])
    ]
    if not apart:
        return
    real_cores, cores = (
        " and ".join(sorted(set(part.runs["cores_per_worker"]))) for _, part in study.real_and_played
    )
    if cores != real_cores and set(study.runs["devices"]) == {"cpu"}:
        # On other threads sums are added in another order.
        yield f"played runs had {cores} cores per worker, real ones {real_cores}: no seeds are comparable"
    difference, workers = max(apart)
    found = f"the largest difference of their {study.score.title} is {difference:.4f}"
    largest = f"{found}, on {count(workers, 'worker')} ({count(len(apart), 'pair')} of one seed)"
    if difference <= study.criteria.iou_margin:
        yield f"played and real runs agree: {largest}"
    else:
        yield (
            f"played and real runs do not agree: {largest}, above the margin of "
            f"{study.criteria.iou_margin:g}; what is said of played runs may not hold for real ones"
        )


@dataclass(frozen=True)
class PlayedQuality:
    """Tables and findings of the played runs; all are empty where a study has none.

    `kept` says up to how many workers each series keeps the IoU, and `sentences` by options the finding on
    them: one for all series where they agree, else one of each.
    """

    study: Study
    points: pd.DataFrame
    plan: pd.DataFrame
    notes: Sequence[str]
    kept: list[KeptIou]
    sentences: dict[str, str]

    @property
    def is_empty(self) -> bool:
        """Return whether the study has no played run."""
        return self.study.played is None

    @property
    def best_options(self) -> list[str]:
        """Return the sets of options with played runs, those that keep the score farthest first."""
        return list(kept_farthest_first(self.kept))


def played_quality(study: Study, summary: pd.DataFrame) -> PlayedQuality:
    """Return what the played runs of a study say; `summary` is the table of `points.summarise`."""
    points = points_of(study)
    table = played_table(study, points)
    plan = plan_table(study, summary, table.groupby(POINT)["diverged"].sum())
    kept = kept_ious(table)
    found: dict[str, dict[str, str]] = {}
    for each in kept:
        text = "; ".join(lines("played", said="kept", kept=each, study=study))
        found.setdefault(each.options, {})[each.series_name] = text
    sentences = {}
    for options, texts in found.items():
        agree = len(set(texts.values())) == 1
        parts = [*texts.values()][:1] if agree else [f"{name}: {text}" for name, text in texts.items()]
        sentences[options] = "; ".join(parts)
    notes = list(_agreement_notes(study, points))
    return PlayedQuality(study, table, plan, notes, kept, sentences)


PLAN_COLUMNS = [
    *POINT, "target_iou", "runs", "runs_to_target",
    *bounded("epochs_to_target", "seconds_per_epoch", "seconds_to_target", "worker_hours_to_target"),
    "speed", "why",
]  # fmt: skip
ONLY_AT_THE_END = "known only after training: set training.evaluate_every to see when it is reached"
NO_SPEED = "no real run of these data, model and batch gives the speed"
SPEED_NEUTRAL = frozenset((
    *OPERATIONAL, "data.split_seed", "training.epochs", "training.learning_rate", "training.rate_scaling",
    "training.warmup_epochs", "training.schedule", "training.evaluate_every", "training.plays",
))  # fmt: skip


# A checkout may lack it: then speeds are those that were measured.
_PREDICTION = optional_module("analysis.predict.speed")
# Images per second with their interval; measured, predicted or neither; and what the speed lacks.
_Speed = tuple[Sequence[float], str, str]


class RealSpeeds:
    """The speeds that the real runs of a study give; `points` are those of `points.summarise`."""

    def __init__(self, study: Study, points: pd.DataFrame) -> None:
        self.keys: dict[tuple[str, ...], Hashable] = {}
        for part in filter(None, (study, study.played)):
            for row in part.runs.drop_duplicates(SERIES).to_dict("records"):
                key = tuple(str(row[name]) for name in SERIES)
                header = part.headers[row["run"]]
                # What decides the speed of a run besides its workers.
                options = flat_options(header.config).items()
                kept = tuple(option for option in options if option[0] not in SPEED_NEUTRAL)
                data = header.config.framework, header.manifest_sha256, header.train_images
                self.keys[key] = (*data, kept)
        self.real = [tuple(map(str, key)) for key in study.runs[SERIES].drop_duplicates().to_numpy()]
        known = points[points["images_per_second"].notna()].to_dict("records")
        self.measured = {tuple(row[name] for name in POINT): row for row in known}
        series = _PREDICTION.all_series(study) if _PREDICTION else []
        self.series = {each.key: each for each in series if not each.why_unpredictable}

    def at(self, series: tuple[str, ...], workers: int) -> _Speed:
        """Return the speed of a series (options, framework, knobs), or of one as fast, at so many workers."""
        alike = sorted(
            (key for key in self.real if self.keys[key] == self.keys.get(series)),
            key=lambda key: key != series,
        )
        for key in alike:
            row = self.measured.get((*key, workers))
            if row is not None:
                return [row[name] for name in bounded("images_per_second")], "measured", ""
        for key in alike:
            if key in self.series:
                known = self.series[key]
                forecast = known.fitted.at(known.counts.at(workers), known.work)
                within_one_node = bool((known.counts.nodes == 1).all())
                unseen = (
                    f"{_PREDICTION.UNSEEN_LINK}: it holds within one node only" if within_one_node else ""
                )
                return forecast.throughputs, "predicted", unseen
        return [NAN] * len(ENDS), "", NO_SPEED


def plan_table(study: Study, points: pd.DataFrame, diverged: "pd.Series[int]") -> pd.DataFrame:
    """Return one row per number of workers of every series that has played runs: PLAN_COLUMNS.

    `points` are those of `points.summarise`, `diverged` the runs of each point that diverged. Medians over
    runs with intervals. The bounds of a product of epochs and seconds are the products of their bounds: it
    holds at least as often as both together do.
    """
    parts = [
        part.evaluations[["run", "epochs", "iou"]]
        .merge(part.runs[[*POINT, "run", "images_per_epoch"]], on="run")
        .assign(played=kind == "played")
        for kind, part in study.real_and_played
        if len(part.runs)
    ]
    if not parts:
        return pd.DataFrame(columns=PLAN_COLUMNS)
    evaluated = pd.concat(parts, ignore_index=True)
    speeds = RealSpeeds(study, points)
    rows = []
    for key, of_series in evaluated.groupby(SERIES, sort=False):
        series = tuple(map(str, key))
        for number, of in of_series.groupby("workers") if of_series["played"].any() else ():
            workers = int(str(number))
            point = (*series, workers)
            rows.append((*point, *_cells(study, of, speeds.at(series, workers), diverged.get(point, 0))))
    return pd.DataFrame(rows, columns=PLAN_COLUMNS)


def _cells(study: Study, evaluated: pd.DataFrame, speed: _Speed, diverged: int) -> tuple[object, ...]:
    """Return the columns of a point behind its key."""
    first = evaluated.iloc[0]
    target = target_of(study, str(first["options"]))
    runs, reached, epochs = _epochs_to(target.iou, evaluated, diverged)
    images = float(evaluated["images_per_epoch"].median())
    (per_second, low, high), source, lacking = speed
    seconds = [images / each for each in (per_second, high, low)]
    totals = [each * of_one for each, of_one in zip(epochs, seconds, strict=True)]
    hours = [int(first["workers"]) * total / SECONDS_PER_HOUR for total in totals]
    title = study.score.title
    no_target = f"no {title} to reach: {target.source}" if math.isnan(target.iou) else ""
    is_single = bool((evaluated.groupby("run").size() <= 1).any())
    unknown = (no_target, f"{title} {ONLY_AT_THE_END}" if is_single else "", lacking)
    why = "; ".join(filter(None, unknown))
    return target.iou, runs, reached, *epochs, *seconds, *totals, *hours, source, why


def _epochs_to(target: float, evaluated: pd.DataFrame, diverged: int) -> tuple[int, int, list[float]]:
    """Return the runs of a point, how many reach the target, and the median epochs to it with its interval.

    A diverged run never reaches it. The median is unknown where a run that stopped before may have been
    faster, its interval as soon as one run does not reach the target.
    """
    trained = evaluated.groupby("run")["epochs"].max().astype(float)
    needed = evaluated[evaluated["iou"] >= target].groupby("run")["epochs"].min().reindex(trained.index)
    if not math.isnan(target):
        needed = needed.fillna(math.inf)
    epochs = np.append(needed.to_numpy(float), np.full(diverged, math.inf))
    ended = np.append(trained.to_numpy(), np.full(diverged, math.inf))
    reached = int(np.isfinite(epochs).sum())
    median = float(np.median(epochs))
    if not (math.isfinite(median) and (ended[np.isinf(epochs)] >= median).all()):
        median = NAN
    interval = median_intervals([epochs], NOT_NEGATIVE)[0] if reached == len(epochs) else UNKNOWN_INTERVAL
    return len(epochs), reached, [median, *interval]


def with_played(answers: Sequence[Answer], quality: PlayedQuality) -> list[Answer]:
    """Return the answers, each with the finding of the played runs of its options; then answers of others.

    The latter come in the order of how many workers keep the IoU, the most first, and of the IoU there.
    """
    found = kept_farthest_first(quality.kept)
    joined = []
    for answer in answers:
        kept = found.get(answer.options, [])
        kinds = f"{kinds_of(kept)} runs (played: trained as so many workers, on fewer)"
        of_played = (f"by {kinds} {quality.sentences[answer.options]}",) if kept else ()
        joined.append(replace(answer, remarks=(*of_played, *answer.remarks)))
    known = {answer.options for answer in answers}
    return [*joined, *(_answer(quality, kept) for options, kept in found.items() if options not in known)]


def _answer(quality: PlayedQuality, kept: Sequence[KeptIou]) -> Answer:
    """Return the answer of options that only played runs have; of several series the one that keeps least."""
    study = quality.study
    first = min(kept, key=lambda each: each.workers)
    point = (first.options, first.framework, first.knobs, first.workers)
    rows = quality.plan.to_dict("records")
    row = next((row for row in rows if tuple(row[name] for name in POINT) == point), None)
    said = partial(lines, "played", study=study, kept=first, row=row, device=device_of(study.headers))
    has_time = row is not None and not math.isnan(row["seconds_to_target"])
    tiles = (
        Tile("Speed", "not measured", "played: the seconds are of no real number of workers", "unknown"),
        _tile(study.score.heading, said(said="iou"), _iou_light(first)),
        _tile(COST_TITLE, said(said="cost"), "none" if has_time else "unknown"),
        _trust_tile(kept),
    )
    line = capitalised(quality.sentences[first.options])
    remarks = (f"{kinds_of(kept)}, so without speed",)
    kind: Kind = "played" if first.is_decided else "undecided"
    more = max(1, RECOMMENDED_REPEATS - first.baseline_seeds)
    is_incomplete = runs_to_come(study, first.options) > 0
    plan = next_commands(study, more)
    steps = said(said="next", plan=plan, is_incomplete=is_incomplete, LEARN_FIRST=LEARN_FIRST)
    return Answer(first.options, kind, line, remarks, tiles, tuple(steps))


def _tile(title: str, said: Sequence[str], light: Light) -> Tile:
    value, detail, *reasons = said
    return Tile(title, value, detail, light, tuple(reasons))


def _iou_light(kept: KeptIou) -> Light:
    if kept.not_learned or (kept.is_decided and not kept.last):
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

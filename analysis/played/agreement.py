"""Played runs beside real ones of the same workers and seed: they train alike, so their IoU must agree."""

import math
from collections.abc import Iterator, Sequence

from analysis.played.points import KindPoint, points_of
from analysis.study import Study
from analysis.text import count


def agreement_notes(study: Study) -> Iterator[str]:
    """Yield by how much the IoU of played and real runs of equal workers and seed differs at most.

    Before it, that they had other cores: on other threads sums are added in another order.
    """
    both = list(_differences(points_of(study)))
    if not both or study.played is None:
        return
    cores = [" and ".join(sorted(set(runs["cores_per_worker"]))) for runs in (study.played.runs, study.runs)]
    if cores[0] != cores[1] and set(study.runs["devices"]) == {"cpu"}:
        yield (
            f"played runs had {cores[0]} cores per worker, real ones {cores[1]}: runs of one seed are not "
            "comparable, their sums are added in another order; set training.cores_per_worker in both"
        )
    difference, workers = max((max(apart), workers) for workers, apart in both)
    pairs = count(sum(len(apart) for _, apart in both), "pair")
    margin = study.criteria.iou_margin
    found = f"the largest difference of their {study.score.title} is"
    largest = f"{found} {difference:.4f}, on {count(workers, 'worker')} ({pairs} of one seed)"
    if difference <= margin:
        yield f"played and real runs agree: {largest}"
    else:
        yield (
            f"played and real runs do not agree: {largest}, above the margin of "
            f" {margin:g}; what is said of played runs may not hold for real ones"
        )


def _differences(points: Sequence[KindPoint]) -> Iterator[tuple[int, list[float]]]:
    """Yield workers and the difference of each seed at every point that both kinds have."""
    real = {(*point.series, point.seeds.workers): point for point in points if point.kind == "real"}
    for point in (point for point in points if point.kind == "played"):
        other = real.get((*point.series, point.seeds.workers))
        common = point.seeds.ious.keys() & other.seeds.ious.keys() if other else set()
        apart = [abs(point.seeds.ious[seed] - other.seeds.ious[seed]) for seed in common] if other else []
        known = [difference for difference in apart if not math.isnan(difference)]
        if known:
            yield point.seeds.workers, known

"""Played runs beside real ones of the same workers and seed: they train alike, so their IoU must agree."""

import math
from collections.abc import Iterator, Sequence

from analysis.played.points import KindPoint, points_of
from analysis.study import Study
from analysis.text import count


def agreement_notes(study: Study) -> Iterator[str]:
    """Yield by how much the IoU of played and real runs of equal workers and seed differs at most."""
    both = list(_differences(points_of(study)))
    if not both or study.played is None:
        return
    cores, real = (" and ".join(sorted(set(each.runs["cores_per_worker"]))) for each in (study.played, study))
    if cores != real and set(study.runs["devices"]) == {"cpu"}:
        # On other threads sums are added in another order.
        yield f"played runs had {cores} cores per worker, real ones {real}: no seeds are comparable"
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

"""Notes for the reader of a report on logs in the older layout."""

from collections.abc import Iterator, Sequence

import numpy as np

from analysis.loading.epoch_work import EpochWork
from analysis.loading.older_layout import WARMUP_EPOCHS, Log, seconds_outside, sum_is_whole
from analysis.loading.reference_schedule import FIRST_DROP_SHARE
from analysis.study import Names
from unet_scaling.study.config import FRAMEWORKS

# A note stays one sentence; further logs are counted.
_MOST_NAMED = 6
WITHOUT_STEPS = (
    "images per epoch are not recorded: throughput is in epochs per hour (one over the median epoch, "
    "without the first 5 epochs), and epochs of different worker counts may differ in images; "
    "where they are known, --images and --batch give the speed-up by steps"
)
CANNOT_SAY = (
    "one run per point: no interval, so no difference can be called significant",
    "no provenance: code, versions, seeds, hosts, devices and cores are unknown, "
    "so nothing says whether these runs may be compared",
    "the test images of each IoU are unknown: in the published study they were a subset "
    "that shrank with the workers, so its IoU values cannot be compared",
    "that times are seconds is taken from the published logs: no log states its unit",
)


def reference_notes(logs: Sequence[Log], work: EpochWork | None, names: Names) -> Iterator[str]:
    """Return what these logs cannot say, what was assumed of them, and where they differ."""
    yield from _work(logs, work, names) if work else [WITHOUT_STEPS]
    yield from CANNOT_SAY
    yield from _short_logs(logs)
    yield from _outside_epochs(logs)
    yield from _other_training(logs)


def _work(logs: Sequence[Log], work: EpochWork, names: Names) -> Iterator[str]:
    """Yield what was assumed to count steps, and the speed-up without it."""
    steps = ", ".join(f"{work.steps(count)} on {count}" for count in sorted({log.workers for log in logs}))
    yield (
        f"images are not recorded but given: {work.images:,} per epoch in batches of {work.batch} per "
        "worker. Assumed is that each worker takes its share, rounded up, in full batches and drops the "
        f"rest, so that the steps of an epoch by workers are {steps}; throughput and speed-up count only "
        "images of these steps"
    )
    for framework in FRAMEWORKS:
        speedups = _speedups_by_epochs([log for log in logs if log.framework == framework])
        if speedups:
            yield f"speed-up by epochs, dropped images counted as trained: {names[framework]} {speedups}"


def _speedups_by_epochs(logs: Sequence[Log]) -> str:
    alone = [log.seconds_per_epoch for log in logs if log.workers == 1]
    return ", ".join(
        f"{alone[0] / log.seconds_per_epoch:.2f} on {log.workers}"
        for log in logs
        if alone and log.workers > 1
    )


def _short_logs(logs: Sequence[Log]) -> Iterator[str]:
    names = [f"{log.name} ({len(log.rows)} epochs)" for log in logs if log.warmup_epochs < WARMUP_EPOCHS]
    if names:
        yield f"of short logs only the first epoch is left out as warm-up: {', '.join(names)}"


def _outside_epochs(logs: Sequence[Log]) -> Iterator[str]:
    """Name the logs whose rows only the learning rate tells to be whole."""
    named = [_outside(log) for log in logs if not sum_is_whole(log.rows)]
    if named:
        yield (
            f"time of the training in no epoch, and in no speed here: {', '.join(named)}; that no row is "
            "missing is taken from the learning rate, which the reference's schedule halves first at "
            f"{FIRST_DROP_SHARE} of the epochs"
        )


def _outside(log: Log) -> str:
    outside = seconds_outside(log.rows)
    return f"{log.name} {outside:.1f} s ({100 * outside / log.rows['training_time'].iloc[0]:.1f} %)"


def _other_training(logs: Sequence[Log]) -> Iterator[str]:
    """Name the logs of equal worker counts whose trainings differ, as far as a log shows it."""
    pairs = _logs_of_equal_workers(logs)
    differing = [(first, second, what) for first, second in pairs if (what := _difference(first, second))]
    named = [f"{first.name} and {second.name} in {what}" for first, second, what in differing]
    if named:
        more = f" and {len(named) - _MOST_NAMED} more pairs" if len(named) > _MOST_NAMED else ""
        yield (
            f"not the same training: {'; '.join(named[:_MOST_NAMED])}{more} differ, so their loss and IoU "
            "cannot be compared, and their times only if an epoch was the same work"
        )


def _logs_of_equal_workers(logs: Sequence[Log]) -> list[tuple[Log, Log]]:
    """Return the pairs of logs of the first framework and of the other on as many workers."""
    native = {log.workers: log for log in logs if log.framework == FRAMEWORKS[0]}
    others = [log for log in logs if log.framework != FRAMEWORKS[0]]
    return [(native[log.workers], log) for log in others if log.workers in native]


def _difference(first: Log, second: Log) -> str:
    if len(first.rows) != len(second.rows):
        return f"epochs ({len(first.rows)} and {len(second.rows)})"
    rates = [log.rows["lr"].to_numpy() for log in (first, second)]
    places = np.flatnonzero(rates[0] != rates[1])
    if not len(places):
        return ""
    place = places[0]
    return f"learning rate ({rates[0][place]:g} and {rates[1][place]:g} in epoch {place})"

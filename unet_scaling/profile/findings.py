"""Conclusions from the figures of a profile: dominant stage, loader processes, warnings, advice."""

from collections.abc import Iterator, Sequence

import numpy as np

from unet_scaling.profile.results import Conclusions, HostCores, Measurements, Steps, Throughput

# A throughput that is lower by less than a tenth, or within the spread of its samples, is noise.
NOTABLY_LOWER = 0.9
# Below this share of a step a gain cannot be told from noise.
LEAST_GAIN_SHARE = 0.05


def conclude(measured: Measurements) -> Conclusions:
    """Return everything that follows from the figures."""
    steps = measured.steps
    stages = measured.stages[measured.loading]
    dominant = max(stages, key=lambda name: stages[name].median)
    in_line = steps.in_line.median
    return Conclusions(
        input_bound=is_input_bound(steps),
        dominant_stage=dominant,
        dominant_share=stages[dominant].median / measured.seconds_per_image(measured.loading),
        loading_share=min(1.0, steps.loading_seconds / in_line),
        hideable_share=min(1.0, steps.hideable_seconds / in_line),
        hidden_share=1 - steps.prefetched.median / in_line,
        loader_processes=recommended_processes(steps),
        advice=advice(measured),
        warnings=[*thrashing(measured.throughput)],
    )


def is_input_bound(steps: Steps) -> bool:
    """Return whether loading one batch takes longer than computing its step."""
    return steps.loading_seconds > steps.compute.median


def processes_to_try(throughput: Sequence[Throughput], host: HostCores, images_per_second: float) -> int:
    """Return the fewest loader processes per worker that keep up with its step, at least 1.

    `images_per_second` is what one worker processes when it never waits for data. All workers of the host
    load at once and share its throughput, which is interpolated between the measured counts. One core is
    left to training. Where no count keeps up, the fewest within a tenth of the best are returned; 0 where
    no loader processes were measured.
    """
    speeds = {count.processes: count.images_per_second.median for count in throughput if count.processes > 0}
    if not speeds:
        return 0
    most = min(max(1, host.cores_per_worker - 1), max(speeds))
    candidates = np.arange(1, most + 1)
    workers = host.workers_per_host
    per_worker = np.interp(candidates * workers, list(speeds), list(speeds.values())) / workers
    wanted = min(images_per_second, NOTABLY_LOWER * per_worker.max())
    return int(candidates[np.argmax(per_worker >= wanted)])


def recommended_processes(steps: Steps) -> int:
    """Return the number tried, where they had something to hide and steps became shorter; else 0."""
    gain = min(steps.hideable_seconds, steps.in_line.median - steps.prefetched.median)
    return steps.loader_processes if gain >= LEAST_GAIN_SHARE * steps.in_line.median else 0


def thrashing(throughput: Sequence[Throughput]) -> Iterator[str]:
    """Yield a warning where more loader processes load less."""
    measured = [count for count in throughput if count.processes > 0]
    for number, count in enumerate(measured[1:], start=1):
        best = max(measured[:number], key=lambda other: other.images_per_second.median)
        speed = count.images_per_second
        highest = best.images_per_second
        if speed.median < NOTABLY_LOWER * highest.median and speed.high < highest.low:
            yield (
                f"thrashing: {count.processes} loader processes load {speed.median:.4g} images/s,"
                f" {best.processes} load {highest.median:.4g}; use no more than {best.processes}"
            )
            return


def advice(measured: Measurements) -> str:
    """Return one line: what to change, if anything, and the figures behind it."""
    steps = measured.steps
    loading = steps.loading_seconds
    compute = steps.compute.median
    facts = (
        f"loading a batch of {measured.batch} takes {as_milliseconds(loading)}, its step"
        f" {as_milliseconds(compute)} on {steps.device}"
    )
    if loading < LEAST_GAIN_SHARE * steps.in_line.median:
        return f"nothing to gain here: {facts}"
    share = f"loading is {loading / (loading + compute):.0%} of a step"
    return f"{'input-bound' if is_input_bound(steps) else share}: {facts}; {_remedy(measured)}"


def _remedy(measured: Measurements) -> str:
    if measured.loading == "decode":
        cached = as_milliseconds(measured.seconds_per_image("cache") * measured.batch)
        return f"data.loading = 'cache' takes {cached} for a batch"
    steps = measured.steps
    prefetched = as_milliseconds(steps.prefetched.median)
    in_line = as_milliseconds(steps.in_line.median)
    loaders = counted(steps.loader_processes, "loader process", "es")
    if recommended_processes(steps):
        return f"{loaders} for each worker would shorten a whole step from {in_line} to {prefetched}"
    cores = counted(measured.host.cores_per_worker, "core")
    return (
        f"prefetch does not help with {cores} for each worker: a whole step takes {prefetched} with"
        f" {loaders}, {in_line} without"
    )


def counted(number: int, thing: str, plural: str = "s") -> str:
    """Return '1 core', '2 cores'."""
    return f"{number} {thing}{'' if number == 1 else plural}"


def as_milliseconds(seconds: float) -> str:
    """Return three significant digits, as '0.0123 ms' or '1,740 ms'."""
    value = seconds * 1000
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"

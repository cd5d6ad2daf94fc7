"""What the figures of a profile mean: the dominant stage, a sensible number of loaders, and warnings."""

from collections.abc import Iterator, Sequence

import numpy as np

from unet_scaling.profile.results import Host, LoaderCount, Measured, Steps, Threads, Verdict

# A tenth less, and beyond the spread of the rounds: below that it is noise.
FALLEN = 0.9
# A process alone on its core is interrupted now and then; k that share it lose it every 3 to 6 ms in turn.
MANY_SWITCHES_PER_SECOND = 20
MUCH_HELPER_CPU = 0.05
FEWEST_GAIN = 0.05  # of a step that loads in line


def conclude(measured: Measured) -> Verdict:
    """Everything that follows from the figures, with the figures in the sentences."""
    steps, stages, counts = measured.steps, measured.chosen().warm, measured.loader_counts
    dominant = max(stages, key=lambda stage: stage.seconds_per_image.median)
    step = steps.in_line.median
    load = steps.gather.median + steps.to_device.median
    return Verdict(
        input_bound=is_input_bound(steps),
        dominant_stage=dominant.stage,
        dominant_share=dominant.seconds_per_image.median / measured.chosen().median_sum(),
        loading_share=min(1.0, load / step),
        hideable_share=min(1.0, _hideable(steps) / step),
        hidden_share=1 - steps.overlapped.median / step,
        loader_processes=sensible_loaders(steps),
        advice=advice(measured),
        warnings=[*thrashing(counts), *contention(counts), *own_threads(measured.threads)],
    )


def is_input_bound(steps: Steps) -> bool:
    """Whether loading one batch takes longer than computing its step."""
    return steps.gather.median + steps.to_device.median > steps.compute.median


def _hideable(steps: Steps) -> float:
    """Seconds of a step that loaders with cores of their own would hide: what they can do ahead.

    Bringing a batch to the device stays with the training process, and a step never gets shorter
    than what that process does itself.
    """
    return min(steps.gather.median, steps.to_device.median + steps.compute.median)


def loaders_to_try(counts: Sequence[LoaderCount], host: Host, images_per_second: float) -> int:
    """The fewest loader processes per worker that keep up with its step, at least 1 where one was tried.

    `images_per_second` is what one worker takes when it waits for none. All workers of the host load
    at once, so they share its throughput; between measured counts it is interpolated. One core is
    left to the training. Where none keeps up, the fewest that come within a tenth of the best.
    """
    processes = [count.processes for count in counts if count.processes > 0]
    speeds = [count.images_per_second.median for count in counts if count.processes > 0]
    if not processes:
        return 0
    most = min(max(1, host.cores_per_worker - 1), max(processes))
    candidates = np.arange(1, most + 1)
    each = np.interp(candidates * host.workers_per_host, processes, speeds) / host.workers_per_host
    wanted = min(images_per_second, FALLEN * each.max())
    return int(candidates[np.argmax(each >= wanted)])


def sensible_loaders(steps: Steps) -> int:
    """What was tried, where there is something to hide and steps became that much shorter; else none."""
    gain = min(_hideable(steps), steps.in_line.median - steps.overlapped.median)
    return steps.loader_processes if gain >= FEWEST_GAIN * steps.in_line.median else 0


def thrashing(counts: Sequence[LoaderCount]) -> Iterator[str]:
    """A warning where more processes load less; one against none is the price of handing over."""
    loaders = [count for count in counts if count.processes > 0]
    for number, count in enumerate(loaders[1:], start=1):
        best = max(loaders[:number], key=lambda other: other.images_per_second.median)
        speed, most = count.images_per_second, best.images_per_second
        if speed.median < FALLEN * most.median and speed.high < most.low:
            yield (
                f"thrashing: {count.processes} loader processes load {speed.median:.4g} images/s,"
                f" {best.processes} load {most.median:.4g}; use no more than {best.processes}"
            )
            return


def contention(counts: Sequence[LoaderCount]) -> Iterator[str]:
    """Warnings where loader processes take the cores from each other, or other programs do."""
    rates = {count.processes: count.switches_per_second or 0.0 for count in counts}
    alone = rates.pop(0, 0.0)
    if alone > MANY_SWITCHES_PER_SECOND:
        yield (
            f"other programs use these cores: loading in one thread lost its core {alone:.0f} times a second;"
            " measure again on a quiet machine"
        )
    for processes, rate in rates.items():
        if rate > max(MANY_SWITCHES_PER_SECOND, 2 * alone):
            yield (
                f"contention: each of {processes} loader processes lost its core {rate:.0f} times a second to"
                f" another process, one thread alone {alone:.0f} times"
            )
            return


def own_threads(threads: Threads) -> Iterator[str]:
    """A warning where loading starts threads or lets them compute."""
    started = threads.after - threads.before
    if started > 0 or threads.helper_cpu_share > MUCH_HELPER_CPU:
        yield (
            f"a library starts its own threads: {started} more after loading, and threads beside the loading"
            f" one take {threads.helper_cpu_share:.0%} of its CPU time; loaded are"
            f" {', '.join(threads.libraries) or 'none of the usual ones'}. Each loader process would start"
            " them: set OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1 for it"
        )


def advice(measured: Measured) -> str:
    """One line: what to change, if anything, and the numbers behind it."""
    steps = measured.steps
    load, compute = steps.gather.median + steps.to_device.median, steps.compute.median
    facts = (
        f"loading a batch of {steps.batch} takes {milliseconds(load)}, its step {milliseconds(compute)}"
        f" on {steps.device}"
    )
    if load < FEWEST_GAIN * steps.in_line.median:
        return f"nothing to gain here: {facts}"
    state = "input-bound" if is_input_bound(steps) else f"loading is {load / (load + compute):.0%} of a step"
    return f"{state}: {facts}; {_cure(measured)}"


def _cure(measured: Measured) -> str:
    steps, cores = measured.steps, measured.host.cores_per_worker
    loaders = counted(steps.loader_processes, "loader process", "es")
    if measured.loading == "decode":
        cached = next(loading for loading in measured.loadings if loading.loading == "cache")
        return f"data.loading = 'cache' takes {milliseconds(cached.whole.median * steps.batch)} for a batch"
    if sensible_loaders(steps):
        return (
            f"{loaders} for each worker would bring a whole step from"
            f" {milliseconds(steps.in_line.median)} to {milliseconds(steps.overlapped.median)}"
        )
    return (
        f"loading ahead does not help with {counted(cores, 'core')} for each worker: a whole step takes"
        f" {milliseconds(steps.overlapped.median)} with {loaders},"
        f" {milliseconds(steps.in_line.median)} without"
    )


def counted(number: int, thing: str, plural: str = "s") -> str:
    """'1 core', '2 cores'."""
    return f"{number} {thing}{'' if number == 1 else plural}"


def milliseconds(seconds: float) -> str:
    """Three digits that count, as '0.0123 ms' or '1,740 ms'."""
    value = seconds * 1000
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"

"""The figures of a profile (seconds, images), what follows from them, and how they are shown."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from unet_scaling.study.config import RunConfig
from unet_scaling.study.console import CleanConsole
from unet_scaling.study.texts import count

# Nine of ten samples lie between these two.
PERCENTILES = (5, 95)
# A throughput that is lower by less than a tenth, or within the spread of its samples, is noise.
NOTABLY_LOWER = 0.9
# Below this share of a step a gain cannot be told from noise.
LEAST_GAIN_SHARE = 0.05
# Columns of the tables where the output is no terminal.
TABLES_WIDTH_CHARACTERS = 130

# The stages of loading in the order in which they run.
STAGES = ("read", "decode", "convert", "resize", "collate", "gather", "host to device", "to floats")

LoadingName = Literal["decode", "cache"]
LOADING_NAMES: tuple[LoadingName, ...] = get_args(LoadingName)


def loading_of(config: RunConfig) -> LoadingName:
    """Return how throughput and steps load: as the study, or by the cache for images kept on a device."""
    return "decode" if config.data.loading == "decode" else "cache"


@dataclass(frozen=True)
class Samples:
    """Median of samples, with their 5th and 95th percentile."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float] | npt.NDArray[np.float64]) -> Self:
        low, high = np.percentile(values, PERCENTILES).tolist()
        return cls(median=float(np.median(values)), low=low, high=high, count=len(values))

    def shown(self, factor: float = 1.0, digits: int = 1) -> str:
        low, median, high = (factor * each for each in (self.low, self.median, self.high))
        return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


@dataclass(frozen=True)
class Throughput:
    """Images per second of this many loader processes, a sample a round; 0 loads in the main process."""

    processes: int
    images_per_second: Samples


@dataclass(frozen=True)
class HostCores:
    """The cores that this process may use, and the study's workers that share them."""

    cores: int
    workers_per_host: int

    @property
    def cores_per_worker(self) -> int:
        return self.cores // self.workers_per_host


@dataclass(frozen=True)
class Steps:
    """Training steps of one worker on its cores; seconds of a step of one batch.

    `data_wait` is loading to uint8 tensors in main memory, `host_to_device` transfer and conversion,
    `compute` forward, backward and optimizer. `in_line` is the whole step, each batch loaded when it is
    needed, and `prefetched` the whole step with `loader_processes` on the same cores.
    """

    device: str
    threads: int
    data_wait: Samples
    host_to_device: Samples
    compute: Samples
    in_line: Samples
    loader_processes: int
    prefetched: Samples

    @property
    def loading_seconds(self) -> float:
        return self.data_wait.median + self.host_to_device.median

    @property
    def input_bound(self) -> bool:
        """Whether loading one batch takes longer than computing its step."""
        return self.loading_seconds > self.compute.median

    @property
    def hideable_seconds(self) -> float:
        """Return the seconds of a step that loader processes with cores of their own would hide.

        The training process brings each batch to the device itself, and a step never gets shorter than the
        work of that process.
        """
        return min(self.data_wait.median, self.host_to_device.median + self.compute.median)

    @property
    def hidden_share(self) -> float:
        """Return what loader processes hid of a step: below 0, what they cost."""
        return 1 - self.prefetched.median / self.in_line.median

    @property
    def recommended_processes(self) -> int:
        """Return the number tried, where they had something to hide and steps became shorter; else 0."""
        gain = min(self.hideable_seconds, self.in_line.median - self.prefetched.median)
        return self.loader_processes if gain >= LEAST_GAIN_SHARE * self.in_line.median else 0


@dataclass(frozen=True)
class Profile:
    """All figures; `stages` are seconds per image of every stage, in one process."""

    config: RunConfig
    host: HostCores
    stages: dict[LoadingName, dict[str, Samples]]
    throughput: list[Throughput]
    steps: Steps
    notes: list[str]

    @property
    def batch(self) -> int:
        return self.config.training.batch_per_worker

    def seconds_per_image(self, loading: LoadingName) -> float:
        """Return the sum of the stages' medians."""
        return sum(samples.median for samples in self.stages[loading].values())


def processes_to_try(throughput: Sequence[Throughput], host: HostCores, images_per_second: float) -> int:
    """Return the fewest loader processes per worker that keep up with its step, at least 1.

    `images_per_second` is what one worker processes when it never waits for data. All workers of the host
    load at once and share its throughput, which is interpolated between the measured counts. One core is
    left to training. Where no count keeps up, the fewest within a tenth of the best are returned; 0 where
    no loader processes were measured.
    """
    speeds = {tried.processes: tried.images_per_second.median for tried in throughput if tried.processes > 0}
    if not speeds:
        return 0
    most = min(max(1, host.cores_per_worker - 1), max(speeds))
    candidates = np.arange(1, most + 1)
    workers = host.workers_per_host
    per_worker = np.interp(candidates * workers, list(speeds), list(speeds.values())) / workers
    wanted = min(images_per_second, NOTABLY_LOWER * per_worker.max())
    return int(candidates[np.argmax(per_worker >= wanted)])


def thrashing(throughput: Sequence[Throughput]) -> str | None:
    """Return a warning where more loader processes load less."""
    measured = [tried for tried in throughput if tried.processes > 0]
    for number, tried in enumerate(measured[1:], start=1):
        best = max(measured[:number], key=lambda other: other.images_per_second.median)
        speed, highest = tried.images_per_second, best.images_per_second
        if speed.median < NOTABLY_LOWER * highest.median and speed.high < highest.low:
            return (
                f"thrashing: {tried.processes} loader processes load {speed.median:.4g} images/s,"
                f" {best.processes} load {highest.median:.4g}; use no more than {best.processes}"
            )
    return None


def advice(profile: Profile) -> str:
    """Return one line: what to change, if anything, and the figures behind it."""
    steps = profile.steps
    loading, compute = steps.loading_seconds, steps.compute.median
    batch = f"loading a batch of {profile.batch} takes {_milliseconds(loading)}"
    facts = f"{batch}, its step {_milliseconds(compute)} on {steps.device}"
    if loading < LEAST_GAIN_SHARE * steps.in_line.median:
        return f"nothing to gain here: {facts}"
    loaders = count(steps.loader_processes, "loader process")
    times = f"from {_milliseconds(steps.in_line.median)} to {_milliseconds(steps.prefetched.median)}"
    if loading_of(profile.config) == "decode":
        cached = _milliseconds(profile.seconds_per_image("cache") * profile.batch)
        remedy = f"data.loading = 'cache' takes {cached} for a batch"
    elif steps.recommended_processes:
        remedy = f"{loaders} for each worker would shorten a whole step {times}"
    else:
        cores = count(profile.host.cores_per_worker, "core")
        remedy = f"{loaders} on {cores} for each worker change a whole step {times}: no help"
    bound = (
        "input-bound" if steps.input_bound else f"loading is {loading / (loading + compute):.0%} of a step"
    )
    return f"{bound}: {facts}; {remedy}"


def _milliseconds(seconds: float) -> str:
    """Return three significant digits, as '0.0123 ms' or '1,740 ms'."""
    value = seconds * 1000
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def print_profile(profile: Profile) -> None:
    """Print stages, loader processes, steps, notes and warnings, with the advice last."""
    width = None if sys.stdout.isatty() else TABLES_WIDTH_CHARACTERS
    console = CleanConsole(highlight=False, soft_wrap=True, width=width)
    host, data, steps = profile.host, profile.config.data, profile.steps
    loading = loading_of(profile.config)
    console.print(
        f"{profile.config.study}: {count(profile.batch, 'image')} a batch, {data.image_width} x"
        f" {data.image_height} pixels, data.loading = '{loading}'\n"
        f"{count(host.cores, 'core')} here, {count(host.workers_per_host, 'worker')} per host,"
        f" {count(host.cores_per_worker, 'core')} for each\n"
    )
    title = "ms per image in one process, files in the page cache: median (5 % to 95 % of samples)"
    table = _table(title, "stage", *profile.stages)
    for stage in STAGES:
        samples = [times.get(stage) for times in profile.stages.values()]
        if any(samples):
            table.add_row(stage, *(each.shown(1000, 3) if each else "" for each in samples))
    sums = [f"{profile.seconds_per_image(each) * 1000:.3f}" for each in profile.stages]
    table.add_row("sum of medians", *sums, style="bold")
    console.print(table)
    title = f"loader processes, data.loading = '{loading}': median (5 % to 95 % of rounds)"
    table = _table(title, "processes", "images/s", "ms per batch")
    for tried in profile.throughput:
        speed = tried.images_per_second
        table.add_row(str(tried.processes), speed.shown(), f"{profile.batch / speed.median * 1000:.2f}")
    console.print(table)
    title = f"ms per step of one process on {steps.device}, {count(steps.threads, 'thread')}"
    table = _table(f"{title}: median (5 % to 95 %)", "part", "ms", "share")
    loaders = count(steps.loader_processes, "loader process")
    for name, part in (
        ("data wait", steps.data_wait),
        ("host to device", steps.host_to_device),
        ("forward, backward, optimizer", steps.compute),
        ("whole step, no prefetch", steps.in_line),
        (f"whole step, {loaders}", steps.prefetched),
    ):
        table.add_row(name, part.shown(1000, 3), f"{part.median / steps.in_line.median:.1%}")
    console.print(table)
    for line in _sentences(profile):
        console.print(line, markup=False)


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _sentences(profile: Profile) -> Iterator[str]:
    steps = profile.steps
    yield from (f"note: {note}" for note in profile.notes)
    if warning := thrashing(profile.throughput):
        yield f"warning: {warning}"
    loading = loading_of(profile.config)
    seconds = profile.seconds_per_image(loading)
    stage, slowest = max(profile.stages[loading].items(), key=lambda item: item[1].median)
    share = slowest.median / seconds
    yield f"slowest stage: {stage}, {share:.0%} of loading an image ({_milliseconds(seconds)})"
    bound = "yes" if steps.input_bound else "no"
    share = min(1.0, steps.loading_seconds / steps.in_line.median)
    yield f"input-bound: {bound}; loading is {share:.1%} of a step"
    hideable = min(1.0, steps.hideable_seconds / steps.in_line.median)
    noise = " (no measurable gain: noise)" if steps.hidden_share > hideable else ""
    yield (
        f"loader processes with cores of their own can hide {hideable:.1%} of a step;"
        f" {steps.loader_processes} on these cores hid {steps.hidden_share:.1%}{noise}"
    )
    yield f"recommended data.loader_workers with data.loading = 'decode': {steps.recommended_processes}"
    yield f"advice: {advice(profile)}"

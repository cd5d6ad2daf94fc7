"""The figures of a profile (seconds, images), what follows from them, and how they are shown."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from unet_scaling.base.console import CleanConsole
from unet_scaling.base.texts import count
from unet_scaling.study.config import RunConfig

# Nine of ten samples lie between these two.
PERCENTILES = (5, 95)
# Below this share of a step a gain cannot be told from noise.
LEAST_GAIN_SHARE = 0.05
# Columns of the tables where the output is no terminal.
TABLES_WIDTH_CHARACTERS = 130

# The stages of loading in the order in which they run.
STAGES = ("read", "decode", "convert", "resize", "collate", "gather", "host to device", "to floats")

LoadingName = Literal["decode", "cache"]
LOADING_NAMES: tuple[LoadingName, ...] = get_args(LoadingName)


def loading_of(config: RunConfig) -> LoadingName:
    """Return how steps load: as the study, or by the cache for images kept on a device."""
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
class Steps:
    """Training steps of one worker on its cores; seconds of a step of one batch.

    `data_wait` is loading to uint8 tensors in main memory, `host_to_device` transfer and conversion,
    `compute` forward, backward and optimizer. `in_line` is the whole step, each batch loaded when it is
    needed, and `prefetched` the whole step by the number of loader processes on the same cores.
    """

    device: str
    threads: int
    data_wait: Samples
    host_to_device: Samples
    compute: Samples
    in_line: Samples
    prefetched: dict[int, Samples]

    @property
    def loading_seconds(self) -> float:
        return self.data_wait.median + self.host_to_device.median

    @property
    def input_bound(self) -> bool:
        """Return whether loading one batch takes longer than computing its step."""
        return self.loading_seconds > self.compute.median

    @property
    def hideable_seconds(self) -> float:
        """Return the seconds of a step that loader processes with cores of their own would hide.

        The training process brings each batch to the device itself, and a step never gets shorter than the
        work of that process.
        """
        return min(self.data_wait.median, self.host_to_device.median + self.compute.median)

    @property
    def recommended_processes(self) -> int:
        """Return the fewest loader processes that gain about as much as the best; 0 where that is little."""
        gains = {
            processes: min(self.hideable_seconds, self.in_line.median - each.median)
            for processes, each in self.prefetched.items()
        }
        least = LEAST_GAIN_SHARE * self.in_line.median
        best = max(gains.values(), default=0.0)
        if best < least:
            return 0
        return min(processes for processes, gain in gains.items() if gain > best - least)


@dataclass(frozen=True)
class Profile:
    """All figures; `stages` are seconds per image of every stage, in one process."""

    config: RunConfig
    cores: int
    workers_per_host: int
    stages: dict[LoadingName, dict[str, Samples]]
    steps: Steps
    notes: list[str]

    @property
    def batch(self) -> int:
        return self.config.training.batch_per_worker

    def seconds_per_image(self, loading: LoadingName) -> float:
        """Return the sum of the stages' medians."""
        return sum(samples.median for samples in self.stages[loading].values())


def advice(profile: Profile) -> str:
    """Return one line: what to change, if anything, and the figures behind it."""
    steps = profile.steps
    loading, compute = steps.loading_seconds, steps.compute.median
    batch = f"loading a batch of {profile.batch} takes {_milliseconds(loading)}"
    facts = f"{batch}, its step {_milliseconds(compute)} on {steps.device}"
    if loading < LEAST_GAIN_SHARE * steps.in_line.median:
        return f"nothing to gain here: {facts}"
    if loading_of(profile.config) == "decode":
        cached = _milliseconds(profile.seconds_per_image("cache") * profile.batch)
        remedy = f"data.loading = 'cache' takes {cached} for a batch"
    else:
        remedy = "only data.loading = 'device' spares more"
    bound = (
        "input-bound" if steps.input_bound else f"loading is {loading / (loading + compute):.0%} of a step"
    )
    return f"{bound}: {facts}; {remedy}"


def _milliseconds(seconds: float) -> str:
    """Return three significant digits, as '0.0123 ms' or '1,740 ms'."""
    value = seconds * 1000
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def print_profile(profile: Profile) -> None:
    """Print stages, steps and notes, with the advice last."""
    width = None if sys.stdout.isatty() else TABLES_WIDTH_CHARACTERS
    console = CleanConsole(highlight=False, soft_wrap=True, width=width)
    data, steps = profile.config.data, profile.steps
    loading = loading_of(profile.config)
    console.print(
        f"{profile.config.study}: {count(profile.batch, 'image')} a batch, {data.image_width} x"
        f" {data.image_height} pixels, data.loading = '{loading}'\n"
        f"{count(profile.cores, 'core')} here, {count(profile.workers_per_host, 'worker')} per host,"
        f" {count(profile.cores // profile.workers_per_host, 'core')} for each\n"
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
    title = f"ms per step of one process on {steps.device}, {count(steps.threads, 'thread')}"
    table = _table(f"{title}: median (5 % to 95 %)", "part", "ms", "share")
    parts = [
        ("data wait", steps.data_wait),
        ("host to device", steps.host_to_device),
        ("forward, backward, optimizer", steps.compute),
        ("whole step, no prefetch", steps.in_line),
        *((f"whole step, {count(n, 'loader process')}", part) for n, part in steps.prefetched.items()),
    ]
    for name, part in parts:
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
    loading = loading_of(profile.config)
    seconds = profile.seconds_per_image(loading)
    stage, slowest = max(profile.stages[loading].items(), key=lambda item: item[1].median)
    share = slowest.median / seconds
    yield f"slowest stage: {stage}, {share:.0%} of loading an image ({_milliseconds(seconds)})"
    bound = "yes" if steps.input_bound else "no"
    share = min(1.0, steps.loading_seconds / steps.in_line.median)
    yield f"input-bound: {bound}; loading is {share:.1%} of a step"
    if loading == "decode":
        hideable = min(1.0, steps.hideable_seconds / steps.in_line.median)
        yield f"loader processes can hide {hideable:.1%} of a step at most: what is shorter by more is noise"
        yield f"recommended data.loader_workers: {steps.recommended_processes}"
    yield f"advice: {advice(profile)}"

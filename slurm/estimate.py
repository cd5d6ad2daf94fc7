"""Estimate how long runs take, from earlier runs or a probe: pure functions of what these measured."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from unet_scaling.study.config import RunConfig
from unet_scaling.study.measurements import STARTUP_COLUMNS
from unet_scaling.study.record import Record
from unet_scaling.study.texts import count, duration


@dataclass(frozen=True)
class Range:
    """The expected value of an estimate, between the lowest and the highest that are likely."""

    low: float
    expected: float
    high: float

    def __add__(self, other: "Range") -> "Range":
        return Range(self.low + other.low, self.expected + other.expected, self.high + other.high)

    def times(self, factor: float) -> "Range":
        return Range(self.low * factor, self.expected * factor, self.high * factor)


NOTHING = Range(0.0, 0.0, 0.0)
EXACTLY = Range(1.0, 1.0, 1.0)
# The speed of a worker in a larger group, as a share of that in the measured one. Below a half no worker
# count is worth its workers; the efficiency floor of studies is 0.7.
IN_A_LARGER_GROUP = Range(0.5, 0.75, 1.0)
IN_A_SMALLER_GROUP = Range(1.0, 1.0, 2.0)
# The speed with a framework of which nothing was measured, as a share of that of another, or of none.
WITH_ANOTHER_FRAMEWORK = Range(0.5, 1.0, 1.25)


@dataclass(frozen=True)
class Images:
    """The number of images that a run trains on in a pass, and evaluates."""

    train: int
    test: int


@dataclass(frozen=True)
class MeasuredRun:
    """The speeds of one run: pixels per second of all its workers. `framework` is None for a probe."""

    config: RunConfig
    framework: str | None
    workers: int
    trained_per_second: float
    evaluated_per_second: float
    startup_seconds: float


@dataclass(frozen=True)
class Basis:
    """The runs that an estimate is made from, and what they are called; `images` of the data they used."""

    runs: tuple[MeasuredRun, ...]
    source: str


def measured_run(record: Record) -> MeasuredRun | None:
    """Return the speeds of a complete run; None for one that trained or evaluated nothing."""
    header = record.header
    if header is None or not record.complete or not record.epochs or not record.results:
        return None
    timed = [epoch for epoch in record.epochs if not epoch.warmup] or list(record.epochs)
    trained = sum(epoch.images for epoch in timed) / sum(epoch.seconds for epoch in timed)
    evaluated = sum(each.images for each in record.results) / sum(each.seconds for each in record.results)
    pixels = pixels_per_image(header.config)
    return MeasuredRun(
        config=header.config,
        framework=header.config.framework,
        workers=header.config.workers,
        trained_per_second=trained * pixels,
        evaluated_per_second=evaluated * pixels,
        startup_seconds=_startup_seconds(record),
    )


def pixels_per_image(config: RunConfig) -> int:
    return config.data.image_height * config.data.image_width


def estimable(configs: Sequence[RunConfig], basis: Basis) -> bool:
    """Return whether the basis has runs of the networks of all these."""
    return all(_usable(config, basis.runs) for config in configs)


def run_seconds(config: RunConfig, basis: Basis, images: Images) -> Range:
    """Return how long a run takes from the start of its processes.

    Uses the runs of the nearest worker count, of the same framework and options where there are any.
    Raises ValueError where the basis has no run of this network.
    """
    runs = _nearest(config, _usable(config, basis.runs))
    if not runs:
        raise ValueError(f"the basis has no run of the network of {config.run}")
    startup = median(run.startup_seconds for run in runs)
    passes = config.data.passes_per_epoch * config.training.epochs
    pixels = pixels_per_image(config)
    trained = _work_seconds(
        config, runs, images.train * passes * pixels, [run.trained_per_second for run in runs]
    )
    evaluated = _work_seconds(
        config, runs, images.test * _evaluations(config) * pixels, [run.evaluated_per_second for run in runs]
    )
    return Range(startup, startup, startup) + trained + evaluated


def _evaluations(config: RunConfig) -> int:
    every = config.training.evaluate_every
    return 1 + (max(0, config.training.epochs - 1) // every if every else 0)


def _work_seconds(
    config: RunConfig, runs: Sequence[MeasuredRun], pixels: float, rates: Sequence[float]
) -> Range:
    """Return the seconds for so many pixels, at the speeds of these runs of one worker count."""
    speed = _worker_speed(config, runs[0])
    workers = config.workers / runs[0].workers
    slow, middle, fast = (pixels / (rate * workers) for rate in (min(rates), median(rates), max(rates)))
    return Range(fast / speed.high, middle / speed.expected, slow / speed.low)


def _worker_speed(config: RunConfig, run: MeasuredRun) -> Range:
    """Return the speed of a worker as a share of that in the measured run."""
    framework = EXACTLY if run.framework == config.framework else WITH_ANOTHER_FRAMEWORK
    group = EXACTLY
    if config.workers != run.workers:
        group = IN_A_LARGER_GROUP if config.workers > run.workers else IN_A_SMALLER_GROUP
    return Range(framework.low * group.low, framework.expected * group.expected, framework.high * group.high)


def _usable(config: RunConfig, runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """Return the runs of the same network: how the seconds of another one compare is not known."""
    return [run for run in runs if run.config.model == config.model]


def _nearest(config: RunConfig, runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return the runs most like this one, all of one worker count and one framework."""
    if not runs:
        return []

    def distance(run: MeasuredRun) -> tuple[bool, bool, float]:
        apart = max(run.workers, config.workers) / min(run.workers, config.workers)
        return (
            run.framework != config.framework,
            _speed_options(run.config) != _speed_options(config),
            apart,
        )

    nearest = min(map(distance, runs))
    like = [run for run in runs if distance(run) == nearest]
    return [run for run in like if (run.workers, run.framework) == (like[0].workers, like[0].framework)]


def _speed_options(config: RunConfig) -> tuple[object, ...]:
    """Return the options that decide the seconds of an image, besides its size and the network."""
    training = config.training
    return (
        training.batch_per_worker, training.accumulate, training.precision, training.compile,
        training.channels_last, training.gradient_compression, training.cores_per_worker,
        config.data.loading, config.data.loader_workers, config.pytorch_native, config.horovod,
    )  # fmt: skip


def _startup_seconds(record: Record) -> float:
    if record.startup is None:
        return 0.0
    parts: list[list[float]] = [getattr(record.startup, column) for column in STARTUP_COLUMNS]
    return sum(map(max, parts))


def source_text(configs: Sequence[RunConfig], basis: Basis) -> str:
    """Return what an estimate was made from, and how far from what was measured it reaches."""
    measured = sorted({run.workers for run in basis.runs})
    scaled = sorted({config.workers for config in configs}.difference(measured))
    text = f"by {basis.source} on {_workers(measured)}"
    return f"{text}; scaled to {_workers(scaled)}" if scaled else text


def _workers(counts: Sequence[int]) -> str:
    return f"{', '.join(map(str, counts))} {'worker' if counts == [1] else 'workers'}"


def time_text(configs: Sequence[RunConfig], seconds: Range, basis: Basis) -> str:
    """Return how long these runs take one after the other."""
    limits = f"{duration(seconds.low)} to {duration(seconds.high)}"
    source = source_text(configs, basis)
    return f"{count(len(configs), 'run')}: about {duration(seconds.expected)} ({limits}), {source}"

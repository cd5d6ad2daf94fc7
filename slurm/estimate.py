"""Estimate how long runs take, from earlier runs or a probe: pure functions of what these measured."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple

from unet_scaling.study.config import RunConfig
from unet_scaling.study.measurements import STARTUP_COLUMNS
from unet_scaling.study.record import Record
from unet_scaling.study.record_lines import Epoch, Evaluation
from unet_scaling.study.saliency import Saliency
from unet_scaling.study.texts import count, duration


@dataclass(frozen=True)
class Range:
    """The expected value of an estimate, between the lowest and the highest that are likely."""

    low: float
    expected: float
    high: float

    def __add__(self, other: "Range") -> "Range":
        return Range(self.low + other.low, self.expected + other.expected, self.high + other.high)

    def __mul__(self, other: "Range") -> "Range":
        return Range(self.low * other.low, self.expected * other.expected, self.high * other.high)

    def times(self, factor: float) -> "Range":
        return self * Range(factor, factor, factor)


NOTHING = Range(0.0, 0.0, 0.0)
# Launches of one point differ by 2 to 5 % on a quiet machine, and by more on one that others use.
AT_THE_SAME_POINT = Range(0.9, 1.0, 1.1)
# The speed of a worker in a larger group, as a share of that in the measured one. Below a half no worker
# count is worth its workers; the efficiency floor of studies is 0.7.
IN_A_LARGER_GROUP = Range(0.5, 0.75, 1.0)
IN_A_SMALLER_GROUP = Range(1.0, 1.0, 2.0)
# The speed with a framework of which nothing was measured, as a share of that of another, or of none.
WITH_ANOTHER_FRAMEWORK = Range(0.5, 1.0, 1.25)
# The start of a run in terms of that of a probe, which decodes fewer images and joins no group.
STARTUP_AFTER_A_PROBE = Range(0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Images:
    """The number of images that a run trains on in a pass, and evaluates."""

    train: int
    test: int


@dataclass(frozen=True)
class MeasuredRun:
    """The speeds of one run: pixels per second of all its workers. `framework` is None for a probe.

    `explained_per_second`: of the images with a saliency map; None where it made none, or not all at once.
    """

    config: RunConfig
    framework: str | None
    workers: int
    trained_per_second: float
    evaluated_per_second: float
    startup_seconds: float
    explained_per_second: float | None = None


class MeasuredPoint(NamedTuple):
    """What runs of about one speed share, besides the network."""

    framework: str | None
    options: tuple[object, ...]
    workers: int


@dataclass(frozen=True)
class Basis:
    """The runs that an estimate is made from, and what they are called."""

    runs: tuple[MeasuredRun, ...]
    source: str

    @cached_property
    def points(self) -> Mapping[Hashable, Mapping["MeasuredPoint", list[MeasuredRun]]]:
        """Return the runs by network and point, and once more those with maps by their options, too."""
        found: defaultdict[Hashable, defaultdict[MeasuredPoint, list[MeasuredRun]]]
        found = defaultdict(lambda: defaultdict(list))
        for run in self.runs:
            point = MeasuredPoint(run.framework, _speed_options(run.config), run.workers)
            found[run.config.model][point].append(run)
            if run.explained_per_second:
                found[run.config.model, _maps_of(run.config)][point].append(run)
        return found


def measured_run(record: Record) -> MeasuredRun | None:
    """Return the speeds of a complete run; None for one that trained or evaluated nothing."""
    header = record.header
    if header is None or not record.complete or not record.epochs or not record.results:
        return None
    config = header.config
    return MeasuredRun(
        config=config,
        framework=config.framework,
        workers=config.workers,
        trained_per_second=_pixels_per_second(config, _timed(record.epochs)),
        evaluated_per_second=_pixels_per_second(config, record.results),
        startup_seconds=_startup_seconds(record),
        explained_per_second=_explained_per_second(config, record.saliency),
    )


def _explained_per_second(config: RunConfig, made: Saliency | None) -> float | None:
    """Return the speed of maps with their checks, of a run that made all of its own in one attempt."""
    if made is None or made.maps == 0 or made.maps_made_here < made.maps:
        return None
    return made.maps * pixels_per_image(config) / (made.seconds + made.check_seconds)


def _timed(epochs: Sequence[Epoch]) -> Sequence[Epoch]:
    """Return the epochs after the warm-up, or all where there are no others."""
    return [epoch for epoch in epochs if not epoch.warmup] or epochs


def _pixels_per_second(config: RunConfig, parts: Sequence[Epoch] | Sequence[Evaluation]) -> float:
    images = sum(part.images for part in parts)
    return images * pixels_per_image(config) / sum(part.seconds for part in parts)


def _startup_seconds(record: Record) -> float:
    if record.startup is None:
        return 0.0
    parts: list[list[float]] = [getattr(record.startup, column) for column in STARTUP_COLUMNS]
    return sum(map(max, parts))


def pixels_per_image(config: RunConfig) -> int:
    return config.data.image_height * config.data.image_width


def estimable(configs: Sequence[RunConfig], basis: Basis) -> bool:
    """Return whether the basis has runs of the networks of all these.

    Emulated ones compute none.
    """
    return all(config.model in basis.points and not config.is_emulated for config in configs)


def estimable_with_maps(configs: Sequence[RunConfig], basis: Basis) -> bool:
    """Return whether it also has runs with the saliency maps of those that make some."""
    return all(_usable(config) in basis.points for config in configs)


def measures_all(configs: Sequence[RunConfig], basis: Basis) -> bool:
    """Return whether every framework, worker count and set of options of these runs was measured."""
    measured = {(run.framework, run.workers, _speed_options(run.config)) for run in basis.runs}
    return all((each.framework, each.workers, _speed_options(each)) in measured for each in configs)


def run_seconds(config: RunConfig, basis: Basis, images: Images) -> Range:
    """Return how long a run takes from the start of its processes.

    Uses the runs of the nearest worker count, of the same framework and options where there are any.
    Raises KeyError where the basis has no run of this network, or none with such maps.
    """
    runs = _nearest(config, basis.points[_usable(config)])
    passes = config.data.passes_per_epoch * config.training.epochs
    trained = _work_seconds(config, runs, images.train * passes, [run.trained_per_second for run in runs])
    evaluations = images.test * _evaluations(config)
    evaluated = _work_seconds(config, runs, evaluations, [run.evaluated_per_second for run in runs])
    return _start(runs) + trained + evaluated + _explained(config, runs, images.test)


def _explained(config: RunConfig, runs: Sequence[MeasuredRun], test_images: int) -> Range:
    """Return the seconds of saliency maps and their checks, as if every image had a map."""
    if not config.is_explained:
        return NOTHING
    rates = [run.explained_per_second for run in runs if run.explained_per_second]
    return _work_seconds(config, runs, min(test_images, config.saliency.images or test_images), rates)


def _start(runs: Sequence[MeasuredRun]) -> Range:
    """Return the seconds of a run before its first epoch."""
    seconds = [run.startup_seconds for run in runs]
    likeness = STARTUP_AFTER_A_PROBE if runs[0].framework is None else AT_THE_SAME_POINT
    return Range(min(seconds), median(seconds), max(seconds)) * likeness


def _evaluations(config: RunConfig) -> int:
    every = config.training.evaluate_every
    return 1 + (max(0, config.training.epochs - 1) // every if every else 0)


def _work_seconds(
    config: RunConfig, runs: Sequence[MeasuredRun], images: int, rates: Sequence[float]
) -> Range:
    """Return the seconds for so many images, at the pixels per second of these runs of one worker count."""
    speed = _worker_speed(config, runs[0])
    work = images * pixels_per_image(config) * runs[0].workers / config.workers
    return Range(
        work / (max(rates) * speed.high),
        work / (median(rates) * speed.expected),
        work / (min(rates) * speed.low),
    )


def _worker_speed(config: RunConfig, run: MeasuredRun) -> Range:
    """Return the speed of a worker as a share of that in the measured run."""
    framework = AT_THE_SAME_POINT if run.framework == config.framework else WITH_ANOTHER_FRAMEWORK
    if config.workers == run.workers:
        return framework
    return framework * (IN_A_LARGER_GROUP if config.workers > run.workers else IN_A_SMALLER_GROUP)


def _usable(config: RunConfig) -> Hashable:
    """Return the key of the runs of the same network; for a run that makes saliency maps, with such maps."""
    return (config.model, _maps_of(config)) if config.is_explained else config.model


def _maps_of(config: RunConfig) -> str:
    """Return the options that decide the seconds of an image's map and of its checks."""
    return config.saliency.model_dump_json(exclude={"images", "seed", "split"})


def _nearest(config: RunConfig, points: Mapping[MeasuredPoint, list[MeasuredRun]]) -> list[MeasuredRun]:
    """Return the runs of the point most like this run's: by framework, then options, then workers."""
    own = MeasuredPoint(config.framework, _speed_options(config), config.workers)
    if own in points:
        return points[own]

    def distance(point: MeasuredPoint) -> tuple[bool, bool, float]:
        apart = max(point.workers, own.workers) / min(point.workers, own.workers)
        return point.framework != own.framework, point.options != own.options, apart

    return points[min(points, key=distance)]


def _speed_options(config: RunConfig) -> tuple[object, ...]:
    """Return the options that decide the seconds of an image, besides its size and the network."""
    training = config.training
    return (
        training.batch_per_worker, config.passes_per_step, training.precision, training.compile,
        training.channels_last, training.gradient_compression, training.cores_per_worker,
        config.data.loading, config.data.loader_workers, getattr(config, config.framework),
    )  # fmt: skip


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

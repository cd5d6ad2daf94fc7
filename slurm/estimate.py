"""Estimate how long runs take, by complete runs of the same points or else by a probe, and what they cost."""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from slurm.cluster import Cluster, geometry
from slurm.preflight import limit_node_hours, limit_text
from unet_scaling.data.folder import read_manifest
from unet_scaling.data.order import count_test_images
from unet_scaling.study.config import PROJECT, RunConfig, StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.record import Record
from unet_scaling.study.record_lines import STARTUP_COLUMNS, Probed
from unet_scaling.study.run_state import RecordedRun
from unet_scaling.study.texts import count, duration

# Of steps, after the one that warms up: half a minute of waiting in all.
PROBE_SECONDS = 20
# A pass that only evaluates spares the backward pass, which computes twice what the forward pass does.
EVALUATION_SPEED = 3.0
# Of a worker in a group, as a share of that of the probe: below it, no worker count is worth its workers.
SLOWEST_SPEED = 0.5


class KnownSeconds:
    """The seconds that complete runs took, by point."""

    def __init__(self) -> None:
        self._known: dict[str, list[float]] = {}

    def learn(self, run: RecordedRun) -> None:
        """Note how long a run took; one that is not complete tells nothing."""
        if run.record and run.state.is_complete:
            self._known.setdefault(point_of(run.config), []).append(recorded_seconds(run.record))

    def of_point(self, config: RunConfig) -> float | None:
        """Return the median seconds of the complete runs of this point; None where there are none."""
        seconds = self._known.get(point_of(config))
        return median(seconds) if seconds else None

    def foreseen(self, configs: Iterable[RunConfig], otherwise: float | None = None) -> float | None:
        """Return the seconds that these runs will take together; None where nothing is known.

        A run whose point has no complete one takes the mean of the points that have, or else `otherwise`.
        """
        if self._known:
            otherwise = mean(map(median, self._known.values()))
        seconds = [self.of_point(config) or otherwise for config in configs]
        known = [value for value in seconds if value is not None]
        return sum(known) if len(known) == len(seconds) else None


def recorded_seconds(record: Record) -> float:
    """Return the seconds of a run from the start of its processes, by its record."""
    startup: Iterable[Sequence[float]] = (
        [getattr(record.startup, column) for column in STARTUP_COLUMNS] if record.startup else []
    )
    trained = sum(epoch.seconds for epoch in record.epochs)
    evaluated = sum(result.seconds for result in record.results)
    made = record.saliency
    explained = made.seconds + made.check_seconds if made else 0.0
    return sum(max(seconds) for seconds in startup) + trained + evaluated + explained


def point_of(config: RunConfig) -> str:
    """Return what all repeats of a point share: the name of its runs without the repeat."""
    return config.run.removesuffix(f"-r{config.repeat}")


def gains_without_exchange(runs: Iterable[RecordedRun]) -> Iterator[str]:
    """Yield how much faster runs that average gradients would be if nothing was lost, by complete ones.

    A worker that shares nothing takes as long for an image as one alone; each line names the point.
    """
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for run in runs:
        if run.record and run.state.is_complete and run.config.strategy.averages_gradients:
            timed = [epoch for epoch in run.record.epochs if not epoch.warmup]
            images = sum(epoch.images for epoch in timed)
            alike = run.config.model_copy(update={"run": "any", "repeat": 1, "seed": 0, "workers": 1})
            if timed:
                pace = run.config.workers * sum(epoch.seconds for epoch in timed) / images
                of_point = found.setdefault(alike.model_dump_json(), {}).setdefault(point_of(run.config), [])
                of_point.append((run.config.workers, pace))
    for of_points in found.values():
        alone = [pace for each in of_points.values() for workers, pace in each if workers == 1]
        for point, paces_of_point in of_points.items():
            own = [pace for workers, pace in paces_of_point if workers > 1]
            if own and alone:
                paces = median(own), min(own), max(own)
                gain, low, high = (100 * max(0.0, pace / median(alone) - 1) for pace in paces)
                yield (
                    f"{point}: about {gain:.0f} % faster if nothing was lost against 1 worker ({low:.0f} to "
                    f"{high:.0f} % by single runs, of {len(own)}): a strategy may gain that at most"
                )


class Range(NamedTuple):
    """The least and the most seconds that are likely."""

    low: float
    high: float


@dataclass(frozen=True)
class ProbedSpeed:
    """What one worker without a framework did on this machine: pixels per second, and seconds to start."""

    config: RunConfig
    pixels_per_second: float
    startup_seconds: float
    source: str


def run_probe(
    study: StudyConfig, cores: int, on_gpus: bool = False, seconds: int = PROBE_SECONDS
) -> ProbedSpeed:
    """Time some steps of the study's first configuration on this machine, in a process of its own.

    `on_gpus`: the runs will have GPUs, which this machine may lack; the estimate says so then.
    Raises UserError with its words where it cannot, such as for images that were never checked.
    """
    begin = time.monotonic()
    cores = min(cores, len(os.sched_getaffinity(0)))
    command = [sys.executable, "-m", "unet_scaling.profile.measure", str(seconds), str(cores)]
    done = subprocess.run(
        command, cwd=PROJECT, input=study.model_dump_json(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UserError(f"--probe: {done.stderr.strip().removeprefix('error: ')}", done.returncode)
    found = Probed.model_validate_json(done.stdout)
    return probed_speed(study.configs()[0], found, time.monotonic() - begin, on_gpus)


def probed_speed(config: RunConfig, probed: Probed, process_seconds: float, on_gpus: bool) -> ProbedSpeed:
    """Return the speed of a probe; what its process did besides its steps stands for a run's start."""
    source = (
        f"a probe of {count(len(probed.step_seconds), 'step')} on this machine "
        f"({probed.device}, {count(probed.cores, 'core')})"
    )
    if on_gpus and probed.device == "cpu":
        source += " without the GPUs that will make the runs faster"
    pixels = probed.images_per_step * pixels_per_image(config)
    started = process_seconds - sum(probed.step_seconds)
    return ProbedSpeed(config, pixels / median(probed.step_seconds), started, source)


def pixels_per_image(config: RunConfig) -> int:
    return config.data.image_height * config.data.image_width


@dataclass(frozen=True)
class TimeEstimate:
    """What is known of the time of runs: complete ones of their points, and perhaps a probe."""

    known: KnownSeconds
    probe: ProbedSpeed | None = None
    _listed: dict[Path, int | None] = field(default_factory=dict)

    def seconds(self, config: RunConfig) -> Range | None:
        """Return the seconds of a run from the start of its processes; None where nothing tells them."""
        recorded = self.known.of_point(config)
        if recorded is not None:
            return Range(recorded, recorded)
        if self.probe is None or self.probe.config.model != config.model or _computes_otherwise(config):
            return None
        images = self._listed_images(config.data.manifest_path)
        if images is None:
            return None
        test = count_test_images(images, config.data.test_share)
        every = config.training.evaluate_every
        evaluations = 1 + (max(0, config.training.epochs - 1) // every if every else 0)
        passes = (images - test) * config.data.passes_per_epoch * config.training.epochs
        work = (passes + test * evaluations / EVALUATION_SPEED) * pixels_per_image(config)
        fastest = work / (self.probe.pixels_per_second * config.workers)
        start = self.probe.startup_seconds
        return Range(start + fastest, start + fastest / SLOWEST_SPEED)

    def _listed_images(self, manifest: Path) -> int | None:
        """Return how many images a manifest lists, read once; None where there is none."""
        if manifest not in self._listed:
            try:
                self._listed[manifest] = len(read_manifest(manifest).pairs)
            except UserError:
                self._listed[manifest] = None
        return self._listed[manifest]

    def text(self, configs: Sequence[RunConfig]) -> str:
        """Return how long these runs take one after the other, and what tells it."""
        ranges = [each for each in map(self.seconds, configs) if each is not None]
        if not ranges:
            why = f"no run of these points is complete{self._cure(configs)}"
            return f"duration unknown: {why}"
        low = sum(each.low for each in ranges)
        high = sum(each.high for each in ranges)
        about = duration(low) if low == high else f"{duration(low)} to {duration(high)}"
        measured = sum(self.known.of_point(config) is not None for config in configs)
        sources = ["the complete runs of the same points"] if measured else []
        sources += [self.probe.source] if self.probe and len(ranges) > measured else []
        text = f"{count(len(ranges), 'run')}: about {about} by {' and '.join(sources)}"
        missing = len(configs) - len(ranges)
        if missing:
            text += f"; not known for {missing} more, whose points have none{self._cure(configs)}"
        return text

    def _cure(self, configs: Sequence[RunConfig]) -> str:
        """Return what would tell the time of runs without complete ones, as the end of a sentence."""
        if any(map(_computes_otherwise, configs)):
            return "; a probe cannot tell it of a task, emulated workers or saliency maps"
        if self.probe is None:
            return "; --probe estimates it"
        return "; a probe tells it of one network (model.width, model.depth) and of checked images"


def _computes_otherwise(config: RunConfig) -> bool:
    """Return whether a run does not train the network of the probe, or more than that."""
    return config.has_own_task or config.is_emulated or config.is_explained


@dataclass(frozen=True)
class Cost:
    """Node-hours that runs may take at most, and what is to be said about them."""

    node_hours: float
    text: str


def cluster_cost(
    cluster: Cluster, configs: Sequence[RunConfig], one_allocation: bool, estimate: TimeEstimate
) -> Cost:
    """Return what these runs cost: the upper end of the estimate, or what their limit allows."""
    at_most = limit_text(cluster, configs, one_allocation)
    seconds = [each for config in configs if (each := estimate.seconds(config)) is not None]
    if not configs or len(seconds) < len(configs):
        unknown = f"\n{estimate.text(configs)}" if configs else ""
        return Cost(limit_node_hours(cluster, configs, one_allocation), at_most + unknown)
    nodes = [geometry(cluster, config.workers).nodes for config in configs]
    held = [max(nodes)] * len(nodes) if one_allocation else nodes
    low = sum(share * each.low for share, each in zip(held, seconds, strict=True)) / 3600
    high = sum(share * each.high for share, each in zip(held, seconds, strict=True)) / 3600
    about = f"{high:.2g}" if low == high else f"{low:.2g} to {high:.2g}"
    lines = [f"about {about} node-hours; {estimate.text(configs)}", at_most]
    longest = sum(each.high for each in seconds) if one_allocation else max(each.high for each in seconds)
    if longest + cluster.stop_seconds > cluster.limit_seconds:
        what = "the job" if one_allocation else "the longest run"
        lines.append(f"{what} may take {duration(longest)}; it goes on after its limit of {cluster.time}")
    return Cost(high, "\n".join(lines))


def require_within(budget_hours: float | None, cost: Cost) -> None:
    """Raise UserError where the runs may cost more than the budget."""
    if budget_hours is not None and cost.node_hours > budget_hours:
        raise UserError(
            f"--budget {budget_hours:g}: these runs may take {cost.node_hours:.3g} node-hours; nothing was "
            "submitted. Use fewer repeats, worker counts or epochs, or --probe for a closer estimate"
        )

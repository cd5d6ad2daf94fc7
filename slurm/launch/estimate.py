"""Estimate how long runs take, by complete runs of the same points or else by a probe."""

import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from pydantic import TypeAdapter

from slurm.cluster import Cluster, cost_of, plan_geometry
from unet_scaling.base.errors import UserError, required_module
from unet_scaling.base.files import read_json_with_checksum, write_json_with_checksum
from unet_scaling.base.texts import count, duration
from unet_scaling.data.folder import read_manifest
from unet_scaling.data.order import count_test_images
from unet_scaling.format.facts import JOB_GPUS
from unet_scaling.format.record import Record
from unet_scaling.format.record_lines import STARTUP_COLUMNS, Epoch, Probed, Provenance
from unet_scaling.format.run_state import RecordedRun
from unet_scaling.study.config import PROJECT, RunConfig, StudyConfig

# Seconds of steps after the first one, which warms up; the user waits for half a minute in all.
PROBE_SECONDS = 20
FIRST_RUNS = "--set repeats=1 runs each point once; then --dry-run tells how long the others take"
# Evaluation has no backward pass, which computes twice as much as the forward pass.
EVALUATION_SPEED = 3.0
# Keys of [training] that do not change how long a step takes.
NOT_OF_A_STEP = {"epochs", "evaluate_every", "learning_rate", "rate_scaling", "schedule", "warmup_epochs"}


class KnownSeconds:
    """The seconds that complete runs took, by point.

    With `gres`, what jobs ask of each node ("" for CPU workers), only runs on such devices count.
    `elsewhere`: the other devices on which runs of a point are complete.
    """

    def __init__(self, gres: str | None = None) -> None:
        self._known: dict[str, list[float]] = {}
        self._gres = gres
        self.elsewhere: dict[str, set[str]] = {}

    def learn(self, run: RecordedRun) -> None:
        """Note how long a run took, if it is complete."""
        where = run.record.provenance if run.record and run.state.is_complete else None
        if run.record is None or where is None:
            return
        point = name_point(run.config)
        if self._gres is None or run.config.is_emulated or is_such_device(where, self._gres):
            self._known.setdefault(point, []).append(sum_seconds(run.record))
        else:
            self.elsewhere.setdefault(point, set()).update(worker.device for worker in where.workers)

    def get_median(self, config: RunConfig) -> float | None:
        """Return the median seconds of the complete runs of this point; None where there are none."""
        seconds = self._known.get(name_point(config))
        return median(seconds) if seconds else None

    def estimate(self, configs: Iterable[RunConfig], otherwise: float | None = None) -> float | None:
        """Return the seconds that these runs will take together; None where nothing is known.

        A run of a point without complete runs counts as the mean of the points that have some, or as
        `otherwise`.
        """
        if self._known:
            otherwise = mean(map(median, self._known.values()))
        seconds = [self.get_median(config) or otherwise for config in configs]
        known = [value for value in seconds if value is not None]
        return sum(known) if len(known) == len(seconds) else None


def is_such_device(where: Provenance, gres: str) -> bool:
    """Return whether a run computed on what jobs with this generic resource give: "gpu", "gpu:a100" or "".

    A type that names a model, such as a100, must be a part of the GPU's name. Where torch is a CPU build,
    workers of a job that has GPUs compute on its cores: so do those of the next one.
    """
    if not any(worker.device_uuid for worker in where.workers):
        return bool(where.job.get(JOB_GPUS)) == bool(gres)
    model = re.search(r"[a-z]+[0-9]+", gres.partition(",")[0].lower().partition(":")[2])
    names = [worker.device.lower().replace(" ", "") for worker in where.workers]
    return bool(gres) and (model is None or all(model.group() in name for name in names))


def sum_seconds(record: Record) -> float:
    """Return the seconds of a run by its record: start, epochs, evaluations and saliency maps."""
    startup: Iterable[Sequence[float]] = (
        [getattr(record.startup, column) for column in STARTUP_COLUMNS] if record.startup else []
    )
    trained = sum(epoch.seconds for epoch in record.epochs)
    evaluated = sum(result.seconds for result in record.results)
    made = record.saliency
    explained = made.seconds + made.check_seconds if made else 0.0
    return sum(max(seconds) for seconds in startup) + trained + evaluated + explained


def name_point(config: RunConfig) -> str:
    """Return what all repeats of a point share: the name of its runs without the repeat."""
    return config.run.removesuffix(f"-r{config.repeat}")


def images_per_second(epochs: Sequence[Epoch], also_warmup: bool = False) -> float | None:
    """Return the throughput of the epochs after the warm-up; None where there are none.

    `also_warmup`: where there are none, return that of the warm-up.
    """
    timed = [epoch for epoch in epochs if not epoch.warmup] or (epochs if also_warmup else [])
    seconds = sum(epoch.seconds for epoch in timed)
    return sum(epoch.images for epoch in timed) / seconds if seconds else None


def describe_lost_speed(runs: Iterable[RecordedRun]) -> Iterator[str]:
    """Yield a line for each point: how much faster it would be without the time that averaging costs.

    Only complete runs that average gradients count. Without averaging, a worker would take as long for an
    image as one that trains alone.
    """
    alone: dict[str, list[float]] = {}
    together: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if run.record and run.state.is_complete and run.config.strategy.averages_gradients:
            speed = images_per_second(run.record.epochs)
            changed = {"run": "any", "repeat": 1, "seed": 0, "workers": 1}
            alike = run.config.model_copy(update=changed).model_dump_json()
            if speed and run.config.workers == 1:
                alone.setdefault(alike, []).append(1 / speed)
            elif speed:
                pace = run.config.workers / speed
                together.setdefault((alike, name_point(run.config)), []).append(pace)
    for (alike, point), paces in together.items():
        if alike in alone:
            lost = [100 * max(0.0, pace / median(alone[alike]) - 1) for pace in paces]
            yield (
                f"{point}: about {median(lost):.0f} % faster if nothing was lost against 1 worker "
                f"({min(lost):.0f} to {max(lost):.0f} % by single runs, of {len(lost)}): a strategy may gain "
                "that at most"
            )


@dataclass(frozen=True)
class ProbedSpeed:
    """The speed of one worker without a framework on this machine, and the images of the study."""

    config: RunConfig
    images: int
    images_per_second: float
    startup_seconds: float
    source: str
    host: str = ""

    def estimate(self, config: RunConfig) -> float | None:
        """Return the seconds of a run at perfect scaling; None where its steps are not those of the probe."""
        if computes_otherwise(config) or _work_of_a_step(config) != _work_of_a_step(self.config):
            return None
        test = count_test_images(self.images, config.data.test_share)
        every = config.training.evaluate_every
        evaluations = 1 + (max(0, config.training.epochs - 1) // every if every else 0)
        trained = (self.images - test) * config.data.passes_per_epoch * config.training.epochs
        images = trained + test * evaluations / EVALUATION_SPEED
        return self.startup_seconds + images / (self.images_per_second * config.workers)


def computes_otherwise(config: RunConfig) -> bool:
    """Return whether a run does something else than train the built-in network, which a probe times."""
    return config.has_own_task or config.is_emulated or config.is_explained


def _work_of_a_step(config: RunConfig) -> tuple[object, ...]:
    """Return the options on which the seconds of a step depend."""
    return config.model, config.data, config.training.model_dump(exclude=NOT_OF_A_STEP)


def run_probe(study: StudyConfig, cores: int, seconds: int = PROBE_SECONDS) -> ProbedSpeed:
    """Time some steps of the study's first configuration on this machine, in a process of its own.

    The other seconds of that process are taken for the start of a run. Raises UserError where it fails, such
    as for images that were never checked.
    """
    begin = time.monotonic()
    config = study.configs()[0]
    if computes_otherwise(config):
        raise UserError(
            f"--probe: own tasks, emulated workers and saliency maps are told by complete runs: {FIRST_RUNS}"
        )
    required_module("unet_scaling.profile", "--probe")
    command = [sys.executable, "-m", "unet_scaling.profile.measure", str(seconds), str(cores)]
    done = subprocess.run(
        command, cwd=PROJECT, input=study.model_dump_json(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UserError(f"--probe: {done.stderr.strip().removeprefix('error: ')}", done.returncode)
    probed = Probed.model_validate_json(done.stdout)
    steps = count(len(probed.step_seconds), "step")
    return ProbedSpeed(
        config,
        images=len(read_manifest(config.data.manifest_path).pairs),
        images_per_second=probed.images_per_step / median(probed.step_seconds),
        startup_seconds=time.monotonic() - begin - sum(probed.step_seconds),
        source=f"a probe of {steps} on this machine ({probed.device}, {count(probed.cores, 'core')})",
        host=platform.node(),
    )


def write_probe(study: Path, probe: ProbedSpeed) -> None:
    """Write beside a study file what was probed of it."""
    write_json_with_checksum(_probe_path(study), TypeAdapter(ProbedSpeed).dump_python(probe, mode="json"))


def read_probe(study: Path) -> ProbedSpeed | None:
    """Return what `new` probed of this study file on this machine; None for nothing. Raises UserError."""
    path = _probe_path(study)
    if not path.exists():
        return None
    try:
        probe = TypeAdapter(ProbedSpeed).validate_python(read_json_with_checksum(path))
    except (OSError, ValueError):
        raise UserError(f"{path} cannot be read: delete it; --probe times the steps again") from None
    return probe if probe.host == platform.node() else None


def _probe_path(study: Path) -> Path:
    return study.with_suffix(".probe.json")


def describe_estimate(
    configs: Sequence[RunConfig],
    known: KnownSeconds,
    probe: ProbedSpeed | None = None,
    cluster: Cluster | None = None,
    one_allocation: bool = False,
) -> str:
    """Return how long these runs take one after the other, as text, and what the estimate is based on.

    With a cluster also what they take of it; in one allocation, each run holds the nodes of the largest.
    """
    measured = list(filter(None, map(known.get_median, configs)))
    others = [config for config in configs if not known.get_median(config)]
    probed = list(filter(None, map(probe.estimate, others))) if probe else []
    if not measured and not probed:
        elsewhere = {device for config in configs for device in known.elsewhere.get(name_point(config), ())}
        if elsewhere:
            return f"duration unknown: complete runs of these points are of {', '.join(sorted(elsewhere))}"
        return "duration unknown: no run of these points is complete"
    about, sources = "about", []
    if measured:
        sources.append("the complete runs of the same points")
    if probe and probed:
        about = "at least"
        sources.append(probe.source)
    told = count(len(measured) + len(probed), "run")
    missing = len(others) - len(probed)
    taken = duration(sum(measured) + sum(probed))
    if cluster:
        most = max(config.workers for config in configs)
        shapes = [plan_geometry(cluster, most if one_allocation else config.workers) for config in configs]
        seconds = [known.get_median(config) or 0.0 for config in configs]
        taken += f", {cost_of(cluster, zip(shapes, seconds, strict=True))}"
    text = f"{told}: {about} {taken} by {' and '.join(sources)}"
    return f"{text}; not known for {missing} more of other points" if missing else text

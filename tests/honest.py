"""Honest studies on disk, by the real models and the real writers: what a claim may rest on.

Numbers follow from each other as in a real run: the seconds of an epoch are those of its steps, a worker that
is done early waits in sync, processor seconds fit into the epoch, runs start one after the other. Runs of one
seed on up to 2 workers train the same weights whatever the framework, as processors do.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm.launch.study_folder import StudyFolder
from tests.records import digest, make_header, make_probe, make_workers, write_all
from unet_scaling.base.files import write_verified
from unet_scaling.format.older_log import older_log
from unet_scaling.format.record import RECORD_NAME
from unet_scaling.format.record_lines import (
    PHASE_COLUMNS,
    Budget,
    CpuFacts,
    End,
    Epoch,
    Evaluation,
    GpuFacts,
    Header,
    LongestStep,
    Phase,
    Probe,
    Result,
    Startup,
    WorkerFacts,
)
from unet_scaling.measure.epoch_meter import StepSample
from unet_scaling.study.config import FRAMEWORKS, Framework, RunConfig, StudyConfig
from unet_scaling.training import learning_rate

Array = NDArray[np.float64]
COMPLETE = End(status="complete")
START = datetime(2026, 3, 2, 8, tzinfo=UTC)
# Between two runs: their start-up, evaluation and end.
PAUSE_SECONDS = 15.0
EPOCHS = 10
BATCH = 8
TRAIN_IMAGES = 384
TEST_IMAGES = 96
PIXELS = TEST_IMAGES * 128 * 128
FOREGROUND_PIXELS = round(0.18 * PIXELS)
STEP_SECONDS = 0.130
# Parts of a step on 1 worker, in the order of phases; sync has none.
PARTS = np.array([0.02, 0.01, 0.31, 0.58, 0.0, 0.07, 0.01])
# What averaging takes of a step, by workers.
WIRE = {1: 0.0, 2: 0.025, 4: 0.045, 8: 0.06}
# Of IoU, for each step that the workers train apart.
RARE_LOSS = 0.001
H100 = "NVIDIA H100 80GB HBM3"
VERSIONS = {
    "python": "3.11.7", "torch": "2.13.0+cpu", "horovod": "0.28.1", "numpy": "2.4.6", "mpi4py": "4.1.2",
    "mpich": "5.0.2", "lightning": "2.6.0", "accelerate": "1.15.0", "mpi": "MPICH Version:      5.0.2",
}  # fmt: skip
# A real clock is never twice the same to the last digit.
CLOCK_MHZ = 2900.0


# Emptied as the process ends.
_WRITTEN = tempfile.TemporaryDirectory(prefix="honest-")


@dataclass(frozen=True)
class Honest:
    """What is true of a study: native DDP is faster by `advantage` on several workers, all else is equal.

    `noise` is the standard deviation of a launch and of a repeat, `nodes` that of the clocks of the GPUs that
    a launch gets; `speed` is the machine's against another,
    `overhead` that of averaging against WIRE; `has_files`: with step samples and older logs.
    """

    frameworks: Sequence[Framework] = FRAMEWORKS
    workers: Sequence[int] = (1, 2, 4)
    repeats: int = 5
    advantage: float = 0.04
    noise: float = 0.004
    seed: int = 1
    is_gpu: bool = False
    nodes: float = 0.0
    hosts: Sequence[str] = ("node1",)
    iou: float = 0.82
    training: Mapping[str, Any] | None = None
    strategy: Mapping[str, Any] | None = None
    start: datetime = START
    commit: str = "0123456789abcdef0123456789abcdef01234567"
    speed: float = 1.0
    overhead: float = 1.0
    has_files: bool = False
    job: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Lines:
    """The lines of a record."""

    header: Header
    startup: Startup | None
    probe: Probe | None
    epochs: list[Epoch]
    results: Sequence[Evaluation]
    end: End | None

    @property
    def config(self) -> RunConfig:
        return self.header.config

    def in_order(self) -> Iterator[Any]:
        """Yield the lines in the order of the file."""
        yield from filter(None, (self.header, self.startup, self.probe))
        for number, epoch in enumerate(self.epochs, start=1):
            yield epoch
            yield from (result for result in self.results if result.epochs == number)
        if self.end:
            yield self.end


def write_honest(folder: Path, truth: Honest | None = None) -> Path:
    """Write a study of this truth: configurations and study.json, records, step samples and older logs.

    A process writes each truth once, and copies it for whoever asks again.
    """
    truth = truth or Honest()
    written = Path(_WRITTEN.name) / digest(repr(truth))
    if not written.exists():
        _write_study(written, truth)
    return Path(shutil.copytree(written, folder, dirs_exist_ok=True))


def _write_study(folder: Path, truth: Honest) -> None:
    random = np.random.default_rng(truth.seed)
    study = StudyConfig.model_validate(
        {
            "name": "honest",
            "frameworks": list(truth.frameworks),
            "workers": list(truth.workers),
            "repeats": truth.repeats,
            "data": {"folder": "/data/nuclei", "image_height": 128, "image_width": 128},
            "training": {"epochs": EPOCHS, "batch_per_worker": BATCH, "evaluate_every": 5}
            | dict(truth.training or {}),
            "strategy": dict(truth.strategy or {}),
        }
    )
    begun = truth.start
    pace_of_repeat = np.exp(random.normal(0, truth.noise, truth.repeats + 1))
    for config in StudyFolder(folder, study).prepare():
        pace = pace_of_repeat[config.repeat] * np.exp(random.normal(0, truth.noise)) / truth.speed
        seconds = _write_run(folder / config.run, config, truth, begun, pace, random)
        begun += timedelta(seconds=seconds + PAUSE_SECONDS)


def _write_run(
    folder: Path, config: RunConfig, truth: Honest, begun: datetime, pace: float, random: np.random.Generator
) -> float:
    """Write the files of one run; return its seconds of training."""
    sample = StepSample(config.workers, config.seed)
    epochs = []
    # A launch gets its own nodes. Spawned generators leave the others' numbers as they are.
    cooler = float(random.spawn(1)[0].normal(0, truth.nodes)) if truth.is_gpu else None
    for number in range(config.training.epochs):
        phases = _phases(config, truth, pace * (1.3 if number == 0 else 1.0), random)
        sample.add(number, 0, phases)
        epochs.append(_epoch(config, number, phases, cooler, random))
    every = config.training.evaluate_every or config.training.epochs
    results = [
        evaluation(config, epochs[:after], _iou(config, truth.iou, after, random))
        for after in range(every, config.training.epochs + 1, every)
    ]
    header = _header(config, truth, begun)
    lines = Lines(header, _startup(config.workers, random), _probe(config.workers), epochs, results, COMPLETE)
    write_all(folder / RECORD_NAME, lines.in_order())
    if truth.has_files:
        write_verified(folder / "steps.parquet", sample.parquet() or b"")
        (folder / "log.csv").write_text(older_log(epochs, results[-1]))
    return sum(epoch.seconds for epoch in epochs)


def _phases(config: RunConfig, truth: Honest, pace: float, random: np.random.Generator) -> Array:
    """Return seconds [workers, steps, phases]; who is done early waits in sync for the others."""
    workers = config.workers
    steps = TRAIN_IMAGES // (workers * config.training.batch_per_worker)
    scale = STEP_SECONDS * pace * np.exp(random.normal(0, 0.01, (workers, steps, 1)))
    phases = scale * PARTS
    if workers > 1:
        work = phases.sum(axis=2) - phases[:, :, Phase.OPTIMIZER]
        wire = truth.overhead * WIRE[workers] + (
            truth.advantage if config.framework != "pytorch_native" else 0.0
        )
        late = work.max(axis=0, keepdims=True) - work
        wire /= config.strategy.synchronise_every
        phases[:, :, Phase.SYNC] = late + STEP_SECONDS * pace * wire
    return np.asarray(phases)


def _epoch(
    config: RunConfig, number: int, phases: Array, cooler: float | None, random: np.random.Generator
) -> Epoch:
    totals = phases.sum(axis=1)
    seconds = totals.sum(axis=1)
    steps = phases.sum(axis=2)
    longest = int(steps.max(axis=0).argmax())
    work = steps[:, longest] - phases[:, longest, Phase.SYNC]
    budget = {name: totals[:, place].tolist() for place, name in enumerate(PHASE_COLUMNS)}
    return Epoch(
        epoch=number,
        seconds=float(seconds.max()),
        worker_seconds=seconds.tolist(),
        images=TRAIN_IMAGES,
        steps=phases.shape[1],
        loss=loss_of(config, number),
        learning_rate=learning_rate(config, number),
        warmup=number == 0,
        budget=Budget.model_validate(
            budget
            | {
                "host_paced_seconds": None if cooler is None else (0.05 * seconds).tolist(),
                "wire_seconds": float(phases[:, :, Phase.SYNC].min(axis=0).sum()),
                "longest_step": LongestStep(
                    step=longest,
                    seconds=float(steps[:, longest].max()),
                    worker=int(work.argmax()),
                    work_seconds=float(work.max()),
                ),
            }
        ),
        cpu=[_processor(worker, totals[worker], random) for worker in range(config.workers)],
        gpu=None if cooler is None else [_graphics(total, cooler, random) for total in seconds],
    )


def _processor(worker: int, totals: Array, random: np.random.Generator) -> CpuFacts:
    """Return what a worker's thread used: all but a part of sync, in which it slept."""
    seconds = float(totals.sum())
    sync = float(totals[Phase.SYNC])
    training = round(0.985 * (seconds - 0.8 * sync), 6)
    communication = round(0.3 * sync, 6)
    return CpuFacts(
        process_seconds=training + communication,
        thread_seconds={"training": training, "communication": communication, "other": 0.0},
        training_runqueue_seconds=round(0.004 * seconds * float(random.uniform(0.5, 1.5)), 6),
        other_seconds=round(0.003 * seconds * float(random.uniform(0.5, 1.5)), 6),
        cores=1,
        peak_memory_bytes=2**29 + 4096 * worker,
        frequency_mhz=round(CLOCK_MHZ + float(random.normal(0, 8)), 3),
    )


def _graphics(seconds: float, node: float, random: np.random.Generator) -> GpuFacts:
    """Return what a GPU used: its clock is higher by the share `node`, its power less."""
    watts = (1 - node) * (640 + float(random.normal(0, 5)))
    return GpuFacts(
        utilization=0.97,
        memory_bytes=6 * 2**30,
        power_watts=watts,
        energy_joules=watts * float(seconds),
        power_limit_watts=700.0,
        sm_clock_mhz=15.0 * round((1 + node) * 117),
        throttle_reasons=["sw_power_cap"] if random.spawn(1)[0].uniform() < 0.2 else [],
        other_memory_bytes=2**20,
        peak_allocated_bytes=4 * 2**30,
    )


def _luck(*parts: object) -> float:
    """Return a number of about -2 to 2 that depends on these parts alone, as a training does on its seed."""
    return int(digest(" ".join(map(str, parts)))[:8], 16) / 2**30 - 2


def _training_of(config: RunConfig) -> tuple[object, ...]:
    """Return what a training depends on: up to 2 workers sum in one order, with more each in its own."""
    framework = config.framework if config.workers > 2 else "any"
    every = config.strategy.synchronise_every
    return (config.seed, config.workers, framework, *([every] if every > 1 and config.workers > 1 else []))


def loss_of(config: RunConfig, epoch: int) -> float:
    """Return a loss that falls; frameworks agree in it to rounding, on up to 2 workers to the bit."""
    falling = 0.06 + 0.5 * np.exp(-(epoch + 1) / 3) * (1 + 0.02 * _luck(config.seed, config.workers))
    return float(np.float32(falling * (1 + 1e-7 * _luck(*_training_of(config), epoch))))


def _iou(config: RunConfig, final: float, after: int, random: np.random.Generator) -> float:
    progress = 1 - 0.4 * np.exp(-after / 2.5)
    if config.workers > 1:
        final -= RARE_LOSS * (config.strategy.synchronise_every - 1)
    return float(progress * (final + 0.003 * _luck(config.seed) + 0.0006 * _luck(*_training_of(config))))


def evaluation(config: RunConfig, epochs: Sequence[Epoch], iou: float, images: int = TEST_IMAGES) -> Result:
    """Return the evaluation after these epochs: the foreground of the masks is the same in every one."""
    foreground = FOREGROUND_PIXELS
    positive = round(foreground * 2 * iou / (1 + iou))
    false_positive = min(max(0, round(positive / iou) - foreground) if iou else 0, PIXELS - foreground)
    return counted(config, epochs, positive, false_positive, images)


def counted(
    config: RunConfig, epochs: Sequence[Epoch], positive: int, false_positive: int, images: int = TEST_IMAGES
) -> Result:
    """Return the evaluation with these counts of pixels."""
    union = FOREGROUND_PIXELS + false_positive
    return Result(
        epochs=len(epochs),
        training_seconds=sum(epoch.seconds for epoch in epochs),
        images=images,
        true_positive=positive,
        false_positive=false_positive,
        false_negative=FOREGROUND_PIXELS - positive,
        true_negative=PIXELS - union,
        iou=positive / union,
        dice=2 * positive / (positive + union),
        image_iou=positive / union,
        seconds=0.8,
        weights_sha256=digest(f"weights {_training_of(config)} after {len(epochs)}"),
    )


def _header(config: RunConfig, truth: Honest, begun: datetime) -> Header:
    return make_header(
        config,
        started_utc=begun.isoformat(timespec="seconds"),
        commit=truth.commit,
        versions=VERSIONS,
        job=dict(truth.job or {}),
        train_images=TRAIN_IMAGES,
        test_images=TEST_IMAGES,
        workers=_workers(config.workers, truth),
    )


def _workers(workers: int, truth: Honest) -> list[WorkerFacts]:
    facts = make_workers(workers, device=H100 if truth.is_gpu else "cpu", host=truth.hosts[0])
    each = -(-workers // len(truth.hosts))
    return [
        worker.model_copy(
            update={"host": truth.hosts[worker.worker // each], "environment": {"OMP_NUM_THREADS": "1"}}
        )
        for worker in facts
    ]


def _startup(workers: int, random: np.random.Generator) -> Startup:
    def part(seconds: float) -> list[float]:
        return [round(seconds * float(random.uniform(0.95, 1.05)), 3) for _ in range(workers)]

    return Startup(
        imports_seconds=part(1.4),
        join_seconds=part(0.06),
        data_seconds=part(0.12),
        model_seconds=part(0.9),
        distribution_seconds=part(0.02),
        warm_up_step_seconds=part(0.15),
    )


def _probe(workers: int) -> Probe | None:
    """Return the times of the group's own all-reduce, up to messages larger than the gradients."""
    if workers == 1:
        return None
    probe = make_probe(bandwidth=1e9 * workers / (workers - 1))
    return probe.model_copy(update={"median_seconds": [1.1 * seconds for seconds in probe.minimum_seconds]})

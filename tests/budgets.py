"""Runs whose time is known part by part: phases per step in, records with budgets out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.records import Measured, make_point, make_workers, write_run
from unet_scaling.measure.ping_pong import HostPair
from unet_scaling.study.config import Framework
from unet_scaling.study.record_lines import PHASE_COLUMNS, Budget, CpuFacts, Epoch, Probe, WorkerFacts

STEPS = 6
# To average takes some time on any clock.
LEAST_SYNC_SECONDS = 1e-9
QUIET = {"communication": 0.0, "runqueue": 0.0}


@dataclass(frozen=True)
class Steps:
    """Seconds of each phase of a step: one number for all workers, or one for each.

    `sync` of a worker is wire and what it waits for others beyond it. `late` is what one worker alone takes
    at the end of an epoch. `contended` are CPU seconds of helper threads, of other processes and of
    waiting for a core, of a step.
    """

    data_wait: float | Sequence[float] = 0.010
    host_to_device: float | Sequence[float] = 0.002
    forward: float | Sequence[float] = 0.030
    backward: float | Sequence[float] = 0.050
    sync: float | Sequence[float] = 0.0
    optimizer: float | Sequence[float] = 0.006
    rest: float | Sequence[float] = 0.001
    wire: float = 0.0
    contended: Mapping[str, float] = field(default_factory=lambda: QUIET)
    cores: int = 1
    frequency_mhz: float | None = 3000.0

    def of_worker(self, phase: str, worker: int) -> float:
        value = getattr(self, phase)
        return float(value[worker] if isinstance(value, Sequence) else value)

    def seconds(self, worker: int) -> float:
        return sum(self.of_worker(name.removesuffix("_seconds"), worker) for name in PHASE_COLUMNS)


def write_budget_run(
    folder: Path,
    framework: Framework = "pytorch_native",
    workers: int = 1,
    repeat: int = 1,
    steps: Steps | None = None,
    *,
    pace: float = 1.0,
    probe: Probe | None = None,
    facts: Sequence[WorkerFacts] | None = None,
    budget: str | None = "on",
    about: Mapping[str, object] | None = None,
    stalled: Mapping[int, Steps] | None = None,
    **named: Any,
) -> Path:
    """Write a run whose steps take this long, times `pace`. `budget` None: none could be known.

    `about` replaces fields of the header; `stalled` the steps of these epochs; `named` are options and label.
    """
    each = steps or Steps()
    point = make_point(framework, workers, repeat, **named)
    images = STEPS * workers * point.training.batch_per_worker * point.training.accumulate
    epochs = [
        _epoch(
            number,
            (stalled or {}).get(number, each),
            workers,
            images,
            pace * (4 if number == 0 else 1),
            budget,
        )
        for number in range(point.training.epochs)
    ]
    header = {"workers": list(facts or make_workers(workers, cores_each=each.cores)), **(about or {})}
    measured = Measured(epochs, probe)
    return write_run(folder, framework, workers, repeat, header=header, measured=measured, **named)


def make_probe(latency: float = 1e-4, bandwidth: float = 1e9) -> Probe:
    """A network of this latency, seconds, and bandwidth, bytes a second."""
    sizes = [4**power for power in range(1, 13)]
    times = [latency + size / bandwidth for size in sizes]
    return Probe(bytes=sizes, repeats=[20] * len(sizes), median_seconds=times, minimum_seconds=times)


def make_pair(hosts: tuple[str, str], latency: float, seconds: float, size: int = 2**20) -> HostPair:
    """What a ping-pong between two hosts measures where a message of this size takes so long, one way."""
    return HostPair(
        ranks=(0, 1),
        hosts=hosts,
        medium="shared memory" if hosts[0] == hosts[1] else "network",
        bytes=[1, size],
        repeats=[3, 3],
        median_seconds=[latency, seconds],
        minimum_seconds=[latency, seconds],
        latency_seconds=latency,
        bytes_per_second=size / (seconds - latency),
    )


def _epoch(number: int, steps: Steps, workers: int, images: int, pace: float, budget: str | None) -> Epoch:
    scale = STEPS * pace
    seconds = [scale * steps.seconds(worker) for worker in range(workers)]
    return Epoch(
        epoch=number,
        seconds=max(seconds),
        worker_seconds=seconds,
        images=images,
        steps=STEPS,
        loss=0.5,
        learning_rate=0.001,
        warmup=number == 0,
        budget=_budget(steps, workers, scale) if budget else None,
        no_budget=None if budget else "where sync begins is not known",
        cpu=[_processor(steps, worker, scale) for worker in range(workers)],
    )


def _budget(steps: Steps, workers: int, scale: float) -> Budget:
    phases = {
        name: [scale * steps.of_worker(name.removesuffix("_seconds"), worker) for worker in range(workers)]
        for name in PHASE_COLUMNS
    }
    if workers > 1:
        phases["sync_seconds"] = [max(each, LEAST_SYNC_SECONDS) for each in phases["sync_seconds"]]
    return Budget.model_validate(phases | {"wire_seconds": scale * steps.wire})


def _processor(steps: Steps, worker: int, scale: float) -> CpuFacts:
    whole = scale * steps.seconds(worker)
    communication = scale * steps.contended["communication"]
    training = min(0.9 * whole, steps.cores * whole - communication)
    runqueue = steps.contended.get("runqueue")  # a kernel may not tell
    other = steps.contended.get("other")  # nor do older records
    other_workers = steps.contended.get("other_workers")
    return CpuFacts(
        process_seconds=training + communication,
        thread_seconds={"training": training, "communication": communication, "other": 0.0},
        training_runqueue_seconds=None if runqueue is None else scale * runqueue,
        other_seconds=None if other is None else scale * other,
        other_workers_seconds=None if other_workers is None else scale * other_workers,
        cores=steps.cores,
        peak_memory_bytes=2**28 + worker,
        frequency_mhz=steps.frequency_mhz,
    )

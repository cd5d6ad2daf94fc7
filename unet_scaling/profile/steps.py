"""Time the product's own training step in one process on the cores of one worker, without a framework."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from torch import nn

from unet_scaling.data.image_source import Batch
from unet_scaling.measure.phases import PhaseClock, Seconds, phase_clock
from unet_scaling.measure.timing import synchronized_seconds
from unet_scaling.profile.results import Samples, Steps
from unet_scaling.profile.subject import Subject
from unet_scaling.study.config import RunConfig
from unet_scaling.study.measurements import Phase
from unet_scaling.task.loading import load_task
from unet_scaling.training import Step, build_model, build_optimizer, local_step

# A step of a large batch on a CPU may take most of a minute.
FEWEST_STEPS = 2
# More make no figure better.
MOST_STEPS = 50


def default_device() -> torch.device:
    """Return the first GPU that this process sees, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@contextmanager
def cores_of_one_worker(count: int) -> Iterator[None]:
    """Keep all threads of this process, and the processes it starts, on its first `count` cores."""
    allowed = os.sched_getaffinity(0)
    threads = torch.get_num_threads()
    _stay_on(set(sorted(allowed)[:count]))
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _stay_on(allowed)


def _stay_on(cores: set[int]) -> None:
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # the thread has ended meanwhile
            os.sched_setaffinity(int(task.name), cores)


def plain_step(config: RunConfig, device: torch.device) -> Step:
    """Return the training step of a process that has nobody to average gradients with."""
    task = load_task(config)
    model = build_model(task, device, nn.BatchNorm2d).train()
    return local_step(model, build_optimizer(task, model), task)


def time_steps(
    subject: Subject, step: Step, device: torch.device, choose: Callable[[float], int], seconds: float
) -> Steps:
    """Take steps that load in line, then steps with loader processes, each for half of `seconds`.

    `choose` returns the number of loader processes for a step whose computing takes so many seconds.
    """
    in_line = _parts(_phases(subject, step, device, 0, seconds / 2))
    processes = choose(in_line["compute"].median)
    prefetched = _phases(subject, step, device, processes, seconds / 2).sum(axis=1)
    return Steps(
        device=device_name(device),
        threads=torch.get_num_threads(),
        loader_processes=processes,
        prefetched=Samples.of(_mean_of_turns(prefetched, processes)),
        **in_line,
    )


def _parts(phases: Seconds) -> dict[str, Samples]:
    """Return the parts of steps [steps, phases] that load in line, by the names of `Steps`."""
    data_wait = phases[:, Phase.DATA_WAIT]
    host_to_device = phases[:, Phase.HOST_TO_DEVICE]
    in_line = phases.sum(axis=1)
    return {
        "data_wait": Samples.of(data_wait),
        "host_to_device": Samples.of(host_to_device),
        "compute": Samples.of(in_line - data_wait - host_to_device),
        "in_line": Samples.of(in_line),
    }


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _mean_of_turns(seconds: Seconds, processes: int) -> Seconds:
    """Average over turns: loader processes deliver in turn, so that single steps come in bursts."""
    per_turn = max(1, processes)
    turns = len(seconds) // per_turn
    means: Seconds = seconds[: turns * per_turn].reshape(turns, per_turn).mean(axis=1)
    return means


def _phases(subject: Subject, step: Step, device: torch.device, processes: int, seconds: float) -> Seconds:
    """Return the phases [steps, phases]; the first turn, for which batches may lie ready, is left out."""
    warm_up_steps = max(1, processes)
    fewest = warm_up_steps + max(FEWEST_STEPS, processes)
    most = fewest + MOST_STEPS
    clock = phase_clock(step.model, steps=1, passes=1, device=device)
    batches = subject.run_data(device, processes, most).steps(0, clock)
    end = time.perf_counter() + seconds
    taken: list[Seconds] = []
    while len(taken) < fewest or (len(taken) < most and time.perf_counter() < end):
        taken.append(_one_step(step, batches, clock, device))
    clock.close()
    return np.array(taken[warm_up_steps:])


def step_seconds(subject: Subject, step: Step, device: torch.device, seconds: float) -> list[float]:
    """Return the seconds of steps that load in line, taken for so long after one that warms up."""
    clock = phase_clock(step.model, steps=1, passes=1, device=device)
    batches = subject.run_data(device, 0, 1 + MOST_STEPS).steps(0, clock)
    _one_step(step, batches, clock, device)
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while not taken or (len(taken) < MOST_STEPS and time.perf_counter() < end):
        taken.append(float(_one_step(step, batches, clock, device).sum()))
    clock.close()
    return taken


def _one_step(
    step: Step, batches: Iterator[Iterator[Batch]], clock: PhaseClock, device: torch.device
) -> Seconds:
    clock.begin()
    begin = synchronized_seconds(device)
    clock.resume(begin)
    step.take(next(batches), clock)
    clock.next_step()
    phases: Seconds = clock.seconds(synchronized_seconds(device) - begin)[0]
    return phases

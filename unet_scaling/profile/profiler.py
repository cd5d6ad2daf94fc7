"""Profile the input of a study: the seconds of loading by stage, and what loader processes can hide."""

import os
from dataclasses import dataclass

import torch

from unet_scaling.profile.findings import conclude, processes_to_try
from unet_scaling.profile.results import (
    LOADING_NAMES,
    HostCores,
    LoadingName,
    Measurements,
    Profile,
    Samples,
    Steps,
    Throughput,
)
from unet_scaling.profile.stages import time_stages
from unet_scaling.profile.steps import (
    cores_of_one_worker,
    default_device,
    plain_step,
    time_steps,
)
from unet_scaling.profile.subject import Subject, open_subject
from unet_scaling.profile.throughput import counts_to_try, measure_throughput
from unet_scaling.study.config import RunConfig, StudyConfig
from unet_scaling.study.errors import UserError

# Shares of the time; throughput is measured three times.
STAGES_SHARES: dict[LoadingName, float] = {"decode": 0.2, "cache": 0.1}
THROUGHPUT_SHARE = 0.4
STEPS_SHARE = 0.3


@dataclass(frozen=True)
class ProfileOptions:
    """The options of the command line; an empty one is chosen from the study and this machine."""

    samples: int = 128
    seconds: float = 60
    workers_per_host: int | None = None


def profile_study(study: StudyConfig, options: ProfileOptions) -> Profile:
    """Measure for about `options.seconds` on this machine.

    Raises UserError: 65 for data that do not match their manifest, 2 for options that cannot be met.
    """
    device = default_device()
    host = divide_host(study, options.workers_per_host, device)
    with open_subject(study, options.samples) as subject:
        measured = _measure(study.configs()[0], subject, host, device, options.seconds)
    return Profile(**vars(measured), conclusions=conclude(measured))


def _measure(
    config: RunConfig, subject: Subject, host: HostCores, device: torch.device, seconds: float
) -> Measurements:
    with cores_of_one_worker(host.cores_per_worker):
        stages = _time_stages(subject, device, seconds)
    counts, notes = counts_to_try(subject, host.cores)
    throughput = measure_throughput(subject, counts, THROUGHPUT_SHARE * seconds)
    with cores_of_one_worker(host.cores_per_worker):
        steps = _time_steps(subject, device, host, throughput, STEPS_SHARE * seconds)
    if device.type == "cpu":
        notes.append("steps are those of this CPU; run this where the training will run, for its device")
    return Measurements(config, host, stages, throughput, steps, [*subject.notes, *notes])


def _time_stages(
    subject: Subject, device: torch.device, seconds: float
) -> dict[LoadingName, dict[str, Samples]]:
    return {
        loading: time_stages(subject, loading, device, STAGES_SHARES[loading] * seconds)
        for loading in LOADING_NAMES
    }


def _time_steps(
    subject: Subject,
    device: torch.device,
    host: HostCores,
    throughput: list[Throughput],
    seconds: float,
) -> Steps:
    batch = subject.config.training.batch_per_worker

    def choose(compute_seconds: float) -> int:
        return processes_to_try(throughput, host, batch / compute_seconds)

    return time_steps(subject, plain_step(subject.config, device), device, choose, seconds)


def divide_host(study: StudyConfig, workers_per_host: int | None, device: torch.device) -> HostCores:
    """Divide this host's cores among its workers, by default the study's largest number that fits.

    A worker needs a core, and a GPU where there are any. Raises UserError (2) for more workers than cores.
    """
    cores = len(os.sched_getaffinity(0))
    room = torch.cuda.device_count() if device.type == "cuda" else cores
    fitting = [workers for workers in study.workers if workers <= room]
    workers = workers_per_host or max(fitting, default=1)
    if workers > cores:
        raise UserError(f"--workers-per-host: found {workers}; this machine has {cores} cores, one for each")
    return HostCores(cores=cores, workers_per_host=workers, cores_per_worker=cores // workers)

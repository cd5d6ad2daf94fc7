"""Profile the input of a study: where the time of loading goes, and how much of it a loader can hide."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from unet_scaling.profile.findings import conclude, loaders_to_try
from unet_scaling.profile.loaders import counts_to_try, time_loader_counts
from unet_scaling.profile.passes import time_loading, watch_loading
from unet_scaling.profile.results import (
    Host,
    LoaderCount,
    Loading,
    Measured,
    Profile,
    Steps,
    Threads,
)
from unet_scaling.profile.show import show
from unet_scaling.profile.steps import cores_of_one_worker, plain_training, time_steps, usual_device
from unet_scaling.profile.subject import Subject, open_subject
from unet_scaling.profile.trace import write_trace
from unet_scaling.study.config import StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.files import write_atomically

# Shares of the time: what is measured thrice needs most.
DECODE_SHARE, CACHE_SHARE, LOADERS_SHARE, STEPS_SHARE = 0.2, 0.1, 0.4, 0.3
PLAIN_WIDTH = 130


@dataclass(frozen=True)
class Options:
    """What the command line asks for; empty means chosen from the study and this machine."""

    samples: int = 128
    seconds: float = 60
    workers_per_host: int | None = None
    processes: tuple[int, ...] = ()
    trace: Path | None = None
    json: Path | None = None


def profile_study(study: StudyConfig, options: Options) -> Profile:
    """Measure about `options.seconds` long on this machine; reads images, and changes no file of theirs.

    Raises UserError: 65 for data that do not match their manifest, 2 for options that cannot be met.
    """
    for name in ("trace", "json"):
        _require_writable(name, getattr(options, name))
    device = usual_device()
    host = host_of(study, options.workers_per_host, device)
    with open_subject(study, options.samples) as subject:
        measured = _measure(subject, options, device, host)
    return Profile.model_validate({**dict(measured), "verdict": conclude(measured)})


def print_profile(profile: Profile, options: Options) -> None:
    """Tables on standard output, and the JSON file where one was asked for."""
    terminal = sys.stdout.isatty()
    show(profile, Console(highlight=False, soft_wrap=True, width=None if terminal else PLAIN_WIDTH))
    if options.json is not None:
        write_atomically(options.json, profile.model_dump_json(indent=1) + "\n")
    for path in filter(None, (options.json, options.trace)):
        print(f"written: {path}")


def host_of(study: StudyConfig, workers_per_host: int | None, device: torch.device) -> Host:
    """This host's cores, shared by as many workers as said, or by the largest number of the study that fits.

    A worker needs a GPU where there are any, and a core. Raises UserError (2) for more than cores.
    """
    cores = len(os.sched_getaffinity(0))
    room = torch.cuda.device_count() if device.type == "cuda" else cores
    fitting = [workers for workers in study.workers if workers <= room]
    workers = workers_per_host or max(fitting, default=1)
    if not 1 <= workers <= cores:
        raise UserError(
            f"--workers-per-host: found {workers}; this machine gives {cores} cores, one for each"
        )
    return Host(cores=cores, workers_per_host=workers, cores_per_worker=cores // workers)


def _measure(subject: Subject, options: Options, device: torch.device, host: Host) -> Measured:
    # Before anything computes: the threads that torch itself starts are no loader's.
    threads = watch_loading(subject)
    with cores_of_one_worker(host.cores_per_worker):
        loadings = [
            time_loading(subject, "decode", device, DECODE_SHARE * options.seconds),
            time_loading(subject, "cache", device, CACHE_SHARE * options.seconds),
        ]
    counts, notes = counts_to_try(subject, host.cores, options.processes)
    loaders = time_loader_counts(subject, counts, LOADERS_SHARE * options.seconds)
    training = plain_training(subject.config, device)
    batch = subject.config.training.batch_per_worker
    steps = time_steps(
        subject,
        training,
        host.cores_per_worker,
        lambda step_seconds: loaders_to_try(loaders, host, batch / step_seconds),
        STEPS_SHARE * options.seconds,
    )
    if options.trace is not None:
        write_trace(options.trace, subject, training, steps.measured_batch)
    notes = [*subject.notes, *notes, *_notes(loadings, steps)]
    return _gathered(subject, host, loadings, threads, loaders, steps, notes)


def _gathered(
    subject: Subject,
    host: Host,
    loadings: list[Loading],
    threads: Threads,
    loaders: list[LoaderCount],
    steps: Steps,
    notes: list[str],
) -> Measured:
    data = subject.config.data
    return Measured(
        study=subject.config.study,
        loading="decode" if data.loading == "decode" else "cache",
        batch=steps.batch,
        image_height=data.image_height,
        image_width=data.image_width,
        channels=data.channels,
        host=host,
        loadings=loadings,
        threads=threads,
        loader_counts=loaders,
        steps=steps,
        notes=notes,
    )


def _notes(loadings: list[Loading], steps: Steps) -> Iterator[str]:
    """What is left out, and why."""
    for loading in loadings:
        if loading.cold is None:
            yield (
                f"{loading.loading}: no cold figures, for the page cache could not be emptied of these files"
                " (a file system in memory, or another process has them mapped)"
            )
    if steps.device == "cpu":
        yield "steps are those of this CPU; run this where the training will run, for its device"


def _require_writable(option: str, path: Path | None) -> None:
    """Before a minute of work, not after it."""
    if path is None:
        return
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"--{option} {path}: cannot be written; name a file in a folder that is there")

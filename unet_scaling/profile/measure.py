"""Time a study's input on this machine: its stages, and steps without and with loader processes.

python -m unet_scaling.profile.measure SECONDS CORES < study.json   times steps alone, as a Probed in JSON
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unet_scaling.base.errors import UserError, run_program
from unet_scaling.base.progress import progress
from unet_scaling.data.batches import PREFETCHED_BATCHES, ImageData, ImageSource, to_floats, transfer
from unet_scaling.data.folder import Manifest, read_manifest
from unet_scaling.data.images import (
    BUILDING_PREFIX,
    CachedImages,
    DecodedImages,
    Verification,
    build_cache,
    collate,
    convert_pair,
    decode_pair,
    default_cache_root,
    fit_pair,
    open_cache,
    or_not_kept,
    pair_bytes,
    read_pair,
)
from unet_scaling.data.order import Indices, Split, epoch_order, split
from unet_scaling.format.record_lines import Phase, Probed
from unet_scaling.group.group import single_worker
from unet_scaling.group.rendezvous import SHARED_MEMORY
from unet_scaling.measure.epoch_meter import PartClock, Seconds, phase_clock, synchronized_seconds
from unet_scaling.profile.findings import (
    LOADING_NAMES,
    STAGES,
    LoadingName,
    Profile,
    Samples,
    Steps,
    loading_of,
)
from unet_scaling.study.config import RunConfig, StudyConfig
from unet_scaling.training import Step, build_model, build_optimizer, load_task

# Shares of the time; the rest goes to the steps.
STAGES_SHARES: dict[LoadingName, float] = {"decode": 0.2, "cache": 0.1}
# Tables of which an axis is noted.
PROFILED_TABLES = ("data", "model", "training")
# More processes rarely help one worker.
MOST_PROCESSES = 32
# A step of a large batch on a CPU may take most of a minute; more than the most make no figure better.
FEWEST_STEPS = 2
MOST_STEPS = 50
# A probe takes one batch to warm up and repeats one: steps take as long whatever the images are.
BATCHES_SAMPLED = 2


def profile_study(
    study: StudyConfig, samples: int = 128, seconds: float = 60, workers_per_host: int | None = None
) -> Profile:
    """Measure for about `seconds` on this machine, with so many images.

    The cores are divided among `workers_per_host`, by default the study's largest number that fits: a worker
    needs a core, and a GPU where there are any. Raises UserError: 65 for data that do not match their
    manifest, 2 for options that cannot be met.
    """
    device = default_device()
    cores = len(os.sched_getaffinity(0))
    room = torch.cuda.device_count() if device.type == "cuda" else cores
    workers = workers_per_host or max((each for each in study.workers if each <= room), default=1)
    if workers > cores:
        raise UserError(f"--workers-per-host: found {workers}; this machine has {cores} cores, one for each")
    own_cores = cores // workers
    with open_subject(study, samples) as subject, cores_of_one_worker(own_cores):
        stages = {
            loading: time_stages(subject, loading, device, STAGES_SHARES[loading] * seconds)
            for loading in LOADING_NAMES
        }
        counts, notes = counts_to_try(subject, own_cores)
        left = seconds * (1 - sum(STAGES_SHARES.values()))
        steps = time_steps(subject, plain_step(subject.config, device), device, counts, left)
        if device.type == "cpu":
            notes.append("steps are those of this CPU; run this where the training will run, for its device")
        return Profile(study.configs()[0], cores, workers, stages, steps, [*subject.notes, *notes])


@dataclass(frozen=True)
class Subject:
    """A sample of the training images, with their cache, and how the study trains on them."""

    config: RunConfig
    manifest: Manifest
    cache_root: Path
    batches: Indices
    """Row numbers in the manifest, [n, batch], in random order."""
    notes: tuple[str, ...]

    @cached_property
    def decoded(self) -> DecodedImages:
        return DecodedImages(self.manifest, self.config.data)

    @cached_property
    def cached(self) -> CachedImages:
        return open_cache(self.manifest, self.config.data, self.cache_root)

    @property
    def source(self) -> ImageSource:
        """Return the images as the study loads them; those that it keeps on a device come from the cache."""
        return self.decoded if loading_of(self.config) == "decode" else self.cached

    def run_data(self, device: torch.device, loader_processes: int, steps: int) -> ImageData:
        """Return the data of a run of one worker, with at least so many steps in its epoch."""
        images = len(self.manifest.pairs)
        passes = -(-steps * self.batches.shape[1] // images)
        config = _changed(self.config, "data", loader_workers=loader_processes, passes_per_epoch=passes)
        everything = Split(train=np.arange(images), test=np.arange(0))
        group = single_worker(device)
        return ImageData(self.source, Verification({}, ""), everything, config, group, self.manifest.sha256)


@contextmanager
def open_subject(study: StudyConfig, samples: int) -> Iterator[Subject]:
    """Sample at least `samples` images of the study's first configuration, in whole batches.

    They are the training images that come first in the first epoch, decoded into a cache of their own, which
    is removed at the end. Raises UserError (65) for a folder that does not match its manifest.
    """
    config = study.configs()[0]
    if config.has_own_task:
        raise UserError(
            f"task.file: found {config.task.file}; only the images of the built-in task are profiled"
        )
    config = _changed(one_process(config), "model", batch_norm="local")
    manifest = read_manifest(config.data.manifest_path)
    manifest.require_unchanged(Path(config.data.folder), config.data.manifest_path)
    manifest.require_options(config.data)
    batch = config.training.batch_per_worker
    train = split(len(manifest.pairs), config.data.test_share, config.data.split_seed).train
    first = epoch_order(train, 1, config.seed, epoch=0)[: max(samples, batch)]
    sample = Manifest(foreground=manifest.foreground, pairs=[manifest.pairs[row] for row in sorted(first)])
    order = epoch_order(np.arange(len(sample.pairs)), 1, config.seed, epoch=0)
    whole_batches = np.resize(order, (-(-samples // batch), batch))  # repeats where they do not fill the last
    # On the disk of the real cache; what a killed profile leaves is removed with builds.
    root = default_cache_root()
    with or_not_kept(root):
        root.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=root, prefix=BUILDING_PREFIX)
    with temporary as name:
        build_cache(sample, config.data, Path(name))
        yield Subject(config, sample, Path(name), whole_batches, tuple(_notes_on_axes(study)))


def one_process(config: RunConfig) -> RunConfig:
    """Return a run of one plain process: nothing is accumulated, shared or read from a file."""
    alone = config.model_copy(update={"workers": 1})
    return _changed(alone, "training", initial_weights=None, accumulate=1, plays=None)


def _changed(config: RunConfig, table: str, **options: Any) -> RunConfig:  # noqa: ANN401
    changed = getattr(config, table).model_copy(update=options)
    return config.model_copy(update={table: changed})


def _notes_on_axes(study: StudyConfig) -> Iterator[str]:
    """Yield a note for each option of which only the first value is profiled."""
    for table in PROFILED_TABLES:
        for key, values in sorted(getattr(study, table).items()):
            if isinstance(values, list) and len(values) > 1:
                others = ", ".join(map(str, values[1:]))
                yield (
                    f"{table}.{key} is an axis: profiled is {values[0]}, not {others};"
                    f" --set {table}.{key}={values[1]} profiles another"
                )


def time_stages(
    subject: Subject, loading: LoadingName, device: torch.device, seconds: float
) -> dict[str, Samples]:
    """Return the seconds per image of every stage, over all images or for about so many seconds."""
    # Takes what only the first batch costs. Building the cache has read all files into the page cache.
    load_batch(subject, loading, subject.batches[0], PartClock(device))
    clock = PartClock(device)
    end = time.perf_counter() + seconds
    for indices in progress(subject.batches, len(subject.batches), f"stages of {loading}"):
        load_batch(subject, loading, indices, clock)
        if time.perf_counter() > end:
            break
    return {name: Samples.of(clock.seconds[name]) for name in STAGES if name in clock.seconds}


def load_batch(
    subject: Subject, loading: LoadingName, indices: Indices, clock: PartClock
) -> tuple[Tensor, Tensor]:
    """Load a batch stage by stage; equal to `to_device` of what `gather` returns."""
    data = subject.config.data
    if loading == "decode":
        loaded = []
        for index in indices:
            pair = subject.manifest.pairs[index]
            with clock.part("read"):
                contents = read_pair(data, pair)
            with clock.part("decode"):
                pixels = decode_pair(data, pair, *contents)
            with clock.part("convert"):
                converted = convert_pair(data, pair, *pixels)
            with clock.part("resize"):
                loaded.append(fit_pair(data, *converted))
        with clock.part("collate", len(indices)):
            images, masks = collate(loaded)
    else:
        with clock.part("gather", len(indices)):
            images, masks = subject.cached.gather(indices)
    if clock.device.type != "cpu":  # on a CPU nothing is transferred: no stage rather than one of 0 seconds
        with clock.part("host to device", len(indices)):
            images, masks = transfer(images, masks, clock.device)
    with clock.part("to floats", len(indices)):
        return to_floats(images, masks, subject.config.training.channels_last)


def counts_to_try(subject: Subject, cores: int) -> tuple[list[int], list[str]]:
    """Return 1, 2, 4, ... up to all cores of a worker but one, with notes on what is left out.

    Only images that are decoded at every step take loader processes. Left out is what shared memory has no
    room for: where it is full, a process dies of a bus error. Batches may fill half of it.
    """
    if loading_of(subject.config) != "decode":
        return [], []
    most = min(max(1, cores - 1), MOST_PROCESSES)
    counts = sorted({*(2**power for power in range(most.bit_length())), most})
    batch_bytes = subject.batches.shape[1] * pair_bytes(subject.config.data)
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    room = int(free // 2 // (batch_bytes * (PREFETCHED_BATCHES + 1)))
    if most <= room:
        return counts, []
    note = f"{SHARED_MEMORY} has room for the batches of {room} loader processes: more were not tried"
    return [count for count in counts if count <= room], [note]


def default_device() -> torch.device:
    """Return the first GPU that this process sees, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


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
    return Step(task, model, build_optimizer(task, model))


def time_steps(
    subject: Subject, step: Step, device: torch.device, counts: Sequence[int], seconds: float
) -> Steps:
    """Take steps that load in line, then with each of these numbers of loader processes, for equal times."""
    share = seconds / (1 + len(counts))
    end = time.perf_counter() + seconds
    phases = step_phases(subject, step, device, 0, share)
    in_line = phases.sum(axis=1)
    data_wait = phases[:, Phase.DATA_WAIT]
    host_to_device = phases[:, Phase.HOST_TO_DEVICE]
    prefetched: dict[int, Samples] = {}
    for processes in progress(counts, len(counts), "loader processes"):
        if prefetched and time.perf_counter() > end:
            break  # many processes take many steps before they are steady
        taken = step_phases(subject, step, device, processes, share).sum(axis=1)
        # Loader processes deliver in turn, so that single steps come in bursts: the mean of a turn counts.
        turns = len(taken) // processes
        prefetched[processes] = Samples.of(taken[: turns * processes].reshape(turns, processes).mean(axis=1))
    return Steps(
        device=device_name(device),
        threads=torch.get_num_threads(),
        data_wait=Samples.of(data_wait),
        host_to_device=Samples.of(host_to_device),
        compute=Samples.of(in_line - data_wait - host_to_device),
        in_line=Samples.of(in_line),
        prefetched=prefetched,
    )


def step_phases(
    subject: Subject, step: Step, device: torch.device, processes: int, seconds: float
) -> Seconds:
    """Return the phases [steps, phases]; the first turn, for which batches may lie ready, is left out."""
    warm_up_steps = max(1, processes)
    fewest = warm_up_steps + max(FEWEST_STEPS, processes)
    most = fewest + MOST_STEPS
    clock = phase_clock(step.model, steps=1, passes=1, device=device)
    stream = subject.run_data(device, processes, most).steps(0, clock)
    end = time.perf_counter() + seconds
    taken: list[Seconds] = []
    while len(taken) < fewest or (len(taken) < most and time.perf_counter() < end):
        clock.begin()
        begin = synchronized_seconds(device)
        clock.resume(begin)
        step.take(next(stream), clock)
        clock.next_step()
        taken.append(clock.seconds(synchronized_seconds(device) - begin)[0])
    clock.close()
    return np.array(taken[warm_up_steps:])


def main() -> None:
    """Time some steps. Raises UserError (65) for a folder that does not match its manifest."""
    study = StudyConfig.model_validate_json(sys.stdin.read())
    seconds, cores = float(sys.argv[1]), int(sys.argv[2])
    device = default_device()
    batch = study.configs()[0].training.batch_per_worker
    with cores_of_one_worker(cores), open_subject(study, BATCHES_SAMPLED * batch) as subject:
        step = plain_step(subject.config, device)
        taken = step_phases(subject, step, device, 0, seconds).sum(axis=1).tolist()
    probed = Probed(device=device_name(device), cores=cores, images_per_step=batch, step_seconds=taken)
    print(probed.model_dump_json())


if __name__ == "__main__":
    run_program(main)

"""Training steps of one plain process on the cores of one worker: loading in line, and loading ahead."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from unet_scaling.data.batches import to_device
from unet_scaling.measure.timing import synchronized_seconds
from unet_scaling.profile.loaders import Delivery, deliveries
from unet_scaling.profile.results import Spread, Steps
from unet_scaling.profile.subject import Batches, Subject
from unet_scaling.study.config import RunConfig
from unet_scaling.study.progress import progress
from unet_scaling.training import build_model, build_optimizer

FEWEST_STEPS, MOST_STEPS = 2, 50

Seconds = npt.NDArray[np.float64]


def usual_device() -> torch.device:
    """The first GPU that this process sees, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@contextmanager
def cores_of_one_worker(count: int) -> Iterator[None]:
    """Inside, all threads of this process and the processes it starts stay on its first `count` cores."""
    allowed, threads = os.sched_getaffinity(0), torch.get_num_threads()
    _stay_on(set(sorted(allowed)[:count]))
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _stay_on(allowed)


def _stay_on(cores: set[int]) -> None:
    for task in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(task.name), cores)
        except ProcessLookupError:
            continue  # the thread has ended meanwhile


@dataclass(frozen=True)
class PlainTraining:
    """Forward, backward and Adam of the study's model, without a framework around it."""

    config: RunConfig
    device: torch.device
    model: nn.Module
    optimizer: torch.optim.Optimizer

    def to_device(self, images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        return to_device(images, masks, self.device, self.config.training.channels_last)

    def step(self, images: Tensor, masks: Tensor) -> None:
        """One batch of floats that is on the device."""
        self.optimizer.zero_grad()
        half = self.config.training.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            logits = self.model(images)
        loss = functional.binary_cross_entropy_with_logits(logits.float(), masks)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def now(self) -> float:
        return synchronized_seconds(self.device)


def plain_training(config: RunConfig, device: torch.device) -> PlainTraining:
    """One process has nobody to share batch norm with, and needs no trained weights to take its time."""
    norm = "off" if config.model.batch_norm == "off" else "local"
    plain = config.model_copy(
        update={
            "model": config.model.model_copy(update={"batch_norm": norm}),
            "training": config.training.model_copy(update={"initial_weights": None}),
        }
    )
    model = build_model(plain, device, nn.BatchNorm2d).train()
    return PlainTraining(plain, device, model, build_optimizer(model, plain))


def time_steps(
    subject: Subject, training: PlainTraining, cores: int, choose: Callable[[float], int], seconds: float
) -> Steps:
    """Steps that load in line, then steps for which processes load ahead, each for half of `seconds`.

    `choose` says how many processes, from the seconds of a step without its loading. At least
    FEWEST_STEPS of each are taken, of a smaller batch where whole ones would take longer.
    """
    whole = int(subject.batches.shape[1])
    with cores_of_one_worker(cores):
        batch = _affordable_batch(subject, training, seconds / 2)
        batches = np.ascontiguousarray(subject.batches[:, :batch])
        parts = _in_line(subject, training, batches, seconds / 2)
        processes = choose(float(np.median(parts[:, 1:].sum(axis=1))) * whole / batch)
        ahead = _loading_ahead(subject, training, batches, processes, seconds / 2)
    gather, moved, compute, in_line, overlapped = (
        Spread.of(values).scaled(whole / batch) for values in (*parts.T, parts.sum(axis=1), ahead)
    )
    return Steps(
        device=torch.cuda.get_device_name() if training.device.type == "cuda" else "cpu",
        threads=cores,
        batch=whole,
        measured_batch=batch,
        gather=gather,
        to_device=moved,
        compute=compute,
        in_line=in_line,
        loader_processes=processes,
        overlapped=overlapped,
    )


def _affordable_batch(subject: Subject, training: PlainTraining, seconds: float) -> int:
    """The study's batch, or as many of its images as FEWEST_STEPS and a warm-up can take in this time.

    A compiled model is compiled for one size: it gets the whole batch in any case.
    """
    whole = int(subject.batches.shape[1])
    if training.config.training.compile:
        return whole
    one_image = _in_line(subject, training, subject.batches[:, :1], 0).sum(axis=1).min()
    return int(np.clip(seconds / (FEWEST_STEPS + 1) / one_image, 1, whole))


def _in_line(subject: Subject, training: PlainTraining, batches: Batches, seconds: float) -> Seconds:
    """Seconds [steps, 3] of gathering, bringing to the device and computing; a first step is left out."""
    source, turns, taken = subject.source(), cycle(batches), []
    for _ in _turns_within(seconds, 1 + FEWEST_STEPS, "steps, loading in line"):
        begin = training.now()
        gathered = source.gather(next(turns))
        after_gather = training.now()
        images, masks = training.to_device(*gathered)
        after_transfer = training.now()
        training.step(images, masks)
        taken.append(np.diff([begin, after_gather, after_transfer, training.now()]))
    return np.array(taken[1:])


def _loading_ahead(
    subject: Subject, training: PlainTraining, batches: Batches, processes: int, seconds: float
) -> list[float]:
    """Seconds of a step, each the mean over as many steps as there are processes: these deliver in turn.

    The first such turn, for which batches may have lain ready, is left out.
    """
    turn = max(1, processes)
    stream, taken, begin = deliveries(subject.source(), batches, processes), [], training.now()
    for _ in _turns_within(seconds, 1 + -(-FEWEST_STEPS // turn), "steps, loading ahead"):
        _take(training, islice(stream, turn))
        end = training.now()
        taken.append((end - begin) / turn)
        begin = end
    return taken[1:]


def _take(training: PlainTraining, arrived: Iterator[Delivery]) -> None:
    for delivery in arrived:
        training.step(*training.to_device(delivery.images, delivery.masks))


def _turns_within(seconds: float, fewest: int, label: str) -> Iterator[int]:
    """At least `fewest` turns, and no further one once the time is over."""
    end = time.perf_counter() + seconds
    for turn in progress(range(MOST_STEPS), MOST_STEPS, label):
        if turn >= fewest and time.perf_counter() > end:
            return
        yield turn

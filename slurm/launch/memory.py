"""Say what memory a training step of a study takes on this machine, and which batch fits it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from unet_scaling.base.errors import UserError, required_module
from unet_scaling.format.step_memory import StepMemory
from unet_scaling.group.gpus import visible_gpus
from unet_scaling.group.identity import KEEP_MEMORY
from unet_scaling.study.config import PROJECT, RunConfig


def describe_memory(configs: Sequence[RunConfig]) -> Iterator[str]:
    """Yield two lines for each kind of step, measured by a process of its own for about 10 s.

    Of steps that differ in the batch alone, the largest is told. Raises UserError where not one sample fits.
    """
    required_module("unet_scaling.profile", "--memory")
    if any(config.is_emulated for config in configs):
        raise UserError("--memory: emulated workers take no step; remove [emulation] from the study")
    largest = {_kind(config): config for config in sorted(configs, key=_batch)}
    for config in largest.values():
        yield from _measured(config, memory_share(config))


def memory_share(config: RunConfig) -> float:
    """Return a worker's part of the memory here: a GPU is its own, that of a machine is all workers'."""
    if visible_gpus(1).names:
        return 1.0
    shares = config.training.shared_devices
    return 1 / (config.workers if shares else min(config.workers, len(os.sched_getaffinity(0))))


def _batch(config: RunConfig) -> tuple[int, int]:
    return config.training.batch_per_worker, config.workers


def _kind(config: RunConfig) -> str:
    training = config.training
    options = (training.precision, training.compile, training.channels_last)
    return repr((config.model, config.task, config.data, *options))


def _measured(config: RunConfig, share: float) -> Iterator[str]:
    command = [sys.executable, "-m", "unet_scaling.profile.step_memory", str(share)]
    print("taking steps of growing batches, for about 10 s", file=sys.stderr, flush=True)
    done = subprocess.run(
        command, cwd=PROJECT, env=KEEP_MEMORY | os.environ, input=config.model_dump_json(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        cure = "end other programs, or give this one more memory"
        raise UserError(f"--memory: a step was ended by {name}, as where memory runs out; {cure}")
    if done.returncode:
        raise UserError(f"--memory: {done.stderr.strip().rpartition('error: ')[2]}", done.returncode)
    found = StepMemory.model_validate_json(done.stdout)
    lasting = {
        "weights": found.weight_bytes, "gradients": found.gradient_bytes,
        "optimizer": found.optimizer_bytes, "exchange": found.exchange_bytes,
    }  # fmt: skip
    size = "" if config.has_own_task else f", {config.data.image_width} x {config.data.image_height}"
    again = ", activations computed again" if config.model.activation_checkpointing else ""
    parts = ", ".join(f"{name} {_text(of)}" for name, of in lasting.items())
    yield (
        f"memory of a worker on {found.device}{size}{again}: {parts}, "
        f"activations {_text(found.activation_bytes)} for each {config.sample}"
    )
    tried = ", ".join(f"{_text(each.peak_bytes)} with {each.batch}" for each in found.trials)
    batch, most = config.training.batch_per_worker, found.largest_batch
    foretold = " (foretold from these)" if most > found.trials[-1].batch else ""
    cure = "" if config.has_own_task or again else ", or model.activation_checkpointing = true"
    verdict = (
        f"training.batch_per_worker = {batch} fits"
        if batch <= most
        else f"training.batch_per_worker = {batch} does not fit: use {most} with training.accumulate{cure}"
    )
    yield f"  a step takes {tried}; {_text(found.room_bytes)} hold a batch of {most}{foretold}; {verdict}"


def _text(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"

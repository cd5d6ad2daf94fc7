"""What the memory of one worker's training step is made of, and the largest batch that fits its device.

python -m unet_scaling.profile.step_memory SHARE < config.json   prints a StepMemory as JSON

SHARE is the part of the device that the worker may take, such as 0.5 of a machine that two share.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unet_scaling.base.errors import UserError, run_program
from unet_scaling.data.batches import ImageBatch, RunData, to_device
from unet_scaling.format.step_memory import StepMemory, StepTrial
from unet_scaling.group.group import single_worker, wait_for_device
from unet_scaling.measure.counters import KIBIBYTE, peak_memory_bytes
from unet_scaling.measure.epoch_meter import NO_CLOCK
from unet_scaling.profile.measure import default_device, device_name, one_process
from unet_scaling.study.config import RunConfig
from unet_scaling.training import Step, build_model, build_optimizer, load_task

# Horovod's fusion buffer, of the size that it has by default; DDP's buckets are as large as the gradients.
FUSION_BUFFER_BYTES = 2**27
# Larger batches are foretold by a line through the peaks of those that were tried.
TRIAL_SECONDS = 8
# The rest is for what these steps do not show: buffers of NCCL, evaluation, other programs.
USED_SHARE = 0.9
# Of the largest batch of a GPU, the part to which it is found.
BATCH_PRECISION = 1 / 32
# Where control groups are mounted: version 2, and the memory controller of version 1.
GROUPS = Path("/sys/fs/cgroup")


def measure_step_memory(config: RunConfig, share: float) -> StepMemory:
    """Take steps of growing batches on this device, for some seconds.

    Raises UserError where not even one sample fits.
    """
    device = default_device()
    room = int(USED_SHARE * share * _free_bytes(device))
    task = load_task(one_process(config))
    model = build_model(task, device, nn.BatchNorm2d).train()
    step = Step(task, model, build_optimizer(task, model))
    gradients = _bytes(weight for weight in model.parameters() if weight.requires_grad)
    # Held throughout, as in a run: of the framework that takes more, so that one batch fits both.
    exchange = torch.ones(max(gradients, FUSION_BUFFER_BYTES), dtype=torch.uint8, device=device)
    kept = KeptBytes(model)
    tries = Trials(step, device)
    with torch.autograd.graph.saved_tensors_hooks(kept.keep, lambda tensor: tensor):
        first = tries.take(1)
    # Once more: only now the optimizer has its state.
    first = first and tries.take(1)
    if first is None or first.peak_bytes > room:
        raise UserError(f"one {config.sample} does not fit the {room / 1e9:.2f} GB of {device_name(device)}")
    trials = [first]
    end = time.monotonic() + TRIAL_SECONDS
    while time.monotonic() < end and _foretold(trials, kept.bytes, room) >= 2 * trials[-1].batch:
        tried = tries.take(2 * trials[-1].batch)
        if tried is None:
            break
        trials.append(tried)
    largest = _foretold(trials, kept.bytes, room)
    # On a CPU the system would end this process, or others, instead of refusing.
    if device.type == "cuda" and largest > trials[-1].batch:
        trials += tries.bisect(trials[-1].batch, largest)
        largest = trials[-1].batch
    state = [value for each in step.optimizer.state.values() for value in each.values()]
    return StepMemory(
        device=device_name(device),
        room_bytes=room,
        weight_bytes=_bytes([*model.parameters(), *model.buffers()]),
        gradient_bytes=gradients,
        optimizer_bytes=_bytes(value for value in state if isinstance(value, Tensor)),
        exchange_bytes=exchange.nbytes,
        activation_bytes=kept.bytes,
        trials=trials,
        largest_batch=max(largest, trials[-1].batch),
    )


class KeptBytes:
    """Counts the bytes that a forward pass keeps for the backward pass, beside the weights."""

    def __init__(self, model: nn.Module) -> None:
        self._others = {_storage(each) for each in (*model.parameters(), *model.buffers())}
        self._kept: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        return sum(self._kept.values())

    def keep(self, tensor: Tensor) -> Tensor:
        if _storage(tensor) not in self._others:
            self._kept[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _free_bytes(device: torch.device) -> int:
    """Return what the device has free, and on a CPU what this process holds of it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * KIBIBYTE + peak_memory_bytes()
    return min([free, *_limits_of_groups()])


def _limits_of_groups() -> Iterator[int]:
    """Yield the limits of the control groups that this process is in, such as that of a Slurm job."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, name = (GROUPS / "memory", "memory.limit_in_bytes") if controllers else (GROUPS, "memory.max")
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            # "max", or a group that a container does not see.
            with suppress(OSError, ValueError):
                yield int((folder / name).read_text())


@dataclass(frozen=True)
class Trials:
    """Steps of any batch on a device; the samples of an own task are opened once."""

    step: Step
    device: torch.device

    def take(self, batch: int) -> StepTrial | None:
        """Take a step; None where the device has not enough memory."""
        begin = time.perf_counter()
        is_on_gpu = self.device.type == "cuda"
        if is_on_gpu:
            # Else the peak would be that of a larger batch, which did not fit.
            torch.cuda.reset_peak_memory_stats(self.device)
        try:
            self.step.take([self._batch(batch)], NO_CLOCK)
            wait_for_device(self.device)
        except RuntimeError as error:
            # On a CPU torch has no class for it.
            if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                return None
            raise
        peak = torch.cuda.max_memory_allocated(self.device) if is_on_gpu else peak_memory_bytes()
        return StepTrial(batch=batch, peak_bytes=peak, seconds=time.perf_counter() - begin)

    def bisect(self, fitting: int, foretold: int) -> list[StepTrial]:
        """Return what fitted: the foretold batch, or else those between it and a smaller one that fits."""
        tried = self.take(foretold)
        if tried:
            return [tried]
        found = []
        while foretold - fitting > max(1, BATCH_PRECISION * fitting):
            middle = (fitting + foretold) // 2
            if tried := self.take(middle):
                found.append(tried)
                fitting = middle
            else:
                foretold = middle
        return found

    @cached_property
    def _samples(self) -> RunData:
        return self.step.task.load_data(single_worker(self.device))

    def _batch(self, batch: int) -> Any:  # noqa: ANN401, of an own task
        """Return the first training samples of an own task, or images of chance of the built-in one."""
        config = self.step.config
        if config.has_own_task:
            return self._samples.plain_batch(np.resize(self._samples.split.train, batch))
        data = config.data
        shape = (batch, data.channels, data.image_height, data.image_width)
        images = torch.randint(256, shape, dtype=torch.uint8)
        masks = torch.randint(256, (*shape[::2], -(-data.image_width // 8)), dtype=torch.uint8)
        return ImageBatch(*to_device(images, masks, self.device, config.training.channels_last))


def _foretold(trials: Sequence[StepTrial], activation_bytes: int, room: int) -> int:
    """Return the largest batch by a line through the last two peaks, no flatter than the activations."""
    last = trials[-1]
    slope = activation_bytes
    if len(trials) > 1:
        grown = last.peak_bytes - trials[-2].peak_bytes
        slope = max(slope, grown // (last.batch - trials[-2].batch))
    return last.batch + max(0, room - last.peak_bytes) // max(slope, 1)


def main() -> None:
    config = RunConfig.model_validate_json(sys.stdin.read())
    try:
        print(measure_step_memory(config, float(sys.argv[1])).model_dump_json())
    except torch.OutOfMemoryError as error:
        raise UserError(f"the model alone does not fit the GPU: {str(error).splitlines()[0]}") from None


if __name__ == "__main__":
    run_program(main)

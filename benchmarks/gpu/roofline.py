"""The step of the published size against what the GPU's memory and arithmetic allow, and variants of it.

    python -m benchmarks.gpu.roofline WORK eager|compiled [--dry]

A variant that fails is told with its error, and the others go on; the exit code is then 1.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.setting import Setting, tell
from unet_scaling.data.batches import ImageBatch, to_device
from unet_scaling.data.images import send
from unet_scaling.measure.epoch_meter import NO_CLOCK, synchronized_seconds
from unet_scaling.model import UNet
from unet_scaling.profile.measure import plain_step
from unet_scaling.run.training_state import set_float32_precision
from unet_scaling.study.config import RunConfig

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "eager": {
        "fp32": {},
        "fp32, contiguous": {"channels_last": False},
        "fp32, cudnn.benchmark": {"cudnn_benchmark": True},
        "tf32": {"precision": "tf32"},
        "bf16": {"precision": "bf16"},
        "bf16, contiguous": {"precision": "bf16", "channels_last": False},
        "bf16, cudnn.benchmark": {"precision": "bf16", "cudnn_benchmark": True},
    },
    "compiled": {
        "bf16, compiled": {"precision": "bf16", "compile": True},
        "fp32, compiled": {"compile": True},
    },
}
PRODUCTS = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
WARM_UPS = 3


def median_seconds(action: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median seconds of an action, by events of the GPU or the clock of the host."""
    times = []
    for number in range(WARM_UPS + repeats):
        begin = synchronized_seconds(device)
        action()
        if number >= WARM_UPS:
            times.append(synchronized_seconds(device) - begin)
    return statistics.median(times)


def ceilings(setting: Setting) -> dict[str, float]:
    """Return GB/s of a copy within the device, read and written, and TFLOP/s of products by number format."""
    device = setting.device
    source = torch.zeros(2**22 if setting.dry else 2**32, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: target.copy_(source), device, 10)
    found = {"copy GB/s": 2 * source.numel() / seconds / 1e9}
    rows = 256 if setting.dry else 8192
    for name, dtype in PRODUCTS.items():
        set_float32_precision(name)
        matrix = torch.randn(rows, rows, device=device, dtype=dtype)
        seconds = median_seconds(lambda one=matrix: one @ one, device, 10)  # type: ignore[misc]
        found[f"{name} TFLOP/s"] = 2 * rows**3 / seconds / 1e12
    return found


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations read and write, each tensor once in an operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        out = func(*args, **(kwargs or {}))
        if not func.is_view and "empty" not in str(func):
            tensors = {
                id(each): each for each in tree_leaves((args, kwargs, out)) if isinstance(each, torch.Tensor)
            }
            self.bytes += sum(each.numel() * each.element_size() for each in tensors.values())
        return out


def work_of_step(config: RunConfig) -> tuple[float, float]:
    """Return GB moved and GFLOP of a forward and backward pass in fp32, eager; nothing is computed."""
    model = UNet(1, config.model.width, config.model.depth, norm=nn.BatchNorm2d).to("meta").train()
    shape = (config.training.batch_per_worker, 1, config.data.image_height, config.data.image_width)
    images, masks = (torch.empty(shape, device="meta") for _ in range(2))
    with Traffic() as traffic, FlopCounterMode(display=False) as flops:
        loss = nn.functional.binary_cross_entropy_with_logits(model(images), masks)
        torch.autograd.backward(loss)
    return traffic.bytes / 1e9, flops.get_total_flops() / 1e9


def variant(setting: Setting, options: Mapping[str, Any], repeats: int) -> dict[str, float]:
    """Return what a step takes on a batch that lies on the device, and with its copy on the same stream."""
    device = setting.device
    config = setting.config(**options)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    begin = synchronized_seconds(device)
    step = plain_step(config, device)
    batch = setting.batch(config)
    packed = setting.packed_batch(config)
    step.take([batch], NO_CLOCK)
    first = synchronized_seconds(device) - begin
    seconds = median_seconds(lambda: step.take([batch], NO_CLOCK), device, repeats)
    begin = synchronized_seconds(device)
    for _ in range(repeats):
        step.take([batch], NO_CLOCK)
    issued = time.perf_counter() - begin
    queued = synchronized_seconds(device) - begin
    begin = synchronized_seconds(device)
    for _ in range(repeats):
        step.take([ImageBatch(*to_device(*packed, device, config.training.channels_last))], NO_CLOCK)
    fed = synchronized_seconds(device) - begin
    return {
        "first step s": first,
        "step ms": 1000 * seconds,
        "queued step ms": 1000 * queued / repeats,
        "host ms of it": 1000 * issued / repeats,
        "with copy ms": 1000 * fed / repeats,
        "images/s": config.training.batch_per_worker * repeats / fed,
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0,
    }


def copies(setting: Setting) -> dict[str, float]:
    """Return the ms of a batch's copy to the device: from pageable memory, pinned first, pinned before."""
    images, _ = setting.packed_batch(setting.config())
    pinned = images if setting.dry else images.pin_memory()
    ways: dict[str, Callable[[], object]] = {
        "pageable": lambda: images.to(setting.device),
        "pinned first": lambda: send(images, setting.device),
        "pinned before": lambda: pinned.to(setting.device, non_blocking=True),
    }
    return {f"{name} ms": 1000 * median_seconds(copy, setting.device, 10) for name, copy in ways.items()}


def main() -> int:
    setting = Setting(Path(sys.argv[1]), "--dry" in sys.argv)
    repeats = 15
    if setting.dry:
        repeats = 1
        torch.set_num_threads(1)
    kind = sys.argv[2]
    moved, flops = work_of_step(setting.config())
    limits = ceilings(setting)
    if kind == "eager":
        tell("ceilings", limits)
        tell("copy of a batch", copies(setting))
        floors = {
            "GB of an eager fp32 step": moved,
            "GFLOP": flops,
            "memory floor ms": 1000 * moved / limits["copy GB/s"],
            "arithmetic floor ms": flops / limits["fp32 TFLOP/s"],
        }
        tell("step must", floors)
    failed = 0
    for name, options in VARIANTS[kind].items():
        try:
            row = variant(setting, options, repeats)
            bytes_share = 0.5 if "bf16" in name else 1.0
            row["share of copy speed"] = (
                bytes_share * moved / row["queued step ms"] * 1000 / limits["copy GB/s"]
            )
            tell(f"step {name}", row)
        except Exception as error:
            failed += 1
            tell(f"step {name}", f"{type(error).__name__}: {str(error)[:300]}")
            print(f"error: step {name}: {type(error).__name__}: {str(error).splitlines()[0]}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

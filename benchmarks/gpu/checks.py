"""Checks of `make gpu` that are no tests: python -m benchmarks.gpu.checks WORK NAME [STUDY_FOLDER] [--dry].

Each tells what it found; the exit code is 1 where something is wrong.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.setting import Setting, tell
from unet_scaling.base.errors import EXIT_OK, EXIT_RESUME
from unet_scaling.format.record import RECORD_NAME, Record, read_record
from unet_scaling.group.rendezvous import built_with
from unet_scaling.group.worker import versions
from unet_scaling.measure.counters import open_gpu

PROGRAMS = ("g++", "nvcc", "mpiexec", "nvidia-smi", "git")
# Losses of both frameworks at 1 worker: a GPU adds gradients in no fixed order, which a few epochs amplify.
MOST_LOSS_DIFFERENCE = 0.05
PHASES_MAY_DIFFER = 0.01
LONGEST_UNTIL_STOP_SECONDS = 60.0
LONGEST_STOP_SECONDS = 40.0


def facts(setting: Setting, _: Path) -> Iterator[str]:
    """Tell what is here. A problem: no GPU, or no answers of NVML."""
    tell("versions", versions() | {"built for CUDA": torch.version.cuda})
    tell("programs", {name: shutil.which(name) for name in PROGRAMS})
    tell("cores", len(os.sched_getaffinity(0)))
    tell("host memory GiB", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    if not torch.cuda.is_available():
        yield "torch sees no GPU"
        return
    for number in range(torch.cuda.device_count()):
        of_torch = torch.cuda.get_device_properties(number)
        gibibytes = of_torch.total_memory / 2**30
        tell(f"GPU {number}", {"name": of_torch.name, "UUID": str(of_torch.uuid), "GiB": gibibytes})
    gpu = open_gpu(setting.device)
    if gpu is None:
        yield "NVML does not answer: install nvidia-ml-py"
        return
    gpu.begin()
    tell("NVML", gpu.facts().model_dump())


def horovod(setting: Setting, _: Path) -> Iterator[str]:
    """Sum on the device. A problem: Horovod was built without NCCL, or the sum is wrong."""
    import horovod.torch as hvd

    hvd.init()
    tell("Horovod is built with", built_with(hvd))
    if not hvd.nccl_built():
        yield "Horovod is built without NCCL: environment/install.sh --cuda pip"
    row = torch.arange(5.0, device=setting.device)
    summed = hvd.allreduce(row, op=hvd.Sum)
    tell("sum of 1 worker", {"values": summed.tolist(), "device": str(summed.device)})
    if summed.device != row.device or not torch.equal(summed, row):
        yield f"Horovod's sum of {row.tolist()} at 1 worker is {summed.tolist()} on {summed.device}"


def records(_: Setting, study: Path) -> Iterator[str]:
    """Compare the frameworks and read what each record says of its GPU."""
    found = {path.parent.name: read_record(path) for path in sorted(study.glob(f"*/{RECORD_NAME}"))}
    if not found:
        yield f"{study} holds no record"
    for name, record in found.items():
        yield from _of_record(name, record)
    for name, record in found.items():
        native = found.get(name.replace("horovod", "pytorch_native"))
        if "horovod" in name and native and native.complete and record.complete:
            yield from _difference(name, record, native)


def _of_record(name: str, record: Record) -> Iterator[str]:
    if not record.complete or record.header is None:
        yield f"{name} is not complete"
        return
    epoch = record.epochs[-1]
    last = epoch.model_dump()
    worker = record.header.workers[0]
    share = epoch.budget.worker_sums()[0] / epoch.worker_seconds[0] if epoch.budget else None
    told: dict[str, Any] = {
        "device": worker.device, "UUID": worker.device_uuid, "transport": record.header.transport,
        "epoch seconds": [epoch.seconds for epoch in record.epochs], "phases by seconds": share,
        "budget": last["budget"], "gpu": last["gpu"], "cpu": last["cpu"],
    }  # fmt: skip
    tell(name, told)
    if share is None:
        yield f"{name} has no budget: {epoch.no_budget}"
    elif abs(share - 1) > PHASES_MAY_DIFFER:
        yield f"{name}: phases are {share:.3f} of the epoch's seconds"
    if worker.device == "cpu":
        yield f"{name} ran on the CPU"
    elif not last["gpu"]:
        yield f"{name} has no facts of its GPU"


def _difference(name: str, record: Record, native: Record) -> Iterator[str]:
    pairs = [(one.loss, other.loss) for one, other in zip(record.epochs, native.epochs, strict=True)]
    losses = max(abs(one - other) / other for one, other in pairs if one is not None and other)
    same = record.results[-1].weights_sha256 == native.results[-1].weights_sha256
    scores = [one.results[-1].score for one in (record, native)]
    tell(f"{name} against native DDP", {"losses differ by": losses, "same weights": same, "scores": scores})
    if losses > MOST_LOSS_DIFFERENCE:
        yield f"{name}: losses differ from native DDP by {losses:.3f}"


def resume(setting: Setting, study: Path) -> Iterator[str]:
    """Stop a run by Ctrl-C after some epochs, and start it again."""
    command = [
        sys.executable, "-m", "unet_scaling", "run", str(study.with_suffix(".toml")),
        "--logs", str(setting.work.parent / "logs"),
    ]  # fmt: skip
    path = setting.work.parent / "logs" / study.name / "pytorch_native-w01-r1" / RECORD_NAME
    # A shell's job in the background ignores Ctrl-C, and so would what it starts.
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, preexec_fn=heeding) as running:
        deadline = time.monotonic() + LONGEST_UNTIL_STOP_SECONDS
        while running.poll() is None and time.monotonic() < deadline:
            if path.exists() and len(read_record(path).epochs) >= 2:
                break
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            running.wait(LONGEST_STOP_SECONDS)
        stopped = running.poll()
        running.kill()
    second = subprocess.run(command, check=False).returncode
    record = read_record(path)
    resumed = record.header.resumed if record.header else None
    tell("stopped and resumed", {"codes": [stopped, second], "resumed": resumed and resumed.model_dump()})
    if (stopped, second) != (EXIT_RESUME, EXIT_OK) or resumed is None:
        yield f"stopped with code {stopped}, then {second}; resumed from {resumed}"


CHECKS: dict[str, Callable[[Setting, Path], Iterator[str]]] = {
    check.__name__: check for check in (facts, horovod, records, resume)
}
# What a trial on CPUs cannot have.
NEEDS_GPU = ("no GPU", "NVML", "without NCCL", "ran on the CPU", "has no budget")


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--dry"]
    setting = Setting(Path(words[0]), "--dry" in sys.argv)
    problems = list(CHECKS[words[1]](setting, Path(words[2]) if len(words) > 2 else setting.work))
    if setting.dry:
        problems = [text for text in problems if not any(part in text for part in NEEDS_GPU)]
    for text in problems:
        print(f"error: {text}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

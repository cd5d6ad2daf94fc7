"""Say what this environment is made of, and try it: a real 2-worker all-reduce with each framework."""

import argparse
import os
import tempfile
from functools import partial
from importlib import metadata
from pathlib import Path

import torch

from slurm.preflight import is_installed
from slurm.processes import launch
from unet_scaling.group.rendezvous import WITHOUT_NCCL, trial_config, twin_functions
from unet_scaling.group.worker import versions
from unet_scaling.study.command_line import CommandLine
from unet_scaling.study.config import ALL_FRAMEWORKS, FRAMEWORKS, WRAPPERS, Framework
from unet_scaling.study.errors import EXIT_BUG, run_program, run_worker

CHECK_WORKERS = 2


def main() -> int:
    parser = CommandLine("environment/check.py", __doc__)
    parser.add_argument("--as-worker-of", metavar="FRAMEWORK", choices=ALL_FRAMEWORKS, help=argparse.SUPPRESS)
    parser.add_argument("--on-gpus", action="store_true", help="runs will have GPUs, whatever is here")
    arguments = parser.parse_args()
    if arguments.as_worker_of:
        run_worker(partial(join_and_sum, arguments.as_worker_of))
    describe()
    # The wrappers of DDP are there where they were asked for.
    expected = [*FRAMEWORKS, *(wrapper for wrapper in WRAPPERS if is_installed(wrapper))]
    told = {framework: try_framework(framework) for framework in expected}
    missing = [framework for framework, text in told.items() if not text]
    if told["horovod"] and "NCCL" not in told["horovod"] and (arguments.on_gpus or torch.cuda.is_available()):
        print(f"warning: {WITHOUT_NCCL}")
    if missing:
        print(f"error: {' and '.join(missing)} cannot be used here; run environment/install.sh again")
    return EXIT_BUG if missing else 0


def describe() -> None:
    for name, version in versions().items():
        print(f"{name:>16}  {version}")
    print(f"{'toolchain':>16}  {toolchain()}")
    print(f"{'cores':>16}  {len(os.sched_getaffinity(0))}")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    print(f"{'GPUs':>16}  {', '.join(names) or 'none'}")


def toolchain() -> str:
    """Return the compilers that built Horovod, as environment/build_horovod.sh noted them in its wheel."""
    try:
        noted = Path(str(metadata.distribution("horovod").locate_file("horovod/toolchain.txt")))
        return noted.read_text().strip()
    except (metadata.PackageNotFoundError, FileNotFoundError):
        return "not known: the wheel of this Horovod has no note of it"


def try_framework(framework: Framework) -> str:
    """Launch two workers that join with the twin's own functions; print what became, return what works."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output.log"
        code = launch([__file__, "--as-worker-of", framework], CHECK_WORKERS, output, cores_each=None)
        text = output.read_text(errors="replace").strip()
    works = code == 0 and f"{framework} works" in text
    print(f"{framework:>16}  {text if works else f'FAILED with code {code}: {text}'}")
    return text if works else ""


def join_and_sum(framework: Framework) -> None:
    """What each of the two workers does."""
    twin = twin_functions(framework)
    group = twin["join_group"](trial_config(framework, CHECK_WORKERS))
    numbers = group.gather_numbers(group.rank + 1)
    assert numbers == [1, 2], f"the workers' numbers came out as {numbers}"
    if group.rank == 0:
        facts = ", ".join(f"{name} {value}" for name, value in group.transport.items())
        print(f"{framework} works: {CHECK_WORKERS} workers, {facts}")
    twin["leave_group"]()


if __name__ == "__main__":
    run_program(main)

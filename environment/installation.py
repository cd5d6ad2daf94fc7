"""Say what this environment is made of, and try it: a real 2-worker all-reduce with each framework."""

import argparse
import os
import tempfile
from functools import partial
from importlib import metadata
from pathlib import Path

import torch

from slurm.launch.preflight import is_installed
from slurm.launch.processes import launch
from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import EXIT_BUG, UserError, run_program, run_worker
from unet_scaling.base.texts import count
from unet_scaling.group.gpus import VISIBLE, Gpus, require_torch, visible_gpus
from unet_scaling.group.rendezvous import WITHOUT_NCCL, trial_config, twin_functions
from unet_scaling.group.worker import versions
from unet_scaling.study.config import ALL_FRAMEWORKS, FRAMEWORKS, WRAPPERS, Framework

CHECK_WORKERS = 2


def main() -> int:
    parser = CommandLine("environment/check.py", __doc__)
    parser.add_argument("--as-worker-of", metavar="FRAMEWORK", choices=ALL_FRAMEWORKS, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=CHECK_WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--on-gpus", action="store_true", help="runs will have GPUs, whatever is here")
    arguments = parser.parse_args()
    if arguments.as_worker_of:
        run_worker(partial(join_and_sum, arguments.as_worker_of, arguments.workers))
    require_torch(torch.__version__)
    try:
        gpus = visible_gpus(CHECK_WORKERS)
    except UserError as problem:
        if not arguments.on_gpus:
            raise
        # Of a login node that runs have nothing to do with.
        gpus = Gpus(remark=str(problem))
        os.environ[VISIBLE] = ""
    describe(gpus)
    workers = gpus.most(CHECK_WORKERS)
    # The wrappers of DDP are there where they were asked for.
    expected = [*FRAMEWORKS, *(wrapper for wrapper in WRAPPERS if is_installed(wrapper))]
    told = {framework: try_framework(framework, workers) for framework in expected}
    missing = [framework for framework, text in told.items() if not text]
    if told["horovod"] and "NCCL" not in told["horovod"] and arguments.on_gpus:
        print(f"warning: {WITHOUT_NCCL}")
    if missing:
        print(f"error: {' and '.join(missing)} cannot be used here; see above, or run environment/install.sh")
    return EXIT_BUG if missing else 0


def describe(gpus: Gpus) -> None:
    """Print versions, compilers, cores and GPUs; an MPI that is a package once, by what it says itself."""
    found = {name: " ".join(version.split()) for name, version in versions().items()}
    found["mpi"] = found["mpi"].replace(" Version:", "")
    for name, version in found.items():
        if found["mpi"].lower() != f"{name} {version}":
            print(f"{name:>16}  {version}")
    print(f"{'toolchain':>16}  {toolchain()}")
    print(f"{'cores':>16}  {len(os.sched_getaffinity(0))}")
    print(f"{'GPUs':>16}  {str(gpus) or 'none'}")


def toolchain() -> str:
    """Return the compilers that built Horovod, as environment/build_horovod.sh noted them in its wheel."""
    try:
        noted = Path(str(metadata.distribution("horovod").locate_file("horovod/toolchain.txt")))
        return noted.read_text().strip()
    except (metadata.PackageNotFoundError, FileNotFoundError):
        return "not known: the wheel of this Horovod has no note of it"


def try_framework(framework: Framework, workers: int) -> str:
    """Launch workers that join with the twin's own functions; print what became, return what works."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output.log"
        program = [__file__, "--as-worker-of", framework, "--workers", str(workers)]
        code = launch(program, workers, output, cores_each=None)
        text = output.read_text(errors="replace").strip()
    works = code == 0 and f"{framework} works" in text
    shown = text.replace(f"{framework} works", "works", 1) if works else f"FAILED with code {code}: {text}"
    print(f"{framework:>16}  {shown}")
    return text if works else ""


def join_and_sum(framework: Framework, workers: int) -> None:
    """Join the others by the twin's own functions, and sum; called in each of the workers."""
    twin = twin_functions(framework)
    group = twin["join_group"](trial_config(framework, workers))
    numbers = group.gather_numbers(group.rank + 1)
    assert numbers == list(range(1, workers + 1)), f"the workers' numbers came out as {numbers}"
    if group.rank == 0:
        facts = ", ".join(f"{name} {value}" for name, value in group.transport.items())
        print(f"{framework} works: {count(workers, 'worker')}, {facts}")
    twin["leave_group"]()


if __name__ == "__main__":
    run_program(main)

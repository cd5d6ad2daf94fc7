"""Try the installation and, where a study is named, verify all that would keep its runs from starting.

The installation: versions, devices, and an all-reduce of two workers with each framework. A study: its keys,
its images against their manifest; and with --cluster that its worker counts fit there.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from slurm.cluster import find_container, find_prologue, read_cluster
from slurm.commands.options import add_study, given_values
from slurm.launch import preflight
from slurm.launch.estimate import describe_lost_speed
from slurm.launch.memory import describe_memory
from slurm.launch.study_folder import logs_folder, open_study_folder
from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import EXIT_OK, UserError
from unet_scaling.base.texts import called, count
from unet_scaling.base.validation import as_toml
from unet_scaling.group.gpus import visible_gpus
from unet_scaling.group.identity import LAUNCHERS
from unet_scaling.study.config import PROGRAMS_FOLDER, PROJECT, RunConfig
from unet_scaling.study.study_file import read_study

# A task is verified as worker 0 and as worker 1 of two.
TRIED_WORKERS = 2
_EPILOG = """\
examples
  unet-scaling check
  unet-scaling check MY_STUDY.toml --cluster slurm/clusters/MINE.toml
  unet-scaling data check MY_IMAGES       decodes every image, and writes the manifest
"""


def main() -> int:
    arguments = command_line().parse_args()
    if arguments.memory and not arguments.study:
        raise UserError(f"--memory: name a study, as in {called('check', 'STUDY.toml', '--memory')}")
    on_gpus = check_study(arguments) if arguments.study else False
    if on_gpus is None or (arguments.study and arguments.only_files):
        return EXIT_OK
    # This program prints what is installed, and tries the frameworks.
    program = [sys.executable, str(PROGRAMS_FOLDER / "environment" / "check.py")]
    program += ["--on-gpus"] if on_gpus else []
    code = subprocess.run(program, check=False).returncode
    if code == EXIT_OK and arguments.study:
        submission = called("submit", arguments.study, "--cluster", arguments.cluster, "--dry-run")
        print(f"ready; next: {submission if arguments.cluster else called('run', arguments.study)}")
    return code


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling check", __doc__, _EPILOG)
    add_study(parser, optional=True)
    parser.add_argument("--cluster", type=Path, metavar="CLUSTER.toml", help="see slurm/clusters/")
    only_files = "of a study: leave the installation out, which takes seconds"
    parser.add_argument("--only-files", action="store_true", help=only_files)
    memory = "of a study: take steps here; say what memory they need, and the largest batch that fits"
    parser.add_argument("--memory", action="store_true", help=memory)
    return parser


def check_study(arguments: argparse.Namespace) -> bool | None:
    """Raise UserError where its runs cannot start, else print its size; return whether Horovod gets GPUs.

    None where workers run in a container, whose packages cannot be tried from here.
    """
    study = read_study(arguments.study, given_values(arguments))
    preflight.require_throughput(study)
    configs = study.configs()
    cluster = read_cluster(arguments.cluster) if arguments.cluster else None
    in_container = cluster is not None and cluster.container is not None
    preflight.check_inputs(configs, in_container)
    preflight.require_images(configs)
    workers = ", ".join(map(str, study.workers))
    inputs = "images unchanged"
    warnings = preflight.find_iou_warnings(configs)
    if study.task.file:
        # Verify each set of the task's options as its workers would use it.
        groups: dict[str, list[RunConfig]] = {}
        for config in sorted(configs, key=lambda config: config.training.batch_per_worker):
            groups.setdefault(json.dumps(config.task.model_dump(), sort_keys=True), []).append(config)
        for group in groups.values():
            warnings += preflight.explain_unjudged(group, *verify_in_processes(group[-1]))
        inputs = f"task with {count(len(groups), 'set')} of options verified"
    print(f"{arguments.study}: {count(len(configs), 'run')} on {workers} workers; {inputs}", flush=True)
    print("".join(f"{warning}\n" for warning in dict.fromkeys(warnings)), end="", flush=True)
    if not all(config.strategy.averages_gradients for config in configs):
        runs = open_study_folder(logs_folder() / study.name, study)
        for line in describe_lost_speed(map(runs.read_run, configs)):
            print(line, flush=True)
    if arguments.memory:
        for line in describe_memory(configs):
            print(line, flush=True)
    if cluster is None and not arguments.only_files:
        try:
            preflight.require_devices(study, visible_gpus(max(study.workers)))
        except UserError as problem:
            raise UserError(f"{problem}; for a cluster, name its file by --cluster") from None
    if cluster:
        preflight.require_fit(cluster, configs)
        find_prologue(cluster)
        find_container(cluster)
        print(
            f"{arguments.cluster}: {preflight.describe_limit(cluster, configs, one_allocation=False)}",
            flush=True,
        )
    if in_container:
        print(f"what is in the container: {called('doctor', '--cluster', arguments.cluster)} tries it")
        return None
    return cluster is not None and bool(cluster.gres) and "horovod" in study.frameworks


def verify_in_processes(config: RunConfig) -> tuple[int, int]:
    """Return how many training and test samples the task has.

    Raises UserError where it breaks its contract, or differs between workers.
    """
    facts = ""
    for rank in range(TRIED_WORKERS):
        options = ", ".join(f"{key} = {as_toml(value)}" for key, value in config.task.options.items())
        about = f"{config.task.file}{f' with {options}' if options else ''}"
        print(f"verifying {about} as worker {rank} of {TRIED_WORKERS}", file=sys.stderr, flush=True)
        # The variables by which launchers give a process its rank.
        variables = {launcher.size: str(TRIED_WORKERS) for launcher in LAUNCHERS}
        for launcher in LAUNCHERS:
            variables |= dict.fromkeys((launcher.rank, *launcher.local_ranks), str(rank))
        program = [sys.executable, "-m", "unet_scaling.verify_task", facts]
        done = subprocess.run(
            program, cwd=PROJECT, env=os.environ | variables, input=config.model_dump_json(),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            # The last line; libraries may have printed warnings before it.
            raise UserError(f"\n{done.stderr.strip()}".rpartition("\nerror: ")[2], done.returncode)
        facts = done.stdout.splitlines()[-1]
    found = json.loads(facts)
    return found["train_samples"], found["test_samples"]

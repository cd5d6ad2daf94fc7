"""Run a study on this machine without Slurm: every run that is missing, failed or interrupted."""

import os
import sys
import time

from slurm.commands.options import add_launch, add_study, find_study_folder, new_console
from slurm.launch.estimate import (
    FIRST_RUNS,
    PROBE_SECONDS,
    computes_otherwise,
    describe_estimate,
    read_probe,
    run_probe,
)
from slurm.launch.local import StudyStoppedError, cores_per_worker, plan_local_runs, run_study
from slurm.launch.preflight import find_iou_warnings, require_devices
from slurm.launch.processes import say_whether_quiet
from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import EXIT_OK
from unet_scaling.base.texts import count
from unet_scaling.group.gpus import visible_gpus

# A busy program often ends within minutes; each look takes a second.
QUIET_POLL_SECONDS = 30
_EPILOG = """\
examples
  unet-scaling run slurm/studies/demo.toml --dry-run
  unet-scaling run MY_STUDY.toml --set training.epochs=3 --name trial

The same command again runs only what is missing, failed or interrupted.
"""


def main() -> int:
    arguments = command_line().parse_args()
    console = new_console()
    folder = find_study_folder(arguments, console)
    gpus = visible_gpus(max(folder.study.workers))
    require_devices(folder.study, gpus)
    if str(gpus):
        console.print(str(gpus))
    if arguments.dry_run or arguments.probe:
        cores = cores_per_worker(folder.study, len(os.sched_getaffinity(0)))
        gres = "gpu" if gpus.names else ""
        wanted, known = plan_local_runs(folder, console, arguments.repeat_disturbed, arguments.force, gres)
        probe = run_probe(folder.study, cores) if arguments.probe else read_probe(arguments.study)
        if arguments.dry_run:
            lines = [
                f"{config.run}: {count(config.workers, 'worker')}, "
                f"{count(config.training.cores_per_worker or cores, 'core')} each"
                for config in wanted
            ]
            total = f"{folder.study.name}: {count(len(folder.study.run_names()), 'run')}"
            lines.append(f"{total}, {len(wanted)} would start, one after the other")
            lines += find_iou_warnings(folder.study.configs())
            console.print("\n".join(lines))
        if wanted:
            console.print(describe_estimate(wanted, known, probe))
            if not (probe and probe.estimate(wanted[0])) and not all(map(known.get_median, wanted)):
                hint = "--probe estimates the time of points without complete runs"
                console.print(FIRST_RUNS if computes_otherwise(wanted[0]) else hint)
    while arguments.wait_quiet and not arguments.dry_run and not say_whether_quiet(console):
        time.sleep(QUIET_POLL_SECONDS)
    if not arguments.dry_run:
        try:
            run_study(
                folder,
                console,
                arguments.repeat_disturbed,
                arguments.force,
                arguments.more_repeats,
                arguments.keep_disturbed,
            )
        except StudyStoppedError as stopped:  # the user asked for it
            print(stopped, file=sys.stderr)
            return stopped.exit_code
    return EXIT_OK


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling run", __doc__, _EPILOG)
    add_study(parser)
    add_launch(parser)
    probe = f"estimate the time of points without runs from {PROBE_SECONDS} s of steps"
    parser.add_argument("--probe", action="store_true", help=probe)
    kept = "launch no run again for being disturbed"
    parser.add_argument("--keep-disturbed", action="store_true", help=kept)
    parser.add_argument("--wait-quiet", action="store_true", help="wait until other programs are idle")
    return parser

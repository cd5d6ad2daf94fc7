"""Entry point of slurm/virtual_cluster: one function per command."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from slurm.virtual import arguments, cluster, namespaces, prerequisites
from slurm.virtual.plan import Plan, command, load
from unet_scaling.study.errors import UserError, run_program

# slurm/virtual_cluster puts it first into PYTHONPATH, so that this package is found.
ENTRY_FOLDER = str(Path(__file__).resolve().parents[2])
STATUS_HEADINGS = ("HOST", "ADDRESS", "PROCESS", "SLURM SAYS")


def main() -> None:
    given = arguments.command_line().parse_args()
    os.umask(0o022)  # users other than root submit as well
    if given.verb == "up":
        bring_up(given)
    elif given.verb == "down":
        take_down(given.state_dir)
    else:
        COMMANDS_OF_A_CLUSTER[given.verb](load(given.state_dir), given)


def bring_up(given: argparse.Namespace) -> None:
    plan = arguments.plan_of(given)
    if given.install:
        prerequisites.install(plan.accounting)
    cluster.up(plan)
    print(f'{plan.hosts} nodes are idle. Use them from this shell:\n  eval "$({command("env", plan.state)})"')
    print(f"  sinfo; srun -N{plan.hosts} hostname; sbatch ...\nand take them down with:")
    print(f"  {command('down', plan.state)}")


def take_down(state: Path) -> None:
    was_up = cluster.down(state)
    print("the cluster is down" if was_up else f"{state}: nothing is up here")


def print_status(plan: Plan) -> None:
    shape = f"{plan.hosts} nodes of {plan.cores_per_host} cores and {plan.gpus_per_host} GPUs"
    slowed = f", slowed {plan.dilation:g}-fold" if plan.is_dilated else ""
    print(f"{plan.state}: {shape}, partitions {','.join(plan.partitions)}{slowed}")
    for row in (STATUS_HEADINGS, *cluster.status(plan)):
        print("{:12}{:16}{:12}{}".format(*row).rstrip())


def execute(plan: Plan, given: argparse.Namespace) -> None:
    """Replace this process by the command inside the host, in this folder and with this environment."""
    words = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not words:
        raise UserError(f"exec {given.host}: no command given; give one: exec {given.host} -- hostname")
    enter = namespaces.enter(plan, plan.host(given.host).name)
    environment = {**caller_environment(), "SLURM_CONF": str(plan.slurm_conf)}
    sys.stdout.flush()
    os.execvpe(enter[0], [*enter, "env", f"--chdir={Path.cwd()}", *words], environment)  # noqa: S606


def caller_environment() -> dict[str, str]:
    """Return this process's environment as it was before slurm/virtual_cluster changed PYTHONPATH."""
    variables = dict(os.environ)
    first, _, rest = variables.pop("PYTHONPATH", "").partition(os.pathsep)
    path = rest if first == ENTRY_FOLDER else os.environ.get("PYTHONPATH", "")
    return {**variables, "PYTHONPATH": path} if path else variables


COMMANDS_OF_A_CLUSTER: dict[str, Callable[[Plan, argparse.Namespace], None]] = {
    "status": lambda plan, _: print_status(plan),
    "env": lambda plan, _: print(f"export SLURM_CONF={plan.slurm_conf}"),
    "exec": execute,
    "stop": lambda plan, given: cluster.stop(plan, given.host),
    "start": lambda plan, given: cluster.start(plan, given.host),
}


if __name__ == "__main__":
    run_program(main)

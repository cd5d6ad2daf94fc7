"""Entry point of slurm/virtual_cluster."""

import argparse
import os
import sys
from pathlib import Path

from slurm.virtual import cluster
from slurm.virtual.hosts import enter
from slurm.virtual.plan import Plan, command, command_line, load, plan_of
from unet_scaling.base.errors import UserError, run_program

# slurm/virtual_cluster puts it first into PYTHONPATH, so that this package is found.
ENTRY_FOLDER = str(Path(__file__).resolve().parents[2])
STATUS_HEADINGS = ("HOST", "ADDRESS", "PROCESS", "SLURM SAYS")


def main() -> None:
    given = command_line().parse_args()
    os.umask(0o022)  # users other than root submit as well
    if given.verb == "up":
        plan = plan_of(given)
        if given.install:
            cluster.install()
        cluster.up(plan)
        print(f"{plan.hosts} nodes are idle. Use them from this shell:")
        print(f'  eval "$({command("env", plan.state)})"')
        print(f"  sinfo; srun -N{plan.hosts} hostname; sbatch ...\nand take them down with:")
        print(f"  {command('down', plan.state)}")
        return
    if given.verb == "down":
        was_up = cluster.down(given.state)
        print("the cluster is down" if was_up else f"{given.state}: nothing is up here")
        return
    plan = load(given.state)
    if given.verb == "env":
        print(f"export SLURM_CONF={plan.slurm_conf}")
    elif given.verb == "status":
        print_status(plan)
    elif given.verb == "stop":
        cluster.stop(plan, given.host)
    elif given.verb == "start":
        cluster.start(plan, given.host)
    else:
        execute(plan, given)


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
    plan.require_host(given.host)
    inside = enter(plan, given.host)
    # The caller's environment, as it was before slurm/virtual_cluster changed PYTHONPATH.
    environment = os.environ | {"SLURM_CONF": str(plan.slurm_conf)}
    first, _, rest = environment.get("PYTHONPATH", "").partition(os.pathsep)
    if first == ENTRY_FOLDER:
        environment["PYTHONPATH"] = rest
    if not environment.get("PYTHONPATH"):
        environment.pop("PYTHONPATH", None)
    sys.stdout.flush()
    os.execvpe(inside[0], [*inside, "env", f"--chdir={Path.cwd()}", *words], environment)  # noqa: S606


if __name__ == "__main__":
    run_program(main)

"""The program slurm/virtual_cluster: one function per command."""

import argparse
import os
import sys
from pathlib import Path

from slurm.virtual import arguments, cluster, namespaces, prerequisites
from slurm.virtual.plan import Plan, command, load
from unet_scaling.study.errors import UserError, run_program

PROJECT = Path(__file__).resolve().parents[2]
STATUS_COLUMNS = ("HOST", "ADDRESS", "PROCESS", "SLURM SAYS")


def main() -> None:
    given = arguments.parser().parse_args()
    os.umask(0o022)  # users other than root submit as well
    if given.verb == "up":
        up(given)
    elif given.verb == "down":
        down(given.state_dir)
    else:
        use(given.verb, load(given.state_dir), given)


def use(verb: str, plan: Plan, given: argparse.Namespace) -> None:
    """The commands that need a cluster that is up."""
    if verb == "status":
        status(plan)
    elif verb == "env":
        print(f"export SLURM_CONF={plan.slurm_conf}")
    elif verb == "exec":
        execute(plan, given.host, given.command)
    elif verb == "stop":
        cluster.stop(plan, given.host)
    else:
        cluster.start(plan, given.host)


def up(given: argparse.Namespace) -> None:
    plan = arguments.plan_of(given)
    if given.install:
        prerequisites.install(plan.accounting)
    cluster.up(plan)
    print(f'{plan.hosts} nodes are idle. Use them from this shell:\n  eval "$({command("env", plan.state)})"')
    print(f"  sinfo; srun -N{plan.hosts} hostname; sbatch ...\nand take them down with:")
    print(f"  {command('down', plan.state)}")


def down(state: Path) -> None:
    was_up = cluster.down(state)
    print("the cluster is down" if was_up else f"{state}: nothing is up here")


def status(plan: Plan) -> None:
    shape = f"{plan.hosts} nodes of {plan.cores_per_host} cores and {plan.gpus_per_host} GPUs"
    print(f"{plan.state}: {shape}, partitions {','.join(plan.partitions)}")
    for row in (STATUS_COLUMNS, *cluster.status(plan)):
        print("{:12}{:16}{:12}{}".format(*row).rstrip())


def execute(plan: Plan, host: str, words: list[str]) -> None:
    """Become the command inside the host, in this folder and with this environment."""
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise UserError(f"exec {host}: no command given; say what to run: exec {host} -- hostname")
    enter = namespaces.enter(plan, plan.host(host).name)
    environment = {**outer_environment(), "SLURM_CONF": str(plan.slurm_conf)}
    sys.stdout.flush()
    os.execvpe(enter[0], [*enter, "env", f"--chdir={Path.cwd()}", *words], environment)  # noqa: S606


def outer_environment() -> dict[str, str]:
    """Our own environment without what the entry script put into PYTHONPATH."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = os.pathsep.join(paths[1:] if paths[0] == str(PROJECT) else paths)
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**others, "PYTHONPATH": rest} if rest else others


if __name__ == "__main__":
    run_program(main)

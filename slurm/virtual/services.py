"""Daemons of the cluster: start each one, wait for it, and query Slurm."""

import secrets
from collections.abc import Callable
from pathlib import Path

from slurm.virtual.namespaces import enter
from slurm.virtual.plan import Plan
from slurm.virtual.processes import attempt, running, start_daemon, tail, wait_until
from unet_scaling.study.errors import EXIT_BUG, UserError

# A second on a quiet machine; two clusters that start together on a busy one take far longer.
START_SECONDS = 60.0
# slurmctld pings its nodes and sees them idle within seconds.
IDLE_SECONDS = 60.0
USABLE_STATES = ("idle", "mixed", "allocated", "completing")


def write_munge_key(plan: Plan) -> None:
    """Write a key of the cluster's own: a munge that this machine has already stays as it is."""
    folder = plan.munge_socket.parent
    folder.mkdir(mode=0o755)
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))


def start_munge(plan: Plan) -> None:
    """Start the one munge daemon that all hosts share through their common file system."""
    folder = plan.munge_socket.parent
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    start_daemon(
        ["munged", "--foreground", "--force", *options], plan.process_file("munge"), plan.log("munge")
    )
    wait_for(plan, "munge", plan.munge_socket.is_socket)


def start_controller(plan: Plan) -> None:
    """Start slurmctld and wait until it answers."""
    start_inside(plan, plan.controller.name, ["slurmctld", "-D", "-f", str(plan.slurm_conf)])
    wait_for(plan, plan.controller.name, lambda: "is UP" in ask(plan, "scontrol", "ping"))


def start_node(plan: Plan, node: str) -> None:
    """Start slurmd, without waiting for it."""
    start_inside(plan, node, ["slurmd", "-D", "-N", node, "-f", str(plan.slurm_conf)])


def start_inside(plan: Plan, host: str, arguments: list[str], service: str | None = None) -> None:
    """Start a daemon inside a host; `service` names its files where it is not the host's only one."""
    name = service or host
    start_daemon(arguments, plan.process_file(name), plan.log(f"{name}.output"), enter(plan, host))


def wait_for(plan: Plan, service: str, ready: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    """Wait until a service is ready; raise UserError with the end of its log if it ends or takes too long."""
    record = plan.process_file(service)
    wait_until(record.exists, seconds)
    wait_until(lambda: ready() or running(record) is None, seconds)
    if not ready():
        problem = "did not answer in time" if running(record) else "ended"
        raise UserError(f"{service} {problem}. {log_tail(plan, service)}", EXIT_BUG)


def wait_until_usable(plan: Plan, nodes: list[str], seconds: float = IDLE_SECONDS) -> None:
    """Wait until a job may use these nodes; raise UserError with the log of the first that none may use."""

    def unusable() -> dict[str, str]:
        states = dict.fromkeys(nodes, "unknown") | node_states(plan)
        return {node: states[node] for node in nodes if states[node] not in USABLE_STATES}

    if not wait_until(lambda: not unusable(), seconds) and (left := unusable()):
        node, state = next(iter(left.items()))
        raise UserError(f"{node} is {state!r} after {seconds:.0f} s. {log_tail(plan, node)}", EXIT_BUG)


def node_states(plan: Plan) -> dict[str, str]:
    """Return Slurm's state of each node; empty when the controller does not answer."""
    lines = ask(plan, "sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
    return {fields[0]: fields[1] for fields in map(str.split, lines) if len(fields) == 2}


def ask(plan: Plan, *arguments: str) -> str:
    """Return what a Slurm command prints; nothing when the controller does not answer."""
    done = attempt(arguments, environment={"SLURM_CONF": str(plan.slurm_conf)})
    return done.stdout if done.returncode == 0 else ""


def log_tail(plan: Plan, service: str) -> str:
    """Return the end of a service's log if it wrote one, else of its output."""
    logs: list[Path] = [plan.log(service), plan.log(f"{service}.output")]
    written = [log for log in logs if log.exists() and log.stat().st_size]
    return tail((written or logs)[0])

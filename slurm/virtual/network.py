"""The wires: one bridge in a namespace of its own, one link from it to every host and one to the caller."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from slurm.virtual.namespaces import SWITCH, enter, pin
from slurm.virtual.plan import Host, Plan
from slurm.virtual.processes import attempt, run
from unet_scaling.study.errors import EXIT_BUG, UserError

NETWORKS = range(16)
LOCK = Path("/run/virtual_cluster.network.lock")
BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
SMALLEST_BURST_BYTES = 128 * 1024


@contextlib.contextmanager
def chosen_by_one_at_a_time() -> Iterator[None]:
    """Keep another cluster from choosing the same network before this one's addresses are there."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def free_network() -> int:
    """The first of 10.77.0.x ... 10.77.15.x that this machine does not use; UserError if all are taken."""
    used = run(["ip", "-4", "-o", "address", "show"])
    for network in NETWORKS:
        if f" 10.77.{network}." not in used:
            return network
    raise UserError("network: 10.77.0.0/24 to 10.77.15.0/24 are all in use; take a virtual cluster down")


def connect(plan: Plan) -> None:
    """Wire the caller and every host to the switch; limit the links of the nodes if a rate was asked for."""
    _in_switch(plan, "link add bridge0 type bridge forward_delay 0", "link set bridge0 up", "link set lo up")
    _plug_in_caller(plan)
    for host in plan.inner_hosts:
        _plug_in(plan, host)
    if plan.link_rate:
        for node in plan.nodes:
            _shape(plan, node, plan.link_rate)


def set_link(plan: Plan, host: str, state: str) -> None:
    """Pull (`down`) or plug in (`up`) the cable of a host, at the switch."""
    _in_switch(plan, f"link set {host} {state}")


def disconnect(plan: Plan) -> None:
    """Remove the caller's end; all else goes with the namespaces, which may take this end along first."""
    done = attempt(["ip", "link", "delete", plan.uplink])
    if done.returncode and plan.uplink in run(["ip", "-o", "link", "show"]):
        raise UserError(f"the network interface {plan.uplink} stays: {done.stderr.strip()}", EXIT_BUG)


def _plug_in_caller(plan: Plan) -> None:
    switch = pin(plan, SWITCH)
    _ip(f"link add {plan.uplink} type veth peer name login netns {switch}")
    _ip(f"address add {plan.login.address}/24 dev {plan.uplink}", f"link set {plan.uplink} up")
    _in_switch(plan, "link set login master bridge0 up")


def _plug_in(plan: Plan, host: Host) -> None:
    _in_switch(
        plan,
        f"link add {host.name} type veth peer name eth0 netns {pin(plan, host.name)}",
        f"link set {host.name} master bridge0 up",
    )
    commands = ["link set lo up", f"address add {host.address}/24 dev eth0", "link set eth0 up"]
    _ip(*commands, inside=enter(plan, host.name))


def _shape(plan: Plan, node: Host, rate: str) -> None:
    """Limit both directions: what the node sends at its end, what it receives at the switch."""
    bucket = ["root", "tbf", "rate", rate, "burst", str(burst_bytes(rate)), "latency", "50ms"]
    run([*enter(plan, node.name), "tc", "qdisc", "add", "dev", "eth0", *bucket])
    run([*_enter_switch(plan), "tc", "qdisc", "add", "dev", node.name, *bucket])


def burst_bytes(rate: str) -> int:
    """A bucket of two milliseconds, but never less than two of the kernel's largest segments."""
    unit = rate.lstrip("0123456789.")
    bits_per_second = float(rate.removesuffix(unit)) * BITS[unit]
    return max(SMALLEST_BURST_BYTES, int(bits_per_second / 8 * 0.002))


def _enter_switch(plan: Plan) -> list[str]:
    return ["nsenter", f"--net={pin(plan, SWITCH)}", "--"]


def _in_switch(plan: Plan, *commands: str) -> None:
    _ip(*commands, inside=_enter_switch(plan))


def _ip(*commands: str, inside: list[str] | None = None) -> None:
    run([*(inside or []), "ip", "-batch", "-"], text="\n".join(commands) + "\n")

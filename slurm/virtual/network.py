"""Network: one bridge in a namespace of its own, one link from it to every host and one to the caller."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from slurm.virtual.namespaces import BRIDGE_HOST, enter, pin
from slurm.virtual.plan import Host, Plan
from slurm.virtual.processes import attempt, run
from unet_scaling.study.errors import EXIT_BUG, UserError

NETWORKS = range(16)
LOCK = Path("/run/virtual_cluster.network.lock")
BITS_PER_UNIT = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# Two of the kernel's largest segments.
SMALLEST_BURST_BYTES = 128 * 1024
# Of a slowed link: a burst of two of these is 2 % of the reference network's gradients.
DILATED_SEGMENT_BYTES = 16 * 1024
QUEUE_SECONDS = 0.05
# The default of Linux, whatever this machine uses: BBR paces by its own estimate of a link's bandwidth, with
# timers that are not slowed, and leaves slow links idle.
CONGESTION_CONTROL = "cubic"
# What an interface of Linux queues by default (txqueuelen): 1000 frames.
SMALLEST_QUEUE_BYTES = 1000 * 1514


@contextlib.contextmanager
def choosing_alone() -> Iterator[None]:
    """Hold a lock, so that two clusters that start together do not choose the same network."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def free_network() -> int:
    """Return the first of 10.77.0.x to 10.77.15.x that is not in use; raise UserError if all are."""
    used = run(["ip", "-4", "-o", "address", "show"])
    for network in NETWORKS:
        if f" 10.77.{network}." not in used:
            return network
    raise UserError("network: 10.77.0.0/24 to 10.77.15.0/24 are all in use; take a virtual cluster down")


def connect(plan: Plan) -> None:
    """Connect the caller and every host to the bridge; limit the links of the nodes to the plan's rate."""
    _in_bridge_host(
        plan, "link add bridge0 type bridge forward_delay 0", "link set bridge0 up", "link set lo up"
    )
    _connect_caller(plan)
    for host in plan.inner_hosts:
        _connect_host(plan, host)
    if plan.link_rate:
        for node in plan.nodes:
            _limit_rate(plan, node, plan.link_rate)


def slowed_rate(rate: str, dilation: float) -> str:
    """Return the rate of a link as tc takes it, slowed so many times."""
    return rate if dilation == 1 else f"{round(bits_per_second(rate) / dilation)}bit"


def set_link(plan: Plan, host: str, state: str) -> None:
    """Set the link of a host `up` or `down`, at the bridge."""
    _in_bridge_host(plan, f"link set {host} {state}")


def disconnect(plan: Plan) -> None:
    """Remove the caller's end of its link, unless it has gone with the namespaces as all others do."""
    done = attempt(["ip", "link", "delete", plan.uplink])
    if done.returncode and plan.uplink in run(["ip", "-o", "link", "show"]):
        raise UserError(f"the network interface {plan.uplink} stays: {done.stderr.strip()}", EXIT_BUG)


def _connect_caller(plan: Plan) -> None:
    bridge_host = pin(plan, BRIDGE_HOST)
    _ip(f"link add {plan.uplink} type veth peer name login netns {bridge_host}")
    _ip(f"address add {plan.login.address}/24 dev {plan.uplink}", f"link set {plan.uplink} up")
    _in_bridge_host(plan, "link set login master bridge0 up")


def _connect_host(plan: Plan, host: Host) -> None:
    _in_bridge_host(
        plan,
        f"link add {host.name} type veth peer name eth0 netns {pin(plan, host.name)}",
        f"link set {host.name} master bridge0 up",
    )
    commands = ["link set lo up", f"address add {host.address}/24 dev eth0", "link set eth0 up"]
    _ip(*commands, inside=enter(plan, host.name))
    route = f"route change {plan.subnet} dev eth0 proto kernel scope link src {host.address}"
    # The sysctl of a namespace takes only what the whole machine allows; and not every kernel has cubic.
    attempt([*enter(plan, host.name), "ip", *route.split(), "congctl", CONGESTION_CONTROL])


def _limit_rate(plan: Plan, node: Host, rate: str) -> None:
    """Limit both directions: what the node sends at its end, what it receives at the bridge."""
    bucket = ["root", "tbf", *_bucket(plan, rate)]
    if plan.is_dilated:
        _ip(f"link set eth0 gso_max_size {DILATED_SEGMENT_BYTES}", inside=enter(plan, node.name))
    run([*enter(plan, node.name), "tc", "qdisc", "add", "dev", "eth0", *bucket])
    run([*_enter_bridge_host(plan), "tc", "qdisc", "add", "dev", node.name, *bucket])


def _bucket(plan: Plan, rate: str) -> list[str]:
    """Return rate, burst and queue of a link; the queue has as many bytes however much the link is slowed.

    A slowed link has a small burst: what the bucket holds passes at once, however slow the link.
    """
    burst = 2 * DILATED_SEGMENT_BYTES if plan.is_dilated else burst_bytes(rate)
    limit = burst + queue_bytes(rate)
    return ["rate", slowed_rate(rate, plan.dilation), "burst", str(burst), "limit", str(limit)]


def queue_bytes(rate: str) -> int:
    """Return what waits at most for a link, beyond the bucket: its bytes of 50 ms, and at least 1000 frames.

    With less, a sending host drops packets in its own queue.
    """
    return max(SMALLEST_QUEUE_BYTES, round(bits_per_second(rate) / 8 * QUEUE_SECONDS))


def burst_bytes(rate: str) -> int:
    """Return the token bucket's size: two milliseconds at this rate, and at least SMALLEST_BURST_BYTES."""
    return max(SMALLEST_BURST_BYTES, int(bits_per_second(rate) / 8 * 0.002))


def bits_per_second(rate: str) -> float:
    """Return the number that a rate such as 2.5gbit stands for."""
    unit = rate.lstrip("0123456789.")
    return float(rate.removesuffix(unit)) * BITS_PER_UNIT[unit]


def _enter_bridge_host(plan: Plan) -> list[str]:
    return ["nsenter", f"--net={pin(plan, BRIDGE_HOST)}", "--"]


def _in_bridge_host(plan: Plan, *commands: str) -> None:
    _ip(*commands, inside=_enter_bridge_host(plan))


def _ip(*commands: str, inside: list[str] | None = None) -> None:
    run([*(inside or []), "ip", "-batch", "-"], text="\n".join(commands) + "\n")

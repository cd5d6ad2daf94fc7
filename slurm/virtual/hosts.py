"""Hosts of a virtual cluster: processes, the namespaces that hold them, and the network between them.

A host is a network, a name, shared memory and mounts of its own, kept alive by files in the state folder. Its
daemon is the process of the id noted there, as long as that is one of the host. One bridge in a namespace of
its own has a link to every host and one to the caller.
"""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from slurm.virtual.plan import Plan
from unet_scaling.base.errors import EXIT_BUG, UserError

SYSTEM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": SYSTEM_FOLDERS, "LC_ALL": "C", "HOME": "/root"}
# Daemons are ready within tenths of a second.
PAUSE_SECONDS = 0.1
# A process enters a host within milliseconds.
ENTER_SECONDS = 0.001
# SIGKILL acts at once, but a process in a call of the kernel ends only when the call returns.
KILL_SECONDS = 10.0
NAMESPACE_OPTIONS = {"net": "--net", "uts": "--uts", "ipc": "--ipc", "mount": "--mount"}
BRIDGE_HOST = "switch"
# MPI would take hosts with common shared memory for one; the machine's /sys shows the machine's network.
# The pins of all hosts are unmounted here, or each host would keep the others alive.
SET_UP_HOST = """
hostname "$1"
mount -t tmpfs tmpfs /dev/shm
mount --bind "$2" /etc/hosts
mount --rbind /sys/fs/cgroup "$4"
mount -t sysfs sysfs /sys
mount --rbind "$4" /sys/fs/cgroup
umount --recursive --lazy "$3"
"""
# A trial of what hosts need, in namespaces that end with the program.
TRIAL = """
hostname trial
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /dev/shm
ip link add bridge0 type bridge
ip link add port0 type veth peer name port1
tc qdisc add dev port0 root tbf rate 1gbit burst 256kb latency 50ms 2>/dev/null ||
    { echo "it lacks the queueing discipline tbf (CONFIG_NET_SCH_TBF), which limits links" >&2; exit 1; }
"""
NETWORKS = range(16)
NETWORK_LOCK = Path("/run/virtual_cluster.network.lock")
BITS_PER_UNIT = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# Two of the kernel's largest segments of 64 KiB.
SMALLEST_BURST_BYTES = 128 * 1024
# The largest segment on a slowed link: two of them are 2 % of the reference network's gradients.
DILATED_SEGMENT_BYTES = 16 * 1024
QUEUE_SECONDS = 0.05
# What an interface of Linux queues by default (txqueuelen): 1000 frames.
SMALLEST_QUEUE_BYTES = 1000 * 1514
# The default of Linux, whatever this machine uses: BBR paces by its own estimate of a link's bandwidth, with
# timers that are not slowed, and leaves slow links idle.
CONGESTION_CONTROL = "cubic"


def run(
    arguments: Sequence[str], text: str | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Run a system program and return its standard output; raise UserError with its message if it fails.

    `text` is its standard input; `environment` is added to a minimal one.
    """
    done = attempt(arguments, text, environment)
    if done.returncode != 0:
        message = (done.stderr or done.stdout).strip()
        raise UserError(f"`{' '.join(arguments)}` failed with code {done.returncode}: {message}", EXIT_BUG)
    return done.stdout


def attempt(
    arguments: Sequence[str], text: str | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a system program like `run`, but return its exit code as well instead of raising."""
    variables = {**ENVIRONMENT, **(environment or {})}
    return subprocess.run(arguments, input=text, env=variables, capture_output=True, text=True)


def start_daemon(
    plan: Plan, host: str, arguments: Sequence[str], service: str = ""
) -> "subprocess.Popen[bytes]":
    """Start a daemon inside a host, and note its process by the name of the host or of the `service`.

    Ctrl-C waits until it is inside: there `release` finds it.
    """
    name = service or host
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        with plan.log(f"{name}.output").open("a") as output:
            process = subprocess.Popen(
                [*enter(plan, host), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=ENVIRONMENT,
                start_new_session=True,
            )
        plan.process_file(name).write_text(str(process.pid))
        while process.poll() is None and not _is_inside(plan, host, process.pid):
            time.sleep(ENTER_SECONDS)
    finally:
        signal.signal(signal.SIGINT, before)
    for number in noted[:1]:
        signal.raise_signal(number)
    return process


def running(plan: Plan, host: str) -> int | None:
    """Return the process of a host's daemon; None where it ended, also if its id is another's by now."""
    with suppress(OSError, ValueError):  # it was never started
        process_id = int(plan.process_file(host).read_text())
        return process_id if _is_inside(plan, host, process_id) else None
    return None


def _is_inside(plan: Plan, host: str, process_id: int) -> bool:
    with suppress(OSError):  # it has ended, or is a zombie
        return os.path.samestat(Path(f"/proc/{process_id}/ns/net").stat(), pin(plan, host).stat())
    return False


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll until `condition` holds; return False if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE_SECONDS)
    return True


def pin(plan: Plan, host: str, kind: str = "net") -> Path:
    """Return the file that keeps one namespace of a host alive."""
    return plan.state / "namespaces" / host / kind


def _pins(plan: Plan, host: str) -> list[str]:
    return [f"{option}={pin(plan, host, kind)}" for kind, option in NAMESPACE_OPTIONS.items()]


def enter(plan: Plan, host: str) -> list[str]:
    """Return the command that runs what follows it inside a host."""
    return ["nsenter", *_pins(plan, host), "--"]


def make_hosts(plan: Plan) -> None:
    """Make the namespaces of all hosts, each with its name, host table and shared memory; no network yet."""
    folder = plan.state / "namespaces"
    folder.mkdir()
    # Mounted privately: only there can a mount namespace be pinned.
    run(["mount", "--bind", str(folder), str(folder)])
    run(["mount", "--make-private", str(folder)])
    # A network for the bridge, out of reach of the machine's own firewall rules.
    bridge = pin(plan, BRIDGE_HOST)
    bridge.parent.mkdir()
    bridge.touch()
    run(["unshare", f"--net={bridge}", "true"])
    for host in plan.addresses:
        pin(plan, host).parent.mkdir()
        for kind in NAMESPACE_OPTIONS:
            pin(plan, host, kind).touch()
        aside = pin(plan, host, "cgroup")
        aside.mkdir()
        values = [host, str(plan.hosts_file), str(folder), str(aside)]
        propagation = ["--propagation", "slave"]
        run(["unshare", *_pins(plan, host), *propagation, "sh", "-euc", SET_UP_HOST, "sh", *values])


def release(state: Path) -> None:
    """Kill every process in the namespaces pinned below `state`, and release the namespaces."""
    mount_points = mounts_below(state)
    for path in mount_points:
        if path.name == "net":
            kill_members(path)
    for path in reversed(mount_points):
        run(["umount", "--lazy", str(path)])


def kill_members(namespace: Path) -> None:
    """Kill every process inside a network namespace, also those started while this runs.

    Raises UserError if some are still alive after KILL_SECONDS.
    """
    wanted = namespace.stat()

    def members() -> list[int]:
        process_ids = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile, or is a zombie
                if os.path.samestat((folder / "ns/net").stat(), wanted):
                    process_ids.append(int(folder.name))
        return process_ids

    def none_left() -> bool:
        process_ids = members()
        for process_id in process_ids:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        return not process_ids

    if not wait_until(none_left, KILL_SECONDS):
        raise UserError(f"{namespace}: processes {members()} survive SIGKILL", EXIT_BUG)


def mounts_below(state: Path) -> list[Path]:
    """Return the mount points inside the state folder, outer ones first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [path for line in lines if state in (path := Path(line.split()[1])).parents]


def refusal() -> str | None:
    """Return why the kernel or the surrounding container lets nobody make a host; None if it does."""
    done = attempt(["unshare", *NAMESPACE_OPTIONS.values(), "sh", "-euc", TRIAL])
    return done.stderr.strip() if done.returncode else None


@contextmanager
def free_network() -> Iterator[int]:
    """Give the first of 10.77.0.x to 10.77.15.x that is not in use; raise UserError if all are.

    Under a lock, so that two clusters that start together do not choose the same one.
    """
    with NETWORK_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        used = run(["ip", "-4", "-o", "address", "show"])
        free = [network for network in NETWORKS if f" 10.77.{network}." not in used]
        if not free:
            raise UserError("network: all of 10.77.0.0/20 is in use; take a virtual cluster down")
        yield free[0]


def connect(plan: Plan) -> None:
    """Connect the caller and every host to the bridge; limit the links of the nodes to the plan's rate."""
    _in_bridge_host(
        plan, "link add bridge0 type bridge forward_delay 0", "link set bridge0 up", "link set lo up"
    )
    _ip(f"link add {plan.uplink} type veth peer name login netns {pin(plan, BRIDGE_HOST)}")
    _ip(f"address add {plan.login_address}/24 dev {plan.uplink}", f"link set {plan.uplink} up")
    _in_bridge_host(plan, "link set login master bridge0 up")
    for host, address in plan.addresses.items():
        _in_bridge_host(
            plan,
            f"link add {host} type veth peer name eth0 netns {pin(plan, host)}",
            f"link set {host} master bridge0 up",
        )
        inside = enter(plan, host)
        _ip("link set lo up", f"address add {address}/24 dev eth0", "link set eth0 up", inside=inside)
        route = f"route change {plan.address(0)}/24 dev eth0 proto kernel scope link src {address}"
        # The sysctl of a namespace takes only what the whole machine allows; and not every kernel has cubic.
        attempt([*inside, "ip", *route.split(), "congctl", CONGESTION_CONTROL])
    if plan.link_rate:
        for node in plan.nodes:
            _limit_rate(plan, node, plan.link_rate)


def _limit_rate(plan: Plan, node: str, rate: str) -> None:
    """Limit both directions: what the node sends at its end, what it receives at the bridge.

    The queue has as many bytes however much the link is slowed: those of 50 ms, and at least 1000 frames,
    since with less a sending host drops packets in its own queue. A slowed link has a small burst: what the
    bucket holds passes at once, however slow the link.
    """
    bits_per_second = _bits_per_second(rate)
    burst = 2 * DILATED_SEGMENT_BYTES if plan.is_dilated else burst_bytes(rate)
    queue = max(SMALLEST_QUEUE_BYTES, round(bits_per_second / 8 * QUEUE_SECONDS))
    slowed = f"{round(bits_per_second / plan.dilation)}bit" if plan.is_dilated else rate
    bucket = ["root", "tbf", "rate", slowed, "burst", str(burst), "limit", str(burst + queue)]
    inside = enter(plan, node)
    if plan.is_dilated:
        _ip(f"link set eth0 gso_max_size {DILATED_SEGMENT_BYTES}", inside=inside)
    run([*inside, "tc", "qdisc", "add", "dev", "eth0", *bucket])
    run([*_enter_bridge_host(plan), "tc", "qdisc", "add", "dev", node, *bucket])


def burst_bytes(rate: str) -> int:
    """Return the token bucket's size: two milliseconds at this rate, and at least SMALLEST_BURST_BYTES."""
    return max(SMALLEST_BURST_BYTES, int(_bits_per_second(rate) / 8 * 0.002))


def _bits_per_second(rate: str) -> float:
    """Return the number that a rate such as 2.5gbit stands for."""
    unit = rate.lstrip("0123456789.")
    return float(rate.removesuffix(unit)) * BITS_PER_UNIT[unit]


def set_link(plan: Plan, host: str, state: str) -> None:
    """Set the link of a host `up` or `down`, at the bridge."""
    _in_bridge_host(plan, f"link set {host} {state}")


def disconnect(plan: Plan) -> None:
    """Remove the caller's end of its link, unless it has gone with the namespaces as all others do."""
    done = attempt(["ip", "link", "delete", plan.uplink])
    if done.returncode and plan.uplink in run(["ip", "-o", "link", "show"]):
        raise UserError(f"the network interface {plan.uplink} stays: {done.stderr.strip()}", EXIT_BUG)


def _enter_bridge_host(plan: Plan) -> list[str]:
    return ["nsenter", f"--net={pin(plan, BRIDGE_HOST)}", "--"]


def _in_bridge_host(plan: Plan, *commands: str) -> None:
    _ip(*commands, inside=_enter_bridge_host(plan))


def _ip(*commands: str, inside: Sequence[str] = ()) -> None:
    run([*inside, "ip", "-batch", "-"], text="\n".join(commands) + "\n")

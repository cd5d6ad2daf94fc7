"""Namespaces of a host: network, name, shared memory and mounts, kept alive by files in the state folder."""

from pathlib import Path

from slurm.virtual.plan import Host, Plan
from slurm.virtual.processes import attempt, kill_all, members, run

NAMESPACE_OPTIONS = {"net": "--net", "uts": "--uts", "ipc": "--ipc", "mount": "--mount"}
BRIDGE_HOST = "switch"
# Shared memory of its own, or MPI takes all hosts for one; /sys anew, or it shows the network of the machine.
# The pins of all hosts are taken out of sight, or each host would keep the others alive.
SET_UP_HOST = """
hostname "$1"
mount -t tmpfs tmpfs /dev/shm
mount --bind "$2" /etc/hosts
mount --rbind /sys/fs/cgroup "$4"
mount -t sysfs sysfs /sys
mount --rbind "$4" /sys/fs/cgroup
umount --recursive --lazy "$3"
"""
# Tried in throw-away namespaces: nothing of it outlives the program.
TRIAL = """
hostname trial
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /dev/shm
ip link add bridge0 type bridge
ip link add port0 type veth peer name port1
tc qdisc add dev port0 root tbf rate 1gbit burst 256kb latency 50ms 2>/dev/null ||
    { echo "it lacks the queueing discipline tbf (CONFIG_NET_SCH_TBF), which limits links" >&2; exit 1; }
"""


def folder(plan: Plan) -> Path:
    return plan.state / "namespaces"


def pin(plan: Plan, host: str, kind: str = "net") -> Path:
    """Return the file that keeps one namespace of a host alive."""
    return folder(plan) / host / kind


def enter(plan: Plan, host: str) -> list[str]:
    """Return the command that runs what follows it inside a host."""
    return [
        "nsenter",
        *(f"{option}={pin(plan, host, kind)}" for kind, option in NAMESPACE_OPTIONS.items()),
        "--",
    ]


def prepare(plan: Plan) -> None:
    """Mount the folder of the pins privately: only there can a mount namespace be pinned."""
    folder(plan).mkdir()
    run(["mount", "--bind", str(folder(plan)), str(folder(plan))])
    run(["mount", "--make-private", str(folder(plan))])


def make_bridge_host(plan: Plan) -> None:
    """Create a network namespace for the bridge, out of reach of the machine's own firewall rules."""
    network = pin(plan, BRIDGE_HOST)
    network.parent.mkdir()
    network.touch()
    run(["unshare", f"--net={network}", "true"])


def make_host(plan: Plan, host: Host) -> None:
    """Create namespaces with their own host name, host table and shared memory, and no network link yet."""
    pin(plan, host.name).parent.mkdir()
    for kind in NAMESPACE_OPTIONS:
        pin(plan, host.name, kind).touch()
    pins = [f"{option}={pin(plan, host.name, kind)}" for kind, option in NAMESPACE_OPTIONS.items()]
    aside = pin(plan, host.name, "cgroup")
    aside.mkdir()
    values = [host.name, str(plan.hosts_file), str(folder(plan)), str(aside)]
    run(["unshare", *pins, "--propagation", "slave", "sh", "-euc", SET_UP_HOST, "sh", *values])


def release(state: Path) -> None:
    """Kill every process in the namespaces pinned below `state`, and release the namespaces."""
    mount_points = mounts_below(state)
    for path in mount_points:
        if path.name == "net":
            kill_members(path)
    for path in reversed(mount_points):
        run(["umount", "--lazy", str(path)])


def kill_members(namespace: Path) -> None:
    """Kill every process inside a network namespace, also those started while this runs."""
    kill_all(lambda: members(namespace), namespace)


def mounts_below(state: Path) -> list[Path]:
    """Return the mount points inside the state folder, outer ones first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    mount_points = [Path(line.split()[1]) for line in lines]
    return [path for path in mount_points if state in path.parents]


def refusal() -> str | None:
    """Return why the kernel or the surrounding container lets nobody make a host; None if it does."""
    done = attempt(["unshare", *NAMESPACE_OPTIONS.values(), "sh", "-euc", TRIAL])
    return done.stderr.strip() if done.returncode else None

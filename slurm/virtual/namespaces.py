"""The namespaces of a host: network, host name and mounts, kept alive by files in the state folder."""

from pathlib import Path

from slurm.virtual.plan import Host, Plan
from slurm.virtual.processes import attempt, kill_all, members, run

KINDS = {"net": "--net", "uts": "--uts", "ipc": "--ipc", "mount": "--mount"}
SWITCH = "switch"
# Shared memory of its own, or MPI takes all hosts for one; /sys anew, or it shows the network of the machine.
# The pins of all hosts are taken out of sight, or each host would keep the others alive.
FURNISH = """
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
tc qdisc add dev port0 root tbf rate 1gbit burst 256kb latency 50ms
"""


def folder(plan: Plan) -> Path:
    return plan.state / "namespaces"


def pin(plan: Plan, host: str, kind: str = "net") -> Path:
    """The file that keeps one namespace of a host alive."""
    return folder(plan) / host / kind


def enter(plan: Plan, host: str) -> list[str]:
    """The command that runs what follows it inside a host."""
    return ["nsenter", *(f"{option}={pin(plan, host, kind)}" for kind, option in KINDS.items()), "--"]


def prepare(plan: Plan) -> None:
    """Make the folder of the pins a private mount: only there may a mount namespace be pinned."""
    folder(plan).mkdir()
    run(["mount", "--bind", str(folder(plan)), str(folder(plan))])
    run(["mount", "--make-private", str(folder(plan))])


def make_switch(plan: Plan) -> None:
    """A network namespace for the bridge, out of reach of the machine's own firewall rules."""
    place = pin(plan, SWITCH)
    place.parent.mkdir()
    place.touch()
    run(["unshare", f"--net={place}", "true"])


def make_host(plan: Plan, host: Host) -> None:
    """Namespaces with their own host name, host table and shared memory, and no network yet."""
    pin(plan, host.name).parent.mkdir()
    for kind in KINDS:
        pin(plan, host.name, kind).touch()
    pins = [f"{option}={pin(plan, host.name, kind)}" for kind, option in KINDS.items()]
    aside = pin(plan, host.name, "cgroup")
    aside.mkdir()
    values = [host.name, str(plan.hosts_file), str(folder(plan)), str(aside)]
    run(["unshare", *pins, "--propagation", "slave", "sh", "-euc", FURNISH, "sh", *values])


def release(state: Path) -> None:
    """End every process in the namespaces pinned below `state`, and let go of the namespaces."""
    places = mounts_below(state)
    for place in places:
        if place.name == "net":
            kill_members(place)
    for place in reversed(places):
        run(["umount", "--lazy", str(place)])


def kill_members(namespace: Path) -> None:
    """Kill every process inside a network namespace, also those started while this runs."""
    kill_all(lambda: members(namespace), namespace)


def mounts_below(state: Path) -> list[Path]:
    """Mount points inside the state folder, outer ones first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    places = [Path(line.split()[1]) for line in lines]
    return [place for place in places if state in place.parents]


def refusal() -> str | None:
    """What the kernel, or the container around us, says against making a host; None if it makes one."""
    done = attempt(["unshare", *KINDS.values(), "sh", "-euc", TRIAL])
    return done.stderr.strip() if done.returncode else None

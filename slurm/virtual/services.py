"""Daemons of a virtual cluster: the packages that they need, how each is started, and what Slurm answers."""

import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from slurm.virtual.hosts import (
    SYSTEM_FOLDERS,
    attempt,
    enter,
    refusal,
    run,
    running,
    start_daemon,
    wait_until,
)
from slurm.virtual.plan import Plan
from unet_scaling.study.errors import EXIT_BUG, UserError

# A second on a quiet machine; two clusters that start together on a busy one take far longer.
START_SECONDS = 60.0
# slurmctld pings its nodes and sees them idle within seconds.
IDLE_SECONDS = 60.0
USABLE_STATES = ("idle", "mixed", "allocated", "completing")
SHOWN_LOG_LINES = 12
FIRST_VERSION_WITHOUT_CGROUPS = (24, 5)
PROGRAMS_OF_PACKAGE = {
    "munge": ["munged"],
    "slurm-wlm": ["slurmctld", "slurmd", "sbatch", "srun"],
    "iproute2": ["ip", "tc"],
    "util-linux": ["unshare", "nsenter"],
    "mount": ["mount"],
    "hostname": ["hostname"],
}
PROGRAMS_OF_ACCOUNTING = {"mariadb-server": ["mariadbd"], "slurmdbd": ["slurmdbd"]}
SERVICES_OF_PACKAGE = {
    "munge": ["munge"],
    "slurm-wlm": ["slurmctld", "slurmd"],
    "mariadb-server": ["mariadb"],
    "slurmdbd": ["slurmdbd"],
}
# Debian asks this program whether an installed service may start; code 101 means no.
START_POLICY = Path("/usr/sbin/policy-rc.d")
CREATE_USER = """
CREATE USER 'slurm'@'127.0.0.1';
GRANT ALL ON slurm_accounting.* TO 'slurm'@'127.0.0.1';
"""


def missing_prerequisite(accounting: bool = False) -> str | None:
    """Return why no virtual cluster can run here, and what to do about it; None if one can."""
    if os.geteuid() != 0:
        return "a virtual cluster makes namespaces and network links, so it needs root: run this with sudo"
    packages = missing_packages(accounting)
    if packages:
        names = " ".join(packages)
        options = "--accounting --install" if accounting else "--install"
        return f"packages are missing: {names}; install them with `slurm/virtual_cluster up {options}`"
    refused = refusal()
    if refused is None:
        return None
    return f"this kernel or container does not let root create a host: {refused}; use one with all privileges"


def missing_packages(accounting: bool) -> list[str]:
    """Return the Debian packages of the programs that are missing, in alphabetical order."""
    wanted = PROGRAMS_OF_PACKAGE | (PROGRAMS_OF_ACCOUNTING if accounting else {})
    return sorted(
        package
        for package, programs in wanted.items()
        if not all(shutil.which(program, path=SYSTEM_FOLDERS) for program in programs)
    )


def install(accounting: bool) -> None:
    """Install what is missing with apt-get and keep its services from starting, now and at the next boot."""
    packages = missing_packages(accounting)
    if not packages:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise UserError(f"--install needs root and apt-get; install by other means: {' '.join(packages)}")
    print(f"installing {' '.join(packages)} ...", flush=True)
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    environment = {"DEBIAN_FRONTEND": "noninteractive", **proxies}
    policy_is_new = not START_POLICY.exists()
    if policy_is_new:
        START_POLICY.write_text("#!/bin/sh\nexit 101\n")
        START_POLICY.chmod(0o755)
    try:
        for words in (["update"], ["install", "--no-install-recommends", *packages]):
            run(["apt-get", "--quiet", "--yes", *words], environment=environment)
    finally:
        if policy_is_new:
            START_POLICY.unlink()
    if Path("/run/systemd/system").exists():
        names = [service for package in packages for service in SERVICES_OF_PACKAGE.get(package, [])]
        run(["systemctl", "disable", *names])


def cgroup_conf() -> str:
    """Return the text of cgroup.conf that makes the installed Slurm leave control groups alone.

    Before 24.05 they cannot be switched off; the older interface at least touches nothing until it is used.
    """
    printed = run(["slurmd", "-V"])
    match = re.search(r"(\d+)\.(\d+)", printed)
    if match is None:
        raise UserError(f"`slurmd -V` printed {printed!r}, which holds no version; is this Slurm's slurmd?")
    disabled = (int(match[1]), int(match[2])) >= FIRST_VERSION_WITHOUT_CGROUPS
    return f"CgroupPlugin={'disabled' if disabled else 'cgroup/v1'}\n"


def start_munge(plan: Plan) -> None:
    """Start the one munge daemon that all hosts share through their common file system.

    Its key is the cluster's own: a munge that this machine has already stays as it is.
    """
    folder = plan.munge_socket.parent
    folder.mkdir(mode=0o755)
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    arguments = ["munged", "--foreground", "--force", *options]
    start_daemon(arguments, plan.process_file("munge"), plan.log("munge"))
    wait_for(plan, "munge", plan.munge_socket.is_socket)


def start_database(plan: Plan) -> None:
    """Create an empty database in the state folder, and start its server and slurmdbd.

    MariaDB listens on the loop-back of its own host, which only root can enter.
    """
    folder = plan.state / "mariadb"
    socket = f"--socket={folder}/socket"
    files = [f"--datadir={folder}", socket, f"--pid-file={folder}/pid"]
    limits = ["--bind-address=127.0.0.1", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M"]
    run(["mariadb-install-db", "--no-defaults", f"--datadir={folder}", "--user=root", "--skip-test-db"])
    start_inside(plan, "database", ["mariadbd", "--no-defaults", "--user=root", *files, *limits], "mariadb")
    wait_for(plan, "mariadb", (folder / "socket").is_socket)
    run([*enter(plan, "database"), "mariadb", "--no-defaults", socket], text=CREATE_USER)
    start_slurmdbd(plan)


def start_slurmdbd(plan: Plan) -> None:
    """Start slurmdbd and register the cluster with it."""
    start_inside(plan, "database", ["env", f"SLURM_CONF={plan.slurm_conf}", "slurmdbd", "-D"], "slurmdbd")
    wait_for(plan, "slurmdbd", lambda: "Cluster" in ask(plan, "sacctmgr", "show", "cluster"))
    ask(plan, "sacctmgr", "--immediate", "add", "cluster", "virtual")


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


def wait_for(plan: Plan, service: str, ready: Callable[[], bool]) -> None:
    """Wait until a service is ready; raise UserError with the end of its log if it ends or takes too long."""
    record = plan.process_file(service)
    wait_until(record.exists, START_SECONDS)
    wait_until(lambda: ready() or running(record) is None, START_SECONDS)
    if not ready():
        problem = "did not answer in time" if running(record) else "ended"
        raise UserError(f"{service} {problem}. {log_tail(plan, service)}", EXIT_BUG)


def wait_until_usable(plan: Plan, nodes: list[str]) -> None:
    """Wait until a job may use these nodes; raise UserError with the log of the first that none may use."""

    def unusable() -> dict[str, str]:
        states = dict.fromkeys(nodes, "unknown") | node_states(plan)
        return {node: states[node] for node in nodes if states[node] not in USABLE_STATES}

    if not wait_until(lambda: not unusable(), IDLE_SECONDS) and (left := unusable()):
        node, state = next(iter(left.items()))
        raise UserError(f"{node} is {state!r} after {IDLE_SECONDS:.0f} s. {log_tail(plan, node)}", EXIT_BUG)


def node_states(plan: Plan) -> dict[str, str]:
    """Return Slurm's state of each node; empty when the controller does not answer."""
    lines = ask(plan, "sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
    return {fields[0]: fields[1] for fields in map(str.split, lines) if len(fields) == 2}


def ask(plan: Plan, *arguments: str) -> str:
    """Return what a Slurm command prints; nothing when the controller does not answer."""
    done = attempt(arguments, environment={"SLURM_CONF": str(plan.slurm_conf)})
    return done.stdout if done.returncode == 0 else ""


def log_tail(plan: Plan, service: str) -> str:
    """Return the end of a service's log if it wrote one, else of its output; indented, for a message."""
    logs = [plan.log(service), plan.log(f"{service}.output")]
    log = next((log for log in logs if log.exists() and log.stat().st_size), logs[0])
    if not log.exists():
        return f"{log}: nothing was written"
    return "\n  ".join([f"{log}:", *log.read_text(errors="replace").splitlines()[-SHOWN_LOG_LINES:]])

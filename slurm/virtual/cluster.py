"""Start a virtual cluster and its daemons, take it down, and stop parts of it on purpose."""

import os
import re
import secrets
import shutil
import signal
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

from slurm.virtual import hosts
from slurm.virtual import plan as planned
from slurm.virtual.plan import CONTROLLER, DEVICE_FOLDER, Plan, command, plan_file, save
from unet_scaling.base.errors import EXIT_BUG, UserError
from unet_scaling.base.machine import LINK_RATE_VARIABLE, SLOWED_VARIABLE
from unet_scaling.emulation import processor_quota

# A daemon starts in a second on a quiet machine, and far more slowly beside another cluster that starts.
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
    "util-linux": ["unshare", "nsenter", "taskset"],
    "mount": ["mount"],
    "hostname": ["hostname"],
}
SERVICES_OF_PACKAGE = {"munge": ["munge"], "slurm-wlm": ["slurmctld", "slurmd"]}
# Debian asks this program whether an installed service may start; code 101 means no.
START_POLICY = Path("/usr/sbin/policy-rc.d")
FOLDERS = ("log", "processes", "controller", "spool", DEVICE_FOLDER)
# A killed process leaves its control group as soon as the kernel has removed it.
LEAVE_SECONDS = 10.0
# Any user may submit: the workers make their own groups in that of the cluster.
FOR_ALL_USERS = 0o1777


def missing_prerequisite() -> str | None:
    """Return why no virtual cluster can run here, and what to do about it; None if one can."""
    if os.geteuid() != 0:
        return "a virtual cluster makes namespaces and network links, so it needs root: run this with sudo"
    if packages := " ".join(missing_packages()):
        return f"packages are missing: {packages}; install them with `slurm/virtual_cluster up --install`"
    refused = hosts.refusal()
    if refused is None:
        return None
    return f"this kernel or container does not let root create a host: {refused}; use one with all privileges"


def missing_packages() -> list[str]:
    """Return the Debian packages of the programs that are missing, in alphabetical order."""
    return sorted(
        package
        for package, programs in PROGRAMS_OF_PACKAGE.items()
        if not all(shutil.which(program, path=hosts.SYSTEM_FOLDERS) for program in programs)
    )


def install() -> None:
    """Install what is missing with apt-get and keep its services from starting, now and at the next boot."""
    packages = missing_packages()
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
            hosts.run(["apt-get", "--quiet", "--yes", *words], environment=environment)
    finally:
        if policy_is_new:
            START_POLICY.unlink()
    if Path("/run/systemd/system").exists():
        names = [service for package in packages for service in SERVICES_OF_PACKAGE.get(package, [])]
        hosts.run(["systemctl", "disable", *names])


def cgroup_conf() -> str:
    """Return the text of cgroup.conf that makes the installed Slurm leave control groups alone.

    Before 24.05 they cannot be switched off; the older interface at least touches nothing until it is used.
    """
    printed = hosts.run(["slurmd", "-V"])
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
    process = hosts.start_daemon(plan, CONTROLLER, arguments, "munge")
    wait_for(plan, "munge", process, plan.munge_socket.is_socket)


def start_controller(plan: Plan) -> None:
    """Start slurmctld and wait until it answers."""
    process = hosts.start_daemon(plan, CONTROLLER, ["slurmctld", "-D", "-f", str(plan.slurm_conf)])
    wait_for(plan, CONTROLLER, process, lambda: "is UP" in ask(plan, "scontrol", "ping"))


def start_node(plan: Plan, node: str) -> None:
    """Start slurmd, without waiting for it.

    What it starts stays on the cores that stand for the node's; slowed workers choose theirs themselves.
    """
    processors = sorted(os.sched_getaffinity(0))
    if not plan.is_dilated:
        processors = processor_quota.own_processors(plan.nodes.index(node), plan.cores_per_host, processors)
    cores = ",".join(map(str, processors))
    slurmd = ["slurmd", "-D", "-N", node, "-f", str(plan.slurm_conf)]
    hosts.start_daemon(plan, node, ["taskset", "--cpu-list", cores, *slurmd])


def wait_for(plan: Plan, service: str, process: Popen[bytes], ready: Callable[[], bool]) -> None:
    """Wait until a service is ready; raise UserError with the end of its log if it ends or takes too long."""
    hosts.wait_until(lambda: ready() or process.poll() is not None, START_SECONDS)
    if not ready():
        problem = "did not answer in time" if process.poll() is None else "ended"
        raise UserError(f"{service} {problem}. {log_tail(plan, service)}", EXIT_BUG)


def wait_until_usable(plan: Plan, nodes: list[str]) -> None:
    """Wait until a job may use these nodes; raise UserError with the log of the first that none may use."""

    def unusable() -> dict[str, str]:
        states = dict.fromkeys(nodes, "unknown") | node_states(plan)
        return {node: states[node] for node in nodes if states[node] not in USABLE_STATES}

    if not hosts.wait_until(lambda: not unusable(), IDLE_SECONDS) and (left := unusable()):
        node, state = next(iter(left.items()))
        raise UserError(f"{node} is {state!r} after {IDLE_SECONDS:.0f} s. {log_tail(plan, node)}", EXIT_BUG)


def node_states(plan: Plan) -> dict[str, str]:
    """Return Slurm's state of each node; empty when the controller does not answer."""
    lines = ask(plan, "sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
    return {fields[0]: fields[1] for fields in map(str.split, lines) if len(fields) == 2}


def ask(plan: Plan, *arguments: str) -> str:
    """Return what a Slurm command prints; nothing when the controller does not answer."""
    done = hosts.attempt(arguments, environment={"SLURM_CONF": str(plan.slurm_conf)})
    return done.stdout if done.returncode == 0 else ""


def log_tail(plan: Plan, service: str) -> str:
    """Return the end of a service's log if it wrote one, else of its output; indented, for a message."""
    logs = [plan.log(service), plan.log(f"{service}.output")]
    log = next((log for log in logs if log.exists() and log.stat().st_size), logs[0])
    if not log.exists():
        return f"{log}: nothing was written"
    return "\n  ".join([f"{log}:", *log.read_text(errors="replace").splitlines()[-SHOWN_LOG_LINES:]])


def up(plan: Plan) -> Plan:
    """Start the cluster and return when every node is idle; after a failure nothing is left behind."""
    if reason := missing_prerequisite():
        raise UserError(reason)
    with hosts.free_network() as network:
        plan = replace(plan, network=network)
        _create_state_folder(plan)
        with _take_down_on_failure(plan):
            prepare_quotas(plan)
            _write_files(plan)
            if plan.is_dilated:
                slowed = f"cores, links and time-outs of the workers are {plan.dilation:g} times slower"
                print(f"dilation: {slowed}", flush=True)
            print(f"hosts: {plan.hosts} nodes and the controller, in namespaces of their own", flush=True)
            hosts.make_hosts(plan)
            rate = plan.link_rate or "not limited"
            print(f"network: {plan.address(0)}/24, link rate {rate}", flush=True)
            hosts.connect(plan)
    with _take_down_on_failure(plan):
        print("munge: with a key of its own", flush=True)
        start_munge(plan)
        print("slurmctld and slurmd: waiting until every node is idle", flush=True)
        start_controller(plan)
        for node in plan.nodes:
            start_node(plan, node)
        wait_until_usable(plan, plan.nodes)
    return plan


@contextmanager
def _take_down_on_failure(plan: Plan) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        try:
            down(plan.state)
        except (UserError, OSError) as second:
            first = str(error) or type(error).__name__
            raise UserError(f"{first}\nThe clean-up failed as well: {second}", EXIT_BUG) from error
        raise


def _create_state_folder(plan: Plan) -> None:
    """Create the state folder with the plan in it; raise UserError if a cluster or other files are there."""
    try:
        plan.state.mkdir(exist_ok=True)
        if not plan_file(plan.state).exists() and any(plan.state.iterdir()):
            raise UserError(f"{plan.state}: holds other files; name another folder with --state-dir")
        save(plan)
    except FileExistsError:
        cure = command("down", plan.state)
        raise UserError(f"{plan.state}: a cluster is up or half up here; take it down with: {cure}") from None
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{plan.state.parent}: no such folder; make it, or change --state-dir") from None


def _write_files(plan: Plan) -> None:
    for name in FOLDERS:
        (plan.state / name).mkdir()
    for number in range(plan.gpus_per_host):
        # A copy of /dev/null: Slurm counts device files only.
        path = plan.state / DEVICE_FOLDER / f"gpu{number}"
        os.mknod(path, mode=0o666 | stat.S_IFCHR, device=Path("/dev/null").stat().st_rdev)
    plan.hosts_file.write_text(planned.hosts_table(plan))
    plan.slurm_conf.write_text(planned.slurm_conf(plan))
    if variables := task_variables(plan):
        plan.task_prolog.write_text(planned.task_prolog(variables))
        plan.task_prolog.chmod(0o755)
    (plan.state / "gres.conf").write_text(planned.gres_conf(plan))
    (plan.state / "cgroup.conf").write_text(cgroup_conf())


def down(state: Path) -> bool:
    """Take down what runs, was half started or was left over in `state`; return False if nothing was."""
    if not plan_file(state).exists() and not hosts.mounts_below(state):
        return False
    hosts.release(state)
    hosts.disconnect(Plan(state))
    remove_groups(state)
    if left := hosts.mounts_below(state):
        raise UserError(f"{state}: still mounted: {', '.join(map(str, left))}", EXIT_BUG)
    # The plan goes last, so that an interrupted `down` can be repeated.
    for path in state.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != plan_file(state):
            path.unlink()
    plan_file(state).unlink(missing_ok=True)
    state.rmdir()
    return True


def stop(plan: Plan, host: str) -> None:
    """Terminate slurmctld, or cut the power of a node, its link first: no peer is told."""
    plan.require_host(host)
    process = hosts.running(plan, host)
    if process is None:
        raise UserError(f"{host} is not running; start it with: {command('start', plan.state, host)}")
    if host == CONTROLLER:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
        hosts.wait_until(lambda: hosts.running(plan, host) is None, seconds=10)
    else:
        hosts.set_link(plan, host, "down")
        hosts.kill_members(hosts.pin(plan, host))


def start(plan: Plan, host: str) -> None:
    """Start what was stopped and return when Slurm uses it again."""
    plan.require_host(host)
    if hosts.running(plan, host) is not None:
        raise UserError(f"{host} is running already; stop it with: {command('stop', plan.state, host)}")
    if host == CONTROLLER:
        start_controller(plan)
    else:
        hosts.set_link(plan, host, "up")
        start_node(plan, host)
        wait_until_usable(plan, [host])


def status(plan: Plan) -> list[tuple[str, str, str, str]]:
    """Return name, address, process id and Slurm's state of each host."""
    states = dict.fromkeys(plan.nodes, "unknown") | node_states(plan)
    return [
        (name, address, str(hosts.running(plan, name) or "stopped"), states.get(name, ""))
        for name, address in plan.addresses.items()
    ]


def quota_folder(plan: Plan, hierarchy: processor_quota.ProcessorHierarchy) -> Path:
    """Return the control group of a dilated cluster, in which every worker makes its own."""
    return hierarchy.root / plan.uplink


def prepare_quotas(plan: Plan) -> None:
    """Make the group of a dilated cluster, if it is one. Raises UserError where no quota can be had."""
    if not plan.is_dilated:
        return
    hierarchy = processor_quota.processor_hierarchy()
    folder = quota_folder(plan, hierarchy)
    try:
        if hierarchy.version == 2:
            processor_quota.enable_below(hierarchy.root)
        folder.mkdir(exist_ok=True)
        if hierarchy.version == 2:
            processor_quota.enable_below(folder)
        # Runs that start have no quota yet: they would take the processors from those that are timed.
        processor_quota.prefer_group(folder)
        folder.chmod(FOR_ALL_USERS)
    except OSError as error:
        raise UserError(f"no control group for the workers: {error.filename}: {error.strerror}") from None
    # Raises UserError where the kernel refuses the quota of a worker of one core.
    trial = folder / "trial"
    try:
        processor_quota.make_quota_group(
            trial, processor_quota.quota_of_cores(1 / plan.dilation, processors=1)
        )
    finally:
        if trial.exists():
            trial.rmdir()


def task_variables(plan: Plan) -> Mapping[str, str]:
    """Return the variables by which every task of a job knows how the cluster differs from this machine."""
    found = {LINK_RATE_VARIABLE: plan.link_rate} if plan.link_rate else {}
    if plan.is_dilated:
        found[SLOWED_VARIABLE] = f"{plan.dilation:g}"
        found[processor_quota.QUOTA_FOLDER_VARIABLE] = str(
            quota_folder(plan, processor_quota.processor_hierarchy())
        )
    return found


def remove_groups(state: Path) -> None:
    """Remove the groups of the cluster in `state`, whose processes have ended, if it has any."""
    try:
        folder = quota_folder(Plan(state), processor_quota.processor_hierarchy())
    except UserError:
        return

    def is_removed() -> bool:
        try:
            processor_quota.remove_group(folder)
        except OSError:  # a process has not left yet
            return False
        return True

    if folder.exists() and not hosts.wait_until(is_removed, LEAVE_SECONDS):
        raise UserError(f"{folder}: a control group with processes in it cannot be removed", EXIT_BUG)

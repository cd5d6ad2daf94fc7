"""Start the cluster, take it down, and stop parts of it on purpose."""

import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slurm.virtual import hosts, services
from slurm.virtual import plan as planned
from slurm.virtual.hosts import running, wait_until
from slurm.virtual.plan import DEVICE_FOLDER, Plan, command, plan_file, save
from unet_scaling.group.processor_quota import (
    ProcessorHierarchy,
    enable_below,
    make_quota_group,
    prefer_group,
    processor_hierarchy,
    quota_of_cores,
    remove_group,
)
from unet_scaling.study.dilation import DILATION_VARIABLE, LINK_RATE_VARIABLE, QUOTA_FOLDER_VARIABLE
from unet_scaling.study.errors import EXIT_BUG, UserError

FOLDERS = ("log", "processes", "controller", "spool", DEVICE_FOLDER)
SERVERS: dict[str, Callable[[Plan], None]] = {
    "controller": services.start_controller,
    "database": services.start_slurmdbd,
}
# A killed process leaves its control group as soon as the kernel has removed it.
LEAVE_SECONDS = 10.0
# Any user may submit: the workers make their own groups in that of the cluster.
FOR_ALL_USERS = 0o1777


def up(plan: Plan) -> Plan:
    """Start the cluster and return when every node is idle; after a failure nothing is left behind."""
    if reason := services.missing_prerequisite(plan.accounting):
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
        services.start_munge(plan)
        if plan.accounting:
            print("accounting: MariaDB and slurmdbd", flush=True)
            services.start_database(plan)
        print("slurmctld and slurmd: waiting until every node is idle", flush=True)
        services.start_controller(plan)
        for node in plan.nodes:
            services.start_node(plan, node.name)
        services.wait_until_usable(plan, [node.name for node in plan.nodes])
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
    (plan.state / "cgroup.conf").write_text(services.cgroup_conf())
    if plan.accounting:
        # slurmdbd refuses to start if others may read it.
        file = plan.state / "slurmdbd.conf"
        file.touch(mode=0o600)
        file.write_text(planned.slurmdbd_conf(plan))


def down(state: Path) -> bool:
    """Take down what runs, was half started or was left over in `state`; return False if nothing was."""
    if not plan_file(state).exists() and not hosts.mounts_below(state):
        return False
    # Every process recorded is killed, also one that records itself meanwhile.
    records = state / "processes"
    closed = state / "processes.closed"
    if records.exists():
        records.rename(closed)  # a daemon that has no record yet fails to write it, and never starts
    hosts.kill_all(lambda: [process for record in closed.glob("*") if (process := running(record))], closed)
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


def stop(plan: Plan, name: str) -> None:
    """Terminate slurmctld or slurmdbd, or cut the power of a node, its link first: no peer is told."""
    host = plan.host(name).name
    process = _process(plan, host)
    if process is None:
        raise UserError(f"{host} is not running; start it with: {command('start', plan.state, host)}")
    if host in SERVERS:
        hosts.kill([process], signal.SIGTERM)
        wait_until(lambda: _process(plan, host) is None, seconds=10)
    else:
        hosts.set_link(plan, host, "down")
        hosts.kill_members(hosts.pin(plan, host))


def start(plan: Plan, name: str) -> None:
    """Start what was stopped and return when Slurm uses it again."""
    host = plan.host(name).name
    if _process(plan, host) is not None:
        raise UserError(f"{host} is running already; stop it with: {command('stop', plan.state, host)}")
    if host in SERVERS:
        SERVERS[host](plan)
        return
    hosts.set_link(plan, host, "up")
    services.start_node(plan, host)
    services.wait_until_usable(plan, [host])


def status(plan: Plan) -> list[tuple[str, str, str, str]]:
    """Return name, address, process id and Slurm's state of each host."""
    states = dict.fromkeys((node.name for node in plan.nodes), "unknown") | services.node_states(plan)
    return [
        (host.name, host.address, str(_process(plan, host.name) or "stopped"), states.get(host.name, ""))
        for host in plan.inner_hosts
    ]


def _process(plan: Plan, host: str) -> int | None:
    return running(plan.process_file("slurmdbd" if host == "database" else host))


def quota_folder(plan: Plan, hierarchy: ProcessorHierarchy) -> Path:
    """Return the control group of a dilated cluster, in which every worker makes its own."""
    return hierarchy.root / plan.uplink


def prepare_quotas(plan: Plan) -> None:
    """Make the group of a dilated cluster, if it is one. Raises UserError where no quota can be had."""
    if not plan.is_dilated:
        return
    hierarchy = processor_hierarchy()
    folder = quota_folder(plan, hierarchy)
    try:
        if hierarchy.version == 2:
            enable_below(hierarchy.root)
        folder.mkdir(exist_ok=True)
        if hierarchy.version == 2:
            enable_below(folder)
        # Runs that start have no quota yet: they would take the processors from those that are timed.
        prefer_group(folder)
        folder.chmod(FOR_ALL_USERS)
    except OSError as error:
        raise UserError(f"no control group for the workers: {error.filename}: {error.strerror}") from None
    # Raises UserError where the kernel refuses the quota of a worker of one core.
    trial = folder / "trial"
    try:
        make_quota_group(trial, quota_of_cores(1 / plan.dilation, processors=1))
    finally:
        if trial.exists():
            trial.rmdir()


def task_variables(plan: Plan) -> Mapping[str, str]:
    """Return the variables by which every task of a job knows how the cluster differs from this machine."""
    found = {LINK_RATE_VARIABLE: plan.link_rate} if plan.link_rate else {}
    if plan.is_dilated:
        found[DILATION_VARIABLE] = f"{plan.dilation:g}"
        found[QUOTA_FOLDER_VARIABLE] = str(quota_folder(plan, processor_hierarchy()))
    return found


def remove_groups(state: Path) -> None:
    """Remove the groups of the cluster in `state`, whose processes have ended, if it has any."""
    try:
        folder = quota_folder(Plan(state), processor_hierarchy())
    except UserError:
        return

    def is_removed() -> bool:
        try:
            remove_group(folder)
        except OSError:  # busy: a process has not left yet
            return False
        return True

    if folder.exists() and not wait_until(is_removed, LEAVE_SECONDS):
        raise UserError(f"{folder}: a control group with processes in it cannot be removed", EXIT_BUG)

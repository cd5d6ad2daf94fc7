"""Start the cluster, take it down, and stop parts of it on purpose."""

import contextlib
import dataclasses
import os
import shutil
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

from slurm.virtual import accounting, configuration, namespaces, network, prerequisites, quota, services
from slurm.virtual.plan import Plan, command, plan_file, save
from slurm.virtual.processes import kill, kill_all, running, wait_until
from unet_scaling.study.errors import EXIT_BUG, UserError

FOLDERS = ("log", "processes", "controller", "spool", configuration.DEVICE_FOLDER)

MAIN_SERVICE = {"database": "slurmdbd"}
SERVERS = {"controller": services.start_controller, "database": accounting.start_slurmdbd}


def up(plan: Plan) -> Plan:
    """Start the cluster and return when every node is idle; after a failure nothing is left behind."""
    reason = prerequisites.missing_prerequisite(plan.accounting)
    if reason:
        raise UserError(reason)
    with network.choosing_alone():
        plan = dataclasses.replace(plan, network=network.free_network())
        _create_state_folder(plan)
        with _take_down_on_failure(plan):
            _connect_hosts(plan)
    with _take_down_on_failure(plan):
        _start_services(plan)
    return plan


@contextlib.contextmanager
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


def down(state: Path) -> bool:
    """Take down what runs, was half started or was left over in `state`; return False if nothing was."""
    if not plan_file(state).exists() and not namespaces.mounts_below(state):
        return False
    _kill_recorded(state)
    namespaces.release(state)
    network.disconnect(Plan(state))
    quota.remove_groups(state)
    _remove(state)
    return True


def _kill_recorded(state: Path) -> None:
    """Kill every process recorded in `state`, also one that records itself while this runs."""
    records = state / "processes"
    closed = state / "processes.closed"
    if records.exists():
        records.rename(closed)  # a daemon that has no record yet fails to write it, and never starts
    kill_all(lambda: [process for record in closed.glob("*") if (process := running(record))], closed)


def stop(plan: Plan, name: str) -> None:
    """Terminate slurmctld or slurmdbd, or cut the power of a node, its link first: no peer is told."""
    host = plan.host(name).name
    process = _process(plan, host)
    if process is None:
        raise UserError(f"{host} is not running; start it with: {command('start', plan.state, host)}")
    if host in SERVERS:
        kill([process], signal.SIGTERM)
        wait_until(lambda: _process(plan, host) is None, seconds=10)
    else:
        network.set_link(plan, host, "down")
        namespaces.kill_members(namespaces.pin(plan, host))


def start(plan: Plan, name: str) -> None:
    """Start what was stopped and return when Slurm uses it again."""
    host = plan.host(name).name
    if _process(plan, host) is not None:
        raise UserError(f"{host} is running already; stop it with: {command('stop', plan.state, host)}")
    if host in SERVERS:
        SERVERS[host](plan)
        return
    network.set_link(plan, host, "up")
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
    return running(plan.process_file(MAIN_SERVICE.get(host, host)))


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


def _connect_hosts(plan: Plan) -> None:
    quota.prepare_quotas(plan)
    _write_files(plan)
    if plan.is_dilated:
        _print_step(f"dilation: cores, links and time-outs of the workers are {plan.dilation:g} times slower")
    _print_step(f"hosts: {plan.hosts} nodes and the controller, in namespaces of their own")
    namespaces.prepare(plan)
    namespaces.make_bridge_host(plan)
    for host in plan.inner_hosts:
        namespaces.make_host(plan, host)
    _print_step(f"network: {plan.subnet}, link rate {plan.link_rate or 'not limited'}")
    network.connect(plan)


def _start_services(plan: Plan) -> None:
    _print_step("munge: with a key of its own")
    services.start_munge(plan)
    if plan.accounting:
        _print_step("accounting: MariaDB and slurmdbd")
        accounting.start_all(plan)
    _print_step("slurmctld and slurmd: waiting until every node is idle")
    services.start_controller(plan)
    for node in plan.nodes:
        services.start_node(plan, node.name)
    services.wait_until_usable(plan, [node.name for node in plan.nodes])


def _write_files(plan: Plan) -> None:
    for name in FOLDERS:
        (plan.state / name).mkdir()
    for number in range(plan.gpus_per_host):
        _make_device(plan.state / configuration.DEVICE_FOLDER / f"gpu{number}")
    plan.hosts_file.write_text(configuration.hosts_table(plan))
    plan.slurm_conf.write_text(configuration.slurm_conf(plan))
    if plan.has_variables:
        plan.task_prolog.write_text(configuration.task_prolog(quota.task_variables(plan)))
        plan.task_prolog.chmod(0o755)
    (plan.state / "gres.conf").write_text(configuration.gres_conf(plan))
    (plan.state / "cgroup.conf").write_text(configuration.cgroup_conf(prerequisites.slurm_version()))
    services.write_munge_key(plan)
    if plan.accounting:
        accounting.write_configuration(plan)


def _make_device(path: Path) -> None:
    """Create a copy of /dev/null: Slurm counts device files only."""
    os.mknod(path, mode=0o666 | stat.S_IFCHR, device=Path("/dev/null").stat().st_rdev)


def _remove(state: Path) -> None:
    """Delete the state folder; the plan goes last, so that an interrupted `down` can be repeated."""
    if left := namespaces.mounts_below(state):
        raise UserError(f"{state}: still mounted: {', '.join(map(str, left))}", EXIT_BUG)
    for path in state.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != plan_file(state):
            path.unlink()
    plan_file(state).unlink(missing_ok=True)
    state.rmdir()


def _print_step(step: str) -> None:
    print(step, flush=True)

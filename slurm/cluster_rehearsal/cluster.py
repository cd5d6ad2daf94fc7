"""Bringing the cluster up, taking it down, and failing parts of it on purpose."""

import dataclasses
import shutil
from pathlib import Path

from slurm.cluster_rehearsal import accounting, configuration, namespaces, network, prerequisites, services
from slurm.cluster_rehearsal.plan import Plan, command, load, plan_file, save
from slurm.cluster_rehearsal.processes import kill, kill_members, running, wait_until
from unet_scaling.errors import EXIT_BUG, UserError

FOLDERS = ("log", "processes", "controller", "spool", configuration.DEVICE_FOLDER)


def up(plan: Plan) -> Plan:
    """Bring the cluster up and wait until every node is idle; whatever goes wrong, nothing is left behind."""
    reason = prerequisites.why_not(plan.accounting)
    if reason:
        raise UserError(reason)
    plan = dataclasses.replace(plan, network=network.free_network())
    _claim(plan)
    try:
        _bring_up(plan)
    except BaseException:
        down(plan.state)
        raise
    return plan


def down(state: Path) -> bool:
    """Take down what is up, half up or left over in `state`; False if there was nothing."""
    if not plan_file(state).exists() and not namespaces.mounts_below(state):
        return False
    records = state / "processes"
    kill(found for record in _files(records) if (found := running(record)))
    namespaces.release(state)
    network.disconnect(Plan(state))
    if not wait_until(lambda: not any(map(running, _files(records))), seconds=10):
        raise UserError(f"{records}: a recorded process does not die", EXIT_BUG)
    shutil.rmtree(state)
    return True


def stop(plan: Plan, name: str) -> None:
    """Pull the plug of a node: cable first, so that no peer hears of it, then every process; or end slurmctld."""
    host = plan.host(name).name
    if running(plan.process_file(host)) is None and host != "database":
        raise UserError(f"{name} is not running; start it with: {command('start ' + name, plan.state)}")
    if host == plan.controller.name:
        kill_members(namespaces.pin(plan, host))
        return
    network.set_link(plan, host, "down")
    kill_members(namespaces.pin(plan, host))


def start(plan: Plan, name: str) -> None:
    """Start what was stopped, and wait until Slurm uses it again."""
    host = plan.host(name).name
    if running(plan.process_file(host)) is not None:
        raise UserError(f"{name} is running already; stop it with: {command('stop ' + name, plan.state)}")
    if host == plan.controller.name:
        services.start_controller(plan)
        return
    network.set_link(plan, host, "up")
    services.start_node(plan, host)
    services.wait_until_usable(plan, [host])

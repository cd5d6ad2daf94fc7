"""The configuration files of Slurm as text: pure functions of the plan."""

import shlex
import socket
from collections.abc import Mapping
from math import ceil

from slurm.virtual.plan import Plan

FIRST_VERSION_WITHOUT_CGROUPS = (24, 5)
# A requeued job waits until its credential expires: this long, instead of Slurm's two minutes.
CREDENTIAL_SECONDS = 15
# Slurm's own time from SIGTERM to SIGKILL, in which slowed workers save their state.
KILL_WAIT_SECONDS = 30
DEVICE_FOLDER = "gpus"
# What a node claims to have; nothing enforces it.
MEMORY_MEGABYTES = 64000


def slurm_conf(plan: Plan) -> str:
    """Return the text of slurm.conf; what the user set with --set replaces a default of the same name."""
    values = {**_identity(plan), **_files(plan), **_behaviour(plan), **_accounting(plan)}
    known = {key.lower(): key for key in values}
    for key, value in plan.settings:
        values[known.get(key.lower(), key)] = value
    lines = [f"{key}={value}" for key, value in values.items()]
    return "\n".join([*lines, _nodes(plan), *_partitions(plan)]) + "\n"


def gres_conf(plan: Plan) -> str:
    """Return the text of gres.conf: null devices stand for the GPUs."""
    if not plan.gpus_per_host:
        return ""
    names = f"gpu[0-{plan.gpus_per_host - 1}]" if plan.gpus_per_host > 1 else "gpu0"
    return f"NodeName={_node_range(plan)} Name=gpu File={plan.state}/{DEVICE_FOLDER}/{names}\n"


def cgroup_conf(version: tuple[int, int]) -> str:
    """Return the text of cgroup.conf that makes this Slurm leave control groups alone.

    Before 24.05 they cannot be switched off; the older interface at least touches nothing until it is used.
    """
    disabled = version >= FIRST_VERSION_WITHOUT_CGROUPS
    return f"CgroupPlugin={'disabled' if disabled else 'cgroup/v1'}\n"


def slurmdbd_conf(plan: Plan) -> str:
    """Return the text of slurmdbd.conf; the database listens inside the host `database` only."""
    values = {
        "DbdHost": plan.database.name,
        "DbdAddr": plan.database.address,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={plan.munge_socket}",
        "SlurmUser": "root",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StorageUser": "slurm",
        "StorageLoc": "slurm_accounting",
        "LogFile": plan.log("slurmdbd"),
        "PidFile": plan.state / "slurmdbd.pid",
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def task_prolog(variables: Mapping[str, str]) -> str:
    """Return the text of the script by which Slurm sets these variables for every task of a job."""
    lines = [f"echo {shlex.quote(f'export {name}={value}')}" for name, value in variables.items()]
    return "\n".join(["#!/bin/sh", *lines]) + "\n"


def hosts_table(plan: Plan) -> str:
    """Return the text of /etc/hosts inside every host; the caller's machine is known by its own name, too."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{host.address} {host.name}" for host in plan.inner_hosts]
    lines.append(f"{plan.login.address} {plan.login.name} {socket.gethostname()}")
    return "\n".join(lines) + "\n"


def _identity(plan: Plan) -> dict[str, object]:
    return {
        "ClusterName": "virtual",
        "SlurmctldHost": f"{plan.controller.name}({plan.controller.address})",
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={plan.munge_socket},cred_expire={CREDENTIAL_SECONDS}",
    }


def _files(plan: Plan) -> dict[str, object]:
    return {
        "StateSaveLocation": plan.state / "controller",
        "SlurmdSpoolDir": plan.state / "spool" / "%n",
        "SlurmctldPidFile": plan.state / "slurmctld.pid",
        "SlurmdPidFile": plan.state / "%n.pid",
        "SlurmctldLogFile": plan.log("controller"),
        "SlurmdLogFile": plan.log("%n"),
        "MailProg": "/bin/true",
        **({"TaskProlog": plan.task_prolog} if plan.has_variables else {}),
    }


def _behaviour(plan: Plan) -> dict[str, object]:
    """Return settings that confine no process and trust the hardware given: any geometry fits on a laptop."""
    gpus = {"GresTypes": "gpu"} if plan.gpus_per_host else {}
    return {
        "ProctrackType": "proctrack/pgid",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SlurmdParameters": "config_overrides",
        "MpiDefault": "none",
        "ReturnToService": 2,
        "SlurmdTimeout": 15,
        **({"KillWait": ceil(KILL_WAIT_SECONDS * plan.dilation)} if plan.is_dilated else {}),
        **gpus,
    }


def _accounting(plan: Plan) -> dict[str, object]:
    if not plan.accounting:
        return {}
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": plan.database.address,
        "AccountingStoragePass": plan.munge_socket,  # despite its name: where munge listens
        "AccountingStorageTRES": "gres/gpu",
    }


def _node_range(plan: Plan) -> str:
    return f"node[1-{plan.hosts}]" if plan.hosts > 1 else "node1"


def _nodes(plan: Plan) -> str:
    addresses = _node_range(plan).replace("node", f"10.77.{plan.network}.")
    cores = plan.cores_per_host
    gpus = f" Gres=gpu:{plan.gpus_per_host}" if plan.gpus_per_host else ""
    return (
        f"NodeName={_node_range(plan)} NodeAddr={addresses} Boards=1 SocketsPerBoard=1 CoresPerSocket={cores}"
        f" ThreadsPerCore=1 RealMemory={MEMORY_MEGABYTES}{gpus}"
    )


def _partitions(plan: Plan) -> list[str]:
    first, *others = plan.partitions
    shape = "Nodes=ALL MaxTime=INFINITE State=UP"
    return [
        f"PartitionName={first} Default=YES {shape}",
        *(f"PartitionName={name} {shape}" for name in others),
    ]

"""Requirements of a virtual cluster on this machine: what is missing, and its installation."""

import os
import re
import shutil
import sys
from pathlib import Path

from slurm.virtual import namespaces
from slurm.virtual.processes import SYSTEM_FOLDERS, run
from unet_scaling.study.errors import UserError

PACKAGE_OF_PROGRAM = {
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sbatch": "slurm-wlm",
    "srun": "slurm-wlm",
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
}
PACKAGE_OF_ACCOUNTING_PROGRAM = {"mariadbd": "mariadb-server", "slurmdbd": "slurmdbd"}
SERVICES_OF_PACKAGE = {
    "munge": ["munge"],
    "slurm-wlm": ["slurmctld", "slurmd"],
    "mariadb-server": ["mariadb"],
    "slurmdbd": ["slurmdbd"],
}
# Debian asks this program whether an installed service may start; code 101 means no.
START_POLICY = Path("/usr/sbin/policy-rc.d")


def missing_prerequisite(accounting: bool = False) -> str | None:
    """Return why no virtual cluster can run here, and what to do about it; None if one can."""
    if sys.platform != "linux":
        return f"a virtual cluster needs the namespaces of Linux, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "a virtual cluster makes namespaces and network links, so it needs root: run this with sudo"
    packages = missing_packages(accounting)
    if packages:
        names = " ".join(packages)
        options = "--accounting --install" if accounting else "--install"
        return (
            f"programs are missing; their Debian packages are: {names}. "
            f"Install them with `slurm/virtual_cluster up {options}`, or with `apt-get install {names}`"
        )
    refusal = namespaces.refusal()
    if refusal is None:
        return None
    return (
        f"this kernel or container does not let root make a host: {refusal}. "
        "Run on the machine itself, or in a container with all privileges"
    )


def missing_packages(accounting: bool = False) -> list[str]:
    """Return the Debian packages of the programs that are missing, in alphabetical order."""
    wanted = {**PACKAGE_OF_PROGRAM, **(PACKAGE_OF_ACCOUNTING_PROGRAM if accounting else {})}
    missing = {
        package for program, package in wanted.items() if not shutil.which(program, path=SYSTEM_FOLDERS)
    }
    return sorted(missing)


def install(accounting: bool = False) -> None:
    """Install what is missing with apt-get and keep its services from starting, now and at the next boot."""
    packages = missing_packages(accounting)
    if not packages:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise UserError(f"--install needs root and apt-get; install by other means: {' '.join(packages)}")
    print(f"installing {' '.join(packages)} ...", flush=True)
    policy_is_new = _forbid_services_to_start()
    try:
        _apt_get("update")
        _apt_get("install", "--no-install-recommends", *packages)
    finally:
        if policy_is_new:
            START_POLICY.unlink()
    _keep_off_at_boot(packages)


def _apt_get(*arguments: str) -> None:
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    options = {"DEBIAN_FRONTEND": "noninteractive", **proxies}
    run(["apt-get", "--quiet", "--yes", *arguments], environment=options)


def slurm_version() -> tuple[int, int]:
    """Return year and month of the installed Slurm."""
    printed = run(["slurmd", "-V"])
    match = re.search(r"(\d+)\.(\d+)", printed)
    if match is None:
        raise UserError(f"`slurmd -V` printed {printed!r}, which holds no version; is this Slurm's slurmd?")
    return int(match[1]), int(match[2])


def _forbid_services_to_start() -> bool:
    """Return whether this wrote the policy, to be removed again; one that is there already is kept."""
    try:
        with START_POLICY.open("x") as policy:
            policy.write("#!/bin/sh\nexit 101\n")
    except FileExistsError:
        return False
    START_POLICY.chmod(0o755)
    return True


def _keep_off_at_boot(packages: list[str]) -> None:
    if not Path("/run/systemd/system").exists():
        return
    services = [service for package in packages for service in SERVICES_OF_PACKAGE.get(package, [])]
    run(["systemctl", "disable", *services])

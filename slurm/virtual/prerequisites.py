"""Whether a virtual cluster can run on this machine, and how to make it so."""

import os
import re
import shutil
import sys
from pathlib import Path

from slurm.virtual import namespaces
from slurm.virtual.processes import SYSTEM_FOLDERS, run
from unet_scaling.study.errors import UserError

PACKAGES = {
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
ACCOUNTING_PACKAGES = {"mariadbd": "mariadb-server", "slurmdbd": "slurmdbd"}
SERVICES = {
    "munge": ["munge"],
    "slurm-wlm": ["slurmctld", "slurmd"],
    "mariadb-server": ["mariadb"],
    "slurmdbd": ["slurmdbd"],
}
# Debian asks this program whether an installed service may start; code 101 means no.
START_POLICY = Path("/usr/sbin/policy-rc.d")


def why_not(accounting: bool = False) -> str | None:
    """Why no virtual cluster can run here, with the cure; None if one can."""
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
    said = namespaces.refusal()
    if said:
        return (
            f"this kernel, or the container we are in, does not let root make a host: {said}. "
            "Run on the machine itself, or in a container with all privileges"
        )
    return None


def missing_packages(accounting: bool = False) -> list[str]:
    """Debian packages of the programs that are not there, in alphabetical order."""
    wanted = {**PACKAGES, **(ACCOUNTING_PACKAGES if accounting else {})}
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
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    forbidden = _forbid_services_to_start()
    try:
        quiet = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet", "--yes"]
        run([*quiet, "update"], environment=proxies)
        run([*quiet, "install", "--no-install-recommends", *packages], environment=proxies)
    finally:
        if forbidden:
            START_POLICY.unlink()
    _keep_off_at_boot(packages)


def slurm_version() -> tuple[int, int]:
    """Year and month of the installed Slurm."""
    printed = run(["slurmd", "-V"])
    found = re.search(r"(\d+)\.(\d+)", printed)
    if found is None:
        raise UserError(f"`slurmd -V` printed {printed!r}, which holds no version; is this Slurm's slurmd?")
    return int(found[1]), int(found[2])


def _forbid_services_to_start() -> bool:
    """True if the policy is ours to remove again; one that is there already stays as it is."""
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
    services = [service for package in packages for service in SERVICES.get(package, [])]
    run(["systemctl", "disable", *services])

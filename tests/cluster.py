"""A virtual cluster for tests: a real Slurm of seven hosts, brought up once and always taken down."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from unet_scaling.study.config import PROJECT

PROGRAM = PROJECT / "slurm" / "virtual_cluster"
# The folder carries the process id of its tests, so that a later session finds what a killed one left.
FOLDERS = Path("/run")
FOLDER_PREFIX = "virtual_cluster_tests."
SHAPE = ("--hosts", "7", "--gpus-per-host", "2", "--cores-per-host", "24", "--link-rate", "1gbit")
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class VirtualCluster:
    """A cluster that is up; commands run in `environment` reach its Slurm."""

    state: Path

    @property
    def environment(self) -> dict[str, str]:
        """The caller's environment without Slurm's own variables, and with the cluster's slurm.conf."""
        foreign = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return {**kept, "SLURM_CONF": str(self.state / "slurm.conf")}

    def run(self, *command: str, folder: Path | None = None, check: bool = True) -> str:
        """Run a command from outside the cluster, such as sbatch; returns what it printed."""
        done = subprocess.run(command, cwd=folder, env=self.environment, capture_output=True, text=True)
        assert not check or done.returncode == 0, f"{command}: code {done.returncode}: {done.stderr}"
        return done.stdout

    def submit(self, script: str, folder: Path, *options: str) -> str:
        """Submit the text of a batch script from `folder`; returns the job's id."""
        file = folder / "job.sbatch"
        file.write_text(f"#!/bin/bash\n{script}\n")
        return self.run("sbatch", "--parsable", *options, str(file), folder=folder).strip()

    def inside(self, host: str, *command: str) -> Done:
        """Run a command inside a host."""
        return control("exec", "--state-dir", str(self.state), host, "--", *command)

    def stop(self, host: str) -> None:
        """Pull the plug of a node, or end the controller's daemon."""
        assert_ok(control("stop", "--state-dir", str(self.state), host))

    def start(self, host: str) -> None:
        """Start what was stopped, and wait until Slurm uses it."""
        assert_ok(control("start", "--state-dir", str(self.state), host))


@pytest.fixture(scope="session")
def virtual_cluster() -> Iterator[VirtualCluster]:
    """Seven hosts of two GPUs and 24 cores; skipped with the reason where none can run."""
    with bring_up("shared", *SHAPE) as cluster:
        yield cluster


@contextlib.contextmanager
def bring_up(name: str, *options: str) -> Iterator[VirtualCluster]:
    """A cluster of one's own beside the shared one; taken down whatever happens."""
    skip_without_cluster()
    remove_leftovers()
    state = state_folder(name)
    assert_ok(control("up", "--state-dir", str(state), *options))
    try:
        yield VirtualCluster(state)
    finally:
        assert_ok(control("down", "--state-dir", str(state)))


def state_folder(name: str) -> Path:
    return FOLDERS / f"{FOLDER_PREFIX}{os.getpid()}.{name}"


def skip_without_cluster() -> None:
    from slurm.virtual.cluster import missing_prerequisite  # a capability: test_capabilities.py

    if reason := missing_prerequisite():
        pytest.skip(f"no virtual cluster here: {reason}")


def control(*words: str) -> Done:
    """Run slurm/virtual_cluster to its end."""
    return subprocess.run([str(PROGRAM), *words], capture_output=True, text=True)


def assert_ok(done: Done) -> None:
    assert done.returncode == 0, f"{done.args}: code {done.returncode}: {done.stderr}"


def remove_leftovers() -> None:
    """Take down the clusters of test sessions that were killed."""
    for state in FOLDERS.glob(f"{FOLDER_PREFIX}*"):
        process = state.name.removeprefix(FOLDER_PREFIX).split(".")[0]
        if not Path("/proc", process).exists():
            assert_ok(control("down", "--state-dir", str(state)))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(
    condition: Callable[[], bool],
    what: str,
    seconds: float,
    pause: float = 0.2,
    account: Callable[[], str] = str,
) -> None:
    """Ask until `condition` holds; after `seconds` fail, and say how things stand by `account`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}\n{account()}"
        time.sleep(pause)

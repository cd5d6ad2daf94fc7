"""Launch the scripts of tests/scripts, which record themselves, with real workers."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm.local import launch
from unet_scaling.study.config import PROJECT
from unet_scaling.study.record import RECORD_NAME, Record, read_record

SCRIPTS = PROJECT / "tests" / "scripts"
STUDY = "scripts"


def start_torchrun_workers(
    script: str, workers: int, logs: Path, *options: str
) -> list[subprocess.Popen[str]]:
    """Start the workers of a script with the variables by which torchrun tells them their rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(workers)}
    return [
        start_process(script, logs, options, variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(workers)
    ]


def start_process(
    script: str, logs: Path, options: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start one process of a script."""
    return subprocess.Popen(
        [sys.executable, str(SCRIPTS / script), STUDY, str(logs), *options],
        cwd=PROJECT,
        env=os.environ | dict(variables or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outputs(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Return what workers printed, once all have ended well."""
    texts = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(texts)
    return texts


def run_torchrun(script: str, workers: int, logs: Path, *options: str) -> list[str]:
    """Run a script on workers as torchrun starts them; return what they printed, by rank."""
    return outputs(start_torchrun_workers(script, workers, logs, *options))


def run_mpiexec(script: str, workers: int, logs: Path) -> None:
    """Run a script on workers that mpiexec starts."""
    output = logs / f"{script}.log"
    code = launch([str(SCRIPTS / script), STUDY, str(logs)], workers, output, None)
    assert code == 0, output.read_text()


def records(logs: Path, pattern: str = "*") -> list[Record]:
    """Return the records of the study, by the names of their folders."""
    return [read_record(folder / RECORD_NAME) for folder in sorted((logs / STUDY).glob(f"script-{pattern}"))]

"""Studies that tests submit by the real command to the virtual cluster, watch, and wait for."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Done, VirtualCluster, wait_until
from tests.studies import TINY_STUDY
from unet_scaling.study.config import FRAMEWORKS, PROJECT

SUBMISSION = str(PROJECT / "slurm" / "submission.sh")
VIRTUAL = (PROJECT / "slurm" / "clusters" / "virtual.toml").read_text()
ON_THE_WAY = {"queued", "running", "unknown"}
POLL_SECONDS = 2.0  # each look starts a python, which takes its time from the runs
SHOWN_LINES = 15
Row = dict[str, Any]


class Sweep:
    """One study of a test: its files in `folder`, its run folders below `logs`."""

    def __init__(
        self, cluster: VirtualCluster, folder: Path, data: Path, name: str, logs: Path | None = None
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        self.data = data
        self.name = name
        self.logs = logs or folder / "logs"
        self.site = VIRTUAL

    def prepare(
        self,
        workers: list[int],
        epochs: int = 2,
        more: str = "",
        frameworks: Sequence[str] = FRAMEWORKS,
    ) -> None:
        """Write the study; `more` is what follows the keys of its [training] table."""
        text = TINY_STUDY.format(workers=workers, data=self.data, epochs=epochs) + more
        (self.folder / f"{self.name}.toml").write_text(f"frameworks = {json.dumps(frameworks)}\n{text}")

    def pace(self, seconds: float) -> None:
        """Let every step take at least so long, so that a run lasts on any machine until `let_go`."""
        self._set_pace(seconds)
        words = ["--mpi=pmi2", sys.executable, str(PROJECT / "tests" / "paced.py"), str(self._pace_file)]
        self.site = re.sub("launcher_arguments.*", f"launcher_arguments = {json.dumps(words)}", self.site)
        self.site += f'PYTHONPATH = "{PROJECT}"\n'

    def let_go(self) -> None:
        """Let the steps, also of runs under way, be as fast as they can."""
        self._set_pace(0)

    @property
    def _pace_file(self) -> Path:
        return self.folder / f"{self.name}.pace"

    def _set_pace(self, seconds: float) -> None:
        """Whole at any moment: steps read it meanwhile."""
        new = self._pace_file.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._pace_file)

    def command(self, *options: str) -> list[str]:
        site = self.folder / "site.toml"
        site.write_text(self.site)
        study = str(self.folder / f"{self.name}.toml")
        return [SUBMISSION, study, "--cluster", str(site), "--logs", str(self.logs), *options]

    def submit(self, *options: str, seconds: float = 780) -> Done:
        environment = self.cluster.environment
        return subprocess.run(
            self.command(*options), env=environment, capture_output=True, text=True, timeout=seconds
        )

    def rows(self) -> list[Row]:
        command = [SUBMISSION, "status", self.name, "--json", "--logs", str(self.logs)]
        rows: list[Row] = json.loads(self.cluster.run(*command))
        return rows

    def row(self, run: str) -> Row:
        return next(row for row in self.rows() if row["run"] == run)

    def states(self) -> set[str]:
        return {row["state"] for row in self.rows()}

    def wait_until(self, condition: Callable[[list[Row]], bool], what: str, seconds: float) -> None:
        """Ask for the rows until they fulfil `condition`; a failure shows how every run stands."""
        wait_until(lambda: condition(self.rows()), what, seconds, POLL_SECONDS, self.account)

    def wait_for(self, state: str, seconds: float = 120) -> None:
        """Until every run is in this state; at once a failure where one can no longer come to it."""

        def all_are(rows: list[Row]) -> bool:
            states = {row["state"] for row in rows}
            assert states <= {*ON_THE_WAY, state}, f"{self.name} cannot be {state} any more\n{self.account()}"
            return states == {state}

        self.wait_until(all_are, f"{self.name} to be {state}", seconds)

    def wait_for_first_epoch(self, seconds: float = 240) -> None:
        """Until every run trains: its processes are there, and it has something to lose."""

        def all_train(rows: list[Row]) -> bool:
            over = [row["run"] for row in rows if row["state"] not in ON_THE_WAY]
            assert not over, f"{over} ended before the first epoch\n{self.account()}"
            return all(row["epochs_done"] > 0 for row in rows)

        self.wait_until(all_train, f"the first epoch of {self.name}", seconds)

    def run_folders(self) -> list[Path]:
        return sorted(path.parent for path in (self.logs / self.name).glob("*/config.json"))

    def account(self) -> str:
        """All that tells why runs are not where they should be: states, Slurm's view, ends of logs."""
        told = [f"{row['run']}: {row}" for row in self.rows()]
        told.append(self.cluster.run("squeue", "--states=all", "--long", check=False))
        told.append(self.cluster.run("sinfo", "--long", "--Node", check=False))
        for log in sorted((self.logs / self.name).glob("*/output.log")):
            told += [f"{log}:", *log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]]
        return "\n".join(told)

    def cancel(self) -> None:
        command = [SUBMISSION, "cancel", self.name, "--logs", str(self.logs)]
        self.cluster.run(*command, check=False)


@pytest.fixture
def sweep(
    virtual_cluster: VirtualCluster, images: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Sweep]:
    name = re.sub("[^a-z]+", "-", request.node.name.removeprefix("test_"))[:40].strip("-")
    made = Sweep(virtual_cluster, tmp_path, images, name)
    yield made
    made.cancel()

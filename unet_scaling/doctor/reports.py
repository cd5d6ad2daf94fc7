"""What the workers of a doctor's launch report: one JSON file each, in a folder that all nodes share.

A file is written before the worker joins anything, and again after each stage, so that it tells how far a
worker came that did not come back. Imported on login nodes: needs neither torch nor a network.
"""

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from unet_scaling.measure.ping_pong import HostPair
from unet_scaling.study.files import read_json_with_checksum, write_json_with_checksum
from unet_scaling.study.record_lines import WorkerFacts
from unet_scaling.study.validation import StrictModel

REPORT_PATTERN = "worker.*.json"
# The last stage that a worker completed, in their order.
Stage = Literal[
    "started", "joined by torch", "exchanged small messages", "measured", "joined by MPI", "finished"
]


class WorkerReport(StrictModel):
    """One worker: who it is by its launcher, where it runs, and what it measured so far."""

    stage: Stage = "started"
    problem: str = Field("", description="why it got no further")
    rank: NonNegativeInt
    size: PositiveInt = Field(description="of its group, as the launcher says")
    launcher: str
    launcher_variables: dict[str, str] = Field(description="what launchers tell a rank by, as far as set")
    facts: WorkerFacts
    host_cores: PositiveInt
    versions: dict[str, str]
    addresses: dict[str, str] = Field(description="IPv4, by interface")
    interface: str = Field(description="over which gloo talks, whether or not it exists; empty for none")
    own_address: str = Field(description="what the host's own name resolves to")
    joined_workers: PositiveInt | None = Field(None, description="in torch's group")
    mpi_workers: PositiveInt | None = Field(None, description="in MPI's group")
    clock_offset_seconds: float | None = Field(None, description="from the clock of worker 0")
    clock_error_seconds: NonNegativeFloat | None = Field(None, description="of that offset, at most")
    operations_per_second: PositiveFloat | None = Field(None, description="of a product of two matrices")
    horovod_built: str = Field("", description="with what Horovod was built; empty where it does not load")
    pairs: list[HostPair] = Field([], description="by worker 0 only")

    @property
    def address(self) -> str:
        """Return the address of the interface over which gloo talks; empty where it has none."""
        return self.addresses.get(self.interface, "")

    @property
    def place(self) -> str:
        return f"worker {self.rank} on {self.facts.host}"


def report_path(folder: Path, host: str, process: int) -> Path:
    """Return the file of a worker, which may not know its rank."""
    return folder / REPORT_PATTERN.replace("*", f"{host}.{process}")


def write_worker_report(folder: Path, report: WorkerReport) -> None:
    path = report_path(folder, report.facts.host, report.facts.process)
    write_json_with_checksum(path, report.model_dump(mode="json"))


def read_reports(folder: Path) -> list[WorkerReport]:
    """Return the reports in the folder by rank, host and process. Raises ValueError for a damaged one."""
    paths = sorted(folder.glob(REPORT_PATTERN))
    reports = [WorkerReport.model_validate_json(json.dumps(read_json_with_checksum(path))) for path in paths]
    return sorted(reports, key=lambda report: (report.rank, report.facts.host, report.facts.process))

"""Read the cluster file: where a study runs, and the geometry of a job for each worker count."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from slurm.scheduler import DEFAULT_SCHEDULER, SCHEDULERS, get_scheduler
from slurm.scheduler.protocol import Scheduler
from slurm.scheduler.sbatch_options import as_one_word, refuse_gpu_binding
from unet_scaling import CODE_FOLDER
from unet_scaling.base.errors import UserError
from unet_scaling.base.validation import Allowed, StrictModel, read_toml, validated
from unet_scaling.study.config import PROJECT

# What may stand in an option of a job script: a newline there would end the comment and run as shell.
OPTION_PATTERN = r"^[A-Za-z0-9._,:+/=@%\[\]-]+$"
# A word behind a blank that begins with - would be an option of its own.
_LETTERS = r"A-Za-z0-9._,:+/=@%\[\]&|()*"
SCHEDULER_OPTION_PATTERN = rf"^[{_LETTERS}-]+( +[{_LETTERS}][{_LETTERS}-]*)*$"
TIME_LIMIT_PATTERN = r"^(\d+-)?\d+(:\d+){0,2}$"
Option = Annotated[
    str,
    Field(pattern=OPTION_PATTERN),
    Allowed("a text of letters, digits and ._,:+/=@%[]- without spaces"),
]
Variable = Annotated[
    str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$"), Allowed("a name of capital letters, digits and _")
]
Word = Annotated[
    str, Field(pattern=r"^[^\x00-\x1f\x7f]+$"), Allowed("a text without line breaks and control characters")
]


def _check_option(option: str, info: ValidationInfo) -> str:
    return SCHEDULERS[info.data.get("scheduler", DEFAULT_SCHEDULER)].check_option(option)


SchedulerOption = Annotated[
    str,
    Field(pattern=SCHEDULER_OPTION_PATTERN),
    Allowed("one option with its value, of letters, digits, blanks and ._,:+/=@%[]&|()*-"),
    BeforeValidator(lambda value: as_one_word(value) if isinstance(value, str) else value),
    AfterValidator(_check_option),
]
TimeLimit = Annotated[
    str,
    Field(pattern=TIME_LIMIT_PATTERN),
    Allowed('a limit as Slurm writes it, such as "30" minutes, "02:00:00" or "1-12:00"'),
]
DAY_SECONDS = 24 * 3600


class Cluster(StrictModel):
    """A TOML file of slurm/clusters/: the only place, besides environment/load.sh, that knows a site."""

    scheduler: Literal[tuple(SCHEDULERS)] = Field(  # type: ignore[valid-type]
        DEFAULT_SCHEDULER, description="what jobs are submitted to", examples=["slurm"]
    )
    launcher: Literal["srun", "mpiexec"] = Field(
        description="what starts the workers, the same for all frameworks", examples=["srun"]
    )
    launcher_command: list[Word] = Field(
        [], description="instead of the launcher's plain name", examples=[["$MPIEXEC"]]
    )
    launcher_arguments: Annotated[list[Word], AfterValidator(refuse_gpu_binding)] = Field(
        [], description="further arguments of the launcher", examples=[["--mpi=pmix"]]
    )
    gpus_per_node: PositiveInt = Field(description="workers on a full node: one per GPU", examples=[4])
    cores_per_worker: PositiveInt = Field(
        description="cores of each worker, equal at every worker count", examples=[16]
    )
    max_nodes: PositiveInt | None = Field(
        None, description="the largest job that may be asked for; default: any", examples=[7]
    )
    gres: Option | Literal[""] = Field(
        "gpu", description='generic resource of a GPU; "" for CPU workers', examples=["gpu:volta"]
    )
    pin_cores: bool = Field(False, description="workers take their cores themselves; where Slurm binds none")
    partition: Option | None = Field(
        None, description="where the jobs run; default: the site's own", examples=["gpu"]
    )
    account: Option | None = Field(
        None, description="who pays for the jobs; default: the user's own", examples=["project0000"]
    )
    time: TimeLimit = Field(description="limit of one job", examples=["02:00:00"])
    stop_seconds: PositiveInt = Field(300, description="how long before the limit runs save and stop")
    ping_pong: bool = Field(False, description="jobs of several nodes first time MPI between them")
    doctor: bool = Field(
        False, description="before a study's first job, a job of half a minute tries the launch itself"
    )
    requeue: bool = Field(True, description="a run that stopped asks Slurm to start its job again")
    options: list[SchedulerOption] = Field(
        [], description="further sbatch options", examples=[["--exclusive"]]
    )
    environment: dict[Variable, Word] = Field(
        {},
        description="variables to set for every worker; MASTER_ADDR is the address at which they meet, in "
        "which {host} is the first host's name",
        examples=[{"UCX_TLS": "tcp,self", "MASTER_ADDR": "{host}i"}],
        json_schema_extra={"additionalProperties": False},
    )
    prologue: Word | None = Field(
        None,
        description="shell file to source before the launch, for modules; below the project's folder, or a "
        "whole path; default: none",
        examples=["environment/load.sh"],
    )
    container: Word | None = Field(
        None,
        description="image in which workers run, with its own python3, torch and Horovod; below the "
        "project's folder, or a whole path; default: none",
        examples=["/project/images/torch.sif"],
    )
    container_command: list[Word] = Field(
        [],
        description="what starts a program in it; default: apptainer exec, on GPUs with --nv",
        examples=[["singularity", "exec", "--nv"]],
    )
    max_queued: PositiveInt = Field(1000, description="jobs of a study in the queue at once")
    cluster_name: Option | None = Field(
        None, description="the cluster to name in every call, where a site has several", examples=["cm4"]
    )
    keep_variables: list[Variable] = Field(
        [],
        description="variables of the submitting shell that jobs get; those of Slurm, MPI, Python and the "
        "loader are dropped without it",
        examples=[["SLURM_JWT"]],
    )

    @field_validator("gres")
    @classmethod
    def _without_the_count(cls, gres: str, info: ValidationInfo) -> str:
        """Return the resource without its count, which follows from gpus_per_node."""
        gpu, comma, others = gres.partition(",")
        matched = re.fullmatch(r"([A-Za-z][\w.-]*(?::(?![0-9]+(?::|$))[\w.+-]+)?)(?::([0-9]+))?", gpu)
        if matched is None and gres:
            raise ValueError(f"{gres!r} is no resource as in sinfo --format=%G; write gpu, or gpu:a100")
        name, number = matched.groups() if matched else ("", None)
        if number and int(number) != info.data.get("gpus_per_node"):
            raise ValueError(f"{gres!r} asks for {number}: use gres = '{name}' and gpus_per_node = {number}")
        return f"{name}{comma}{others}"

    @model_validator(mode="after")
    def _stops_before_the_limit(self) -> Self:
        if self.stop_seconds >= self.limit_seconds:
            raise ValueError(
                f"stop_seconds: found {self.stop_seconds}; allowed: less than time, {self.limit_seconds} s"
            )
        return self

    def format_gres(self, workers: int) -> str:
        """Return the resources of a node with so many workers, as --gres takes them."""
        gpu, comma, others = self.gres.partition(",")
        return f"{gpu}:{workers}{comma}{others}"

    def get_scheduler(self) -> Scheduler:
        """Return the scheduler to ask."""
        return get_scheduler(self.scheduler, self.cluster_name, self.keep_variables)

    @property
    def limit_seconds(self) -> int:
        """Return the limit of one job."""
        return limit_seconds(self.time)

    @property
    def largest(self) -> int | None:
        """Return the largest worker count that fits, where the file limits the nodes."""
        return None if self.max_nodes is None else self.max_nodes * self.gpus_per_node


@dataclass(frozen=True)
class Geometry:
    """The nodes and workers of a job. The last node may hold fewer workers than the others."""

    workers: int
    nodes: int
    workers_per_node: int


@dataclass(frozen=True)
class Cost:
    """What jobs take of a cluster; gpu_hours are 0 where it has no GPUs."""

    node_hours: float
    gpu_hours: float

    def __str__(self) -> str:
        gpus = f", {_hours(self.gpu_hours)} GPU-hours" if self.gpu_hours else ""
        return f"{_hours(self.node_hours)} node-hours{gpus}"


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"


def cost_of(cluster: Cluster, jobs: Iterable[tuple[Geometry, float]]) -> Cost:
    """Return what jobs take, each given by its geometry and its seconds.

    A job that has its nodes to itself holds all of their GPUs.
    """
    is_whole = "--exclusive" in cluster.options
    node_seconds = gpu_seconds = 0.0
    for shape, seconds in jobs:
        gpus = cluster.gpus_per_node if is_whole else shape.workers_per_node
        node_seconds += shape.nodes * seconds
        gpu_seconds += shape.nodes * gpus * seconds if cluster.gres else 0.0
    return Cost(node_seconds / 3600, gpu_seconds / 3600)


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file; raises UserError naming file, key, value and what is allowed."""
    content = read_toml(path, CODE_FOLDER / "slurm" / "clusters")
    if "workers" in content and "launcher" not in content:
        raise UserError(f"{path} is a study file; --cluster names a cluster file, such as of slurm/clusters/")
    return validated(Cluster, content, str(path))


def plan_geometry(cluster: Cluster, workers: int) -> Geometry:
    """Return the fewest nodes that hold the workers, one per GPU. Raises UserError naming what would fit."""
    if cluster.largest is not None and workers > cluster.largest:
        needed = -(-workers // cluster.gpus_per_node)
        raise UserError(
            f"{workers} workers need {needed} nodes, max_nodes is {cluster.max_nodes}; the nearest possible "
            f"worker count is {cluster.largest}"
        )
    per_node = min(workers, cluster.gpus_per_node)
    return Geometry(workers, -(-workers // per_node), per_node)


def find_prologue(cluster: Cluster) -> str | None:
    """Return the prologue as an absolute path; raises UserError where there is no such file."""
    if cluster.prologue is None:
        return None
    path = PROJECT / cluster.prologue
    if not path.is_file():
        cure = "name a shell file, in which commands such as `module load gcc` stand"
        raise UserError(f"prologue = {cluster.prologue!r}: {path} does not exist; {cure}")
    return str(path)


def find_container(cluster: Cluster) -> str | None:
    """Return the container's image as an absolute path; raises UserError where there is none."""
    if cluster.container is None:
        return None
    path = PROJECT / cluster.container
    if not path.exists():
        cure = "name an image (*.sif) or sandbox folder that this host and the nodes read"
        raise UserError(f"container = {cluster.container!r}: {path} does not exist; {cure}")
    return str(path)


def limit_seconds(time: str) -> int:
    """Return the seconds of a Slurm time limit: m, m:s, h:m:s, days-h, days-h:m or days-h:m:s."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if not dash and len(parts) < 3:  # m or m:s, without hours
        parts = [0, *parts]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return int(days or 0) * DAY_SECONDS + hours * 3600 + minutes * 60 + seconds

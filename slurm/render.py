"""Render job scripts: pure functions of cluster, configurations and folders, apart from writing them."""

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from slurm.cluster import Cluster, Geometry, find_prologue, plan_geometry
from unet_scaling.base.errors import UserError
from unet_scaling.base.files import open_to_append, write_atomically
from unet_scaling.group.identity import IDENTITY_VARIABLES, KEEP_MEMORY
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.study.frameworks import training_script
from unet_scaling.study.study_file import OUTPUT_NAME, PING_PONG_NAME

SCRIPT_NAME = "job.sbatch"
IGNORE_USR2_UNTIL_HANDLER = 'trap "" USR2; exec "$@"'
# The Python that jobs use: that of this environment.
PYTHON = sys.executable


def write_script(folder: Path, script: str) -> Path:
    """Write the script of a job, and its empty output, which Slurm would make readable for others."""
    path = folder / SCRIPT_NAME
    open_to_append(folder / OUTPUT_NAME).close()
    write_atomically(path, script)
    return path


def render_job_script(cluster: Cluster, config: RunConfig, run_folder: Path, token: str) -> str:
    """Return the script of one run as one job."""
    shape = plan_geometry(cluster, config.workers)
    program = build_training_command(cluster, config, run_folder)
    return _render("job.jinja", cluster, shape, token, run_folder, program=program)


def render_allocation_script(
    cluster: Cluster, runs: Sequence[tuple[RunConfig, Path]], place: Path, token: str
) -> str:
    """Return the script of one job that runs all of these in this order; `place` is its folder.

    The job has the geometry of the largest run; a smaller one is a step on its first nodes.
    """
    largest = max(config.workers for config, _ in runs)
    steps = [
        {
            "folder": str(_plain(folder)),
            "launch": build_launch_command(cluster, plan_geometry(cluster, config.workers)),
            "program": build_training_command(cluster, config, folder),
        }
        for config, folder in runs
    ]
    return _render("allocation.jinja", cluster, plan_geometry(cluster, largest), token, place, steps=steps)


def build_launch_command(cluster: Cluster, shape: Geometry) -> str:
    """Return the launcher with its options for this geometry, the same for all frameworks.

    srun does not inherit --cpus-per-task, and without --kill-on-bad-exit leaves the other workers
    running when one fails.
    """
    if cluster.launcher == "srun":
        words = [
            f"--nodes={shape.nodes}",
            f"--ntasks={shape.workers}",
            f"--ntasks-per-node={shape.workers_per_node}",
            f"--cpus-per-task={cluster.cores_per_worker}",
            "--kill-on-bad-exit=1",
        ]
        if cluster.gres:
            words.append(_word(f"--gres={cluster.format_gres(shape.workers_per_node)}"))
    else:
        # on_each_node is a function of header.jinja: each MPI has its own option for workers per node.
        words = ["-n", str(shape.workers), f"$(on_each_node {shape.workers_per_node})"]
    return " ".join([_launcher(cluster), *words, *map(_word, cluster.launcher_arguments)])


def _launcher(cluster: Cluster) -> str:
    return " ".join(map(_word, cluster.launcher_command or [cluster.launcher]))


def render_program_script(
    cluster: Cluster, workers: int, program: Sequence[str], folder: Path, token: str
) -> str:
    """Return the script of a job whose workers are `python PROGRAM...`, and no training."""
    words = [str(_plain(Path(word))) for word in program]
    paths = [folder, *(Path(word) for word in words if word.startswith("/"))]
    line = _in_container(cluster, paths, [_python(cluster), *words])
    return _render("program.jinja", cluster, plan_geometry(cluster, workers), token, folder, program=line)


def build_training_command(cluster: Cluster, config: RunConfig, run_folder: Path) -> str:
    """Return the training command of one run, which ignores the signal to stop until Python handles it.

    An early signal may be ignored: workers also know the second at which to stop.
    """
    script = training_script(config.framework)
    words = [str(_plain(path)) for path in (Path(_python(cluster)), script, run_folder)]
    files = [config.task.file, config.training.initial_weights, config.emulation.compute]
    paths = [run_folder.parent, *(Path(file) for file in files if file)]
    if not config.has_own_task:
        paths += [Path(config.data.folder), config.data.manifest_path]
    return _in_container(cluster, paths, ["sh", "-c", IGNORE_USR2_UNTIL_HANDLER, "sh", *words])


def _python(cluster: Cluster) -> str:
    return "python3" if cluster.container else PYTHON


def _in_container(cluster: Cluster, paths: Iterable[Path], words: Sequence[str]) -> str:
    """Return the command of a worker, within the cluster's container if it has one.

    The container sees the project, from which it imports, and these folders and files where they are outside.
    Most variables reach it, but not PATH and LD_LIBRARY_PATH. Apptainer is a program in Go, whose runtime
    ignores no signal: what is to ignore one is started within. Raises UserError for paths it cannot bind.
    """
    if cluster.container is None:
        return shlex.join(words)
    command = cluster.container_command or ["apptainer", "exec", *(["--nv"] if cluster.gres else [])]
    seen: list[Path] = []
    for path in [PROJECT, *(PROJECT / path for path in paths)]:
        if re.search("[:,]", str(_plain(path))):
            raise UserError(f"container: {path} holds ':' or ',', which no --bind takes; rename it")
        if not any(path.is_relative_to(other) for other in seen):
            seen.append(path)
    image = str(_plain(PROJECT / cluster.container))
    binds = [f"--bind={path}" for path in seen]
    # The container sees ~/.local of its user, whose packages are not those of the image.
    inside = [*binds, image, "env", f"PYTHONPATH={PROJECT}", "PYTHONNOUSERSITE=1", *words]
    return " ".join([*map(_word, command), shlex.join(inside)])


def _word(word: str) -> str:
    """Quote a word of the launcher; a lone variable such as $MPIEXEC is left to the shell."""
    if word.startswith("$") and word[1:].isidentifier():
        return word
    return shlex.quote(word)


def _plain(path: Path) -> Path:
    """Return the path; raises UserError for control characters, which no quoting makes safe everywhere."""
    if not str(path).isprintable():
        raise UserError(f"the path {str(path)!r} holds control characters; use another folder")
    return path


def _render(
    template: str, cluster: Cluster, shape: Geometry, token: str, folder: Path, **values: object
) -> str:
    ping_pong = None
    if cluster.ping_pong and shape.nodes > 1:
        # One process on each node, in a launch of its own, so that processes of native DDP never start MPI.
        each = replace(shape, workers=shape.nodes, workers_per_node=1)
        file = str(_plain(folder) / PING_PONG_NAME)
        program = [_python(cluster), "-m", "unet_scaling.measure.ping_pong", file]
        ping_pong = f"{build_launch_command(cluster, each)} {_in_container(cluster, [folder], program)}"
    return _templates().get_template(template).render(
        cluster=cluster, launcher=_launcher(cluster), launch=build_launch_command(cluster, shape),
        geometry=shape, token=token, folder=str(_plain(folder)), ping_pong=ping_pong,
        prologue=find_prologue(cluster),
        kept=[name for name in cluster.keep_variables if name.startswith(IDENTITY_VARIABLES)],
        identity_variables=IDENTITY_VARIABLES, allocator=KEEP_MEMORY, python=PYTHON, project=str(PROJECT),
        **values,
    )  # fmt: skip


@cache
def _templates() -> Environment:
    """Return the templates, compiled once. They write shell: values are quoted or of a fixed alphabet."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,  # noqa: S701
    )
    environment.filters["quoted"] = shlex.quote
    return environment

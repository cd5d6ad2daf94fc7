"""Job scripts, compared whole; geometry for any count; and values that try to break out."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from slurm.cluster import Cluster, find_container, limit_seconds, plan_geometry, read_cluster
from slurm.one_job import run_as_job
from slurm.render import render_allocation_script, render_job_script
from slurm.scheduler.sbatch_options import OWN_OPTIONS
from tests.peer_slurm import make_submitter
from tests.records import make_study
from tests.studies import make_point
from unet_scaling.base.errors import UserError
from unet_scaling.study.config import FRAMEWORKS, PROJECT

GOLDEN = Path(__file__).with_name("golden")
# Where the project, its training programs and its Python are, as jobs find them.
PLACES: dict[str, Any] = {
    "PROJECT": Path("/project"), "PYTHON": "/project/.venv/bin/python",
    "training_script": lambda framework: Path("/project", framework, "train.py"),
}  # fmt: skip
SRUN = Cluster(
    launcher="srun", launcher_arguments=["--mpi=pmi2"], gpus_per_node=2, cores_per_worker=12, time="02:00:00",
    partition="gpu", account="project0000", options=["--exclusive"],
)  # fmt: skip
MPIEXEC = Cluster(
    launcher="mpiexec", launcher_command=["$MPIEXEC"], gpus_per_node=2, cores_per_worker=12, time="02:00:00",
    pin_cores=True, gres="gpu:volta", ping_pong=True,
)  # fmt: skip
SITES = {"srun": SRUN, "mpiexec": MPIEXEC}


def script(
    cluster: Cluster, framework: str, workers: int = 3, folder: str = "/project/logs/study/run"
) -> str:
    point = make_point(Path("/data"), framework, workers)
    with patch.multiple("slurm.render", **PLACES):
        return render_job_script(cluster, point, Path(folder), f"{framework}.1")


def both(cluster: Cluster) -> str:
    runs = [
        (make_point(Path("/data"), framework, workers), Path(f"/project/logs/study/{framework}-{workers}"))
        for framework in FRAMEWORKS
        for workers in (1, 3)
    ]
    place = Path("/project/logs/study/allocation-1")
    with patch.multiple("slurm.render", **PLACES):
        return render_allocation_script(cluster, runs, place, "study.allocation.1")


def rendered() -> dict[str, str]:
    jobs = {
        f"{framework}.{site}.sbatch": script(SITES[site], framework)
        for site in SITES
        for framework in FRAMEWORKS
    }
    return jobs | {f"allocation.{site}.sbatch": both(SITES[site]) for site in SITES}


@pytest.mark.parametrize("name", sorted(rendered()))
def test_is_the_golden_file(name: str) -> None:
    """After a wanted change: UPDATE_GOLDEN=1 pytest tests/test_render.py, and read the diff."""
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(rendered()[name])
    assert rendered()[name] == (GOLDEN / name).read_text()


@pytest.mark.parametrize("name", sorted(rendered()))
def test_is_sound_shell(name: str) -> None:
    subprocess.run(["bash", "-n", GOLDEN / name], check=True)
    subprocess.run([Path(sys.executable).with_name("shellcheck"), GOLDEN / name], check=True)


@pytest.mark.parametrize("gpus", range(1, 9))
@pytest.mark.parametrize("workers", range(1, 17))
def test_geometry_is_exact_for_every_count(workers: int, gpus: int) -> None:
    shape = plan_geometry(SRUN.model_copy(update={"gpus_per_node": gpus}), workers)
    assert shape.workers == workers
    assert shape.nodes * shape.workers_per_node >= workers
    assert (shape.nodes - 1) * shape.workers_per_node < workers
    assert shape.workers_per_node <= gpus


def test_an_impossible_count_is_refused_with_the_nearest() -> None:
    seven = SRUN.model_copy(update={"max_nodes": 7})
    assert plan_geometry(seven, 14).nodes == 7
    with pytest.raises(UserError, match=r"15 workers need 8 nodes.*nearest possible worker count is 14"):
        plan_geometry(seven, 15)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("30", 1800), ("2:30", 150), ("02:00:00", 7200), ("1-12", 129600), ("1-12:30", 131400), ("0-0:0:5", 5)],
)
def test_reads_time_limits_as_slurm_does(time: str, seconds: int) -> None:
    assert limit_seconds(time) == seconds


HOSTILE = ["gpu\ntouch /tmp/x", "gpu; x", "$(x)", "`x`", "a b", "a|b", "a&b", "'", '"', "", "ü", "gpu\n"]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("key", ["partition", "account", "time", "gres", "options"])
def test_a_cluster_file_cannot_leave_its_line(key: str, value: str, tmp_path: Path) -> None:
    lines = {
        "launcher": '"srun"', "gpus_per_node": "2", "cores_per_worker": "1", "time": '"10"',
        key: _toml(["--x=" + value] if key == "options" else value),
    }  # fmt: skip
    path = tmp_path / "site.toml"
    path.write_text("\n".join(f"{name} = {text}" for name, text in lines.items()))
    if key == "gres" and value == "":
        assert not read_cluster(path).gres
        return
    if key == "options" and value in ("", "a b", "a|b", "a&b"):  # to sbatch a value, to bash a comment
        return
    with pytest.raises(UserError, match=rf"site\.toml: {key}"):
        read_cluster(path)


def _toml(value: object) -> str:
    import json

    return json.dumps(value)


# Spellings of what the submission sets itself, each with the name that sbatch takes it for and the cure.
OWN_SPELLINGS = [
    ("--array=0-1", "array", "repeats"), ("-a0-1", "array", "repeats"), ("--arr=0-1", "array", "repeats"),
    ("-Jx", "job-name", "names"), ("--chd=x", "chdir", "its run"), ("--te", "test-only", "--dry-run"),
    ("--wrap=x", "wrap", "script"), ("--parsable", "parsable", "answer"), ("--pars", "parsable", "answer"),
    ("-ox", "output", "output.log"), ("-ex", "error", "output.log"),
    ("--op=truncate", "open-mode", "output.log"),
    ("--requeue", "requeue", "`requeue`"), ("--no-req", "no-requeue", "`requeue`"),
    ("--sig=TERM@9", "signal", "`stop_seconds`"),
    ("--export=NONE", "export", "`environment`"), ("--export-f=x", "export-file", "`environment`"),
    ("--nodes=3", "nodes", "`workers`"), ("-N3", "nodes", "`workers`"), ("-n3", "ntasks", "`workers`"),
    ("--ntasks-per-n=2", "ntasks-per-node", "`gpus_per_node`"),
    ("--tasks-per-node=2", "tasks-per-node", "`gpus_per_node`"),
    ("-c2", "cpus-per-task", "`cores_per_worker`"),
    ("-G1", "gpus", "`gres`"), ("--gpus=1", "gpus", "`gres`"), ("--gpus-per-n=1", "gpus-per-node", "`gres`"),
    ("--gres=gpu:1", "gres", "`gres`"), ("-t5", "time", "`time`"), ("-px", "partition", "`partition`"),
    ("-Ax", "account", "`account`"), ("-W", "wait", "--wait"),
    ("--clusters=x", "clusters", "`cluster_name`"),
    ("--overcommit", "overcommit", "`cores_per_worker`"), ("-O", "overcommit", "`cores_per_worker`"),
    ("--time-min=5", "time-min", "`time`"),
]  # fmt: skip
HARMLESS = [
    "--exclusive", "--mem=4G", "-xnode3", "--nodelist=node1", "--constraint=fast", "-Cfast", "--comment=x",
    "--gres-flags=enforce-binding", "--qos=long", "--reservation=x", "--mail-type=END", "--nice=5",
    "--wait-all-nodes=1", "--dependency=singleton", "-H", "--switches=1", "--no-kill", "-k",
]  # fmt: skip


def read_with_options(folder: Path, *options: str) -> Cluster:
    path = folder / "site.toml"
    path.write_text(
        f'launcher="srun"\ngpus_per_node=2\ncores_per_worker=1\ntime="10"\noptions={_toml(options)}'
    )
    return read_cluster(path)


@pytest.mark.parametrize(("option", "name", "cure"), OWN_SPELLINGS, ids=lambda value: value)
def test_refuses_what_the_submission_sets_in_every_spelling(
    option: str, name: str, cure: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"site\.toml: options\[0\]: '{option}' sets --{name}, .*{cure}"):
        read_with_options(tmp_path, option)


BINDING = [
    "--gpu-bind=single:1", "--gpu-bind=closest", "--gpu-bind map_gpu:0,1", "--gpu-bind=verbose,per_task:1",
    "--gpus-per-task=1",
]  # fmt: skip
NOT_BINDING = ["--gpu-bind=none", "--gpu-bind=n", "--gpu-bind verbose,none"]


@pytest.mark.parametrize("text", [*BINDING, *NOT_BINDING])
@pytest.mark.parametrize("key", ["options", "launcher_arguments"])
def test_refuses_what_hides_gpus_from_a_worker(
    key: str, text: str, tmp_path: Path, told: Callable[..., None]
) -> None:
    path = tmp_path / "site.toml"
    words = [text.replace(" ", "=")] if key == "options" else text.split()
    path.write_text(f'launcher="srun"\ngpus_per_node=2\ncores_per_worker=1\ntime="10"\n{key}={words}')
    with pytest.raises(UserError, match=key) if text in BINDING else nullcontext() as refused:
        read_cluster(path)
    if refused:
        told(str(refused.value))


NO_OPTIONS = [
    "-HJx", "-HW", "-vn3",
    "exclusive", "3", "-", "--", "--=3", "-3", "-N 1 -n 4", "--constraint=a #b", "--comment=a;b",
    "--comment=my --wrap=x", "--comment=my -n 4", "--mem=0 --exclusive", "--comment=my `x`",
    "--comment=a\\ b", "--comment=a 'b'",
    '--constraint="a', "--x=$(y)",
]  # fmt: skip
TAKE_THE_NEXT = ["--comment", "--mem", "-C", "-HC", "--const", "--gres-flags", "-w", "--qos"]


@pytest.mark.parametrize("option", [*NO_OPTIONS, *TAKE_THE_NEXT])
def test_refuses_what_is_not_one_option_with_its_value(option: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"site\.toml: options"):
        read_with_options(tmp_path, option)


def options_that_sbatch_reads(folder: Path, option: str) -> dict[str, str]:
    """The options that the real sbatch lists for a script with this one; it needs no cluster for that."""
    return read_by_sbatch(folder, f"#!/bin/sh\n#SBATCH {option}\n")


def read_by_sbatch(folder: Path, script: str) -> dict[str, str]:
    (folder / "slurm.conf").write_text(
        "ClusterName=none\nSlurmctldHost=localhost\nSlurmctldPort=1\nNodeName=n1\nPartitionName=p Nodes=n1\n"
    )
    (folder / "job.sh").write_text(script)
    with subprocess.Popen(
        ["sbatch", "-vv", "--test-only", "job.sh"], cwd=folder, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"SLURM_CONF": str(folder / "slurm.conf")},
    ) as program:  # fmt: skip
        assert program.stderr is not None
        lines = list(takewhile(lambda line: "end of defined options" not in line, program.stderr))
        program.kill()  # it would now look for a controller
    assert any("defined options" in line for line in lines), lines
    read = dict(re.findall(r"^sbatch: ([a-z-]+) +: (.*)", "".join(lines), re.MULTILINE))
    return {name: value for name, value in read.items() if name != "verbose"}


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="there is no sbatch here")
def test_whatever_the_options_the_real_sbatch_reads_ours(tmp_path: Path) -> None:
    cluster = SRUN.model_copy(update={"options": HARMLESS})
    read = read_by_sbatch(tmp_path, script(cluster, "horovod"))
    plain = read_by_sbatch(tmp_path, script(SRUN, "horovod"))
    ours = {"job-name", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gres", "time", "requeue"}
    assert plain.keys() >= ours
    assert {name: read[name] for name in ours} == {name: plain[name] for name in ours}


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="there is no sbatch here")
def test_the_real_sbatch_reads_these_spellings_so(tmp_path: Path) -> None:
    """sbatch lists some by another name, and --wrap in a script not at all."""
    aliases = {"tasks-per-node": "ntasks-per-node", "no-requeue": "requeue", "wrap": "test-only"}
    for option, name, _ in OWN_SPELLINGS:
        read = options_that_sbatch_reads(tmp_path, option)
        assert {name, aliases.get(name)} & read.keys(), (option, read)
    for option in HARMLESS:
        read = options_that_sbatch_reads(tmp_path, option)
        assert not (read.keys() - {"test-only"}) & set(OWN_OPTIONS), option


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_characters="/\x00", exclude_categories=["Cs"]), min_size=1, max_size=30))
@example("$(touch hacked)")
@example("`touch hacked`")
@example("a b'c\"d")
@example("x; touch hacked #")
@example("${HOME}&|<>*?")
@example("two\nlines")
@example("-n")
def test_any_path_reaches_the_program_as_it_is_or_is_refused(name: str) -> None:
    """The script is run by a real bash; an srun that prints its arguments stands for Slurm's."""
    folder = str(Path(f"/logs/{name}"))  # as the product passes it: "/logs/." is /logs
    try:
        text = script(SRUN, "horovod", folder=folder)
    except UserError:
        assert not folder.isprintable()
        return
    stand_ins = "srun() { printf '%s\\0' \"$@\"; }\nexec() { printf '%s\\0' \"$@\"; }\ncd() { :; }\n"
    done = subprocess.run(["bash", "-c", stand_ins + text], capture_output=True, check=True, timeout=20)
    words = [word.decode() for word in done.stdout.split(b"\0")]
    train = words.index("/project/horovod/train.py")
    after = words.index("slurm.after_run")
    assert words[train + 1] == words[after + 1] == folder
    assert done.stderr == b""


@pytest.mark.parametrize(
    "path", sorted((PROJECT / "slurm" / "clusters").glob("*.toml")), ids=lambda path: path.stem
)
def test_the_shipped_cluster_files_are_valid(path: Path) -> None:
    cluster = read_cluster(path)
    assert script(cluster, "horovod", workers=1)


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="there is no sbatch here")
def test_the_real_sbatch_reads_what_the_example_for_gpu_sites_asks_for(tmp_path: Path) -> None:
    cluster = read_cluster(PROJECT / "slurm" / "clusters" / "gpu_site.toml")
    read = read_by_sbatch(tmp_path, script(cluster, "horovod", workers=8))
    assert (read["comment"], read["nodes"], read["gres"]) == ("DDP and Horovod", "2", "gres:gpu:a100:4")
    assert {"exclusive", "mem"} <= read.keys()


@pytest.mark.parametrize("site", SITES)
def test_a_job_forgets_the_launch_of_the_shell_that_submitted_it(site: str) -> None:
    """All that a launcher says to a process, whatever the shell held; what tunes an MPI or is kept stays."""
    forgotten = [
        "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "PMI_RANK", "PMI_SIZE", "PMI_FD",
        "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_URI41", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK",
        "OMPI_MCA_orte_hnp_uri", "PALS_RANKID", "MPI_LOCALRANKID", "UNET_SCALING_CORES_PER_WORKER",
    ]  # fmt: skip
    asked_for = ["OMPI_MCA_ess", "ROLE_ARN"]
    kept = [*asked_for, "OMPI_MCA_btl", "PMIX_MCA_gds", "I_MPI_HYDRA_BOOTSTRAP", "UCX_TLS", "SLURM_JOB_ID"]
    cluster = SITES[site].model_copy(update={"keep_variables": [*asked_for, "MASTER_NOT_SET"]})
    header = script(cluster, "horovod").partition("exec ")[0].partition("set -u\n")[0]
    held = dict.fromkeys([*forgotten, *kept], "7") | {"PATH": os.environ["PATH"]}
    shown = subprocess.check_output(["bash", "-c", f"{header}\nenv"], env=held, text=True)
    names = {line.partition("=")[0] for line in shown.splitlines()}
    assert (names & set(forgotten), names & set(kept)) == (set(), set(kept))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("{host}", "srun localhost"),
        ("127.0.0.1", "srun 127.0.0.1"),
        ("{host}i.invalid", "error: MASTER_ADDR={host}i.invalid: no host is called localhosti.invalid here"),
        ("no such host", "error: MASTER_ADDR=no such host: no host is called no such host here"),
    ],
)
@pytest.mark.parametrize("way", ["environment", "prologue"])
def test_an_address_of_the_first_host_reaches_workers_and_is_checked_before_they_start(
    way: str, address: str, said: str, tmp_path: Path
) -> None:
    """A real bash and the real check; srun, which stands for Slurm's, prints where workers join."""
    prologue = tmp_path / "load.sh"
    prologue.write_text(f"export MASTER_ADDR='{address}'\n")
    changes = {"prologue": str(prologue)} if way == "prologue" else {"environment": {"MASTER_ADDR": address}}
    point = make_point(Path("/data"), "horovod", 1)
    text = render_job_script(SRUN.model_copy(update=changes), point, tmp_path / "run", "horovod.1")
    meet = "from unet_scaling.group.identity import *; print('srun', rendezvous_address(os.environ)[0])"
    stand_in = f'srun() {{ (cd {PROJECT} && {sys.executable} -c "{meet}"); }}\n'
    of_job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "localhost"}
    done = subprocess.run(
        ["bash", "-c", stand_in + text], env=os.environ | of_job, capture_output=True, text=True, timeout=60
    )
    assert said in done.stdout + done.stderr
    assert ("srun" in done.stdout) == ("error" not in said)


# In the place of Apptainer, which cannot be installed here: programs are looked for in the image, a folder,
# and, as by a program in Go, no signal is ignored.
APPTAINER = """#!/bin/bash
printf '%s\\n' "$@" >>"$(dirname "$0")/called"
while [[ $1 == exec || $1 == --* ]]; do shift; done
export PATH=$1/bin:/usr/bin:/bin
exec env --default-signal=USR2 "${@:2}"
"""
# In the place of the Python of the image.
PYTHON3 = """#!/bin/bash
handling=$(env --list-signal-handling true 2>&1 | grep USR2)
echo "in the container: USR2 $handling; $PYTHONPATH$PYTHONNOUSERSITE; $*"
"""


def make_container(folder: Path, python: str = PYTHON3) -> Path:
    """Write a stand-in for Apptainer into bin/, and an image beside it; return the image."""
    image = folder / "an image.sif"
    for path, text in ((folder / "bin" / "apptainer", APPTAINER), (image / "bin" / "python3", python)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return image


@pytest.mark.parametrize("gres", ["gpu", ""])
@pytest.mark.parametrize("site", SITES)
def test_workers_start_within_the_container_and_the_rest_of_the_job_outside(
    site: str, gres: str, tmp_path: Path
) -> None:
    image = make_container(tmp_path)
    cluster = SITES[site].model_copy(update={"gres": gres, "container": str(image), "ping_pong": True})
    folder = tmp_path / "my logs" / "study" / "run"
    text = script(cluster, "horovod", folder=str(folder)).replace("timeout --kill-after=30 300 ", "")
    drop = "while [[ $1 == -* || $1 =~ ^[0-9]+$ ]]; do shift; done"
    stand_ins = f'srun() {{ {drop}; "$@"; }}\nexec() {{ echo "outside: $*"; }}\ncd() {{ :; }}\n'
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "MPIEXEC": "srun"}
    done = subprocess.run(
        ["bash", "-c", stand_ins + text], env=environment, capture_output=True, text=True, timeout=20
    )
    ping_pong, train, after = done.stdout.splitlines()
    assert ping_pong.endswith(f"; /project1; -m unet_scaling.measure.ping_pong {folder}/ping_pong.json")
    ignored = "in the container: USR2 USR2       (12): IGNORE"
    assert train == f"{ignored}; /project1; /project/horovod/train.py {folder}"
    assert after.startswith(f"outside: /project/.venv/bin/python -m slurm.after_run {folder}")
    called = (tmp_path / "bin" / "called").read_text().splitlines()
    assert called.count("--nv") == (2 if gres else 0)
    last = called[called.index("exec", 1) :]
    assert [word for word in last if word.startswith("--bind")] == [
        "--bind=/project", f"--bind={folder.parent}", "--bind=/data",
    ]  # fmt: skip


def test_what_starts_a_container_can_be_named_and_what_it_cannot_bind_is_refused(tmp_path: Path) -> None:
    cluster = SRUN.model_copy(
        update={"container": "torch.sif", "container_command": ["$RUNTIME", "exec", "--rocm"]}
    )
    assert " $RUNTIME exec --rocm --bind=/project --bind=/data /project/torch.sif env " in script(
        cluster, "horovod"
    )
    assert script(cluster, "horovod", workers=1).count("--rocm") == both(cluster).count("--rocm") / 4
    with pytest.raises(UserError, match=r"container: /logs/a:b holds ':' or ','"):
        script(cluster, "horovod", folder="/logs/a:b/run")
    with pytest.raises(
        UserError, match=r"container = 'torch\.sif': .*/torch\.sif does not exist; name an image"
    ):
        find_container(cluster)
    with pytest.raises(UserError, match=r"torch\.sif does not exist"):
        run_as_job(cluster, 1, ["-m", "unet_scaling.doctor"], "doctor", tmp_path, Console(quiet=True))
    missing = make_submitter(tmp_path, make_study("sweep"), cluster=cluster)
    with pytest.raises(UserError, match=r"torch\.sif does not exist"):
        missing.submit()


def test_an_allocation_begins_no_run_after_the_second_at_which_runs_stop(tmp_path: Path) -> None:
    """A real bash; srun stands for the first run, which lasts until that second."""
    runs = [(make_point(Path("/data"), "horovod", workers), tmp_path / f"{workers}") for workers in (1, 2, 3)]
    for _, folder in runs:
        folder.mkdir()
    with patch("slurm.render.PYTHON", "/bin/false"):  # which finds no run complete
        text = render_allocation_script(SRUN, runs, tmp_path / "allocation-1", "study.allocation.1")
    stand_in = "srun() { while (($(date +%s) < UNET_SCALING_STOP_AT)); do sleep 0.1; done; }\n"
    end = str(int(time.time()) + SRUN.stop_seconds + 2)
    done = subprocess.run(
        ["bash", "-c", stand_in + text], env=os.environ | {"SLURM_JOB_END_TIME": end},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    said = [line.removeprefix(f"{tmp_path}/").partition(",")[0] for line in done.stdout.splitlines()]
    assert said == ["1: done", "2: not begun", "3: not begun"]
    assert [folder.name for _, folder in runs if list(folder.iterdir())] == ["1"]


@pytest.mark.parametrize(
    ("copied", "word"),
    [
        ("--constraint=gpu&hbm80g", "--constraint=gpu&hbm80g"),
        ("#SBATCH --constraint='a100|h100'", "--constraint=a100|h100"),
        ("-C a100|h100", "-Ca100|h100"),
        ("--constraint=[rack1*2&rack2*4]", "--constraint=[rack1*2&rack2*4]"),
        ("#SBATCH --exclusive", "--exclusive"),
        ("--comment=my project", '"--comment=my project"'),
        ("#SBATCH --comment='my project, part 2'", '"--comment=my project, part 2"'),
        ("-C gpu & hbm80g", '"-Cgpu & hbm80g"'),
    ],
)
def test_options_are_taken_as_they_are_copied_and_sbatch_reads_them(
    copied: str, word: str, tmp_path: Path
) -> None:
    cluster = read_with_options(tmp_path, copied)
    assert cluster.options == [word.strip('"')]
    assert f"\n#SBATCH {word}\n" in script(cluster, "horovod")


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="there is no sbatch here")
def test_the_real_sbatch_reads_a_value_with_blanks_whole(tmp_path: Path) -> None:
    cluster = read_with_options(tmp_path, "--comment=my project", "--constraint=a & b")
    read = read_by_sbatch(tmp_path, script(cluster, "horovod"))
    assert read["comment"] == "my project"
    assert (read["constraint"], read["job-name"]) == ("a & b", "horovod.1")


@pytest.mark.parametrize(
    ("gres", "node"),
    [
        ("gpu", "gpu:4"),
        ("gpu:a100", "gpu:a100:4"),
        ("gpu:a100:4", "gpu:a100:4"),
        ("gpu:1g.5gb", "gpu:1g.5gb:4"),
        ("gpu:a100,tmp:100G", "gpu:a100:4,tmp:100G"),
    ],
)
def test_a_resource_is_taken_with_the_count_that_people_copy(gres: str, node: str) -> None:
    cluster = SRUN.model_validate(SRUN.model_dump() | {"gres": gres, "gpus_per_node": 4})
    text = script(cluster, "horovod", workers=8)
    assert f"\n#SBATCH --gres={node}\n" in text
    assert f"--gres={node} " in text


@pytest.mark.parametrize(
    ("gres", "cure"),
    [
        ("gpu:2", "use gres = 'gpu' and gpus_per_node = 2"),
        ("gpu=4", "write gpu, or gpu:a100"),
        ("--gres=gpu:4", "write gpu, or gpu:a100"),
    ],
)
def test_a_resource_of_another_count_is_refused_with_the_key_to_use(
    gres: str, cure: str, tmp_path: Path
) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f'launcher="srun"\ngpus_per_node=4\ncores_per_worker=1\ntime="10"\ngres={_toml(gres)}')
    with pytest.raises(UserError, match=rf"site\.toml: gres: .*{re.escape(cure)}"):
        read_cluster(path)

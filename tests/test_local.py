"""A study on this machine through the real command: launched, resumed, refused, stopped by Ctrl-C."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import slurm.commands.run
import slurm.launch.processes
from slurm.commands.status import study_rows
from slurm.launch.processes import SAME_REQUEST_SECONDS, descendants, launch, worker_processes
from slurm.launch.study_folder import in_launch_order
from tests.cluster import wait_until
from tests.studies import UNJUDGED, tiny_study
from tests.tasks import POINTS
from unet_scaling.base.errors import UserError, run_program
from unet_scaling.base.texts import PASTED
from unet_scaling.format.record import read_record
from unet_scaling.study.config import FRAMEWORKS, PROJECT, StudyConfig
from unet_scaling.study.study_file import read_study

pytestmark = pytest.mark.slow


def submit(study: Path, logs: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROJECT / "slurm" / "submission.sh"), str(study), "--local", "--logs", str(logs), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | variables)


# What a shell may hold of a job, a step or another launch. All of it is wrong for a launch on this machine.
OTHER_LAUNCHES = {
    "Slurm": {
        "SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_NODELIST": "n[1-2]", "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": "3", "SLURM_NTASKS": "4",
        "SLURM_LOCALID": "3", "SLURM_JOB_CPUS_PER_NODE": "1(x2)",
    },
    "PMI": {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "1", "PMI_PORT": "n1:9", "PMI_ID": "3",
            "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4", "PMI_JOBID": "7"},
    "PMIx": {"PMIX_RANK": "3", "PMIX_NAMESPACE": "7", "PMIX_SERVER_URI41": "7.0;tcp4://127.0.0.1:9",
             "PMIX_SERVER_URI2": "7.0;tcp4://127.0.0.1:9", "PMIX_SECURITY_MODE": "native"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3",
                 "OMPI_UNIVERSE_SIZE": "4", "OMPI_MCA_orte_hnp_uri": "7.0;tcp://127.0.0.1:9",
                 "OMPI_MCA_ess": "^singleton", "OMPI_MCA_plm": "slurm", "PRTE_MCA_plm": "slurm",
                 "OMPI_MCA_orte_default_hostfile": "/none", "PRTE_MCA_prte_default_hostfile": "/none"},
    "Hydra": {"HYDRA_LAUNCHER": "slurm", "HYDRA_BOOTSTRAP": "slurm", "HYDRA_RMK": "slurm",
              "HYDRA_HOST_FILE": "/none", "HYDRA_PROXY_RETRY_COUNT": "0", "MPIEXEC_TIMEOUT": "1"},
    "Intel MPI": {"I_MPI_HYDRA_BOOTSTRAP": "slurm", "I_MPI_PMI_LIBRARY": "/none"},
    "PBS and PALS": {"PBS_JOBID": "7", "PBS_NODEFILE": "/none", "PALS_RANKID": "3", "PALS_LOCAL_RANKID": "3"},
    "LSF": {"LSB_JOBID": "7", "LSB_HOSTS": "n1 n2", "LSB_MCPU_HOSTS": "n1 1 n2 1", "JSM_NAMESPACE_RANK": "3"},
    "Grid Engine": {"SGE_ROOT": "/none", "PE_HOSTFILE": "/none"},
    "MVAPICH": {"MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_SIZE": "4", "MPIRUN_RANK": "3"},
    "torchrun": {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "MASTER_ADDR": "n1", "MASTER_PORT": "9"},
    "horovodrun": {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "n1",
                   "HOROVOD_GLOO_RENDEZVOUS_PORT": "9", "HOROVOD_HOSTNAME": "n1",
                   "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"},
    "a job of ours": {"UNET_SCALING_STOP_AT": "1", "UNET_SCALING_CORES_PER_WORKER": "64"},
}  # fmt: skip


@pytest.fixture(scope="module")
def done(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A finished study of both frameworks at 1 and 2 workers: study file, logs folder, what it printed.

    The shell that started it held what belongs to other launches.
    """
    folder = tmp_path_factory.mktemp("local")
    study = tiny_study(folder, images, more=UNJUDGED)
    held = {name: value for variables in OTHER_LAUNCHES.values() for name, value in variables.items()}
    outcome = submit(study, folder / "logs", **held)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return study, folder / "logs", outcome.stdout


def launched_in(printed: str) -> set[str]:
    """Return the runs that were launched to their end; on a busy machine some twice."""
    return set(re.findall(r"^\[\d/\d\] (\S+) \.\.\. complete in", printed, re.MULTILINE))


def test_every_run_is_complete_whatever_the_shell_holds_and_is_not_run_again(
    done: tuple[Path, Path, str],
) -> None:
    study, logs, printed = done
    records = [read_record(path) for path in logs.glob("tiny/*/run.jsonl")]
    assert launched_in(printed) == {path.name for path in logs.glob("tiny/*-r1")}
    assert len(records) == 4
    for record in records:
        assert record.complete
        assert record.header is not None
        cores = [core for worker in record.header.workers for core in worker.cores]
        assert len(cores) == len(set(cores)) == record.header.config.workers
        assert record.header.job == {}
    rows = next(logs.glob("tiny/horovod-w02*/log.csv")).read_text().splitlines()
    assert rows[0] == ",time_per_epoch,loss,lr,training_time,test_time,iou", "as the older study had it"
    assert [row.split(",")[0] for row in rows[1:]] == ["0", "1"]
    before = contents(logs)
    outcome = submit(study, logs)
    assert outcome.returncode == 0
    assert "4 complete already" in outcome.stdout
    assert contents(logs) == before


def test_a_played_run_is_to_the_byte_the_real_one_at_the_default_cores(
    done: tuple[Path, Path, str], images: Path, tmp_path: Path
) -> None:
    study = tiny_study(tmp_path, images, [1], more=f"plays = 2\n{UNJUDGED}")
    outcome = submit(study, tmp_path / "logs", "--set", "frameworks=['pytorch_native']")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    of_two = done[1] / "tiny" / "pytorch_native-w02-r1" / "run.jsonl"
    (played,) = tmp_path.glob("logs/tiny/*/run.jsonl")
    real_result, played_result = (read_record(path).results[-1] for path in (of_two, played))
    assert played_result.weights_sha256 == real_result.weights_sha256


def test_of_a_renamed_study_an_unfinished_and_a_forced_run_are_run_again_and_their_records_kept(
    done: tuple[Path, Path, str], tmp_path: Path
) -> None:
    study, logs, _ = done
    shutil.copytree(logs / "tiny", tmp_path / "elsewhere" / "renamed")
    unfinished, forced = (tmp_path / "elsewhere" / "renamed" / f"{name}-w01-r1" for name in FRAMEWORKS)
    lines = (unfinished / "run.jsonl").read_bytes().splitlines(keepends=True)
    (unfinished / "run.jsonl").write_bytes(b"".join(lines[:2]))
    before = {run: (run / "run.jsonl").read_bytes() for run in (unfinished, forced)}
    outcome = submit(study, tmp_path / "elsewhere", "--name", "renamed", "--force", forced.name)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "renamed was renamed: its runs go on as those of study tiny" in " ".join(outcome.stdout.split())
    assert launched_in(outcome.stdout) == {run.name for run in before}
    for run in before:
        assert read_record(run / "run.jsonl").complete
        assert (run / "run.attempt1.jsonl").read_bytes() == before[run]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_dry_run_estimates_from_complete_runs_of_the_same_points(
    done: tuple[Path, Path, str], tmp_path: Path
) -> None:
    study, logs, _ = done
    before = contents(logs)
    more = submit(study, logs, "--dry-run", "--set", "repeats=2", "--force", "horovod-w01-r1")
    assert more.returncode == 0, more.stderr
    assert "8 runs, 5 would start" in more.stdout
    assert "--probe estimates" not in more.stdout
    assert "horovod-w01-r1: 1 worker, " in more.stdout
    assert re.search(r"about \d+ (s|min) by the complete runs of the same points\n", more.stdout)
    wider = submit(study, logs, "--dry-run", "--set", "workers=[1]", "--set", "frameworks=['horovod']")
    assert "1 run, 0 would start" in wider.stdout
    assert contents(logs) == before
    first = submit(study, tmp_path, "--dry-run").stdout
    assert "--probe estimates" in first
    assert "IoU will not be judged: " in first


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--force", "horovod-w01-r7"], "has no such run; did you mean horovod-w01-r1?"),
        (["--set", "training.epochs=3", "--set", "training.epochs=4"], "training.epochs is given twice"),
        (["--set", "name=other", "--name", "third"], "name is given twice"),
        (["--set", "training.epochs=1"], "training.epochs: found 1, which only warms up"),
        (["--set", "workers.first=1"], "workers is no table"),
        (["--keep-disturbed", "--repeat-disturbed"], "leave one out"),
    ],
)
def test_refuses_options_that_it_would_have_to_ignore(
    options: list[str],
    said: str,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the program itself, but in this process: nothing is started."""
    study = str(tiny_study(tmp_path, images))
    monkeypatch.setattr(sys, "argv", ["unet-scaling run", study, "--logs", str(tmp_path / "logs"), *options])
    with pytest.raises(SystemExit) as ended:
        run_program(slurm.commands.run.main)
    message = capsys.readouterr().err
    assert ended.value.code == 2
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert said in message
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("setting", "code", "said"),
    [
        (
            "training.batch_per_worker=64",
            65,
            "step of 2 workers takes 128 images, .* use training.batch_per_worker of at most 19",
        ),
        ("data.foreground='1'", 2, "but the masks were checked with '255'"),
    ],
)
def test_what_would_fail_every_run_is_said_before_any_starts(
    setting: str, code: int, said: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and the mended study then starts in the same folder."""
    study = tiny_study(tmp_path, images, more=UNJUDGED)
    command = ["unet-scaling run", str(study), "--logs", str(tmp_path / "logs")]
    monkeypatch.setattr(sys, "argv", [*command, "--set", setting])
    with pytest.raises(UserError, match=said) as refused:
        slurm.commands.run.main()
    assert refused.value.exit_code == code
    assert not list(tmp_path.glob("logs/*/*/output.log"))
    monkeypatch.setattr(sys, "argv", [*command, "--dry-run"])
    slurm.commands.run.main()


def test_moved_images_are_named_with_the_way_to_go_on(
    done: tuple[Path, Path, str], images: Path, tmp_path: Path
) -> None:
    study, logs, _ = done
    shutil.copytree(images, tmp_path / "moved")
    outcome = submit(study, logs, "--set", f"data.folder={tmp_path / 'moved'}", "--dry-run")
    assert outcome.returncode == 2
    assert f"data.folder is '{images}' there, '{tmp_path / 'moved'}' in the study" in outcome.stderr
    assert (
        f"let {images} lead to the same images (a link will do) and add --set data.folder={images}"
        in outcome.stderr
    )


def test_mpiexec_and_its_workers_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    worker = f"import os, time; open(f'{tmp_path}/workers/{{os.getpid()}}', 'w').close(); time.sleep(300)"
    launcher = (
        "from pathlib import Path; from slurm.launch.processes import launch; "
        f"launch(['-c', {worker!r}], 2, Path({str(tmp_path / 'output.log')!r}), None)"
    )
    first = subprocess.Popen([sys.executable, "-c", launcher], cwd=PROJECT)
    wait_until(lambda: len(list((tmp_path / "workers").iterdir())) == 2, "two workers", 120)
    workers = [Path("/proc", path.name) for path in (tmp_path / "workers").iterdir()]
    first.kill()
    first.wait()
    wait_until(lambda: not any(worker.exists() for worker in workers), "the workers to end", 120)


def test_a_launcher_that_starts_no_worker_is_ended_with_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = tmp_path / "mpiexec"
    waiting.write_text("#!/bin/sh\nsleep 300\nexit 0\n")
    waiting.chmod(0o755)
    monkeypatch.setattr(slurm.launch.processes, "mpiexec_program", lambda: str(waiting))
    monkeypatch.setattr(slurm.launch.processes, "WORKER_START_SECONDS", 1.0)
    begin = time.monotonic()
    with pytest.raises(UserError, match=f"{waiting} started no worker in 1 s; it waits for sleep: "):
        launch(["-c", "pass"], 2, tmp_path / "output.log", None)
    assert time.monotonic() - begin < 30


def test_more_workers_than_cores_is_refused_with_the_largest_count(images: Path, tmp_path: Path) -> None:
    outcome = submit(tiny_study(tmp_path, images), tmp_path / "logs", "--set", "workers=[1,4096]")
    assert outcome.returncode == 2
    assert "the largest worker count here is" in outcome.stderr
    assert not list(tmp_path.glob("logs/tiny/*/config.json"))


def test_repeats_are_blocks_in_shuffled_order(images: Path, tmp_path: Path) -> None:
    study: StudyConfig = read_study(tiny_study(tmp_path, images), {"repeats": 6})
    order = in_launch_order(study)
    assert [point.repeat for point in order] == sorted(point.repeat for point in order)
    blocks = [tuple((p.framework, p.workers) for p in order[4 * i : 4 * i + 4]) for i in range(6)]
    assert len(set(blocks)) > 1
    assert all(len(set(block)) == 4 for block in blocks)
    assert order == in_launch_order(study)


@pytest.mark.slow
def test_a_run_that_diverges_is_not_advised_to_be_run_again(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(POINTS)
    study = tmp_path / "mine.toml"
    study.write_text(
        'workers = [1]\nrepeats = 1\nframeworks = ["pytorch_native"]\n[task]\nfile = "my_task.py"\n'
        "options = { width = 4 }\n[training]\nepochs = 2\nbatch_per_worker = 2\nlearning_rate = 1e30\n"
    )
    command = [sys.executable, "-m", "unet_scaling", "run", str(study), "--logs", str(tmp_path / "logs")]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 70, done.stdout + done.stderr
    assert "training.learning_rate" in done.stderr
    assert "same command" not in done.stderr


# Far more than a test waits for.
MANY_EPOCHS = 1_000_000


@contextmanager
def training(folder: Path, data: Path, workers: int) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A study of one run that trains, in a session of its own, and its run folder."""
    study = tiny_study(folder, data, [workers], MANY_EPOCHS)
    command = [sys.executable, "-m", "unet_scaling", "run", str(study), "--logs", str(folder / "logs")]
    process = subprocess.Popen(
        [*command, "--set", "frameworks=['pytorch_native']"], cwd=PROJECT, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        # A shell lets what it starts in the background ignore Ctrl-C, and all below that would inherit it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    run = folder / "logs" / "tiny" / f"pytorch_native-w{workers:02}-r1"
    try:
        wait_until(lambda: epochs_in(run) > 1, "two epochs", 180)
        yield process, run
    finally:
        process.kill()
        process.wait()


def epochs_in(run: Path) -> int:
    record = run / "run.jsonl"
    return record.read_text().count('"kind":"epoch"') if record.exists() else 0


def test_ctrl_c_saves_and_names_the_command_to_go_on(tmp_path: Path, images: Path) -> None:
    with training(tmp_path, images, 1) as (process, run):
        (row,) = study_rows(run.parent)
        assert row.state == "running"
        assert row.images_per_second
        assert row.expected_end
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        os.killpg(process.pid, signal.SIGINT)  # at once: the same request
        printed, _ = process.communicate(timeout=120)
    assert process.returncode == 75, printed
    assert "stopping: the workers save their state" in printed
    study = tmp_path / "tiny.toml"
    assert f"run the same command to go on: {PASTED} run {study} --logs" in printed
    end = read_record(run / "run.jsonl").end
    assert end is not None
    assert end.status == "stopped"
    assert list(run.glob("checkpoint-*.pt"))
    assert not list(run.glob("error.*"))
    (row,) = study_rows(run.parent)
    assert row.state == "resumable"


def test_a_second_ctrl_c_ends_all_workers_at_once(tmp_path: Path, images: Path) -> None:
    with training(tmp_path, images, 2) as (process, _):
        below = descendants(process.pid)
        command = [sys.executable, str(PROJECT / "pytorch_native/train.py"), str(_)]
        workers = worker_processes(process.pid, command)
        assert len(workers) == 2
        for worker in workers:
            worker.suspend()  # they will never reach a safe point
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        while "stopping" not in (line := process.stdout.readline()):
            assert line
        time.sleep(2 * SAME_REQUEST_SECONDS)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    wait_until(lambda: not any(each.is_running() for each in below), "their end", 30)

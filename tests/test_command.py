"""The command unet-scaling by itself: its table, its help, completion in a real shell, and mistakes."""

import errno
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.cluster import wait_until
from tests.honest import Honest, write_honest
from tests.studies import make_images, tiny_study
from unet_scaling.base.errors import EXIT_MEANINGS, UserError, run_program
from unet_scaling.base.texts import CALLED, COMMAND
from unet_scaling.completion import completion_script
from unet_scaling.study.config import PROJECT
from unet_scaling.subcommands import SUBCOMMANDS, module_of, usage

COMMANDS_PAGE = PROJECT / "docs" / "commands.md"
SITE = "--cluster=slurm/clusters/two_gpu_site.toml"
# Completes its arguments as the last word of a command line.
COMPLETE = """
complete_words() {
    COMP_WORDS=("$@")
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
    _unet_scaling
    printf '%s\\n' "${COMPREPLY[@]}"
}
complete_words "$@"
"""


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "unet_scaling", *arguments]
    return subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"), 12)


@pytest.fixture
def study(images: Path, tmp_path: Path) -> Path:
    return tiny_study(tmp_path, images)


@pytest.mark.parametrize("arguments", [["--help"], ["profile", "--help"], ["report", "--no-such"]])
def test_help_and_mistakes_import_nothing_large(arguments: list[str]) -> None:
    program = (
        "import sys, contextlib; from unet_scaling.subcommands import main;"
        f"sys.argv = {['unet-scaling', *arguments]!r}\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "print(sorted({'torch', 'pandas', 'numpy', 'matplotlib', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "usage: unet-scaling" in done.stdout or done.stderr.startswith("error: ")


@pytest.mark.slow
def test_what_is_recorded_is_read_where_nothing_can_train(tmp_path: Path) -> None:
    write_honest(tmp_path / "study", Honest(workers=(1, 2), repeats=1, has_files=True))
    (tmp_path / "table.csv").write_text("workers,seconds\n1,4\n2,2\n")
    program = """
import sys
class Refused:
    def find_spec(self, name, *others):
        if name.partition(".")[0] in ("torch", "mpi4py", "horovod"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refused())
from unet_scaling.subcommands import main
for words in ("status study", "report study --output 1", "report --csv table.csv --output 2",
              "compare study study --output 3"):
    sys.argv = ["unet-scaling", *words.split()]
    main()
"""
    words = [sys.executable, "-c", program]
    subprocess.run(words, cwd=tmp_path, check=True, env=os.environ | {"PYTHONPATH": str(PROJECT)})
    assert all((tmp_path / folder).is_dir() for folder in "123")


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_has_its_program_and_tells_its_exit_codes(name: str) -> None:
    module = module_of(name)
    assert callable(module.main)
    told = module.command_line().format_help()
    assert all(f"  {code:<2}  {meaning}" in told for code, meaning in EXIT_MEANINGS.items())
    assert name in usage()


def test_the_page_of_commands_shows_the_help() -> None:
    page = COMMANDS_PAGE.read_text()
    assert f"```\n{usage()}\n```" in page, "copy the output of unet-scaling --help into docs/commands.md"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stauts", "did you mean status"),
        ("submitt", "did you mean submit"),
        ("MY_STUDY.toml", "did you mean unet-scaling run MY_STUDY.toml, or submit"),
        ("zzzz", "commands: check, new, data"),
    ],
)
def test_an_unknown_subcommand_is_answered_with_the_nearest(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        module_of(name)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("status study --jsn", "unrecognized arguments: --jsn; did you mean --json? see STATUS --help"),
        ("data chekc", "did you mean check? see DATA --help"),
        ("data check", "required: FOLDER; see DATA check --help"),
        ("run study.toml --set a", "argument --set: 'a' is not TABLE.KEY=VALUE; see RUN --help"),
    ],
)
def test_wrong_usage_is_one_line_with_the_nearest_word_and_the_help(words: str, said: str) -> None:
    done = command(*words.split())
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    name = words.split()[0]
    assert line.startswith("error: ")
    assert line.endswith(said.replace(name.upper(), f"{CALLED} {name}"))
    help_command = shlex.split(line.rpartition("see ")[2])[1:]
    assert command(*help_command).stdout.startswith(f"usage: {COMMAND} {name}")


def complete(shell: str, script: Path, *words: str) -> list[str]:
    program = f"source {script}\n{COMPLETE}"
    done = subprocess.run([shell, "-c", program, shell, *words], capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return done.stdout.split()


def test_bash_completes_commands_options_keys_and_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm.commands.options.logs_folder", lambda: tmp_path / "logs")
    (tmp_path / "logs" / "published" / "run").mkdir(parents=True)
    (tmp_path / "logs" / "published" / "study.json").write_text("{}")
    (tmp_path / "logs" / "publish_nothing").mkdir()
    script = tmp_path / "completion"
    script.write_text(completion_script("bash"))
    assert complete("bash", script, "unet-scaling", "st") == ["status"]
    assert complete("bash", script, "unet-scaling", "status", "--j") == ["--json"]
    assert complete("bash", script, "unet-scaling", "run", "--set", "training.ep") == ["training.epochs="]
    assert "training.epochs" in complete("bash", script, "unet-scaling", "explain", "training.e")
    assert complete("bash", script, "unet-scaling", "data", "fe") == ["fetch"]
    assert complete("bash", script, "unet-scaling", "status", "pub") == ["published"]
    assert complete("bash", script, "unet-scaling", "completion", "z") == ["zsh"]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_completion_script_is_sound_in_its_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    script = tmp_path / "completion"
    script.write_text(completion_script(shell))
    assert subprocess.run([shell, "-n", str(script)], capture_output=True).returncode == 0
    if shell == "bash":
        checker = Path(sys.executable).with_name("shellcheck")
        outcome = subprocess.run([checker, "-s", "bash", str(script)], capture_output=True, text=True)
        assert outcome.returncode == 0, outcome.stdout


def test_check_verifies_a_study_its_images_and_its_cluster(study: Path) -> None:
    done = command("check", str(study), SITE, "--only-files")
    assert done.returncode == 0, done.stderr
    assert "4 runs on 1, 2 workers; images unchanged" in done.stdout
    assert "4 jobs, at most 40.0 node-hours" in done.stdout
    assert re.search(r"IoU will not be judged: \d+ steps? on 2 workers, at least 100 are ", done.stdout)


SUBGROUPS = ("--set=strategy.synchronise_every=4", "--set=strategy.subgroup_size=3")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--set", "training.epoch=3"], 2, "training.epoch: unknown key; did you mean epochs?"),
        (["--set", "data.folder=/nowhere"], 65, "data.folder: found /nowhere, which does not exist"),
        (["--set=workers=[30]", "--set=training.epochs=0", SITE], 2, "max_nodes is 7"),
        (
            [*SUBGROUPS, "--set=workers=[12]", "--set=training.epochs=0", SITE],
            2,
            "no divisor of the 2 workers",
        ),
        (["--cluster", "slurm/clusters"], 2, "slurm/clusters is a folder; name a TOML file in it"),
        (["--cluster", "gpu_site.toml"], 2, "; did you mean slurm/clusters/gpu_site.toml?"),
    ],
)
def test_check_names_what_would_keep_runs_from_starting(
    options: list[str], code: int, said: str, study: Path
) -> None:
    done = command("check", str(study), "--only-files", *options)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.verify
def test_check_tries_both_frameworks_with_real_workers(study: Path, tmp_path: Path) -> None:
    """It names a Horovod that cannot use the GPUs of the cluster as native DDP does."""
    cluster = tmp_path / "cluster.toml"
    site = 'launcher = "srun"\ngpus_per_node = 2\ncores_per_worker = 1\ntime = "01:00:00"\ngres = "gpu"\n'
    cluster.write_text(site)
    done = command("check", str(study), "--cluster", str(cluster))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pytorch_native  works: 2 workers" in done.stdout
    assert f"unet-scaling submit {study} --cluster {cluster} --dry-run" in done.stdout.splitlines()[-1]
    assert len(re.findall("(?i)mpich", done.stdout.partition("toolchain")[0])) <= 1
    (horovod,) = [line for line in done.stdout.splitlines() if "horovod  works: 2 workers" in line]
    assert ("HOROVOD_GPU_OPERATIONS=NCCL" in done.stdout) is ("NCCL" not in horovod)


def test_output_that_nobody_reads_ends_without_a_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "unet_scaling", "explain"]
    done = subprocess.run(words, cwd=PROJECT, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141


def test_the_keyboard_stops_a_command_without_a_traceback(tmp_path: Path) -> None:
    fifo = tmp_path / "study.toml"
    os.mkfifo(fifo)
    end = os.open(fifo, os.O_RDWR)  # a pipe that nobody writes to is refused
    words = [sys.executable, "-m", "unet_scaling", "run", str(fifo)]
    # A shell lets what it starts in the background ignore Ctrl-C, and this would inherit it.
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        words, cwd=PROJECT, stderr=subprocess.PIPE, text=True, preexec_fn=listening
    ) as running:
        files = Path(f"/proc/{running.pid}/fd")
        wait_until(
            lambda: any(fifo.samefile(file) for file in files.iterdir() if file.exists()), "reading", 60
        )
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=60)
    os.close(end)
    assert told == "error: stopped by the keyboard\n"
    assert running.returncode == 130


def test_what_may_not_be_read_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "closed/study")

    with pytest.raises(SystemExit) as ended:
        run_program(main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: closed/study: Permission denied; who owns it can allow it\n"


@pytest.mark.parametrize("module", ["unet_scaling", "analysis", "unet_scaling.data"])
def test_a_python_without_the_packages_is_told_which_one_has_them(module: str) -> None:
    words = [sys.executable, "-S", "-m", module, "--help"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(words, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "lacks pydantic and rich; use " in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_virtual_cluster_needs_no_package() -> None:
    """It prepares machines on which nothing is installed yet."""
    words = [sys.executable, "-S", "-m", "slurm.virtual", "--help"]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""What pip installs works outside of a clone, and without its optional parts, but for what asks for them."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from slurm.launch.processes import mpiexec_program
from tests.capabilities import CAPABILITIES
from tests.studies import TINY_STUDY, UNJUDGED, make_images
from unet_scaling import CODE_FOLDER
from unet_scaling.base.errors import UserError

# For people who have a clone: a notebook, and scripts that call .venv of its root.
OF_A_CLONE = {".ipynb", ".sh", ""}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy of the tracked files, so that nothing is left in the clone."""
    folder = tmp_path_factory.mktemp("wheel")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=CODE_FOLDER, capture_output=True, check=False)
    if files.returncode:
        pytest.skip("not a git checkout: which files the wheel should have is not known")
    wanted = ("unet_scaling/", "slurm/", "analysis/", "environment/", "LICENSE", "CITATION.cff", "README.md",
              "pyproject.toml", "pytorch_native/", "horovod/", "lightning/", "accelerate/")  # fmt: skip
    for name in files.stdout.decode().split("\0"):
        if name.startswith(wanted) and (CODE_FOLDER / name).is_file():
            copy = folder / "source" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((CODE_FOLDER / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q", "-w"]
    subprocess.run([*command, str(folder), str(folder / "source")], check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    source = wheel.parent / "source"
    paths = [path for name in ("unet_scaling", "slurm", "analysis") for path in (source / name).rglob("*")]
    files = {path.relative_to(source).as_posix() for path in paths if path.is_file()}
    wanted = {name for name in files if Path(name).suffix not in OF_A_CLONE}
    assert wanted
    assert wanted - set(zipfile.ZipFile(wheel).namelist()) == set()


# Ask for parts that are not there: of a run with saliency maps, of an emulated one, and of a strategy.
ASK = """
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace as Names
from unet_scaling.base.errors import run_program
from unet_scaling.group.group import single_worker
from unet_scaling.study.options import Strategy
from unet_scaling.study.study_file import read_study
from unet_scaling.training import load_task
from unet_scaling.training_loop import build_step, explain
config = read_study(Path("tiny.toml")).configs()[0]
emulation = config.emulation.model_copy(update={"compute": "v100_like"})
emulated = config.model_copy(update={"emulation": emulation})
late = Names(config=Names(strategy=Strategy(staleness=1)))
for ask in (
    lambda: explain(Names(config=Names(is_explained=True)), None, None, single_worker(), None),
    lambda: load_task(emulated).build_model(None),
    lambda: build_step(late, None, None, None, None),
):
    with suppress(SystemExit):
        run_program(ask)
"""


@pytest.mark.slow
def test_an_installed_command_trains_and_reports_in_any_folder_without_its_optional_parts(
    wheel: Path, tmp_path: Path
) -> None:
    try:
        mpiexec_program()
    except UserError as error:
        pytest.skip(str(error))
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    for path in (tmp_path / "site" / path for each in CAPABILITIES.values() for path in each.paths):
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
    packages = os.pathsep.join([str(tmp_path / "site"), sysconfig.get_path("purelib")])
    work = tmp_path / "work"
    make_images(work / "data", 12)
    (work / "tiny.toml").write_text(TINY_STUDY.format(data="data", workers=[1], epochs=2) + UNJUDGED)

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        """Run Python by the site folder alone: -S leaves out .pth files, and so the clone."""
        return subprocess.run(
            [sys.executable, "-S", "-P", *words], cwd=work, env=os.environ | {"PYTHONPATH": packages},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def command(*words: str) -> str:
        done = python("-m", "unet_scaling", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "usage: unet-scaling" in command("--help")
    assert command("--version").split()[-1] in wheel.name
    command("check", "tiny.toml", "--only-files")
    assert "tiny" in command("run", "tiny.toml")
    assert "2 complete" in command("status", "tiny")
    elsewhere = python("-m", "unet_scaling", "check", "why_work.toml")
    assert "; did you mean ../site/slurm/studies/why_work.toml?" in elsewhere.stderr
    assert command("explain", "training.epochs")
    command("report", "logs/tiny")
    assert (work / "logs" / "tiny" / "report" / "report.html").is_file()
    written = {path.suffix for path in (tmp_path / "site").rglob("*") if path.is_file()}
    assert ".jsonl" not in written
    for words, asked_by, part in (
        (("profile", "tiny.toml"), "unet-scaling profile", "unet_scaling/profile"),
        (("doctor", "--local"), "unet-scaling doctor", "slurm/commands/doctor"),
        (("report", "--csv", "-"), "report --csv", "analysis/tables_of_others"),
    ):
        done = python("-m", "unet_scaling", *words)
        assert (done.returncode, done.stderr) == (2, lacking(asked_by, part))
    assert python("-c", ASK).stderr == (
        lacking("saliency.method", "unet_scaling/saliency")
        + lacking("emulation.compute", "unet_scaling/emulation")
        + lacking("strategy", "unet_scaling/strategies")
    )


def lacking(asked_by: str, part: str) -> str:
    return f"error: {asked_by} needs {part}, which this checkout lacks\n"

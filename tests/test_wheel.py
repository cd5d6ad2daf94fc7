"""What pip installs works outside of a clone: the wheel holds all that the commands read."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from slurm.processes import mpiexec_program
from tests.studies import TINY_STUDY, make_images
from unet_scaling.interpreter import CODE_FOLDER
from unet_scaling.study.errors import UserError

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
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-build-isolation",
        "--no-deps",
        "-q",
        "-w",
        str(folder),
    ]
    subprocess.run([*command, str(folder / "source")], check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    source = wheel.parent / "source"
    paths = [path for name in ("unet_scaling", "slurm", "analysis") for path in (source / name).rglob("*")]
    files = {path.relative_to(source).as_posix() for path in paths if path.is_file()}
    wanted = {name for name in files if Path(name).suffix not in OF_A_CLONE}
    assert wanted
    assert wanted - set(zipfile.ZipFile(wheel).namelist()) == set()


def test_an_installed_command_trains_and_reports_in_any_folder(wheel: Path, tmp_path: Path) -> None:
    try:
        mpiexec_program()
    except UserError as error:
        pytest.skip(str(error))
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    packages = os.pathsep.join([str(tmp_path / "site"), sysconfig.get_path("purelib")])
    work = tmp_path / "work"
    make_images(work / "data", 12)
    (work / "tiny.toml").write_text(TINY_STUDY.format(data="data", workers=[1], epochs=2))

    def command(*words: str) -> str:
        """Call the command by the site folder alone: -S leaves out .pth files, and so the clone."""
        program = [sys.executable, "-S", "-P", "-m", "unet_scaling", *words]
        done = subprocess.run(
            program, cwd=work, env=os.environ | {"PYTHONPATH": packages}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert command("--version").split()[-1] in wheel.name
    assert "tiny" in command("run", "tiny.toml")
    assert "2 complete" in command("status", "tiny")
    assert command("explain", "training.epochs")
    command("report", "logs/tiny")
    assert (work / "logs" / "tiny" / "report" / "report.html").is_file()
    written = {path.suffix for path in (tmp_path / "site").rglob("*") if path.is_file()}
    assert ".jsonl" not in written

"""The doors of the house: who may import what, read from the code itself."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from unet_scaling.study.config import FRAMEWORKS, PROJECT

ROOMS = ("unet_scaling", "pytorch_native", "horovod", "slurm", "analysis", "environment")
ROOMS_OF_THE_ANALYSIS = ("loading", "statistics", "findings", "prediction", "budget", "figures", "report")
FILES = [path for room in ROOMS for path in sorted((PROJECT / room).rglob("*.py"))]


def imports(path: Path) -> set[str]:
    """Every module that a file imports anywhere, by its full dotted name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def importers(module: str) -> set[str]:
    """Files that import a module or something inside it, relative to the project."""
    return {
        str(path.relative_to(PROJECT))
        for path in FILES
        if any(name == module or name.startswith(f"{module}.") for name in imports(path))
    }


def test_each_framework_is_imported_in_exactly_one_file() -> None:
    assert importers("horovod") == {"horovod/train.py"}
    assert importers("torch.distributed") == {"pytorch_native/train.py"}
    assert importers("torch.nn.parallel") == {"pytorch_native/train.py"}


def test_figures_alone_draw() -> None:
    assert all(name.startswith("analysis/figures/") for name in importers("matplotlib"))


def test_pandas_stays_in_the_analysis() -> None:
    assert all(name.startswith("analysis/") for name in importers("pandas"))


def test_each_room_of_the_analysis_takes_only_from_those_before_it() -> None:
    upward = [
        f"{name} imports {later}"
        for number, room in enumerate(ROOMS_OF_THE_ANALYSIS)
        for later in ROOMS_OF_THE_ANALYSIS[number + 1 :]
        for name in importers(f"analysis.{later}")
        if name.startswith(f"analysis/{room}/")
    ]
    assert not upward


def test_the_analysis_needs_no_torch() -> None:
    assert not any(name.startswith("analysis/") for name in importers("torch"))


def test_nothing_points_upward() -> None:
    above = importers("slurm") | importers("analysis")
    assert not any(name.startswith(("unet_scaling/", "pytorch_native/", "horovod/")) for name in above)
    assert not any(name.startswith("slurm/") for name in importers("analysis"))


@pytest.mark.parametrize(
    "module", ["unet_scaling.study.config", "unet_scaling.study.record", "slurm.__main__"]
)
def test_a_login_node_needs_neither_torch_nor_pandas(module: str) -> None:
    program = f"import {module}, sys; print(sorted({{'torch', 'pandas'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "entry", [["-c", "{}"], ["-m", "tests.import_horovod"], ["horovod/../tests/import_horovod.py"]]
)
def test_horovod_is_the_installed_one_from_every_entry_point(entry: list[str]) -> None:
    program = "import horovod.torch; print(horovod.torch.__file__)"
    command = [sys.executable, *(part.format(program) for part in entry)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert "site-packages" in done.stdout


def test_nothing_at_the_root_shadows_a_package() -> None:
    assert not any((PROJECT / framework / "__init__.py").exists() for framework in FRAMEWORKS)

"""Layout: who may import what, what a name stands for, how large a function is; read from the code itself."""

import ast
import difflib
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.layout_rules import BUDGETS, RULES
from unet_scaling.study.config import ALL_FRAMEWORKS, PROJECT, Framework


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_code_keeps(rule: Callable[[], list[str]]) -> None:
    breaches = rule()
    assert not breaches, "\n".join([str(rule.__doc__), *breaches])


@pytest.mark.parametrize("count", BUDGETS, ids=lambda count: count.__name__)
def test_there_are_no_more_than_the_budget_has(count: Callable[[], list[str]]) -> None:
    found = count()
    assert len(found) <= BUDGETS[count], "\n".join([str(count.__doc__), *found])


# What a login node runs, and a worker, whose imports are most of a short run's seconds outside of its epochs.
NOT_IMPORTED = {
    "unet_scaling.format.record": {"torch", "pandas"},
    "unet_scaling.data.__main__": {"torch", "pandas"},
    "slurm.commands.submit": {"torch", "pandas"},
    "pytorch_native.train": {
        "pandas", "scipy", "matplotlib", "pyarrow", "jinja2", "click", "rich", "psutil", "torch._dynamo",
        "horovod", "lightning", "accelerate", "xaitk_saliency", "smqtk_classifier", "skimage", "sklearn",
        "unet_scaling.emulation.processor_quota", "unet_scaling.measure.compute_recorder",
        "unet_scaling.format.compute_profile", "unet_scaling.format.saliency",
        "unet_scaling.format.run_state",
        "unet_scaling.base.command_line", "unet_scaling.task.file_task",
    },
}  # fmt: skip


@pytest.mark.parametrize("module", NOT_IMPORTED)
def test_nothing_is_imported_that_only_others_need(module: str) -> None:
    program = f"import {module}, sys; print(sorted({NOT_IMPORTED[module]} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "entry", [["-c", "{}"], ["-m", "tests.import_horovod"], ["horovod/../tests/import_horovod.py"]]
)
def test_horovod_is_the_installed_one_from_every_entry_point(entry: list[str]) -> None:
    program = "import horovod; print(horovod.__file__)"
    command = [sys.executable, *(part.format(program) for part in entry)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert "site-packages" in done.stdout


def test_nothing_at_the_root_shadows_a_package() -> None:
    assert not any((PROJECT / framework / "__init__.py").exists() for framework in ALL_FRAMEWORKS)


SOURCES = {framework: (PROJECT / framework / "train.py").read_text() for framework in ALL_FRAMEWORKS}
FUNCTIONS = [
    "join_group",
    "distribute",
    "hold_gradients",
    "wait_for_gradients",
    "update",
    "start_sum",
    "leave_group",
    "main",
]


def functions(framework: Framework) -> dict[str, ast.FunctionDef]:
    return {
        node.name: node for node in ast.parse(SOURCES[framework]).body if isinstance(node, ast.FunctionDef)
    }


def test_all_hold_the_same_functions_with_equal_signatures_docstrings_and_main() -> None:
    native, *others = (
        {
            name: (ast.dump(node.args), ast.unparse(node.returns or node), ast.get_docstring(node))
            for name, node in functions(framework).items()
        }
        for framework in ALL_FRAMEWORKS
    )
    assert list(native) == FUNCTIONS
    assert [[*other.items()] for other in others] == [[*native.items()]] * 3
    assert len({source[source.index("def main() -> None:") :] for source in SOURCES.values()}) == 1


@pytest.mark.parametrize("framework", ALL_FRAMEWORKS)
def test_stays_short_alone_in_its_folder_and_near_native_ddp(framework: Framework) -> None:
    assert SOURCES[framework].count("\n") <= 101
    native = SOURCES["pytorch_native"].splitlines()
    changed = [
        line
        for line in difflib.unified_diff(native, SOURCES[framework].splitlines(), n=0)
        if line[0] in "+-" and line[:3] not in ("+++", "---")
    ]
    assert len(changed) <= 45
    found = [path.name for path in (PROJECT / framework).iterdir() if path.name != "__pycache__"]
    assert found == ["train.py"]

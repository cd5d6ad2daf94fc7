"""The twins differ where the frameworks do, and nowhere else."""

import ast
import difflib

import pytest

from unet_scaling.study.config import ALL_FRAMEWORKS, PROJECT, Framework

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

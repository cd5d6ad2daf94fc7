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
    "sum_over_workers",
    "leave_group",
    "main",
]


def functions(framework: Framework) -> dict[str, ast.FunctionDef]:
    return {
        node.name: node for node in ast.parse(SOURCES[framework]).body if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("framework", ALL_FRAMEWORKS)
def test_holds_the_same_functions_in_the_same_order(framework: Framework) -> None:
    assert list(functions(framework)) == FUNCTIONS


def test_signatures_and_docstrings_are_equal() -> None:
    native, *others = (
        {
            name: (ast.dump(node.args), ast.unparse(node.returns or node), ast.get_docstring(node))
            for name, node in functions(framework).items()
        }
        for framework in ALL_FRAMEWORKS
    )
    assert others
    assert all(other == native for other in others)


def test_main_is_equal_byte_for_byte() -> None:
    assert len({source[source.index("def main() -> None:") :] for source in SOURCES.values()}) == 1


@pytest.mark.parametrize("framework", ALL_FRAMEWORKS)
def test_stays_short(framework: Framework) -> None:
    assert SOURCES[framework].count("\n") <= 101


@pytest.mark.parametrize("framework", ALL_FRAMEWORKS[1:])
def test_the_difference_to_native_ddp_stays_within_bounds(framework: Framework) -> None:
    native = SOURCES["pytorch_native"].splitlines()
    changed = [
        line
        for line in difflib.unified_diff(native, SOURCES[framework].splitlines(), n=0)
        if line[0] in "+-" and line[:3] not in ("+++", "---")
    ]
    assert len(changed) <= 45


@pytest.mark.parametrize("framework", ALL_FRAMEWORKS)
def test_the_folder_holds_nothing_else(framework: Framework) -> None:
    found = [path.name for path in (PROJECT / framework).iterdir() if path.name != "__pycache__"]
    assert found == ["train.py"]

"""docs/architecture.md follows values through files and names that are there."""

import ast
import re

import pytest

from tests.source import FUNCTION, modules, public_names
from unet_scaling.study.config import PROJECT

PAGE = (PROJECT / "docs" / "architecture.md").read_text()
ROWS = re.findall(r"^\| `([\w/]+\.py)` \| (.+) \|$", PAGE, flags=re.MULTILINE)
NAME = re.compile(r"`([A-Za-z_]+(?:\.[a-z_]+)?)`")
# Backticked on the page, and no names of the file in whose row they stand.
FILES_AND_KEYS = {"run.jsonl", "summary.csv", "data.loading", "RunConfig"}


def defined_in(file: str) -> set[str]:
    """Return the public names of a file, with the methods of its classes as `Class.method`."""
    (module,) = (module for module in modules(file.partition("/")[0]) if module.file == file)
    names = public_names(module)
    methods = {
        f"{name}.{method.name}"
        for name, node in names.items()
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, FUNCTION)
    }
    return names.keys() | methods


def test_the_page_says_what_to_read_first_and_follows_three_values() -> None:
    assert PAGE.count("\n## ") == 1 + 3
    assert len(ROWS) > 30


@pytest.mark.parametrize(
    ("file", "names"), ROWS, ids=[f"{file} {number}" for number, (file, _) in enumerate(ROWS)]
)
def test_every_name_stands_in_its_file(file: str, names: str) -> None:
    assert (PROJECT / file).is_file()
    named = [name for name in NAME.findall(names) if name not in FILES_AND_KEYS]
    assert named
    assert set(named) <= defined_in(file)

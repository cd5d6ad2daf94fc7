"""Break one promise at a time and see the tests notice: `python -m tests.mutate [--list] [NAME ...]`.

A mutant in tests/mutants/*.toml names the promise (`row`), a `file`, the lines `old` that keep it, the lines
`new` that do not, and the `tests` that must fail then. Each is applied to a work tree of the last commit; its
tests must pass there before and fail after. Ends with code 1 where one does not.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parents[1]
PASSED, FAILED = 0, 1  # exit codes of pytest


class Mutant(NamedTuple):
    """One promise, the lines of a file that keep it, and the tests that see them broken."""

    name: str
    row: str
    file: str
    old: str
    new: str
    tests: list[str]

    def applied_to(self, tree: Path) -> str:
        """Return the broken text of the file; ValueError where `old` does not stand there exactly once."""
        text = (tree / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} holds {text.count(self.old)} times: {self.old!r}")
        return text.replace(self.old, self.new)


def mutants() -> list[Mutant]:
    """Return all mutants of tests/mutants."""
    files = sorted((PROJECT / "tests" / "mutants").glob("*.toml"))
    return [Mutant(**entry) for file in files for entry in tomllib.loads(file.read_text())["mutant"]]


@contextmanager
def work_tree() -> Iterator[Path]:
    """Check the last commit out beside the project for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", tree], cwd=PROJECT, check=True)
        try:
            (tree / ".venv").symlink_to(PROJECT / ".venv")
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=PROJECT, check=True)


def outcome(tree: Path, tests: list[str]) -> int:
    """Run tests of the tree on the code of the tree; return the exit code of pytest."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    surroundings = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=tree, env=surroundings, stdout=subprocess.DEVNULL).returncode


def verdict(tree: Path, mutant: Mutant) -> str:
    """Return "killed", or what was seen instead."""
    path = tree / mutant.file
    kept = path.read_text()
    path.write_text(mutant.applied_to(tree))
    try:
        code = outcome(tree, mutant.tests)
    finally:
        path.write_text(kept)
    return {FAILED: "killed", PASSED: "SURVIVED"}.get(code, f"pytest ended with {code}")


def main() -> int:
    """Print one line for every mutant; return 1 where one survived or the tests fail without it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of names; without one, all mutants")
    parser.add_argument("--list", action="store_true", help="print them and run nothing")
    options = parser.parse_args()
    chosen = [
        each for each in mutants() if not options.names or any(part in each.name for part in options.names)
    ]
    if options.list:
        print(*(f"{each.name}: {each.row}: {' '.join(each.tests)}" for each in chosen), sep="\n")
        return 0
    seen = {}
    with work_tree() as tree:
        for each in chosen:
            before = outcome(tree, each.tests)
            seen[each.name] = verdict(tree, each) if before == PASSED else "its tests fail without it"
            print(f"{each.name}: {seen[each.name]}", flush=True)
    killed = sum(found == "killed" for found in seen.values())
    print(f"{killed} of {len(seen)} killed")
    return int(killed != len(seen))


if __name__ == "__main__":
    sys.exit(main())

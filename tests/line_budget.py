"""Hold the size of every folder: `python -m tests.line_budget` prints lines and words beside their budget.

Ends with code 1 where a folder is above its number in line_budget.toml. Raising a number is a commit of its
own with the reason; lowering one needs none. Counted is what git tracks, or would.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1]
BUDGET = Path(__file__).with_name("line_budget.toml")
PRODUCT = ("unet_scaling", "slurm", "analysis", "environment", "twins")
WORD = re.compile(r"\w")
CODE = (".py", ".sh", ".jinja", ".css")


def sizes() -> dict[str, int]:
    """Return the lines of code of each folder of the budget, and the words of the documentation."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    paths = [PROJECT / name for name in listed.splitlines() if (PROJECT / name).is_file()]
    found = dict.fromkeys(tomllib.loads(BUDGET.read_text()), 0)
    for path in paths:
        folder = path.relative_to(PROJECT).parts[0]
        if path.suffix == ".md" and folder not in (".ci", ".github", "tests"):
            # What holds no letter or digit is no word, such as the bars of a table.
            found["words of docs"] += sum(bool(WORD.search(part)) for part in path.read_text().split())
        elif path.suffix in CODE:
            found["twins" if path.name == "train.py" else folder] += path.read_text().count("\n")
    found["product"] = sum(found[folder] for folder in PRODUCT)
    return found


def main() -> int:
    """Print every size beside its budget; return 1 where one is above it."""
    budget = tomllib.loads(BUDGET.read_text())
    found = sizes()
    for name, most in budget.items():
        print(f"{name:15} {found[name]:7,} of {most:7,}{'  above its budget' if found[name] > most else ''}")
    return int(any(found[name] > most for name, most in budget.items()))


if __name__ == "__main__":
    sys.exit(main())

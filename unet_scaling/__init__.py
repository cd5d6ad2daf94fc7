"""The training process, what describes and records it, and the command unet-scaling with its programs.

This module says where the code is and of which commit, and refuses an interpreter that cannot run it.

Packages with commands call it as they are imported, before any other package. slurm.virtual does not: it
needs the standard library only, and prepares machines that have no environment yet. Written so that older
versions of Python can read it, too.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

OLDEST_VERSION = (3, 11)
# Two that everything needs; where they are, environment/install.sh has brought the others with them.
NEEDED = ("pydantic", "rich")
CODE_FOLDER = Path(__file__).resolve().parent.parent
# Else the packages were installed by pip, and there is neither .venv nor environment/install.sh beside them.
IS_CLONE = (CODE_FOLDER / "pyproject.toml").is_file()
# logs/ and relative paths of study files begin here: in the clone, or else where the command is called.
PROJECT = CODE_FOLDER if IS_CLONE else Path.cwd()


def require_packages() -> None:
    """End the program (2) where this Python is too old or lacks the packages of the project."""
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if sys.version_info < OLDEST_VERSION:
        reason = "is Python {}.{}, and 3.11 or newer is needed".format(*sys.version_info)
    elif lacking:
        reason = "lacks " + " and ".join(lacking)
    else:
        return
    print("error: " + (sys.executable or "this Python") + " " + reason + "; " + _way_on(), file=sys.stderr)
    sys.exit(2)


def _way_on() -> str:
    if not IS_CLONE:
        return "install the packages that it needs, too: pip install " + " ".join(NEEDED)
    python = CODE_FOLDER / ".venv" / "bin" / "python"
    if python.exists():
        return "use " + str(python)
    return "run " + str(CODE_FOLDER / "environment" / "install.sh") + ", then use .venv/bin/python"


def commit(folder: Path = CODE_FOLDER) -> "tuple[str | None, bool | None]":
    """Return the commit of the code in a folder, and whether its checkout has uncommitted changes.

    None outside a git checkout; packages that pip installed may lie in one that is not theirs.
    """
    if not (folder / ".git").exists():
        return None, None
    try:
        head = _git(folder, "rev-parse", "HEAD")
        return head, bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(folder: Path, *arguments: str) -> str:
    # A shared installation has another owner; a hook would set variables of its own repository.
    safe = ["-c", f"safe.directory={folder}", "-c", "core.fsmonitor=false"]
    command = ["git", *safe, "-C", str(folder), *arguments]
    own = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=20, env=own)
    return done.stdout.strip()

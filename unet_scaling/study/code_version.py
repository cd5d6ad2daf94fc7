"""The commit of the code: for the header of a record, and for a prediction."""

import subprocess
from pathlib import Path

from unet_scaling.interpreter import CODE_FOLDER


def commit(folder: Path = CODE_FOLDER) -> tuple[str | None, bool | None]:
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
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()

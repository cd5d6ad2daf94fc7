"""The commit of the code: for the header of a record, and for a prediction."""

import subprocess

from unet_scaling.study.config import PROJECT


def commit() -> tuple[str | None, bool | None]:
    """Return the commit of the code and whether it had uncommitted changes; None outside a git checkout."""
    try:
        head = _git("rev-parse", "HEAD")
        return head, bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(PROJECT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()

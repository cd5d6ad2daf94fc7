#!/usr/bin/env python3
"""Try the installation: run environment/installation.py, with a Python that can."""

import importlib.util
import os
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_PYTHON = _ROOT / ".venv" / "bin" / "python"


def main() -> None:
    """Replace this process by the check of this project, in .venv where this Python has no torch."""
    has_torch = importlib.util.find_spec("torch") is not None
    python = sys.executable if has_torch else str(_PYTHON)
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    program = [python, str(_ROOT / "environment" / "installation.py"), *sys.argv[1:]]
    try:
        os.execve(python, program, environment)  # noqa: S606  (no shell is wanted)
    except FileNotFoundError:
        print(f"error: {_PYTHON} does not exist; run environment/install.sh first", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

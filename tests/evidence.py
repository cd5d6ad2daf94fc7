"""The committed studies of logs/evidence, on which pages and golden numbers rest."""

import subprocess
import tempfile
from functools import cache
from pathlib import Path

EVIDENCE = Path(__file__).parents[1] / "logs" / "evidence"
COMMITTED = sorted(path.name.removesuffix(".tar.xz") for path in EVIDENCE.iterdir())
# Emptied as the process ends.
_UNPACKED = tempfile.TemporaryDirectory(prefix="evidence-")


@cache
def evidence(name: str) -> Path:
    """Return the folder of a study; an archive is unpacked for as long as this process lives."""
    if (EVIDENCE / name).is_dir():
        return EVIDENCE / name
    subprocess.run(["tar", "-xf", EVIDENCE / f"{name}.tar.xz", "-C", _UNPACKED.name], check=True)
    return Path(_UNPACKED.name) / name

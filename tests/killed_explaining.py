"""Run a twin that is killed as it writes its maps.

python tests/killed_explaining.py TRAIN_PY RUN_FOLDER WORKER NUMBER SHARE

That worker kills itself in its file of this number, from 0, of those below RUN_FOLDER/saliency, when this
share of the file's bytes is written; the temporary file is left. Above 1: after the file has its name.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

from unet_scaling.group.identity import identify
from unet_scaling.study import files
from unet_scaling.study.saliency import SALIENCY_FOLDER


class Killer:
    """Counts the files that are written below the folder of the maps."""

    def __init__(self, number: int, share: float) -> None:
        self._left = number
        self._share = share
        self._replace = files._replace

    def replace(self, path: Path, data: bytes, mode: int) -> None:
        if SALIENCY_FOLDER not in path.parts:
            return self._replace(path, data, mode)
        self._left -= 1
        if self._left >= 0:
            return self._replace(path, data, mode)
        if self._share > 1:
            self._replace(path, data, mode)
        else:
            written = data[: int(self._share * len(data))]
            path.with_name(f".{path.name}.killed").write_bytes(written)
        os.kill(os.getpid(), signal.SIGKILL)
        return None


def main() -> None:
    train, folder, worker, number, share = sys.argv[1:]
    if identify(os.environ).rank == int(worker):
        files._replace = Killer(int(number), float(share)).replace
    sys.argv = [train, folder]
    runpy.run_path(train, run_name="__main__")


if __name__ == "__main__":
    main()

"""Run a twin whose steps take at least so long: python tests/paced.py PACE ... PYTHON TRAIN_PY RUN_FOLDER.

As the last of a cluster file's launcher arguments, it makes a run last as long as a test needs on any
machine, and leaves what it trains as it is. Each step reads from the file PACE how many seconds it pauses,
so that a test that has seen enough can let the run go. What a job script puts before PYTHON is started as
it stands.
"""

import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    pace, *before, python, train, folder = sys.argv[1:]
    if before:
        os.execvp(before[0], [*before, python, __file__, pace, python, train, folder])
    from unet_scaling.training import Step  # imports torch, which the first of the two programs must not

    Step.take = paced(Step.take, Path(pace))  # type: ignore[method-assign]
    sys.argv = [train, folder]
    runpy.run_path(train, run_name="__main__")


def paced(take: Callable[..., Any], pace: Path) -> Callable[..., Any]:
    """The training step, which begins with a pause."""

    def slower(*words: Any) -> Any:
        time.sleep(float(pace.read_text()))
        return take(*words)

    return slower


if __name__ == "__main__":
    main()

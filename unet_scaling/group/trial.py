"""A group without a run: the workers of a trial launch join with a twin's own functions."""

import runpy
from typing import Any

from unet_scaling.study.config import PROGRAMS_FOLDER, Framework, RunConfig
from unet_scaling.study.options import Data, Training


def trial_config(framework: Framework, workers: int, timeout_seconds: int = 300) -> RunConfig:
    """Return the configuration of a run that reads no images and trains nothing."""
    return RunConfig(
        study="trial",
        run="trial",
        framework=framework,
        workers=workers,
        repeat=1,
        seed=0,
        data=Data(folder="none", image_height=16, image_width=16),
        training=Training(epochs=0, timeout_seconds=timeout_seconds),
    )


def twin_functions(framework: Framework) -> dict[str, Any]:
    """Return the functions of a twin by name, as `join_group` and `leave_group`."""
    return runpy.run_path(str(PROGRAMS_FOLDER / framework / "train.py"))

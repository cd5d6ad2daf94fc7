"""Which task a run trains."""

from unet_scaling.study.config import RunConfig
from unet_scaling.task.task import Task
from unet_scaling.task.unet import UNetTask


def load_task(config: RunConfig) -> Task:
    """Return the built-in task: the U-Net."""
    return UNetTask(config)

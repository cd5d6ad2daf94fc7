"""Which task a run trains."""

from unet_scaling.study.config import RunConfig
from unet_scaling.task.task import Task
from unet_scaling.task.unet import UNetTask


def load_task(config: RunConfig) -> Task:
    """Return the task of a run: that of its file, or the built-in U-Net. Raises UserError as `FileTask`."""
    if not config.has_own_task:
        return UNetTask(config)
    # A run of the built-in task needs none of what verifies others.
    from unet_scaling.task.file_task import FileTask

    return FileTask(config)

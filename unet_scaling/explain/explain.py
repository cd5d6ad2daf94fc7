"""Saliency maps of the test images, after training: what the twins call."""

from torch import nn

from unet_scaling.data.batches import RunData
from unet_scaling.group.group import Group
from unet_scaling.run.recorder import Recorder
from unet_scaling.study.errors import UserError
from unet_scaling.task.task import Task


def explain(task: Task, model: nn.Module, data: RunData, group: Group, record: Recorder) -> None:
    """Make, check and record the maps that the study asks for; return at once where it asks for none.

    Raises UserError on every worker alike where xaitk-saliency is not installed, and what making maps raises.
    """
    if task.config.is_explained:
        group.run_on_all(_require_package)
        from unet_scaling.explain.run import explain_run  # with xaitk, which few runs need

        explain_run(task.config, model, data, group, record)


def _require_package() -> None:
    try:
        import xaitk_saliency  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"saliency.method needs xaitk-saliency, which cannot be imported ({error}); run "
            "environment/install.sh --with xaitk, or set saliency.method = 'off'"
        ) from None

"""log.csv of a complete run, in the layout of the older study, for tools that read that."""

from unet_scaling.study.record_lines import Epoch, Evaluation
from unet_scaling.study.study_file import OLDER_LOG_HEADER


def older_log(epochs: list[Epoch], result: Evaluation) -> str:
    """Return one row per epoch, in seconds; what holds for the whole run is repeated in each row."""
    header = OLDER_LOG_HEADER.removesuffix("iou") + result.score_name
    score = "" if result.score is None else f"{result.score:.6f}"
    rows = [
        f"{epoch.epoch},{epoch.seconds:.6f},{epoch.loss:.6f},{epoch.learning_rate:.6f},"
        f"{result.training_seconds:.6f},{result.seconds:.6f},{score}"
        for epoch in epochs
    ]
    return "\n".join([header, *rows]) + "\n"

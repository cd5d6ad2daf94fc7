"""The CSV log of a run in the older layout, written beside its record for programs that read it."""

from unet_scaling.format.record_lines import Epoch, Evaluation

# The first line of log.csv in the layout of the older study; its first column has no name.
OLDER_LOG_HEADER = ",time_per_epoch,loss,lr,training_time,test_time,iou"


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

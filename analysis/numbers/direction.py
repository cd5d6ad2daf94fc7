"""Whether more of the score is better, by what training did to it: its name proves nothing."""

from typing import Literal

from analysis.study import Study


def score_direction(study: Study) -> Literal["higher", "lower", "unknown"]:
    """Return which values of the judged score are better, as every run shows that has two evaluations.

    IoU is better when higher, and so is 1 less a score of which the task's file says that less is better.
    Any other is compared between the first and the last evaluation of the runs whose loss fell meanwhile:
    "lower" where it fell in each by more than the margin, "higher" where it rose in most and fell so in none.
    """
    own = any(header.config.has_own_task for header in study.headers.values())
    if not own or study.score.name.startswith("one_minus_"):
        return "higher"
    losses = study.epochs.assign(epochs=study.epochs["epoch"] + 1)[["run", "epochs", "loss"]]
    known = study.evaluations[["run", "epochs", "iou"]].merge(losses, on=["run", "epochs"]).dropna()
    of_run = known.sort_values("epochs").groupby("run")[["iou", "loss"]]
    moved = of_run.last() - of_run.first()
    gains = moved.loc[moved["loss"] < 0, "iou"]
    margin = study.criteria.iou_margin
    if gains.empty:
        return "unknown"
    if (gains < -margin).all():
        return "lower"
    return "higher" if gains.median() > 0 and gains.min() > -margin else "unknown"


def direction_note(study: Study) -> str:
    """Return a sentence on a score of which more is not known to be better; "" where it is."""
    title = study.score.title
    direction = score_direction(study)
    if direction == "higher":
        return ""
    if direction == "lower":
        return (
            f"{title} falls while the loss falls, in every run: less of it seems to be better; if so, "
            "set HIGHER_IS_BETTER = False in the task's file"
        )
    is_followed = (study.evaluations.groupby("run")["epochs"].nunique() > 1).any()
    more = "train for more epochs" if is_followed else "set training.evaluate_every = 1"
    return (
        f"the runs do not show that {title} rises while the loss falls: {more}, "
        "or set HIGHER_IS_BETTER = False in the task's file if less of it is better"
    )

"""Tables of played runs: their IoU at every number of workers, the time that it takes, and the runs."""

import pandas as pd

from analysis.report import played_columns as shown
from analysis.report.assemble import Report
from analysis.report.table import POINT_KEYS, PageTable, Table

_RUN_COLUMNS = (
    "run", "framework", "workers", "repeat", "seed", "options", "knobs", "images_per_epoch",
    "steps_per_epoch", "loss", "iou", "dice", "test_images", "scores",
)  # fmt: skip


def _played_runs(report: Report) -> pd.DataFrame:
    """Return one row per played run, without the columns of time, which say nothing."""
    played = report.study.played
    names = list(_RUN_COLUMNS)
    return pd.DataFrame(columns=names) if played is None else played.runs[[*names, *played.axes]]


PLAYED_TABLES = (
    Table(
        "played.csv",
        lambda report: report.played.points,
        POINT_KEYS
        | {
            "kind": "played: one worker trained as so many; real: so many workers trained",
            "seeds": "runs with their own seed",
            "test_images": "images evaluated in each",
            "iou ±": "median over seeds",
            "difference ±": "to 1 worker of the same series, paired by seed",
            "pairs": "seeds that both have",
            "diverged": "runs of the point that diverged",
            "constant_iou, learned, margin": "as in iou.csv",
            "verdict": "baseline; no loss or loss: the whole interval lies above or below minus the margin; "
            "diverges: a run did; else undecided",
            "best": "true: the highest median of all sets of options at this number of workers",
            "why": "what stands behind the verdict",
        },
        "Where a study has played runs (`training.plays`, [plan_quality.md](plan_quality.md)): the IoU of "
        "played and of real runs at every number of workers; else no row.",
        PageTable("played", "{score} of played and real runs at every number of workers", shown.of_played),
    ),
    Table(
        "plan.csv",
        lambda report: report.played.plan,
        POINT_KEYS
        | {
            "target_iou": "as in `cost.csv`",
            "runs, runs_to_target": "played and real runs, and how many of them reach it",
            "epochs_to_target ±": "until the first evaluation that reaches it",
            "seconds_per_epoch ±": "images of an epoch over the throughput of real runs, without warm-up",
            "seconds_to_target ±": "their product; its bounds are the products of their bounds",
            "worker_hours_to_target ±": "workers times these hours",
            "speed": "measured by real runs on as many workers, predicted from real runs on others, or empty",
            "why": "what is not known, and why",
        },
        "Time to the target IoU for every series with played runs. No second of a played run is in it.",
        PageTable("played", "Time and worker-hours to the target {score}", shown.of_plan),
    ),
    Table(
        "played_runs.csv",
        _played_runs,
        {
            "run, framework": "",
            "workers": "as which it trained (`training.plays`)",
            "repeat, seed, options, knobs": "what was run",
            "images_per_epoch, steps_per_epoch": "as on so many workers",
            "loss": "of the last epoch",
            "iou, dice": "of the last evaluation",
            "test_images": "images that it evaluated",
            "scores": "all of a task that has several, by name; else empty",
        },
        "One row per played run. Its times stay in its record: they are of no real number of workers.",
        PageTable("played-runs", "Played runs", shown.of_played_runs),
    ),
)

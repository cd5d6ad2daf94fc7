"""Tables of what was measured: points, runs, epochs and evaluations, and the frameworks compared."""

from analysis.report import page_columns as shown
from analysis.report.table import PAIR_KEYS, PageTable, Table

SPEED_TABLES = (
    Table(
        "summary.csv",
        lambda report: report.points,
        {
            "framework, workers": "of the point",
            "repeats": "launches that count for speed: disturbed ones only where fewer than 3 others remain",
            "images_per_second": "images over seconds of the slowest worker after warm-up; median over runs",
            "speedup ±": "throughput over that of the same series on 1 worker",
            "efficiency": "speed-up / workers",
            "deviation": "1 - efficiency",
            "iou ±": "over the whole test set, median over seeds",
            "images_per_second_low, images_per_second_high": "",
            "epochs_per_second": "",
            "efficiency_low, efficiency_high, deviation_low, deviation_high": "",
            "speedup_common ±": "throughput over that of the faster framework on 1 worker",
            "efficiency_common ±": "the same, divided by the workers",
            "images_per_epoch": "of all workers together",
            "seconds_per_epoch": "median of the epochs after the warm-up",
            "nodes": "distinct hosts of a run",
            "node_speedup ±": "of full nodes: throughput over that of the same series on 1 full node",
            "node_efficiency ±": "the same, divided by the nodes: what is lost between nodes alone",
            "unknown": "why a number of this row is not known",
            "options, knobs": "",
        },
        "One row per point.",
        PageTable("points", "Throughput and scaling of every point", shown.of_points, leads=True),
    ),
    Table(
        "runs.csv",
        lambda report: report.study.runs,
        {
            "run": "name of its folder or log",
            "framework, workers, repeat, seed, options, knobs": "what was run",
            "images_per_second, epochs_per_second": "sums over sums; without warm-up and stalled epochs",
            "epochs_used": "how many these are",
            "seconds_per_epoch": "their median",
            "images_per_epoch, steps_per_epoch": "their means; steps of the optimizer",
            "step_seconds": "seconds over steps",
            "loss": "of the last epoch",
            "iou, dice": "of the last evaluation",
            "test_images": "images that it evaluated",
            "training_seconds": "of all epochs, warm-up included",
            "hosts, nodes": "names of the hosts, and how many",
            "devices, cores_per_worker": "the distinct values of the workers",
            "started_utc": "a label; no duration is computed from it",
            "peak_memory_bytes": "the most main memory that any of its workers ever had",
            "busy_share": "share of its time that went to other processes, of the worker that lost most",
            "disturbed": "why the launch counts as disturbed by other programs or a stall; else empty",
            "stalls": "its stalled epochs, which count for no speed, and stalled steps",
            "emulated_by": "the profile by which its workers waited instead of computing; else empty",
        },
        "One row per run that is used.",
        PageTable(
            "loss",
            "Loss of the last epoch, over the runs of each point",
            shown.of_losses,
            shown.losses_of_points,
        ),
        PageTable("runs", "Every run that is used", shown.of_runs),
    ),
    Table(
        "epochs.parquet",
        lambda report: report.study.epochs,
        {
            "run, epoch": "epochs count from 0",
            "seconds": "of the slowest worker",
            "fastest_worker_seconds": "of the fastest",
            "images, steps": "of all workers; of the optimizer",
            "loss, learning_rate": "mean over the images; of the whole epoch",
            "warmup": "true: not used for timing",
            "stalled": "true: far longer than the run's other epochs, not used for timing either",
        },
        "One row per epoch of each run, warm-up included. A Parquet file: `pandas.read_parquet`.",
    ),
    Table(
        "evaluations.csv",
        lambda report: report.study.evaluations,
        {
            "run, epochs": "epochs trained before it",
            "training_seconds": "of these epochs",
            "images": "evaluated",
            "true_positive, false_positive, false_negative, true_negative": "pixels of the whole test set",
            "iou, dice": "of these counts",
            "image_iou": "mean of the images' own IoU, over those that have one",
            "seconds": "that the evaluation took",
            "weights_sha256": "of the weights: equal where two runs learned exactly the same",
        },
        "One row per evaluation of each run.",
    ),
    Table(
        "comparison.csv",
        lambda report: report.comparisons,
        PAIR_KEYS
        | {
            "ratio ±": "throughput of native DDP / Horovod, paired by repeat; the interval excludes 1 only "
            "where that holds for all comparisons of the study together",
            "confidence": "of all these intervals together; above 0.95 where repeats were added after a look",
            "coverage": "actual confidence level of the interval over so few pairs",
            "p_adjusted, comparisons": "probability by chance, corrected by Holm for so many comparisons",
            "ratio_of_medians": "ratio of the medians over all launches, as `summary.csv` has them",
            "outcome": "native DDP faster, Horovod faster, suggests either (3 or 4 pairs), no significant "
            "difference, withheld, or not enough repeats",
            "doubts": "why nothing may be claimed: facts of the fairness table, or medians that name the "
            "other framework",
            "repeats_needed": "repeats that resolve this difference at 80 % power, if the variation stays",
        },
        "Native DDP against Horovod at every worker count that both have.",
        PageTable(
            "against", "{native} against {horovod} at every worker count that both have", shown.of_pairs
        ),
    ),
)

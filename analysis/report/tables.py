"""The list of all tables of a report: a new table is one entry here, and what makes it.

From an entry come the file, the page's table and, by `python -m analysis.report.columns --write`, its
columns in docs/report.md.
"""

from analysis.budget.diagnosis import diagnosis_table
from analysis.loading.ping_pongs import pair_table
from analysis.report import page_columns as shown
from analysis.report.assemble import Report
from analysis.report.table import PageTable, Table
from analysis.report.view import Grid

POINT_KEYS = {"options, framework, knobs, workers": "the point"}
PAIR_KEYS = {
    "options, native_knobs, horovod_knobs, workers": "what is compared",
    "pairs": "repeats that both have",
}
OVERHEAD_PARTS = {
    "data_wait ±": "until a batch is where it is used, host to device included",
    "compute ±": "forward and backward",
    "wire ±": "the smallest sync of each step",
    "imbalance ±": "waiting for a slower worker, in a step or at the end of an epoch",
    "optimizer ±": "",
    "unequal_work ±": "0 where the images prove equal work; else the row is not there",
    "rest ±": "what no phase explains",
}

TABLES = (
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
    Table(
        "diagnosis.csv",
        lambda report: diagnosis_table(report.diagnoses),
        {
            "rule": "its name",
            "options, framework, knobs, workers": "the point",
            "at_stake": "share of the workers' time that it is about",
            "finding, evidence, try_next": "what is so, the numbers that show it, the knob or study to try",
        },
        "One row per finding, most at stake first.",
        PageTable(
            "budget", "Causes of the lost efficiency, most at stake first", shown.of_diagnoses, leads=True
        ),
    ),
    Table(
        "budget.csv",
        lambda report: report.overhead.budget,
        POINT_KEYS
        | {"repeats": "launches that are used", "deviation ±": "1 - efficiency: the sum of the parts"}
        | OVERHEAD_PARTS
        | {"rest_of_step": "share of a step that no phase explains"},
        "1 - efficiency in parts that sum to it; shares of the workers' time ([budget.md](budget.md)). "
        "Points without an overhead budget have no row.",
        PageTable(
            "budget",
            "1 - efficiency in parts",
            shown.of_budget,
        ),
    ),
    Table(
        "difference.csv",
        lambda report: report.overhead.differences,
        PAIR_KEYS
        | {"difference ±": "ratio of throughputs, native DDP / Horovod, less 1: the sum of the parts"}
        | OVERHEAD_PARTS,
        "What Horovod needs more time for than native DDP, in shares of native DDP's time per image. "
        "Negative: less.",
        PageTable(
            "budget",
            "What Horovod needs more time for than native DDP, in shares of native DDP's time per image",
            shown.of_difference,
        ),
    ),
    Table(
        "network.csv",
        lambda report: report.overhead.network,
        POINT_KEYS
        | {
            "repeats": "launches that are used",
            "gradient_bytes": "of one step, float32",
            "wire_seconds ±": "of one step, measured",
            "floor_seconds ±": "one message of all gradients over the probed network",
            "latency_seconds ±": "of a message without content",
            "bytes_per_second ±": "of the largest message that was timed",
            "hosts_floor_seconds": "what MPI alone needs between the run's hosts, by ping-pongs, if any",
        },
        page=PageTable("budget", shown.NETWORK_CAPTION, shown.of_network),
    ),
    Table(
        "ping_pong.csv",
        lambda report: report.study.ping_pongs,
        {
            "measured_for": "the folder of the run or allocation before which it was measured",
            "host, other_host": "the pair, by name",
            "medium": "`network`, or `shared memory` where both are one host",
            "latency_seconds": "half of there and back, of 1 byte",
            "bytes_per_second": "of the largest message",
        },
        "One row per pair of hosts and job (`ping_pong = true` in the cluster file), empty without.",
        PageTable(
            "budget",
            "MPI between two hosts, one message at a time, before the runs",
            shown.of_ping_pongs,
            pair_table,
        ),
    ),
    Table(
        "iou.csv",
        lambda report: report.iou,
        POINT_KEYS
        | {
            "seeds": "runs with their own seed",
            "test_images": "images evaluated in each",
            "iou ±": "",
            "difference ±": "to the same series on 1 worker, paired by repeat",
            "pairs": "repeats that both have",
            "diverged": "runs of the point that diverged",
            "non_inferior": "baseline, yes, no, or not shown",
            "why": "what stands behind the answer",
        },
        page=PageTable("iou", "IoU of every point against the same framework on 1 worker", shown.of_iou),
    ),
    Table(
        "iou_between_frameworks.csv",
        lambda report: report.iou_between,
        PAIR_KEYS
        | {
            "difference ±": "IoU of native DDP minus that of Horovod",
            "equal_within_margin": "yes, no, or not shown",
            "why": "what stands behind the answer",
        },
        page=PageTable(
            "iou",
            "IoU of {native} against {horovod}",
            shown.of_iou_between,
        ),
    ),
    Table(
        "cost.csv",
        lambda report: report.cost,
        POINT_KEYS
        | {
            "nodes": "distinct hosts of a run",
            "training_seconds ±": "all epochs; without start, evaluation and checkpoints",
            "worker_hours ±": "workers times these hours",
            "node_hours ±": "hosts times these hours",
            "worker_hours_per_epoch, node_hours_per_epoch": "epochs after the warm-up",
            "target_iou": "the study's `target_iou`, or the highest multiple of 0.01 that every run reaches",
            "seconds_to_target ±": "until the first evaluation that reaches it",
            "worker_hours_to_target ±": "",
            "node_hours_to_target ±": "",
            "runs_to_target": "how many runs reached it",
            "pareto": "no other point with these options is as fast and as cheap",
            "pareto_of": "which time and cost the Pareto set is of",
        },
        page=PageTable("cost", "Time and cost of every point", shown.of_cost),
    ),
    Table(
        "gpu.csv",
        lambda report: report.gpus,
        POINT_KEYS
        | {
            "repeats": "launches that are used",
            "utilization": "share of the driver's last sample before the end of an epoch in which the GPU "
            "was busy; mean over epochs and GPUs",
            "memory_bytes": "in use at the end of an epoch, by the fullest GPU",
            "power_watts": "of one GPU at the end of an epoch",
            "joules_per_image": "energy of all GPUs over the images, from the devices' counters",
        },
        "GPUs of the points that recorded them, medians over launches of the epochs in use; else no row.",
        PageTable("cost", "GPUs of every point", shown.of_gpus),
    ),
    Table(
        "predictions.csv",
        lambda report: report.predictions,
        {
            "options, framework, knobs": "the series",
            "fitted_on": "smallest and largest worker count of the fit",
            "workers": "predicted for",
            "predicted ±": "throughput, in images / s (older logs without `--images`: epochs / s)",
            "measured": "the same, measured; empty beyond the data",
            "error": "predicted / measured - 1",
            "held_out": "true: measured, but not seen by the fit",
            "why": "what the interval lacks",
        },
        page=PageTable(
            "prediction",
            "Predicted throughput, with its error at every larger worker count that was held out",
            shown.of_predictions,
            shown.unseen_by_the_fit,
        ),
    ),
    Table(
        "fits.csv",
        lambda report: report.extrapolation.fits,
        {
            "options, framework, knobs, fitted_on": "the series",
            "compute ±": "of a step on 1 worker",
            "transfer ±": "of all gradients over the link inside a node",
            "transfer_between_nodes ±": "of all gradients over the link between nodes",
            "latency ±": "of one message",
            "imbalance ±": "variation of a worker's step",
            "held_out_error": "median absolute error at the held-out counts",
            "last_efficiency_error": "the same, had the efficiency of the largest count fitted been kept",
            "held_out_points": "how many these are",
        },
        "The model of [prediction.md](prediction.md), fitted on all worker counts of a series. Terms are in "
        "seconds.",
    ),
    Table(
        "fairness.csv",
        lambda report: report.fairness,
        {
            "check": "what should be equal in the runs compared",
            "mark": "yes, no, or not known",
            "fact": "what the records say",
            "withholds": 'true: with this "no", neither framework is called faster where the fact says',
        },
        page=PageTable(
            "fairness",
            "What is equal in the runs compared",
            shown.of_fairness,
        ),
    ),
    Table(
        "left_out.csv",
        lambda report: report.study.left_out,
        {
            "run": "name of its folder or log",
            "state": "as in `slurm/submission.sh status`: waiting, failed, resumable, diverged, invalid; of "
            "complete runs: no throughput, refused, or invalid where the record contradicts itself",
            "reason": "with file and line, or the fact and both values",
            "framework, workers, repeat": "where known",
            "options, knobs": "as in the other tables, where the point is known",
        },
        page=PageTable(
            "left-out",
            "Runs left out",
            shown.of_left_out,
        ),
    ),
)


def table_files(report: Report) -> dict[str, bytes]:
    """Return the contents of the table files, by file name."""
    return {table.file: table.content(report) for table in TABLES}


def grids(report: Report, section: str) -> tuple[Grid, ...]:
    """Return the tables that a section of the page shows."""
    pages = [(table, page) for table in TABLES for page in table.pages if page.section == section]
    return tuple(table.grid(report, page) for table, page in pages)

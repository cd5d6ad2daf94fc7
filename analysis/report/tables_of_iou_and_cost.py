"""Tables of what training gives and takes: IoU, time, cost, GPUs, and predictions."""

from analysis.report import iou_columns
from analysis.report import page_columns as shown
from analysis.report.table import PAIR_KEYS, POINT_KEYS, PageTable, Table

IOU_TABLES = (
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
            "constant_iou": "what the best constant prediction scores: the share of foreground; empty where "
            "the counts do not tell",
            "learned": "whether 1 worker of the series scores more than that, by its whole interval and "
            "`iou_margin`: yes, no, or not known",
            "margin": "the one used: at most 10 % of what 1 worker learned beyond a constant prediction",
            "non_inferior": "baseline, yes, no, or not shown",
            "why": "what stands behind the answer",
        },
        page=PageTable(
            "iou", "{score} of every point against the same framework on 1 worker", iou_columns.of_iou
        ),
    ),
    Table(
        "task_scores.csv",
        lambda report: report.task_scores,
        POINT_KEYS
        | {
            "score": "its name, as the task gives it",
            "judged": "true: the first one, by which the study is decided; the others have no margin",
            "seeds": "runs with their own seed",
            "value ±": "of the last evaluation, median over seeds",
        },
        "Every score of a task that has more than one ([your_model.md](your_model.md)). The intervals are "
        "not corrected for the number of scores, and nothing is concluded from those that are not judged.",
        PageTable(
            "iou",
            "further scores of the task: they have no margin, and nothing is decided by them",
            shown.of_task_scores,
            shown.further_scores,
        ),
        needs_rows=True,
    ),
    Table(
        "evaluation_scores.csv",
        lambda report: report.study.subject.scores,
        {
            "run, epochs": "epochs trained before it",
            "score": "its name, as the task gives it",
            "value": "of this evaluation",
        },
        "One row per evaluation and score of each run, where a task has more than one.",
        needs_rows=True,
    ),
    Table(
        "iou_between_frameworks.csv",
        lambda report: report.iou_between,
        PAIR_KEYS
        | {
            "difference ±": "IoU of native DDP minus that of Horovod",
            "margin": "the one used, as in iou.csv, here of the better of the two",
            "equal_within_margin": "yes, no, or not shown",
            "why": "what stands behind the answer",
        },
        page=PageTable(
            "iou",
            "{score} of {native} against {horovod}",
            iou_columns.of_iou_between,
        ),
    ),
)
COST_TABLES = (
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
            "target_iou": "the study's `target_iou`, or what every run on 1 worker reaches, less the margin",
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
        "request.csv",
        lambda report: report.request,
        POINT_KEYS
        | {
            "source": "measured, or predicted: up to twice the largest count measured",
            "step_seconds ±": "of one step; older logs without `--images`: of the work of a worker's epoch",
            "efficiency ±": "speed-up over 1 worker of the series / workers",
            "worker_hours ±": "of one training, every epoch as fast as those after the warm-up; empty of "
            "emulated runs",
            "coverage": "confidence of the interval of the efficiency: of a measured one by the fewest "
            "launches behind it, of a predicted one nominal",
            "largest_term": "of the sum of terms, the one that takes most of what linear scaling would save",
            "largest_term_share": "its share of that",
            "why": "what the interval lacks",
        },
        "What to know before asking for nodes.",
        PageTable(
            "request", "Step time, efficiency and cost of counts measured and predicted", shown.of_request
        ),
    ),
    Table(
        "predictions.csv",
        lambda report: report.predictions,
        {
            "options, framework, knobs": "the series",
            "fitted_on": "smallest and largest worker count of the fit",
            "workers": "predicted for",
            "predicted ±": "throughput, in images / s (older logs without `--images`: epochs / h)",
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
        "prediction_scores.csv",
        lambda report: report.scores,
        POINT_KEYS
        | {
            "file": "in `predictions/` of the study's folder",
            "written_utc": "when it was written",
            "model": "average; files of older code name the models that they averaged as well",
            "weight": "of the model in the average",
            "held_out": "worker counts at which the skill of several models was seen",
            "unscored": "why it is not held against the runs; empty where it is",
            "predicted ±": "throughput",
            "linear ±": "throughput of as many workers that are each as fast as one: b/N",
            "measured": "throughput, median over the runs",
            "error, linear_error": "predicted / measured - 1",
            "inside": "yes: the interval holds what was measured",
            "interval_score, linear_interval_score": "width of the interval + 40 times what lies outside, "
            "over the throughput measured",
            "counted": "true: the summary is of it; of several files the youngest older than the runs",
        },
        "Predictions of `unet-scaling predict`, written before the runs, against what these measured.",
        PageTable(
            "prediction",
            "Predictions written before the runs, against what these measured",
            shown.of_scores,
            shown.averages_scored,
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
)

"""All tables of a report, a line for each column: of its file, of docs/columns.md and of the page.

python -m analysis.report.columns --write   write the lists of docs/columns.md, between their marks, and the
                                     names that no score may have
"""

from collections.abc import Sequence
from pathlib import PurePath

import pandas as pd

from analysis.assembly.assemble import Report
from analysis.causes.diagnosis import diagnosis_table
from analysis.figures.catalogue import FIGURES
from analysis.numbers.contrast import CANNOT_TELL
from analysis.read.companion_files import pair_table
from analysis.report.tables import COMPARE_LINES, Grid, Table
from analysis.study import (
    BUILT_IN_COLUMNS,
    BUILT_IN_SCORE,
    ENDS,
    NAN,
    SCORE_ENDINGS,
    SERIES,
    TAKEN_NAMES_FILE,
)
from unet_scaling import PROJECT

# Nobody makes more; that a difference needs them says only that it is small.
_MOST_REPEATS = 1000
THE_POINT = "the point"
_POINT = f"""
        options, framework, knobs, workers | {THE_POINT} | | point"""
_PAIR = """
        options, native_knobs, horovod_knobs, workers | what is compared
        (native_knobs) | | native DDP with | text
        (horovod_knobs) | | Horovod with | text
        (workers) | | workers | ,.0f"""
_OVERHEAD = """
        data_wait ± | until a batch is where it is used, host to device included | data wait | +z.1%
        compute ± | forward and backward | compute | +z.1%
        wire ± | the smallest sync of each step | communication | +z.1%
        imbalance ± | waiting for a slower worker, in a step or at the end of an epoch | imbalance | +z.1%
        optimizer ± | | optimizer | +z.1%
        rest ± | what no phase explains | rest | +z.1%"""
_MAP_SHARES = """
        masks_share, forward_share, weighting_share, sum_share, files_share, other_share | of the workers'
            time: making masks, masked images and forward passes, adding up masks by their scores, sums over
            the workers with the wait for the slowest, writing maps, the rest; together 1"""


def _repeats_of_undecided(table: pd.DataFrame) -> pd.DataFrame:
    decided = table["outcome"] != CANNOT_TELL
    told = table["repeats_needed"].mask(decided | (table["repeats_needed"] > _MOST_REPEATS))
    return table.assign(repeats_needed=told)


def _against_horovod(table: pd.DataFrame) -> pd.DataFrame:
    """Return comparisons with Horovod alone, under the public name of its knobs."""
    return table.rename(columns={"other_knobs": "horovod_knobs"}).drop(columns="framework", errors="ignore")


def _not_measured(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["source"] != "measured"].drop(columns="source") if len(table) else table


def _with_reasons(table: pd.DataFrame) -> pd.DataFrame:
    """Return what stands against "not inferior", where it is in doubt."""
    clear = table["non_inferior"].isin(("yes", "baseline"))
    why = table["not_judged"].mask(table["not_judged"] == "", table["why"])
    return _without_zeros(table).assign(why_not=why.mask(clear, ""))


def _without_zeros(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose column of diverged runs is empty where none did."""
    return table if table["diverged"].any() else table.assign(diverged=NAN)


# fmt: off
TABLES = (
    Table("summary.csv", lambda report: report.points, """
        framework, workers | of the point | | point
        repeats | launches that count for speed: disturbed ones only where fewer than 3 others remain
            | repeats | ,.0f
        (throughput) | | {unit} | ~4 ±
        images_per_second | images over seconds of the slowest worker after warm-up; median over runs
        speedup ± | throughput over that of the same series on 1 worker | speed-up | .2f ±
        efficiency | speed-up / workers | efficiency | .1% ±
        deviation | 1 - efficiency
        iou ± | over the whole test set, median over seeds
        images_per_second_low, images_per_second_high |
        epochs_per_second |
        efficiency_low, efficiency_high, deviation_low, deviation_high |
        speedup_common ± | throughput over that of 1 worker, of all frameworks not shown to be slower there
        efficiency_common ± | the same, divided by the workers
        images_per_epoch | of all workers together
        seconds_per_epoch | median of the epochs after the warm-up
        nodes | distinct hosts of a run
        unknown | why a number of this row is not known
        options, knobs |
        """,
        "One row per point.", "points", "Throughput and scaling of every point", leads=True),
    Table("runs.csv", lambda report: report.study.runs, """
        run | name of its folder or log
        framework, workers, repeat, seed, options, knobs | what was run
        images_per_second, epochs_per_second | sums over sums; without warm-up and stalled epochs
        epochs_used | how many these are
        seconds_per_epoch | their median
        images_per_epoch, steps_per_epoch | their means; steps of the optimizer, of a script its batches
        step_seconds | seconds over steps
        loss | of the last epoch
        iou, dice | of the last evaluation
        iou_running | with the statistics of norm layers that training left; empty where not known
        statistics | which of them `iou` is of: recomputed for its weights, running: as training left them, or
            none in the model; early records do not say whether a model of one's own has such layers
        test_images | images that it evaluated
        training_seconds | of all epochs, warm-up included
        hosts, nodes | names of the hosts, and how many
        devices, cores_per_worker | the distinct values of the workers
        started_utc | a label; no duration is computed from it
        peak_memory_bytes | the most main memory that any of its workers ever had
        busy_share | share of its time that went to other processes, of the worker that lost most
        uncounted_share | share of its own time that went to nothing that was counted, of that worker
        disturbed | why the launch counts as disturbed; else empty
        stalls | its stalled epochs, which count for no speed, and stalled steps
        dilation | how many times its virtual cluster was slowed; 1 on a machine at speed
        link_rate | of the links of that cluster, before they were slowed; empty where not limited
        emulated_by | the profile by which its workers waited instead of computing; else empty
        scores | by name: those that a script reported at its end, or all of a task that has several; else
            empty
        """,
        "One row per run that is used."),
    Table("epochs.csv", lambda report: report.study.epochs, """
        run, epoch | epochs count from 0
        seconds | of the slowest worker
        fastest_worker_seconds | of the fastest
        images, steps | of all workers; of the optimizer
        loss, learning_rate | mean over the images; of the whole epoch
        warmup | true: not used for timing
        stalled | true: far longer than the run's other epochs, not used for timing either
        """,
        "One row per epoch of each run, warm-up included."),
    Table("evaluations", lambda report: report.study.evaluations, """
        run, epochs | epochs trained before it
        training_seconds | of these epochs
        images | evaluated
        true_positive, false_positive, false_negative, true_negative | pixels of the whole test set
        iou, dice | of these counts
        image_iou | mean of the images' own IoU, over those that have one
        seconds | that the evaluation took
        weights_sha256 | of the weights: equal where two runs learned exactly the same
        """,
        "One row per evaluation of each run."),
    Table("comparison.csv", lambda report: _against_horovod(report.comparisons), _PAIR + """
        pairs | repeats that both have | pairs | ,.0f
        ratio ± | throughput of native DDP / Horovod, paired by repeat; the intervals of all comparisons of
            the study hold together
            | throughput {short_native} / {short_horovod} | .3f ±
        confidence | of all these intervals together; above 0.95 where repeats were added after a look
        coverage | in how many studies that end so it holds; empty below 3 pairs
        p_adjusted, comparisons | probability by chance, corrected by Holm for so many comparisons
        ratio_of_medians | ratio of the medians over all launches, as `summary.csv` has them
        outcome | native DDP faster, Horovod faster, equal within 3 % (the study's `equal_within`), suggests
            one of these (3 or 4 pairs), cannot tell, withheld, or not enough repeats | outcome | text
        doubts | why nothing may be claimed: facts of the fairness table, or medians that name the other
            framework
        repeats_needed | repeats that tell at 80 % power, if difference and variation stay
            | repeats needed (80 % power) | ,.0f
        """,
        "Native DDP against Horovod at every worker count that both have.", "against",
        "{native} against {horovod} at every worker count that both have", _repeats_of_undecided),
    Table("frameworks.csv", lambda report: report.wrappers, """
        framework | compared with native DDP
        (framework) | | framework | framework
        (native_knobs) | | native DDP with | text
        options, native_knobs, knobs, workers | of both; the knobs are of native DDP and of the other
        (workers) | | workers | ,.0f
        pairs | repeats that both have | pairs | ,.0f
        ratio ± | throughput of native DDP / that of the framework
        confidence, coverage, p_adjusted, comparisons, outcome, doubts | as in `comparison.csv`
        step_ms | step of native DDP; median over its runs | step of native DDP, ms | .1f
        cost_ms ± | what a step of the framework takes longer: step_ms x (ratio - 1)
            | more per step, ms | +.2f ±
        costs | `within 1%` where the whole interval, over 5 repeats or more, is within so much of a step;
            else not shown | costs | text
        (outcome) | | outcome | text
        same_weights | pairs that trained exactly the same weights; empty where none was evaluated
            | same weights | text
        difference ± | IoU of native DDP minus that of the framework
        equal_within_margin | yes, no, suggests either, not shown, or not judged
            | {score} equal within margin | badge
        """,
        "Every framework against native DDP, in studies that have more than native DDP and Horovod.",
        "frameworks", "What each framework costs at your step length, against native DDP"),
    Table("diagnoses", lambda report: diagnosis_table(report.diagnoses), """
        rule | its name
        (finding) | | cause | text
        options, framework, knobs, workers | the point | | point
        at_stake ± | share of the workers' time that it is about | share of the workers' time | .1% ±
        finding, evidence, try_next | what is so, the numbers that show it, the knob or study to try
        (evidence) | | evidence | text
        (try_next) | | what to try | text
        """,
        "One row per finding, most at stake first.", "budget",
        "Causes of the lost efficiency, most at stake first", leads=True),
    Table("budget.csv", lambda report: report.budget, _POINT + """
        repeats | launches that are used
        deviation ± | 1 - efficiency: the sum of the parts | lost efficiency | z.1% ±
        """ + _OVERHEAD + """
        contended ± | data_wait and compute together, no further part: what competing threads slow
        rest_of_step | share of a step that no phase explains
        host_paced | share of the workers' time, outside data wait and sync, in which GPUs waited for their
            host; no part of the sum, empty of CPUs | GPU waits for host | .1%
        """,
        "1 - efficiency in parts that sum to it; shares of the workers' time "
        "([budget.md](background/budget.md)). "
        "Points without an overhead budget have no row.", "budget",
        "Lost efficiency in parts, with the most workers",
        lambda table: table.groupby(SERIES, sort=False).tail(1)),
    Table("differences", lambda report: _against_horovod(report.differences), _PAIR + """
        pairs | repeats that both have
        difference ± | ratio of throughputs, native DDP / Horovod, less 1: the sum of the parts
        data_wait ±, compute ±, wire ±, imbalance ±, optimizer ±, rest ± | as in `budget.csv`
        """,
        "Extra time of Horovod against native DDP, in shares of native DDP's time per image. "
        "Negative: less."),
    Table("network", lambda report: report.network, _POINT + """
        repeats | launches that are used
        gradient_bytes | of one step, float32
        wire_seconds ± | of one step, measured
        floor_seconds ± | one message of all gradients over the probed network: the floor of the wire, unless
            backward hides a part of it
        latency_seconds ± | of a message without content
        bytes_per_second ± | of the largest message that was timed
        """),
    Table("ping_pong.csv", lambda report: report.study.ping_pongs, """
        measured_for | the folder of the run or allocation before which it was measured
        host, other_host | the pair, by name | host | text
        (other_host) | | and | text
        medium | `network`, or `shared memory` where both are one host | over | text
        latency_seconds | half of there and back, of 1 byte | latency, ms | ~3 ms
        bytes_per_second | of the largest message | bandwidth, MB/s | ~3 MB
        (measurements) | | times measured | ,.0f
        """,
        "One row per pair of hosts and job (`ping_pong = true` in the cluster file).",
        "budget", "MPI between two hosts, one message at a time, before the runs",
        pair_table),
    Table("iou", lambda report: report.iou, _POINT + """
        seeds | runs with their own seed | seeds | ,.0f
        test_images | images evaluated in each
        iou ± | | {score} | .4f ±
        difference ± | to the same series on 1 worker, paired by repeat; the interval excludes the margin only
            where that holds for all points together | difference to 1 worker | +.4f ±
        pairs | repeats that both have
        (non_inferior) | | {score} kept | badge
        diverged | runs of the point that diverged | diverged | ,.0f
        constant_iou | what the best constant prediction scores: the share of foreground; empty where the
            counts do not tell
        learned | whether 1 worker of the series scores more than that, by its whole interval and
            `iou_margin`: yes, no, or not known
        margin | the one used: at most 10 % of what 1 worker learned beyond a constant prediction
        non_inferior | baseline, yes, no, suggests either (3 or 4 pairs), not shown, or not judged
        why | what stands behind the answer
        steps | of the optimizer in a training, median over runs | optimizer steps | ,.0f
        iou_running, statistics | as in `runs.csv`, median over seeds
        (iou_running) | | {score} by training's statistics | .4f
        epochs_needed | with which there are enough steps to judge, where there are not
        not_judged | why nothing is judged, and what that needs: enough steps, something learned, enough test
            images, a score that no longer rises and that can tell; else empty
        (why_not) | | why not | text
        """,
        "Columns of `summary.csv`, too, where those that do not name the score begin with `iou_`.", "iou",
        "{score} of every point against the same framework on 1 worker", _with_reasons,
        widens="summary.csv", prefix="iou_"),
    Table("task_scores.csv", lambda report: report.task_scores, _POINT + """
        score | its name, as the task gives it | score | text
        judged | true: the first one, by which the study is decided; the others have no margin
        seeds | runs with their own seed | seeds | ,.0f
        value ± | of the last evaluation, median over seeds | median | ~4 ±
        """,
        "Every score of a task that has more than one ([your_model.md](your_model.md)). The intervals are "
        "not corrected for the number of scores, and nothing is concluded from those that are not judged.",
        "iou", "further scores of the task: they have no margin, and nothing is decided by them",
        lambda table: table[~table["judged"].astype(bool)]),
    Table("evaluation_scores", lambda report: report.study.subject.scores, """
        run, epochs | epochs trained before it
        score | its name, as the task gives it
        value | of this evaluation
        """,
        "One row per evaluation and score of each run, where a task has more than one."),
    Table("iou_between_frameworks",
        lambda report: _against_horovod(report.iou_between), _PAIR + """
        pairs | repeats that both have | pairs | ,.0f
        difference ± | IoU of native DDP minus that of Horovod
            | difference {short_native} - {short_horovod} | +.4f ±
        margin | the one used, as in `iou`, here of the better of the two
        equal_within_margin | yes, no, suggests either, not shown, or not judged
            | equal within the margin | badge
        why | what stands behind the answer
        """,
        "Columns of `comparison.csv`, too, where those that do not name the score begin with `iou_`.", "iou",
        "{score} of {native} against {horovod}",
        widens="comparison.csv", prefix="iou_"),
    Table("played.csv", lambda report: report.played.points, _POINT + """
        kind | played: one worker trained as so many; real: so many workers trained | runs | text
        seeds | runs with their own seed | seeds | ,.0f
        test_images | images evaluated in each
        iou ± | median over seeds | {score} | .4f ±
        difference ± | to 1 worker of the same series, paired by seed | difference to 1 worker | +.4f ±
        (verdict) | | verdict | badge
        pairs | seeds that both have
        diverged | runs of the point that diverged | diverged | ,.0f
        constant_iou, learned, margin | as in `iou`
        verdict | baseline; no loss or loss: the whole interval lies above or below minus the margin;
            diverges: a run did; not judged as in `iou`; else undecided. 3 or 4 pairs only suggest it
        why | what stands behind the verdict
        steps, not_judged | as in `iou`
        """,
        "Where a study has played runs (`training.plays`, "
        "[plan_quality.md](background/plan_quality.md)): the IoU of played and of real runs at every number "
        "of workers.", "played",
        "{score} of played and real runs at every number of workers",
        _without_zeros),
    Table("plan.csv", lambda report: report.played.plan, _POINT + """
        target_iou | as in `cost` | {score} to reach | .2f
        runs, runs_to_target | played and real runs, and how many of them reach it
        (runs_to_target) | | runs that reach it | ,.0f
        epochs_to_target ± | until the first evaluation that reaches it | epochs to it | ~3 ±
        seconds_per_epoch ± | images of an epoch over the throughput of real runs, without warm-up
            | epoch, s | ~3 ±
        (speed) | | speed | text
        seconds_to_target ± | their product; its bounds are the products of their bounds
            | time to it, {time} | ~3 time ±
        worker_hours_to_target ± | workers times these hours | worker-hours to it | ~3 ±
        speed | measured by real runs on as many workers, predicted from real runs on others, or empty
        why | what is not known, and why
        """,
        "Time to the target IoU for every series with played runs. No second of a played run is in it.",
        "played", "Time and worker-hours to the target {score}"),
    Table("played_runs.csv",
        lambda report: report.study.played.runs if report.study.played else report.study.runs.iloc[:0], """
        run, framework |
        workers | as which it trained (`training.plays`)
        repeat, seed, options, knobs | what was run
        images_per_epoch, steps_per_epoch | as on so many workers
        loss | of the last epoch
        iou, dice | of the last evaluation
        iou_running, statistics | as in `runs.csv`
        test_images | images that it evaluated
        scores | all of a task that has several, by name; else empty
        """,
        "One row per played run. Its times stay in its record: they are of no real number of workers.",
        ),
    Table("cost", lambda report: report.cost, _POINT + """
        nodes | distinct hosts of a run
        training_seconds ± | all epochs; without start, evaluation and checkpoints
            | training, {time} | ~3 time ±
        worker_hours ± | workers times these hours | worker-{hours} | ~3 hours ±
        node_hours ± | hosts times these hours
        target_iou | the study's `target_iou`, or what every run on 1 worker reaches, less the margin
        seconds_to_target ± | until the first evaluation that reaches it
            | time to the {score}, {time} | ~3 time ±
        worker_hours_to_target ± |
        node_hours_to_target ± |
        runs_to_target | how many runs reached it
        """,
        "Columns of `summary.csv`, too.", "cost", "Time and cost of every point", widens="summary.csv"),
    Table("strategies.csv", lambda report: report.strategies, _POINT + """
        against | options of the same point with gradients averaged at every step
        pairs | repeats that both have | pairs | ,.0f
        ratio ± | throughput over that of the point beside it, paired by repeat; the intervals of
            all rows hold together | throughput / averaged gradients | .3f ±
        coverage | in how many studies that end so it holds; empty below 3 pairs
        most_gain | by which share the point beside it would be faster without any exchange, by its budget
            | gain without any exchange | .0%
        difference ± | of the score to the point beside it, paired by seed | {score} - averaged gradients
            | +.4f ±
        margin | the one used, as in `iou`
        non_inferior | yes, no, suggests either, not shown, or not judged | {score} kept | badge
        doubts | requirements of a fair comparison that both points do not meet | not met | text
        outcome | faster: with a score that is not inferior; faster, at a loss; faster, loss not excluded;
            equal within 3 %; cannot tell; slower; of 3 or 4 pairs, suggests these; withheld where one
            is not met | outcome | text
        """,
        "Strategies ([strategies.md](background/strategies.md)), where a study has several.",
        "strategies", "Each strategy against gradients averaged at every step", leads=True),
    Table("gpu.csv", lambda report: report.gpus, _POINT + """
        repeats | launches that are used
        utilization | share of the driver's last sample before the end of an epoch in which the GPU was busy;
            mean over epochs and GPUs | GPU load | .0%
        memory_bytes | in use at the end of an epoch, on the fullest GPU | memory of the fullest, GB | ~3 GB
        peak_allocated_bytes | the most of it that torch's allocator gave in an epoch
        other_memory_bytes | of it, that of other processes; empty where the driver does not list them, as in
            a container | that of others, GB | ~3 GB
        sm_clock_mhz | at the end of an epoch; mean over epochs and GPUs | SM clock, MHz | ,.0f
        throttled | share of epochs and GPUs in which it was held down | clock held down | .0%
        throttle_reasons | by what, in any run of the point | by | text
        power_watts | of one GPU at the end of an epoch | power of one, W | ~3
        joules_per_image | energy of all GPUs over the images: the only number of this name in a report
            | energy, J / {sample} | ~3
        energy_from | the devices' counters where all runs of the study have them, else power x time
        """,
        "GPUs of the points that recorded them, medians over launches of the epochs in use.",
        "cost", "GPUs of every point"),
    Table("request.csv", lambda report: _not_measured(report.request), _POINT + """
        step_seconds ± | of one step; older logs without `--images`: of the work of a worker's epoch
            | step, s | ~3 ±
        efficiency ± | speed-up over 1 worker of the series / workers | efficiency | .2f ±
        worker_hours ± | of one training, every epoch as fast as those after the warm-up; empty of emulated
            runs | worker-hours | ~3 ±
        coverage | confidence of the interval of the efficiency; empty where there is none
        why | what the interval lacks
        """,
        "What to know before asking for nodes of counts that are not measured, up to twice the largest one.",
        "request", "Predicted step time, efficiency and cost"),
    Table("predictions.csv", lambda report: report.predictions, """
        options, framework, knobs | the series | | point
        fitted_on | smallest and largest worker count of the fit | fitted on workers | text
        workers | predicted for, and measured
        predicted ± | throughput, in images / s (older logs without `--images`: epochs / h)
            | predicted, {unit} | ~4 ±
        measured | the same, measured, but not seen by the fit | measured | ~4
        error | predicted / measured - 1 | error | +.1%
        why | what the interval lacks
        """,
        "", "prediction", "Throughput predicted from fewer workers, and its error"),
    Table("prediction_scores.csv", lambda report: report.scores, _POINT + """
        file | in `predictions/` of the study's folder
        written_utc | when it was written | written (UTC) | text
        unscored | why it is not held against the runs; empty where it is
        predicted ± | throughput | predicted, {unit} | ~4 ±
        linear | throughput of as many workers that are each as fast as one: b/N
        measured | throughput, median over the runs | measured | ~4
        error, linear_error | predicted / measured - 1 | error | +.1%
        inside | yes: the interval holds what was measured | interval holds | text
        (unscored) | | not scored because | text
        counted | true: the summary is of it; of several files the youngest older than the runs
        """,
        "Predictions of `unet-scaling predict`, written before the runs, against what these measured.",
        "prediction", "Predictions written before the runs, against what these measured"),
    Table("saliency.csv", lambda report: report.saliency.points, _POINT + """
        repeats | launches that count for speed, as in summary.csv; resumed ones do not | repeats | ,.0f
        split | what the workers shared out: images or masks
        method, masks, images | how images are perturbed, masks of each image, images to explain
        maps | images that have one; median over runs
        maps_per_second ± | maps over seconds of the slowest worker; median over runs | maps / s | ~3 ±
        speedup ± | over that of the same series on 1 worker | speed-up | .2f ±
        efficiency ± | speed-up / workers | efficiency | .1% ±
        peak_bytes | the most main memory that any worker of any run ever had
        unknown | why a number of this row is not known
        """,
        "Where a study makes saliency maps ([saliency.md](saliency.md)): one row per point.",
        "saliency", "Saliency maps per second", leads=True),
    Table("saliency_runs.csv", lambda report: report.saliency.runs, """
        run, options, framework, knobs, workers, repeat | what was run
        split, method, masks, images | as in saliency.csv
        maps, maps_made_here | images that have one; how many the last attempt made
        seconds | of the slowest worker
        maps_per_second | empty where `untimed` says why
        """ + _MAP_SHARES + """
        peak_bytes | the most main memory that any worker ever had
        check_seconds | for overlays, curves and untrained maps, after the clock
        epochs | trained before
        weights_sha256 | of the weights that are explained
        untimed | why the run has no speed: resumed, or no map at all
        """,
        "One row per run with saliency maps."),
    Table("saliency_faithfulness.csv", lambda report: report.saliency.faithful, """
        run, options, framework, knobs, workers, repeat | what was run
        score | of a prediction: foreground_probability or iou
        images | with deletion and insertion curves
        deletion_area, random_deletion_area, insertion_area, random_insertion_area | areas under the curves in
            the map's order and in random order, means over the images
        deletion_better, deletion_share ± | images whose deletion area is smaller than that of random order by
            0.01 at least; their share, with its exact interval (Clopper and Pearson)
        insertion_better, insertion_share ± | images whose insertion area is larger by 0.01 at least
        untrained_images, untrained_maps | explained with freshly drawn weights, too; how many of them have a
            map then
        untrained_better, untrained_share ± | deletion as above, of these maps and weights
        untrained_correlation | size of Spearman's correlation of both maps, median over these images
        weights_sha256 | of the weights that are explained
        """,
        "One row per run and score whose manifest has curves."),
    Table("saliency_curves.csv", lambda report: report.saliency.curves, """
        options, score, kind | which curve: deletion or insertion
        pixel_share | of the pixels deleted or inserted
        images, trainings | of which it is the mean; runs of equal weights count once
        own ± | score in the map's order, with a 95 % t interval over the images
        random ± | score in random order
        """,
        "The deletion and insertion curves of the page."),
    Table("checks", lambda report: report.fairness, """
        check | what should be equal in the runs compared; rows that compare native DDP with another framework
            than Horovod end with its name | requirement | text
        mark | yes, no, or not known | met | badge
        fact | what the records say | fact | text
        withholds | true: neither framework is called faster where the fact says
        """,
        "", "fairness", "What is not equal, or not known",
        lambda table: table[table["mark"] != "yes"]),
    Table("left_out", lambda report: report.study.all_left_out, """
        run | name of its folder or log | run | run
        state | as in `unet-scaling status`: waiting, failed, resumable, diverged, invalid; of complete runs:
            no throughput, refused, or invalid where the record contradicts itself or a dilated cluster was
            not slowed as it should be | state | text
        reason | with file and line, or the fact and both values | reason | text
        framework, workers, repeat | where known
        options, knobs | as in the other tables, where the point is known
        """,
        "", "left-out", "Runs left out"),
)
# fmt: on


def table_files(report: Report) -> dict[str, bytes]:
    """Return the contents of the table files, by file name."""
    made = [table for table in TABLES if table.is_file and table.is_made(report)]
    return {
        table.name(report): table.content(report, [each for each in TABLES if each.widens == table.file])
        for table in made
    }


def grids(report: Report, section: str) -> tuple[Grid, ...]:
    """Return the tables that a section of the page shows."""
    own = [table for table in TABLES if table.section == section]
    return tuple(table.grid(report) for table in own if table.is_made(report))


def table_of(file: str) -> Table:
    """Return the table that is written to this file, or under this key of summary.json."""
    return next(table for table in TABLES if table.file == file)


PAGE = PROJECT / "docs" / "columns.md"
BEGIN = "<!-- tables: written by python -m analysis.report.columns --write -->\n"
END = "<!-- end of tables -->\n"
COMPARE_ABOUT = "Of `unet-scaling compare`: one row per point, those of one study alone last."
# Of summary.json, compare.csv, and files that are no tables.
FURTHER_NAMES = (
    "answers", "application", "checks", "compare", "criteria", "doubts", "launches", "launches_needed",
    "notes", "only_in", "points", "provenance", "recommendations", "report", "schema_version", "seeds_paired",
    "study", "throughput", "throughput_unit", "verdicts",
)  # fmt: skip


def _with_intervals(names: Sequence[str]) -> str:
    """Return names of columns in Markdown; "`x` ±" for x with its ends, x_low and x_high."""
    ends = {f"{name}{end}": name for name in names for end in ENDS[1:] if f"{name}{ENDS[-1]}" in names}
    return ", ".join(f"`{name}`{' ±' * (name in ends.values())}" for name in names if name not in ends)


def column_lists() -> str:
    """Return the columns of every table as Markdown."""
    lists = [
        (table.title, table.about, {line.names: line.meaning for line in table.column_lines if line.in_file})
        for table in TABLES
    ]
    lists.append(("`compare.csv`", COMPARE_ABOUT, {line.names: line.meaning for line in COMPARE_LINES}))
    parts = []
    for title, about, columns in lists:
        rows = [
            f"| {_with_intervals(names)} | {meaning} |".replace("|  |", "| |")
            for names, meaning in columns.items()
            if meaning != THE_POINT
        ]
        head = [f"### {title}", "", *([about, ""] if about else []), "| column | meaning |", "|---|---|"]
        parts += [*head, *rows, ""]
    return "\n".join(parts)


def taken_names() -> str:
    """Return the names of columns, files, figures and keys besides those named for the score, one a line."""
    names = [name for table in TABLES for name in (*table.names, PurePath(table.file).stem)]
    every = (*names, *FIGURES, *FURTHER_NAMES)
    taken = {SCORE_ENDINGS.sub("", name) for name in every if BUILT_IN_SCORE not in name.split("_")}
    return "".join(f"{name}\n" for name in sorted(taken - BUILT_IN_COLUMNS))


def with_column_lists(page: str) -> str:
    """Return the page with the column lists of today between its marks; raise ValueError without marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE} lacks the line {BEGIN!r} or {END!r}")
    return f"{before}{BEGIN}\n{column_lists()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_column_lists(PAGE.read_text()))
    TAKEN_NAMES_FILE.write_text(taken_names())

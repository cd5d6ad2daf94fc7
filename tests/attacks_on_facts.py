"""Attacks by what records say: impossible or contradictory ones, facts of one arm, disturbances, scores."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests import honest
from tests.attacks import MORE, Attack, Do, both, every, horovod, native
from tests.honest import START, Lines, counted, evaluation
from tests.own_task_records import as_own_task
from tests.records import digest
from tests.tampering import (
    Change,
    Runs,
    config,
    epochs,
    header,
    in_turn,
    processors,
    results,
    scored,
    slower,
    started,
    with_epochs,
    workers,
    write_lines,
)
from unet_scaling.study.config import Framework, RunConfig
from unet_scaling.study.record_lines import Epoch, Evaluation

FILES = ("steps.parquet", "steps.parquet.sha256", "log.csv")


def flat(lines: Lines) -> Lines:
    """Give all epochs after the first one the seconds of the second, to the last digit."""
    first, second, *others = lines.epochs
    same = {name: getattr(second, name) for name in ("seconds", "worker_seconds", "budget", "cpu")}
    return with_epochs(lines, [first, second, *(epoch.model_copy(update=same) for epoch in others)])


def half_the_workers_wait(epoch: Epoch) -> dict[str, object]:
    """Let all workers but the first end an epoch in half its time, though they average every step."""
    seconds = [each / (2 if worker else 1) for worker, each in enumerate(epoch.worker_seconds)]
    return {"worker_seconds": seconds, "budget": None, "no_budget": "off", "seconds": max(seconds)}


def idle(facts: Any) -> Mapping[str, float]:
    return dict.fromkeys(facts.thread_seconds, 0.001)


def all_at_once(run: RunConfig, at: datetime) -> datetime:
    return START


def as_if_resumed(lines: Lines) -> Lines:
    """Let the first attempt of a run be one of another host and code."""
    other = [worker.model_copy(update={"host": "fast9"}) for worker in lines.header.workers]
    earlier = lines.header.model_copy(update={"workers": other, "commit": "f" * 40})
    return replace(lines, header=lines.header.model_copy(update={"attempt": 2, "earlier": [earlier]}))


def exchanged_names(folder: Path) -> None:
    """Each arm is called by the other's name; what carried its gradients stays."""
    other: dict[str, Framework] = {"pytorch_native": "horovod", "horovod": "pytorch_native"}

    def change(lines: Lines) -> Lines:
        return config(framework=other[lines.config.framework], pytorch_native=None, horovod=None)(lines)

    for run, lines in [*Runs(folder).records()]:
        write_lines(run, change(lines))


IMPOSSIBLE = (
    Attack("epochs equal to 16 digits", native(flat), row="F5"),
    Attack(
        "a processor that did nothing",
        native(processors(process_seconds=0.003, thread_seconds=idle), workers=MORE),
        row="F5",
    ),
    Attack(
        "workers that average and end apart", native(epochs(half_the_workers_wait), workers=MORE), row="F5"
    ),
    Attack("all runs began in one second", every(started(all_at_once))),
    Attack("attempts of other code", native(as_if_resumed, workers=MORE)),
    Attack("records under the other framework's name", exchanged_names, row="F5"),
    Attack("no run says when it began", every(header(started_utc="unknown")), row="F6"),
)


def in_jobs(native_job: Mapping[str, str], horovod_job: Mapping[str, str]) -> Do:
    return both(native(header(job=dict(native_job))), horovod(header(job=dict(horovod_job))))


def native_first(folder: Path) -> None:
    """In every pair native DDP began first: the runs of a pair exchange their starts where they did not."""
    begun = {
        (lines.config.framework, lines.config.workers, lines.config.repeat): lines.header.started_utc
        for _, lines in Runs(folder).records()
    }

    def change(lines: Lines) -> Lines:
        run = lines.config
        pair = sorted(begun[name, run.workers, run.repeat] for name in ("pytorch_native", "horovod"))
        new = pair[run.framework == "horovod"]
        return replace(lines, header=lines.header.model_copy(update={"started_utc": new}))

    every(change)(folder)


def one_arm_later(run: RunConfig, at: datetime) -> datetime:
    return at + timedelta(hours=3 if run.framework == "horovod" else 0)


def baseline_earlier(run: RunConfig, at: datetime) -> datetime:
    return at - timedelta(days=19 if run.workers == 1 else 0)


def watts(share: float) -> Change:
    def of(epoch: Epoch) -> dict[str, object]:
        new = [
            facts.model_copy(
                update={
                    name: share * value
                    for name, value in facts
                    if value is not None and name.split("_")[0] in ("power", "energy")
                }
            )
            for facts in epoch.gpu or ()
        ]
        return {"gpu": new}

    return epochs(of)


def on_hosts(*names: str) -> Change:
    """Spread the workers of a run over these hosts in turn."""
    return workers(host=lambda worker: names[worker.worker % len(names)])


PLACE = (
    Attack(
        "Horovod without NCCL on GPUs",
        horovod(header(transport={"controller": "MPI", "built with": "MPI Gloo"})),
        base="GPUs",
        row="F4",
    ),
    Attack(
        "Horovod over MPI's own all-reduce on GPUs",
        horovod(header(transport={"controller": "MPI", "built with": "MPI"})),
        base="GPUs",
        row="F4",
    ),
    Attack(
        "another cluster with equal host names",
        in_jobs({"SLURM_CLUSTER_NAME": "fast"}, {"SLURM_CLUSTER_NAME": "slow"}),
        row="F6",
    ),
    Attack("clock known on 1 worker only", every(processors(frequency_mhz=None), workers=MORE), row="F6"),
    Attack("always the same arm first", native_first, row="F6"),
    Attack("one arm before the other", every(started(one_arm_later))),
    Attack("one arm on another host", native(on_hosts("fast9"))),
    Attack("1 worker measured weeks before", every(started(baseline_earlier))),
    Attack("1 worker on another host", every(on_hosts("old1"), workers=[1])),
    Attack("1 worker slowed", every(slower(1.2), workers=[1])),
    Attack("commit not known in one arm", native(header(commit=None, dirty=None)), row="F6"),
    Attack(
        "records of older code in one arm",
        horovod(in_turn(header(format=2, gradient_bytes=None), workers(environment=None, allocator=None))),
    ),
)


def drifting(share: float, framework: Framework | None = None) -> Do:
    """Epochs that grow slower by this share in all, of all runs or those of one framework."""

    def change(lines: Lines) -> Lines:
        steps = len(lines.epochs) - 1
        new = [
            slower(1 + share * epoch.epoch / steps)(replace(lines, epochs=[epoch], results=[])).epochs[0]
            for epoch in lines.epochs
        ]
        return with_epochs(lines, new)

    return lambda folder: Runs(folder).of(framework).change(change)


def stalled(lines: Lines) -> Lines:
    """One epoch of a launch takes 8 times as long."""
    new = [
        slower(8)(replace(lines, epochs=[epoch], results=[])).epochs[0] if epoch.epoch == 4 else epoch
        for epoch in lines.epochs
    ]
    return with_epochs(lines, new)


def two_epochs(lines: Lines) -> Lines:
    new = with_epochs(lines, lines.epochs[:2])
    new = replace(new, results=[evaluation(new.config, new.epochs, 0.8)])
    return config(training={"epochs": 2, "evaluate_every": 0})(new)


BUSY = processors(other_seconds=lambda facts: 0.2 * facts.process_seconds)
DISTURBED = (
    Attack("throttled in the course of each run", drifting(0.15), row="F7"),
    Attack("one arm throttled", drifting(0.15, "horovod"), row="F7"),
    Attack("other programs beside one arm", horovod(BUSY, workers=MORE)),
    Attack("other programs beside all", every(BUSY)),
    Attack("one arm stalls", horovod(stalled, workers=[4])),
    Attack("launches of a split second", every(slower(0.004)), row="F7"),
    Attack("one epoch after the warm-up", every(two_epochs), row="F7"),
)


def best_epoch(lines: Lines) -> Lines:
    """Report the better score of an earlier epoch as that after the last."""
    first, *_, last = lines.results
    better = evaluation(lines.config, lines.epochs[: first.epochs], 0.85)
    again = better.model_copy(update={"epochs": last.epochs, "training_seconds": last.training_seconds})
    return replace(lines, results=[better, again])


def other_foreground(share: float) -> Change:
    """Evaluate masks of another size: as many pixels, other counts of what is foreground."""

    def of(lines: Lines, result: Evaluation) -> Evaluation:
        found = round(share * honest.FOREGROUND_PIXELS)
        new = counted(lines.config, lines.epochs[: result.epochs], honest.FOREGROUND_PIXELS, 0)
        missed = round(found * 0.2)
        update = {
            "true_positive": found - missed,
            "false_negative": missed,
            "true_negative": honest.PIXELS - found,
            "iou": (found - missed) / found,
            "dice": 2 * (found - missed) / (2 * found - missed),
            "image_iou": (found - missed) / found,
        }
        return new.model_copy(update=update)

    return results(of)


def error_rates(name: str) -> Do:
    """An own task whose first score is an error: 0.1 on 1 worker, 0.3 on more, and called better."""

    def do(folder: Path) -> None:
        every(scored(lambda run: (0.1 if run.workers == 1 else 0.3) + 0.001 * run.seed))(folder)
        as_own_task(folder, score=name)

    return do


def own_tasks_of_each(folder: Path) -> None:
    """Each arm trains a task of its own, of one name."""
    as_own_task(folder)
    native(lambda lines: config(task={"sha256": digest("mine")})(lines))(folder)


SCORES = (
    Attack("another test set in one arm", native(header(manifest_sha256=digest("easy")))),
    Attack("masks of another size in one arm", native(other_foreground(1.5)), row="F2"),
    Attack("masks of another size on more workers", every(other_foreground(1.5), workers=MORE), row="F2"),
    Attack("the best epoch as the last", every(best_epoch, workers=MORE), row="F2"),
    Attack(
        "a score of some repeats only",
        every(
            results(
                lambda lines, result: result.model_copy(
                    update=dict.fromkeys(("true_positive", "false_positive", "false_negative"), 0)
                    | {"true_negative": honest.PIXELS, "iou": None, "dice": None, "image_iou": None}
                )
            ),
            workers=MORE,
            repeats=[1, 2],
        ),
    ),
    *(
        Attack(f"own task: a score called {name}", error_rates(name), row="F8")
        for name in ("error_rate", "mae", "perplexity", "wer")
    ),
    Attack("own tasks of one name", own_tasks_of_each),
)
ON_FACTS = (*IMPOSSIBLE, *PLACE, *DISTURBED, *SCORES)

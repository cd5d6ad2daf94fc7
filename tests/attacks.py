"""Attacks on the claims of `report` and `compare`: what is done to an honest study to make it claim too much.

Each entry is one thing that somebody does who wants his framework to win, or who errs honestly. All records
are made by the real models and carry true checksums. attacks_on_pairs.py has what is done to `compare`.
test_attacks.py asserts that none of them leaves a plain claim, and that honest studies do.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests import honest
from tests.honest import Honest, Lines, counted, loss_of, write_honest
from tests.records import digest
from tests.tampering import (
    Change,
    Runs,
    as_own_task,
    change_study,
    config,
    gpus,
    header,
    in_epochs,
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
from unet_scaling.format.record_lines import ComputeFacts, Epoch, Evaluation
from unet_scaling.study.config import Framework, RunConfig

Do = Callable[[Path], object]
# The counts on which gradients are averaged.
MORE: Sequence[int] = (2, 4)


@dataclass(frozen=True)
class Attack:
    """What is done to the study of a base."""

    name: str
    do: Do
    base: str = "native faster"


# Studies that are attacked: what is true of them, and what is made of it.
TRUTHS: Mapping[str, Honest] = {
    "native faster": Honest(),
    "equally fast": Honest(advantage=0.0, seed=3),
    "with files": Honest(has_files=True),
    "GPUs": Honest(is_gpu=True),
    "wrapper": Honest(("pytorch_native", "horovod", "lightning"), workers=(1, 2)),
    "12 repeats": Honest(workers=(1, 2), repeats=12),
}


def write_base(name: str, folder: Path) -> Path:
    """Write the study of a base."""
    return write_honest(folder, TRUTHS[name])


def one_arm(change: Change, *which: Mapping[str, Any], framework: Framework = "horovod") -> Do:
    """Do this to the runs of one framework, to a part of them where `which` says so."""
    return lambda folder: Runs(folder).of(framework, **dict(*which)).change(change)


def native(change: Change, **which: Any) -> Do:
    return one_arm(change, which, framework="pytorch_native")


def horovod(change: Change, **which: Any) -> Do:
    return one_arm(change, which)


def every(change: Change, **which: Any) -> Do:
    return lambda folder: Runs(folder).of(**which).change(change)


def both(*dos: Do) -> Do:
    """Do one thing after the other."""
    return lambda folder: [do(folder) for do in dos]


def hosts_in_turn(folder: Path) -> Path:
    """Write a study whose Horovod ran on another host, a day after native DDP."""
    write_honest(folder, Honest(workers=(1, 2), advantage=0.12))
    a_day_later = started(lambda _, at: at + timedelta(days=1))
    horovod(in_turn(a_day_later, workers(host="node2")))(folder)
    return folder


def predicting(positive_share: float, false_share: float) -> Change:
    """Evaluations that find this share of the foreground, and take this share of the rest for it."""

    def of(lines: Lines, result: Evaluation) -> Evaluation:
        background = honest.PIXELS - honest.FOREGROUND_PIXELS
        found = round(positive_share * honest.FOREGROUND_PIXELS)
        return counted(lines.config, lines.epochs[: result.epochs], found, round(false_share * background))

    return results(of)


def falls_with_workers(high: float, low: float) -> Callable[[RunConfig], float]:
    return lambda run: (high if run.workers == 1 else low) * (1 + 0.01 * run.seed)


LEARNED = (
    Attack("all background", every(predicting(0, 0))),
    Attack(
        "a margin as wide as the score",
        both(
            every(scored(falls_with_workers(0.8, 0.3))),
            lambda folder: change_study(folder, criteria={"iou_margin": 0.6}),
        ),
    ),
    Attack("losses that rise", every(in_epochs(loss=lambda epoch: 0.2 + 0.1 * epoch.epoch))),
    Attack("own task: the most frequent class", both(every(scored(0.5)), as_own_task)),
)


def other_weights(name: str) -> Change:
    def of(lines: Lines, result: Evaluation) -> Evaluation:
        return result.model_copy(
            update={"weights_sha256": digest(f"{name} {lines.config.run} {result.epochs}")}
        )

    return results(of)


def as_alone(lines: Lines) -> Lines:
    """Give a run the losses, scores and weights of 1 worker's, and no time in which anything is averaged."""
    alone = lines.config.model_copy(update={"workers": 1})
    new = [
        epoch.model_copy(update={"loss": loss_of(alone, epoch.epoch)} | _without_sync(epoch))
        for epoch in lines.epochs
    ]
    lines = with_epochs(lines, new)
    return other_weights("alone")(lines)


def _without_sync(epoch: Epoch) -> dict[str, object]:
    assert epoch.budget is not None
    sync = epoch.budget.sync_seconds
    seconds = [each - waited for each, waited in zip(epoch.worker_seconds, sync, strict=True)]
    budget = {"sync_seconds": [0.0] * len(sync), "wire_seconds": 0.0, "longest_step": None}
    return {
        "seconds": max(seconds),
        "worker_seconds": seconds,
        "budget": epoch.budget.model_copy(update=budget),
    }


UNEQUAL = (
    Attack(
        "a wrapper trains alone", one_arm(as_alone, {"workers": [2]}, framework="lightning"), base="wrapper"
    ),
)


def without(
    folder: Path, framework: Framework, repeats: Sequence[int], count: Sequence[int] | None = None
) -> None:
    for run, _ in [*Runs(folder).of(framework, repeats=repeats, workers=count).records()]:
        shutil.rmtree(run)


def kept(*repeats: int) -> Do:
    """Keep these repeats of both frameworks, and remove the others."""

    def do(folder: Path) -> None:
        for run, lines in [*Runs(folder).records()]:
            if lines.config.repeat not in repeats:
                shutil.rmtree(run)

    return do


def asked(repeats: int) -> Do:
    return lambda folder: change_study(folder, repeats=repeats)


def lying_beside(name: str, factor: float) -> Do:
    """Let slower launches of native DDP lie beside those that are read, as relaunching leaves them."""

    def do(folder: Path) -> None:
        for run, lines in Runs(folder).of("pytorch_native", workers=MORE).records():
            aside = run / "aside"
            write_lines(aside, slower(factor)(lines))
            (aside / "run.jsonl").rename(run / f"run.{name}.jsonl")
            shutil.rmtree(aside)

    return do


def slowest_failed(folder: Path) -> None:
    """The slower launches of an arm lost their end."""
    Runs(folder).of("pytorch_native", repeats=[2, 4]).change(lambda lines: replace(lines, end=None))


CHERRIES = (
    Attack("repeats 1, 3, 5, 7, 12 of 12", kept(1, 3, 5, 7, 12), base="12 repeats"),
    Attack(
        "the best of three launches", both(lying_beside("disturbed1", 1.07), lying_beside("disturbed2", 1.09))
    ),
    Attack("slow repeats of one arm removed", lambda folder: without(folder, "pytorch_native", [2, 4], [4])),
    Attack(
        "a worker count of one arm removed", lambda folder: without(folder, "horovod", [1, 2, 3, 4, 5], [4])
    ),
    Attack("the slower launches of an arm failed", slowest_failed),
)


def emulated(lines: Lines) -> Lines:
    profile = ComputeFacts(name="p.toml", sha256=digest("p"), device="V100", assumption="a paper")
    waits = {"emulation": {"compute": "/p.toml"}, "training": {"evaluate_every": 0}}
    lines = config(**waits)(lines)
    new = [epoch.model_copy(update={"loss": None}) for epoch in lines.epochs]
    return header(compute=profile)(replace(lines, epochs=new, results=[]))


FOREIGN = (Attack("more workers emulated", every(emulated, workers=MORE)),)


def as_if_resumed(lines: Lines) -> Lines:
    """Let the first attempt of a run be one of another host and code."""
    other = [worker.model_copy(update={"host": "fast9"}) for worker in lines.header.workers]
    earlier = lines.header.model_copy(update={"workers": other, "commit": "f" * 40})
    return replace(lines, header=lines.header.model_copy(update={"attempt": 2, "earlier": [earlier]}))


RESUMED = (Attack("attempts of other code", native(as_if_resumed, workers=MORE)),)


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


PLACE = (
    Attack(
        "Horovod without NCCL on GPUs",
        horovod(header(transport={"controller": "MPI", "built with": "MPI Gloo"})),
        base="GPUs",
    ),
    Attack("strangers on one arm's GPUs", horovod(gpus(other_memory_bytes=2**34), workers=MORE), base="GPUs"),
    Attack("clock known on 1 worker only", every(processors(frequency_mhz=None), workers=MORE)),
    Attack("always the same arm first", native_first),
    Attack("one arm before the other", every(started(one_arm_later))),
    Attack("one arm on another host", native(workers(host="fast9"))),
    Attack("1 worker slowed", every(slower(1.2), workers=[1])),
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


DISTURBED = (
    Attack("throttled in the course of each run", drifting(0.15)),
    Attack("one arm throttled", drifting(0.15, "horovod")),
    Attack("one arm stalls", horovod(stalled, workers=[4])),
    Attack("launches of a split second", every(slower(0.004))),
)


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


def error_rates(folder: Path) -> None:
    """An own task whose first score is an error: 0.1 on 1 worker, 0.3 on more, and called better."""
    every(scored(lambda run: (0.1 if run.workers == 1 else 0.3) + 0.001 * run.seed))(folder)
    as_own_task(folder, score="error_rate")


SCORES = (
    Attack("another test set in one arm", native(header(manifest_sha256=digest("easy")))),
    Attack("masks of another size in one arm", native(other_foreground(1.5))),
    Attack("own task: a score called error_rate", error_rates),
)
ON_REPORT = (*LEARNED, *UNEQUAL, *CHERRIES, *FOREIGN, *RESUMED, *PLACE, *DISTURBED, *SCORES)

"""Attacks on the claims of `report` and `compare`: what is done to an honest study to make it claim too much.

Each entry is one thing that somebody does who wants his framework to win, or who errs honestly. All records
are made by the real models and carry true checksums. Here is what concerns training and the choice of runs;
attacks_on_facts.py has what records say of machine, time and score, attacks_on_pairs.py what is done to
`compare`. test_attacks.py asserts that none of them leaves a plain claim, and that honest studies do.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests import honest
from tests.honest import START, Honest, Lines, counted, loss_of, write_honest
from tests.own_task_records import as_own_task
from tests.records import digest, write_script_run
from tests.tampering import (
    Change,
    Runs,
    change_study,
    config,
    epochs,
    header,
    in_turn,
    results,
    scored,
    slower,
    started,
    with_epochs,
    workers,
    write_lines,
)
from unet_scaling.study.config import Framework, RunConfig
from unet_scaling.study.record_lines import ComputeFacts, Epoch, Evaluation

Do = Callable[[Path], object]
# The counts on which gradients are averaged.
MORE: Sequence[int] = (2, 4)


@dataclass(frozen=True)
class Attack:
    """What is done to the study of a base; `row` is that of the list of defects, empty where none had it."""

    name: str
    do: Do
    base: str = "native faster"
    row: str = ""


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


def in_epochs(**fields: Any) -> Change:
    """Change these fields of every epoch; a function is given the epoch."""

    def of(epoch: Epoch) -> dict[str, object]:
        return {name: each(epoch) if callable(each) else each for name, each in fields.items()}

    return epochs(of)


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
    Attack("all background", every(predicting(0, 0)), row="F1"),
    Attack("all foreground", every(predicting(1, 1)), row="F1"),
    Attack("a handful of pixels", every(predicting(0.003, 0)), row="F1"),
    Attack("noise predicted", every(predicting(0.5, 0.5)), row="F1"),
    Attack("little learned, and less on more", every(scored(falls_with_workers(0.0135, 0.0045))), row="F1"),
    Attack(
        "a margin as wide as the score",
        both(
            every(scored(falls_with_workers(0.8, 0.3))),
            lambda folder: change_study(folder, criteria={"iou_margin": 0.6}),
        ),
        row="F1",
    ),
    Attack("losses that never fall", both(every(in_epochs(loss=0.6931)), every(scored(0.05))), row="F1"),
    Attack("losses that rise", every(in_epochs(loss=lambda epoch: 0.2 + 0.1 * epoch.epoch)), row="F1"),
    Attack(
        "own task: the most frequent class",
        both(every(scored(0.5)), as_own_task),
        row="F1",
    ),
)


def other_losses(share: float) -> Change:
    return in_epochs(loss=lambda epoch: (epoch.loss or 0) * (1 + share))


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
    Attack("other losses on 2 workers", horovod(other_losses(0.05), workers=[2]), row="F2"),
    Attack("other weights on 2 workers", native(other_weights("mine"), workers=[2]), row="F2"),
    Attack(
        "a schedule of its own",
        native(
            in_epochs(learning_rate=lambda epoch: epoch.learning_rate / (2 if epoch.epoch in (2, 3) else 1))
        ),
        row="F2",
    ),
    Attack("other seeds in one arm", native(config(seed=77))),
    Attack("one arm trains alone", native(as_alone, workers=MORE), row="F2"),
    Attack(
        "a wrapper trains alone",
        one_arm(as_alone, {"workers": [2]}, framework="lightning"),
        base="wrapper",
        row="F2",
    ),
    Attack(
        "nothing averaged in 0 s",
        native(epochs(_without_sync), workers=MORE),
        row="F2",
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


def without_study(folder: Path) -> None:
    (folder / "study.json").unlink()


def asked(repeats: int) -> Do:
    return lambda folder: change_study(folder, repeats=repeats)


def lying_beside(name: str, factor: float, framework: Framework = "pytorch_native") -> Do:
    """Let slower launches of an arm lie beside those that are read, as relaunching leaves them."""

    def do(folder: Path) -> None:
        for run, lines in Runs(folder).of(framework, workers=MORE).records():
            aside = run / "aside"
            write_lines(aside, slower(factor)(lines))
            (aside / "run.jsonl").rename(run / f"run.{name}.jsonl")
            shutil.rmtree(aside)

    return do


def more_repeats(folder: Path) -> None:
    """Give one arm twice as many repeats, which follow the others."""
    for run, lines in [*Runs(folder).of("pytorch_native").records()]:
        repeat = lines.config.repeat + 5
        name = f"{run.name.rpartition('-')[0]}-r{repeat}"
        new = config(run=name, repeat=repeat, seed=repeat)(lines)
        new = started(lambda _, at: at + timedelta(hours=1))(new)
        new = header(initial_weights_sha256=digest(f"weights of seed {repeat}"))(new)
        write_lines(run.with_name(name), new)


def grown_without_a_word(folder: Path) -> None:
    """Two repeats more than the study asks for, made after its report was there, and no repeats.json."""
    change_study(folder, repeats=3)
    (folder / "report").mkdir()
    (folder / "report" / "summary.json").write_text('{"points": [{"repeats": 3}]}')
    every(started(lambda run, at: at + timedelta(hours=5 * (run.repeat > 3))))(folder)


def slowest_failed(folder: Path) -> None:
    """The slower launches of an arm lost their end."""
    Runs(folder).of("pytorch_native", repeats=[2, 4]).change(lambda lines: replace(lines, end=None))


def from_another_study(folder: Path) -> None:
    """One arm is that of last year's study."""
    native(in_turn(config(study="older"), started(lambda _, at: at - timedelta(days=300))))(folder)


def same_run_twice(folder: Path) -> None:
    (run, _), *_ = Runs(folder).of("pytorch_native", workers=[4]).records()
    shutil.copytree(run, run.with_name(f"{run.name}-again"))


CHERRIES = (
    Attack("repeats 1, 3, 5, 7, 12 of 12", kept(1, 3, 5, 7, 12), base="12 repeats", row="F3"),
    Attack(
        "the same, without study.json",
        both(kept(1, 3, 5, 7, 12), without_study),
        base="12 repeats",
        row="F3",
    ),
    Attack("5 repeats of 10 that were asked for", asked(10), row="F3"),
    Attack("the first 5 of 12", kept(1, 2, 3, 4, 5), base="12 repeats", row="F3"),
    Attack(
        "the best of three launches",
        both(lying_beside("disturbed1", 1.07), lying_beside("disturbed2", 1.09)),
        row="F3",
    ),
    Attack("complete launches set aside", lying_beside("attempt1", 1.08), row="F3"),
    Attack("the other arm's fast launches set aside", lying_beside("disturbed1", 0.9, "horovod"), row="F3"),
    Attack("grown after a look, without repeats.json", grown_without_a_word, row="F3"),
    Attack("one arm with twice as many repeats", more_repeats),
    Attack(
        "slow repeats of one arm removed",
        lambda folder: without(folder, "pytorch_native", [2, 4], [4]),
    ),
    Attack(
        "a worker count of one arm removed", lambda folder: without(folder, "horovod", [1, 2, 3, 4, 5], [4])
    ),
    Attack("the slower launches of an arm failed", slowest_failed),
    Attack("one run in two folders", same_run_twice),
    Attack("one arm of last year's study", from_another_study),
)


def emulated(lines: Lines) -> Lines:
    profile = ComputeFacts(name="p.toml", sha256=digest("p"), device="V100", assumption="a paper")
    waits = {"emulation": {"compute": "/p.toml"}, "training": {"evaluate_every": 0}}
    lines = config(**waits)(lines)
    new = [epoch.model_copy(update={"loss": None}) for epoch in lines.epochs]
    return header(compute=profile)(replace(lines, epochs=new, results=[]))


def played(lines: Lines) -> Lines:
    return config(training={"plays": lines.config.workers})(lines)


def scripts_as_arm(folder: Path) -> None:
    for run, lines in [*Runs(folder).of("horovod").records()]:
        shutil.rmtree(run)
        write_script_run(
            folder, "horovod", lines.config.workers, lines.config.repeat, images_per_second=200.0
        )


def scripts_only(folder: Path) -> None:
    for run, lines in [*Runs(folder).records()]:
        shutil.rmtree(run)
        found = lines.config
        speed = 60.0 * found.workers * (1 + 0.01 * found.repeat)
        moment = f"{START + timedelta(minutes=found.repeat):%Y-%m-%dT%H:%M:%S+00:00}"
        write_script_run(
            folder, found.framework, found.workers, found.repeat, images_per_second=speed, started_utc=moment
        )


FOREIGN = (
    Attack("one arm emulated", native(emulated)),
    Attack("more workers emulated", every(emulated, workers=MORE)),
    Attack("played as real", native(played, workers=MORE)),
    Attack("a script as an arm", scripts_as_arm),
    Attack("scripts only", scripts_only),
)
ON_TRAINING = (*LEARNED, *UNEQUAL, *CHERRIES, *FOREIGN)

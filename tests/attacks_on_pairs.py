"""Attacks on `compare`: what makes study B look faster or better than A, or hides what differs between them.

Honestly B is faster by what another commit changed.
"""

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.attacks import MORE, Attack, Do, both, lying_beside
from tests.attacks import every as in_study
from tests.honest import START, Honest, Lines, write_honest
from tests.records import digest
from tests.tampering import (
    Change,
    Runs,
    header,
    in_epochs,
    processors,
    results,
    scored,
    slower,
    with_epochs,
    workers,
)

PAIR = Honest(("pytorch_native",), workers=(1, 4))
AFTER = replace(PAIR, seed=2, speed=1.08, start=START + timedelta(days=1), commit="f" * 40)


def write_pair(folder: Path) -> Path:
    """Write study A, and B of the next day, which another commit made 8 % faster."""
    write_honest(folder / "a", PAIR)
    write_honest(folder / "b", AFTER)
    return folder


def in_b(change: Change, **which: Any) -> Do:
    return lambda folder: in_study(change, **which)(folder / "b")


def in_both(change: Change, **which: Any) -> Do:
    return both(lambda folder: in_study(change, **which)(folder / "a"), in_b(change, **which))


def of_b(do: Do) -> Do:
    return lambda folder: do(folder / "b")


def slower_half_is_warm_up(lines: Lines) -> Lines:
    """The first epoch, and of the others those that took longer than most, count for no speed."""
    usual = sorted(epoch.seconds for epoch in lines.epochs)[len(lines.epochs) // 2]
    slow = [
        epoch.model_copy(update={"warmup": epoch.warmup or epoch.seconds > usual}) for epoch in lines.epochs
    ]
    return with_epochs(lines, slow)


def best_of_twelve(folder: Path) -> None:
    """B keeps the 5 fastest of 12 repeats, under their numbers."""
    shutil.rmtree(folder / "b")
    write_honest(folder / "b", replace(AFTER, repeats=12, speed=1.0, noise=0.02))
    for count in PAIR.workers:
        arm = [*Runs(folder / "b").of(workers=[count]).records()]
        arm.sort(key=lambda run: run[1].epochs[-1].seconds)
        for run, _ in arm[5:]:
            shutil.rmtree(run)


ON_PAIRS = (
    Attack("B has the best 5 of 12 repeats", best_of_twelve),
    Attack("B has slower launches set aside", of_b(lying_beside("attempt1", 1.1))),
    Attack("B on other cores", in_b(workers(cores=lambda worker: [worker.worker + 32]))),
    Attack("B at a higher clock", in_b(processors(frequency_mhz=3600.0))),
    Attack("B beside other programs", in_b(processors(other_seconds=lambda cpu: 0.2 * cpu.process_seconds))),
    Attack("B with other torch", in_b(header(versions=lambda found: found.versions | {"torch": "2.14.0"}))),
    Attack("B with other losses", in_b(in_epochs(loss=lambda epoch: 1.05 * epoch.loss))),
    Attack("B calls its slower half warm-up", in_b(slower_half_is_warm_up)),
    Attack("B leaves out a step", in_b(in_epochs(steps=lambda epoch: epoch.steps - 1))),
    Attack("neither learned anything", in_both(scored(0.001))),
    Attack(
        "B scores its first epochs",
        in_b(results(lambda lines, result: result.model_copy(update={"weights_sha256": digest("first")}))),
    ),
    Attack(
        "A slowed on more workers",
        lambda folder: in_study(slower(1.05, processor=False), workers=MORE)(folder / "a"),
    ),
)

"""Studies of budgets without files, in which one arm is slower for a known reason, or for none."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.causes.budget import difference_parts
from analysis.judge.decide import slower_framework
from analysis.numbers.contrast import compare
from analysis.study import BUDGET_COLUMNS, Array, Study
from tests.simulated import study_of
from unet_scaling.format.record_lines import PHASE_COLUMNS, Phase
from unet_scaling.study.config import FRAMEWORKS

WORKERS = 4
STEPS = 40
EPOCHS = 10
IMAGES_PER_STEP = 32
STEP_SECONDS = 0.1
# Parts of a step, in the order of phases; sync is the wire alone.
PARTS = np.array([0.02, 0.01, 0.31, 0.58, 0.04, 0.07, 0.01])
# Standard deviations of the pace of a repeat, a launch, an epoch, and a worker's own work in a step.
REPEAT_NOISE, LAUNCH_NOISE, EPOCH_NOISE, STEP_NOISE = 0.01, 0.02, 0.01, 0.01


@dataclass(frozen=True)
class Burden:
    """What lengthens the steps of an arm: shares of a step by phase, of all workers alike or of `only` one.

    `at_random`: instead of in each step, ten times as much in a tenth of the steps of each worker.
    `jitter`: standard deviation of the own work of a step, whose mean stays.
    """

    phases: Mapping[Phase, float]
    only: int | None = None
    at_random: bool = False
    jitter: float = STEP_NOISE


PLAIN = Burden({})
READING = Burden({Phase.DATA_WAIT: 2.0}, at_random=True)
# What both arms have, what one has instead, and the part in which the difference lies.
CAUSES: Mapping[str, tuple[Burden, Burden, str]] = {
    "optimizer": (PLAIN, Burden({Phase.OPTIMIZER: 1.0}), "optimizer"),
    "data wait": (PLAIN, Burden({Phase.DATA_WAIT: 1.0}), "data_wait"),
    "data wait of one worker": (PLAIN, Burden({Phase.DATA_WAIT: 1.0}, only=1), "data_wait"),
    "data wait at random": (PLAIN, Burden({Phase.DATA_WAIT: 0.5}, at_random=True), "data_wait"),
    "compute": (PLAIN, Burden({Phase.BACKWARD: 1.0}), "compute"),
    "compute of one worker": (PLAIN, Burden({Phase.BACKWARD: 1.0}, only=2), "compute"),
    "communication": (PLAIN, Burden({Phase.SYNC: 1.0}), "wire"),
    "uneven work": (PLAIN, Burden({}, jitter=0.08), "imbalance"),
    "optimizer, both average slowly": (
        Burden({Phase.SYNC: 2.0}),
        Burden({Phase.SYNC: 2.0, Phase.OPTIMIZER: 1.0}),
        "optimizer",
    ),
    "communication, both wait for data": (
        READING,
        replace(READING, phases={Phase.DATA_WAIT: 2.0, Phase.SYNC: 1.0}),
        "wire",
    ),
    "nothing": (PLAIN, PLAIN, ""),
    "nothing, both wait for data": (READING, READING, ""),
}


def invented_study(cause: str, size: float, repeats: int, random: np.random.Generator) -> Study:
    """Return native DDP, and Horovod that has this cause, which takes this share of a step more."""
    rows: list[dict[str, object]] = []
    seconds, budgets = [], []
    shared, extra, _ = CAUSES[cause]
    for repeat, pace_of_repeat in enumerate(random.normal(0, REPEAT_NOISE, repeats), start=1):
        for framework in FRAMEWORKS:
            burden = shared if framework == FRAMEWORKS[0] else extra
            pace = pace_of_repeat + random.normal(0, LAUNCH_NOISE)
            phases = _phases(burden, size, random)
            phases *= np.exp(pace + random.normal(0, EPOCH_NOISE, EPOCHS))[:, None, None, None]
            epochs = phases.sum(axis=(2, 3)).max(axis=1)
            run = f"run{len(rows)}"
            wire = phases[..., Phase.SYNC].min(axis=1).sum()
            spent = phases.sum(axis=(0, 2))
            rows.append({"options": "", "framework": framework, "workers": WORKERS, "repeat": repeat})
            seconds.append(epochs)
            budgets += [
                dict(zip(PHASE_COLUMNS, own, strict=True))
                | {"run": run, "worker": worker, "seconds": epochs.sum(), "worker_seconds": own.sum()}
                | {"wire_seconds": wire, "steps": EPOCHS * STEPS, "no_budget": ""}
                for worker, own in enumerate(spent)
            ]
    study = study_of(pd.DataFrame(rows), IMAGES_PER_STEP * STEPS / np.array(seconds))
    return replace(study, budgets=pd.DataFrame(budgets, columns=list(BUDGET_COLUMNS)))


def _phases(burden: Burden, size: float, random: np.random.Generator) -> Array:
    """Return seconds (epochs, workers, steps, phases) of a launch at its usual pace."""
    shape = (EPOCHS, WORKERS, STEPS)
    phases = PARTS * np.exp(random.normal(-(burden.jitter**2) / 2, burden.jitter, (*shape, 1)))
    phases[..., Phase.SYNC] = 0.0
    wire = PARTS[Phase.SYNC]
    for phase, share in burden.phases.items():
        more = np.full(shape, size * share)
        if phase == Phase.SYNC:
            wire = wire + size * share
            continue
        if burden.only is not None:
            more[:, np.arange(WORKERS) != burden.only] = 0.0
        if burden.at_random:
            more *= 10 * (random.random(shape) < 0.1)
        phases[..., phase] += more
    own = phases.sum(axis=3)
    phases[..., Phase.SYNC] = own.max(axis=1, keepdims=True) - own + wire
    return np.asarray(STEP_SECONDS * phases)


@dataclass(frozen=True)
class Named:
    """Whether an arm is called slower, in which parts of a step, and whether that is so.

    `in_either`: some part would be named if the one arm, or the other, were called slower.
    """

    is_claimed: bool
    parts: tuple[str, ...]
    is_true: bool
    in_either: bool


def named_cause(cause: str, size: float, repeats: int, seed: int) -> Named:
    """Return what is said of one study of this cause."""
    study = invented_study(cause, size, repeats, np.random.default_rng(seed))
    (row,) = compare(study).to_dict("records")
    parts = {framework: (*(difference_parts(study, row, framework) or ()),) for framework in FRAMEWORKS}
    slower = slower_framework(row)
    named = parts[slower] if slower else ()
    truth = CAUSES[cause][-1]
    is_true = named == (truth,) and slower == FRAMEWORKS[1]
    return Named(bool(slower), named, is_true, any(parts.values()))

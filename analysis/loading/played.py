"""Played runs apart from real ones: what they learned counts, how long it took does not.

A played run (training.plays) trains exactly as so many workers, on fewer. It is taken as the run of these
workers that it stands for, in a study of its own that knows no times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from analysis.facts import FACTS, MANIFEST, SAME
from analysis.loading.runs import CompleteRun, Loaded, UnusableRun
from analysis.study import NAN, Study
from unet_scaling.study.config import RunConfig
from unet_scaling.study.record_lines import Header

# What decides the IoU. Device, host and software of a played run may be others than those of the real ones.
# Beside emulated ones, which learn nothing, they have no speed to go with their IoU.
DECIDE_IOU = (
    "computing", MANIFEST, "training {}s", "test {}s", "initial weights",
)  # fmt: skip
TIMES_OF_A_RUN = (
    "images_per_second", "epochs_per_second", "seconds_per_epoch", "step_seconds", "training_seconds",
    "busy_share",
)  # fmt: skip
TIMES_OF_AN_EVALUATION = ("training_seconds", "seconds")
TABLES_OF_TIMES = ("epochs", "budgets", "probes", "startups")


def as_trained(config: RunConfig) -> RunConfig:
    """Return the configuration of the run that a played one stands for: as many workers, all of them real."""
    training = config.training.model_copy(update={"plays": None})
    return config.model_copy(update={"training": training, "workers": config.played_workers})


def split_played(complete: Sequence[CompleteRun], left_out: Sequence[UnusableRun]) -> tuple[Loaded, Loaded]:
    """Return the real runs, and the played ones as those that they stand for."""
    real = (
        [run for run in complete if not run.config.is_played],
        [run for run in left_out if run.config is None or not run.config.is_played],
    )
    played = (
        [replace(run, config=as_trained(run.config)) for run in complete if run.config.is_played],
        [_left_out_as_trained(run, run.config) for run in left_out if run.config and run.config.is_played],
    )
    return real, played


def _left_out_as_trained(run: UnusableRun, config: RunConfig) -> UnusableRun:
    return UnusableRun(replace(run.left_out, workers=config.played_workers), as_trained(config))


def differing_from_real(played: Mapping[str, Header], real: Mapping[str, Header]) -> dict[str, str]:
    """Return the played runs that learned from other data or weights than real ones of equal options.

    {run: reason}; each reason names the fact and both values. Headers are those of the runs that the played
    ones stand for.
    """
    reasons: dict[str, list[str]] = {}
    for fact in (fact for fact in FACTS if fact.name in DECIDE_IOU):
        key = SAME[fact.same]
        known = {key(header): run for run, header in real.items()}
        for run, header in played.items():
            of_real = known.get(key(header))
            value = fact.of(header)
            usual = fact.of(real[of_real]) if of_real else value
            if value != usual:
                reason = f"{fact.title(header)}: {value}, but {usual} in {of_real}, which is not played"
                reasons.setdefault(run, []).append(reason)
    return {run: "; ".join(parts) for run, parts in reasons.items()}


def without_times(played: Study) -> Study:
    """Return a study of played runs in which no time or speed is known."""
    unknown_times = dict.fromkeys(TIMES_OF_A_RUN, NAN)
    return replace(
        played,
        runs=played.runs.assign(**unknown_times, disturbed="", stalls=""),
        evaluations=played.evaluations.assign(**dict.fromkeys(TIMES_OF_AN_EVALUATION, NAN)),
        **{name: getattr(played, name).iloc[:0] for name in TABLES_OF_TIMES},
        notes=(),
    )

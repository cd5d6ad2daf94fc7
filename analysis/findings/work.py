"""The checks of what compared runs did: steps and images of an epoch, repeats, disturbances."""

from collections.abc import Mapping

import pandas as pd

from analysis.facts import FACTS, TRAINING
from analysis.findings.check import (
    WITHOUT_RECORD,
    Check,
    PointPair,
    known_of_one,
    no,
    not_known,
    withhold_claims,
    yes,
)
from analysis.findings.headers import COUNTS, known_by_one
from analysis.findings.pairs import (
    PAIR,
    disturbed_pairs,
    first_points,
    pair_of,
    pairs_known_of_one,
    point_name,
    side_by_side,
)
from analysis.restriction import NOTHING_LEARNED
from analysis.stats import kept_though_disturbed
from analysis.study import POINT, Study
from analysis.text import clean, count, repeats_text
from unet_scaling.study.disturbance import SHORTEST_JUDGED_SECONDS
from unet_scaling.study.record_lines import Header

# Rounding alone, of gradients summed in another order, drove the losses of two trainings of the reference
# network apart by at most 7e-5 of their value in the first 32 steps, and by 4e-3 in the following 160;
# gradients in half precision by 1.3e-2. Workers that train alone differ by more from the first steps on.
FEW_STEPS = 32
LOSS_TOLERANCE_SHARE_OF_FEW_STEPS = 1e-3
LOSS_TOLERANCE_SHARE = 5e-2
# A loss near zero is compared with this share of the first epoch's.
LEAST_LOSS_SHARE = 0.1
# The sum of two numbers is the same in either order, that of three is not.
MOST_EXACT_WORKERS = 2
WORK = ("steps", "images", "warmup")
_OF_SCORES = ("weights_sha256", *COUNTS, "iou")


def check_work(study: Study) -> Check:
    """Check that both runs of a repeat had equal steps, images and warm-up in every epoch."""
    if not study.provenance_known or study.runs["images_per_epoch"].isna().any():
        return not_known(WITHOUT_RECORD)
    both = _beside(study, study.epochs, "epoch")
    faults = _faults(both, "epoch", {name: _differ(both, name) for name in WORK})
    if faults:
        return withhold_claims(first_points(faults.values()), faults)
    return yes(f"at equal worker counts every epoch had as many steps and {study.score.samples}")


def check_training(study: Study) -> Check:
    """Check that both runs of a repeat trained the same, as the project promises, whatever carries gradients.

    On CPUs and on up to MOST_EXACT_WORKERS, losses, weights and counts of every evaluation are equal to the
    last bit. Where sums are made in another order, or by kernels that are not deterministic (GPUs, other
    hosts, compiled code, gradients in half precision, synchronised norms, accumulated or resumed steps),
    losses differ by no more than rounding explains. The learning rate is equal everywhere.
    """
    gradients = [fact for fact in FACTS if fact.row == TRAINING]
    epochs = _beside(study, study.epochs, "epoch")
    scores = _beside(study, study.evaluations, "epochs")
    if epochs.empty:
        return not_known("no repeat has runs of both frameworks")
    loss = _differ(epochs, "loss") & (epochs["exact"] | ~_within_rounding(epochs))
    faults = _faults(epochs, "epoch", {"loss": loss, "learning_rate": _differ(epochs, "learning_rate")})
    evaluated = {name: _differ(scores, name) & scores["exact"] for name in _OF_SCORES}
    evaluated["images"] = _differ(scores, "images")
    faults = _faults(scores, "epochs", evaluated) | faults
    if faults:
        return withhold_claims(first_points(faults.values()), faults)
    if one_sided := known_by_one(gradients, study):
        return one_sided
    pairs = epochs.drop_duplicates(["run_native", "run_horovod"])
    exact = int(pairs["exact"].sum())
    equal = f"equal to the last bit in {exact} of {count(len(pairs), 'pair')} of runs"
    learned = NOTHING_LEARNED if study.is_emulated else f"losses, weights and counts are {equal}"
    bounded = ", losses within rounding in the others" if exact < len(pairs) and not study.is_emulated else ""
    return yes(f"{learned}{bounded}; learning rates are equal in every epoch")


def _beside(study: Study, table: pd.DataFrame, on: str) -> pd.DataFrame:
    """Return the rows of both runs of each repeat side by side; `exact` where all bits are to be equal."""
    runs = study.runs[["framework", "options", "knobs", "workers", "repeat", "run", "hosts"]]
    pairs = side_by_side(runs, ["options", "workers", "repeat"])
    deterministic = {run for run, header in study.headers.items() if _is_deterministic(header)}
    pairs["exact"] = (
        pairs["run_native"].isin(deterministic)
        & pairs["run_horovod"].isin(deterministic)
        & (pairs["hosts_native"] == pairs["hosts_horovod"])
    )
    own = table.assign(run=table["run"].astype(object))
    for name in ("native", "horovod"):
        keys = [f"run_{name}"] if name == "native" else [f"run_{name}", on]
        side = own.rename(columns={column: f"{column}_{name}" for column in own.columns if column != on})
        pairs = pairs.merge(side, on=keys)
    return pairs


def _is_deterministic(header: Header) -> bool:
    """Return whether another run of equal options on the same hosts gives the same numbers to a bit."""
    config = header.config
    training = config.training
    return (
        config.workers <= MOST_EXACT_WORKERS
        and all(worker.device == "cpu" for worker in header.workers)
        and header.resumed is None
        and training.accumulate == 1
        and not training.compile
        and training.gradient_compression == "none"
        and config.model.batch_norm != "sync"
    )


def _differ(both: pd.DataFrame, name: str) -> "pd.Series[bool]":
    """Return where both runs have another value; what both do not know is no difference."""
    native = both[f"{name}_native"]
    horovod = both[f"{name}_horovod"]
    return (native != horovod) & ~(native.isna() & horovod.isna())


def _within_rounding(both: pd.DataFrame) -> "pd.Series[bool]":
    """Return where the losses of an epoch differ by no more than rounding explains after so many steps."""
    by_pair = both.groupby(["run_native", "run_horovod"], sort=False)
    few = by_pair["steps_native"].cumsum() <= FEW_STEPS
    first = by_pair["loss_native"].transform("first")
    loss = both["loss_native"].clip(lower=LEAST_LOSS_SHARE * first)
    tolerance = few.map({True: LOSS_TOLERANCE_SHARE_OF_FEW_STEPS, False: LOSS_TOLERANCE_SHARE})
    return (both["loss_native"] - both["loss_horovod"]).abs() <= tolerance * loss


def _faults(both: pd.DataFrame, on: str, differing: Mapping[str, "pd.Series[bool]"]) -> dict[PointPair, str]:
    """Return the first difference at each point in words, with both runs and values."""
    faults: dict[PointPair, str] = {}
    for name, differs in differing.items():
        rows = both[differs.astype(bool)]
        for row in rows.drop_duplicates(PAIR).to_dict("records"):
            pair = pair_of([row[key] for key in PAIR])
            place = f"in epoch {row[on]}" if on == "epoch" else f"evaluated after epoch {row[on] - 1}"
            values = [
                f"{_shown(row[f'{name}_{arm}'])} in {row[f'run_{arm}']}" for arm in ("native", "horovod")
            ]
            words = f"{point_name(pair)} {name} {place} is {clean(', but '.join(values))}"
            pairs = rows.loc[(rows[PAIR] == [row[key] for key in PAIR]).all(axis="columns")]
            runs = len(pairs.drop_duplicates(["run_native", "run_horovod"]))
            faults.setdefault(pair, f"{words} ({count(runs, 'pair')} of runs differ)")
    return faults


def _shown(value: object) -> str:
    return value[:16] if isinstance(value, str) else f"{value:.10g}"


def check_repeats(study: Study) -> Check:
    """Check that all points have equally many repeats."""
    sizes = study.runs.groupby(POINT, sort=False).size()
    if sizes.empty:
        return not_known("no run can be used")
    fact = f"{repeats_text(sizes)} per point"
    return yes(fact) if sizes.nunique() == 1 else no(fact)


def check_quiet(study: Study) -> Check:
    """Check that neither other programs nor stalls disturbed launches that count for speed."""
    is_disturbed = study.runs["disturbed"] != ""
    pairs = disturbed_pairs(study)
    if pairs or len(kept_though_disturbed(study)):
        reasons = study.runs.loc[is_disturbed, "disturbed"]
        runs = f"{len(reasons)} of {count(len(study.runs), 'run')}"
        fact = f"{runs} disturbed, such as: {clean(reasons.iloc[0])}"
        return withhold_claims(fact, pairs) if pairs else no(fact)
    known = study.runs["busy_share"].notna()
    is_short = study.runs["epochs_used"] * study.runs["seconds_per_epoch"] < SHORTEST_JUDGED_SECONDS
    if one_sided := pairs_known_of_one(study.runs, study.runs.loc[known | is_short, "run"]):
        where = first_points(map(point_name, one_sided))
        return known_of_one(f"{where} only one framework's runs say what other processes took", one_sided)
    if not known.all():
        return not_known("not every run recorded what other processes took of its cores")
    most = 100 * study.runs.loc[~is_disturbed, "busy_share"].max()
    left_out = (
        f"; {count(is_disturbed.sum(), 'disturbed run')} left out of speed" if is_disturbed.any() else ""
    )
    return yes(f"other processes took at most {most:.1f} % of a worker's time{left_out}")

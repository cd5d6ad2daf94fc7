"""The checks of what compared runs did: steps and images of an epoch, repeats, disturbances."""

import pandas as pd

from analysis.findings.check import WITHOUT_RECORD, Check, PointPair, no, not_known, withhold_claims, yes
from analysis.findings.headers import joined
from analysis.findings.pairs import Sides, disturbed_pairs, first_points, point_name, sides
from analysis.statistics.timed import kept_though_disturbed
from analysis.study import POINT, Study
from analysis.text import clean, count, listed, repeats_text

# An epoch of less than half the other's images is other work: what an epoch costs once weighs twice.
LEAST_EQUAL_WORK = 0.5


def check_work(study: Study) -> Check:
    """Check that runs of equal options and workers had equally many steps and images in an epoch."""
    if not study.provenance_known or study.runs["images_per_epoch"].isna().any():
        return not_known(WITHOUT_RECORD)
    points = dict(sides(study.runs))
    apart = sorted(pair for pair, both in points.items() if _least_share(both, "steps_per_epoch") < 1)
    if apart:
        fact = first_points(
            f"{point_name(pair)} {_steps_of(points[pair], study.compared_names)}" for pair in apart
        )
        return withhold_claims(fact, apart)
    other_work = [
        pair for pair, both in points.items() if _least_share(both, "images_per_epoch") < LEAST_EQUAL_WORK
    ]
    return _check_samples(_largest_difference(study.runs), other_work, study.score.samples)


def _check_samples(difference: float, other_work: list[PointPair], samples: str) -> Check:
    if not difference:
        return yes(f"at equal worker counts every epoch had as many steps and {samples}")
    fact = f"at equal worker counts the {samples} of an epoch differ by up to {100 * difference:.1f} %"
    if other_work:
        return withhold_claims(f"{fact}: other work", other_work)
    return no(f"{fact}; throughput counts {samples}, so it stays comparable")


def _largest_difference(runs: pd.DataFrame) -> float:
    images = runs.groupby(["options", "workers"], sort=False)["images_per_epoch"]
    return float((1 - images.min() / images.max()).max())


def _least_share(both: Sides, column: str) -> float:
    """Return the smallest value over the largest, of the runs of both frameworks."""
    values = pd.concat([side[column] for side in both])
    return float(values.min() / values.max())


def _steps_of(both: Sides, names: tuple[str, str]) -> str:
    steps = [joined(f"{number:,.0f}" for number in sorted(side["steps_per_epoch"].unique())) for side in both]
    named = [f"{numbers} in {name}" for numbers, name in zip(steps, names, strict=True)]
    return f"the steps of an epoch are {listed(named)}"


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
        fact = _disturbed_of(study.runs, study.runs.loc[is_disturbed, "disturbed"])
        return withhold_claims(fact, pairs) if pairs else no(fact)
    if study.runs["busy_share"].isna().any():
        return not_known("not every run recorded what other processes took of its cores")
    most = 100 * study.runs.loc[~is_disturbed, "busy_share"].max()
    left_out = (
        f"; {count(is_disturbed.sum(), 'disturbed run')} left out of speed" if is_disturbed.any() else ""
    )
    return yes(f"other processes took at most {most:.1f} % of a worker's time{left_out}")


def _disturbed_of(runs: pd.DataFrame, reasons: "pd.Series[str]") -> str:
    return f"{len(reasons)} of {count(len(runs), 'run')} disturbed, such as: {clean(reasons.iloc[0])}"

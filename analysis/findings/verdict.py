"""Which framework is faster, in one sentence that claims no more than the runs support."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import pandas as pd

from analysis.contrast import NOT_ENOUGH, medians_disagree
from analysis.options import is_knob
from analysis.pairs import PAIR, PointPair, pair_of
from analysis.study import COMPARED, NAMES, Study
from analysis.text import Row
from analysis.words import lines
from unet_scaling.study.config import Framework

_SERIES = ["framework", "options", "native_knobs", "knobs"]
LEAVING = "leaving Horovod"


@dataclass(frozen=True)
class Verdict:
    """A sentence about the runs that have these options; `knobs` name the two compared series.

    `outcome` is that of the comparison behind it, "" where there is none.
    """

    options: str
    knobs: str
    sentence: str
    outcome: str = ""
    pair: PointPair | None = None

    def __str__(self) -> str:
        compared = "; ".join(part for part in (self.options, self.knobs) if part)
        return f"[{compared}] {self.sentence}" if compared else self.sentence


def verdicts(study: Study, comparisons: pd.DataFrame) -> Iterator[Verdict]:
    """Yield one verdict for each set of options, and for each pair of knob settings within it.

    It is about the largest worker count that both have, the last of `pair`; `comparisons` (see contrast.py)
    has them all. On further frameworks `wrapper_verdicts` has the verdicts.
    """
    series = PAIR[:-1]
    largest = comparisons.sort_values("workers", kind="stable").groupby(series, sort=False).tail(1)
    decided = {tuple(row[name] for name in series): row for row in largest.to_dict("records")}
    for label, runs in study.runs.groupby("options", sort=False):
        options = str(label)
        native, horovod = (runs.loc[runs["framework"] == name, "knobs"].unique() for name in COMPARED)
        if not len(horovod) and study.wrappers:
            continue
        if not (len(native) and len(horovod)) and set(COMPARED) <= study.names.keys():
            yield Verdict(options, "", _unmatched(study, runs, COMPARED[bool(len(native))]))
        for knobs in product(native, horovod):
            compared = " against ".join(knob for knob in knobs if knob)
            yield _of_series(study, decided.get((options, *knobs)), options, compared)


def _of_series(study: Study, row: Row | None, options: str, compared: str) -> Verdict:
    if row is None:
        return Verdict(options, compared, "no verdict: the frameworks have no worker count in common")
    disagree = row["outcome"] != NOT_ENOUGH and medians_disagree(row)
    sentence = _said(study, row=row, disagree=disagree)
    return Verdict(options, compared, sentence, str(row["outcome"]), pair_of([row[name] for name in PAIR]))


def _said(study: Study, **values: object) -> str:
    (sentence,) = lines("verdict", study=study, **values)
    return sentence


def _unmatched(study: Study, runs: pd.DataFrame, missing: Framework) -> str:
    """Return why these runs of equal options have no usable run of the other framework to compare with.

    Where that framework has runs of other options, the options in which those nearest to these differ are
    named with both values.
    """
    others = study.runs[study.runs["framework"] == missing]
    axes = [axis for axis in study.axes if not is_knob(axis)]
    here = runs.iloc[0]
    differing = [
        [(axis, here[axis], other[axis]) for axis in axes if other[axis] != here[axis]]
        for other in others[axes].drop_duplicates().to_dict("records")
    ]
    left_out = study.left_out[study.left_out["framework"] == missing].to_dict("records")
    nearest = min(differing, key=len) if axes and differing else []
    return _said(study, row=None, missing=study.names[missing], nearest=nearest, left_out=left_out)


def wrapper_verdicts(study: Study, table: pd.DataFrame) -> Iterator[Verdict]:
    """Yield one verdict for each series compared with native DDP, at the most workers with enough repeats.

    `table` is `contrast.each_against_native`; without rows there is none.
    """
    decided = table[table["outcome"] != NOT_ENOUGH].sort_values("workers", kind="stable")
    for row in decided.groupby(_SERIES, sort=False).tail(1).to_dict("records"):
        name = LEAVING if row["framework"] == COMPARED[1] else NAMES[row["framework"]]
        knobs = "; ".join(filter(None, (name, row["native_knobs"], row["knobs"])))
        (sentence,) = lines("wrapper", row=row, score=study.score)
        yield Verdict(row["options"], knobs, sentence, row["outcome"])

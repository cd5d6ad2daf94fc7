"""How many repeats a study has: a fixed number, or as many as an interval needs; and how they were added.

`repeats = "until 3 %, at most 20"` asks for more until the interval of native DDP over Horovod is that narrow
at every worker count. `repeats.json` in the folder of a study holds after how many repeats its results were
looked at before more were added, and by whom: intervals of such a study need a higher confidence
(docs/background/statistics.md).
"""

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, NonNegativeInt, PositiveInt

from unet_scaling.base.errors import UserError, reason_of
from unet_scaling.base.files import read_json_with_checksum, write_json_with_checksum
from unet_scaling.base.validation import StrictModel, validated

REPEATS_NAME = "repeats.json"
# The same name as in study_file.py, which imports this module. The file repeats what repeats.json says.
_STUDY_NAME = "study.json"
HISTORY_KEY = "repeat_history"
# The fewest that have an interval, and so the first look.
FEWEST_ADAPTIVE_REPEATS = 3
# With 2 % of noise of a launch and one worker count, an interval of 3 % takes about 11.
MOST_ADAPTIVE_REPEATS = 20
# More than any study can afford.
LARGEST_CAP_REPEATS = 10_000
UNTIL = re.compile(r"^until (\d+(?:\.\d+)?) ?%(?:, at most (\d+))?$")
PRECISION_WORDS = 'a number such as 5, "until 3 %", or "until 3 %, at most 20"'
# For all comparisons of a study together, where the number of repeats does not depend on the results.
FIXED_SIGNIFICANCE = 0.05
# Where it depends on them: with looks from 3 repeats on, intervals of 98 % hold the truth in at least
# 95 % of all studies, those of 95 % in as few as 90 % (`python -m benchmarks.coverage --table adaptive`).
ADAPTIVE_SIGNIFICANCE = 0.02
# Before the repeats that were asked for are complete, as of a report that is made while a study grows: so 5 %
# of studies of 10 or 20 repeats without a difference have one at some look from 3 repeats on, the last one at
# 5 % included; else 14 and 18 % (`python -m benchmarks.coverage --table early`; after Haybittle and Peto).
EARLY_SIGNIFICANCE = 0.01


class Precision(StrictModel):
    """Add repeats until half the width of each interval, over its ratio, is this share; at most so many."""

    half_width: float = Field(gt=0, lt=1)
    most: int = Field(MOST_ADAPTIVE_REPEATS, ge=FEWEST_ADAPTIVE_REPEATS, le=LARGEST_CAP_REPEATS)

    def __str__(self) -> str:
        return f"until {100 * self.half_width:g} %, at most {self.most}"


class RepeatHistory(StrictModel):
    """The content of repeats.json: how a study came to its repeats, after its results were looked at.

    totals    the first total, and the one after each time that repeats were added
    by_hand   how often the user asked for more, by --more-repeats or by a change of the study
    adaptive  whether the study has ever added repeats "until" its intervals are narrow
    """

    totals: list[PositiveInt] = Field([])
    by_hand: NonNegativeInt
    adaptive: bool = False


def parse_precision(text: str) -> dict[str, object]:
    """Return the fields of the Precision that a study file asks for. Raises ValueError."""
    found = UNTIL.match(text.strip())
    if found is None:
        raise ValueError(f"repeats: found {text!r}; allowed: {PRECISION_WORDS}")
    width, most = found.groups()
    return {"half_width": float(width) / 100, "most": int(most or MOST_ADAPTIVE_REPEATS)}


def read_history(study_folder: Path) -> RepeatHistory:
    """Return how repeats were added to a study; an empty history where none were. Raises UserError."""
    path = study_folder / REPEATS_NAME
    try:
        if not path.exists():
            path = study_folder / _STUDY_NAME
        content = read_json_with_checksum(path)
        if path.name == _STUDY_NAME:
            content = content.get(HISTORY_KEY, {"by_hand": 0}) if isinstance(content, dict) else {}
        return validated(RepeatHistory, content, str(path))
    except (FileNotFoundError, NotADirectoryError):
        return RepeatHistory(by_hand=0)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read: {reason_of(error)}; restore it: it says how repeats were added"
        ) from None


def note_look(study_folder: Path, before: int, total: int, *, by_hand: bool, adaptive: bool) -> None:
    """Note that the results of `before` repeats were looked at, and the study then given `total`.

    `by_hand`: by the user; `adaptive`: the study is, or was, one that adds repeats by itself.
    """
    history = read_history(study_folder)
    totals = history.totals or [before]
    noted = RepeatHistory(
        totals=totals if totals[-1] == total else [*totals, total],
        by_hand=history.by_hand + by_hand,
        adaptive=adaptive or history.adaptive,
    )
    write_json_with_checksum(study_folder / REPEATS_NAME, noted.model_dump(mode="json"))


@dataclass(frozen=True)
class StoppingRule:
    """What decided the number of repeats: the significance that it leaves, and what a reader has to know."""

    significance: float
    notes: tuple[str, ...] = ()


def stopping_rule(
    until: Precision | None, history: RepeatHistory, *, early: bool = False, further: bool = False
) -> StoppingRule:
    """Return the rule by which a study got its repeats.

    Each time that the user asked for more is one more look at the results: they share the significance
    (Bonferroni). `early`: repeats that were asked for are to come; looks of an adaptive study are counted
    already. `further`: there are repeats that nothing asks for, as after one such time.
    """
    adaptive = until is not None or history.adaptive
    reasons = [f"repeats were added {until}"] if until else []
    if history.adaptive and not until:
        reasons.append("repeats were added until intervals were narrow, before the study gave a number")
    if history.by_hand:
        totals = ", ".join(map(str, history.totals))
        reasons.append(f"the user asked for more after the results had been there ({totals} in all)")
    if further:
        reasons.append(f"there are repeats that {REPEATS_NAME} does not tell of")
    significance = ADAPTIVE_SIGNIFICANCE if adaptive else FIXED_SIGNIFICANCE
    if early and not adaptive:
        significance = EARLY_SIGNIFICANCE
        reasons.append("not all repeats that were asked for are there")
    significance /= 1 + history.by_hand + further
    if not reasons:
        return StoppingRule(significance)
    confidence = f"the intervals of the ratio are of {100 * (1 - significance):.3g} % confidence"
    note = f"{' and '.join(reasons)}: {confidence}, to hold the truth in 95 % of studies that end so"
    return StoppingRule(significance, (note,))

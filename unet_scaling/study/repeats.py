"""How many repeats a study has: a fixed number, or as many as an interval needs; and how they were added.

`repeats = "until 3 %, at most 20"` asks for more until the interval of native DDP over Horovod is that narrow
at every worker count. `repeats.json` in the folder of a study holds the totals after which its results were
looked at before more were added: intervals of such a study need a higher confidence (docs/statistics.md).

Imported on login nodes and by the analysis: needs pydantic, but neither torch nor pandas.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, PositiveInt

from unet_scaling.study.errors import UserError
from unet_scaling.study.files import read_json_with_checksum, write_json_with_checksum
from unet_scaling.study.validation import StrictModel, validated

REPEATS_NAME = "repeats.json"
# The fewest that have an interval, and so the first look.
FEWEST_ADAPTIVE_REPEATS = 3
# At 2 % of noise of a launch and one worker count, 3 % take about 11.
MOST_ADAPTIVE_REPEATS = 20
# More than any study can afford.
LARGEST_CAP_REPEATS = 10_000
UNTIL = re.compile(r"^until (\d+(?:\.\d+)?) ?%(?:, at most (\d+))?$")
PRECISION_WORDS = 'a number such as 5, "until 3 %", or "until 3 %, at most 20"'
# Of all comparisons of a study together, where the number of repeats does not depend on the results.
FIXED_SIGNIFICANCE = 0.05
# Where it does: with looks from 3 repeats on, intervals of 98 % hold the truth in at least 95 % of all
# studies, and those of 95 % in as few as 90 % (`python -m benchmarks.coverage --table adaptive`).
ADAPTIVE_SIGNIFICANCE = 0.02


class Precision(StrictModel):
    """Add repeats until half the width of each interval, over its ratio, is this share; at most so many."""

    half_width: float = Field(gt=0, lt=1)
    most: int = Field(MOST_ADAPTIVE_REPEATS, ge=FEWEST_ADAPTIVE_REPEATS, le=LARGEST_CAP_REPEATS)

    def __str__(self) -> str:
        return f"until {100 * self.half_width:g} %, at most {self.most}"


class RepeatTotals(StrictModel):
    """The content of repeats.json: the first total, and the one after each time that repeats were added."""

    totals: list[PositiveInt] = Field(min_length=1)


def parse_precision(text: str) -> dict[str, object]:
    """Return the fields of the Precision that a study file asks for. Raises ValueError."""
    found = UNTIL.match(text.strip())
    if found is None:
        raise ValueError(f"repeats: found {text!r}; allowed: {PRECISION_WORDS}")
    width, most = found.groups()
    return {"half_width": float(width) / 100, "most": int(most or MOST_ADAPTIVE_REPEATS)}


def read_totals(study_folder: Path) -> list[int]:
    """Return the totals at which repeats were added; empty where none were. Raises UserError."""
    path = study_folder / REPEATS_NAME
    try:
        return validated(RepeatTotals, read_json_with_checksum(path), str(path)).totals
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read: {error}; restore it: it says how repeats were added"
        ) from None


def add_total(study_folder: Path, before: int, total: int) -> None:
    """Note that the results of `before` repeats were looked at, and the study then given `total`."""
    totals = read_totals(study_folder) or [before]
    content = RepeatTotals(totals=[*totals, total])
    write_json_with_checksum(study_folder / REPEATS_NAME, content.model_dump(mode="json"))


@dataclass(frozen=True)
class StoppingRule:
    """What decided the number of repeats: the significance that it leaves, and what a reader has to know."""

    significance: float
    notes: tuple[str, ...] = ()


def stopping_rule(until: Precision | None, totals: Sequence[int]) -> StoppingRule:
    """Return the rule by which a study got its repeats; `totals` are those of repeats.json.

    Each time that the user added repeats is one more look at the results: they share the significance
    (Bonferroni).
    """
    if until:
        note = f"repeats were added {until}: {_confidence_note(ADAPTIVE_SIGNIFICANCE)}"
        return StoppingRule(ADAPTIVE_SIGNIFICANCE, (note,))
    if len(totals) < 2:
        return StoppingRule(FIXED_SIGNIFICANCE)
    shared = FIXED_SIGNIFICANCE / len(totals)
    looks = ", ".join(map(str, totals))
    note = f"repeats were added after the results had been there ({looks} in all): {_confidence_note(shared)}"
    return StoppingRule(shared, (note,))


def _confidence_note(significance: float) -> str:
    return (
        f"the intervals of the ratio are of {100 * (1 - significance):.3g} % confidence, so that they hold "
        "the truth in 95 % of studies that end so"
    )

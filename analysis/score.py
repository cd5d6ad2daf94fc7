"""The score by which a study judges what was learned: its name in tables, and the words for it."""

import re
from dataclasses import dataclass
from pathlib import Path

from unet_scaling.study.options import CRITERIA_OF_OWN_TASK
from unet_scaling.study.texts import score_title

# The score of the built-in task, by which columns, files and criteria are named in the code.
BUILT_IN_SCORE = "iou"
# Keys of [criteria] -> what they are called where the score is another one.
_CRITERIA = {built_in: own for own, built_in in CRITERIA_OF_OWN_TASK.items()}
# Columns of the built-in task alone.
BUILT_IN_COLUMNS = frozenset(
    ("dice", "image_iou", "true_positive", "false_positive", "false_negative", "true_negative")
)
# What columns, files, figures and keys of a report are called besides those named for the score; written by
# python -m analysis.report.column_lists --write.
TAKEN_NAMES_FILE = Path(__file__).with_name("taken_names.txt")
TAKEN_NAMES = frozenset(TAKEN_NAMES_FILE.read_text().split())
# What such a name may end in.
SCORE_ENDINGS = re.compile(r"_(low|high|a|b)$")
_NAMED_FOR_IOU = re.compile(rf"(?<![a-z]){BUILT_IN_SCORE}(?![a-z])")


@dataclass(frozen=True)
class Score:
    """The score that is judged.

    `name` is that of the records, and `sample` what the training and test sets consist of. In all tables of
    the analysis it is the column `iou`; `key` gives the names of columns and files as they are written.
    """

    name: str = BUILT_IN_SCORE
    sample: str = "image"

    @property
    def title(self) -> str:
        """What it is called within a sentence, "IoU" or "top accuracy"."""
        return score_title(self.name)

    @property
    def heading(self) -> str:
        """What it is called at the beginning of a sentence, "IoU" or "Top accuracy"."""
        return self.title[:1].upper() + self.title[1:]

    @property
    def with_article(self) -> str:
        """One value of it within a sentence, "an IoU" or "a top accuracy"."""
        return f"{'an' if self.title[0].lower() in 'aeiou' else 'a'} {self.title}"

    @property
    def column(self) -> str:
        """Its column in outputs: its name, or "loss_score" where "loss" is the name of something else."""
        taken = {self.name, SCORE_ENDINGS.sub("", self.name)} & TAKEN_NAMES
        return f"{self.name}_score" if taken else self.name

    def has(self, column: str) -> bool:
        """Return whether tables have this column where this score is judged."""
        return self.name == BUILT_IN_SCORE or column not in BUILT_IN_COLUMNS

    @property
    def samples(self) -> str:
        """The samples of a data set, "images" or "samples"."""
        return f"{self.sample}s"

    def key(self, name: str) -> str:
        """Return what a column, file, section or criterion that is named for IoU is called in outputs."""
        if self.name == BUILT_IN_SCORE:
            return name
        return _CRITERIA.get(name) or _NAMED_FOR_IOU.sub(self.column, name)

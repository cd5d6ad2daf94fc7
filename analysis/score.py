"""The score by which a study judges what was learned: its name in tables, and the words for it."""

import re
from dataclasses import dataclass

from unet_scaling.study.options import CRITERIA_OF_OWN_TASK
from unet_scaling.study.texts import score_title

# The score of the built-in task, by which columns, files and criteria are named in the code.
BUILT_IN_SCORE = "iou"
# Keys of [criteria] -> what they are called where the score is another one.
_CRITERIA = {built_in: own for own, built_in in CRITERIA_OF_OWN_TASK.items()}
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
    def samples(self) -> str:
        """The samples of a data set, "images" or "samples"."""
        return f"{self.sample}s"

    def key(self, name: str) -> str:
        """Return what a column, file, section or criterion that is named for IoU is called in outputs."""
        if self.name == BUILT_IN_SCORE:
            return name
        return _CRITERIA.get(name) or _NAMED_FOR_IOU.sub(self.name, name)

"""The words for the score of a study, put in where a report is written.

All tables and texts of the analysis are made for the built-in task: its score is the column `iou`, and IoU in
sentences. Of a study whose task a file defines, both become the name of that score as the files, the figures
and the console are written, as a translation would; names that the study gives things stay as they are.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from analysis.study import BUILT_IN_SCORE, Study
from unet_scaling.study.options import CRITERIA_OF_OWN_TASK
from unet_scaling.study.texts import score_title

# Keys of a study file's [criteria], which a task that a file defines may call so (options.py).
CRITERIA = {old: new for new, old in CRITERIA_OF_OWN_TASK.items()}
BINARY = (".png", ".parquet")
_WORDS = re.compile(
    r"(?<![A-Za-z])(?:(?P<key>iou_margin|target_iou)|(?P<plural>IoUs)|(?P<title>IoU)|(?P<name>iou))(?![A-Za-z])"
    r"|(?<![\w/.<\",-])image(?=s?(?!\w|/|\.\w|=))"
)


@dataclass(frozen=True)
class ScoreWords:
    """The name of the score in the records, and the names given by the study that hold one of our words."""

    name: str
    kept: tuple[str, ...] = ()

    def text(self, text: str) -> str:
        """Return a text, or the content of a text file, in the words of the study's task."""
        if self.name == BUILT_IN_SCORE:
            return text
        if not self.kept:
            return _WORDS.sub(self._word, text)
        parts = re.split(f"({'|'.join(map(re.escape, self.kept))})", text)
        return "".join(part if part in self.kept else _WORDS.sub(self._word, part) for part in parts)

    def files(self, contents: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return files, by their names, in the words of the study's task."""
        return {
            self.text(name): content if name.endswith(BINARY) else self.text(content.decode()).encode()
            for name, content in contents.items()
        }

    def _word(self, found: re.Match[str]) -> str:
        kind = found.lastgroup
        if kind == "key":
            return CRITERIA[found[0]]
        words = {"plural": f"values of {score_title(self.name)}", "title": score_title(self.name)}
        return words.get(kind, self.name) if kind else "sample"


def score_words(study: Study) -> ScoreWords:
    """Return the words for the score of a study."""
    return ScoreWords(study.score_name, tuple(sorted(_given_names(study), key=len, reverse=True)))


def _given_names(study: Study) -> Collection[str]:
    """Return the names of runs, options and values that hold one of our words."""
    return {name for name in _names(study) if _WORDS.search(name)}


def _names(study: Study) -> Iterator[str]:
    yield study.name
    for part in filter(None, (study, study.played)):
        yield from part.runs["run"]
        yield from part.left_out["run"]
        yield from part.runs["options"]
        for header in part.headers.values():
            yield from header.config.task.options

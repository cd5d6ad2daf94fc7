"""All that the played runs of a study say, before any of it is written."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from analysis.played.agreement import agreement_notes
from analysis.played.best_options import kept_over_options
from analysis.played.kept import KeptIou, kept_by_options, kept_ious
from analysis.played.plan import plan_table
from analysis.played.points import played_table
from analysis.study import Study


@dataclass(frozen=True)
class PlayedQuality:
    """Tables and findings of the played runs; all are empty where a study has none."""

    study: Study
    points: pd.DataFrame
    plan: pd.DataFrame

    @cached_property
    def kept(self) -> list[KeptIou]:
        """Up to how many workers each series keeps the IoU."""
        return kept_ious(self.points)

    @cached_property
    def sentences(self) -> dict[str, str]:
        """The finding of each set of options."""
        return kept_by_options(self.kept, self.study)

    @cached_property
    def compared_options(self) -> str:
        """Which set of options keeps the IoU up to the most workers; empty for one set."""
        return kept_over_options(self.kept, self.study)

    @cached_property
    def notes(self) -> list[str]:
        """What to know beside the played runs."""
        return list(agreement_notes(self.study))


def played_quality(study: Study, points: pd.DataFrame) -> PlayedQuality:
    """Return what the played runs of a study say; `points` are those of `speedup.summarise`."""
    return PlayedQuality(study, played_table(study), plan_table(study, points))

"""Everything that a report says of saliency maps; empty for a study without any."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from analysis.saliency.curves import curve_table
from analysis.saliency.faithful import faithful_table, image_table
from analysis.saliency.sameness import sameness
from analysis.saliency.sentences import faithful_sentences, images_without_maps, untimed_notes, warnings
from analysis.saliency.speeds import maps_study, saliency_points, saliency_runs
from analysis.study import Study


@dataclass(frozen=True)
class SaliencyFindings:
    """The tables and sentences on saliency maps; `maps` is the study whose throughput is maps per second."""

    study: Study
    maps: Study
    runs: pd.DataFrame
    points: pd.DataFrame
    faithful: pd.DataFrame

    @property
    def is_empty(self) -> bool:
        """Return whether no run has made maps."""
        return self.runs.empty

    @cached_property
    def images(self) -> pd.DataFrame:
        """Return the maps of every image of every run."""
        return image_table(self.study)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Return the deletion and insertion curves, the mean over images."""
        return curve_table(self.study)

    @cached_property
    def sentences(self) -> list[str]:
        """Return what the maps show; the first is the most important one."""
        return [] if self.is_empty else [*faithful_sentences(self.faithful), *sameness(self.study)]

    @cached_property
    def warnings(self) -> list[str]:
        """Return what speaks against trusting them."""
        without = images_without_maps(self.study)
        return [*warnings(self.faithful), *without, *untimed_notes(self.runs)]


def saliency_findings(study: Study) -> SaliencyFindings:
    """Return what a study shows of saliency maps. Pure: the manifests have been read."""
    study = study.with_maps
    runs = saliency_runs(study)
    maps = maps_study(study, runs)
    return SaliencyFindings(study, maps, runs, saliency_points(maps, runs), faithful_table(study))

"""The step-time model of a series, fitted on its smallest counts, and what it says of another count."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analysis.arrays import Array
from analysis.prediction.notes import UNSEEN_LINK
from analysis.prediction.scaling_laws import Counts
from analysis.prediction.series import Series
from analysis.prediction.step_time import EDGES, StepTime, fit_step_time
from analysis.stats import UNKNOWN_INTERVAL, Interval


@dataclass(frozen=True)
class Forecast:
    """Seconds of a step at one count, and draws of what may be measured, [DRAWS]; `why` says why of none."""

    seconds: float
    draws: Array
    why: str = ""

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the seconds that would be measured; unknown without draws."""
        if not len(self.draws):
            return UNKNOWN_INTERVAL
        low, high = np.quantile(self.draws, EDGES)
        return min(float(low), self.seconds), max(float(high), self.seconds)


@dataclass(frozen=True)
class Predictor:
    """The model of a series, fitted on its `size` smallest counts."""

    series: Series
    size: int

    @property
    def counts(self) -> Counts:
        """The counts known."""
        return self.series.counts[: self.size]

    @cached_property
    def fitted(self) -> StepTime:
        """The sum of terms."""
        return fit_step_time(self.counts, self.series.launches[: self.size])

    def at(self, at: Counts) -> Forecast:
        """Return what the model says of one count; no interval where it uses a link that no point has."""
        seconds = float(self.fitted.seconds(at)[0])
        if (self.counts.nodes == 1).all() and at.nodes[0] > 1:
            return Forecast(seconds, np.empty(0), UNSEEN_LINK)
        return Forecast(seconds, self.fitted.draws(at))

"""The timeline model of the step time: a step on 1 worker, the slowest of N workers, and exposed messages.

T(N) = T(1) + expected slowest of N steps - mean step + mean exposed time (timeline.py). Its interval carries
the launches on 1 worker, the steps of the profile, the links timed, and how far it was off at the worker
counts that are known: to these nothing is fitted.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analysis.arrays import Array
from analysis.loading.ping_pongs import Link
from analysis.prediction.scaling_laws import Counts
from analysis.prediction.step_time import DRAWS, LARGEST_NOISE, launch_variance, resampled_medians
from analysis.prediction.timeline import expected_slowest
from analysis.prediction.timeline_evidence import TimelineEvidence, median_link
from analysis.statistics.intervals import FEWEST_REPEATS, RESAMPLING_SEED

# Links drawn anew: enough for a spread, few enough that Horovod's cycles stay cheap.
LINK_DRAWS = 25


@dataclass(frozen=True)
class StepTimeline:
    """The timeline of a series, known at these counts; `launches` are the seconds of a step at each."""

    evidence: TimelineEvidence
    counts: Counts
    launches: tuple[Array, ...]

    def covers(self, at: Counts) -> bool:
        """Return whether the link of one count was timed, and the model held against a measured count."""
        return bool(self._links(at)) and len(self._misfits) > 0

    def seconds(self, at: Counts) -> float:
        """Return the seconds of a step at one count."""
        workers = int(at.workers[0])
        exposed = self._exposed(workers, median_link(self._links(at)))
        work = self.evidence.work_seconds
        waiting = float(expected_slowest(work, workers)) - work.mean()
        return float(np.median(self.launches[0]) + waiting + exposed.mean())

    def draws(self, at: Counts) -> Array:
        """Return seconds that may be measured at one count, [DRAWS]."""
        random = np.random.default_rng(RESAMPLING_SEED)
        workers = int(at.workers[0])
        exposed = np.stack([self._exposed(workers, link) for link in _drawn(self._links(at), random)])
        steps = random.integers(exposed.shape[1], size=(DRAWS, exposed.shape[1]))
        work = self.evidence.work_seconds[steps]
        waiting = expected_slowest(work, workers) - work.mean(axis=1)
        link = random.integers(len(exposed), size=DRAWS)
        alone = resampled_medians(self.launches[0], random)
        seconds = alone + waiting + exposed[link[:, None], steps].mean(axis=1)
        return np.asarray(seconds * np.exp(self._noise(random)))

    def _noise(self, random: np.random.Generator) -> Array:
        """Return logarithms of measured over modelled seconds: the misfit, uncertain as of few counts.

        What launches vary by is part of a misfit already, and is drawn besides only where it explains more.
        """
        known = len(self._misfits)
        medians = [resampled_medians(times, random) for times in self.launches]
        variance = launch_variance(np.stack(medians, axis=1), self.launches)
        square = float(np.mean(self._misfits**2))
        unexplained = np.maximum(0.0, square - variance) * known / random.chisquare(known, DRAWS)
        scale = np.sqrt(np.minimum(unexplained, LARGEST_NOISE**2) + variance)
        return np.asarray(scale * random.standard_normal(DRAWS))

    @cached_property
    def _misfits(self) -> Array:
        """Logarithms of measured over modelled seconds at every known count of several workers."""
        known = [(self.counts[place : place + 1], times) for place, times in enumerate(self.launches)][1:]
        return np.array(
            [np.log(np.median(times) / self.seconds(at)) for at, times in known if self._links(at)]
        )

    def _links(self, at: Counts) -> list[Link]:
        return self.evidence.links_for(float(self.counts.workers[-1]), float(at.nodes[0]))

    def _exposed(self, workers: int, link: Link) -> Array:
        return self.evidence.schedule.exposed_seconds(self.evidence.gradients, workers, link)


def _drawn(links: list[Link], random: np.random.Generator) -> list[Link]:
    """Return links as they may have been timed: medians of links drawn anew, where there are enough."""
    if len(links) < FEWEST_REPEATS:
        return [median_link(links)]
    chosen = random.integers(len(links), size=(LINK_DRAWS, len(links)))
    return [median_link([links[place] for place in row]) for row in chosen]

"""Foresee how long runs take, by the complete runs of the same points."""

from collections.abc import Iterable, Sequence
from statistics import mean, median
from typing import NamedTuple

from unet_scaling.study.config import RunConfig
from unet_scaling.study.measurements import STARTUP_COLUMNS
from unet_scaling.study.record import Record
from unet_scaling.study.run_state import RecordedRun
from unet_scaling.study.texts import duration

# Of a task that a file defines.
BY_ITS_OWN_RUNS = "for a task of its own, complete runs of the same points tell it, and no estimate"


class Foreseen(NamedTuple):
    """How long runs will take by the complete ones, and whether these tell it of all of them."""

    text: str
    of_all: bool


class KnownSeconds:
    """The seconds that complete runs took, by point."""

    def __init__(self) -> None:
        self._known: dict[str, list[float]] = {}

    def learn(self, run: RecordedRun) -> None:
        """Note how long a run took; one that is not complete tells nothing."""
        if run.record and run.state.is_complete:
            self._known.setdefault(point_of(run.config), []).append(recorded_seconds(run.record))

    def of_point(self, config: RunConfig) -> float | None:
        """Return the median seconds of the complete runs of this point; None where there are none."""
        seconds = self._known.get(point_of(config))
        return median(seconds) if seconds else None

    def foreseen(self, configs: Iterable[RunConfig], otherwise: float | None = None) -> float | None:
        """Return the seconds that these runs will take together; None where nothing is known.

        A run whose point has no complete one takes the mean of the points that have, or else `otherwise`.
        """
        if self._known:
            otherwise = mean(map(median, self._known.values()))
        seconds = [self.of_point(config) or otherwise for config in configs]
        known = [value for value in seconds if value is not None]
        return sum(known) if len(known) == len(seconds) else None

    def foreseen_text(self, configs: Sequence[RunConfig]) -> Foreseen:
        """Return how long these runs will take, of those whose points have complete ones."""
        known = [config for config in configs if self.of_point(config)]
        missing = len(configs) - len(known)
        if not known:
            own_task = any(config.has_own_task for config in configs)
            advice = BY_ITS_OWN_RUNS if own_task else "--probe estimates it"
            text = f"how long that takes is not known: no run of these points is complete; {advice}"
            return Foreseen(text, False)
        text = f"about {duration(self.foreseen(known) or 0.0)} by the complete runs of the same points"
        if missing:
            text += f"; not known for {missing} of them, whose points have none"
        return Foreseen(text, not missing)


def recorded_seconds(record: Record) -> float:
    """Return the seconds of a run from the start of its processes, by its record."""
    startup: Iterable[Sequence[float]] = (
        [getattr(record.startup, column) for column in STARTUP_COLUMNS] if record.startup else []
    )
    trained = sum(epoch.seconds for epoch in record.epochs)
    evaluated = sum(result.seconds for result in record.results)
    made = record.saliency
    explained = made.seconds + made.check_seconds if made else 0.0
    return sum(max(seconds) for seconds in startup) + trained + evaluated + explained


def point_of(config: RunConfig) -> str:
    """Return what all repeats of a point share: the name of its runs without the repeat."""
    return config.run.removesuffix(f"-r{config.repeat}")

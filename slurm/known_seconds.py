"""Foresee how long runs take, by the complete runs of the same points."""

from collections.abc import Iterable, Sequence
from statistics import mean, median

from unet_scaling.study.config import RunConfig
from unet_scaling.study.measurements import STARTUP_COLUMNS
from unet_scaling.study.record import Record
from unet_scaling.study.run_state import RecordedRun
from unet_scaling.study.texts import duration


class KnownSeconds:
    """The seconds that complete runs took, by point."""

    def __init__(self) -> None:
        self._known: dict[str, list[float]] = {}

    def learn(self, run: RecordedRun) -> None:
        """Note how long a run took; one that is not complete tells nothing."""
        if run.record and run.state.is_complete:
            self._known.setdefault(_point(run.config), []).append(recorded_seconds(run.record))

    def of_point(self, config: RunConfig) -> float | None:
        """Return the median seconds of the complete runs of this point; None where there are none."""
        seconds = self._known.get(_point(config))
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

    def foreseen_text(self, configs: Sequence[RunConfig]) -> str:
        """Return how long these runs will take, of those whose points have complete ones."""
        known = [config for config in configs if self.of_point(config)]
        if not known:
            return (
                "how long that takes is not known: no run of these points is complete; "
                "--probe estimates it in about 20 s"
            )
        seconds = self.foreseen(known) or 0.0
        text = f"about {duration(seconds)} by the complete runs of the same points"
        missing = len(configs) - len(known)
        return f"{text}; not known for {missing} of them, whose points have none" if missing else text


def recorded_seconds(record: Record) -> float:
    """Return the seconds of a run from the start of its processes, by its record."""
    startup: Iterable[Sequence[float]] = (
        [getattr(record.startup, column) for column in STARTUP_COLUMNS] if record.startup else []
    )
    trained = sum(epoch.seconds for epoch in record.epochs)
    evaluated = sum(result.seconds for result in record.results)
    return sum(max(seconds) for seconds in startup) + trained + evaluated


def _point(config: RunConfig) -> str:
    """Return what all repeats of a point share: the name of its runs without the repeat."""
    return config.run.removesuffix(f"-r{config.repeat}")

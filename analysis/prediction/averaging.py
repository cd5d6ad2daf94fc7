"""The average of the step-time models of a series, each as heavy as its skill at held-out counts allows.

Weights are those of Bates and Granger (1969) without correlations: one over the mean squared error. Where no
count can be held out, it is the error that a model's own draws expect, and an allowance for the rest. The
average is the weighted geometric mean of the models; its interval is that of a draw from one of them, taken
as often as its weight says, so that models which disagree make it wide.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from analysis.arrays import Array
from analysis.prediction.notes import UNSEEN_LINK
from analysis.prediction.scaling_laws import Counts
from analysis.prediction.series import FEWEST_COUNTS, Series
from analysis.prediction.step_time import DRAWS, EDGES, StepTime, fit_step_time
from analysis.prediction.step_timeline import StepTimeline
from analysis.statistics.intervals import UNKNOWN_INTERVAL, Interval

SUM_OF_TERMS = "sum of terms"
BUCKET_TIMELINE = "bucket timeline"
UNTIMED_LINK = "no probe or ping-pong timed the link that so many workers need, or none of the counts known"
# A share. Launches vary by about as much: at one held-out count a smaller error is luck.
LUCKY_ERROR_SHARE = 0.01
# A share, too: what a model is taken to err by beyond what it expects, where no count was held out to see it.
# A choice between the 7 and 36 % by which timelines of the emulated curve in docs/prediction.md did.
UNSEEN_ERROR_SHARE = 0.2


@dataclass(frozen=True)
class ModelForecast:
    """What one model says of one count: seconds of a step, and draws of what may be measured, [DRAWS]."""

    model: str
    seconds: float
    draws: Array
    weight: float = 1.0

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the seconds that would be measured."""
        low, high = np.quantile(self.draws, EDGES)
        return float(low), float(high)


@dataclass(frozen=True)
class AverageForecast:
    """What all models together say of one count.

    `models` are those that may speak, with their weights, of which the skill was seen at `held_out` counts;
    `absent` says why others are silent. `interval` is unknown where `why` says so.
    """

    seconds: float
    interval: Interval
    models: tuple[ModelForecast, ...]
    held_out: int
    absent: Mapping[str, str]
    why: str = ""

    @property
    def draws(self) -> Array:
        """About DRAWS draws of the seconds that may be measured; none where no model speaks."""
        return _pooled(self.models) if self.models else np.empty(0)


@dataclass(frozen=True)
class Predictor:
    """The models of a series, fitted on its `size` smallest counts."""

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

    @cached_property
    def timeline(self) -> StepTimeline | str:
        """The timeline of buckets, or what it lacks."""
        evidence = self.series.evidence
        if isinstance(evidence, str):
            return evidence
        return StepTimeline(evidence, self.counts, self.series.launches[: self.size])

    def at(self, at: Counts) -> AverageForecast:
        """Return what the models say of one count."""
        absent = self._absent(at)
        models = tuple(self._models(at))
        if not models:
            return AverageForecast(
                float(self.fitted.seconds(at)[0]), UNKNOWN_INTERVAL, (), 0, absent, absent[SUM_OF_TERMS]
            )
        errors = self._held_out_errors if len(models) > 1 else np.empty((0, len(models)))
        return _average(models, errors, absent)

    def _absent(self, at: Counts) -> dict[str, str]:
        """Return why each model that says nothing of one count is silent."""
        absent = {}
        if bool((self.counts.nodes == 1).all() and at.nodes[0] > 1):
            absent[SUM_OF_TERMS] = UNSEEN_LINK
        if isinstance(self.timeline, str):
            absent[BUCKET_TIMELINE] = self.timeline
        elif not self.timeline.covers(at):
            absent[BUCKET_TIMELINE] = UNTIMED_LINK
        return absent

    def _models(self, at: Counts) -> Iterator[ModelForecast]:
        absent = self._absent(at)
        if SUM_OF_TERMS not in absent:
            yield ModelForecast(SUM_OF_TERMS, float(self.fitted.seconds(at)[0]), self.fitted.draws(at))
        if isinstance(self.timeline, StepTimeline) and BUCKET_TIMELINE not in absent:
            yield ModelForecast(BUCKET_TIMELINE, self.timeline.seconds(at), self.timeline.draws(at))

    @cached_property
    def _held_out_errors(self) -> Array:
        """Return logarithms of predicted over measured seconds, [counts, models].

        Of each known count that at least 3 smaller ones predict, by the models that know only those.
        """
        errors = []
        for place in range(FEWEST_COUNTS, self.size):
            models = [*Predictor(self.series, place)._models(self.series.counts[place : place + 1])]
            measured = float(np.median(self.series.launches[place]))
            errors.append([np.log(model.seconds / measured) for model in models])
        return np.array([row for row in errors if len(row) > 1]).reshape(-1, 2)


def _average(models: Sequence[ModelForecast], errors: Array, absent: Mapping[str, str]) -> AverageForecast:
    weights = skill_weights(errors) if len(errors) else expected_weights(models)
    weighted = tuple(
        replace(model, weight=float(weight)) for model, weight in zip(models, weights, strict=True)
    )
    seconds = float(np.exp(sum(model.weight * np.log(model.seconds) for model in weighted)))
    low, high = np.quantile(_pooled(weighted), EDGES)
    interval = min(float(low), seconds), max(float(high), seconds)
    return AverageForecast(seconds, interval, weighted, len(errors), absent)


def skill_weights(errors: Array) -> Array:
    """Return the weights of models, which sum to 1, by how they erred.

    `errors`: logarithms of predicted over measured, [held-out counts, models].
    """
    return _inverse_shares(np.mean(errors**2, axis=0) + LUCKY_ERROR_SHARE**2)


def expected_weights(models: Sequence[ModelForecast]) -> Array:
    """Return the weights of models, which sum to 1, by what they expect to err by themselves."""
    squares = [np.mean(np.log(model.draws / model.seconds) ** 2) for model in models]
    return _inverse_shares(np.array(squares) + UNSEEN_ERROR_SHARE**2)


def _inverse_shares(squares: Array) -> Array:
    return np.asarray((1 / squares) / (1 / squares).sum())


def _pooled(models: Sequence[ModelForecast]) -> Array:
    """Return about DRAWS draws, of each model as many as its weight says, evenly over its own."""
    if len(models) == 1:
        return models[0].draws
    sizes = [round(model.weight * DRAWS) for model in models]
    return np.concatenate(
        [
            np.quantile(model.draws, (np.arange(size) + 0.5) / size)
            for model, size in zip(models, sizes, strict=True)
            if size
        ]
    )


def models_text(forecast: AverageForecast) -> str:
    """Return "sum of terms 62 %, bucket timeline 38 %"; one model alone without its weight."""
    if len(forecast.models) == 1:
        return forecast.models[0].model
    return ", ".join(f"{model.model} {100 * model.weight:.0f} %" for model in forecast.models)

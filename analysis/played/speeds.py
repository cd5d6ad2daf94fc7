"""Throughput at a number of workers for a played series: measured by real runs, or predicted from them.

Options that decide what is learned, but not how fast (SPEED_NEUTRAL), may differ between both: a few epochs
of real runs give the speed of a long training.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from analysis.loading.options import OPERATIONAL, flat_options
from analysis.prediction.notes import UNSEEN_LINK
from analysis.prediction.predictor import Predictor
from analysis.prediction.series import all_series, count_at, why_unpredictable
from analysis.stats import UNKNOWN_INTERVAL, Interval
from analysis.study import NAN, POINT, SERIES, Study
from analysis.text import Row
from unet_scaling.study.record_lines import Header

SPEED_NEUTRAL = frozenset((
    *OPERATIONAL, "data.split_seed", "training.epochs", "training.learning_rate", "training.rate_scaling",
    "training.warmup_epochs", "training.schedule", "training.evaluate_every", "training.plays",
))  # fmt: skip
NO_SPEED = "no real run of these data, model and batch gives the speed"

SeriesKey = tuple[str, ...]


@dataclass(frozen=True)
class KnownSpeed:
    """Images per second at a number of workers; `source` is "measured", "predicted", or empty: not known."""

    images_per_second: float = NAN
    interval: Interval = UNKNOWN_INTERVAL
    source: str = ""
    why: str = NO_SPEED


@dataclass(frozen=True)
class RealSpeeds:
    """The speeds that the real runs of a study give; `points` are those of `speedup.summarise`."""

    study: Study
    points: pd.DataFrame

    def at(self, series: SeriesKey, workers: int) -> KnownSpeed:
        """Return the speed of a series (options, framework, knobs) at a number of workers."""
        alike = self._alike(series)
        measured = [row for key in alike if (row := self._measured.get((*key, workers))) is not None]
        if measured:
            row = measured[0]
            return KnownSpeed(
                row["images_per_second"],
                (row["images_per_second_low"], row["images_per_second_high"]),
                "measured",
                "",
            )
        fitted = [self._fits[key] for key in alike if key in self._fits]
        return _predicted(fitted[0], workers) if fitted else KnownSpeed()

    def _alike(self, series: SeriesKey) -> list[SeriesKey]:
        """Return the real series as fast as this one, itself first."""
        wanted = self._speed_keys.get(series)
        alike = [key for key in self._real_series if self._speed_keys[key] == wanted]
        return sorted(alike, key=lambda key: key != series)

    @cached_property
    def _real_series(self) -> list[SeriesKey]:
        return [tuple(map(str, key)) for key in self.study.runs[SERIES].drop_duplicates().to_numpy()]

    @cached_property
    def _speed_keys(self) -> Mapping[SeriesKey, Hashable]:
        """What decides the speed of each series, real or played."""
        keys: dict[SeriesKey, Hashable] = {}
        for part in filter(None, (self.study, self.study.played)):
            for row in part.runs.drop_duplicates(SERIES).to_dict("records"):
                keys[tuple(str(row[name]) for name in SERIES)] = _speed_key(part.headers[row["run"]])
        return keys

    @cached_property
    def _measured(self) -> Mapping[Hashable, Row]:
        known = self.points[self.points["images_per_second"].notna()]
        return {tuple(row[name] for name in POINT): row for row in known.to_dict("records")}

    @cached_property
    def _fits(self) -> Mapping[SeriesKey, Predictor]:
        known = [series for series in all_series(self.study) if not why_unpredictable(series)]
        return {series.key: Predictor(series, len(series.launches)) for series in known}


def _speed_key(header: Header) -> Hashable:
    config = header.config
    options = {key: value for key, value in flat_options(config).items() if key not in SPEED_NEUTRAL}
    return config.framework, header.manifest_sha256, header.train_images, tuple(options.items())


def _predicted(predictor: Predictor, workers: int) -> KnownSpeed:
    series = predictor.series
    at = count_at(series.counts, workers)
    forecast = predictor.at(at)
    within_one_node = bool((series.counts.nodes == 1).all())
    unseen = f"{UNSEEN_LINK}: it holds within one node only" if within_one_node else ""
    speed = series.throughput(at, forecast.seconds)
    return KnownSpeed(speed, series.throughputs(at, forecast.interval), "predicted", unseen)

"""Intervals over launches: what they promise, what they hold, and that they never change by chance."""

import numpy as np
import pytest

from analysis.findings.comparison import compare
from analysis.findings.speedup import summarise
from analysis.statistics.blocks import REALISATIONS, block_deviations, epoch_blocks
from analysis.statistics.intervals import (
    RESAMPLES,
    bounds,
    coverage,
    median_intervals,
    replicates,
)
from tests.simulated import Noise, simulate, study_from, study_with_pace


def test_coverage_is_that_of_the_range_and_at_most_nominal() -> None:
    assert [coverage(repeats) for repeats in (3, 4, 5, 6, 50)] == [0.75, 0.875, 0.9375, 0.95, 0.95]


def test_fewer_than_three_launches_or_an_unknown_one_have_no_interval() -> None:
    for values in ([], [1.0], [1.0, 2.0], [1.0, 2.0, np.nan]):
        assert np.isnan(median_intervals([np.array(values)])).all()


def test_equal_launches_give_an_interval_of_no_width() -> None:
    assert median_intervals([np.full(5, 3.0)]) == [(3.0, 3.0)]


def test_intervals_do_not_depend_on_the_unit() -> None:
    values = np.random.default_rng(3).normal(100, 5, size=7)
    plain, scaled = median_intervals([values, 1000 * values])
    assert scaled == pytest.approx((1000 * plain[0], 1000 * plain[1]))


def test_intervals_narrow_with_more_launches() -> None:
    values = np.random.default_rng(4).normal(size=200)
    intervals = median_intervals([values[:number] for number in (5, 20, 200)])
    widths = [high - low for low, high in intervals]
    assert widths[0] > widths[1] > widths[2]


def test_a_points_interval_does_not_depend_on_the_other_points() -> None:
    values = np.random.default_rng(5).normal(size=(300, 5))
    alone = replicates(values[:1])
    assert alone.shape == (1, RESAMPLES)
    np.testing.assert_array_equal(replicates(values)[:1], alone)


def test_intervals_are_the_same_every_time() -> None:
    first, second = np.random.default_rng(2).normal(100, 5, size=(2, 1, 30))
    np.testing.assert_array_equal(
        replicates(first) - replicates(second, stream=1), replicates(first) - replicates(second, stream=1)
    )


def test_pairing_removes_what_the_launches_of_a_repeat_have_in_common() -> None:
    """Points of one stream draw the same repeats; those of another stream are independent."""
    common = np.log([[1.0, 2.0, 3.0, 4.0, 5.0]])
    paired = np.exp(replicates(common + np.log(2)) - replicates(common))
    np.testing.assert_allclose(bounds(paired), 2.0)
    low, high = bounds(np.exp(replicates(common + np.log(2)) - replicates(common, stream=1)))
    assert low < 1.0
    assert high > 4.0


def test_noise_of_epochs_that_the_launches_show_already_is_not_counted_twice() -> None:
    """Launches that differ by the noise of their epochs alone: the blocks add no width to speak of."""
    noise = np.random.default_rng(6).normal(0, 0.02, size=(200, 9, 20))
    values, resampled = noise.mean(axis=-1), noise[..., np.random.default_rng(7).integers(0, 20, (20, 20))]
    deviations = np.moveaxis(resampled.mean(axis=-1), -1, 0) - values
    widths = [np.mean(np.subtract(*bounds(replicates(values, each)))) for each in (None, deviations)]
    assert widths[1] == pytest.approx(widths[0], rel=0.1)


def test_block_deviations_have_the_spread_of_a_mean_of_the_epochs() -> None:
    pace = np.exp(np.random.default_rng(8).normal(0, 0.02, size=(400, 16)))
    deviations = block_deviations(study_with_pace(pace), study_with_pace(pace).runs["run"].tolist())
    assert deviations.shape == (REALISATIONS, 400)
    assert deviations.std() == pytest.approx(0.02 / np.sqrt(16), rel=0.1)


def test_blocks_hold_every_epoch_after_the_warmup_once_and_in_order() -> None:
    study = study_with_pace(np.arange(1.0, 51.0)[None, :])
    study.epochs.loc[0, "warmup"] = True
    blocks = epoch_blocks(study, study.runs["run"].tolist())
    assert blocks.epochs.tolist() == [49]
    assert blocks.seconds.sum() == pytest.approx(np.arange(2, 51).sum())
    assert (np.diff(blocks.seconds[0] / blocks.work[0]) > 0).all()


def test_epochs_in_any_order_give_the_same_blocks() -> None:
    study = study_with_pace(np.random.default_rng(9).normal(10, 1, size=(3, 30)))
    names = study.runs["run"].tolist()
    ordered = epoch_blocks(study, names)
    study.epochs[:] = study.epochs.sample(frac=1, random_state=1).to_numpy()
    np.testing.assert_allclose(epoch_blocks(study, names).seconds, ordered.seconds)


def test_launches_of_a_single_epoch_say_nothing_about_the_noise_within() -> None:
    study = study_from({("horovod", 1): [100.0, 101.0, 102.0]}, epochs=1)
    assert (block_deviations(study, study.runs["run"].tolist()) == 0).all()


def test_intervals_over_five_launches_hold_the_truth_as_often_as_stated() -> None:
    """The median, and its ratio to another, paired and not; all mixes are in benchmarks/coverage.py."""
    random = np.random.default_rng(10)
    common, *own = random.normal(size=(3, 500, 5))
    first, second = (common + each for each in own)
    cases = (
        replicates(first),
        replicates(first) - replicates(second),
        replicates(own[0]) - replicates(own[1], stream=1),
        replicates(first - second),
    )
    for found in cases:
        low, high = bounds(found)
        assert 0.9 <= np.mean((low <= 0) & (high >= 0)) <= 0.99


def test_the_simulation_passes_through_the_tables_of_the_analysis() -> None:
    """All tables hold the truth about as often as stated; benchmarks/coverage.py prints it for many mixes."""
    study = simulate(7, Noise(0.02, 0.01, 0.02, 5), 60, 1.03)
    points = summarise(study)
    points = points[(points["framework"] == "pytorch_native") & (points["workers"] == 4)]
    ratios = compare(study, family=["options"])
    for table, name, truth in (
        (points, "throughput", 4.0),
        (points, "speedup", 4.0),
        (ratios, "ratio", 1.03),
    ):
        holds = (table[f"{name}_low"] <= truth) & (truth <= table[f"{name}_high"])
        assert 0.8 <= holds.mean() <= 1

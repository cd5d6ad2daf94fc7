"""The gradient noise scale of simulated gradients whose noise and signal are known."""

import numpy as np
import pytest

from analysis.arrays import Array
from analysis.statistics.noise_scale import RESOLVED, UNRESOLVED, NoiseScale, estimate_noise_scale
from tests.simulated_gradients import sampled_norms

BLOCKS = 20


def estimates(draws: int, workers: int, noise: float, signal: Array) -> list[NoiseScale]:
    random = np.random.default_rng(1)
    blocks = np.arange(len(signal)) % BLOCKS
    return [
        estimate_noise_scale(*sampled_norms(random, workers, noise, signal), workers, blocks)
        for _ in range(draws)
    ]


FALLING = 10.0 ** -np.linspace(0, 1, 200)


@pytest.mark.parametrize(
    ("workers", "noise", "signal"),
    [(2, 4.0, np.ones(100)), (4, 20.0, np.ones(100)), (14, 30.0, np.ones(40)), (4, 5.0, FALLING)],
)
def test_the_estimate_is_right_on_average_and_its_interval_in_95_of_100_draws(
    workers: int, noise: float, signal: Array
) -> None:
    truth = noise / signal.mean()
    found = estimates(1000, workers, noise, signal)
    assert {each.answer for each in found} == {RESOLVED}
    assert np.mean([each.workers for each in found]) == pytest.approx(truth, rel=0.02)
    assert np.mean([each.noise for each in found]) == pytest.approx(noise, rel=0.01)
    assert np.mean([each.signal for each in found]) == pytest.approx(signal.mean(), rel=0.01)
    held = [low < truth < high for low, high in (each.workers_interval for each in found)]
    assert 0.92 <= np.mean(held) <= 0.98


def test_a_signal_that_may_be_zero_leaves_a_lower_bound_only() -> None:
    for each in estimates(100, workers=2, noise=100.0, signal=np.full(40, 1e-3)):
        low, high = each.workers_interval
        if each.answer == UNRESOLVED:
            assert np.isnan(each.workers)
            assert np.isnan(high)
            assert not low <= 0
        else:
            assert 0 < low < each.workers < high


def test_the_lower_bound_holds_where_the_noise_scale_is_not_resolved() -> None:
    truth = 100.0 / 0.1
    found = estimates(300, workers=2, noise=100.0, signal=np.full(40, 0.1))
    bounds = [each.workers_interval[0] for each in found if each.answer == UNRESOLVED]
    assert len(bounds) > 200
    # One end of a 95 % interval.
    assert np.mean(np.array(bounds) < truth) > 0.95


def test_few_samples_are_not_judged() -> None:
    own = np.array([2.0, 2.1, 1.9, 2.0])
    found = estimate_noise_scale(own, own / 2, 2, np.arange(4))
    assert found.answer == "not resolved: fewer than 5 samples"
    assert np.isnan([found.workers, *found.workers_interval, *found.signal_interval]).all()


def test_equal_gradients_have_no_noise_scale() -> None:
    found = estimate_noise_scale(np.ones(30), np.ones(30), 4, np.arange(30) % 10)
    assert found.answer == UNRESOLVED
    assert found.noise == 0
    assert found.signal == 1

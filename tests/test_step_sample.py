"""steps.parquet: all steps of a short run, a uniform sample within its bound of a long one."""

import io
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from unet_scaling.measure.step_sample import StepSample
from unet_scaling.study.measurements import PHASE_COLUMNS, Phase


def phases(workers: int, steps: int, start: int = 0) -> np.ndarray[Any, Any]:
    """Every number is different, so that nothing can be confused."""
    count = workers * steps * len(Phase)
    return np.arange(start, start + count, dtype=np.float64).reshape(workers, steps, len(Phase))


def read(sample: StepSample) -> tuple[dict[str, list[Any]], dict[bytes, bytes]]:
    content = sample.parquet()
    assert content is not None
    table = parquet.read_table(io.BytesIO(content))
    return table.to_pydict(), table.schema.metadata


def test_a_short_run_keeps_every_step_of_every_worker() -> None:
    sample = StepSample(workers=2, seed=1)
    first, second = phases(2, 3), phases(2, 3, start=1000)
    sample.add(0, 0, first)
    sample.add(1, 0, second)
    table, facts = read(sample)
    places = zip(table["epoch"], table["step"], table["worker"], strict=True)
    assert list(places) == [(e, s, w) for e in range(2) for s in range(3) for w in range(2)]
    for phase, column in enumerate(PHASE_COLUMNS):
        expected = [*first[:, :, phase].T.ravel(), *second[:, :, phase].T.ravel()]
        assert table[column] == expected
    assert table["wire_seconds"][:2] == [first[:, 0, Phase.SYNC].min()] * 2
    assert facts[b"steps_seen"] == facts[b"steps_kept"] == b"6"


def test_blocks_of_an_epoch_continue_its_steps() -> None:
    sample = StepSample(workers=1, seed=1)
    sample.add(0, 0, phases(1, 2))
    sample.add(0, 2, phases(1, 2))
    assert read(sample)[0]["step"] == [0, 1, 2, 3]


def test_a_long_run_stays_within_its_bound_and_keeps_all_workers_of_a_step() -> None:
    sample = StepSample(workers=4, seed=1, most_rows=42)
    for epoch in range(20):
        sample.add(epoch, 0, phases(4, 30))
    table, facts = read(sample)
    assert len(table["step"]) == 40
    assert facts[b"steps_seen"] == b"600"
    assert table["worker"] == [0, 1, 2, 3] * 10
    assert len({*zip(table["epoch"], table["step"], strict=True)}) == 10


def test_every_step_has_the_same_chance() -> None:
    """1,000 samples of 5 of 50 steps: each step 100 times, give or take 5 standard deviations."""
    counts = np.zeros(50)
    for seed in range(1000):
        sample = StepSample(workers=1, seed=seed, most_rows=5)
        sample.add(0, 0, np.zeros((1, 50, len(Phase))))
        counts[[step for _, step, _ in sample._kept.values()]] += 1
    assert counts.sum() == 5000
    assert np.abs(counts - 100).max() < 5 * np.sqrt(1000 * 0.1 * 0.9)


def test_the_sample_follows_from_the_seed() -> None:
    samples = [StepSample(workers=1, seed=seed, most_rows=5) for seed in (1, 1, 2)]
    for sample in samples:
        sample.add(0, 0, phases(1, 100))
    one, same, other = (read(sample)[0]["step"] for sample in samples)
    assert one == same
    assert one != other


def test_no_step_is_no_file() -> None:
    assert StepSample(workers=1, seed=1).parquet() is None


def test_unknown_phases_stay_unknown() -> None:
    sample = StepSample(workers=1, seed=1)
    sample.add(0, 0, np.full((1, 1, len(Phase)), np.nan))
    assert np.isnan(read(sample)[0]["wire_seconds"]).all()


@pytest.mark.parametrize("workers", [30_000])
def test_one_step_is_kept_however_many_workers_it_has(workers: int) -> None:
    sample = StepSample(workers=workers, seed=1)
    sample.add(0, 0, np.zeros((workers, 2, len(Phase))))
    assert len(read(sample)[0]["step"]) == workers

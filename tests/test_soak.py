"""A small soak: every kind of fault once, on a real Slurm; python -m tests.soak is the large one."""

from pathlib import Path

import pytest

from tests.soak import KINDS, Shape, place, soak, undisturbed_study

pytestmark = [pytest.mark.slow, pytest.mark.soak]


def test_a_study_under_every_kind_of_fault_comes_to_the_same(images: Path, tmp_path: Path) -> None:
    shape = Shape(images, (1, 2))
    with place(hosts=3, folder=tmp_path) as (cluster, disk):
        expected = undisturbed_study(cluster, tmp_path, shape)
        outcome = soak(cluster, disk, tmp_path, shape, seed=1, faults=len(KINDS), expected=expected)
    print(outcome)
    assert not outcome.problems
    assert sorted(outcome.injected) == sorted(KINDS)
    assert outcome.identical == len(outcome.rows) == 4

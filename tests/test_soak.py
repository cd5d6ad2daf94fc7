"""A small soak: every kind of fault once, on a real Slurm; python -m tests.soak is the large one."""

from pathlib import Path

import pytest

from tests.cluster import skip_without_cluster
from tests.soak import Shape, place, soak

pytestmark = [pytest.mark.slow, pytest.mark.verify]
KINDS = 5


def test_a_study_under_every_kind_of_fault_comes_to_the_same(images: Path, tmp_path: Path) -> None:
    skip_without_cluster()
    shape = Shape(images, (1, 2), repeats=2, step_seconds=0.25)  # it lasts until all have come
    with place(hosts=2, folder=tmp_path) as (cluster, disk):
        outcome = soak(cluster, disk, tmp_path, shape, seed=1, faults=KINDS)
    print(outcome)
    assert not outcome.problems
    assert len(outcome.injected) == KINDS
    assert outcome.identical == len(outcome.rows) == 8
